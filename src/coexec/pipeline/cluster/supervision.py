"""When the plan of a pipeline is replaced: a function of state and event to state and actions.

The conductor turns what happens into events and carries the actions out. There is no clock, thread
or network here, so every order of events can be tested.

* A machine that is silent for some time, or that Ray reports as dead, is left out. All frames
  without an answer are sent again by the new plan, under a new *epoch*. Failures that machines
  report for an older epoch are ignored.
* A machine that answers, but holds up frames, counts as lost: others cannot reach it, or one
  computation does not end. If there is none, all frames are sent again by the same plan.
* A machine that joins, or that computes faster or more slowly than expected, leads to another plan
  only if that plan is faster by a margin, and not soon after the last change.

All times are seconds of one monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coexec.errors import ClosedError, CoexecError, ExecutionError
from coexec.pipeline.cluster.handles import Event as MachineEvent
from coexec.pipeline.cluster.handles import FrameAnswer, FrameFailure, Unreached
from coexec.pipeline.cluster.limits import Limits
from coexec.pipeline.cluster.planning import Planned

__all__ = [
    "Action",
    "CancelDeployment",
    "Close",
    "Compared",
    "DeliverAnswer",
    "Deploy",
    "Deployed",
    "Deploying",
    "Event",
    "FailFrame",
    "FrameRate",
    "Heard",
    "Improve",
    "Infeasible",
    "LeaveOut",
    "Lost",
    "MachinesJoined",
    "MeasureLoad",
    "MeasureSpeeds",
    "NotDeployed",
    "Recover",
    "Resend",
    "RunningPlan",
    "Speeds",
    "SupervisionState",
    "TimeToLook",
    "TryQuickPlans",
    "next_actions",
]

_PATIENCE = 5
"""Allowed time without any answer, in latencies of a frame."""


@dataclass(frozen=True)
class RunningPlan:
    """The plan in service."""

    epoch: int
    planned: Planned

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all machines of the plan."""
        return self.planned.plan.machines


@dataclass(frozen=True)
class SupervisionState:
    """What decides whether the plan is replaced."""

    members: frozenset[str] = frozenset()
    """Machines of the session. A lost machine is one until the next look."""
    running: RunningPlan | None = None
    is_deploying: bool = False
    lost: Mapping[str, str] = field(default_factory=dict)
    """By lost machine that is still a member, the reason."""
    causes: tuple[str, ...] = ()
    """Losses from which no plan has recovered yet."""
    complaints: Mapping[str, int] = field(default_factory=dict)
    """By machine, messages to it that were not taken, since the last answer."""
    computing_s: Mapping[str, float] = field(default_factory=dict)
    """By machine, seconds since its running computation began; 0 if none runs."""
    progress_s: float = 0.0
    """Time of the last answer, or of the last look at which no frame was in flight."""
    changed_s: float = 0.0
    """Time of the last change of plan."""
    looked_s: float = 0.0
    """Time of the last search for a better plan that found none."""
    is_hasty: bool = False
    """Whether the plan was made in haste, to recover soon from a loss."""

    def has_rested(self, now_s: float, limits: Limits) -> bool:
        """Whether ``rest_s`` has passed since the last change and the last search."""
        return now_s - max(self.changed_s, self.looked_s) >= limits.rest_s


# Events


@dataclass(frozen=True)
class MachinesJoined:
    """Machines have become members."""

    machines: tuple[str, ...]


@dataclass(frozen=True)
class Lost:
    """A machine is gone, or is silent."""

    machine: str
    reason: str


@dataclass(frozen=True)
class Heard:
    """A machine has sent news."""

    machine: str
    events: tuple[MachineEvent, ...]
    computing_s: float
    now_s: float


@dataclass(frozen=True)
class TimeToLook:
    """It is time to look at the machines."""

    now_s: float
    inside: int
    """Frames that are in flight."""


@dataclass(frozen=True)
class Deploying:
    """A plan is being brought to its machines."""


@dataclass(frozen=True)
class Deployed:
    """A plan is in service."""

    running: RunningPlan
    now_s: float
    is_hasty: bool = False


@dataclass(frozen=True)
class NotDeployed:
    """A plan was not brought to its machines."""


@dataclass(frozen=True)
class Infeasible:
    """The machines that are left cannot run the model."""

    reason: str


@dataclass(frozen=True)
class Speeds:
    """The speeds of machines were measured."""

    drifted: bool
    """Whether one has changed by more than the limit."""


@dataclass(frozen=True)
class FrameRate:
    """The rate of frames was measured."""

    rate_per_s: float
    is_high: bool
    """Whether the plan's period matters more than its latency."""


@dataclass(frozen=True)
class Compared:
    """The plan in service and another were simulated with the current measurements."""

    why: str
    planned: Planned
    current_s: float
    """Time of the plan in service: its period, or the latency of a frame at a low rate."""
    other_s: float
    """The same of ``planned``."""
    now_s: float


Event = (
    MachinesJoined
    | Lost
    | Heard
    | TimeToLook
    | Deploying
    | Deployed
    | NotDeployed
    | Infeasible
    | Speeds
    | FrameRate
    | Compared
)


# Actions


@dataclass(frozen=True)
class DeliverAnswer:
    """Deliver the outputs of a frame."""

    frame: int
    outputs: Mapping[str, Any]


@dataclass(frozen=True)
class FailFrame:
    """Give up a frame."""

    frame: int
    error: CoexecError


@dataclass(frozen=True)
class CancelDeployment:
    """Break the deployment off: it may need a machine that is lost."""


@dataclass(frozen=True)
class LeaveOut:
    """Dismiss machines."""

    machines: tuple[str, ...]


@dataclass(frozen=True)
class Recover:
    """Make a plan quickly for the members that are left, and deploy it."""

    why: str


@dataclass(frozen=True)
class Resend:
    """Deploy the plan in service again, without waiting for the end of it."""

    why: str


@dataclass(frozen=True)
class MeasureSpeeds:
    """Update the speeds of machines and links (event `Speeds`)."""


@dataclass(frozen=True)
class MeasureLoad:
    """Estimate the rate of frames (event `FrameRate`)."""


@dataclass(frozen=True)
class Improve:
    """Make a plan, and compare it with the plan in service (event `Compared`)."""

    why: str


@dataclass(frozen=True)
class TryQuickPlans:
    """Compare the plans that answer a single frame soonest (event `Compared`)."""

    rate_per_s: float


@dataclass(frozen=True)
class Deploy:
    """Replace the plan in service."""

    why: str
    planned: Planned


@dataclass(frozen=True)
class Close:
    """Refuse further frames, and give up those in flight."""

    error: CoexecError


Action = (
    DeliverAnswer
    | FailFrame
    | CancelDeployment
    | LeaveOut
    | Recover
    | Resend
    | MeasureSpeeds
    | MeasureLoad
    | Improve
    | TryQuickPlans
    | Deploy
    | Close
)
_Next = tuple[SupervisionState, tuple[Action, ...]]


def next_actions(state: SupervisionState, event: Event, limits: Limits) -> _Next:
    """The state after ``event``, and the actions to carry out, in order."""
    match event:
        case MachinesJoined(machines):
            state = replace(state, members=state.members | set(machines))
            if state.running is None:
                return state, ()
            state = replace(state, changed_s=0.0, looked_s=0.0)  # no rest before it is used
            return state, (Improve(f"{', '.join(machines)} joined"),)
        case Lost():
            return _lose(state, event)
        case Heard():
            return _hear(state, event)
        case TimeToLook():
            return _look(state, event, limits)
        case Deploying():
            return replace(state, is_deploying=True), ()
        case NotDeployed():
            return replace(state, is_deploying=False), ()
        case Deployed(running, now_s, is_hasty):
            state = replace(state, running=running, is_deploying=False, causes=())
            return replace(state, changed_s=now_s, progress_s=now_s, is_hasty=is_hasty), ()
        case Infeasible(reason):
            why = "; ".join((*state.causes, f"the others cannot run the model: {reason}"))
            return replace(state, causes=()), (Close(ExecutionError(why)),)
        case Speeds(drifted):
            hasty, state = state.is_hasty, replace(state, is_hasty=False)
            if drifted:
                return state, (Improve("machines are faster or slower than thought"),)
            return state, (Improve("there was time to plan"),) if hasty else ()
        case FrameRate(rate_per_s, is_high):
            return state, _at_load(state, rate_per_s, is_high)
        case Compared():
            if event.other_s <= event.current_s * (1 - limits.gain):
                return state, (Deploy(event.why, event.planned),)
            return replace(state, looked_s=event.now_s), ()


def _lose(state: SupervisionState, event: Lost) -> _Next:
    if event.machine not in state.members:
        return state, ()
    state = replace(state, lost={**state.lost, event.machine: event.reason})
    return state, (CancelDeployment(),) if state.is_deploying else ()


def _hear(state: SupervisionState, event: Heard) -> _Next:
    actions: list[Action] = []
    complaints = dict(state.complaints)
    progress_s = state.progress_s
    for each in event.events:
        if isinstance(each, FrameAnswer):  # also of an older epoch: the outputs are the same
            progress_s = event.now_s
            complaints.clear()
            actions.append(DeliverAnswer(each.frame, each.outputs))
        elif state.running is None or each.epoch != state.running.epoch:
            continue
        elif isinstance(each, FrameFailure):
            error = ExecutionError(f"frame {each.frame} failed on {each.reason}")
            actions.append(FailFrame(each.frame, error))
        elif isinstance(each, Unreached) and each.target in state.members:
            complaints[each.target] = complaints.get(each.target, 0) + 1
    computing_s = {**state.computing_s, event.machine: event.computing_s}
    state = replace(state, complaints=complaints, computing_s=computing_s, progress_s=progress_s)
    return state, tuple(actions)


def _look(state: SupervisionState, event: TimeToLook, limits: Limits) -> _Next:
    state, actions = _unblock(state, event, limits)
    if state.lost or state.causes:
        state, recovery = _recover(state)
        return state, (*actions, *recovery)
    if state.has_rested(event.now_s, limits):
        return state, (*actions, MeasureSpeeds(), MeasureLoad())
    return state, actions


def _unblock(state: SupervisionState, event: TimeToLook, limits: Limits) -> _Next:
    """Find out why no frame was answered for long, and blame a machine, or send frames again."""
    running = state.running
    if running is None or state.is_deploying:
        return state, ()
    if not event.inside:
        return replace(state, progress_s=event.now_s), ()
    patience = max(2 * limits.silence_s, _PATIENCE * running.planned.latency_s)
    if event.now_s - max(state.progress_s, state.changed_s) < patience:
        return state, ()
    suspects = [name for name in running.machines if name in state.members]
    if not suspects:
        return state, ()
    complaints, computing_s, blamed = max(
        (state.complaints.get(name, 0), state.computing_s.get(name, 0.0), name) for name in suspects
    )
    if complaints:
        return _lose(state, Lost(blamed, f"could not be reached by others for {patience:.1f} s"))
    if computing_s > patience:
        return _lose(state, Lost(blamed, f"has computed one share for {computing_s:.1f} s"))
    return state, (Resend(f"no answer for {patience:.1f} s"),)


def _recover(state: SupervisionState) -> _Next:
    """Leave out lost machines, and plan for the others."""
    causes = (*state.causes, *(f"{name} {reason}" for name, reason in state.lost.items()))
    why = "; ".join(causes)
    lost = tuple(state.lost)
    members = state.members - set(lost)
    state = replace(state, members=members, lost={}, causes=causes)
    if members:
        return state, (LeaveOut(lost), Recover(why))
    error = ClosedError(
        f"no machine of the cluster is left: {why}; start machines and make another session"
    )
    return replace(state, causes=()), (LeaveOut(lost), Close(error))


def _at_load(state: SupervisionState, rate_per_s: float, is_high: bool) -> tuple[Action, ...]:
    """At a low rate of frames, a plan in which all machines compute the same frame answers sooner;
    at a high rate, a pipeline of several frames answers more."""
    if state.running is None:
        return ()
    if not is_high:
        return (TryQuickPlans(rate_per_s),)
    if state.running.planned.plan.at_once is None:
        return ()
    return (Improve(f"{rate_per_s:.1f} frames a second come"),)
