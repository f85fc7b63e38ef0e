"""An NVIDIA GPU: a program with the CUDA provider, of which only the import is changed.

`coexec.InferenceSession` with `providers=["CUDAExecutionProvider", "CPUExecutionProvider"]`, whose
planner "auto" makes its choice first, against `onnxruntime.InferenceSession` with the same
providers, and against that session as a CUDA graph with bound inputs and outputs, which are copied
to the GPU and back. All three go from array to array, in float32 (`use_tf32=0`) and in TF32. The
ratio is the time of auto over that of the faster one of the two. Goals, in a loop and at 30
requests a second: a geometric mean of at most 0.6, 1.02 in the worst case, and a choice within
30 s.

The rivals of a network in one precision run in turns in one process, which computes nothing else.
Threads of ONNX Runtime spin for some milliseconds after a request; a turn begins when the process
uses no processor any more. Kernels, profiles and choices are made anew for each network and
precision; engines are tried once, before the first choice. "difference" is the largest difference
from ONNX Runtime on the CPU in float32, over the largest value.

onnxruntime-gpu is installed in place of onnxruntime, or apart (`--ort-gpu FOLDER`, from pip install
--target FOLDER). Its CUDA libraries may be those that PyTorch's packages bring.

    python benchmarks/gpu_providers.py [NETWORK or FILE ...] --ort-gpu FOLDER
    python benchmarks/gpu_providers.py vgg16 --precisions tf32 --seconds 10
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from common import show
from gpu_exports import Case, prepared, tell
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

from coexec.errors import first_line

_PRECISIONS = ("float32", "tf32")
_START_S = 60.0
"""Limit of the time in which a process imports its packages, or tries the engines."""
_MAKE_S = 90.0
"""Limit of the time in which it opens and warms up its sessions, beside twice that of the choice.
"""


def main() -> None:
    parser = arguments(__doc__, _PRECISIONS, seconds=5.0)
    parser.add_argument("--choose-seconds", type=float, default=30.0, help="limit of a choice")
    options = parser.parse_args()
    environment = with_onnxruntime(options.ort_gpu)
    cases = [*prepared(options.networks, options.folder, options.jobs, leave_out)]
    if cases:
        _try_engines(environment)
    rows: list[dict[str, Any]] = []
    for case in cases:
        for precision in options.precisions:
            try:
                rows += _compare(case, precision, environment, options)
            except Exception as error:  # the others go on
                reason = f"{type(error).__name__}: {first_line(error)}"
                leave_out(f"{case.name} in {precision}", reason)
    if not rows:
        sys.exit("no network has been compared; the lines above say why")
    show("auto over the faster session, all networks", [*summary(rows)], options.json)


def _try_engines(environment: Mapping[str, str]) -> None:
    """Try the engines of all devices, and print them."""
    command = [sys.executable, "-m", "coexec", "devices"]
    try:
        subprocess.run(command, env=environment, stdout=sys.stderr, timeout=_START_S)
    except subprocess.TimeoutExpired:
        tell(f"coexec devices takes longer than {_START_S:.0f} s")


def _compare(
    case: Case, precision: str, environment: Mapping[str, str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Race the rivals of one network, and print their times and the ratios, which are returned."""
    title = f"{case.name} in {precision}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        words = [str(options.choose_seconds), cache]
        process = RivalsProcess("drop-in", case, [precision], words, environment)
        try:
            tell(f"{title}: auto chooses, for up to {options.choose_seconds:.0f} s")
            limit_s = 2 * options.choose_seconds + _MAKE_S
            states = process.rivals(limit_s) if process.is_ready(_START_S) else {}
            facts = {rival: state for rival, state in states.items() if isinstance(state, dict)}
            for rival, state in states.items():
                if isinstance(state, str):
                    leave_out(f"{' '.join(rival)} of {case.name}", state)
                else:
                    tell(f"{' '.join(rival)} of {case.name}: {state}")
            runs = {rival: partial(process.seconds, rival) for rival in facts}
            if not runs:
                return []
            outcome = in_turns(title, runs, [process], options.seconds)
        finally:
            process.close()
    show(f"{title}, ms", [*times(outcome, facts)], options.json)
    runners = raced(outcome)
    rows = [
        {"network": case.name, "precision": precision, **row, "choice, s": facts[ours]["choice, s"]}
        for ours in runners
        if ours[0] == "auto"
        for row in over_best(outcome, ours, [rival for rival in runners if rival != ours])
    ]
    show(f"{title}, auto over the faster session", rows, options.json)
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """By precision and requests, the mean and largest ratio, and the longest time to choose."""
    for mean in means(rows, ("precision", "requests")):
        choices = [row["choice, s"] for row in rows if row["precision"] == mean["precision"]]
        yield {**mean, "longest choice, s": max(choices)}


if __name__ == "__main__":
    main()
