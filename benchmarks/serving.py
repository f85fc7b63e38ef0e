"""Time that `coexec serve` adds to a run of the model, and its requests per second.

The server runs the model on the first core that this process may use. The clients are in a separate
process, which the operating system places. Each client sends its next request when it has received
the previous answer. "run" is the time of the session's run inside the server. The remaining time of
a request is HTTP, the protocol, threads and the client itself: tritonclient writes the tensors
again for each request.
"""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, show, source

from coexec import InferenceSession
from coexec.arrays import Array
from coexec.engines.detect import usable_cores
from coexec.serve.app import Application
from coexec.serve.models import Models
from coexec.serve.server import Server, listen
from coexec.serve.session import SessionServed

CLIENTS = 1, 2, 4


class _Timed(SessionServed):
    """A served session that records the time of each run."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.runs_s: list[float] = []

    def _run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        start_s = time.perf_counter()
        outputs = super()._run(feeds)
        self.runs_s.append(time.perf_counter() - start_s)
        return outputs


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        _client(*sys.argv[2:])
        return
    args = arguments(__doc__ or "", ["squeezenet"], rounds=200)
    rows = [row for name in args.models for row in _rows(name, args)]
    show("requests to coexec serve", rows, args.json)


def _rows(name: str, args: Any) -> list[dict[str, Any]]:
    core = usable_cores()[0]
    session = InferenceSession(
        source(name), devices=[f"cpu:{core}"], planner="single", cache=args.cache
    )
    served = _Timed(session, Path(name).stem, credits=2 * max(CLIENTS))
    rows = []
    with listen("127.0.0.1", 0) as listener:
        server = Server(Application(Models([served])))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for form in ("binary", "json"):
            for clients in CLIENTS:
                rows.append(_row(served, address, form, clients, args.rounds))
        server.should_exit = True
        thread.join()
    served.close()
    return rows


def _row(served: _Timed, address: str, form: str, clients: int, rounds: int) -> dict[str, Any]:
    served.runs_s.clear()
    words = ["--client", address, served.name, form, str(clients), str(rounds)]
    done = subprocess.run(
        [sys.executable, __file__, *words], capture_output=True, text=True, check=True
    )
    client_result = json.loads(done.stdout)
    run_s, request_s = statistics.median(served.runs_s), client_result["request_s"]
    return {
        "model": served.name,
        "tensors": form,
        "clients": clients,
        "run_s": run_s,
        "request_s": request_s,
        # With several clients, a request also waits for other requests.
        "added_s": request_s - run_s if clients == 1 else "",
        "per second": client_result["per_s"],
    }


def _client(address: str, name: str, form: str, clients: str, rounds: str) -> None:
    """Print the median seconds of a request, and the requests per second of all clients."""
    import tritonclient.http as triton

    input_info = triton.InferenceServerClient(address).get_model_metadata(name)["inputs"][0]
    image = np.random.default_rng(0).standard_normal(input_info["shape"], dtype=np.float32)
    tensor = triton.InferInput(input_info["name"], input_info["shape"], "FP32")
    tensor.set_data_from_numpy(image, binary_data=form == "binary")
    triton_outputs = None  # binary
    if form == "json":
        outputs = triton.InferenceServerClient(address).get_model_metadata(name)["outputs"]
        triton_outputs = [
            triton.InferRequestedOutput(o["name"], binary_data=False) for o in outputs
        ]
    took_s: list[float] = []
    begin = threading.Barrier(int(clients) + 1)

    def ask() -> None:
        client = triton.InferenceServerClient(address)  # a client must stay in one thread
        client.infer(name, [tensor], outputs=triton_outputs)
        begin.wait()
        for _ in range(int(rounds)):
            start_s = time.perf_counter()
            client.infer(name, [tensor], outputs=triton_outputs)
            took_s.append(time.perf_counter() - start_s)

    threads = [threading.Thread(target=ask) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    begin.wait()
    start_s = time.perf_counter()
    for thread in threads:
        thread.join()
    per_s = len(took_s) / (time.perf_counter() - start_s)
    print(json.dumps({"request_s": statistics.median(took_s), "per_s": per_s}))


if __name__ == "__main__":
    main()
