"""One model of time: the rules written down once more, and all that drives the clock held to them.

All comparisons are to the last digit, with seconds that binary fractions do not hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import pytest
from graphs import (
    Case,
    Placement,
    cases,
    make_graph,
    make_system,
    placements,
    table,
    task_schedule,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.plans.derive import derive
from coexec.plans.schedule import Schedule
from coexec.problem.fusion import Evaluator, Launch, Queues, found_in, fuse, queues_of
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import Timeline, makespan_s
from coexec.system.hardware import Busy, Link, System
from coexec.timing.clock import Clock, Move, Places, launched_s, places_of
from coexec.timing.simulate import VirtualClock, simulate

INF = float("inf")
examples = settings(max_examples=200, deadline=None, derandomize=True)
shared_devices = st.sampled_from([(0, 1, 2), (0, 0, 1), (0, 1, 1), (0, 1, 0), (0, 0, 0)])
"""By place, its device."""


def uneven(case: Case) -> Case:
    """The same in seconds that binary fractions do not hold."""
    rows = {
        device: [0.1 * s for s in tasks_s.values()] for device, tasks_s in case.cost.tasks_s.items()
    }
    launches_s = {device: s / 7 for device, s in case.cost.launches_s.items()}
    links = tuple(
        replace(
            link,
            latency_s=link.latency_s / 30,
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


@dataclass(frozen=True)
class Told:
    """Launches in an order in which they can be given, with the place of each."""

    problem: Problem
    launches: Sequence[Launch]
    place: Sequence[int]

    def ends_s(self) -> list[float]:
        """By task, when its launch ends, by the rules as equations: nothing happens in order."""
        problem, launches = self.problem, self.launches
        number = {task: i for i, launch in enumerate(launches) for task in launch}
        device = [problem.places.device[place] for place in self.place]
        count = len(launches)

        def earlier(i: int, same: Sequence[int]) -> list[int]:
            return [k for k in range(i) if same[k] == same[i]]

        def receives(i: int) -> list[tuple[int, int]]:
            """Tensors with the launch that makes them, if they were not there before."""
            there = {t for k in earlier(i, self.place) for task in launches[k]
                     for t in problem.reads[task]}  # fmt: skip
            read = dict.fromkeys(t for task in launches[i] for t in problem.reads[task])
            makers = [(t, number[problem.maker[t]]) for t in read if t not in there]
            return [(t, k) for t, k in makers if self.place[k] != self.place[i]]

        def busy(k: int, i: int) -> Busy:
            return problem.links[self.place[k]][self.place[i]].busy

        def transfer_s(tensor: int, k: int, i: int) -> float:
            return problem.transfer_s[tensor][self.place[k]][self.place[i]]

        def sends(k: int) -> list[tuple[int, int]]:
            """Tensors with the launch that receives them, in the order in which they leave."""
            found = [(t, i) for i in range(count) for t, maker in receives(i)
                     if maker == k and transfer_s(t, k, i)]  # fmt: skip

            def turn(send: tuple[int, int]) -> tuple[int, int, int]:
                tensor, i = send
                there = [task for j in range(count) if self.place[j] == self.place[i]
                         for task in launches[j] if tensor in problem.reads[task]]  # fmt: skip
                made = launches[k].index(problem.maker[tensor])
                return made, min(there), problem.reads[min(there)].index(tensor)

            return sorted(found, key=turn)

        @cache
        def sent_s(k: int, number_of_sends: int) -> float:
            """When the device of launch ``k`` has ended it and sent so much."""
            if not number_of_sends:
                return end_s(k)
            tensor, i = sends(k)[number_of_sends - 1]
            before_s = sent_s(k, number_of_sends - 1)
            return before_s + (transfer_s(tensor, k, i) if busy(k, i) == "source" else 0.0)

        @cache
        def copied_s(tensor: int, k: int, i: int) -> float:
            """When a tensor has left launch ``k`` for launch ``i``, not copied by the target."""
            at = sends(k).index((tensor, i))
            if busy(k, i) == "source":
                return sent_s(k, at + 1)
            queue = [(t, a, b) for a in (*earlier(k, self.place), k) for t, b in sends(a)
                     if self.place[b] == self.place[i]]  # fmt: skip
            ahead = queue[: queue.index((tensor, k, i))]
            start_s = max(end_s(k), copied_s(*ahead[-1]) if ahead else 0.0)
            return start_s + transfer_s(tensor, k, i)

        @cache
        def end_s(i: int) -> float:
            place = self.place[i]
            needs = {number[p] for task in launches[i] for p in problem.predecessors[task]} - {i}
            before = earlier(i, device)
            start_s = max(
                sent_s(before[-1], len(sends(before[-1]))) if before else 0.0,
                *(end_s(k) for k in needs if self.place[k] == place), 0.0,
                *(end_s(k) + problem.links[self.place[k]][place].latency_s
                  for k in needs if self.place[k] != place),
            )  # fmt: skip
            arrivals_s = [0.0]
            for tensor, k in receives(i):
                if not transfer_s(tensor, k, i):
                    continue
                if busy(k, i) == "target":
                    start_s += transfer_s(tensor, k, i)
                else:
                    latency_s = problem.links[self.place[k]][place].latency_s
                    arrivals_s.append(copied_s(tensor, k, i) + latency_s)
            own_s = [problem.latency_s[task][place] for task in launches[i]]
            return max(start_s, *arrivals_s) + launched_s(own_s, problem.launches_s[place])

        return [end_s(number[task]) for task in problem.tasks]

    def simulated_s(self, schedule: Schedule) -> list[float]:
        """The same from the simulator's clock, told of the segments of ``schedule`` like this."""
        problem = self.problem
        task_number = {task.name: i for i, task in enumerate(problem.graph.tasks)}
        at = {task_number[p.task]: s.index for s in schedule.segments for p in s.pieces}
        clock = VirtualClock(schedule, problem.cost, problem.system, places=problem.places)
        end_s = {launch: clock.run(at[launch[0]]) for launch in self.launches}
        return [end_s[launch] for task in problem.tasks for launch in end_s if task in launch]


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
    found = found_in(problem, queues)
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
    """Two places of one device, linked both ways."""
    links = [[Link(a, b, latency_s, busy=busy) for b in "AB"] for a in "AB"]
    return Places((0, 0), tuple(map(tuple, links)))


def test_places_of_a_device_take_turns() -> None:
    clock = Clock(two_places("target"), nodes=2)
    assert clock.launch((0,), 0, 2.0) == 2.0
    assert clock.launch((1,), 1, 3.0) == 5.0
    assert clock.free_s == [5.0] and clock.place == [0, 1]


@pytest.mark.parametrize("busy, between_s", [("target", 3.0), ("source", 6.0), ("none", 3.0)])
def test_a_change_of_place_inside_a_device(busy: Busy, between_s: float) -> None:
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
