"""What ran where, when: the same type from the simulator and from the executor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coexec.system.hardware import Place

__all__ = ["Detail", "Flow", "Span", "Trace"]


@dataclass(frozen=True, slots=True)
class Span:
    """One segment that a device computed, or one transfer that kept it busy."""

    name: str
    device: str
    start_s: float
    end_s: float
    kind: Literal["compute", "transfer"] = "compute"
    tasks: tuple[str, ...] = ()
    segment: int = -1
    request: int = 0
    engine: str = ""
    """Of the device, for segments."""

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def place(self) -> Place:
        """Of a segment: where it was computed."""
        return Place(self.device, self.engine)


@dataclass(frozen=True, slots=True)
class Detail:
    """What a device with a clock of its own did inside of a span: a kernel, or a copy."""

    name: str
    device: str
    kind: Literal["copy", "kernel"]
    queued_s: float
    """When it was given to the driver."""
    submitted_s: float
    """When the driver gave it to the device."""
    start_s: float
    end_s: float
    result: str = ""
    """The tensor that it works on."""

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
        """End of the last span."""
        return max((s.end_s for s in self.spans), default=0.0)

    def busy_s(self, device: str) -> float:
        """Seconds that ``device`` was not idle."""
        return sum(s.duration_s for s in self.spans if s.device == device)

    def utilisation(self, device: str) -> float:
        """Share of the makespan that ``device`` was busy, 0 to 1."""
        return self.busy_s(device) / self.makespan_s if self.makespan_s else 0.0

    def to_chrome(self) -> str:
        """Chrome's trace event format: opens in ui.perfetto.dev, flow arrows for transfers."""
        names = [*self.devices, *dict.fromkeys(f"{d.device} {d.kind}s" for d in self.details)]
        rows = {name: i for i, name in enumerate(names)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
            for name, i in rows.items()
        ]
        events += [_complete_event(span, rows) for span in self.spans]
        events += [_detail_event(detail, rows) for detail in self.details]
        events += self._flow_events(rows)
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def _flow_events(self, rows: Mapping[str, int]) -> list[dict[str, Any]]:
        at = {(s.request, s.segment): s for s in self.spans if s.kind == "compute"}
        events: list[dict[str, Any]] = []
        for number, flow in enumerate(self.flows):
            source = at.get((flow.request, flow.source))
            target = at.get((flow.request, flow.target))
            if source is None or target is None:
                continue
            common = {"cat": "transfer", "name": flow.tensor, "id": number, "pid": 0,
                      "args": {"bytes": flow.size_bytes}}  # fmt: skip
            # A flow binds to the slice that encloses its time stamp, so start just before the end.
            leave = source.start_s + 0.999 * source.duration_s
            events.append(common | {"ph": "s", "tid": rows[source.device], "ts": leave * 1e6})
            enter = target.start_s + 0.001 * target.duration_s
            events.append(
                common | {"ph": "f", "bp": "e", "tid": rows[target.device], "ts": enter * 1e6}
            )
        return events


def _complete_event(span: Span, rows: Mapping[str, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": 0,
        "tid": rows[span.device],
        "ts": span.start_s * 1e6,
        "dur": span.duration_s * 1e6,
        "args": {
            "tasks": list(span.tasks),
            "segment": span.segment,
            "request": span.request,
            "engine": span.engine,
        },
    }


def _detail_event(detail: Detail, rows: Mapping[str, int]) -> dict[str, Any]:
    waited = {
        "queued_us": 1e6 * (detail.submitted_s - detail.queued_s),
        "submitted_us": 1e6 * (detail.start_s - detail.submitted_s),
    }
    return {
        "ph": "X",
        "name": detail.name,
        "cat": detail.kind,
        "pid": 0,
        "tid": rows[f"{detail.device} {detail.kind}s"],
        "ts": detail.start_s * 1e6,
        "dur": detail.duration_s * 1e6,
        "args": {"result": detail.result} | waited,
    }
