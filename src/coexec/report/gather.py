"""Collect the contents of a report: a plan, its race with its rivals, and what follows from them.

Each step fills a part of the contents. If one fails, the report keeps the parts before it and says
what failed, so that a run that ends badly can be looked at, too.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from typing import Any

from coexec.arrays import Array
from coexec.engines import detect
from coexec.errors import CoexecError
from coexec.graph.graph import Graph
from coexec.plan.footprint import task_bytes
from coexec.plan.memory import offsets_bound, records_of
from coexec.plan.schedule import Segment
from coexec.progress import ReportProgress
from coexec.report.alternatives import by_planners, without_devices
from coexec.report.answer import answer_of, doubt_by_load, doubt_of, is_ort_session
from coexec.report.bound import bound_of
from coexec.report.contents import (
    Contents,
    DrawnSpan,
    DrawnTask,
    DrawnTrace,
    MemoryRow,
    RepeatedRows,
    RivalRow,
    TaskRow,
    TransferRow,
)
from coexec.report.in_place import measured_in_place
from coexec.report.layout import positions, repeats
from coexec.report.rivals import (
    alone_rows,
    candidate_rows,
    predicted_time_s,
    recorded_run,
    row_of_onnx_runtime,
    row_of_plan,
)
from coexec.report.standings import Row, Standings, race_rows
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.critical_path import critical_path
from coexec.timing.explain import GROUPS, explain
from coexec.timing.placed_pieces import placed_pieces
from coexec.timing.simulate import simulate
from coexec.timing.trace import Span, Trace

__all__ = ["ReportFailure", "gather"]

_COLOURS = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00", "#999999"]
"""Colours of places that people with any colour vision distinguish (Okabe and Ito, 2008)."""

PLANNERS_S = 20.0
"""Seconds for the plans of all planners."""

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
    planners_s: float = PLANNERS_S,
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
        self.contents = Contents(source, prepared.graph.name, (), facts=_facts(prepared, platform))

    def _add(self, **parts: Any) -> None:
        self.contents = replace(self.contents, **parts)

    def plan(self) -> None:
        """The plan, its simulation, and what is known of each task."""
        prepared = self._prepared
        cost, system, schedule = prepared.cost, prepared.system, prepared.schedule
        trace = simulate(schedule, cost, system)
        bound = bound_of(prepared)
        path = critical_path(trace)
        places = tuple(str(place) for place in system.places)
        critical = _tasks_of(path, schedule.segments)
        nodes = tuple(_nodes(prepared, critical))
        self._add(
            places=places,
            colours=dict(zip(dict.fromkeys(places), cycle(_COLOURS), strict=False)),
            rivals=tuple(candidate_rows(prepared.decision)),
            predicted=_timeline(trace, path),
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
        work = prepared.work
        feeds, _ = work.model.accepted(work.given.reference)
        with ExitStack() as stack:
            row, runner = row_of_plan(prepared, "plan", predicted_time_s(prepared), feeds, stack)
            self._record(runner, feeds)
            if prepared.decision is not None and self.contents.rivals:
                self._start_and_memory(row, row_of_onnx_runtime(work, feeds))
                self._facts_of_race(prepared.decision.others, prepared.decision.taken.rounds)
                return
            alone, left_out = alone_rows(prepared, feeds, stack)
            if is_ort_session(prepared):
                row.is_base, row.name = True, "plan: ONNX Runtime's own session"
                rows = [row, *(each for each in alone if not each.is_same(row))]
            else:
                rows = [row, *alone, row_of_onnx_runtime(work, feeds)]
            standings = race_rows(rows, rounds)
        self._add(rivals=tuple(_rivals(standings, row)), left_out=left_out)
        self._add(doubt=doubt_by_load(standings.outcome.others))
        self._facts_of_race(standings.outcome.others, rounds)

    def _facts_of_race(self, others: float, rounds: int) -> None:
        load = f"{others:.0%} of the processors' time, by other programs"
        facts = {"load while racing": load, "rounds": str(rounds)}
        self._add(facts={**self.contents.facts, **facts})

    def _start_and_memory(self, plan: Row, base: Row) -> None:
        """Figures that are no part of the race of planner "auto", of its plan and of ONNX Runtime's
        session."""
        measured = {
            index: plan if row.is_plan else base
            for index, row in enumerate(self.contents.rivals)
            if row.is_plan or row.is_base
        }
        rows = list(self.contents.rivals)
        for index, row in measured.items():
            rows[index] = replace(rows[index], init_s=row.init_s, peak_bytes=row.peak())
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
            self._add(measured=_timeline(trace, critical_path(trace)))

    def alternatives(self, planners_s: float) -> None:
        """What other planners would do, and the plan without each of its devices."""
        if planners_s:
            planners = tuple(by_planners(self._prepared, planners_s))
            self._add(planners=planners, without=tuple(without_devices(self._prepared, planners_s)))

    def answer(self) -> None:
        doubt = doubt_of(self._prepared) or self.contents.doubt
        self._add(answer=answer_of(self.contents, self._prepared), doubt=doubt)


def _facts(prepared: Prepared, platform: str) -> dict[str, str]:
    versions = {
        str(device.place): f"{device.engine.name} {device.engine.version}".strip()
        for device in prepared.system.devices
    }
    return {
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "processor": platform or detect.processor_name(),
        "planner": prepared.plan.provenance.planner,
        **{f"engine of {place}": text for place, text in versions.items()},
    }


def _timeline(trace: Trace, path: Iterable[Span]) -> DrawnTrace:
    critical = {id(span) for span in path}
    blocks = (
        DrawnSpan(
            span.device,
            span.kind,
            span.name,
            span.start_s,
            span.end_s,
            span.engine,
            span.tasks,
            span.tensor,
            span.size_bytes,
            id(span) in critical,
        )
        for span in trace.spans
    )
    shares = {device: trace.utilisation(device) for device in trace.devices}
    return DrawnTrace(trace.makespan_s, shares, tuple(blocks))


def _tasks_of(path: Iterable[Span], segments: tuple[Segment, ...]) -> set[tuple[str, Any]]:
    """The pieces of the segments on a path, as names and regions."""
    indices = {span.segment for span in path if span.kind == "compute"}
    return {(piece.task, piece.region) for i in indices for piece in segments[i].pieces}


def _task_rows(
    prepared: Prepared, critical: set[tuple[str, Any]], trace: Trace
) -> Iterator[TaskRow]:
    graph, cost, system = prepared.graph, prepared.cost, prepared.system
    is_simulated = isinstance(prepared.origin, Simulated)
    pinned = () if is_simulated else prepared.work.pinned_tasks(cost, system)
    reasons = {
        reason.task: reason
        for reason in explain(prepared.plan, prepared.schedule, cost, system, pinned, trace)
    }
    for segment in prepared.schedule.segments:
        for piece in segment.pieces:
            task = graph.task[piece.task]
            is_whole = piece == graph.whole_piece(task)
            reason = reasons[task.name if is_whole else str(piece)]
            seconds = {
                str(place): _finite(cost.piece_s(graph, task, piece.region, place))
                for place in system.places
            }
            yield TaskRow(
                reason.task,
                task.name,
                task.kind,
                "x".join(map(str, piece.region.shape)),
                task.macs,
                str(segment.place),
                GROUPS[reason.group],
                reason.why,
                reason.predicted_s,
                None,
                seconds,
                reason.moved_bytes,
                (piece.task, piece.region) in critical,
            )


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _nodes(prepared: Prepared, critical: set[tuple[str, Any]]) -> Iterator[DrawnTask]:
    graph, position_of = prepared.graph, positions(prepared.graph)
    pieces_of = placed_pieces(prepared.schedule, prepared.cost)
    on_path = {name for name, _ in critical}
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
    tasks_by_place: dict[str, list[str]] = {}
    for piece, place in prepared.plan.place_of.items():
        tasks_by_place.setdefault(str(place), []).append(piece.task)
    for name, names in tasks_by_place.items():
        tasks = [graph.task[each] for each in dict.fromkeys(names)]
        weights = {weight for task in tasks for weight in task.weights}
        yield MemoryRow(
            name,
            len(tasks),
            sum(graph.tensors[weight].size_bytes for weight in weights),
            max(task_bytes(graph, task) for task in tasks),
        )


def _rivals(standings: Standings, plan: Row) -> Iterator[RivalRow]:
    for row in standings.rows:
        facts = standings.facts(row)
        ran = standings.same_as.get(row.name, row.name)
        yield RivalRow(
            row.name,
            row.predicted_s,
            facts["paced_s"],
            facts["loop_s"],
            max(facts["paced_ratio"], facts["loop_ratio"]),
            row.is_base,
            row is plan,
            "paced" if facts["paced_ratio"] >= facts["loop_ratio"] else "loop",
            rounds=len(standings.outcome.laps[ran]),
            same_as=facts["same_as"],
            init_s=row.init_s,
            peak_bytes=row.peak_bytes,
        )
