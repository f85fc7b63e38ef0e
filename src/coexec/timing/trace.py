"""Traces, which record what ran where and when: one type for the simulator and the executor.

The kinds of spans, with the same meaning in both:

* compute: the thread of a device runs the program of a segment, from the moment at which all inputs
  lie in the engine's memory until its outputs are complete.
* transfer: the thread of a device is busy copying a tensor from one memory to another, or to or
  from the caller. A link that copies in the background keeps no thread busy, so there is no span.
  A tensor that is already in the memory of its reader has no span either. Plans begin with inputs
  that are in place and end with outputs that were computed, so only the executor copies for the
  caller.
* layout: an engine changes the layout of a tensor, inside of a compute or transfer span of the same
  device, by the device's own clock. Only engines with such a clock report it (OpenCL: its reorder
  kernels). ONNX Runtime reorders inside of its programs and does not report it. The simulator does
  not report it either, because the measured latency and bandwidth of a link include it.
* wait: the device is idle, from the end of its last span to the start of its next one. It waits for
  the input of the next span that arrives last. In a simulated trace, the wait includes the latency
  of the link; in an executed trace, the time to wake up. If no input was missing, the executor was
  handing the segment over, which takes no time in a simulation.

Compute spans, transfer spans and waits follow each other on a device without gap or overlap, from
second 0 until the device has ended its last span.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from coexec.hardware.hardware import Place
from coexec.plan.schedule import Segment
from coexec.timing.lanes import in_nanoseconds, lanes

Kind = Literal["compute", "transfer", "layout", "wait"]

REORDER = "reorder"
"""Name of kernels that change the layout of a tensor and nothing else."""
Lane = tuple[str, int]
"""A row of a drawn trace: its title, and which of the rows with this title it is, from 0 on."""


@dataclass(frozen=True, slots=True)
class Span:
    """A period in which one device did one thing, or waited."""

    name: str
    device: str
    start_s: float
    end_s: float
    kind: Kind = "compute"
    tasks: tuple[str, ...] = ()
    segment: int = -1
    """The segment of this device that is computed, or for which the device copies or waits: the
    reader of a tensor if the target copies it, its maker if the source does. -1: the caller."""
    request: int = 0
    engine: str = ""
    """Engine that computed the segment; empty for other spans."""
    tensor: str = ""
    """Tensor that is copied, changed in layout, or waited for."""
    size_bytes: int = 0
    """Size of a transfer."""
    source: Place | None = None
    """Start of a transfer; None: the caller."""
    target: Place | None = None
    """End of a transfer; None: the caller."""
    awaited: int = -1
    """Segment whose result arrived last, for a wait. -1: no input was missing."""

    @classmethod
    def of_segment(cls, segment: Segment, start_s: float, end_s: float, request: int = 0) -> Self:
        """The compute span of a segment."""
        tasks = tuple(piece.task for piece in segment.pieces)
        return cls(
            segment.name,
            segment.device,
            start_s,
            end_s,
            "compute",
            tasks,
            segment.index,
            request,
            segment.engine,
        )

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def place(self) -> Place:
        """Device and engine that computed the segment."""
        return Place(self.device, self.engine)


def transfer_name(tensor: str, source: Place | None, target: Place | None) -> str:
    """Name of a transfer in a trace: by its devices, or by its engines if they share a device."""
    ends = [source, target]
    if source is not None and target is not None and source.device == target.device:
        return f"{tensor}: {source} -> {target}"
    return f"{tensor}: " + " -> ".join("caller" if end is None else end.device for end in ends)


@dataclass(frozen=True, slots=True)
class Detail:
    """A kernel or a copy inside of a span, by the device's own clock."""

    name: str
    device: str
    kind: Literal["copy", "kernel", "tile"]
    """"tile": a part of a kernel, computed by one core of the device."""
    queued_s: float
    """Second at which it was passed to the driver."""
    submitted_s: float
    """Second at which the driver passed it to the device."""
    start_s: float
    end_s: float
    result: str = ""
    """The tensor that it works on."""
    task: str = ""
    """The task that it is a part of; "" if unknown."""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor that one device made and another read: an arrow between two compute spans."""

    tensor: str
    size_bytes: int
    source: int
    """Segment that made it."""
    target: int
    request: int = 0


@dataclass(frozen=True)
class Trace:
    """Spans in order of start, from second 0 on."""

    devices: tuple[str, ...]
    spans: tuple[Span, ...]
    flows: tuple[Flow, ...] = ()
    details: tuple[Detail, ...] = ()

    @property
    def makespan_s(self) -> float:
        """End of the last compute or transfer span."""
        return max((s.end_s for s in self.of("compute", "transfer")), default=0.0)

    def of(self, *kinds: Kind) -> list[Span]:
        """The spans of these kinds, in order of start."""
        return [span for span in self.spans if span.kind in kinds]

    def busy_s(self, device: str) -> float:
        """Seconds that ``device`` computed or copied."""
        busy = self.of("compute", "transfer")
        return sum(s.duration_s for s in busy if s.device == device)

    def utilisation(self, device: str) -> float:
        """Share of the makespan that ``device`` was busy, 0 to 1."""
        return self.busy_s(device) / self.makespan_s if self.makespan_s else 0.0

    def kernels_of(self, device: str) -> list[Detail]:
        """The details of a GPU, or of a team of cores. Those of other engines on cores, which not
        every run has, are left out."""
        on_cores = device.startswith("cpu")
        return [
            d for d in self.details if d.device == device and (d.kind == "tile" or not on_cores)
        ]

    def details_in_lanes(self) -> list[tuple[Lane, "Detail"]]:
        """The kernels and copies with their rows: those of one device that overlap have several."""
        periods = [(_detail_row(d), d.start_s, d.end_s) for d in self.details]
        return list(zip(_in_lanes(periods), self.details, strict=True))

    def with_tasks(self, maker: Mapping[str, str]) -> Self:
        """The trace, with the name of its task in each detail.

        Args:
            maker: name of the task that makes a tensor, by tensor; also for tensors inside of a
                task.
        """
        details = (replace(detail, task=maker.get(detail.result, "")) for detail in self.details)
        return replace(self, details=tuple(details))

    def to_chrome(self, process: str = "coexec") -> str:
        """JSON in Chrome's trace event format, for ui.perfetto.dev, with flow arrows for tensors.

        Categories are the kinds of spans. Layout changes, kernels and copies have rows of their
        own, because the clock of the device or engine differs from the clock of its thread. Those
        that overlap are the branches of a GPU: they have as many rows as run side by side.

        Args:
            process: the title above all rows.
        """
        layouts = self.of("layout")
        in_layouts = _in_lanes([(f"{s.device} layout", s.start_s, s.end_s) for s in layouts])
        details = self.details_in_lanes()
        of_devices = [(name, 0) for name in self.devices]
        used = [*of_devices, *in_layouts, *(lane for lane, _ in details)]
        titles = list(dict.fromkeys(title for title, _ in used))
        ordered = sorted(set(used), key=lambda lane: (titles.index(lane[0]), lane[1]))
        rows = {lane: number for number, lane in enumerate(ordered)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}
        ]
        events += [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
            for name, i in zip(map(_lane_name, rows), rows.values(), strict=True)
        ]
        events += [
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": i, "args": {"sort_index": i}}
            for i in rows.values()
        ]
        layout_lanes = iter(in_layouts)
        events += [
            _complete_event(s, rows[next(layout_lanes) if s.kind == "layout" else (s.device, 0)])
            for s in self.spans
        ]
        events += [_detail_event(detail, rows[lane]) for lane, detail in details]
        events += self._flow_events(rows)
        # Perfetto shows the escape of a character as it is written.
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, ensure_ascii=False)

    def _flow_events(self, rows: Mapping[Lane, int]) -> Iterable[dict[str, Any]]:
        at = {(s.request, s.segment): s for s in self.of("compute")}
        for number, flow in enumerate(self.flows):
            source = at.get((flow.request, flow.source))
            target = at.get((flow.request, flow.target))
            if source is None or target is None:
                continue
            common = {
                "cat": "flow",
                "name": flow.tensor,
                "id": number,
                "pid": 0,
                "args": {"bytes": flow.size_bytes},
            }
            # A flow binds to the slice that encloses its time stamp, so start just before the end.
            leave_us = round(1e9 * (source.start_s + 0.999 * source.duration_s)) / 1e3
            yield common | {"ph": "s", "tid": rows[source.device, 0], "ts": leave_us}
            enter_us = round(1e9 * (target.start_s + 0.001 * target.duration_s)) / 1e3
            yield common | {"ph": "f", "bp": "e", "tid": rows[target.device, 0], "ts": enter_us}


def _detail_row(detail: Detail) -> str:
    return f"{detail.device} {detail.kind}s, by the engine's clock"


def _in_lanes(periods: Sequence[tuple[str, float, float]]) -> list[Lane]:
    """The lane of each period among those with the same title.

    Args:
        periods: title, start and end in seconds.
    """
    numbers: dict[str, list[int]] = {}
    for number, (title, _, _) in enumerate(periods):
        numbers.setdefault(title, []).append(number)
    lane_of: dict[int, int] = {}
    for same in numbers.values():
        lane_of |= zip(same, lanes([in_nanoseconds(*periods[n][1:]) for n in same]), strict=True)
    return [(title, lane_of[number]) for number, (title, _, _) in enumerate(periods)]


def _lane_name(lane: Lane) -> str:
    """The title of a row: "gpu:0 layout", "gpu:0 layout, branch 2"."""
    title, number = lane
    return f"{title}, branch {number + 1}" if number else title


def _times_us(start_s: float, end_s: float) -> dict[str, float]:
    """Start and duration of an event in microseconds, to the nanosecond.

    Perfetto counts whole nanoseconds, and drops an event that overlaps the previous one of its row
    by one of them. So the end is rounded like the start of the next event.
    """
    start_ns, end_ns = in_nanoseconds(start_s, end_s)
    return {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}


def _complete_event(span: Span, row: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": 0,
        "tid": row,
        **_times_us(span.start_s, span.end_s),
        "args": {"segment": span.segment, "request": span.request} | _arguments(span),
    }


def _arguments(span: Span) -> dict[str, Any]:
    """Arguments that a trace viewer shows for a span, by its kind."""
    if span.kind == "compute":
        return {"tasks": list(span.tasks), "engine": span.engine}
    if span.kind == "transfer":
        ends = {"source": span.source, "target": span.target}
        return {"tensor": span.tensor, "bytes": span.size_bytes} | {
            end: "caller" if place is None else str(place) for end, place in ends.items()
        }
    if span.kind == "wait":
        return {"tensor": span.tensor, "awaited": span.awaited}
    return {"tensor": span.tensor}


def _detail_event(detail: Detail, row: int) -> dict[str, Any]:
    waited = {
        "queued_us": 1e6 * (detail.submitted_s - detail.queued_s),
        "submitted_us": 1e6 * (detail.start_s - detail.submitted_s),
    }
    return {
        "ph": "X",
        "name": detail.task or detail.name,
        "cat": detail.kind,
        "pid": 0,
        "tid": row,
        **_times_us(detail.start_s, detail.end_s),
        "args": {detail.kind: detail.name, "result": detail.result} | waited,
    }
