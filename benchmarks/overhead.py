"""Overhead of coexec if it can gain nothing: on one device, against ONNX Runtime itself.

Both run the same model on the same core in turns, at 30 requests a second and in a loop. Goal: a
median ratio of at most 1.03.
"""

import os
from functools import partial

from common import arguments, by_figure, in_turns, show, source, two_cores

from coexec.model.inputs import random_inputs
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings


def main() -> None:
    args = arguments(__doc__ or "", ["inception_v3", "squeezenet"])
    device = two_cores()[0]
    # Both rivals run on this core, for a fair comparison.
    os.sched_setaffinity(0, {int(device.removeprefix("cpu:"))})
    rows = []
    for name in args.models:
        work = PlanningContext(source(name), Settings(devices=[device], cache=args.cache))
        feeds = random_inputs(work.model.graph)
        baseline = work.user_model.onnx_runtime(threads=1)
        with work.start(work.prepared_by("single", {})) as executor:
            rivals = {
                "coexec": partial(executor.run, feeds),
                "onnxruntime": partial(baseline.run, None, feeds),
            }
            outcome = in_turns(rivals, args.rounds)
        for row in by_figure(outcome, {"ratio": ("coexec", "onnxruntime")}):
            rows.append({"model": name} | row)
    show(f"one device, {device}, in turns with ONNX Runtime on the same core", rows, args.json)


if __name__ == "__main__":
    main()
