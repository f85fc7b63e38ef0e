"""What a plan's run adds to the engines' own work: hand-overs between two devices, and steps.

For a plan of `codl` on two one-core clusters: the time from the end of a segment to the begin of
the segment of the other device that waits for it, in a recorded run; in the loop in C++ and in
Python. And a step of a loop that calls a C function which does nothing, beside a loop of nothing.
"""

import ctypes
import os
import statistics
import time

from common import arguments, show, source, two_cores

from coexec.engines.base import NativeCall
from coexec.model.inputs import random_inputs
from coexec.plan.schedule import Segment
from coexec.runtime.loops import VARIABLE, loop_classes
from coexec.runtime.recorder import RealRecorder
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings
from coexec.timing.trace import Span, Trace

STEPS = 1000


def main() -> None:
    args = arguments(__doc__ or "", ["resnet34"])
    rows = [{"loop": name, "step, us": 1e6 * step_s(name)} for name in loop_classes()]
    show("a step that does nothing", rows, args.json)
    rows = []
    for model in args.models:
        context = PlanningContext(source(model), Settings(two_cores(), cache=args.cache))
        prepared = context.prepared_by("codl", {})
        feeds = random_inputs(context.model.graph)
        for name in loop_classes():
            os.environ[VARIABLE] = name
            gaps_s: list[float] = []
            with context.start(prepared) as executor:
                for _ in range(args.rounds):
                    executor.run(feeds)
                    devices = [device.spec.name for device in context.devices]
                    recorder = RealRecorder(prepared.compiled, devices)
                    executor.run(feeds, recorder)
                    gaps_s += hand_overs_s(recorder.trace(), prepared.compiled.segments)
            row = {"model": model, "loop": name, "hand-overs": len(gaps_s) // args.rounds}
            if gaps_s:
                row |= {"median, us": 1e6 * statistics.median(gaps_s)}
            rows.append(row)
    show("hand-overs to a device that waits, two one-core clusters, codl", rows, args.json)


def step_s(name: str) -> float:
    """Seconds of a step that calls a C function, less those of a run without steps."""
    isalpha = ctypes.cast(ctypes.CDLL(None).isalpha, ctypes.c_void_p).value or 0
    step = NativeCall(isalpha, (0,))  # looks into a table, and returns 0
    taken_s = []
    for count in (0, STEPS):
        loop = loop_classes()[name]([[step] * count], 0, 0, 0, 0.0)
        seconds = []
        for _ in range(20):
            began_s = time.perf_counter()
            loop.run([])
            seconds.append(time.perf_counter() - began_s)
        taken_s.append(statistics.median(seconds))
    return (taken_s[1] - taken_s[0]) / STEPS


def hand_overs_s(trace: Trace, segments: tuple[Segment, ...]) -> list[float]:
    """Seconds from the end of the last segment that a segment waits for, if it is another device's
    and the device had nothing else to do, to its begin."""
    spans: dict[int, Span] = {span.segment: span for span in trace.of("compute")}
    gaps_s = []
    for segment in segments:
        before = [spans[index] for index in segment.after if index in spans]
        last = max(before, key=lambda span: span.end_s, default=None)
        if last is not None and last.device != segment.device and segment.index in spans:
            gaps_s.append(spans[segment.index].start_s - last.end_s)
    return gaps_s


if __name__ == "__main__":
    main()
