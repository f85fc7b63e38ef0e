"""What an executor tells of a run: nothing, wall-clock times, or those of a virtual clock."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from coexec.compiling.compiled import CompiledPlan
from coexec.timing.simulate import VirtualClock, flows
from coexec.timing.trace import Detail, Span, Trace

__all__ = ["NoRecorder", "RealRecorder", "Recorder", "VirtualRecorder"]


class Recorder(Protocol):
    """Notes when nodes of one run start and end, told by the threads that run them."""

    def begin(self, node: int) -> None: ...

    def end(self, node: int) -> None: ...

    def wants_details(self) -> bool:
        """Whether devices with clocks of their own shall keep times, which costs a little."""
        ...

    def add(self, details: Sequence[Detail]) -> None: ...

    def trace(self) -> Trace: ...


class NoRecorder:
    """Notes nothing."""

    def begin(self, node: int) -> None:
        pass

    def end(self, node: int) -> None:
        pass

    def wants_details(self) -> bool:
        return False

    def add(self, details: Sequence[Detail]) -> None:
        pass

    def trace(self) -> Trace:
        return Trace((), ())


class RealRecorder:
    """Wall-clock seconds since it was made."""

    def __init__(self, compiled: CompiledPlan, devices: Sequence[str]) -> None:
        self._compiled = compiled
        self._devices = tuple(devices)
        self._origin_s = time.perf_counter()
        self._start_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}
        self._details: list[Detail] = []

    def begin(self, node: int) -> None:
        self._start_s[node] = time.perf_counter()

    def end(self, node: int) -> None:
        self._end_s[node] = time.perf_counter()

    def wants_details(self) -> bool:
        return True

    def add(self, details: Sequence[Detail]) -> None:
        self._details += details

    def trace(self) -> Trace:
        spans = []
        for node, end_s in sorted(self._end_s.items(), key=lambda item: self._start_s[item[0]]):
            segment = self._compiled.segments[node]
            start_s = self._start_s[node] - self._origin_s
            tasks = tuple(piece.task for piece in segment.pieces)
            spans.append(Span(segment.name, segment.device, start_s, end_s - self._origin_s,
                              "compute", tasks, node, engine=segment.engine))  # fmt: skip
        details = tuple(_moved(d, self._origin_s) for d in self._details)
        return Trace(self._devices, tuple(spans), tuple(flows(self._compiled.transfers)), details)


class VirtualRecorder:
    """Virtual seconds: what the simulator would say, whatever the threads do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()

    def begin(self, node: int) -> None:
        pass

    def end(self, node: int) -> None:
        with self._lock:
            self._clock.run(node)

    def wants_details(self) -> bool:
        return False

    def add(self, details: Sequence[Detail]) -> None:
        pass

    def trace(self) -> Trace:
        return self._clock.trace(requests=1)


def _moved(detail: Detail, origin_s: float) -> Detail:
    return replace(
        detail,
        queued_s=detail.queued_s - origin_s,
        submitted_s=detail.submitted_s - origin_s,
        start_s=detail.start_s - origin_s,
        end_s=detail.end_s - origin_s,
    )
