"""Hostile and ordinary requests of eight clients to `coexec serve` with two models.

Three of four requests are good, and their outputs are compared with those of ONNX Runtime. Of the
others the body is cut, a size in the header or in the JSON is wrong, a shape or type is wrong, the
client disconnects before the answer, or gives the request a millisecond to wait. All outcomes are
counted. The exit code is 1 if outputs were wrong, a status was none of those expected, the server's
counters differ from those of the clients, its memory grew by more than a tenth after the first
fifth of the requests, or it did not end by SIGTERM with the code 0. ``--rounds`` is the number of
requests.
"""

import contextlib
import json
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from common import arguments, show, source
from prometheus_client.parser import text_string_to_metric_families

import coexec

Array = np.ndarray[Any, Any]

CLIENTS = 8
_LENGTH = "Inference-Header-Content-Length"
_PATIENCE_S = 120
_CASES = 4
"""Feeds of each model, whose outputs are known."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing a socket resets the connection."""


@dataclass(frozen=True)
class _Case:
    """A good request, and its outputs."""

    path: str
    document: Mapping[str, Any]
    binary: bytes
    expected: Mapping[str, Array]

    def message(self, **changed: Any) -> tuple[bytes, dict[str, str]]:
        """Body and headers; ``changed`` are other fields of the first input."""
        first, *others = self.document["inputs"]
        document = {**self.document, "inputs": [{**first, **changed}, *others]}
        text = json.dumps(document).encode()
        return text + self.binary, {_LENGTH: str(len(text))}


def _cases(name: str, model: str, cache: str | None) -> list[_Case]:
    """Requests with random inputs for the served model ``name``; an open axis has the size 1."""
    session = coexec.InferenceSession(model, planner="single", cache=cache)
    found = []
    for seed in range(_CASES):
        rng = np.random.default_rng(seed)
        feeds = {
            i.name: rng.standard_normal(
                [s if isinstance(s, int) else 1 for s in i.shape], dtype=np.float32
            )
            for i in session.get_inputs()
        }
        names = [o.name for o in session.get_outputs()]
        outputs = session.coexec_router.ort.run(names, feeds, None)
        inputs = [
            {
                "name": key,
                "shape": list(array.shape),
                "datatype": "FP32",
                "parameters": {"binary_data_size": array.nbytes},
            }
            for key, array in feeds.items()
        ]
        found.append(
            _Case(
                f"/v2/models/{name}/infer",
                {"inputs": inputs, "parameters": {"binary_data_output": True}},
                b"".join(array.tobytes() for array in feeds.values()),
                dict(zip(names, outputs, strict=True)),
            )
        )
    session.close()
    return found


class _Client:
    """Sends one request after another. Each method returns what was done and the status."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = HTTPConnection(address, timeout=_PATIENCE_S)

    def good(self, case: _Case) -> tuple[str, int]:
        status, answer, head = self._send(case, *case.message())
        if status == 200 and not _right(case, answer, head):
            return "WRONG OUTPUTS", status
        return "good", status

    def hurried(self, case: _Case) -> tuple[str, int]:
        parameters = {**case.document["parameters"], "timeout": 1000}
        hurried = _Case(case.path, {**case.document, "parameters": parameters}, case.binary, {})
        return "hurried", self._send(case, *hurried.message())[0]

    def misshapen(self, case: _Case) -> tuple[str, int]:
        return "shape", self._send(case, *case.message(shape=[7, 7, 7]))[0]

    def mistyped(self, case: _Case) -> tuple[str, int]:
        return "type", self._send(case, *case.message(datatype="INT8"))[0]

    def missized(self, case: _Case) -> tuple[str, int]:
        parameters = {"binary_data_size": len(case.binary) + 1}
        return "size", self._send(case, *case.message(parameters=parameters))[0]

    def misheaded(self, case: _Case) -> tuple[str, int]:
        body, _ = case.message()
        return "header", self._send(case, body, {_LENGTH: str(random.randrange(2, 50))})[0]

    def cut(self, case: _Case) -> tuple[str, int]:
        body, headers = case.message()
        with self._raw(case, headers, len(body)) as connection:
            connection.sendall(body[: random.randrange(len(body))])
        return "cut", 0

    def killed(self, case: _Case) -> tuple[str, int]:
        body, headers = case.message()
        with self._raw(case, headers, len(body)) as connection:
            connection.sendall(body)
            connection.settimeout(random.choice([0.0005, 0.005, 0.05]))
            with contextlib.suppress(TimeoutError):
                connection.recv(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return "killed", 0

    def _raw(self, case: _Case, headers: Mapping[str, str], size: int) -> socket.socket:
        host, _, port = self._address.partition(":")
        connection = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        lines = [f"{key}: {value}" for key, value in headers.items()]
        head = [f"POST {case.path} HTTP/1.1", "Host: a", f"Content-Length: {size}", *lines, "", ""]
        connection.sendall("\r\n".join(head).encode())
        return connection

    def _send(self, case: _Case, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes, int]:
        """Status and body of the answer, and the length of its JSON."""
        for again in (True, False):
            try:
                self._connection.request("POST", case.path, body, dict(headers))
                response: HTTPResponse = self._connection.getresponse()
                answer = response.read()
                return response.status, answer, int(response.headers.get(_LENGTH, "0"))
            except ConnectionError:  # the server closes a connection that is idle for 5 s
                self._connection.close()
                if not again:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


def _right(case: _Case, answer: bytes, head: int) -> bool:
    outputs = json.loads(answer[:head])["outputs"]
    at = head
    for output in outputs:
        size = output["parameters"]["binary_data_size"]
        found = np.frombuffer(answer[at : at + size], np.float32).reshape(output["shape"])
        at += size
        expected = case.expected[output["name"]]
        bound = 1e-4 * (float(np.abs(expected).max()) or 1.0)
        if found.shape != expected.shape or not float(np.abs(found - expected).max()) <= bound:
            return False
    return len(outputs) == len(case.expected)


_REFUSED = frozenset({400, 429})
_LEFT = frozenset({0})
_ALLOWED = {
    "good": {200, 429},
    "hurried": {200, 429, 504},
    **dict.fromkeys(("shape", "type", "size", "header"), _REFUSED),
    **dict.fromkeys(("cut", "killed"), _LEFT),
}
"""Expected statuses by request; 0: the client disconnects."""


def _soak(address: str, cases: list[_Case], count: int, tick: Callable[[int], None]) -> Any:
    """Outcomes of ``count`` requests, by model, deed and status."""
    seen: Counter[tuple[str, str, int]] = Counter()
    lock = threading.Lock()

    def client(number: int) -> None:
        mine = _Client(address)
        bad = [mine.hurried, mine.misshapen, mine.mistyped, mine.missized, mine.misheaded]
        bad += [mine.cut, mine.killed]
        choose = random.Random(number)
        for _ in range(count // CLIENTS):
            case = choose.choice(cases)
            deed, status = (mine.good if choose.random() < 0.75 else choose.choice(bad))(case)
            with lock:
                seen[case.path.split("/")[3], deed, status] += 1
                tick(sum(seen.values()))
        mine.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return seen


def _memory_mb(process: "subprocess.Popen[str]") -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _counted(address: str) -> Counter[tuple[str, int]]:
    """Number of requests by model and status, as the server has counted them."""
    connection = HTTPConnection(address, timeout=_PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found: Counter[tuple[str, int]] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "coexec_request_seconds_count":
                found[sample.labels["model"], int(sample.labels["status"])] += int(sample.value)
    return found


def _differences(
    seen: Mapping[tuple[str, str, int], int], counted: Mapping[tuple[str, int], int]
) -> list[str]:
    """How the server's numbers contradict those of the clients. A request whose client disconnected
    may count as 499, as 200 or 429 if its answer was sent before, or not at all."""
    answered: Counter[tuple[str, int]] = Counter()
    left: Counter[str] = Counter()
    for (model, _, status), number in seen.items():
        if status:
            answered[model, status] += number
        else:
            left[model] += number
    problems = []
    for model in left | Counter(model for model, _ in answered):
        beyond = 0
        for status in {s for m, s in [*answered, *counted] if m == model}:
            more = counted.get((model, status), 0) - answered[model, status]
            beyond += more
            if more < 0 or (more and status not in (200, 429, 499)):
                problems.append(f"{model} {status}: server {more:+} of {answered[model, status]}")
        if beyond > left[model]:
            problems.append(f"{model}: {beyond} requests too many for {left[model]} disconnections")
    return problems


def main() -> None:
    args = arguments(__doc__ or "", ["squeezenet", "mobilenet_v2"], rounds=10_000)
    models = {f"model{i}": source(name) for i, name in enumerate(args.models)}
    cases = [case for name, model in models.items() for case in _cases(name, model, args.cache)]
    words = [f"{name}={model}" for name, model in models.items()]
    words += ["--port", "0", "--json", "--planner", "single", "--queue", str(CLIENTS)]
    words += [] if args.cache is None else ["--cache", args.cache]
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "coexec", "serve", *words]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as server:
        try:
            problems = _judged(server, cases, args.rounds, args.json)
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=_PATIENCE_S)
        finally:
            server.kill()
    if server.returncode or errors:
        problems.append(f"the server ended with {server.returncode}: {errors[-500:]}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    sys.exit(1 if problems else 0)


def _judged(
    server: "subprocess.Popen[str]", cases: list[_Case], count: int, as_json: bool
) -> list[str]:
    """Send the requests, print their outcomes. Returns what is wrong with them."""
    assert server.stdout is not None
    text = ""
    while not text.endswith("\n}\n"):
        line = server.stdout.readline()
        if not line:
            return ["the server did not start"]
        text += line
    address = urlsplit(json.loads(text)["url"]).netloc
    memory_mb: dict[int, float] = {}

    def tick(done: int) -> None:
        if done % max(1, count // 5) == 0:
            memory_mb[done] = _memory_mb(server)

    seen = _soak(address, cases, count, tick)
    counted = _counted(address)
    rows = [
        {"model": model, "request": deed, "status": status or "-", "number": number}
        for (model, deed, status), number in sorted(seen.items())
    ]
    show("requests, as the clients saw them", rows, as_json)
    sums = [{"model": m, "status": s, "number": n} for (m, s), n in sorted(counted.items())]
    show("requests, as the server counted them", sums, as_json)
    held = [{"requests": at, "MB": mb} for at, mb in memory_mb.items()]
    show("memory of the server", held, as_json)
    problems = [
        f"{model}: {deed} got {status}"
        for model, deed, status in seen
        if status not in _ALLOWED.get(deed, ())
    ]
    first, last = next(iter(memory_mb.values())), list(memory_mb.values())[-1]
    if last > 1.1 * first:
        problems.append(f"memory grew from {first:.0f} to {last:.0f} MB")
    return problems + _differences(seen, counted)


if __name__ == "__main__":
    main()
