"""What all planners have in common: a name, checked options, and a verified plan as the result.

A planner is a function ``solve(problem, *, option=default, ...)``. Its options are the keyword-only
parameters. The same class serves planners of one machine and planners of pipelines; their kind says
how an answer becomes a plan.
"""

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin

from coexec.errors import PlanError, UsageError, unknown_option
from coexec.graph.graph import Graph
from coexec.hardware.hardware import System

FOREIGN = "reinstall its package, or choose another planner"
"""Remedy for a planner of another package that is broken."""


@contextmanager
def _older_objects_kept() -> Iterator[None]:
    """Make the garbage collector skip all older objects until the block ends.

    Planning creates millions of objects. This triggers full collections of all objects of the
    process, which take a fifth of the time, although planning leaves no such garbage. If the caller
    or another thread has frozen objects already, nothing changes.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _GraphOnSystem(Protocol):
    """The input of a planner, as far as all kinds have it."""

    @property
    def graph(self) -> Graph: ...
    @property
    def system(self) -> System: ...


class _OptionsUsed(Protocol):
    """The result of a planner, as far as its options are concerned."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options that the planner set itself, by name."""
        ...


CostT = TypeVar("CostT")
ProblemT = TypeVar("ProblemT", bound=_GraphOnSystem)
AnswerT = TypeVar("AnswerT", bound=_OptionsUsed)
PlanT = TypeVar("PlanT")


@dataclass(frozen=True)
class PlannerKind(Generic[CostT, ProblemT, AnswerT, PlanT]):
    """Planners that solve one kind of problem."""

    problem: Callable[[Graph, CostT, System], ProblemT]
    answer: type[AnswerT]
    build_plan: Callable[[ProblemT, AnswerT, str, Mapping[str, Any]], PlanT]
    """``build_plan(problem, answer, planner, options)``: the plan of an answer."""
    verify: Callable[[PlanT, Graph, System], None]
    """Raises PlanError or InfeasibleError for a plan that is wrong."""


@dataclass(frozen=True)
class Planner(Generic[CostT, ProblemT, AnswerT, PlanT]):
    """A planner with its name. A call returns a verified plan that records the options used."""

    name: str
    solve: Callable[..., AnswerT]
    """``solve(problem, *, option=default, ...)``."""
    kind: PlannerKind[CostT, ProblemT, AnswerT, PlanT]

    def __call__(self, graph: Graph, cost: CostT, system: System, **options: Any) -> PlanT:
        """Plan ``graph`` for the devices, or machines, of ``system``.

        Raises:
            InfeasibleError: some task runs on no device, no memory can hold the plan, or no plan is
                fast enough.
            UsageError, DeviceError, PlanError: an option has no meaning for this planner or case.
        """
        return self.plan(self.kind.problem(graph, cost, system), **options)

    @_older_objects_kept()
    def plan(self, problem: ProblemT, **options: Any) -> PlanT:
        """Plan ``problem``. A problem that is used again keeps the results that depend on its
        graph."""
        self.check(options)
        answer = self.solve(problem, **options)
        if not isinstance(answer, self.kind.answer):
            raise PlanError(
                f"planner {self.name!r} returns a {type(answer).__name__}, which is no "
                f"{self.kind.answer.__name__}; {FOREIGN}"
            )
        defaults = {name: option.default for name, option in self.options.items()}
        used = {**defaults, **options, **answer.options}
        plan = self.kind.build_plan(problem, answer, self.name, used)
        self.kind.verify(plan, problem.graph, problem.system)
        return plan

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The options by name, each with its default and type."""
        parameters = inspect.signature(self.solve).parameters
        return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}

    def check(self, options: Mapping[str, Any]) -> None:
        """Check the names and the types of options. A call does the same; this is for callers that
        have much to do before it.

        Raises:
            UsageError: the planner has no such option, or the value has another type.
        """
        parameters = self.options
        for name, value in options.items():
            if name not in parameters:
                raise unknown_option(f"planner {self.name}", name, parameters)
            annotation = parameters[name].annotation
            if not _fits(value, annotation):
                raise UsageError(
                    f"option {name} of planner {self.name} is {value!r}; it wants "
                    f"{_wanted(annotation)}"
                )


def _fits(value: Any, annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and number,
        "float": number,
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "None": value is None,
    }
    type_names = inspect.formatannotation(annotation).strip("'").split(" | ")
    return any(fits.get(name, True) for name in type_names)  # the planner checks other types


def _wanted(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    return inspect.formatannotation(annotation).replace(" | None", "")
