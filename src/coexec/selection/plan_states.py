"""Which plan answers requests of one set of shapes: a function of state and event to state and
actions.

`PlanSelector` turns what happens into events and carries the actions out. There is no clock, thread
or process here, so every order of events can be tested.

* Without a plan, ONNX Runtime's own session answers: until a plan is ready, if no plan is faster,
  and for good after a device of a plan has failed, unless another engine drives the same device.
* The cache is searched first; planning in another process follows only if there is no plan in it.
* A choice that is open goes on later. A plan in use stays until a better one has started.
* A plan that cannot be compared on made-up inputs waits for requests of the program.
"""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from coexec.runtime.runner import Runner
from coexec.selection.decision import Decision

# ONNX Runtime answers first: the modules that make and start plans are imported later.
if TYPE_CHECKING:
    from coexec.selection.prepared import Prepared

Task = Literal["look", "look, then plan", "plan", "load", "plan again", "load again"]
"""What goes on in the background: the search of the cache, planning, or the load of what was
planned; for the first time, or again for a choice that is open."""


@dataclass(frozen=True)
class Patience:
    """Seconds of the selection."""

    cheap_s: float = 0.5
    """Spent on requests of new shapes before the cache is searched for a plan: the first search
    takes a tenth of a second of a core."""
    worth_s: float = 15.0
    """Spent on requests of new shapes before planning begins: planning takes as long, and only then
    are more requests of these shapes likely."""
    look_s: float = 0.5
    """Before an earlier choice is loaded beside the session that answers meanwhile: a program of
    one request has ended then."""
    head_start_s: float = 1.0
    """Before planning in the background begins, in which the program goes on undisturbed."""
    again_s: float = 60.0
    """Before a choice that is open goes on in the background."""


@dataclass(frozen=True, eq=False)
class Running:
    """A plan with its runner."""

    runner: Runner
    prepared: "Prepared"


@dataclass(frozen=True)
class PlanState:
    """State of one set of shapes."""

    running: Running | None = None
    """The plan that answers; None: ONNX Runtime's own session does."""
    reason: str | None = None
    """Why the own session answers in place of the requested plan."""
    decision: Decision | None = None
    """How planner "auto" made the choice in use; None for other planners."""
    is_decided: bool = False
    """Whether nothing more is tried: a plan was made or found, or no plan is possible."""
    is_open: bool = False
    """Whether one more pass of planner "auto" may find a better plan than the one in the cache."""
    task: Task | None = None
    has_looked: bool = False
    """Whether the cache was searched because of the time spent."""
    spent_s: float = 0.0
    """Seconds of the requests that the own session has answered."""
    pending: "Prepared | None" = None
    """A plan to compare when there are enough requests, because made-up inputs do not run."""
    is_comparing: bool = False
    """Whether that comparison goes on."""

    @property
    def keeps_requests(self) -> bool:
        """Whether requests are kept to compare a plan with."""
        is_first = self.task in ("look, then plan", "plan", "load")
        return is_first or self.pending is not None or self.is_comparing

    @property
    def is_busy(self) -> bool:
        """Whether a first plan may answer soon."""
        again = self.task in ("plan again", "load again")
        return self.is_comparing or (self.task is not None and not again)

    @property
    def is_final(self) -> bool:
        """Whether the own session answers, and no result is expected: one that comes is late."""
        is_expecting = self.task is not None or self.keeps_requests
        return self.is_decided and self.running is None and not is_expecting


# Events


class Requested(NamedTuple):
    """A plan is requested, made in the background if none is in the cache."""


class TimeSpent(NamedTuple):
    """The own session has answered requests of new shapes."""

    seconds: float
    title: str | None
    """The plan of the settings, which was made for other shapes; None: they have none."""


class CacheSearched(NamedTuple):
    """The cache was searched for a plan."""

    prepared: "Prepared | None"
    is_open: bool = False


class PlanMade(NamedTuple):
    """The process that makes a plan has ended; without an error, the plan is in the cache."""

    error: str | None


class Started(NamedTuple):
    """A plan was started, and its outputs were compared with ONNX Runtime's."""

    prepared: "Prepared"
    running: Running | None
    """None: the own session answers, because it is the plan, or for the reason."""
    reason: str | None = None
    waits: bool = False
    """Whether the plan may still answer after it was compared with requests."""


class Unusable(NamedTuple):
    """There is no plan that starts."""

    error: str


class EnoughRequests(NamedTuple):
    """There are enough requests to compare the plan that waits for them."""


class Failed(NamedTuple):
    """A device of a plan has failed."""

    running: Running
    error: str
    goes_on: bool = False
    """Whether another plan is made in its place, on other engines."""


Event = (
    Requested | TimeSpent | CacheSearched | PlanMade | Started | Unusable | EnoughRequests | Failed
)


# Actions


class SearchCache(NamedTuple):
    """Search the cache for a plan, in the background."""

    after_s: float = 0.0


class MakePlan(NamedTuple):
    """Make a plan in another process; ``again``: one more pass for a choice that is open."""

    after_s: float
    again: bool = False


class Start(NamedTuple):
    """Start a plan, and compare it."""

    prepared: "Prepared"
    in_background: bool = False


class Cancel(NamedTuple):
    """End the task in the background, which may start a plan again."""


class Switch(NamedTuple):
    """Close the plan that has answered, if there was one: another one, or none, answers now."""

    old: Running | None


class Log(NamedTuple):
    """Log a text about these shapes."""

    text: str
    level: int = logging.WARNING


Action = SearchCache | MakePlan | Start | Cancel | Switch | Log
Next = tuple[PlanState, tuple[Action, ...]]


def next_actions(state: PlanState, event: Event, limits: Patience) -> Next:
    """The state after an event, and what has to be done."""
    match event:
        case Requested():
            return _requested(state, limits)
        case TimeSpent():
            return _answered(state, event, limits)
        case Started() if state.is_final:
            return state, (Switch(event.running),)  # it is closed
        case CacheSearched() | PlanMade() | Unusable() if state.is_final:
            return state, ()
        case CacheSearched():
            return _looked(state, event, limits)
        case PlanMade(error=None):
            load: Task = "load again" if state.task == "plan again" else "load"
            return replace(state, task=load), (SearchCache(),)
        case PlanMade(error=str(error)):
            again = state.task in ("plan again", "load again")
            text = "its choice stays as it is" if again else "nothing was planned in the background"
            state = replace(_unusable(state, error), task=None)
            return state, (Log(f"{text}: {error}"),)
        case Started():
            return _started(state, event, limits)
        case Unusable():
            state, actions = _ended(_unusable(state, event.error), limits)
            return state, (Log(f"its plan does not start: {event.error}"), *actions)
        case EnoughRequests() if state.pending is not None:
            start = Start(state.pending, in_background=True)
            return replace(state, pending=None, is_comparing=True), (start,)
        case Failed() if state.running is event.running:
            failed = PlanState(reason=event.error, decision=state.decision, is_decided=True)
            ended = Cancel(), Switch(state.running)
            if not event.goes_on:
                return failed, ended
            failed = replace(failed, is_decided=False, task="look, then plan")
            return failed, (*ended, SearchCache(limits.look_s))
    return state, ()


def _requested(state: PlanState, limits: Patience) -> Next:
    reason = "its plan is still being made"
    state = replace(state, reason=reason, task="look, then plan", is_comparing=False)
    text = "planning in the background begins"
    return state, (Log(text, logging.INFO), SearchCache(limits.look_s))


def _answered(state: PlanState, event: TimeSpent, limits: Patience) -> Next:
    if state == PlanState():
        reason = "no plan is made before more requests of these shapes have come"
        if event.title is not None:
            reason = f"{event.title} was made for other shapes"
        state = replace(state, reason=reason, is_decided=event.title is not None)
    state = replace(state, spent_s=state.spent_s + event.seconds)
    if state.running is not None or state.task is not None or state.is_decided:
        return state, ()
    if state.spent_s >= limits.worth_s:
        return _requested(state, limits)
    if state.spent_s >= limits.cheap_s and not state.has_looked:
        return replace(state, has_looked=True, task="look"), (SearchCache(),)
    return state, ()


def _looked(state: PlanState, event: CacheSearched, limits: Patience) -> Next:
    prepared, running = event.prepared, state.running
    if prepared is None and state.task == "look, then plan":
        wait_s = max(0.0, limits.head_start_s - limits.look_s)
        return replace(state, task="plan"), (MakePlan(wait_s),)
    if prepared is None:
        return replace(state, task=None), ()
    state = replace(state, is_open=event.is_open)
    if running is not None and running.prepared.plan == prepared.plan:
        return _ended(replace(state, decision=prepared.decision or state.decision), limits)
    return state, (Start(prepared),)


def _started(state: PlanState, event: Started, limits: Patience) -> Next:
    old = state.running
    if event.reason is not None and old is not None:
        state, actions = _ended(replace(state, is_comparing=False), limits)
        return state, (Log(f"the plan in use stays, another one is out: {event.reason}"), *actions)
    state = replace(
        state,
        running=event.running,
        reason=event.reason,
        decision=event.prepared.decision or state.decision,
        is_decided=True,
        pending=event.prepared if event.waits else None,
        is_comparing=False,
    )
    state, actions = _ended(state, limits)
    return state, (Switch(old), *actions)


def _unusable(state: PlanState, reason: str) -> PlanState:
    """The state without a new plan. A plan that answers, or a proven choice, stays in use."""
    state = replace(state, pending=None, is_comparing=False)
    if state.running is not None or state.task in ("plan again", "load again"):
        return state
    return replace(state, reason=reason, is_decided=True)


def _ended(state: PlanState, limits: Patience) -> Next:
    """The state after the task in the background. An open choice goes on later."""
    if state.is_open and state.task != "plan again":
        return replace(state, task="plan again", is_open=False), (
            MakePlan(limits.again_s, again=True),
        )
    return (state if state.task == "plan again" else replace(state, task=None)), ()
