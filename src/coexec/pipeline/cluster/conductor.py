"""Carries out on machines what `supervision` decides, and reports events to it.

One event loop runs in a thread of its own. The door admits frames; machines send intermediate
results directly to each other. The conductor receives answers and reports of failures.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from coexec.errors import ClosedError, CoexecError, ExecutionError, InfeasibleError, first_line
from coexec.graph.graph import Graph
from coexec.pipeline.cluster import supervision as sv
from coexec.pipeline.cluster.admission import DemandWatch, Door, Frame
from coexec.pipeline.cluster.handles import (
    MachineFacts,
    MachineLostError,
    News,
    Spent,
    Unreached,
    within,
)
from coexec.pipeline.cluster.jobs import FRAME, MachineJob, jobs_of
from coexec.pipeline.cluster.measuring import measure_link, measured_members
from coexec.pipeline.cluster.planning import Planned, Planning, response_s
from coexec.pipeline.cluster.shares import ShareModels
from coexec.pipeline.cluster.supervision import Limits
from coexec.pipeline.cluster.team import Member, Team
from coexec.pipeline.cluster.tracing import ClusterRecording
from coexec.pipeline.plan.flow import Message
from coexec.units import format_bytes

_BUSY = 4
"""Factor on the allowed silence of a machine, while machines receive weights."""
_QUEUED = 4
"""Factor on the transfer time of a message, as other messages may be sent at the same time."""
_log = logging.getLogger("coexec.pipeline.cluster")


class Conductor:
    """Runs the pipeline of one session. Start it once, then admit frames; close it at the end.
    Public methods are for other threads."""

    def __init__(
        self,
        team: Team,
        models: ShareModels,
        planning: Planning,
        door: Door,
        stated: Callable[[MachineFacts], Mapping[str, float]],
        limits: Limits,
        credits: int | None,
    ) -> None:
        """
        Args:
            stated: properties that the user states for a machine: "flops_per_s",
                "bandwidth_bytes_per_s" and "latency_s"; absent ones are measured.
            credits: maximum number of frames in flight; None for the plan's own number.
        """
        self._team, self._models, self._planning, self._door = team, models, planning, door
        self._stated, self._limits, self._credits = stated, limits, credits
        self.members: dict[str, Member] = {}
        self.changes: list[str] = []
        """One line for each plan so far, with its reason, in order."""
        self.recording: ClusterRecording | None = None
        """Collects the machines' spans; None while nothing is recorded."""
        self._state = sv.SupervisionState()
        self._epochs = 0
        self._deploying: asyncio.Task[sv.Deployment] | None = None
        self._changing = asyncio.Lock()
        self._demand = DemandWatch(door, limits.rest_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="coexec-cluster", daemon=True
        )

    @property
    def deployed(self) -> sv.Deployment | None:
        """The plan in service."""
        return self._state.running

    # From other threads

    def start(self) -> None:
        """Hire machines, measure them, make a plan and deploy it.

        Raises:
            CoexecError: there are no machines, or they cannot run the model.
        """
        self._thread.start()
        try:
            self.call(self._begin()).result()
        except BaseException:
            self.close()
            raise

    def admit(self, frame: Frame) -> None:
        """Send a frame that the door has admitted."""
        self._loop.call_soon_threadsafe(self._send_in, frame)

    def call(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine in the conductor's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Give up all frames, and dismiss all machines. May be called again."""
        self._door.close()
        with self._closing:
            if not self._thread.is_alive() or self._loop.is_closed():
                return
            self.call(self._end()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # Begin and end

    async def _begin(self) -> None:
        try:
            joined = await self._hire()
            await self._carry_out(sv.after_joining(self._state, joined))
        except (MachineLostError, TimeoutError) as error:
            raise ExecutionError(
                f"a machine was lost while it was measured: {first_line(error)}; try again"
            ) from None
        if not self.members:
            raise ExecutionError(
                "the cluster has no machine; start one with `coexec cluster start`"
                " and others with `coexec cluster join`"
            )
        try:
            await self._deploy("the session begins", await self._planned())
        except (MachineLostError, TimeoutError) as error:
            raise ExecutionError(
                f"a machine was lost while the session began: {first_line(error)}; try again"
            ) from None
        for work in (self._watch(), self._watch_joins()):
            self._start(work)

    async def _end(self) -> None:
        # Cancel repeatedly: tasks may start others, and a task in `_change` goes on after a
        # cancellation if a machine is lost.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            ended, _ = await asyncio.wait(tasks, timeout=self._limits.look_s)
            await asyncio.gather(*ended, return_exceptions=True)
        dismissed = [self._team.dismiss(name) for name in self.members]
        await asyncio.gather(*dismissed, return_exceptions=True)

    async def _hire(self) -> tuple[str, ...]:
        """Add new machines as members; return their names."""
        handles = await self._team.hire()
        self._planning.door = self._team.door
        if not handles:
            return ()
        measured = measured_members(
            handles, self._planning.graph, self._models, self._stated, self.members
        )
        try:
            members = await within(measured, self._limits.deploy_s)
        except BaseException:
            for name in handles:
                self._start(self._team.dismiss(name))
            raise
        for member in members:
            self.members[member.name] = member
            self._start(self._listen(member))
        return tuple(member.name for member in members)

    # Decisions

    async def _carry_out(self, happened: sv.Next) -> None:
        """Store the state after an event, and carry out what the event leads to."""
        self._state, actions = happened
        for action in actions:
            if isinstance(action, sv.Close):
                self._door.close(action.error)
                continue
            match action.kind:
                case "cancel deployment":
                    self._cancel_deployment()
                case "leave out":
                    for name in action.machines:
                        self.members.pop(name, None)
                        self._start(self._team.dismiss(name))
                case "recover":
                    await self._recover(action.why)
                case "resend":
                    if self.deployed is not None:
                        self._start(self._try_to_deploy(action.why, self.deployed.planned))
                case "improve":
                    await self._improve(action.why)
                case "measure":
                    await self._measure_speeds()
                    await self._measure_load()

    def _cancel_deployment(self) -> None:
        if self._deploying is not None:
            self._deploying.cancel()

    # Plans

    async def _planned(self, quick: bool = False) -> Planned:
        machines = [member.known for member in self.members.values()]
        return await asyncio.to_thread(self._planning.plan, machines, quick)

    async def _deploy(self, why: str, planned: Planned, is_hasty: bool = False) -> None:
        """Deploy a plan, and send all unanswered frames by it.

        Raises:
            CoexecError: a machine cannot run its share.
            MachineLostError: a machine was lost meanwhile.
            TimeoutError: machines take too long.
        """
        start = time.monotonic()
        async with self._changing:
            self._epochs += 1
            self._state = replace(self._state, is_deploying=True)
            work = _deployed(
                planned,
                self._epochs,
                self.members,
                self._models,
                self._planning.graph,
                self._limits.message_s,
            )
            self._deploying = self._loop.create_task(work)
            try:
                deployment = await within(self._deploying, self._limits.deploy_s)
            except KeyError as error:
                raise MachineLostError(f"{error.args[0]} was left out") from None
            except asyncio.CancelledError:
                if not self._state.lost:
                    raise
                raise MachineLostError("another machine was lost meanwhile") from None
            finally:
                self._deploying = None
                self._state = replace(self._state, is_deploying=False)
        before, now_s = self.deployed, time.monotonic()
        self._state = sv.after_deploying(self._state, deployment, now_s, is_hasty)
        self._demand.clear()
        self._door.limit(self._credits or planned.credits)
        line = (
            f"{why}: {len(planned.plan.stages)} stages on {', '.join(deployment.machines)}, "
            f"period {planned.period_s * 1e3:.1f} ms predicted, "
            f"in service after {now_s - start:.1f} s"
        )
        self.changes.append(line)
        _log.info("%s", line)
        for member in self.members.values():
            member.recent = Spent()
        for frame in self._door.inside():
            self._send_in(frame)
        if before is not None:
            for name in before.machines:
                if name in self.members:
                    self._start(self._drop(self.members[name], before.epoch))

    async def _drop(self, member: Member, epoch: int) -> None:
        with suppress(MachineLostError):  # `_listen` reports the loss
            await member.handle.call("drop", epoch)

    async def _try_to_deploy(self, why: str, planned: Planned) -> None:
        """Deploy a plan. If a machine is lost meanwhile, `_listen` reports it."""
        with suppress(MachineLostError, TimeoutError):
            await self._deploy(why, planned)

    async def _recover(self, why: str) -> None:
        """Plan for the machines that are left. If one of them is lost, the next look goes on."""
        try:
            await self._deploy(why, await self._planned(quick=True), is_hasty=True)
        except (MachineLostError, TimeoutError):
            return
        except InfeasibleError as error:
            await self._carry_out(sv.after_refusal(self._state, str(error)))

    async def _improve(self, why: str) -> None:
        deployed = self.deployed
        if deployed is None or not self._state.has_rested(time.monotonic(), self._limits):
            return
        machines = [member.known for member in self.members.values()]
        current = await asyncio.to_thread(self._planning.judged, deployed.planned.plan, machines)
        other = await self._planned()
        await self._replace(why, other, current.period_s, other.period_s)

    async def _try_quick_plans(self, rate_per_s: float) -> None:
        """Compare the plans that answer a single frame soonest."""
        if self.deployed is None:
            return
        current = self.deployed.planned
        machines = [member.known for member in self.members.values()]
        plans = await asyncio.to_thread(self._planning.quick_answers, machines)
        best = min(plans, key=lambda each: response_s(each, rate_per_s), default=current)
        current_s, best_s = (response_s(each, rate_per_s) for each in (current, best))
        await self._replace(f"only {rate_per_s:.1f} frames a second come", best, current_s, best_s)

    async def _replace(self, why: str, other: Planned, current_s: float, other_s: float) -> None:
        """Deploy another plan if it gains enough."""
        if sv.gains(current_s, other_s, self._limits):
            await self._try_to_deploy(why, other)
        else:
            self._state = replace(self._state, looked_s=time.monotonic())

    # Frames

    def _send_in(self, frame: Frame) -> None:
        deployed = self.deployed
        if deployed is None or frame.number in deployed.sent or frame.answer.done():
            return
        deployed.sent.add(frame.number)
        for name, job in deployed.jobs.items():
            parts = job.receives.get(FRAME)
            if parts is not None:
                arrays = [frame.feeds[tensor] for tensor, _ in parts]
                self._start(self._bring(deployed.epoch, name, frame.number, arrays))

    async def _bring(self, epoch: int, name: str, number: int, arrays: list[Any]) -> None:
        member = self.members.get(name)
        if member is None:
            return
        with suppress(MachineLostError):  # `_listen` reports the loss
            await member.handle.call("receive", epoch, number, FRAME, arrays)
            member.received.add(0.0, sum(array.nbytes for array in arrays))

    async def _listen(self, member: Member) -> None:
        """Receive a machine's news until the machine is lost."""
        limits = self._limits
        if self.recording is not None:
            await self.recording.begin(member)
        while self.members.get(member.name) is member:
            try:
                patience = limits.silence_s * (_BUSY if self._deploying else 1)
                news = await within(member.handle.call("news"), patience)
            except TimeoutError:
                self._lose(member, f"was not heard of for {patience:.1f} s")
                return
            except MachineLostError as error:
                self._lose(member, f"is gone ({first_line(error)})")
                return
            self._hear(member, news)

    def _lose(self, member: Member, reason: str) -> None:
        if self.members.get(member.name) is member:
            _log.warning("%s %s", member.name, reason)
            self._state, actions = sv.after_loss(self._state, member.name, reason)
            if actions:
                self._cancel_deployment()

    def _hear(self, member: Member, news: News) -> None:
        for spent in (member.recent, member.computed):
            spent.merge(news.computed)
        for target, spent in news.sent.items():
            member.sent.merge(spent)
            member.messages.setdefault(target, Spent()).merge(spent)
        member.waiting, member.inside = news.waiting, news.inside
        if self.recording is not None:
            self.recording.hear(member.name, news)
        for name, spent in news.sent.items():
            if name in self.members:
                self.members[name].received.merge(spent)
        self._state, ends = sv.after_news(
            self._state, member.name, news.events, news.computing_s, time.monotonic()
        )
        for end in ends:
            if isinstance(end.outcome, CoexecError):
                self._door.fail(end.frame, end.outcome)
            else:
                self._door.answer(end.frame, dict(end.outcome))
        for event in news.events:
            if isinstance(event, Unreached):
                _log.info("%s cannot reach %s: %s", member.name, event.target, event.reason)

    # Supervision

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.look_s)
            self._door.fail_late()
            self._demand.look()
            try:
                inside = len(self._door.inside())
                now_s = time.monotonic()
                await self._carry_out(sv.after_a_look(self._state, now_s, inside, self._limits))
            except CoexecError as error:
                self._door.close(error)

    def _drifted(self) -> bool:
        """Update the observed speeds of the machines; return whether one has changed by more than
        ``drift``."""
        has_drifted = False
        for member in self.members.values():
            alpha = member.observed_alpha()
            if alpha is not None:
                has_drifted |= abs(alpha / member.alpha - 1) > self._limits.drift
                member.alpha = alpha
                member.recent = Spent()
        return has_drifted

    async def _measure_speeds(self) -> None:
        await self._carry_out(sv.after_measuring(self._state, self._drifted()))
        for source in list(self.members.values()):
            for name in source.slow_targets():
                target = self.members.get(name)
                if target is not None and self.members.get(source.name) is source:
                    await self._measure_link(source, target)

    async def _measure_load(self) -> None:
        """Change to plans for few frames, or back: at a low rate, a plan in which all machines
        compute the same frame answers sooner; at a high rate, a pipeline answers more frames."""
        demand, deployed = self._demand.demand(), self.deployed
        if demand is None or deployed is None:
            return
        if not demand.is_high(deployed.planned):
            await self._try_quick_plans(demand.rate_per_s)
        elif deployed.planned.plan.at_once is not None:
            await self._improve(f"{demand.rate_per_s:.1f} frames a second come")

    async def _measure_link(self, source: Member, target: Member) -> None:
        other_members = [m for m in self.members.values() if m not in (source, target)]
        with suppress(MachineLostError):
            await measure_link(source, target, other_members)
        speeds = ", ".join(
            f"that of {m.name} {format_bytes(m.bandwidth_bytes_per_s)}" for m in (source, target)
        )
        await self._improve(f"messages take long; a second carries, through a port: {speeds}")

    async def _watch_joins(self) -> None:
        while True:
            await asyncio.sleep(self._limits.join_s)
            try:
                if joined := await self._hire():
                    await self._carry_out(sv.after_joining(self._state, joined))
            except ClosedError as error:
                self._door.close(error)
                return
            except (CoexecError, MachineLostError, TimeoutError) as error:
                _log.warning("a machine that joined is left out: %s", first_line(error))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Log the error of a background task and close the session."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the cluster's session is closed: %r", error, exc_info=error)
            self._door.close(
                ExecutionError(f"the cluster's session has failed: {error!r}; make another one")
            )


async def _deployed(
    planned: Planned,
    epoch: int,
    members: Mapping[str, Member],
    models: ShareModels,
    graph: Graph,
    message_s: float,
) -> sv.Deployment:
    """Send each machine of a plan its job, models and weights; frames of ``epoch`` may come then.

    Args:
        message_s: time limit of a message, beside the transfer time of its bytes. The sender
            reports a message that was not taken by then.

    Raises:
        CoexecError: a machine cannot run its share.
        MachineLostError: a machine was lost meanwhile.
        KeyError: a machine is no longer a member.
    """
    jobs, strips = jobs_of(planned.plan, graph)
    shares = await asyncio.to_thread(
        lambda: {key: models.of(strip) for key, strip in strips.items()}
    )
    peers = {name: members[name].handle for name in jobs}
    limit_s = message_s + _QUEUED * _longest_message_s(jobs, members)
    stages = planned.plan.stages

    async def bring(name: str) -> None:
        own_models = {
            (stage, share): model
            for (stage, share), model in shares.items()
            if stages[stage].shares[share].machine == name
        }
        handle = peers[name]
        digests = list({digest for model in own_models.values() for digest in model.weights})
        lacking = await handle.call("lacks", digests)
        if lacking:
            await handle.call("keep", models.weights(lacking))
        await handle.call("deploy", epoch, jobs[name], own_models, peers, limit_s)

    await asyncio.gather(*map(bring, jobs))
    return sv.Deployment(epoch, planned, jobs)


def _longest_message_s(jobs: Mapping[str, MachineJob], members: Mapping[str, Member]) -> float:
    return max(
        (
            action.what.size_bytes / members[name].bandwidth_bytes_per_s
            for name, job in jobs.items()
            for action in job.steps.values()
            if isinstance(action.what, Message)
        ),
        default=0.0,
    )
