"""Derive the schedule of a plan: dependencies between pieces, runs of pieces, transfers."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece
from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.hardware.hardware import Place
from coexec.plan.plan import Plan, Provenance
from coexec.plan.schedule import Schedule, Segment, Supply, TaskRegion, Transfer, as_made


def derive(plan: Plan, graph: Graph, tensor_caching: bool = True) -> Schedule:
    """Segments and transfers of a verified plan.

    Without ``tensor_caching``, a tensor moves again for each segment that reads it elsewhere.

    Raises:
        PlanError: the orders on the devices have a deadlock.
    """
    wiring = _wire(plan, graph)
    runs = _cut(plan, wiring, _topological(plan, wiring))
    segments = tuple(_segments(plan, graph, wiring, runs))
    supplies = _supplies(segments, graph, wiring)
    transfers = tuple(_transfers(segments, supplies, graph, tensor_caching))
    return Schedule(graph, segments, transfers, supplies)


def stepwise(graph: Graph, place_of: Mapping[str, Place]) -> Schedule:
    """A schedule in which every task is a segment, one after the other, to measure tasks in
    place."""
    order: dict[str, list[Piece]] = {}
    engine_of: dict[Piece, str] = {}
    for task in graph.tasks:
        piece, place = graph.whole_piece(task), place_of[task.name]
        order.setdefault(place.device, []).append(piece)
        engine_of[piece] = place.engine
    by_device = {device: tuple(pieces) for device, pieces in order.items()}
    return in_steps(Plan(graph.fingerprint, by_device, engine_of, Provenance("")), graph)


def in_steps(plan: Plan, graph: Graph) -> Schedule:
    """A schedule in which every piece of a plan is a segment, one after the other in the order of
    the tasks, to measure parts of tasks in place."""
    wiring = _wire(plan, graph)
    pieces_of: dict[str, list[Piece]] = {}
    for piece in plan.device_of:
        pieces_of.setdefault(piece.task, []).append(piece)
    runs = [[piece] for task in graph.tasks for piece in pieces_of[task.name]]
    segments = tuple(
        replace(segment, after=(segment.index - 1,) if segment.index else ())
        for segment in _segments(plan, graph, wiring, runs)
    )
    return Schedule(graph, segments, (), _supplies(segments, graph, wiring))


@dataclass(frozen=True, slots=True)
class _Edge:
    """``target`` reads ``part``, which ``source`` makes (None: it is an input of the model)."""

    source: Piece | None
    target: Piece
    part: TaskRegion


@dataclass(frozen=True, slots=True)
class _Wiring:
    incoming: Mapping[Piece, list[_Edge]] = field(default_factory=dict)
    outgoing: Mapping[Piece, list[_Edge]] = field(default_factory=dict)

    def sources(self, piece: Piece) -> list[Piece]:
        return list({e.source: None for e in self.incoming[piece] if e.source is not None})

    def targets(self, piece: Piece) -> list[Piece]:
        return list({e.target: None for e in self.outgoing[piece]})


def _wire(plan: Plan, graph: Graph) -> _Wiring:
    """Dependencies between pieces: overlaps of the region that one piece computes with the region
    that another one needs."""
    pieces_of: dict[str, list[Piece]] = {}
    for piece in plan.device_of:
        pieces_of.setdefault(piece.task, []).append(piece)
    wiring = _Wiring({p: [] for p in plan.device_of}, {p: [] for p in plan.device_of})
    for piece in plan.device_of:
        for name, region in needed_inputs(graph, graph.task[piece.task], piece.region).items():
            if not region.size and graph.tensors[name].whole.size:
                continue
            producer = graph.producer.get(name)
            if producer is None:
                wiring.incoming[piece].append(_Edge(None, piece, (name, region)))
                continue
            sources = pieces_of[producer.name]
            if name == producer.outputs[0]:
                source_parts = _sources(piece, region, sources, plan)
            else:  # only the main output is split; side outputs come whole from an unsplit piece
                source_parts = [(source, region) for source in sources]
            for source, part in source_parts:
                edge = _Edge(source, piece, (name, part))
                wiring.incoming[piece].append(edge)
                wiring.outgoing[source].append(edge)
    return wiring


def _sources(
    reader: Piece, region: Region, pieces: Sequence[Piece], plan: Plan
) -> list[tuple[Piece, Region]]:
    """Pieces that ``reader`` reads, each with a box of ``region``. Where pieces overlap, those on
    the reader's device come first."""
    device = plan.device_of[reader]
    if not region.size:
        return [(piece, region) for piece in pieces]
    if len(pieces) == 1 and pieces[0].region == region:  # the usual case, decided fast
        return [(pieces[0], region)]
    sources: list[tuple[Piece, Region]] = []
    uncovered: tuple[Region, ...] = (region,)
    for piece in sorted(pieces, key=lambda piece: plan.device_of[piece] != device):
        commons = [box.overlap(piece.region) for box in uncovered]
        sources += [(piece, common) for common in commons if common.size]
        uncovered = tuple(part for box in uncovered for part in missing(box, [piece.region]))
    return sources


def _launched(plan: Plan) -> list[tuple[Piece, ...]]:
    """Groups of pieces that the plan fuses, in each device's order."""
    groups: list[list[Piece]] = []
    for order in plan.order.values():
        for position, piece in enumerate(order):
            if position and piece in plan.fused:
                groups[-1].append(piece)
            else:
                groups.append([piece])
    return [tuple(group) for group in groups]


def _topological(plan: Plan, wiring: _Wiring) -> list[tuple[Piece, ...]]:
    """All groups of fused pieces, in an order that keeps dependencies and device orders."""
    groups = _launched(plan)
    group_of = {piece: i for i, group in enumerate(groups) for piece in group}
    place = {piece: at for group in groups for at, piece in enumerate(group)}
    before: list[set[int]] = [set() for _ in groups]
    for piece, group in group_of.items():
        for source in wiring.sources(piece):
            if group_of[source] != group or place[source] >= place[piece]:
                before[group].add(group_of[source])
    for order in plan.order.values():
        for one, two in pairwise(order):
            if group_of[one] != group_of[two]:
                before[group_of[two]].add(group_of[one])
    following: list[list[int]] = [[] for _ in groups]
    for i, earlier in enumerate(before):
        for other in earlier:
            following[other].append(i)
    waiting = [len(earlier) for earlier in before]
    queue = deque(i for i, missing in enumerate(waiting) if missing == 0)
    done: list[int] = []
    while queue:
        done.append(queue.popleft())
        for follower in following[done[-1]]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                queue.append(follower)
    if len(done) < len(groups):
        stuck = [piece for i, group in enumerate(groups) if waiting[i] for piece in group]
        raise PlanError(
            f"the plan has a deadlock: {len(stuck)} of {len(group_of)} pieces can never start, "
            f"{stuck[0]} on {plan.device_of[stuck[0]]} among them, because some device is to run a "
            f"reader before what it reads, or has fused pieces with one elsewhere between them; "
            f"make a new plan"
        )
    return [groups[i] for i in done]


def _cut(plan: Plan, wiring: _Wiring, groups: Sequence[tuple[Piece, ...]]) -> list[list[Piece]]:
    """Cut each device's order into runs, listed in an order in which they can run one by one.

    A run ends after a group with a piece whose results another device reads. It also ends before a
    group for another engine, and before a group that reads results of another device, unless these
    were certainly complete when the run started.
    """
    runs: list[list[Piece]] = []
    run_of: dict[Piece, int] = {}
    ended: list[int] = []  # per run, the runs that ended before its start, as bits
    current: dict[str, int] = {}
    closed: set[int] = set()
    for group in groups:
        device, engine = plan.place_of[group[0]]
        run = current.get(device)
        sources = {s: None for piece in group for s in wiring.sources(piece)}
        foreign = {run_of[s] for s in sources if plan.device_of[s] != device}
        if (
            run is None
            or run in closed
            or plan.engine_of[runs[run][-1]] != engine
            or any(not ended[run] >> f & 1 for f in foreign)
        ):
            ended.append(_union(ended, foreign if run is None else foreign | {run}))
            runs.append([])
            run = current[device] = len(runs) - 1
        runs[run].extend(group)
        run_of |= dict.fromkeys(group, run)
        if any(plan.device_of[t] != device for piece in group for t in wiring.targets(piece)):
            closed.add(run)
    return runs


def _union(ended: Sequence[int], runs: Iterable[int]) -> int:
    bits = 0
    for run in runs:
        bits |= ended[run] | 1 << run
    return bits


def _segments(
    plan: Plan, graph: Graph, wiring: _Wiring, runs: Sequence[Sequence[Piece]]
) -> Iterable[Segment]:
    run_of = {piece: i for i, run in enumerate(runs) for piece in run}
    last: dict[str, int] = {}
    for index, run in enumerate(runs):
        place = plan.place_of[run[0]]
        inside = set(run)
        reads = {part: None for piece in run for part, _ in _reads(piece, wiring, inside)}
        writes = {part: None for piece in run for part in _writes(piece, graph, wiring, inside)}
        after = {last[place.device]: None} if place.device in last else {}
        after |= {run_of[s]: None for p in run for s in wiring.sources(p) if s not in inside}
        last[place.device] = index
        yield Segment(index, *place, tuple(run), tuple(reads), tuple(writes), tuple(after))


def _supplies(
    segments: Sequence[Segment], graph: Graph, wiring: _Wiring
) -> dict[tuple[int, TaskRegion], tuple[Supply, ...]]:
    segment_of = {piece: s.index for s in segments for piece in s.pieces}
    supplies: dict[tuple[int, TaskRegion], tuple[Supply, ...]] = {}
    for segment in segments:
        inside = set(segment.pieces)
        for piece in segment.pieces:
            for part, edges in _reads(piece, wiring, inside):
                made = [(e.source, e.part) for e in edges if e.source is not None]
                supplies[segment.index, part] = tuple(
                    Supply(segment_of[source], _made(source, name, graph), box)
                    for source, (name, box) in made
                )
    return supplies


def _made(piece: Piece, name: str, graph: Graph) -> Region:
    """Region that a piece computes of an output of its task."""
    main = name == graph.task[piece.task].outputs[0]
    return piece.region if main else graph.tensors[name].whole


def _reads(
    piece: Piece, wiring: _Wiring, inside: set[Piece]
) -> Iterable[tuple[TaskRegion, Sequence[_Edge]]]:
    """Parts that a piece reads from outside its segment, with their edges: one part for a tensor of
    which everything is outside, else one part for each edge."""
    by_tensor: dict[str, list[_Edge]] = {}
    for edge in wiring.incoming[piece]:
        by_tensor.setdefault(edge.part[0], []).append(edge)
    for name, edges in by_tensor.items():
        outside = [e for e in edges if e.source not in inside]
        if len(outside) == len(edges):
            needed = outside[0].part[1]
            for edge in outside[1:]:
                needed = needed.hull(edge.part[1])
            yield (name, needed), outside
        else:
            yield from ((edge.part, [edge]) for edge in outside)


def _writes(
    piece: Piece, graph: Graph, wiring: _Wiring, inside: set[Piece]
) -> Iterable[TaskRegion]:
    task = graph.task[piece.task]
    read = {e.part[0] for e in wiring.outgoing[piece] if e.target not in inside}
    for name in task.outputs:
        if name in read or name in graph.outputs:
            yield name, _made(piece, name, graph)


def _transfers(
    segments: Sequence[Segment],
    supplies: Mapping[tuple[int, TaskRegion], Sequence[Supply]],
    graph: Graph,
    tensor_caching: bool,
) -> Iterable[Transfer]:
    """Transfers of all segments. A region that one segment makes exactly as it is read moves once
    to each place that reads it, or once for each segment without ``tensor_caching``. A region that
    is stitched from several boxes moves for each segment."""
    moved: set[tuple[str, Region, Place]] = set()
    for (index, (name, region)), supplied in supplies.items():
        place = segments[index].place
        as_it_is = as_made(supplied, region)
        for supply in supplied:
            if segments[supply.segment].place == place:
                continue
            if as_it_is and tensor_caching:
                if (name, region, place) in moved:
                    continue
                moved.add((name, region, place))
            size_bytes = supply.box.size * graph.tensors[name].item_bytes
            yield Transfer(name, supply.box, size_bytes, supply.segment, index)
