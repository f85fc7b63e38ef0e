"""An NVIDIA GPU: coexec's CUDA graph against PyTorch and ONNX Runtime's CUDA provider.

All rivals run in turns in one run, in float32, TF32 and fp16: coexec's engine `cuda` on the device
and from array to array, its engine `opencl` from array to array; ONNX Runtime's CUDA provider as it
is, and as a CUDA graph; a CUDA graph of PyTorch, and one of what torch.compile makes. "On the
device" means that inputs and outputs stay on the GPU; a run is then measured by the clock of the
GPU, from a mark before the graph to one behind it. All times are in ms.

Each network has a process for PyTorch and one for ONNX Runtime. torch.compile works in all of them
at once, before the first measurement; convolutions are tried when the turn of the network comes.
`--ort-gpu FOLDER` is where onnxruntime-gpu is installed (pip install --target FOLDER).

The bound is the roofline: for each task the larger of its operations over the peak rate and its
weights, inputs and outputs over the memory's rate, summed up.

    python benchmarks/gpu_on_nvidia.py [NETWORK ...] --ort-gpu FOLDER
    python benchmarks/gpu_on_nvidia.py vgg16 --no-compile --seconds 10
"""

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from common import show, some_of, tell_disturbances
from gpu_exports import FOLDER, NETWORKS, Case, OnDevice, options_of, prepared, tell
from gpu_rivals import PRECISIONS, Rival

from coexec.costs.estimated import work_of
from coexec.engines.detect import usable_cores
from coexec.errors import ExecutionError, first_line
from coexec.graph.graph import Graph
from coexec.selection.decision import Requests
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Outcome, Pacing, race

_PROGRAM = Path(__file__).with_name("gpu_rivals.py")
BYTES_PER_S = 4.8e12
"""Of the H200's memory. Source, also of the peaks: NVIDIA, H200 datasheet (SXM)."""
PEAK_PER_S: Mapping[str, float] = {"float32": 67e12, "tf32": 400e12, "fp16": 990e12}
"""Operations, two for each multiplication with addition, of dense matrices. The datasheet's 494e12
for TF32 are the peak; 400e12 is what matrix products reach."""
_START_S = 120.0
"""Limit of the time in which a process imports its packages."""
_PACING = Pacing(discard=2, loop=5)
_ROUNDS = (5, 100)
_REQUESTS: Sequence[Requests] = ("loop", "paced")
_MODES = ("default", "max-autotune-no-cudagraphs")
"""Of torch.compile, in which what it makes can be captured as a graph."""
_GROUP = ("precision", "from", "requests")
_OURS = (
    *(("coexec", "gpu:0/cuda", precision, options_of(precision)) for precision in PRECISIONS),
    ("coexec OpenCL", "gpu:0/opencl", "float32", {"waiting": "active"}),
)
_DEFAULT: Rival = ("CUDA provider", "tf32", "host")
"""ONNX Runtime's CUDA provider with its default options."""


def main() -> None:
    options = _arguments()
    if options.ort_gpu is None:
        _leave_out("ONNX Runtime's CUDA provider", "--ort-gpu is not given")
    cases = [*prepared(options.networks, options.folder, options.jobs, _leave_out)]
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        started = {case: [*_started(case, options)] for case in cases}
        for process in (process for processes in started.values() for process in processes):
            stack.callback(process.close)
        limit_s = len(PRECISIONS) * options.compile_limit + _START_S
        ready = {
            case: [p for p in processes if p.is_ready(limit_s)]
            for case, processes in started.items()
        }
        tell("the rivals are compiled")
        for case, processes in ready.items():
            rows += _compare(case, processes, options)
    show("geometric means of the ratios", [*_means(rows)], options.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=[*NETWORKS][:10], help=", ".join(NETWORKS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the exports")
    parser.add_argument("--jobs", type=int, default=max(1, len(usable_cores()) // 2))
    parser.add_argument("--ort-gpu", type=Path, help="folder with the package onnxruntime-gpu")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--compile-mode", default="default", choices=_MODES)
    parser.add_argument("--compile-limit", type=float, default=90.0, help="seconds of each")
    parser.add_argument("--precisions", type=some_of(PRECISIONS), default=[*PRECISIONS])
    parser.add_argument("--seconds", type=float, default=20.0, help="of a network's race")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def _leave_out(name: str, why: str) -> None:
    tell(f"{name} is left out: {why}")


class _Process:
    """A process of gpu_rivals.py with the rivals of one kind for one network."""

    def __init__(self, kind: str, case: Case, options: argparse.Namespace, **more: str) -> None:
        """``more``: of its environment."""
        self._name = f"{kind} for {case.name}"
        self._connection, theirs = Pipe()
        mode = "none" if options.no_compile else options.compile_mode
        precisions = ",".join(options.precisions)
        words = [kind, case.path, case.arrays, precisions, mode, str(options.compile_limit)]
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(theirs.fileno()), *words],
            pass_fds=[theirs.fileno()],
            stdout=sys.stderr,
            env={**os.environ, **more},
        )
        self.id = self._process.pid
        theirs.close()  # so that the end of the process ends the connection

    def is_ready(self, limit_s: float) -> bool:
        """Wait until it could use the GPU; False: it has failed, or the time was over."""
        if not self._connection.poll(limit_s):
            self._process.kill()
        return self._tried() is not None

    def rivals(self) -> Mapping[Rival, float | str]:
        """Its rivals, warmed up: the difference of each from the expected answer, or why it does
        not run."""
        self._connection.send(None)
        return self._tried() or {}

    def _tried(self) -> Any:
        try:
            return self._received()
        except ExecutionError as error:
            _leave_out(self._name, str(error))
            return None

    def seconds(self, rival: Rival) -> float:
        """Of one run.

        Raises:
            ExecutionError: the process has ended.
        """
        self._connection.send(rival)
        return float(self._received())

    def _received(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ExecutionError(f"its process has ended, with {self._process.wait()}") from None

    def close(self) -> None:
        self._connection.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _started(case: Case, options: argparse.Namespace) -> Iterator[_Process]:
    if not options.no_torch:
        threads = str(len(usable_cores()) // len(options.networks) or 1)
        yield _Process("torch", case, options, TORCHINDUCTOR_COMPILE_THREADS=threads)
    if options.ort_gpu is not None:
        path = os.pathsep.join([str(options.ort_gpu), os.environ.get("PYTHONPATH", "")])
        yield _Process("onnxruntime", case, options, PYTHONPATH=path)


class _OwnClocks(Stopwatch):
    """Each run returns its own seconds: by the clock of the GPU, or of another process."""

    def timed(self, run: Callable[[], Any]) -> float:
        return float(run())


def _compare(
    case: Case, processes: Sequence[_Process], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Race the rivals of one network, and print their times and the ratios, which are returned."""
    runs: dict[Rival, Callable[[], float]] = {}
    differences: dict[Rival, float] = {}
    bounds_ms: dict[str, float] = {}
    for name, device, precision, engine_options in _OURS:
        if precision not in options.precisions:
            continue
        try:
            network = OnDevice(case, device, options.folder / "kernels", engine_options)
            made: dict[Rival, Callable[[], float]] = {}
            made[name, precision, "host"] = partial(_from_host, network)
            if device == "gpu:0/cuda":
                made[name, precision, "device"] = network.on_gpu()
        except Exception as error:  # other networks and rivals go on
            reason = f"{type(error).__name__}: {first_line(error)}"
            _leave_out(f"{name} {precision} of {case.name}", reason)
            continue
        bounds_ms[precision] = 1e3 * _bound_s(network.graph, precision)
        runs |= made
        differences |= dict.fromkeys(made, network.difference)
    for process in processes:
        for rival, state in process.rivals().items():
            if isinstance(state, str):
                _leave_out(f"{' '.join(rival)} of {case.name}", state)
            elif rival[1] in options.precisions or rival == _DEFAULT:
                runs[rival], differences[rival] = partial(process.seconds, rival), state
    tell(f"{case.name}: {len(runs)} rivals run in turns")
    watch = _OwnClocks(used_s=cpu_clock([process.id for process in processes]))
    outcome = race(runs, _ROUNDS, budget_s=options.seconds, pacing=_PACING, watch=watch)
    for rival, failure in outcome.failed.items():
        _leave_out(f"{' '.join(rival)} of {case.name}", str(failure))
    tell_disturbances(outcome)
    times = [
        dict(zip(("rival", "precision", "from"), rival, strict=True))
        | {requests: _ms(outcome, rival, requests) for requests in _REQUESTS}
        | {"difference": f"{differences[rival]:.1e}"}
        for rival, laps in outcome.laps.items()
        if laps
    ]
    show(f"{case.name}, ms", times, options.json)
    rows = [{"network": case.name} | row for row in _ratios(outcome, bounds_ms)]
    show(f"{case.name}, coexec over its best rival", rows, options.json)
    return rows


def _from_host(network: OnDevice) -> float:
    start_s = time.perf_counter()
    network.request()
    return time.perf_counter() - start_s


def _bound_s(graph: Graph, precision: str) -> float:
    """The roofline of a network. In fp16 all tensors have half of their size."""
    bytes_per_s = BYTES_PER_S * (2 if precision == "fp16" else 1)
    works = [work_of(graph, task) for task in graph.tasks]
    return sum(max(2 * w.macs / PEAK_PER_S[precision], w.moved_bytes / bytes_per_s) for w in works)


def _ms(outcome: Outcome[Rival], rival: Rival, requests: Requests) -> float:
    return 1e3 * (outcome.median_s(rival, requests) or math.nan)


def _ratios(outcome: Outcome[Rival], bounds_ms: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """On the device coexec is compared with the best rival of the same precision; from the host
    with ONNX Runtime's CUDA provider as it is by default."""
    raced = [rival for rival, laps in outcome.laps.items() if laps]
    for ours in (rival for rival in raced if rival[0] == "coexec"):
        _, precision, where = ours
        others = [_DEFAULT] if where == "host" else [r for r in raced if r[1:] == ours[1:]]
        others = [rival for rival in others if rival in raced and rival != ours]
        for requests in _REQUESTS if others else ():
            best = min(others, key=lambda rival: _ms(outcome, rival, requests))
            yield {
                "precision": precision,
                "from": where,
                "requests": requests,
                "coexec": _ms(outcome, ours, requests),
                "best rival": best[0],
                "its": _ms(outcome, best, requests),
                "ratio": outcome.ratio(ours, best, requests),
                "bound": bounds_ms[precision],
            }


def _means(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in _GROUP)
        groups.setdefault(key, []).append(row["ratio"])
    for key, ratios in groups.items():
        yield dict(zip(_GROUP, key, strict=True)) | {
            "networks": len(ratios),
            "geometric mean": statistics.geometric_mean(ratios),
            "largest": max(ratios),
            "at most 1": sum(ratio <= 1 for ratio in ratios),
        }


if __name__ == "__main__":
    main()
