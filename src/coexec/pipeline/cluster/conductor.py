"""Runs a pipeline on machines that may die, join or slow down.

One event loop runs in a thread of its own. The door admits frames; machines send intermediate
results directly to each other. The conductor receives answers and reports of failures, and replaces
the plan:

* A machine that is silent for some time, or that Ray reports as dead, is left out. All frames
  without an answer are sent again by the new plan, under a new *epoch*. Failures that machines
  report for an older epoch are ignored.
* A machine that joins, or that computes faster or more slowly than expected, leads to another plan
  only if that plan is faster by a margin, and not soon after the last change.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from coexec.errors import (
    ClosedError,
    CoexecError,
    ExecutionError,
    InfeasibleError,
    first_line,
)
from coexec.pipeline.cluster.admission import Door, Frame
from coexec.pipeline.cluster.arrival_rate import DemandWatch
from coexec.pipeline.cluster.deploying import Deployment, deploy
from coexec.pipeline.cluster.handles import (
    FrameAnswer,
    FrameFailure,
    MachineFacts,
    MachineLostError,
    News,
    Spent,
    Unreached,
    within,
)
from coexec.pipeline.cluster.jobs import FRAME
from coexec.pipeline.cluster.limits import Limits
from coexec.pipeline.cluster.measuring import measure_link, measured_members
from coexec.pipeline.cluster.planning import Planned, Planning, response_s
from coexec.pipeline.cluster.shares import ShareModels
from coexec.pipeline.cluster.team import Member, Team
from coexec.pipeline.cluster.tracing import ClusterRecording
from coexec.units import format_bytes

__all__ = ["Conductor"]

_BUSY = 4
"""Factor on the allowed silence of a machine, while machines receive weights."""
_PATIENCE = 5
"""Allowed time without any answer, in latencies of a frame."""
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
        self.deployed: Deployment | None = None
        self.changes: list[str] = []
        """One line for each plan so far, with its reason, in order."""
        self.recording: ClusterRecording | None = None
        """Collects the machines' spans; None while nothing is recorded."""
        self._epochs = 0
        self._changed_s = self._looked_s = 0.0
        """`time.monotonic` of the last change of plan, and of the last search for a better one."""
        self._hasty = False
        """Whether the plan was made with ``quick``, to recover soon from a loss."""
        self._deploying: asyncio.Task[Deployment] | None = None
        self._changing = asyncio.Lock()
        self._demand = DemandWatch(door, limits.rest_s)
        self._lost: dict[str, str] = {}
        """Reason by machine, for lost machines that are still members."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="coexec-cluster", daemon=True
        )

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
            await self._hire()
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
            await self._change("the session begins", await self._planned())
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

    async def _hire(self) -> list[str]:
        """Add new machines as members; return their names."""
        handles = await self._team.hire()
        self._planning.door = self._team.door
        if not handles:
            return []
        measured = measured_members(
            handles, self._planning.graph, self._models, self._stated, self.members
        )
        try:
            members = await within(measured, self._limits.deploy_s)
        except BaseException:
            for name in handles:
                self._start(self._team_dismisses(name))
            raise
        for member in members:
            member.heard_s = time.monotonic()
            self.members[member.name] = member
            self._start(self._listen(member))
        return [member.name for member in members]

    # Plans

    async def _planned(self, quick: bool = False) -> Planned:
        machines = [member.known for member in self.members.values()]
        return await asyncio.to_thread(self._planning.plan, machines, quick)

    async def _change(self, why: str, planned: Planned) -> None:
        """Deploy a plan, and send all unanswered frames by it.

        Raises:
            CoexecError: a machine cannot run its share.
            MachineLostError: a machine was lost meanwhile.
        """
        start = time.monotonic()
        async with self._changing:
            self._epochs += 1
            work = deploy(
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
                if not self._lost:
                    raise
                raise MachineLostError("another machine was lost meanwhile") from None
            finally:
                self._deploying = None
        before, self.deployed = self.deployed, deployment
        self._changed_s = time.monotonic()
        self._demand.clear()
        self._door.limit(self._credits or planned.credits)
        line = (
            f"{why}: {len(planned.plan.stages)} stages on {', '.join(deployment.machines)}, "
            f"period {planned.period_s * 1e3:.1f} ms predicted, "
            f"in service after {self._changed_s - start:.1f} s"
        )
        self.changes.append(line)
        _log.info("%s", line)
        for member in self.members.values():
            member.recent.clear()
        for frame in self._door.inside():
            self._send_in(frame)
        if before is not None:
            for name in before.machines:
                if name in self.members:
                    self._start(self._drop(self.members[name], before.epoch))

    async def _drop(self, member: Member, epoch: int) -> None:
        with suppress(MachineLostError):  # `_listen` reports the loss
            await member.handle.call("drop", epoch)

    async def _recover(self) -> None:
        """Leave out lost machines, until a plan runs."""
        reasons: list[str] = []
        while True:
            reasons += [f"{name} {reason}" for name, reason in self._lost.items()]
            why = "; ".join(reasons)
            for name in self._lost:
                self.members.pop(name, None)
                self._start(self._team_dismisses(name))
            self._lost.clear()
            if not self.members:
                self._door.close(
                    ClosedError(
                        f"no machine of the cluster is left: {why}; start "
                        f"machines and make another session"
                    )
                )
                return
            try:
                await self._change(why, await self._planned(quick=True))
                self._hasty = True
                return
            except (MachineLostError, TimeoutError):
                await asyncio.sleep(self._limits.look_s)  # meanwhile `_listen` reports the losses
            except InfeasibleError as error:
                self._door.close(ExecutionError(f"{why}; the others cannot run the model: {error}"))
                return

    async def _team_dismisses(self, name: str) -> None:
        await self._team.dismiss(name)

    @property
    def _rested(self) -> bool:
        """Whether ``rest_s`` has passed since the last change and the last search for a better
        plan."""
        return time.monotonic() - max(self._changed_s, self._looked_s) >= self._limits.rest_s

    async def _improve(self, why: str) -> None:
        """Change the plan if another one is faster by a margin, by the current measurements."""
        deployed = self.deployed
        if deployed is None or not self._rested:
            return
        machines = [member.known for member in self.members.values()]
        current = await asyncio.to_thread(self._planning.judged, deployed.planned.plan, machines)
        better = await self._planned()
        if better.period_s <= current.period_s * (1 - self._limits.gain):
            with suppress(MachineLostError, TimeoutError):  # `_listen` reports the loss
                await self._change(why, better)
        else:
            self._looked_s = time.monotonic()

    # Frames

    def _send_in(self, frame: Frame) -> None:
        deployed = self.deployed
        if deployed is None or frame.number in deployed.sent or frame.answer.done():
            return
        if not deployed.sent:
            deployed.progress_s = time.monotonic()
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
            member.heard_s = time.monotonic()
            self._hear(member, news)

    def _lose(self, member: Member, reason: str) -> None:
        if self.members.get(member.name) is member:
            self._lost[member.name] = reason
            if self._deploying is not None:
                self._deploying.cancel()  # the deployment may need this machine
            _log.warning("%s %s", member.name, reason)

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
        member.computing_s = news.computing_s
        for event in news.events:
            if isinstance(event, FrameAnswer):
                if self.deployed is not None:
                    self.deployed.progress_s = time.monotonic()
                for each in self.members.values():
                    each.complaints = 0
                self._door.answer(event.frame, event.outputs)
            elif self.deployed is None or event.epoch != self.deployed.epoch:
                continue
            elif isinstance(event, FrameFailure):
                self._door.fail(
                    event.frame, ExecutionError(f"frame {event.frame} failed on {event.reason}")
                )
            elif isinstance(event, Unreached):
                if event.target in self.members:
                    self.members[event.target].complaints += 1
                _log.info("%s cannot reach %s: %s", member.name, event.target, event.reason)

    # Supervision

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limits.look_s)
            self._door.fail_late()
            self._demand.look()
            try:
                self._look_for_stuck()
                if self._lost:
                    await self._recover()
                elif self._rested:
                    await self._look_at_speeds()
                    await self._look_at_load()
            except CoexecError as error:
                self._door.close(error)

    def _look_for_stuck(self) -> None:
        """Declare a machine lost that answers but blocks frames: others cannot reach it, or its
        computation does not end. If there is none, send all frames again."""
        deployed, now = self.deployed, time.monotonic()
        if deployed is None or self._deploying:
            return
        if not self._door.inside():
            deployed.progress_s = now  # no frame is in flight
            return
        patience = max(2 * self._limits.silence_s, _PATIENCE * deployed.planned.latency_s)
        if now - max(deployed.progress_s, self._changed_s) < patience:
            return
        members = [self.members[name] for name in deployed.machines if name in self.members]
        blamed = max(members, key=lambda member: (member.complaints, member.computing_s))
        if blamed.complaints:
            self._lose(blamed, f"could not be reached by others for {patience:.1f} s")
        elif blamed.computing_s > patience:
            self._lose(blamed, f"has computed one share for {blamed.computing_s:.1f} s")
        else:
            self._start(self._again(f"no answer for {patience:.1f} s"))

    async def _again(self, why: str) -> None:
        """Send all frames again by the same plan."""
        deployed = self.deployed
        if deployed is not None:
            with suppress(MachineLostError, TimeoutError):
                await self._change(why, deployed.planned)

    def _drifted(self) -> bool:
        """Update the observed speeds of the machines; return whether one has changed by more than
        ``drift``."""
        has_drifted = False
        for member in self.members.values():
            alpha = member.observed_alpha()
            if alpha is not None:
                has_drifted |= abs(alpha / member.alpha - 1) > self._limits.drift
                member.alpha = alpha
                member.recent.clear()
        return has_drifted

    async def _look_at_speeds(self) -> None:
        drifted, hasty, self._hasty = self._drifted(), self._hasty, False
        if drifted:
            await self._improve("machines are faster or slower than thought")
        elif hasty:
            await self._improve("there was time to plan")
        for source in list(self.members.values()):
            for name in source.slow_targets():
                target = self.members.get(name)
                if target is not None and self.members.get(source.name) is source:
                    await self._look_at_link(source, target)

    async def _look_at_link(self, source: Member, target: Member) -> None:
        other_members = [m for m in self.members.values() if m not in (source, target)]
        with suppress(MachineLostError):
            await measure_link(source, target, other_members)
        speeds = ", ".join(
            f"that of {m.name} {format_bytes(m.bandwidth_bytes_per_s)}" for m in (source, target)
        )
        await self._improve(f"messages take long; a second carries, through a port: {speeds}")

    async def _look_at_load(self) -> None:
        """At a low frame rate, choose a plan in which all machines compute the same frame; at a
        high rate, a pipeline of several frames."""
        deployed, demand = self.deployed, self._demand.demand()
        if deployed is None or demand is None:
            return
        planned = deployed.planned
        if demand.is_high(planned):
            if planned.plan.at_once is not None:
                await self._improve(f"{demand.rate_per_s:.1f} frames a second come")
            return
        machines = [member.known for member in self.members.values()]
        plans = await asyncio.to_thread(self._planning.quick_answers, machines)
        rate = demand.rate_per_s
        best = min(plans, key=lambda each: response_s(each, rate), default=planned)
        gain = 1 - self._limits.gain
        if response_s(best, rate) < gain * response_s(planned, rate):
            with suppress(MachineLostError, TimeoutError):
                await self._change(f"only {rate:.1f} frames a second come", best)
        self._looked_s = time.monotonic()

    async def _watch_joins(self) -> None:
        while True:
            await asyncio.sleep(self._limits.join_s)
            try:
                joined = await self._hire()
                if joined:
                    self._changed_s = self._looked_s = 0.0
                    await self._improve(f"{', '.join(joined)} joined")
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
