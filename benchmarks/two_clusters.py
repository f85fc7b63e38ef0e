"""What two one-core clusters gain over one, and over ONNX Runtime with two threads.

All run in turns. Goal: inception_v3 at least 1.35 times faster than on one cluster; whole operators
in parallel cannot give more than about 1.5.
"""

import statistics
from functools import partial

from common import REST_S, arguments, in_turns, ratio, show, source, two_cores

from coexec.frontend.load import random_inputs
from coexec.workbench import Workbench


def main() -> None:
    args = arguments(__doc__ or "", ["inception_v3"])
    devices = two_cores()
    rows = []
    for name in args.models:
        both = Workbench(source(name), devices, cache=args.cache, fresh=args.fresh)
        alone = [Workbench(source(name), [d], cache=args.cache) for d in devices]
        feeds = random_inputs(both.model.graph)
        rival = both.onnx_runtime(threads=2)
        executors = [
            p.start(p.compiled_for(planner, {}))
            for p, planner in [(both, "hope_greedy"), *((p, "single") for p in alone)]
        ]
        labels = ["plan", *devices]
        runs = {label: partial(e.run, feeds) for label, e in zip(labels, executors, strict=True)}
        times = in_turns(
            runs | {"onnxruntime 2": partial(rival.run, None, feeds)}, args.rounds, REST_S
        )
        for executor in executors:
            executor.close()
        best = min(devices, key=lambda d: statistics.median(times[d]))
        medians = {f"{label}_s": statistics.median(t) for label, t in times.items()}
        rows.append(
            {"model": name}
            | medians
            | {
                "faster than one": ratio(times[best], times["plan"]),
                "than onnxruntime 2": ratio(times["onnxruntime 2"], times["plan"]),
            }
        )
    show(f"{' + '.join(devices)}, hope_greedy, in turns", rows, args.json)


if __name__ == "__main__":
    main()
