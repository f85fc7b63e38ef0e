"""Time until the first outputs of a device with generated kernels when no kernel is compiled yet.

Each start is a separate process with empty caches. Times begin after the model was
read and planned. Goal: one kernel for all layers that differ only in sizes, and outputs of
inception_v3 within a quarter of the 15 to 36 s that they took with a kernel for each shape.

    python benchmarks/compile_time.py [MODEL ...] [--device cpu:1/cpp]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import show, source

from coexec.engines.detect import usable_cores

MODELS = ["inception_v3", "resnet34", "squeezenet", "mobilenet_v2", "vgg16"]
_RUNS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="files or zoo names")
    parser.add_argument("--device", default=f"cpu:{usable_cores()[-1]}/cpp")
    parser.add_argument("--rounds", type=int, default=1, help="starts of each model")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_start(options.models[0], options, Path(options.child))))
        return
    rows = [_median(name, options) for name in options.models]
    show(f"cold starts on {options.device}", rows, options.json)


def _median(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The start with the median time until the first outputs."""
    starts = [_apart(name, options) for _ in range(options.rounds)]
    starts.sort(key=lambda start: start["first_answer_s"])
    return {"model": Path(name).stem, **starts[len(starts) // 2]}


def _apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A start in a separate process, with a separate folder for all caches."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            name,
            "--device",
            options.device,
            "--child",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def _start(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compile, run once, then run repeatedly."""
    from coexec.model.inputs import random_inputs
    from coexec.selection.planning_context import PlanningContext
    from coexec.settings import Settings

    settings = Settings([options.device], cache=folder / "cache")
    work = PlanningContext(source(name), settings)
    feeds = random_inputs(work.model.graph)
    plan = work.prepared_by("single", {})
    begin_s, cpu_s = time.perf_counter(), _cpu_s()
    with work.start(plan) as executor:
        compiled_s, compiled_cpu_s = time.perf_counter(), _cpu_s()
        executor.run(feeds)
        first_s, first_cpu_s = time.perf_counter(), _cpu_s()
        later_s = []
        for _ in range(_RUNS):
            start_s = time.perf_counter()
            executor.run(feeds)
            later_s.append(time.perf_counter() - start_s)
    return {
        "kernels": len(list((folder / "cache" / "kernels").iterdir())),
        "compile_s": compiled_s - begin_s,
        "compile_cpu_s": compiled_cpu_s - cpu_s,
        "first_answer_s": first_s - begin_s,
        "first_answer_cpu_s": first_cpu_s - cpu_s,
        "later_s": statistics.median(later_s),
    }


def _cpu_s() -> float:
    """Processor time of this process and of its child processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
