"""A model that runs as a pipeline on the machines of a cluster."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from coexec.arguments import check_feeds
from coexec.errors import ClosedError, UsageError
from coexec.graph.graph import Graph, Tensor
from coexec.model.model import Model
from coexec.pipeline.cluster.admission import Door, Frame
from coexec.pipeline.cluster.conductor import Conductor
from coexec.pipeline.cluster.handles import MachineFacts
from coexec.pipeline.cluster.planning import KnownMachine, Planned, Planning
from coexec.pipeline.cluster.shares import ShareModels
from coexec.pipeline.cluster.supervision import Limits
from coexec.pipeline.cluster.team import Member, Team
from coexec.pipeline.cluster.tracing import ClusterRecording, ClusterTrace
from coexec.pipeline.network import NetworkKind
from coexec.pipeline.plan.plan import PipelinePlan


@dataclass(frozen=True)
class MachineStatus:
    """Status of one machine of a session."""

    name: str
    host: str
    stages: tuple[int, ...]
    """Indices of the plan's stages in which it has a part."""
    flops_per_s: float
    """Estimated capacity, updated by its computations so far."""
    bandwidth_bytes_per_s: float
    waiting: int
    """Number of shares that are ready to be computed."""
    inside: int
    """Number of frames in flight on the machine."""
    shares: int
    """Number of shares computed since the session began."""
    busy_s: float
    sent_bytes: int
    """Bytes sent to other machines; answers are not counted."""
    received_bytes: int
    """Bytes from other machines, and of frames that enter the pipeline there."""
    latency_s: float
    """Measured seconds of a message to or from it, without the transfer time of its bytes."""


@dataclass(frozen=True)
class Status:
    """Status of a session."""

    machines: tuple[MachineStatus, ...]
    answered: int
    inside: int
    most_inside: int
    credits: int
    predicted_period_s: float
    predicted_latency_s: float
    changes: tuple[str, ...]
    """One line for each plan so far, with its reason."""


class ClusterSession:
    """Answers frames, several at a time. May be used by several threads. Close it, or use ``with``.

    If a machine dies, the other machines compute its frames again: this costs time, but no answer
    is lost.
    """

    def __init__(
        self,
        model: Model,
        team: Team,
        stated: Callable[[MachineFacts], Mapping[str, float]],
        *,
        planner: str = "pico",
        planner_options: Mapping[str, Any] | None = None,
        credits: int | None = None,
        deadline_s: float = 60.0,
        network: NetworkKind = "ports",
        limits: Limits | None = None,
    ) -> None:
        """Hire machines, measure them, make a plan, and deploy it.

        Args:
            stated: stated "flops_per_s", "bandwidth_bytes_per_s" and "latency_s" of a machine;
                these are not measured.
            planner: a name in `coexec.pipeline.planners.PIPELINES`.
            credits: maximum number of frames in flight; None: `Planned.credits`.
            deadline_s: longest time from a frame's admission to its answer; a frame without an
                answer by then has failed.

        Raises:
            CoexecError: there is no machine, or they cannot run the model.
        """
        check_pipeline_options(model.graph, credits, deadline_s)
        self._graph, self._deadline_s = model.graph, deadline_s
        self._wanted = {name: model.graph.tensors[name] for name in model.graph.inputs}
        self._door = Door(credits or 1)
        planning = Planning(model.graph, planner, planner_options or {}, network)
        self._conductor = Conductor(
            team,
            ShareModels(model),
            planning,
            self._door,
            stated,
            limits or Limits(),
            credits,
        )
        self._conductor.start()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs of the model, with the shapes that frames have."""
        return tuple(self._wanted.values())

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Outputs of the model."""
        return tuple(self._graph.tensors[name] for name in self._graph.outputs)

    @property
    def ready(self) -> bool:
        """Whether frames are admitted: the session is open, and machines are left."""
        return self._door.is_open

    @property
    def plan(self) -> PipelinePlan:
        """The plan in service."""
        return self.planned.plan

    @property
    def planned(self) -> Planned:
        """The plan in service with its simulated performance."""
        deployed = self._conductor.deployed
        assert deployed is not None  # the session began with one
        return deployed.planned

    @property
    def known_machines(self) -> tuple[KnownMachine, ...]:
        """Stated or measured properties of the machines, also of those without a share."""
        return tuple(member.known for member in self._members)

    @property
    def graph(self) -> Graph:
        """Graph of the model."""
        return self._graph

    @property
    def _members(self) -> list[Member]:
        """Machines that have not been lost."""
        return list(self._conductor.members.values())

    def submit(
        self, feeds: Mapping[str, Any], *, deadline_s: float | None = None, wait: bool = False
    ) -> "Future[dict[str, Any]]":
        """Admit a frame; the future delivers its outputs by name.

        Args:
            feeds: an array for each input of the model.
            deadline_s: seconds from now; None for the session's deadline.
            wait: wait for a credit if none is left.

        Raises:
            InputError: a name, shape or dtype that the model does not have.
            BusyError: there is no credit.
            ClosedError: the session is closed.
        """
        checked = check_feeds(self._wanted, feeds)
        seconds = self._deadline_s if deadline_s is None else deadline_s
        frame = self._door.admit(checked, time.monotonic() + seconds, wait)
        recording = self._conductor.recording
        if recording is not None:
            _record(frame, recording)
        self._conductor.admit(frame)
        return frame.answer

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Outputs of one frame: those in ``output_names``, or all of them, in that order.

        Raises:
            UsageError: the model has no such output.
            CoexecError: as `submit`, or the frame failed.
        """
        names = list(output_names or self._graph.outputs)
        unknown = [name for name in names if name not in self._graph.outputs]
        if unknown:
            raise UsageError(
                f"the model has no output {unknown[0]!r}; it has "
                f"{', '.join(map(repr, self._graph.outputs))}"
            )
        outputs = self.submit(input_feed, wait=True).result()
        return [outputs[name] for name in names]

    def map(self, frames: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Outputs of frames, in their order, once each. At most ``credits`` frames are in flight,
        and finished answers wait until the caller reads them: neither side runs ahead.

        Raises:
            CoexecError: a frame failed; the frames after it are not answered.
        """
        under_way: deque[Future[dict[str, Any]]] = deque()
        try:
            for feeds in frames:
                while under_way and (under_way[0].done() or len(under_way) >= self._door.credits):
                    yield under_way.popleft().result()
                under_way.append(self.submit(feeds, wait=True))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for answer in under_way:
                answer.cancel()

    def status(self) -> Status:
        """Current status of the session."""
        planned = self.planned
        machines = tuple(
            MachineStatus(
                member.name,
                member.facts.host,
                self.plan.stages_of(member.name),
                member.flops_per_s / member.alpha,
                member.bandwidth_bytes_per_s,
                member.waiting,
                member.inside,
                member.computed.count,
                member.computed.seconds,
                member.sent.amount,
                member.received.amount,
                member.latency_s,
            )
            for member in self._members
        )
        door = self._door
        return Status(
            machines,
            door.answered,
            len(door.inside()),
            door.most_inside,
            door.credits,
            planned.period_s,
            planned.latency_s,
            tuple(self._conductor.changes),
        )

    def start_trace(self) -> None:
        """Record what machines compute and send from now on, until `stop_trace`.

        Raises:
            UsageError: a recording runs already.
            ClosedError: the session is closed.
        """
        if self._conductor.recording is not None:
            raise UsageError("the session is traced already; stop_trace() ends that")
        if not self.ready:
            raise ClosedError("the cluster's session is closed; make a new one")
        recording = self._conductor.recording = ClusterRecording()
        self._conductor.call(recording.begin_all(self._members)).result()

    def stop_trace(self) -> ClusterTrace:
        """End the recording; return it with all times on one clock. May take a second.

        Raises:
            UsageError: no recording runs; start_trace() comes first.
        """
        if self._conductor.recording is None:
            raise UsageError("the session is not traced; start_trace() begins that")
        ending = self._conductor.recording.end(self._members)
        trace: ClusterTrace = self._conductor.call(ending).result()
        self._conductor.recording = None
        return trace

    def close(self) -> None:
        """Give up all frames, and dismiss the machines. May be called again."""
        self._conductor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_pipeline_options(graph: Graph, credits: int | None, deadline_s: float) -> None:
    """
    Raises:
        UsageError: there is nothing to compute, no credit, or no time.
    """
    if not graph.tasks:
        raise UsageError(
            f"{graph.name} has nothing to compute; a cluster runs models with at least one operator"
        )
    if credits is not None and credits < 1:
        raise UsageError(f"credits are at least 1, not {credits}")
    if not deadline_s > 0:
        raise UsageError(f"deadline_s is above 0, not {deadline_s:g}")


def _record(frame: Frame, recording: ClusterRecording) -> None:
    """Record when a frame was admitted, and when it was answered or given up."""
    start_s = time.perf_counter()

    def end(answer: "Future[dict[str, Any]]") -> None:
        failed = answer.cancelled() or answer.exception() is not None
        recording.frame(frame.number, start_s, time.perf_counter(), failed)

    frame.answer.add_done_callback(end)
