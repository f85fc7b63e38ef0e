"""The contents of a report as plain data: seconds, bytes and names. The page is drawn from them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "Alternative",
    "Contents",
    "DrawnSpan",
    "DrawnTask",
    "DrawnTrace",
    "MemoryRow",
    "RivalRow",
    "TaskRow",
    "TransferRow",
]


@dataclass(frozen=True)
class DrawnSpan:
    """A span of a timeline."""

    device: str
    kind: str
    """compute, transfer, wait or layout."""
    name: str
    start_s: float
    end_s: float
    engine: str = ""
    tasks: tuple[str, ...] = ()
    tensor: str = ""
    size_bytes: int = 0
    is_critical: bool = False


@dataclass(frozen=True)
class DrawnTrace:
    """The spans of one request."""

    makespan_s: float
    utilisation: Mapping[str, float]
    """By device, the share of the makespan that it was busy."""
    blocks: tuple[DrawnSpan, ...]


@dataclass(frozen=True)
class RivalRow:
    """A way to run the model, measured in turns with the others."""

    name: str
    same_as: str | None
    """The rival that ran in its place, because both are the same plan."""
    predicted_s: float | None
    paced_s: float
    """Median seconds of a request at 30 requests a second."""
    loop_s: float
    """Median seconds of a request in a loop."""
    ratio: float
    """Time of ONNX Runtime over its time, of medians, by the figure that is smaller for it."""
    samples_s: Mapping[str, tuple[float, ...]]
    """By figure, the seconds of all requests."""
    init_s: float
    peak_bytes: int | None
    is_base: bool
    is_plan: bool


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
class Alternative:
    """Another plan, simulated with the same costs: by another planner, or without a device."""

    name: str
    predicted_s: float | None
    planning_s: float | None = None
    status: str = ""
    """How the planner ended, or why there is no plan."""


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
    answer: tuple[str, ...]
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
    considered: tuple[Mapping[str, Any], ...] = ()
    """The candidates of planner "auto"."""
    rivals: tuple[RivalRow, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    predicted: DrawnTrace | None = None
    measured: DrawnTrace | None = None
    tasks: tuple[TaskRow, ...] = ()
    nodes: tuple[DrawnTask, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """Indices of nodes: maker and reader."""
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
        """The contents as lists, dicts, texts and numbers."""
        return asdict(self)
