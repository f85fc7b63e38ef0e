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
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from common import show
from gpu_exports import Case, OnDevice, options_of, prepared, tell
from gpu_processes import (
    RivalsProcess,
    arguments,
    in_turns,
    leave_out,
    means,
    over_best,
    raced,
    times,
    with_onnxruntime,
)
from gpu_rivals import PRECISIONS, Rival

from coexec.costs.estimated import work_of
from coexec.engines.detect import usable_cores
from coexec.errors import first_line
from coexec.graph.graph import Graph
from coexec.selection.race import Outcome

BYTES_PER_S = 4.8e12
"""Of the H200's memory. Source, also of the peaks: NVIDIA, H200 datasheet (SXM)."""
PEAK_PER_S: Mapping[str, float] = {"float32": 67e12, "tf32": 400e12, "fp16": 990e12}
"""Operations, two for each multiplication with addition, of dense matrices. The datasheet's 494e12
for TF32 are the peak; 400e12 is what matrix products reach."""
_START_S = 120.0
"""Limit of the time in which a process imports its packages."""
_MAKE_S = 300.0
"""Limit of the time in which it tries convolutions and warms its rivals up."""
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
        leave_out("ONNX Runtime's CUDA provider", "--ort-gpu is not given")
    cases = [*prepared(options.networks, options.folder, options.jobs, leave_out)]
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
    show("geometric means of the ratios", [*means(rows, _GROUP)], options.json)


def _arguments() -> argparse.Namespace:
    parser = arguments(__doc__, PRECISIONS, seconds=20.0)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--compile-mode", default="default", choices=_MODES)
    parser.add_argument("--compile-limit", type=float, default=90.0, help="seconds of each")
    return parser.parse_args()


def _started(case: Case, options: argparse.Namespace) -> Iterator[RivalsProcess]:
    if not options.no_torch:
        threads = str(len(usable_cores()) // len(options.networks) or 1)
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}
        mode = "none" if options.no_compile else options.compile_mode
        words = [mode, str(options.compile_limit)]
        yield RivalsProcess("torch", case, options.precisions, words, environment)
    if options.ort_gpu is not None:
        environment = with_onnxruntime(options.ort_gpu)
        yield RivalsProcess("onnxruntime", case, options.precisions, (), environment)


def _compare(
    case: Case, processes: Sequence[RivalsProcess], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Race the rivals of one network, and print their times and the ratios, which are returned."""
    runs: dict[Rival, Callable[[], float]] = {}
    facts: dict[Rival, Mapping[str, Any]] = {}
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
            leave_out(f"{name} {precision} of {case.name}", reason)
            continue
        bounds_ms[precision] = 1e3 * _bound_s(network.graph, precision)
        runs |= made
        facts |= {rival: {"difference": network.difference} for rival in made}
    for process in processes:
        for rival, state in process.rivals(_MAKE_S).items():
            if isinstance(state, str):
                leave_out(f"{' '.join(rival)} of {case.name}", state)
            elif rival[1] in options.precisions or rival == _DEFAULT:
                runs[rival], facts[rival] = partial(process.seconds, rival), state
    outcome = in_turns(case.name, runs, processes, options.seconds)
    show(f"{case.name}, ms", [*times(outcome, facts)], options.json)
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


def _ratios(outcome: Outcome[Rival], bounds_ms: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """On the device coexec is compared with the best rival of the same precision; from the host
    with ONNX Runtime's CUDA provider as it is by default."""
    runners = raced(outcome)
    for ours in (rival for rival in runners if rival[0] == "coexec"):
        _, precision, where = ours
        others = [_DEFAULT] if where == "host" else [r for r in runners if r[1:] == ours[1:]]
        others = [rival for rival in others if rival in runners and rival != ours]
        for row in over_best(outcome, ours, others):
            yield {"precision": precision, "from": where, **row, "bound": bounds_ms[precision]}


if __name__ == "__main__":
    main()
