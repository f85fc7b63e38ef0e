"""Requests per second of eight clients that share one model, and the latency of their requests.

ONNX Runtime and OpenVINO (f32), configured as servers do, against one session of coexec and one
session in its mode for throughput. Each is in a separate process, in turns. Every client sends its
next request when it has received the previous answer.

    python benchmarks/throughput.py [MODEL ...]
"""

import argparse
import inspect
import pickle
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from common import show
from contestants import Contestant, Ready, started, watch_of
from model_files import expanded, feeds_for, model_file

from coexec import InferenceSession
from coexec.engines.detect import usable_cores
from coexec.errors import ExecutionError
from coexec.model.difference import worst_difference
from coexec.selection.quiet_moment import Rest
from coexec.selection.race import ratio

MODELS = ["squeezenet", "resnet34", "inception_v3"]
CLIENTS = 8
SECONDS = 5.0
"""Seconds of one turn, after its start."""
_START_S = 0.5
"""Seconds at the start of a turn in which requests do not count, because the clients are not yet in
a steady state."""
_WARM_UP = 3
Feeds = Mapping[str, Any]
Request = tuple[float, float]
"""The times at which it was sent and answered, in seconds."""


class RunLock(NamedTuple):
    """Measurements of a rival's clients in one turn."""

    per_s: float
    """Answered requests per second."""
    latencies_s: list[float]


def main() -> None:
    options = _arguments()
    rows: list[dict[str, Any]] = []
    for word in expanded(options.models):
        with tempfile.TemporaryDirectory() as folder:
            rows += _compared(word, Path(folder), options)
    show(f"{CLIENTS} clients, {len(usable_cores())} cores, requests a second", rows, options.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="files, folders or zoo names")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--cache", default=None, help="folder for profiles and plans")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def _compared(word: str, folder: Path, options: Any) -> Iterator[dict[str, Any]]:
    path = model_file(word, folder)
    feeds = folder / "feeds"
    feeds.write_bytes(pickle.dumps(feeds_for(path)))
    rivals = _RIVALS | {name: partial(own, cache=options.cache) for name, own in _OURS.items()}
    makers = {name: partial(maker, str(path), feeds) for name, maker in rivals.items()}
    with started(makers, partial(_left_out, Path(word).stem)) as contestants:
        turns = _in_turns(contestants, options.rounds)
    other_turns = {name: own for name, own in turns.items() if name not in _OURS}
    best = max(other_turns, key=lambda name: _median_per_s(other_turns[name]))
    expected = contestants[0].outputs
    for one in contestants:
        pairs = zip(one.outputs, expected, strict=True)
        difference = f"{max(worst_difference(a, b) for a, b in pairs):.1e}"
        row = _row(turns[one.name], turns[best])
        yield {"model": Path(word).stem, "with": one.name} | row | {"difference": difference}


def _left_out(model: str, name: str, why: str) -> None:
    print(f"left out, {model} with {name}: {why}", file=sys.stderr)


def _in_turns(contestants: Sequence[Contestant], rounds: int) -> dict[str, list[RunLock]]:
    """The turns of each contestant, by round. The order rotates, and a turn begins when the
    processors are idle."""
    idle_wait = Rest(watch_of(list(contestants)))
    turns: dict[str, list[RunLock]] = {one.name: [] for one in contestants}
    for number in range(rounds):
        shift = number % len(contestants)
        for one in [*contestants[shift:], *contestants[:shift]]:
            if not idle_wait.until_idle():
                print(f"{one.name}: began while other threads were busy", file=sys.stderr)
            turns[one.name].append(one.turn())
    return turns


def _row(own: Sequence[RunLock], best: Sequence[RunLock]) -> dict[str, Any]:
    latencies_s = [np.percentile(one.latencies_s, (50, 99)) for one in own]
    p50_s, p99_s = (float(statistics.median(both[i] for both in latencies_s)) for i in (0, 1))
    return {
        "requests a second": _median_per_s(own),
        "of the best rival's": ratio([one.per_s for one in own], [one.per_s for one in best]),
        "p50_s": p50_s,
        "p99_s": p99_s,
    }


def _median_per_s(turns: Sequence[RunLock]) -> float:
    return statistics.median(one.per_s for one in turns)


def _one_session(path: str, feeds: Path, create: Callable[[str], Any]) -> Ready:
    """All clients use one session."""
    return _several(path, feeds, create, 1)


def _several(path: str, feeds: Path, create: Callable[[str], Any], count: int) -> Ready:
    """Several sessions, each for one request at a time, in a pool that all clients share."""
    inputs = pickle.loads(feeds.read_bytes())
    sessions = [create(path) for _ in range(count)]
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for session in sessions:
        session.run(None, inputs)
        getattr(session, "wait", lambda: None)()  # ONNX Runtime's class has nothing to wait for
        for _ in range(_WARM_UP):
            outputs = session.run(None, inputs)
        free.put(session)

    def with_a_free_one() -> None:
        session = free.get()
        session.run(None, inputs)
        free.put(session)

    if count == 1:
        return Ready(outputs, partial(_clients, partial(sessions[0].run, None, inputs)))
    # The pool serves requests in the order of their arrival. Without it, a client with an answer
    # would take the session again before a waiting client has woken up.
    pool = ThreadPoolExecutor(count)
    return Ready(outputs, partial(_clients, lambda: pool.submit(with_a_free_one).result()))


def _one_thread(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options)


def _one_thread_each(path: str, feeds: Path) -> Ready:
    return _several(path, feeds, _one_thread, len(usable_cores()))


def _ours(path: str, feeds: Path, cache: str | None) -> Ready:
    return _one_session(path, feeds, partial(InferenceSession, cache=cache))


def _ours_for_throughput(path: str, feeds: Path, cache: str | None) -> Ready:
    if "mode" not in inspect.signature(InferenceSession).parameters:
        raise ExecutionError("this version of coexec.InferenceSession takes no mode=")
    return _one_session(path, feeds, partial(InferenceSession, cache=cache, mode="throughput"))


def _clients(run: Callable[[], Any]) -> RunLock:
    """A turn of the clients; each client is a thread.

    Raises:
        Exception: the exception of a request.
    """
    end_s = time.perf_counter() + _START_S + SECONDS
    done: list[list[Request]] = [[] for _ in range(CLIENTS)]
    failed: list[Exception] = []

    def client(own: list[Request]) -> None:
        try:
            while (sent_s := time.perf_counter()) < end_s and not failed:
                run()
                own.append((sent_s, time.perf_counter()))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=client, args=(own,)) for own in done]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return _counted([request for own in done for request in own], end_s)


def _counted(requests: Sequence[Request], end_s: float) -> RunLock:
    """The measurements of a turn. Answers in the last `SECONDS` before ``end_s`` count; latencies
    are those of all requests that were answered after the beginning of this time."""
    start_s = end_s - SECONDS
    latencies_s = [at - sent_s for sent_s, at in requests if at >= start_s]
    answered = sum(start_s <= at < end_s for _, at in requests)
    if not answered:
        raise ExecutionError(f"no request was answered in {SECONDS:g} s")
    return RunLock(answered / SECONDS, latencies_s)


def _openvino(path: str, feeds: Path) -> Ready:
    """OpenVINO's own queue instead of threads of clients, with the same number of requests."""
    try:
        import openvino
    except ImportError:
        raise ExecutionError("it is not installed (pip install openvino)") from None
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",  # the default computes in 16 bits where possible
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    inputs = pickle.loads(feeds.read_bytes())
    for _ in range(_WARM_UP):
        first_outputs = compiled(inputs)
    requests = openvino.AsyncInferQueue(compiled, CLIENTS)
    done: list[Request] = []
    requests.set_callback(lambda _, sent_s: done.append((sent_s, time.perf_counter())))

    def turn() -> RunLock:
        done.clear()
        end_s = time.perf_counter() + _START_S + SECONDS
        while time.perf_counter() < end_s:
            requests.get_idle_request_id()  # waits for a free request, so that sending is fast
            requests.start_async(inputs, time.perf_counter())
        requests.wait_all()
        return _counted(done, end_s)

    return Ready([np.array(first_outputs[output]) for output in compiled.outputs], turn)


_RIVALS: dict[str, Callable[..., Ready]] = {
    "ONNX Runtime": partial(_one_session, create=ort.InferenceSession),
    "ONNX Runtime, 1 thread": partial(_one_session, create=_one_thread),
    "ONNX Runtime, a session a core": _one_thread_each,
    "OpenVINO, throughput": _openvino,
}
_OURS: dict[str, Callable[..., Ready]] = {
    "coexec": _ours,
    "coexec, throughput": _ours_for_throughput,
}
"""Functions that also get the cache folder."""


if __name__ == "__main__":
    main()
