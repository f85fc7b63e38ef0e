"""Speedup of two one-core clusters over one cluster, and over ONNX Runtime with two threads.

All run in turns, at 30 requests a second and in a loop. Goal: inception_v3 is at least 1.35 times
faster than on one cluster; with whole operators in parallel, the limit is about 1.5.
"""

import statistics
from functools import partial

from common import arguments, by_figure, in_turns, show, source, two_cores

from coexec.model.inputs import random_inputs
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

ORT = "onnxruntime 2"


def main() -> None:
    args = arguments(__doc__ or "", ["inception_v3"])
    devices = two_cores()
    rows = []
    for name in args.models:
        both = PlanningContext(source(name), Settings(devices, cache=args.cache, fresh=args.fresh))
        alone = [PlanningContext(source(name), Settings([d], cache=args.cache)) for d in devices]
        feeds = random_inputs(both.model.graph)
        baseline = both.user_model.onnx_runtime(threads=2)
        executors = [
            p.start(p.prepared_by(planner, {}))
            for p, planner in [(both, "hope_greedy"), *((p, "single") for p in alone)]
        ]
        labels = ["plan", *devices]
        runs = {label: partial(e.run, feeds) for label, e in zip(labels, executors, strict=True)}
        outcome = in_turns(runs | {ORT: partial(baseline.run, None, feeds)}, args.rounds)
        for executor in executors:
            executor.close()
        best = min(devices, key=lambda d: statistics.median(outcome.rounds_s(d, "loop")))
        ratios = {"faster than one": (best, "plan"), f"than {ORT}": (ORT, "plan")}
        rows += [{"model": name} | row for row in by_figure(outcome, ratios)]
    show(f"{' + '.join(devices)}, hope_greedy, in turns", rows, args.json)


if __name__ == "__main__":
    main()
