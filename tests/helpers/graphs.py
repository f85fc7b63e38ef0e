"""Small random graphs, cost tables and systems for hypothesis, and larger deterministic ones."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from coexec.costs.table import CostTable
from coexec.graph.graph import Graph, Operator, Piece, Task, Tensor
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region
from coexec.hardware.hardware import Device, Link, Place, System
from coexec.plan.plan import Plan, Provenance
from coexec.plan.schedule import Schedule, Segment, Transfer
from coexec.planners import PLANNERS

ITEM_BYTES = 4
Busy = Literal["source", "target", "none"]
BUSY: tuple[Busy, ...] = ("source", "target", "none")
LATENCIES = (0.0, 1.0, 3.0)
BANDWIDTHS = (math.inf, 4.0, 2.0)


class Case(NamedTuple):
    """The input of a planner."""

    graph: Graph
    cost: CostTable
    system: System


_FEW: Mapping[str, Mapping[str, int]] = {"anneal": {"steps": 1000}, "cpsat": {"workers": 1}}
"""Options for planners whose defaults take seconds; for small graphs these are enough."""


def quickly(planner: str, case: Case, **options: Any) -> Plan:
    """The plan of a planner for a small case, within a short time."""
    return PLANNERS[planner](*case, **{**_FEW.get(planner, {}), **options})


class Placement(NamedTuple):
    """Devices and order of tasks, as indices."""

    assignment: tuple[int, ...]
    """The device of each task."""
    sequence: tuple[int, ...]


def make_graph(reads: Mapping[str, Sequence[str]], items: Mapping[str, int] | None = None) -> Graph:
    """A graph from the tensors that each task reads, with tasks in topological order.

    Task "a" makes tensor "a" and, for each reader of "a>b", a tensor of that name. Tasks without
    reads read the model's input "x".

    Args:
        items: sizes of tensors by name, by default 1.
    """
    items = items or {}
    all_reads = [name for names in reads.values() for name in names]
    outputs = {
        task: (task, *(n for n in dict.fromkeys(all_reads) if n.startswith(f"{task}>")))
        for task in reads
    }
    names = ["x", *(name for made in outputs.values() for name in made)]
    tensors = {name: Tensor(name, (items.get(name, 1),), "float32") for name in names}
    tasks = tuple(
        _task(task, tuple(dict.fromkeys(inputs)) or ("x",), outputs[task])
        for task, inputs in reads.items()
    )
    ends = tuple(made[0] for made in outputs.values() if not set(made) & set(all_reads))
    return Graph("test", tensors, tasks, ("x",), ends)


def _task(name: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Task:
    op = Operator("Sum", inputs, outputs, {}, {})
    return Task(name, (op,), inputs, (), outputs, f"Sum {name}", 1)


def at(device: str) -> Place:
    """A device with its engine, which is always "null" here."""
    return Place(device, "null")


def table(graph: Graph, rows: Mapping[str, Sequence[float]], **launches_s: float) -> CostTable:
    """A cost table. ``rows`` has, by device, the seconds of each task in topological order."""
    names = [task.name for task in graph.tasks]
    tasks_s = {at(device): dict(zip(names, row, strict=True)) for device, row in rows.items()}
    return CostTable(tasks_s, {at(device): seconds for device, seconds in launches_s.items()})


def make_system(
    names: str,
    latency_s: float = 0.0,
    items_per_s: float = math.inf,
    busy: Busy = "target",
) -> System:
    """A system of devices with names of one letter, and with equal links between all pairs."""
    pairs = permutations(names, 2)
    links = tuple(Link(at(a), at(b), latency_s, items_per_s * ITEM_BYTES, busy) for a, b in pairs)
    return System(tuple(Device(name, "null") for name in names), links)


def make_plan(graph: Graph, **order: str) -> Plan:
    """The plan that runs tasks in this order, by device; names of tasks have one letter."""
    pieces = {d: tuple(graph.whole_piece(graph.task[t]) for t in ts) for d, ts in order.items()}
    return hand_made(graph, pieces)


def halves(graph: Graph, task: Task, axis: int, at: int) -> list[Region]:
    whole = graph.output_of(task).whole
    return [whole.with_axis(axis, 0, at), whole.with_axis(axis, at, whole.stop[axis])]


def halves_by_rows(graph: Graph, names: Sequence[str]) -> dict[str, list[Piece]]:
    """Pieces by device: feature maps of more than four rows are halved between two devices; the
    first device computes all other tasks."""
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        shape = graph.output_of(task).shape
        if 2 in splittable_axes(graph, task) and shape[2] > 4:
            for name, half in zip(names, halves(graph, task, 2, shape[2] // 2), strict=True):
                order[name].append(Piece(task.name, half))
        else:
            order[names[0]].append(graph.whole_piece(task))
    return order


def hand_made(
    graph: Graph,
    order: Mapping[str, Sequence[Piece]],
    engine: str = "null",
    fused: frozenset[Piece] = frozenset(),
) -> Plan:
    """A plan in which every device has the same engine."""
    places = {Place(device, engine): tuple(pieces) for device, pieces in order.items()}
    return Plan.of_places(graph.fingerprint, places, Provenance("by hand"), fused)


def device_of(plan: Plan) -> dict[str, str]:
    """The device of each task of an unsplit plan."""
    return {piece.task: device for piece, device in plan.device_of.items()}


def predicted_s(plan: Plan) -> float:
    """The latency that the planner predicts."""
    assert plan.provenance.predicted_s is not None
    return plan.provenance.predicted_s


@st.composite
def graphs(draw: st.DrawFn, min_tasks: int = 1, max_tasks: int = 6, several: bool = True) -> Graph:
    """Graphs of tasks a, b, ...; each task reads up to three earlier ones. With ``several``, a task
    may make a separate tensor for a reader."""
    names = "abcdefghij"[: draw(st.integers(min_tasks, max_tasks))]
    reads: dict[str, list[str]] = {}
    for i, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:i]), max_size=3, unique=True)) if i else []
        separate = st.booleans() if several else st.just(False)
        reads[name] = [f"{p}>{name}" if draw(separate) else p for p in before]
    read_names = {tensor for tensors in reads.values() for tensor in tensors}
    return make_graph(reads, {name: draw(st.integers(1, 4)) for name in sorted(read_names)})


@st.composite
def systems(draw: st.DrawFn, devices: str, busy: Busy | None = None) -> System:
    """Systems of at least two of ``devices``, with a different link for each pair."""
    names = devices[: draw(st.integers(2, len(devices)))]
    links = []
    for a, b in permutations(names, 2):
        latency_s, bytes_per_s = draw(st.sampled_from(LATENCIES)), draw(st.sampled_from(BANDWIDTHS))
        kind = draw(st.sampled_from(BUSY if busy is None else (busy,)))
        links.append(Link(at(a), at(b), latency_s, bytes_per_s, kind))
    return System(tuple(Device(name, "null") for name in names), tuple(links))


@st.composite
def costs(
    draw: st.DrawFn, graph: Graph, system: System, launch: bool = True, alone: bool = True
) -> CostTable:
    """Costs from a few values, so that ties are likely. Each task runs on some device; with
    ``alone``, the first device runs all tasks."""
    seconds = st.sampled_from((0.25, 1.0, 2.0, 3.0, 5.0, 8.0))  # some shorter than a launch
    rows: dict[str, list[float]] = {device: [] for device in system.names}
    for _ in graph.tasks:
        row = [draw(st.one_of(seconds, st.just(math.inf))) for _ in system.names]
        if min(row) == math.inf or alone:
            row[0] = draw(seconds)
        for device, s in zip(system.names, row, strict=True):
            rows[device].append(s)
    launches_s = {d: draw(st.sampled_from((0.0, 0.5, 1.0))) for d in system.names if launch}
    return table(graph, rows, **launches_s)


@st.composite
def cases(
    draw: st.DrawFn,
    max_tasks: int = 6,
    devices: str = "ABC",
    busy: Busy | None = None,
    launch: bool = True,
    alone: bool = True,
    several: bool = True,
) -> Case:
    """A graph with costs on a system of two or more of ``devices``."""
    graph = draw(graphs(max_tasks=max_tasks, several=several))
    system = draw(systems(devices, busy))
    return Case(graph, draw(costs(graph, system, launch, alone)), system)


@st.composite
def placements(draw: st.DrawFn, case: Case) -> Placement:
    """Placements with a random device for each task, out of those that run it, and in a random
    topological order."""
    graph, cost, system = case
    assignment, sequence = [], []
    for task in graph.tasks:
        able = [d for d in system.names if cost.tasks_s[at(d)][task.name] < math.inf]
        assignment.append(system.names.index(draw(st.sampled_from(able))))
    left = draw(st.permutations(range(len(graph.tasks))))
    index = {task.name: i for i, task in enumerate(graph.tasks)}
    while left:
        ready = next(
            i
            for i in left
            if all(index[p.name] in sequence for p in graph.predecessors[graph.tasks[i].name])
        )
        sequence.append(ready)
        left.remove(ready)
    return Placement(tuple(assignment), tuple(sequence))


def placed(case: Case, placement: Placement) -> Plan:
    """The plan of a placement."""
    order = {
        device: tuple(
            case.graph.whole_piece(case.graph.tasks[i])
            for i in placement.sequence
            if placement.assignment[i] == number
        )
        for number, device in enumerate(case.system.names)
    }
    return hand_made(case.graph, order)


def task_schedule(case: Case, placement: Placement) -> Schedule:
    """The schedule with one task in each segment; tensors are sent in the order of the graph."""
    graph, names = case.graph, case.system.names
    where = {t.name: names[d] for t, d in zip(graph.tasks, placement.assignment, strict=True)}
    place = {graph.tasks[i].name: at for at, i in enumerate(placement.sequence)}
    segments: list[Segment] = []
    for index, i in enumerate(placement.sequence):
        task, here = graph.tasks[i], where[graph.tasks[i].name]
        after = {place[before.name] for before in graph.predecessors[task.name]}
        after |= set([s.index for s in segments if s.device == here][-1:])
        piece = graph.whole_piece(task)
        segments.append(Segment(index, *at(here), (piece,), (), (), tuple(sorted(after))))
    moves = {
        (name, where[task.name]): None
        for task in graph.tasks
        for name in task.inputs
        if name in graph.producer and where[graph.producer[name].name] != where[task.name]
    }
    transfers = [
        Transfer(
            name,
            graph.tensors[name].whole,
            graph.tensors[name].size_bytes,
            source=place[graph.producer[name].name],
            target=min(place[t.name] for t in graph.readers[name] if where[t.name] == device),
        )
        for name, device in moves
    ]
    return Schedule(graph, tuple(segments), tuple(transfers))


def layered(tasks: int, width: int, devices: str = "AB", seed: int = 0) -> Case:
    """A graph similar to a network, with costs of milliseconds: layers of ``width`` tasks, each of
    which reads one to three tasks of the previous layer. Long and short tasks are mixed, and all
    devices are about equally fast."""
    rng = random.Random(seed)
    reads: dict[str, list[str]] = {}
    for i in range(tasks):
        layer = i // width
        before = [f"t{j}" for j in range(max(0, (layer - 1) * width), layer * width)]
        reads[f"t{i}"] = rng.sample(before, min(len(before), rng.randint(1, 3)))
    graph = make_graph(reads, {name: rng.randint(1000, 100_000) for name in reads})
    base_s = [rng.choice((0.02e-3, 0.5e-3, 1e-3, 4e-3)) for _ in range(tasks)]
    rows = {device: [s * rng.uniform(0.7, 1.4) for s in base_s] for device in devices}
    launches_s = dict.fromkeys(devices, 0.01e-3)
    return Case(graph, table(graph, rows, **launches_s), make_system(devices, 0.05e-3, 1e9))
