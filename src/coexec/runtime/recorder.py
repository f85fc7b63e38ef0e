"""Recorders of a run: no times, or wall-clock times."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coexec.arrays import Array
from coexec.engines.base import InFlight, OpenEngine
from coexec.hardware.hardware import Place
from coexec.runtime.compiled import CompiledPlan
from coexec.timing.simulate import flows
from coexec.timing.trace import REORDER, Detail, Span, Trace, transfer_name
from coexec.timing.waits import Need, with_waits


class Recorder:
    """Receives the events of one run from its threads. This base class records nothing."""

    def start(self, device: str) -> None:
        """Record that a run starts now, and drop the records of the run before.

        ``device``: the device that the caller's thread serves. That thread copies the outputs.
        """

    def ran(self, node: int, begin_s: float, end_s: float, work: InFlight | None = None) -> None:
        """Record when a segment was computed, in seconds of `time.perf_counter`.

        ``work``: of a segment that was launched in this time, and has ended later.
        """

    def begin_transfer(self) -> float:
        """Record that a thread begins to copy. Returns the argument ``began`` of `end_transfer`."""
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
        """Record that a thread has copied a value.

        Args:
            array: the copied elements.
            source: engine of the value; None: the value is an input from the caller.
            target: engine that reads it; None: the value is an output for the caller.
            reader: the segment that needs it; -1: no segment.
        """

    def wants_details(self) -> bool:
        """Whether engines shall record their times, which costs a little."""
        return False

    def add(self, details: Sequence[Detail]) -> None:
        """Add the times that an engine has recorded."""

    def trace(self) -> Trace:
        """The records of the latest run."""
        return Trace((), ())


class RealRecorder(Recorder):
    """Records wall-clock times, in seconds from the start of a run."""

    def __init__(self, compiled: CompiledPlan, devices: Sequence[str]) -> None:
        self._compiled = compiled
        self._devices = tuple(devices)
        self.start("")

    def start(self, device: str) -> None:
        self._callers = device
        self._start_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._transfers: list[Span] = []
        self._details: list[Detail] = []
        self._origin_s = time.perf_counter()

    def ran(self, node: int, begin_s: float, end_s: float, work: InFlight | None = None) -> None:
        self._start_s[node] = begin_s
        if work is None:
            self._end_s[node] = end_s
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
            Span(
                transfer_name(value, made_at, read_at),
                device,
                began,
                end_s,
                "transfer",
                segment=reader,
                tensor=value,
                size_bytes=array.nbytes,
                source=made_at,
                target=read_at,
            )
        )

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
        """Fill in start and end of the segments that were launched ahead.

        If a segment was launched before the device had ended the segment before, or before other
        devices had ended what it needs, its span begins with that end: the start-up of the segment
        and the copies in front of it belong to the span. Else the span begins with the first
        kernel, and the time before counts as waiting.
        """
        ends_s: dict[Place, float] = {}
        for node, work in self._in_flight.items():
            segment = self._compiled.segments[node]
            place = segment.place
            start_s, end_s = work.span_s()
            needed_s = (self._end_s.get(before, 0.0) for before in segment.after)
            ready_s = max(ends_s.get(place, 0.0), *needed_s, 0.0)
            if ready_s > self._start_s[node]:
                start_s = min(end_s, ready_s)
            self._start_s[node], self._end_s[node] = start_s, end_s
            ends_s[place] = max(end_s, ends_s.get(place, end_s))
        self._in_flight.clear()

    def _needs(self, span: Span) -> Iterable[Need]:
        """Ends of the segments that a span waits for; copies of the outputs wait for all."""
        segments = self._compiled.segments
        after = range(len(segments)) if span.segment < 0 else segments[span.segment].after
        for i in after:
            if i in self._end_s:
                yield Need(self._end_s[i] - self._origin_s, segments[i].name, i)


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
    return Span(
        f"{detail.name} {detail.result}".strip(),
        detail.device,
        detail.start_s - origin_s,
        detail.end_s - origin_s,
        "layout",
        tensor=detail.result,
    )
