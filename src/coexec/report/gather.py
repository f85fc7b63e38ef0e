"""Collect the contents of a report: a plan, its race with its rivals, and what follows from them.

Each step fills a part of the contents. If one fails, the report keeps the parts before it and says
what failed, so that a run that ends badly can be looked at, too.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from typing import Any

from coexec.arrays import Array
from coexec.engines import detect
from coexec.engines.opened import OpenDevice
from coexec.errors import CoexecError
from coexec.graph.graph import Graph, Piece
from coexec.plan.footprint import task_bytes
from coexec.plan.memory import offsets_bound, records_of
from coexec.progress import ReportProgress
from coexec.report.alternatives import by_planners, without_devices
from coexec.report.answer import answer_of, doubt_by_load, doubt_of, is_ort_session
from coexec.report.bound import bound_of
from coexec.report.contents import (
    Contents,
    DrawnTask,
    MemoryRow,
    RepeatedRows,
    TaskRow,
    TransferRow,
)
from coexec.report.explained import explained, measured_in_place
from coexec.report.layout import positions, repeats
from coexec.report.race import (
    RaceEntry,
    alone_rivals,
    onnx_runtime_rival,
    plan_rival,
    predicted_time_s,
    race_rivals,
    recorded_run,
)
from coexec.report.ways import Way, considered
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.critical_path import critical_path
from coexec.timing.explain import GROUPS
from coexec.timing.lanes import kernels_in_words
from coexec.timing.placed_pieces import placed_pieces
from coexec.timing.simulate import simulate
from coexec.timing.trace import Trace

_COLOURS = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00", "#999999"]
"""Colours of places that people with any colour vision distinguish (Okabe and Ito, 2008)."""

_RECORDED_RUNS = 3
"""One alone may be a run that another program disturbed."""


class ReportFailure(Exception):
    """A step failed. `contents` has what the steps before found."""

    def __init__(self, contents: Contents, error: CoexecError) -> None:
        super().__init__(str(error))
        self.contents, self.error = contents, error


def gather(
    prepared: Prepared,
    source: str,
    rounds: int,
    tell: ReportProgress,
    planners_s: float,
    platform: str = "",
) -> Contents:
    """The contents of a report about a plan.

    Args:
        source: the model as the user named it.
        rounds: rounds of the race with ONNX Runtime and each device alone; 0: nothing runs.
        planners_s: seconds for the plans of all planners; 0: none.
        platform: name of the simulated processor; "" for this machine.

    Raises:
        ReportFailure: a step failed.
    """
    gathering = _Gathering(prepared, source, platform)
    steps: list[tuple[str, Callable[[], None]]] = [("reading the plan", gathering.plan)]
    if rounds and not isinstance(prepared.origin, Simulated):
        steps += [
            ("measuring tasks", gathering.tasks_alone),
            ("racing", lambda: gathering.race(rounds)),
        ]
    steps += [("planners", lambda: gathering.alternatives(planners_s)), ("", gathering.answer)]
    for what, step in steps:
        if what:
            tell(what, 0, 0)
        try:
            step()
        except CoexecError as error:
            failure = f"{what or 'the answer'} failed: {error}"
            raise ReportFailure(replace(gathering.contents, failure=failure), error) from error
    return gathering.contents


class _Gathering:
    """The contents so far."""

    def __init__(self, prepared: Prepared, source: str, platform: str) -> None:
        self._prepared = prepared
        self.contents = Contents(source, prepared.graph.name, facts=_facts(prepared, platform))

    def _add(self, **parts: Any) -> None:
        self.contents = replace(self.contents, **parts)

    def plan(self) -> None:
        """The plan, its simulation, and what is known of each task."""
        prepared = self._prepared
        system, schedule = prepared.system, prepared.schedule
        trace = simulate(schedule, prepared.cost, system)
        bound = bound_of(prepared)
        on_path = {span.segment for span in critical_path(trace) if span.kind == "compute"}
        critical = {piece for index in on_path for piece in schedule.segments[index].pieces}
        places = tuple(str(place) for place in system.places)
        nodes = tuple(_nodes(prepared, critical))
        self._add(
            places=places,
            colours=dict(zip(dict.fromkeys(places), cycle(_COLOURS), strict=False)),
            rivals=tuple(considered(prepared.decision)),
            predicted=trace,
            tasks=tuple(_task_rows(prepared, critical, trace)),
            nodes=nodes,
            edges=tuple(_edges(prepared.graph)),
            repeats=_repeats(nodes),
            bound_s=None if bound is None else bound.seconds,
            bound=None if bound is None else str(bound),
            transfers=tuple(_transfers(prepared)),
            memory=tuple(_memory(prepared)),
            least_intermediate_bytes=offsets_bound(list(records_of(prepared.graph).values())),
        )

    def tasks_alone(self) -> None:
        """The measured time of each task at its place."""
        measured = measured_in_place(self._prepared)
        rows = (replace(row, measured_s=measured.get(row.task)) for row in self.contents.tasks)
        self._add(tasks=tuple(rows))

    def race(self, rounds: int) -> None:
        """Recorded runs, and the race with the rivals. Planner "auto" has raced its candidates:
        another race would only give other figures of the same plans."""
        prepared = self._prepared
        work, decision = prepared.work, prepared.decision
        feeds, _ = work.model.accepted(work.user_model.reference)
        with ExitStack() as stack:
            way = Way(name="plan", predicted_s=predicted_time_s(prepared), is_plan=True)
            if is_session := is_ort_session(prepared):
                way = replace(way, name="plan: ONNX Runtime's own session", is_base=True)
            plan, runner = plan_rival(prepared, way, feeds, stack)
            self._record(runner, feeds)
            if decision is not None and self.contents.rivals:
                self._start_and_memory(plan, onnx_runtime_rival(work, feeds))
                others, rounds = decision.others, decision.taken.rounds
            else:
                alone, left_out = alone_rivals(prepared, feeds, stack)
                different = [each for each in alone if not (is_session and each.is_same(plan))]
                base = [] if is_session else [onnx_runtime_rival(work, feeds)]
                raced = race_rivals([plan, *different, *base], rounds)
                others = raced.others
                self._add(rivals=tuple(raced.ways), left_out=left_out)
                self._add(doubt=doubt_by_load(others))
        load = f"{others:.0%} of the processors' time, by other programs"
        facts = {"load while racing": load, "rounds": str(rounds)}
        self._add(facts={**self.contents.facts, **facts})

    def _start_and_memory(self, plan: RaceEntry, base: RaceEntry) -> None:
        """Figures that are no part of the race of planner "auto", of its plan and of ONNX Runtime's
        session."""
        rows = list(self.contents.rivals)
        for index, row in enumerate(rows):
            if row.is_plan or row.is_base:
                rival = plan if row.is_plan else base
                rows[index] = replace(row, init_s=rival.way.init_s, peak_bytes=rival.peak())
        self._add(rivals=tuple(rows))

    def _record(self, runner: Runner, feeds: Mapping[str, Array]) -> None:
        """The recorded run of the plan that is neither the longest nor the shortest; or what one
        that fails has done until then."""
        traces: list[Trace] = []
        for _ in range(_RECORDED_RUNS):
            recorder = RealRecorder(self._prepared.compiled, self._prepared.work.names)
            try:
                recorded_run(runner, feeds, recorder)
            except CoexecError:
                self._measured(recorder.trace())
                raise
            traces.append(recorder.trace())
        self._measured(sorted(traces, key=lambda trace: trace.makespan_s)[_RECORDED_RUNS // 2])

    def _measured(self, trace: Trace) -> None:
        if trace.spans:
            devices = self._prepared.work.devices
            sentences = _kernels(self._prepared.graph.name, trace, devices)
            names = {device.spec.name for device in devices if device.spec.kind != "cpu"}
            trace = replace(trace, details=tuple(d for d in trace.details if d.device in names))
            self._add(measured=trace, kernels=tuple(sentences))

    def alternatives(self, planners_s: float) -> None:
        """What other planners would do, and the plan without each of its devices."""
        if planners_s:
            planners = tuple(by_planners(self._prepared, planners_s))
            self._add(planners=planners, without=tuple(without_devices(self._prepared, planners_s)))

    def answer(self) -> None:
        doubt = doubt_of(self._prepared) or self.contents.doubt
        self._add(answer=answer_of(self.contents, self._prepared), doubt=doubt)


def _kernels(title: str, trace: Trace, devices: Sequence[OpenDevice]) -> Iterator[str]:
    """What a recorded run shows of the kernels of GPUs, with how their order was chosen, and of the
    tiles of cores."""
    for device in devices:
        if words := kernels_in_words(trace.kernels_of(device.spec.name)):
            yield f"{title} on {device.spec.place}: {words}."
            yield from device.engine.decisions


def _facts(prepared: Prepared, platform: str) -> dict[str, str]:
    engines = {
        f"engine of {device.place}": f"{device.engine.name} {device.engine.version}".strip()
        for device in prepared.system.devices
    }
    return {
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "processor": platform or detect.processor_name(),
        "planner": prepared.plan.provenance.planner,
        **engines,
    }


def _task_rows(prepared: Prepared, critical: set[Piece], trace: Trace) -> Iterator[TaskRow]:
    graph, cost = prepared.graph, prepared.cost
    reasons = {reason.task: reason for reason in explained(prepared, trace)}
    for segment in prepared.schedule.segments:
        for piece in segment.pieces:
            task = graph.task[piece.task]
            reason = reasons[task.name if piece == graph.whole_piece(task) else str(piece)]
            seconds = {
                str(place): cost.piece_s(graph, task, piece.region, place)
                for place in prepared.system.places
            }
            yield TaskRow(
                name=reason.task,
                task=task.name,
                kind=task.kind,
                shape="x".join(map(str, piece.region.shape)),
                macs=task.macs,
                place=str(segment.place),
                group=GROUPS[reason.group],
                why=reason.why,
                predicted_s=reason.predicted_s,
                measured_s=None,
                elsewhere_s={p: s if math.isfinite(s) else None for p, s in seconds.items()},
                moved_bytes=reason.moved_bytes,
                is_critical=piece in critical,
            )


def _nodes(prepared: Prepared, critical: set[Piece]) -> Iterator[DrawnTask]:
    graph, position_of = prepared.graph, positions(prepared.graph)
    pieces_of = placed_pieces(prepared.schedule, prepared.cost)
    on_path = {piece.task for piece in critical}
    for task in graph.tasks:
        pieces = pieces_of[task.name]
        size = sum(piece.region.size for piece in pieces)
        shares: dict[str, float] = {}
        for piece in pieces:
            share = piece.region.size / size if size else 1 / len(pieces)
            shares[str(piece.place)] = shares.get(str(piece.place), 0.0) + share
        seconds = max((piece.predicted_s for piece in pieces), default=0.0)
        row, column = position_of[task.name]
        yield DrawnTask(task.name, task.kind, row, column, shares, seconds, task.name in on_path)


def _repeats(nodes: Sequence[DrawnTask]) -> tuple[RepeatedRows, ...]:
    """Rows of the drawing that repeat, by the operators in each from left to right."""
    rows: list[list[str]] = [[] for _ in range(1 + max((node.row for node in nodes), default=-1))]
    for node in sorted(nodes, key=lambda each: each.column):
        rows[node.row].append(node.kind)
    return tuple(repeats([tuple(kinds) for kinds in rows]))


def _edges(graph: Graph) -> Iterator[tuple[int, int]]:
    index = {task.name: number for number, task in enumerate(graph.tasks)}
    for task in graph.tasks:
        for maker in graph.predecessors[task.name]:
            yield index[maker.name], index[task.name]


def _transfers(prepared: Prepared) -> Iterator[TransferRow]:
    segments = prepared.schedule.segments
    for transfer in prepared.schedule.transfers:
        source, target = segments[transfer.source].place, segments[transfer.target].place
        yield TransferRow(transfer.tensor, str(source), str(target), transfer.size_bytes)


def _memory(prepared: Prepared) -> Iterator[MemoryRow]:
    graph = prepared.graph
    tasks_by_place: dict[str, dict[str, None]] = {}
    for piece, place in prepared.plan.place_of.items():
        tasks_by_place.setdefault(str(place), {})[piece.task] = None
    for name, names in tasks_by_place.items():
        tasks = [graph.task[each] for each in names]
        weights = {weight for task in tasks for weight in task.weights}
        yield MemoryRow(
            name,
            len(tasks),
            sum(graph.tensors[weight].size_bytes for weight in weights),
            max(task_bytes(graph, task) for task in tasks),
        )
