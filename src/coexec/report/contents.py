"""The contents of a report as plain data: seconds, bytes and names. The page is drawn from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coexec.codec import encode
from coexec.report.alternatives import Alternative
from coexec.report.ways import Way
from coexec.timing.critical_path import critical_path
from coexec.timing.trace import Span, Trace


@dataclass(frozen=True)
class TaskRow:
    """A piece of the plan."""

    name: str
    task: str
    kind: str
    shape: str
    """Shape of the output region."""
    macs: int
    place: str
    group: str
    """The kind of reason, in words."""
    why: str
    predicted_s: float
    measured_s: float | None
    """Measured alone, at its place."""
    elsewhere_s: Mapping[str, float | None]
    """By place, predicted seconds; None where the engine does not run it."""
    moved_bytes: int
    is_critical: bool


@dataclass(frozen=True)
class DrawnTask:
    """A task in the drawing of the graph."""

    name: str
    kind: str
    row: int
    column: float
    places: Mapping[str, float]
    """Share of the task by place."""
    predicted_s: float
    is_critical: bool


@dataclass(frozen=True)
class RepeatedRows:
    """Rows of the drawing in which the same operators follow each other again and again."""

    row: int
    """The first row."""
    length: int
    """Rows of the sequence that repeats."""
    count: int
    """How often the sequence occurs, one after the other."""

    @property
    def saved(self) -> int:
        """Rows fewer in a drawing of one sequence."""
        return self.length * (self.count - 1)


@dataclass(frozen=True)
class TransferRow:
    """A tensor that one place makes and another reads."""

    tensor: str
    source: str
    target: str
    size_bytes: int


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of the tasks at one place."""

    place: str
    task_count: int
    weight_bytes: int
    largest_task_bytes: int
    """Inputs, outputs and weights of the task that needs most."""


@dataclass(frozen=True)
class Contents:
    """The contents of a report. Parts of a step that failed or did not run are empty."""

    model: str
    title: str
    answer: tuple[str, ...] = ()
    """Sentences: the choice, its gain, the reason, what bounds a request, and what would help."""
    doubt: str | None = None
    """Why the choice of planner "auto" is not certain."""
    failure: str | None = None
    """Why the report is not complete."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Machine, versions, and how was measured."""
    places: tuple[str, ...] = ()
    colours: Mapping[str, str] = field(default_factory=dict)
    """Colours by place."""
    rivals: tuple[Way, ...] = ()
    """The candidates of planner "auto" if it has measured them; else the plan, each device alone
    and ONNX Runtime."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    predicted: Trace | None = None
    measured: Trace | None = None
    kernels: tuple[str, ...] = ()
    """Sentences about the kernels of GPUs in the measured trace, and about their branches."""
    tasks: tuple[TaskRow, ...] = ()
    nodes: tuple[DrawnTask, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """Indices of nodes: maker and reader."""
    repeats: tuple[RepeatedRows, ...] = ()
    planners: tuple[Alternative, ...] = ()
    bound_s: float | None = None
    bound: str | None = None
    without: tuple[Alternative, ...] = ()
    """Plans without one of the devices."""
    transfers: tuple[TransferRow, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    least_intermediate_bytes: int = 0
    """A lower bound of the memory for intermediate tensors, if tasks run in order."""

    def to_json(self) -> dict[str, Any]:
        """The contents as lists, objects, texts and numbers."""
        traces = {"predicted": _drawn(self.predicted), "measured": _drawn(self.measured)}
        return {**encode(self), **traces}


def _drawn(trace: Trace | None) -> dict[str, Any] | None:
    """A trace with its length, and with the spans that determine it marked."""
    if trace is None:
        return None
    critical = {id(span) for span in critical_path(trace)}
    utilisation = {device: trace.utilisation(device) for device in trace.devices}
    blocks = [{**encode(s), "is_critical": id(s) in critical} for s in trace.spans]
    for (_, number), detail in sorted(trace.details_in_lanes(), key=lambda pair: pair[0]):
        branch = f"branch {number + 1}" if number else f"{detail.kind}s"
        row = f"{detail.device} {branch}"
        span = Span(detail.task or detail.name, row, detail.start_s, detail.end_s)
        blocks.append({**encode(span), "kind": detail.kind, "tensor": detail.result})
        share = detail.duration_s / (trace.makespan_s or 1.0)
        utilisation[row] = utilisation.get(row, 0.0) + share
    return {"makespan_s": trace.makespan_s, "utilisation": utilisation, "blocks": blocks}
