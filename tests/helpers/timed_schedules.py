"""Random schedules with costs: split tasks, overlapping parts, devices of two engines with memories
of their own, links of all kinds, some with a medium in common."""

from dataclasses import replace
from itertools import permutations, product
from typing import NamedTuple

from hypothesis import strategies as st

from coexec.costs.table import CostTable
from coexec.graph.graph import Graph, Piece
from coexec.graph.receptive import splittable_axes
from coexec.hardware.hardware import MAIN, EngineInfo, Link, Place, System
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.plan.schedule import Schedule
from tests.helpers.graphs import (
    BANDWIDTHS,
    BUSY,
    LATENCIES,
    Case,
    costs,
    graphs,
    make_graph,
    placements,
    systems,
)

SIZE = 8
"""Elements of each tensor."""
MEMORIES = {"null": MAIN, "far": "far"}
"""By engine, its memory."""


class TimedSchedule(NamedTuple):
    """What the simulator gets."""

    schedule: Schedule
    cost: CostTable
    system: System


@st.composite
def timed_schedules(draw: st.DrawFn, max_tasks: int = 7) -> TimedSchedule:
    """Schedules on two or three devices. The pieces lie in a random order that has no deadlock."""
    drawn = draw(graphs(max_tasks=max_tasks))
    reads = {task.name: [n for n in task.inputs if n != "x"] for task in drawn.tasks}
    graph = make_graph(reads, dict.fromkeys(drawn.tensors, SIZE))
    system = draw(engine_systems())
    plan = draw(split_plans(Case(graph, draw(costs(graph, system)), system)))
    verify_plan(plan, graph, system)
    schedule = derive(plan, graph, tensor_caching=draw(st.booleans()))
    # Thirds and sevenths, which binary fractions do not hold; few of them, so that ties are likely.
    seconds = st.sampled_from((1 / 7, 1 / 3, 2 / 3, 1.0))
    tasks_s = {place: {name: draw(seconds) for name in graph.task} for place in system.places}
    launches_s = {place: draw(st.sampled_from((0.0, 0.1))) for place in system.places}
    return TimedSchedule(schedule, CostTable(tasks_s, launches_s), system)


@st.composite
def engine_systems(draw: st.DrawFn) -> System:
    """Systems in which two devices share each processor, with a link between them."""
    system = draw(systems("ABC"))
    engines = [EngineInfo(name, memory=memory) for name, memory in MEMORIES.items()]
    devices = tuple(replace(d, engine=engine) for d in system.devices for engine in engines)
    links = [
        replace(x, source=x.source._replace(engine=a), target=x.target._replace(engine=b))
        for x in system.links
        for a, b in product(MEMORIES, repeat=2)
    ]
    for name in system.names:
        for one, other in permutations(MEMORIES):
            latency_s = draw(st.sampled_from(LATENCIES))
            bytes_per_s = draw(st.sampled_from(BANDWIDTHS))
            busy = draw(st.sampled_from(BUSY))
            ends = Place(name, one), Place(name, other)
            links.append(Link(*ends, latency_s, bytes_per_s, busy))
    media = st.sampled_from(((), ("bus",), ("radio",), ("bus", "radio")))
    shared = (replace(x, media=draw(media)) if x.busy == "none" else x for x in links)
    return System(devices, tuple(shared))


@st.composite
def split_plans(draw: st.DrawFn, case: Case) -> Plan:
    """Plans in which each task is whole or in two parts, which may overlap, at random places."""
    graph, names = case.graph, case.system.names
    placement = draw(placements(case))
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for number in placement.sequence:
        first = names[placement.assignment[number]]
        parts = draw(parts_of(graph, number))
        for device, part in zip((first, draw(st.sampled_from(names))), parts, strict=False):
            order[device].append(part)
    pieces = [piece for row in order.values() for piece in row]
    engine_of = {piece: draw(st.sampled_from(sorted(MEMORIES))) for piece in pieces}
    by_device = {name: tuple(row) for name, row in order.items()}
    return Plan(graph.fingerprint, by_device, engine_of, Provenance("at random"))


@st.composite
def parts_of(draw: st.DrawFn, graph: Graph, number: int) -> list[Piece]:
    """One or two pieces that are the whole of a task."""
    task = graph.tasks[number]
    whole = graph.whole_piece(task)
    if not splittable_axes(graph, task) or draw(st.booleans()):
        return [whole]
    cut = draw(st.integers(1, SIZE - 1))
    end = draw(st.integers(cut, min(cut + 2, SIZE)))
    regions = whole.region.with_axis(0, 0, end), whole.region.with_axis(0, cut, SIZE)
    return [Piece(task.name, region) for region in regions]
