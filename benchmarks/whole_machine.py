"""Performance of the defaults: `auto` on all devices of the machine, against other engines.

ONNX Runtime and OpenVINO (f32) use all cores and their own defaults. All run in turns in one
process, at 30 requests a second and in a loop. Goal: on networks of 3x3 convolutions, such as vgg16
and yolov2, "auto" takes at most 0.75 of the time of the better engine, and on no network more than
1.02.
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from common import arguments, by_figure, in_turns, show, source
from contest import openvino_run

from coexec.engines.detect import usable_cores
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.selection.chooser import Chooser
from coexec.settings import Settings

AUTO, ORT, OPENVINO = "auto", "ONNX Runtime", "OpenVINO"


def main() -> None:
    args = arguments(__doc__ or "", ["vgg16"])
    rows = [row for model in args.models for row in _compare(model, args)]
    show(f"all of this machine, {len(usable_cores())} cores", rows, args.json)


def _compare(model: str, args: Any) -> Iterator[dict[str, Any]]:
    threads = len(usable_cores())
    start_s = time.perf_counter()
    chosen = Chooser(source(model), Settings(cache=args.cache, fresh=args.fresh)).make()
    took_s = time.perf_counter() - start_s
    feeds = random_inputs(chosen.graph)
    session = chosen.work.user_model.onnx_runtime(threads=threads)
    with chosen.work.start(chosen) as executor:
        runs = {AUTO: partial(executor.run, feeds), ORT: partial(session.run, None, feeds)}
        try:
            runs[OPENVINO] = openvino_run(model, feeds, threads)
        except ImportError:
            print("OpenVINO is not installed (pip install openvino)", file=sys.stderr)
        names = [output.name for output in session.get_outputs()]
        outputs, expected = runs[AUTO](), dict(zip(names, runs[ORT](), strict=True))
        worst = max(worst_difference(outputs[name], expected[name]) for name in names)
        ratios = {f"over {name}": (AUTO, name) for name in runs if name != AUTO}
        outcome = in_turns(runs, args.rounds)
    head = {
        "model": model.rpartition("/")[2],
        "auto is": " + ".join(map(str, chosen.plan.places)) + f" ({chosen.candidates[0].planner})",
        "choosing": f"{took_s:.1f} s",
        "difference": f"{worst:.1e}",
    }
    for row in by_figure(outcome, ratios):
        yield head | row


if __name__ == "__main__":
    main()
