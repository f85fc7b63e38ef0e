"""One model of time: the rules written down once more, and all that drives the clock held to them.

All comparisons are to the last digit, with seconds that binary fractions do not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.hardware.hardware import Busy, Link, Place, System
from coexec.plan.derive import derive
from coexec.plan.schedule import Schedule
from coexec.problem.fusion import Evaluator, Launch, Queues, fuse, queues_of, solution_of
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import Timeline, makespan_s
from coexec.timing.clock import Clock, Move, Places, launched_s, places_of
from coexec.timing.simulate import VirtualClock, simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    Case,
    Placement,
    cases,
    make_graph,
    make_system,
    placements,
    table,
    task_schedule,
)

INF = float("inf")
examples = settings(max_examples=scaled(60), deadline=None, derandomize=True)
shared_devices = st.sampled_from([(0, 1, 2), (0, 0, 1), (0, 1, 1), (0, 1, 0), (0, 0, 0)])
"""By place, its device."""


def uneven(case: Case) -> Case:
    """The same in seconds that binary fractions do not hold."""
    rows = {
        p.device: [0.1 * s for s in tasks_s.values()] for p, tasks_s in case.cost.tasks_s.items()
    }
    launches_s = {place.device: s / 7 for place, s in case.cost.launches_s.items()}
    links = tuple(
        replace(
            link,
            sync_latency_s=link.sync_latency_s / 30,
            bandwidth_bytes_per_s=9.7 * link.bandwidth_bytes_per_s,
        )
        for link in case.system.links
    )
    cost = table(case.graph, rows, **launches_s)
    return Case(case.graph, cost, System(case.system.devices, links))


def on_shared_devices(case: Case, device: Sequence[int]) -> Problem:
    """The problem of a case whose devices are places that share devices."""

    class Shared(Problem):
        @cached_property
        def places(self) -> Places:
            return Places(tuple(device), places_of(self.system).links)

    return Shared(*case)


@dataclass(frozen=True, eq=False)
class Told:
    """The rules as equations, for launches in an order in which they can be given.

    A launch is an index here; a send is a tensor and the launch that receives it first.
    """

    problem: Problem
    launches: Sequence[Launch]
    place: Sequence[int]
    """By launch."""

    def ends_s(self) -> list[float]:
        """By task, when its launch ends."""
        return [self.end_s(self.number[task]) for task in self.problem.tasks]

    def simulated_s(self, schedule: Schedule) -> list[float]:
        """The same from the simulator's clock, if it is told of ``schedule`` in this order."""
        task_number = {task.name: i for i, task in enumerate(self.problem.graph.tasks)}
        at = {task_number[p.task]: s.index for s in schedule.segments for p in s.pieces}
        problem = self.problem
        clock = VirtualClock(schedule, problem.cost, problem.system, places=problem.places)
        end_s = [clock.run(at[launch[0]]) for launch in self.launches]
        return [end_s[self.number[task]] for task in problem.tasks]

    @cached_property
    def number(self) -> dict[int, int]:
        """By task, its launch."""
        return {task: i for i, launch in enumerate(self.launches) for task in launch}

    @cached_property
    def device(self) -> list[int]:
        """By launch."""
        return [self.problem.processors[place] for place in self.place]

    def end_s(self, i: int) -> float:
        problem, place = self.problem, self.place[i]
        needs = {self.number[p] for task in self.launches[i] for p in problem.predecessors[task]}
        waits_s = [
            self.end_s(k) + (self.link(k, i).sync_latency_s if self.place[k] != place else 0.0)
            for k in needs - {i}
        ]
        start_s = max([0.0, *waits_s, *(self.free_s(k) for k in earlier(i, self.device)[-1:])])
        arrivals_s = []
        for tensor, k in self.receives(i):
            if self.link(k, i).busy == "target":
                start_s += self.transfer_s(tensor, k, i)
            else:
                arrivals_s.append(self.copied_s(tensor, k, i) + self.link(k, i).sync_latency_s)
        own_s = [problem.latency_s[task][place] for task in self.launches[i]]
        return max([start_s, *arrivals_s]) + launched_s(own_s, problem.launches_s[place])

    def free_s(self, k: int) -> float:
        """When the device of launch ``k`` has sent all that this made."""
        return self.sent_s(k, len(self.sends(k)))

    def sent_s(self, k: int, count: int) -> float:
        """When it has sent so much of it."""
        own_s = [
            self.transfer_s(t, k, i)
            for t, i in self.sends(k)[:count]
            if self.link(k, i).busy == "source"
        ]
        # One after the other, as the clock adds: from Python 3.12 on, `sum` rounds once for all.
        return [*accumulate(own_s, initial=self.end_s(k))][-1]

    def copied_s(self, tensor: int, k: int, i: int) -> float:
        """When ``tensor`` has left launch ``k`` for ``i``, if the target does not copy it."""
        if self.link(k, i).busy == "source":
            return self.sent_s(k, self.sends(k).index((tensor, i)) + 1)
        queue = [
            (t, a, b)
            for a in (*earlier(k, self.place), k)
            for t, b in self.sends(a)
            if self.place[b] == self.place[i]
        ]
        ahead = queue[: queue.index((tensor, k, i))][-1:]
        start_s = max([self.end_s(k), *(self.copied_s(*one) for one in ahead)])
        return start_s + self.transfer_s(tensor, k, i)

    def receives(self, i: int) -> list[tuple[int, int]]:
        """Tensors that were not there and take time, each with the launch that makes it."""
        reads, before = self.problem.reads, earlier(i, self.place)
        there = {t for k in before for task in self.launches[k] for t in reads[task]}
        read = dict.fromkeys(t for task in self.launches[i] for t in reads[task] if t not in there)
        makers = [(t, self.number[self.problem.maker[t]]) for t in read]
        return [(t, k) for t, k in makers if k != i and self.transfer_s(t, k, i)]

    def sends(self, k: int) -> list[tuple[int, int]]:
        """What launch ``k`` sends, in the order in which it leaves."""
        reads = self.problem.reads

        def turn(send: tuple[int, int]) -> tuple[int, int, int]:
            tensor, i = send
            first = min(
                task
                for task in self.problem.tasks
                if tensor in reads[task] and self.place[self.number[task]] == self.place[i]
            )
            made = self.launches[k].index(self.problem.maker[tensor])
            return made, first, reads[first].index(tensor)

        found = (
            (t, i) for i in range(len(self.launches)) for t, maker in self.receives(i) if maker == k
        )
        return sorted(found, key=turn)

    def link(self, k: int, i: int) -> Link:
        return self.problem.links[self.place[k]][self.place[i]]

    def transfer_s(self, tensor: int, k: int, i: int) -> float:
        """None inside of a place."""
        return self.problem.transfer_s[tensor][self.place[k]][self.place[i]]


def earlier(i: int, same: Sequence[int]) -> list[int]:
    """The launches before ``i`` with the same place, or device."""
    return [k for k in range(i) if same[k] == same[i]]


# Single tasks


@given(data=st.data())
@examples
def test_single_tasks(data: st.DataObject) -> None:
    """Rules, simulator and timeline; links of all kinds, several places a device."""
    case = uneven(data.draw(cases(max_tasks=8, alone=False)))
    device = data.draw(shared_devices)[: len(case.system.devices)]
    problem = on_shared_devices(case, device)
    placement = data.draw(placements(case))
    timeline = Timeline(problem, placement.assignment)
    for task in placement.sequence:
        timeline.copy().run(task, placement.assignment[task])  # leaves no trace
        timeline.run(task, placement.assignment[task])
    launches = [(task,) for task in placement.sequence]
    told = Told(problem, launches, [placement.assignment[task] for task in placement.sequence])
    assert timeline.end_s == told.ends_s() == told.simulated_s(task_schedule(case, placement))


@given(data=st.data())
@examples
def test_the_simulator_gives_the_clock_the_same(data: st.DataObject) -> None:
    """Its own order of segments, and the makespan of all devices."""
    case = uneven(data.draw(cases(max_tasks=8, alone=False)))
    placement = data.draw(placements(case))
    trace = simulate(task_schedule(case, placement), case.cost, case.system)
    # A device that still sends when all has been computed, over a link that keeps it busy, counts.
    assert trace.makespan_s == makespan_s(Problem(*case), *placement)


@pytest.mark.long
@given(data=st.data())
@examples
def test_devices_may_be_asked_in_any_order(data: st.DataObject) -> None:
    case = uneven(data.draw(cases(max_tasks=8, alone=False)))
    problem, placement = Problem(*case), data.draw(placements(case))
    once, again = (Timeline(problem, placement.assignment) for _ in range(2))
    for task in placement.sequence:
        once.run(task, placement.assignment[task])
    left = list(placement.sequence)
    while left:
        first = {placement.assignment[task]: task for task in reversed(left)}
        done = set(problem.tasks) - set(left)
        ready = [t for t in first.values() if done.issuperset(problem.predecessors[t])]
        task = data.draw(st.sampled_from(sorted(ready)))
        again.run(task, placement.assignment[task])
        left.remove(task)
    assert again.end_s == once.end_s and again.free_s == once.free_s


# Fused tasks


@st.composite
def segments(draw: st.DrawFn, problem: Problem, placement: Placement) -> tuple[Solution, Queues]:
    """A plan with some launches fused, and its segments."""
    queues = queues_of(problem, Solution(*placement))
    for device in range(len(queues)):
        for at in reversed(range(len(queues[device]) - 1)):
            tried = fuse(queues, device, at)
            if draw(st.booleans()) and Evaluator(problem).run(tried).total_s < INF:
                queues = tried
    found = solution_of(problem, queues)
    return found, queues_of(problem, found)


@given(data=st.data())
@examples
def test_fused_tasks(data: st.DataObject) -> None:
    """Rules, simulator and what searches evaluate; links of all kinds, several places a device."""
    case = uneven(data.draw(cases(max_tasks=9, alone=False)))
    device = data.draw(shared_devices)[: len(case.system.devices)]
    problem = on_shared_devices(case, device)
    found, queues = data.draw(segments(problem, data.draw(placements(case))))
    run = Evaluator(problem).run(queues)
    told = Told(problem, run.done, [found.assignment[launch[0]] for launch in run.done])
    schedule = derive(written(problem, found), case.graph)
    assert run.end_s == told.ends_s() == told.simulated_s(schedule)


@pytest.mark.long
@given(data=st.data())
@examples
def test_searches_see_the_simulated_makespan(data: st.DataObject) -> None:
    case = uneven(data.draw(cases(max_tasks=9, alone=False)))
    problem = Problem(*case)
    found, queues = data.draw(segments(problem, data.draw(placements(case))))
    trace = simulate(derive(written(problem, found), case.graph), case.cost, case.system)
    assert Evaluator(problem).run(queues).total_s == trace.makespan_s


# By hand


def two_places(busy: Busy, latency_s: float = 0.0) -> Places:
    """Two devices that share a processor, linked both ways."""
    links = [
        [Link(Place(a, "null"), Place(b, "null"), latency_s, busy=busy) for b in "AB"] for a in "AB"
    ]
    return Places((0, 0), tuple(map(tuple, links)))


def test_devices_that_share_a_processor_take_turns() -> None:
    clock = Clock(two_places("target"), nodes=2)
    assert clock.launch((0,), 0, 2.0) == 2.0
    assert clock.launch((1,), 1, 3.0) == 5.0
    assert clock.free_s == [5.0] and clock.place == [0, 1]


@pytest.mark.parametrize("busy, between_s", [("target", 3.0), ("source", 6.0), ("none", 3.0)])
def test_a_change_of_device_on_one_processor(busy: Busy, between_s: float) -> None:
    """The device copies for 3 s, before another launch of 1 s, behind it or beside it."""
    clock, move = Clock(two_places(busy, latency_s=1.0), nodes=3), Move((0, 1), 0, 1, 3.0)
    clock.launch((0,), 0, 2.0)
    clock.send(0, move)
    assert clock.launch((2,), 0, 1.0) == between_s
    assert clock.launch((1,), 1, 3.0, (0,), [move]) == 9.0


def test_nothing_is_launched_before_what_it_needs() -> None:
    clock = Clock(two_places("target"), nodes=2)
    assert clock.launch((1,), 0, 1.0, before=(0,)) == INF
    assert clock.free_s == [0.0] and clock.end_s == [INF, INF]


@pytest.mark.parametrize("busy", ["source", "none"])
def test_results_leave_in_the_order_of_their_readers_in_the_graph(busy: Busy) -> None:
    # a is sent to C (2 s), then to B (2 s), although B comes first among the devices.
    graph = make_graph({"a": [], "c": ["a"], "b": ["a"]}, {"a": 2})
    rows = {"A": (1.0, INF, INF), "B": (INF, INF, 1.0), "C": (INF, 1.0, INF)}
    case = Case(graph, table(graph, rows), make_system("ABC", items_per_s=1, busy=busy))
    timeline = Timeline(Problem(*case), [0, 2, 1])
    # In the background, links do not wait for each other.
    ends_s = [1.0, 4.0, 6.0 if busy == "source" else 4.0]
    assert [timeline.run(task, place) for task, place in enumerate([0, 2, 1])] == ends_s


@pytest.mark.parametrize("busy", ["source", "none"])
def test_what_takes_no_time_does_not_stand_in_line(busy: Busy) -> None:
    graph = make_graph({"a": [], "b": [], "c": ["a"], "d": ["b"]}, {"a": 8, "b": 0})
    rows = {"A": (2.0, 1.0, INF, INF), "B": (INF, INF, 1.0, 1.0)}
    case = Case(graph, table(graph, rows), make_system("AB", items_per_s=2, busy=busy))
    timeline = Timeline(Problem(*case), [0, 0, 1, 1])
    # a is copied from 2 to 6; b is made at 3, or at 7 if A sends a first, and read at once.
    made_s = 7.0 if busy == "source" else 3.0
    ends_s = [timeline.run(task, place) for task, place in ((0, 0), (1, 0), (3, 1))]
    assert ends_s == [2.0, made_s, made_s + 1.0]


def test_a_launch_of_one_piece_takes_what_was_measured() -> None:
    assert (0.3 - 0.03) + 0.03 != 0.3 == launched_s([0.3], 0.03)
    assert launched_s([3.0, 0.5, 2.0], 1.0) == 2.0 + 0.0 + 1.0 + 1.0
