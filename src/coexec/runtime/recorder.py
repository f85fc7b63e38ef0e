"""What an executor tells of a run: nothing, wall-clock times, or those of a virtual clock."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coexec.arrays import Array
from coexec.compiling.compiled import CompiledPlan
from coexec.engines.base import InFlight, OpenEngine
from coexec.system.hardware import Place
from coexec.timing.simulate import VirtualClock, flows
from coexec.timing.trace import REORDER, Detail, Span, Trace, transfer_name
from coexec.timing.waits import Need, with_waits

__all__ = ["RealRecorder", "Recorder", "VirtualRecorder"]


class Recorder:
    """Is told by the threads of one run what they do. This one notes nothing."""

    def start(self, device: str) -> None:
        """A run starts now. What was noted of an earlier one is dropped.

        ``device``: the one that the caller's thread serves. It copies what the caller gets.
        """

    def begin(self, node: int) -> None:
        """A thread has taken a segment. It moves what is missing, then it computes."""

    def end(self, node: int, work: InFlight | None = None) -> None:
        """The outputs of a segment are complete; or will be when ``work`` has ended, if it was
        launched ahead."""

    def begin_transfer(self) -> float:
        """A thread begins to copy; returns what it has to tell `end_transfer`."""
        return 0.0

    def end_transfer(
        self,
        began: float,
        value: str,
        array: Array,
        source: OpenEngine | None,
        target: OpenEngine | None,
        reader: int = -1,
    ) -> None:
        """A thread has copied a value.

        Args:
            array: what it has copied.
            source: None: the caller gave it.
            target: None: the caller gets it.
            reader: the segment that needs it.
        """

    def wants_details(self) -> bool:
        """Whether devices with clocks of their own shall keep times, which costs a little."""
        return False

    def add(self, details: Sequence[Detail]) -> None:
        """What such a device has kept."""

    def trace(self) -> Trace:
        """What was noted of the latest run."""
        return Trace((), ())


class RealRecorder(Recorder):
    """Wall-clock seconds from the start of a run."""

    def __init__(self, compiled: CompiledPlan, devices: Sequence[str]) -> None:
        self._compiled = compiled
        self._devices = tuple(devices)
        self.start("")

    def start(self, device: str) -> None:
        self._callers = device
        self._start_s: dict[int, float] = {}
        """By segment, when it was taken, or when the last thing that it needs was copied."""
        self._end_s: dict[int, float] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._transfers: list[Span] = []
        self._details: list[Detail] = []
        self._origin_s = time.perf_counter()

    def begin(self, node: int) -> None:
        self._start_s[node] = time.perf_counter()

    def end(self, node: int, work: InFlight | None = None) -> None:
        if work is None:
            self._end_s[node] = time.perf_counter()
        else:
            self._in_flight[node] = work

    def begin_transfer(self) -> float:
        return time.perf_counter()

    def end_transfer(
        self,
        began: float,
        value: str,
        array: Array,
        source: OpenEngine | None,
        target: OpenEngine | None,
        reader: int = -1,
    ) -> None:
        end_s = time.perf_counter()
        made_at = None if source is None else source.place
        read_at = None if target is None else target.place
        device = self._callers if read_at is None else read_at.device
        self._transfers.append(
            Span(transfer_name(value, made_at, read_at), device, began, end_s, "transfer",
                 segment=reader, tensor=value, size_bytes=array.nbytes,
                 source=made_at, target=read_at)
        )  # fmt: skip
        if reader in self._start_s:
            self._start_s[reader] = end_s

    def wants_details(self) -> bool:
        return True

    def add(self, details: Sequence[Detail]) -> None:
        self._details += details

    def trace(self) -> Trace:
        segments = self._compiled.segments
        self._ask_devices()
        busy = [
            Span.of_segment(segments[node], self._start_s[node], end_s)
            for node, end_s in self._end_s.items()
        ]
        busy = [_since(self._origin_s, span) for span in (*busy, *self._transfers)]
        layouts = [_layout(d, self._origin_s) for d in self._details if d.name == REORDER]
        details = [_moved(d, self._origin_s) for d in self._details if d.name != REORDER]
        spans = sorted((*with_waits(busy, self._needs), *layouts), key=lambda s: s.start_s)
        arrows = flows(self._compiled.transfers)
        return Trace(self._devices, tuple(spans), tuple(arrows), tuple(details))

    def _ask_devices(self) -> None:
        """When devices began and ended what they were given ahead.

        A device that was given a segment before it had ended the last one goes on at once: what it
        needs to start a segment, and copies in front of it, are a part of the segment's span. Else
        the span begins with the first kernel, and all before it is waiting.
        """
        ends_s: dict[Place, float] = {}
        for node, work in self._in_flight.items():
            place = self._compiled.segments[node].place
            start_s, end_s = work.span_s()
            if ends_s.get(place, 0.0) > self._start_s[node]:
                start_s = min(end_s, ends_s[place])
            self._start_s[node], self._end_s[node] = start_s, end_s
            ends_s[place] = max(end_s, ends_s.get(place, end_s))
        self._in_flight.clear()

    def _needs(self, span: Span) -> Iterable[Need]:
        """The segments that one waits for; the caller's outputs wait for all."""
        segments = self._compiled.segments
        after = range(len(segments)) if span.segment < 0 else segments[span.segment].after
        for i in after:
            if i in self._end_s:
                yield Need(self._end_s[i] - self._origin_s, segments[i].name, i)


class VirtualRecorder(Recorder):
    """Virtual seconds: what the simulator would say, whatever the threads do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()

    def end(self, node: int, work: InFlight | None = None) -> None:
        with self._lock:
            self._clock.run(node)

    def trace(self) -> Trace:
        return self._clock.trace(requests=1)


def _since(origin_s: float, span: Span) -> Span:
    return replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s)


def _moved(detail: Detail, origin_s: float) -> Detail:
    return replace(
        detail,
        queued_s=detail.queued_s - origin_s,
        submitted_s=detail.submitted_s - origin_s,
        start_s=detail.start_s - origin_s,
        end_s=detail.end_s - origin_s,
    )


def _layout(detail: Detail, origin_s: float) -> Span:
    return Span(f"{detail.name} {detail.result}".strip(), detail.device, detail.start_s - origin_s,
                detail.end_s - origin_s, "layout", tensor=detail.result)  # fmt: skip
