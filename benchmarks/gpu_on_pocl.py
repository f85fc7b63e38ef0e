"""The OpenCL engine on one CPU core, through PoCL, against ONNX Runtime with one thread there.

Both run on the same core, in turns, from inputs in host memory to outputs in host memory. Goals:
at most 1.35 times ONNX Runtime's time on resnet34, vgg16, inception_v3 and yolov2, 1.6 times on
squeezenet and the MobileNets, 1.4 in the geometric mean.

    python benchmarks/gpu_on_pocl.py [MODEL ...]
"""

import math
import os
import statistics
from typing import Any

from common import arguments, in_turns, ratio, show, source

from coexec import InferenceSession
from coexec.devices.detect import usable_cores
from coexec.frontend.check import worst_difference
from coexec.frontend.load import random_inputs
from coexec.pipeline import Pipeline

MODELS = [
    "resnet34", "vgg16", "inception_v3", "squeezenet", "mobilenet_v1", "mobilenet_v2",
    "mobilenet_v3",
]  # fmt: skip


def main() -> None:
    options = arguments(__doc__, MODELS)
    core = usable_cores()[-1]
    rows = [_compare(name, core, options) for name in options.models]
    mean = math.exp(statistics.mean(math.log(row["ratio"]) for row in rows))
    rows.append({key: "" for key in rows[0]} | {"model": "geometric mean", "ratio": mean})
    show(f"PoCL against ONNX Runtime, one thread each, core {core}", rows, options.json)


def _compare(name: str, core: int, options: Any) -> dict[str, Any]:
    device = f"gpu:0@{core}"
    work = Pipeline(source(name), [device], cache=options.cache)
    feeds = random_inputs(work.model.graph)
    reference = work.onnx_runtime(threads=1)
    names = [o.name for o in reference.get_outputs()]
    with InferenceSession(
        source(name), devices=[device], planner="single", cache=options.cache
    ) as session:
        os.sched_setaffinity(0, {core})
        expected, found = reference.run(names, feeds), session.run(names, feeds)
        worst = max(worst_difference(a, b) for a, b in zip(found, expected, strict=True))
        times = in_turns(
            {
                "coexec": lambda: session.run(None, feeds),
                "onnxruntime": lambda: reference.run(None, feeds),
            },
            options.rounds,
        )
    return {
        "model": name,
        **{f"{rival}_s": statistics.median(t) for rival, t in times.items()},
        "ratio": ratio(times["coexec"], times["onnxruntime"]),
        "difference": f"{worst:.1e}",
    }


if __name__ == "__main__":
    main()
