"""A plan with all that it was made from, and what else was considered."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from coexec.compiling.compiled import CompiledPlan
from coexec.costs.base import CostModel
from coexec.errors import UsageError
from coexec.ir.graph import Graph
from coexec.plans.plan import Plan
from coexec.plans.schedule import Schedule
from coexec.system.hardware import System

if TYPE_CHECKING:
    from coexec.frontend.digest import Shapes
    from coexec.workbench.bench import Workbench

__all__ = ["Candidate", "Origin", "Prepared", "Requests", "Simulated"]

Requests = Literal["paced", "loop", "rested"]
"""As a camera sends them, 30 a second; one after the other; or each after a long rest."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of devices with a plan for it."""

    devices: tuple[str, ...]
    planner: str
    predicted_s: float | None
    """None of a device alone: it needs no profile, and is always measured."""
    paced_s: float | None = None
    """Median of requests that come as a camera sends them; None if it was not worth a run."""
    loop_s: float | None = None
    """Median of requests one after the other."""
    requests: Requests = "paced"
    """The figure of these two by which it was compared."""
    spread: float | None = None
    """Of the rounds of that figure: the middle half over the median."""
    per_s: float | None = None
    """Requests a second of several threads, in mode "throughput"."""
    refused: str | None = None
    """Why this configuration cannot run the model, or may not answer."""
    untried: bool = False
    """Whether there was no time for it."""
    note: str | None = None
    """How it compares with the best single device; None if it did not run."""

    @property
    def measured_s(self) -> float | None:
        """The figure by which it was compared."""
        return self.paced_s if self.requests == "paced" else self.loop_s


class Origin(Protocol):
    """What a plan was made from: a model on this machine's devices, or on simulated ones."""

    @property
    def graph(self) -> Graph: ...

    @property
    def shapes(self) -> "Shapes":
        """What is fixed of inputs that the model leaves open."""
        ...

    @property
    def measured(self) -> tuple[CostModel, System]:
        """What tasks cost on the devices, and the devices with their links."""
        ...

    def schedule(self, plan: Plan) -> Schedule:
        """What follows from a plan, verified."""
        ...


@dataclass(frozen=True, eq=False)
class Simulated:
    """A model on devices that are not here."""

    graph: Graph
    measured: tuple[CostModel, System]
    shapes: "Shapes"

    def schedule(self, plan: Plan) -> Schedule:
        from coexec.plans.derive import derive
        from coexec.plans.plan import verify_plan

        verify_plan(plan, self.graph, self.measured[1])
        return derive(plan, self.graph)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan, ready to be looked at, and on this machine's devices to be started.

    What was not needed to get here is computed when first asked for: a plan from the cache starts
    without loading the model.
    """

    origin: Origin
    plan: Plan
    runnable: CompiledPlan | None = None
    """None on simulated devices."""
    candidates: tuple[Candidate, ...] = ()
    """What "auto" considered: what ran, the best first, then by prediction."""
    beside: "tuple[Prepared, ...]" = ()
    """Plans for other devices that answer other requests at the same time (mode "throughput")."""
    key: str = ""
    """Of the plan, the model and the devices: where the cache keeps what is known of them."""

    @property
    def compiled(self) -> CompiledPlan:
        """
        Raises:
            UsageError: the devices are simulated.
        """
        if self.runnable is None:
            raise UsageError("this plan is for simulated devices, it cannot run here; plan again "
                             "without --platform")  # fmt: skip
        return self.runnable

    @property
    def work(self) -> "Workbench":
        """The devices that it starts on.

        Raises:
            UsageError: they are simulated.
        """
        from coexec.workbench.bench import Workbench

        if not isinstance(self.origin, Workbench):
            raise UsageError("this plan is for simulated devices; plan again without --platform")
        return self.origin

    @property
    def graph(self) -> Graph:
        return self.origin.graph

    @cached_property
    def schedule(self) -> Schedule:
        """Segments and transfers."""
        return self.origin.schedule(self.plan)

    @property
    def cost(self) -> CostModel:
        return self.origin.measured[0]

    @property
    def system(self) -> System:
        return self.origin.measured[1]
