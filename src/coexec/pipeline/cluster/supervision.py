"""When the plan of a pipeline is replaced: for each event, a function from state to state and
actions.

The conductor calls these functions and carries the actions out. There is no clock, thread or
network here, so every order of events can be tested.

* A machine that is silent for some time, or that Ray reports as dead, is left out. All frames
  without an answer are sent again by the new plan, under a new *epoch*. Failures that machines
  report for an older epoch are ignored.
* A machine that answers, but holds up frames, counts as lost: others cannot reach it, or one
  computation does not end. If there is none, all frames are sent again by the same plan.
* A machine that joins, or that computes faster or more slowly than expected, leads to another plan
  only if that plan is faster by a margin, and not soon after the last change.

All times are seconds of one monotonic clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from coexec.errors import ClosedError, CoexecError, ExecutionError
from coexec.pipeline.cluster.handles import Event as MachineEvent
from coexec.pipeline.cluster.handles import FrameAnswer, FrameFailure, Unreached
from coexec.pipeline.cluster.jobs import MachineJob
from coexec.pipeline.cluster.planning import Planned

_PATIENCE = 5
"""Allowed time without any answer, in latencies of a frame."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and thresholds as ratios."""

    silence_s: float = 3.2
    """Silence after which a machine counts as lost."""
    message_s: float = 2.0
    """Time limit of a message, beside the transfer time of its bytes; a late one is reported."""
    look_s: float = 0.25
    """Time between two checks of the machines."""
    join_s: float = 1.0
    """Time between two searches for new machines."""
    rest_s: float = 5.0
    """Shortest time between two changes of plan that only gain speed."""
    gain: float = 0.1
    """Share of the period that such a change must save."""
    drift: float = 0.25
    """Relative change of a machine's speed that leads to a new plan."""
    deploy_s: float = 300.0
    """Time limit for machines to receive weights and open sessions."""


@dataclass
class Deployment:
    """The plan in service."""

    epoch: int
    planned: Planned
    jobs: Mapping[str, MachineJob] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    """Numbers of the frames that were sent by this plan."""

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all machines of the plan."""
        return self.planned.plan.machines


@dataclass(frozen=True)
class SupervisionState:
    """What decides whether the plan is replaced."""

    members: frozenset[str] = frozenset()
    """Machines of the session. A lost machine is one until the next look."""
    running: Deployment | None = None
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


@dataclass(frozen=True)
class FrameEnd:
    """The end of a frame."""

    frame: int
    outcome: Mapping[str, Any] | CoexecError
    """Its outputs, or the error with which it is given up."""


@dataclass(frozen=True)
class Close:
    """Refuse further frames, and give up those in flight."""

    error: CoexecError


ReactionKind = Literal["cancel deployment", "leave out", "recover", "resend", "measure", "improve"]
"""
* cancel deployment: it may need a machine that is lost.
* leave out: dismiss machines.
* recover: make a plan quickly for the members that are left, and deploy it.
* resend: deploy the plan in service again, without waiting for the end of it.
* measure: update the speeds of machines and links (`after_measuring`), and the rate of frames.
* improve: make a plan, and compare it with the plan in service (`gains`).
"""


@dataclass(frozen=True)
class Reaction:
    """A step that the conductor carries out."""

    kind: ReactionKind
    why: str = ""
    machines: tuple[str, ...] = ()
    """Machines to leave out."""


Next = tuple[SupervisionState, tuple[Reaction | Close, ...]]
"""The state afterwards, and the actions to carry out, in order."""


def after_joining(state: SupervisionState, machines: Sequence[str]) -> Next:
    """Machines have become members."""
    state = replace(state, members=state.members | set(machines))
    if state.running is None:
        return state, ()
    state = replace(state, changed_s=0.0, looked_s=0.0)  # no rest before it is used
    return state, (Reaction("improve", f"{', '.join(machines)} joined"),)


def after_loss(state: SupervisionState, machine: str, reason: str) -> Next:
    """A machine is gone, or is silent."""
    if machine not in state.members:
        return state, ()
    state = replace(state, lost={**state.lost, machine: reason})
    return state, (Reaction("cancel deployment"),) if state.is_deploying else ()


def after_news(
    state: SupervisionState,
    machine: str,
    events: Iterable[MachineEvent],
    computing_s: float,
    now_s: float,
) -> tuple[SupervisionState, tuple[FrameEnd, ...]]:
    """A machine has sent news. Returns the state afterwards, and the frames that end."""
    ends: list[FrameEnd] = []
    complaints = dict(state.complaints)
    progress_s = state.progress_s
    for each in events:
        if isinstance(each, FrameAnswer):  # also of an older epoch: the outputs are the same
            progress_s = now_s
            complaints.clear()
            ends.append(FrameEnd(each.frame, each.outputs))
        elif state.running is None or each.epoch != state.running.epoch:
            continue
        elif isinstance(each, FrameFailure):
            error = ExecutionError(f"frame {each.frame} failed on {each.reason}")
            ends.append(FrameEnd(each.frame, error))
        elif isinstance(each, Unreached) and each.target in state.members:
            complaints[each.target] = complaints.get(each.target, 0) + 1
    times = {**state.computing_s, machine: computing_s}
    state = replace(state, complaints=complaints, computing_s=times, progress_s=progress_s)
    return state, tuple(ends)


def after_deploying(
    state: SupervisionState, running: Deployment, now_s: float, is_hasty: bool = False
) -> SupervisionState:
    """A plan is in service."""
    return replace(
        state, running=running, causes=(), changed_s=now_s, progress_s=now_s, is_hasty=is_hasty
    )


def after_refusal(state: SupervisionState, reason: str) -> Next:
    """The machines that are left cannot run the model."""
    why = "; ".join((*state.causes, f"the others cannot run the model: {reason}"))
    return replace(state, causes=()), (Close(ExecutionError(why)),)


def after_measuring(state: SupervisionState, drifted: bool) -> Next:
    """The speeds of machines were measured; ``drifted``: one has changed by more than the limit."""
    hasty, state = state.is_hasty, replace(state, is_hasty=False)
    if drifted:
        return state, (Reaction("improve", "machines are faster or slower than thought"),)
    return state, (Reaction("improve", "there was time to plan"),) if hasty else ()


def gains(current_s: float, other_s: float, limits: Limits) -> bool:
    """Whether another plan replaces the plan in service, by their periods, or by the latencies of a
    frame at a low rate."""
    return other_s <= current_s * (1 - limits.gain)


def after_a_look(state: SupervisionState, now_s: float, inside: int, limits: Limits) -> Next:
    """It is time to look at the machines; ``inside`` frames are in flight."""
    state, actions = _unblock(state, now_s, inside, limits)
    if state.lost or state.causes:
        state, recovery = _recover(state)
        return state, (*actions, *recovery)
    if state.has_rested(now_s, limits):
        return state, (*actions, Reaction("measure"))
    return state, actions


def _unblock(state: SupervisionState, now_s: float, inside: int, limits: Limits) -> Next:
    """Find out why no frame was answered for long, and blame a machine, or send frames again."""
    running = state.running
    if running is None or state.is_deploying:
        return state, ()
    if not inside:
        return replace(state, progress_s=now_s), ()
    patience = max(2 * limits.silence_s, _PATIENCE * running.planned.latency_s)
    if now_s - max(state.progress_s, state.changed_s) < patience:
        return state, ()
    suspects = [name for name in running.machines if name in state.members]
    if not suspects:
        return state, ()
    complaints, computing_s, blamed = max(
        (state.complaints.get(name, 0), state.computing_s.get(name, 0.0), name) for name in suspects
    )
    if complaints:
        return after_loss(state, blamed, f"could not be reached by others for {patience:.1f} s")
    if computing_s > patience:
        return after_loss(state, blamed, f"has computed one share for {computing_s:.1f} s")
    return state, (Reaction("resend", f"no answer for {patience:.1f} s"),)


def _recover(state: SupervisionState) -> Next:
    """Leave out lost machines, and plan for the others."""
    causes = (*state.causes, *(f"{name} {reason}" for name, reason in state.lost.items()))
    why = "; ".join(causes)
    lost = tuple(state.lost)
    members = state.members - set(lost)
    state = replace(state, members=members, lost={}, causes=causes)
    if members:
        return state, (Reaction("leave out", machines=lost), Reaction("recover", why))
    error = ClosedError(
        f"no machine of the cluster is left: {why}; start machines and make another session"
    )
    return replace(state, causes=()), (Reaction("leave out", machines=lost), Close(error))
