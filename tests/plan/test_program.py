"""Device programs: by hand on small plans, by rule on random ones; and programs that are wrong."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.plan.derive import derive, stepwise
from coexec.plan.plan import Plan, Provenance
from coexec.plan.program import (
    Copy,
    DeviceProgram,
    Run,
    Signal,
    Step,
    Wait,
    device_programs,
    text,
    verify_programs,
)
from coexec.plan.schedule import Schedule
from tests.helpers.examples import scaled
from tests.helpers.graphs import at, hand_made, layered, make_graph, make_plan, quickly
from tests.helpers.timed_schedules import TimedSchedule, timed_schedules

examples = settings(max_examples=scaled(25), deadline=None, derandomize=True)

TRIANGLE = make_graph({"a": [], "b": ["a"], "c": ["a", "b"]})
CROSS = make_graph({"a": [], "b": [], "c": ["b"], "d": ["a"]})
"""On A, c after a; on B, d after b: each device waits once for the other."""


def shown(schedule: Schedule) -> list[str]:
    """The verified programs of a schedule as lines."""
    programs = device_programs(schedule.segments, schedule.transfers)
    verify_programs(programs, schedule)
    return text(programs, schedule).splitlines()


def steps_of(schedule: Schedule) -> dict[str, list[Step]]:
    """The steps of each device, to be changed."""
    programs = device_programs(schedule.segments, schedule.transfers)
    return {program.device: list(program.steps) for program in programs}


def programs_of(steps: dict[str, list[Step]]) -> list[DeviceProgram]:
    return [DeviceProgram(device, tuple(row)) for device, row in steps.items()]


# By hand


def test_two_devices() -> None:
    assert shown(derive(make_plan(TRIANGLE, A="ac", B="b"), TRIANGLE)) == [
        "A",
        "  run segment 0 (a) with null",
        "  signal segment 0",
        "  wait for segment 1 (b) of B",
        "  copy b from B/null, 4.00 B",
        "  run segment 2 (c) with null",
        "B",
        "  wait for segment 0 (a) of A",
        "  copy a from A/null, 4.00 B",
        "  run segment 1 (b) with null",
        "  signal segment 1",
    ]


def test_a_wait_that_another_wait_implies_is_left_out() -> None:
    """c reads a and b, and b on B has waited for a."""
    schedule = derive(make_plan(TRIANGLE, A="a", B="b", C="c"), TRIANGLE)
    assert steps_of(schedule)["C"] == [Wait(1), Copy(1), Copy(2), Run(2)]
    assert [(t.tensor, t.source, t.target) for t in schedule.transfers[1:]] == [
        ("a", 0, 2),
        ("b", 1, 2),
    ]


def test_a_wait_that_an_earlier_step_implies_is_left_out() -> None:
    """On B, d reads a and c on A; b has waited for a."""
    graph = make_graph({"a": [], "b": ["a"], "c": ["a"], "d": ["a", "b", "c"], "e": ["b"]})
    schedule = derive(make_plan(graph, A="ace", B="bd"), graph)
    segment = {s.name: s.index for s in schedule.segments}
    waits = [step for step in steps_of(schedule)["B"] if isinstance(step, Wait)]
    assert waits == [Wait(segment["a"]), Wait(segment["c"])]


def test_a_split_task_is_copied_in_part() -> None:
    graph = make_graph({"a": [], "b": ["a"]}, {"x": 8, "a": 8})
    upper, lower = Piece("a", Region((0,), (6,))), Piece("a", Region((6,), (8,)))
    order = {"A": (upper, graph.whole_piece(graph.task["b"])), "B": (lower,)}
    assert shown(derive(hand_made(graph, order), graph)) == [
        "A",
        "  run segment 0 (a) with null",
        "  wait for segment 1 (a) of B",
        "  copy a[6:8] from B/null, 8.00 B",
        "  run segment 2 (b) with null",
        "B",
        "  run segment 1 (a) with null",
        "  signal segment 1",
    ]


def test_engines_of_one_device_copy_without_events() -> None:
    pieces = [TRIANGLE.whole_piece(task) for task in TRIANGLE.tasks]
    engine_of = dict(zip(pieces, ("null", "far", "null"), strict=True))
    plan = Plan(TRIANGLE.fingerprint, {"A": tuple(pieces)}, engine_of, Provenance("by hand"))
    assert shown(derive(plan, TRIANGLE)) == [
        "A",
        "  run segment 0 (a) with null",
        "  copy a from A/null, 4.00 B",
        "  run segment 1 (b) with far",
        "  copy b from A/far, 4.00 B",
        "  run segment 2 (c) with null",
    ]


def test_a_segment_that_nobody_reads_runs_without_a_signal() -> None:
    """A computes all of a and reads its own part, so the part of B is read by nobody."""
    graph = make_graph({"a": [], "b": ["a"]}, {"x": 8, "a": 8})
    order = {
        "A": [graph.whole_piece(task) for task in graph.tasks],
        "B": [Piece("a", Region((6,), (8,)))],
    }
    schedule = derive(hand_made(graph, order), graph)
    (alone,) = schedule.by_device["B"]
    assert schedule.segments[alone].writes == ()
    assert steps_of(schedule)["B"] == [Run(alone)]
    verify_programs(device_programs(schedule.segments, schedule.transfers), schedule)


def test_segments_one_after_the_other_pass_on_one_event_each() -> None:
    """Tasks that are measured in place have no transfers, and an order over all devices."""
    places = dict(zip(TRIANGLE.task, (at("A"), at("B"), Place("A", "far")), strict=True))
    assert shown(stepwise(TRIANGLE, places)) == [
        "A",
        "  run segment 0 (a) with null",
        "  signal segment 0",
        "  wait for segment 1 (b) of B",
        "  run segment 2 (c) with far",
        "B",
        "  wait for segment 0 (a) of A",
        "  run segment 1 (b) with null",
        "  signal segment 1",
    ]


def test_one_device_has_no_events() -> None:
    schedule = derive(make_plan(TRIANGLE, A="abc"), TRIANGLE)
    assert steps_of(schedule) == {"A": [Run(0)]}


# By rule


def carry_out(
    programs: Sequence[DeviceProgram], schedule: Schedule, rng: random.Random, haste: float
) -> None:
    """Carry out one interleaving, step by step: each segment and copy finds what it reads.

    Args:
        haste: probability that the device of the last step makes the next one, too.
    """
    segments = schedule.segments
    left = {program.device: deque(program.steps) for program in programs}
    signalled: set[int] = set()
    ended: set[int] = set()
    there: set[tuple[str, Region, int, Place]] = set()
    latest = ""
    while any(left.values()):
        able = [
            device
            for device, steps in left.items()
            if steps and not (isinstance(steps[0], Wait) and steps[0].segment not in signalled)
        ]
        assert able, "a deadlock"
        if latest not in able or rng.random() >= haste:
            latest = rng.choice(able)
        match left[latest].popleft():
            case Copy(number):
                t = schedule.transfers[number]
                assert t.source in ended and latest == segments[t.target].device
                there.add((t.tensor, t.region, t.source, segments[t.target].place))
            case Run(index):
                reader = segments[index]
                assert index not in ended and latest == reader.device
                assert ended.issuperset(reader.after)
                for part in reader.reads:
                    for supply in schedule.supplies[index, part]:
                        home = segments[supply.segment].place == reader.place
                        key = (part[0], supply.box, supply.segment, reader.place)
                        assert supply.segment in ended if home else key in there
                ended.add(index)
            case Signal(index):
                assert index in ended
                signalled.add(index)
    assert len(ended) == len(segments)


@given(timed=timed_schedules(), rng=st.randoms(use_true_random=False))
@examples
def test_every_interleaving_reads_what_was_written(
    timed: TimedSchedule, rng: random.Random
) -> None:
    programs = device_programs(timed.schedule.segments, timed.schedule.transfers)
    verify_programs(programs, timed.schedule)
    for haste in (0.0, 0.9, 1.0):
        carry_out(programs, timed.schedule, rng, haste)


@given(timed=timed_schedules())
@examples
def test_no_wait_and_no_signal_can_be_left_out(timed: TimedSchedule) -> None:
    schedule = timed.schedule
    steps = steps_of(schedule)
    for device, row in steps.items():
        for position, step in enumerate(row):
            less = programs_of(steps | {device: row[:position] + row[position + 1 :]})
            if isinstance(step, Wait):
                message = f"{device} (runs|copies) .*, and no wait makes sure that segment "
                with pytest.raises(PlanError, match=message):
                    verify_programs(less, schedule)
            elif isinstance(step, Signal):
                message = f"deadlock: .* for the event of segment {step.segment}, which no device"
                with pytest.raises(PlanError, match=message):
                    verify_programs(less, schedule)


@given(timed=timed_schedules())
@examples
def test_more_waits_than_necessary_do_no_harm(timed: TimedSchedule) -> None:
    schedule = timed.schedule
    steps: dict[str, list[Step]] = {device: [] for device in schedule.by_device}
    for segment in schedule.segments:
        foreign = [i for i in segment.after if schedule.segments[i].device != segment.device]
        copies = map(Copy, schedule.incoming[segment.index])
        own = segment.index
        steps[segment.device] += [*map(Wait, foreign), *copies, Run(own), Signal(own)]
    verify_programs(programs_of(steps), schedule)
    count = sum(isinstance(step, Wait) for row in steps_of(schedule).values() for step in row)
    assert count <= sum(isinstance(step, Wait) for row in steps.values() for step in row)


@given(timed=timed_schedules(), data=st.data())
@settings(examples, max_examples=scaled(60))
def test_disturbed_programs_are_refused_or_harmless(
    timed: TimedSchedule, data: st.DataObject
) -> None:
    """Whatever steps are moved, doubled or lost: a program that passes the check runs."""
    schedule = timed.schedule
    steps = steps_of(schedule)
    for _ in range(data.draw(st.integers(1, 3))):
        row = steps[data.draw(st.sampled_from(sorted(steps)))]
        position = data.draw(st.integers(0, len(row) - 1))
        step = row[position]
        if data.draw(st.booleans()) and len(row) > 1:
            del row[position]
        if data.draw(st.booleans()):
            row.insert(data.draw(st.integers(0, len(row))), step)
    programs = programs_of(steps)
    try:
        verify_programs(programs, schedule)
    except PlanError:
        return
    rng = data.draw(st.randoms(use_true_random=False))
    for haste in (0.0, 0.9, 1.0):
        carry_out(programs, schedule, rng, haste)


def test_programs_of_a_larger_plan() -> None:
    case = layered(90, width=6, devices="ABC", seed=3)
    schedule = derive(quickly("heft", case), case.graph)
    programs = device_programs(schedule.segments, schedule.transfers)
    verify_programs(programs, schedule)
    assert len(programs) == 3
    steps = [step for program in programs for step in program.steps]
    foreign = sum(
        schedule.segments[i].device != segment.device
        for segment in schedule.segments
        for i in segment.after
    )
    assert 0 < sum(isinstance(step, Wait) for step in steps) < foreign
    for seed in range(5):
        carry_out(programs, schedule, random.Random(seed), haste=0.5)


# Programs that are wrong


def refuse(steps: dict[str, list[Step]], schedule: Schedule, message: str) -> None:
    with pytest.raises(PlanError) as refused:
        verify_programs(programs_of(steps), schedule)
    expected = f"{message}; make the programs again with device_programs"
    assert str(refused.value) == expected


def test_devices_that_wait_for_each_other() -> None:
    schedule = derive(make_plan(CROSS, A="ac", B="bd"), CROSS)
    assert steps_of(schedule) == {
        "A": [Run(0), Signal(0), Wait(1), Copy(0), Run(2)],
        "B": [Run(1), Signal(1), Wait(0), Copy(1), Run(3)],
    }
    crossed: dict[str, list[Step]] = {
        "A": [Wait(1), Run(0), Signal(0), Copy(0), Run(2)],
        "B": [Wait(0), Run(1), Signal(1), Copy(1), Run(3)],
    }
    refuse(
        crossed,
        schedule,
        "the programs have a deadlock: "
        "B waits before segment 1 (b) for the event of segment 0 (a) of A; "
        "A waits before segment 0 (a) for the event of segment 1 (b) of B",
    )


def test_events_that_do_not_come() -> None:
    schedule = derive(make_plan(CROSS, A="ac", B="bd"), CROSS)
    steps = steps_of(schedule)
    late = [Run(0), Wait(1), Copy(0), Run(2)]
    beginning = "the programs have a deadlock: "
    refuse(
        steps | {"A": late},
        schedule,
        f"{beginning}B waits before segment 3 (d) for the event of segment 0, which no device "
        f"signals",
    )
    refuse(
        steps | {"A": [*steps["A"], Wait(9)]},
        schedule,
        f"{beginning}A waits at its end for the event of segment 9, which no device signals",
    )


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [Run(0), Signal(0), Copy(0), Wait(1), Run(2)],
            "A copies 'b', and no wait makes sure that segment 1 (b) of B has ended before",
        ),
        (
            [Run(0), Signal(0), Wait(1), Run(2), Copy(0)],
            "A runs segment 2 (c) before it has copied 'b'",
        ),
        (
            [Signal(0), Run(0), Wait(1), Copy(0), Run(2)],
            "A signals segment 0, which it has not run, or has signalled before",
        ),
        (
            [Run(0), Signal(0), Wait(1), Signal(1), Copy(0), Run(2)],
            "A signals segment 1, which it has not run, or has signalled before",
        ),
        (
            [Run(0), Signal(0), Signal(0), Wait(1), Copy(0), Run(2)],
            "A signals segment 0, which it has not run, or has signalled before",
        ),
        (
            [Run(0), Signal(0), Signal(7), Wait(1), Copy(0), Run(2)],
            "A signals segment 7, which it has not run, or has signalled before",
        ),
        (
            [Run(0), Signal(0), Wait(1), Copy(0)],
            "the program of A has segment none where the schedule has 2",
        ),
        (
            [Run(0), Signal(0), Wait(1), Copy(0), Run(2), Run(2)],
            "the program of A has segment 2 where the schedule has none",
        ),
        (
            [Wait(1), Copy(0), Run(2), Run(0), Signal(0)],
            "the program of A has segment 2 where the schedule has 0",
        ),
        (
            [Run(0), Signal(0), Wait(1), Copy(0), Copy(1), Run(2)],
            "the program of A has transfer 1 where the schedule has none",
        ),
        (
            [Run(0), Signal(0), Wait(1), Run(2)],
            "the program of A has transfer none where the schedule has 0",
        ),
    ],
)
def test_steps_that_are_wrong(steps: list[Step], message: str) -> None:
    schedule = derive(make_plan(CROSS, A="ac", B="bd"), CROSS)
    refuse(steps_of(schedule) | {"A": steps}, schedule, message)


def test_devices_that_are_wrong() -> None:
    schedule = derive(make_plan(CROSS, A="ac", B="bd"), CROSS)
    steps = steps_of(schedule)
    refuse({"A": steps["A"]}, schedule, "there are programs for A, and segments on A, B")
    refuse(steps | {"C": []}, schedule, "there are programs for A, B, C, and segments on A, B")
    refuse(
        steps | {"C": [Run(0)]},
        schedule,
        "the program of C has segment 0 where the schedule has none",
    )
    programs = device_programs(schedule.segments, schedule.transfers)
    twice = [*programs, programs[0]]
    with pytest.raises(PlanError, match="there are programs for A, B, A, and segments on A, B"):
        verify_programs(twice, schedule)


def test_a_schedule_that_forgets_what_it_reads_is_found() -> None:
    """The check reads what the segments read, and not only which segments they follow."""
    schedule = derive(make_plan(CROSS, A="ac", B="bd"), CROSS)
    first, second, third, last = schedule.segments
    wrong = replace(schedule, segments=(first, second, replace(third, after=(0,)), last))
    refuse(
        steps_of(wrong),
        wrong,
        "A copies 'b', and no wait makes sure that segment 1 (b) of B has ended before",
    )
    without = replace(wrong, transfers=())
    refuse(
        steps_of(without),
        without,
        "A runs segment 2 (c), and no wait makes sure that segment 1 (b) of B has ended before",
    )
