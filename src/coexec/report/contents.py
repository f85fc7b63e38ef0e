"""The contents of a report as plain data: seconds, bytes and names. The page is drawn from them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coexec.selection.decision import Requests

__all__ = [
    "Alternative",
    "Contents",
    "DrawnSpan",
    "DrawnTask",
    "DrawnTrace",
    "MemoryRow",
    "RepeatedRows",
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
    """A way to run the model. All rows have their figures from one race: the race of planner
    "auto", or else a race for this report."""

    name: str
    predicted_s: float | None
    paced_s: float | None
    """Median seconds of a request at 30 requests a second; None if it did not run."""
    loop_s: float | None
    """Median seconds of a request in a loop."""
    share: float | None
    """Its time over ONNX Runtime's, by ``requests``."""
    is_base: bool
    is_plan: bool
    requests: Requests = "paced"
    """The figure by which it was compared."""
    per_s: float | None = None
    """Requests per second from several threads, in mode "throughput"."""
    rounds: int = 0
    status: str = ""
    """What "auto" did with it."""
    reason: str = ""
    """The rule by which "auto" took it or left it out."""
    planner: str = ""
    same_as: str | None = None
    """The rival that ran in its place, because both are the same plan."""
    init_s: float | None = None
    peak_bytes: int | None = None

    @property
    def measured_s(self) -> float | None:
        """Median seconds by the figure by which it was compared."""
        if self.requests == "parallel":
            return None if self.per_s is None else 1 / self.per_s
        return self.paced_s if self.requests == "paced" else self.loop_s


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
    rivals: tuple[RivalRow, ...] = ()
    """The candidates of planner "auto" if it has measured them; else the plan, each device alone
    and ONNX Runtime."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    predicted: DrawnTrace | None = None
    measured: DrawnTrace | None = None
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
        """The contents as lists, dicts, texts and numbers."""
        return asdict(self)
