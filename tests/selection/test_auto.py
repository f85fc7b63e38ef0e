"""planner="auto": configurations, choice, memory; and reasons for what was chosen."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from coexec.cli import main
from coexec.cli.decisions import format_candidate
from coexec.codec import CodecError
from coexec.engines import detect
from coexec.engines.base import Processor
from coexec.engines.detect import usable_cores
from coexec.engines.registry import Driven
from coexec.errors import CacheWarning, DeviceError, ExecutionError, ModelError, UsageError
from coexec.model.difference import worst_difference
from coexec.model.reference_session import plain_session
from coexec.profiling import engines
from coexec.profiling.store import Measurement
from coexec.rules import RULES, Rules
from coexec.selection.chooser import Chooser
from coexec.selection.configurations import configurations
from coexec.selection.decision import Candidate, Decision
from coexec.selection.plan_race import with_figures
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Lap, Outcome
from coexec.selection.ranking import Ranking, is_settled, objective_of
from coexec.session import InferenceSession
from coexec.settings import Effort, Settings
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")
QUICK = Effort(warm_up=1, least=2, most=2)
ALL_RUN = Rules("hope_greedy,heft", worth_trying=float("inf"), further_engines=False, busy=9.0)
"""Every plan of two quick planners runs, whatever its prediction, with the first engine of the
cores; the tests beside may keep the processors busy."""


@two_cores
def test_configurations_of_named_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = ("onnxruntime", "cpp")
    cpu = Driven("cpu", "a CPU", {name: Processor("cpu", "a CPU") for name in engines})
    monkeypatch.setattr(
        "coexec.selection.configurations.processors", lambda kind: [cpu] if kind == "cpu" else []
    )
    first, second = CPUS
    joined = (
        f"cpu:{CORES[0]}-{CORES[1]}" if CORES[1] == CORES[0] + 1 else (f"cpu:{CORES[0]},{CORES[1]}")
    )
    with_first = [(first, second), (joined,), (first,), (second,)]
    with_other = [tuple(f"{name}/cpp" for name in names) for names in with_first]
    assert configurations(CPUS) == with_first + with_other
    assert configurations([first]) == [(first,), (f"{first}/cpp",)]
    # Who names an engine, gets this one; the others keep their choice.
    named = f"{second}/onnxruntime"
    assert configurations([named]) == [(named,)]
    assert configurations([first, named]) == [
        (first, named),
        (first,),
        (named,),
        (f"{first}/cpp", named),
        (f"{first}/cpp",),
    ]
    assert configurations([first, "null:0"]) == [
        (first, "null:0"),
        (first,),
        ("null:0",),
        (f"{first}/cpp", "null:0"),
        (f"{first}/cpp",),
    ]
    with pytest.raises(DeviceError, match="unknown device 'tpu:0'"):
        configurations(["tpu:0"])


def test_configurations_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "usable_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(detect, "clusters", lambda: (((0, 1, 2, 3), None),))
    monkeypatch.setattr(detect, "partitions", lambda: ())
    listed: list[Driven] = []
    monkeypatch.setattr("coexec.selection.configurations.processors", lambda kind=None: listed)
    singles = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")
    all_cores = [("cpu:0-3",), ("cpu:0-1", "cpu:2-3"), singles]
    on_cpu = [*all_cores, ("cpu:0-1",)]

    def driven(name: str, *engines: str, unusable: str | None = None) -> Driven:
        processor = Processor(name.partition(":")[0], name, name, unusable=unusable)
        return Driven(name, name, dict.fromkeys(engines, processor))

    listed[:] = [driven("cpu", "onnxruntime")]
    assert configurations() == on_cpu
    broken = driven("gpu:1", "opencl", unusable="it computes wrong numbers")
    listed[:] = [driven("cpu", "onnxruntime", "cpp"), driven("gpu:0", "opencl"), broken]
    with_cpp = [
        *(tuple(f"{name}/cpp" for name in names) for names in on_cpu),
        ("cpu:0-2", "cpu:3/cpp"),
        ("cpu:0-1", "cpu:2-3/cpp"),
    ]
    assert configurations() == [
        *on_cpu,
        ("gpu:0",),
        *((*names, "gpu:0") for names in all_cores),
        *with_cpp,
    ]
    # Every engine of a GPU is considered, and an NPU.
    listed[1:] = [driven("gpu:0", "opencl", "openvino"), driven("npu:0", "openvino")]
    assert configurations() == [
        *on_cpu,
        ("gpu:0",),
        ("npu:0",),
        ("gpu:0", "npu:0"),
        *((*names, "gpu:0", "npu:0") for names in all_cores),
        ("gpu:0/openvino",),
        ("gpu:0/openvino", "npu:0"),
        *((*names, "gpu:0/openvino", "npu:0") for names in all_cores),
        *with_cpp,
    ]
    few = configurations(rules=Rules(further_engines=False))
    assert not any("/" in name for names in few for name in names)


@pytest.fixture
def worth_two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that is worth two devices, whatever else runs here."""
    for name in ("wake_up", "launch_overhead"):
        monkeypatch.setattr(engines, name, lambda *_: Measurement(0.0, 0.0, 1))
    return branches(width=4, channels=32, size=64)


@two_cores
def test_the_fastest_is_kept_and_remembered(worth_two: Any, tmp_path: Path) -> None:
    model = worth_two
    rules = replace(ALL_RUN, rounds=(2, 2))
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    choice = Chooser(model, settings).make()
    first = choice.candidates[0]
    assert first.devices == choice.work.names and first.measured_s is not None
    for count in (1, 2):
        assert any(len(c.devices) == count and c.paced_s and c.loop_s for c in choice.candidates)

    def again(*_: object, **__: object) -> Any:
        raise AssertionError("it measured again")

    same = Chooser(model, settings, compete=again).make()
    assert same.plan == choice.plan and same.candidates == choice.candidates
    (file,) = tmp_path.glob("choices/*")
    whole = file.read_bytes()
    file.write_bytes(whole[:40])
    with pytest.warns(CacheWarning, match="damaged"):
        repaired = Chooser(model, settings).make()
    assert repaired.candidates and file.stat().st_size > 40
    fewer = Chooser(model, replace(settings, planner_options={"shortlist": 1})).make()
    assert sum(c.measured_s is not None for c in fewer.candidates if len(c.devices) > 1) <= 1
    assert len(list(tmp_path.glob("choices/*"))) == 2


@two_cores
def test_the_figure_that_decides_is_asked_for_told_and_a_part_of_the_key(
    tmp_path: Path,
) -> None:
    """One that is the faster at 30 requests a second, and the slower one in a loop."""

    def made_up(rivals: Any, *_: object, **__: object) -> Outcome[int]:
        laps = {which: [Lap((0.010 + which,), (0.010 - which / 1e3,))] * 5 for which in rivals}
        return Outcome(laps)

    chosen = {}
    for requests in ("paced", "loop"):
        options = {"requests": requests}
        rules = replace(ALL_RUN, not_slower=float("inf"))
        settings = Settings(
            CPUS, planner_options=options, cache=tmp_path, effort=QUICK, rules=rules
        )
        auto = Chooser(branches(), settings, compete=made_up)
        ran = [c for c in auto.make().candidates if c.measured_s is not None]
        chosen[requests] = ran[0]
        assert {c.requests for c in ran} == {requests}
        best_s = min(getattr(c, f"{requests}_s") for c in ran)
        assert ran[0].measured_s == getattr(ran[0], f"{requests}_s") == best_s
        line = format_candidate(ran[0])
        assert " paced" in line and " in a loop" in line
    assert chosen["paced"].paced_s != chosen["loop"].paced_s
    assert len(list(tmp_path.glob("choices/*"))) == 2


def made_up_race(seconds: Callable[[int], float], others: float = 0.0, rounds: int = 5) -> Any:
    """A race in which each contender takes these seconds, by its index."""
    ran: list[int] = []

    def compete(rivals: Any, *_: object, **__: object) -> Outcome[int]:
        ran.extend(rivals)
        laps = {which: [Lap((seconds(which),), (seconds(which),))] * rounds for which in rivals}
        return Outcome(laps, others=others)

    compete.ran = ran  # type: ignore[attr-defined]
    return compete


@two_cores
def test_single_devices_run_before_others_are_planned(
    worth_two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    compete, plan = made_up_race(lambda which: 0.01 / (1 + which)), PlanningContext.plan

    def raced(rivals: Any, *of: object, **options: object) -> Outcome[int]:
        steps.append("race")
        return compete(rivals, *of, **options)

    def planned(self: PlanningContext, planner: str) -> Any:
        steps.append(planner)
        return plan(self, planner)

    monkeypatch.setattr(PlanningContext, "plan", planned)
    rules = replace(ALL_RUN, planners="heft")
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    decision = Chooser(worth_two, settings, compete=raced).make().decision
    assert decision is not None and decision.taken.devices == tuple(CPUS)
    before, after = steps[: steps.index("heft")], steps[steps.index("heft") :]
    assert set(before) == {"single", "race"} and set(after) == {"heft", "race"}
    assert before.index("race") > max(n for n, step in enumerate(before) if step == "single")


@two_cores
def test_a_plan_in_doubt_does_not_answer_until_rounds_prove_it(
    worth_two: Any, tmp_path: Path
) -> None:
    rules = replace(ALL_RUN, planners="heft", busy=0.1)
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)

    def faster(which: int) -> float:
        return 0.01 / (1 + which)

    busy = Chooser(worth_two, settings, compete=made_up_race(faster, others=0.5))
    decision = busy.make().decision
    assert decision is not None and str(decision.taken) == decision.reference
    assert decision.doubt is not None and "other programs used 50%" in decision.doubt
    assert busy.is_open and len(decision.taken.devices) == 1
    # Another process goes on from there, and the rounds of the busy machine do not count.
    quiet = Chooser(worth_two, settings, compete=made_up_race(faster))
    assert quiet.known is not None and quiet.decision == decision
    proven = quiet.go_on().decision
    assert proven is not None and proven.taken.devices == tuple(CPUS)
    assert proven.taken.rounds_won == proven.taken.rounds >= rules.rounds[0]
    assert proven.passes == 2 and Chooser(worth_two, settings).decision == proven


@pytest.mark.parametrize(("ratio", "taken"), [(0.5, True), (0.8, False)])
def test_beside_other_programs_a_plan_needs_a_larger_gain(
    ratio: float, taken: bool, worth_two: Any, tmp_path: Path
) -> None:
    rules = replace(ALL_RUN, busy=0.1, busy_factor=2.0)
    settings = Settings(["cpu:0", "cpu:0/cpp"], cache=tmp_path, effort=QUICK, rules=rules)
    race = made_up_race(lambda which: 0.01 * (ratio if which else 1.0), others=0.15)
    decision = Chooser(worth_two, settings, compete=race).make().decision
    assert decision is not None
    if taken:
        assert decision.taken.ratio == pytest.approx(ratio)
    else:
        assert str(decision.taken) == decision.reference
        assert decision.doubt is not None
        assert "other programs used 15% of the processor time; below 0.65" in decision.doubt


@two_cores
def test_a_further_pass_repeats_nothing_that_is_settled(worth_two: Any, tmp_path: Path) -> None:
    """And a plan that was proven with many rounds is not replaced by a race of few."""
    rules = replace(ALL_RUN, planners="heft")
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    first = Chooser(worth_two, settings, compete=made_up_race(lambda which: 0.01 / (1 + which)))
    alone = first.go_on(alone=True).decision
    assert alone is not None and [c.devices for c in alone.untried] == [tuple(CPUS)]
    assert first.is_open and len(alone.taken.devices) == 1
    ran = sorted(c.key for c in alone.candidates if c.rounds)
    again = made_up_race(lambda which: 1.0)
    second = Chooser(worth_two, settings, compete=again)
    decision = second.go_on().decision
    assert decision is not None and not decision.untried and not second.is_open
    assert decision.taken.key == alone.taken.key
    assert sorted(c.key for c in decision.candidates if c.rounds and len(c.devices) == 1) == ran
    assert len(set(again.ran)) == 2  # the reference and the plan that was not tried


@two_cores
def test_what_a_pass_does_not_reach_stays_as_it_was(worth_two: Any, tmp_path: Path) -> None:
    """A plan in doubt keeps its rounds, and its configuration does not count as untried."""
    rules = replace(ALL_RUN, planners="heft", busy=0.1)
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    race = made_up_race(lambda which: 0.01 / (1 + which), others=0.5)
    before = Chooser(worth_two, settings, compete=race).go_on().decision
    after = Chooser(worth_two, settings, compete=race).go_on(1e-6).decision
    assert before is not None and after is not None and after.passes == 2
    (row,) = [row for row in before.candidates if len(row.devices) == 2]
    assert row.status == "in doubt" and row.rounds == 5
    assert [row] == [row for row in after.candidates if len(row.devices) == 2]


@two_cores
def test_what_is_measured_is_kept_if_the_process_ends(worth_two: Any, tmp_path: Path) -> None:
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=replace(ALL_RUN, planners="heft"))
    race = made_up_race(lambda which: 0.01 / (1 + which))

    def ends(rivals: Any, *of: object, **options: object) -> Outcome[int]:
        if race.ran:
            raise KeyboardInterrupt
        return race(rivals, *of, **options)

    with pytest.raises(KeyboardInterrupt):
        Chooser(worth_two, settings, compete=ends).make()
    later = Chooser(worth_two, settings, compete=race)
    assert later.known is not None and later.decision is not None and later.is_open
    assert str(later.decision.taken) == later.decision.reference  # nothing was compared yet
    ended = later.go_on().decision
    assert ended is not None and not later.is_open
    assert ended.taken.ratio is not None and ended.taken.ratio < 1


def test_a_choice_ends_after_passes_that_settle_nothing(worth_two: Any, tmp_path: Path) -> None:
    rules = replace(ALL_RUN, planners="heft", busy=0.1)
    settings = Settings(CPUS[:1], cache=tmp_path, effort=QUICK, rules=rules)
    busy = made_up_race(lambda which: 0.01 / (1 + which), others=0.5)
    chooser = Chooser(worth_two, settings, compete=busy)
    chooser.make()
    for _ in range(rules.most_idle_passes):
        assert chooser.is_open
        chooser.go_on()
    assert not chooser.is_open and chooser.decision is not None
    assert str(chooser.decision.taken) == chooser.decision.reference


@two_cores
def test_a_candidate_that_fails_while_others_run_says_why(
    tmp_path: Path,
) -> None:
    def second_fails(rivals: Any, *_: object, **__: object) -> Outcome[int]:
        laps = {which: [Lap((0.010,), (0.010,))] * 5 for which in rivals}
        return Outcome(laps | {1: []}, {1: ExecutionError("the device is gone")})

    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=ALL_RUN)
    candidates = Chooser(branches(), settings, compete=second_fails).make().candidates
    (failed,) = [c for c in candidates if c.status == "refused"]
    assert failed.measured_s is None and candidates[0].status == "taken"
    assert format_candidate(failed).endswith(": the device is gone")


@two_cores
def test_what_needs_more_memory_than_the_limit_is_left_out(tmp_path: Path) -> None:
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=ALL_RUN, memory_limit="1MiB")
    candidates = Chooser(branches(), settings).make().candidates
    assert [c.status for c in candidates].count("taken") == 1
    out = [c for c in candidates if c.status == "left out" and "memory_limit" in c.reason]
    assert out and all("of the limit of 1.00 MiB (memory_limit)" in c.reason for c in out)
    more = replace(settings, memory_limit="64GiB")  # another limit is another choice
    found = Chooser(branches(), more).make().candidates
    assert not any("memory_limit" in c.reason for c in found)


def entry(devices: int, planner: str = "heft") -> Candidate:
    return Candidate(tuple(f"cpu:{i}" for i in range(devices)), planner, 1.0)


def decided(
    shortlist: Sequence[Candidate],
    paced_s: Sequence[Sequence[float]],
    loop_s: Sequence[Sequence[float]] | None = None,
    stolen: float = 0.0,
    starts: int = RULES.starts,
) -> list[Candidate]:
    """The candidates in the order of races with these seconds in each round. The first plain single
    device that ran is the reference."""
    pairs = zip(paced_s, paced_s if loop_s is None else loop_s, strict=True)
    laps = {
        which: [Lap((paced,), (loop,)) for paced, loop in zip(*figures, strict=True)]
        for which, figures in enumerate(pairs)
    }
    objective = objective_of("latency", RULES)
    ran = [which for which, own in laps.items() if own]
    rows = list(shortlist)
    reference = min(
        ran, key=lambda w: (not rows[w].is_single, not rows[w].is_plain, w), default=None
    )
    if reference is not None:
        outcome = Outcome(laps, stolen=stolen)
        for which in ran:
            row = with_figures(rows[which], outcome, which, reference, objective)
            rows[which] = replace(row, starts=starts)
    ranking = Ranking(rows, None if reference is None else rows[reference], objective, RULES)
    return ranking.explained(ranking.order())


def order(
    shortlist: Sequence[Candidate],
    paced_s: Sequence[Sequence[float]],
    loop_s: Sequence[Sequence[float]] | None = None,
    stolen: float = 0.0,
) -> list[int]:
    """Indices of the shortlist in that order."""
    keys = [row.key for row in shortlist]
    return [keys.index(row.key) for row in decided(shortlist, paced_s, loop_s, stolen)]


def test_a_plan_is_taken_only_if_it_is_clearly_faster_in_the_same_rounds() -> None:
    single, pair, other = entry(1, "single"), entry(2), entry(2, "hope_greedy")
    noise = [1.0, 3.0, 1.0, 9.0, 2.0]
    assert order([single, pair], [noise, [0.5 * n for n in noise]]) == [1, 0]
    # Hardly faster: one device is simpler and steadier.
    assert order([pair, single], [[0.995 * n for n in noise], noise]) == [1, 0]
    # Faster in the median, but not in three of four rounds.
    unsteady = [n * share for n, share in zip(noise, (0.9, 1.2, 0.9, 1.1, 0.9), strict=True)]
    assert order([pair, single], [unsteady, noise]) == [1, 0]
    # One failed, one ended early: it is compared in its own rounds.
    assert order([pair, single, other], [[], noise, [1.3, 2.9]]) == [1, 2, 0]
    assert order([pair, other], [[2.0], [1.0]]) == [1, 0]
    # Where nothing could be run, one device is taken.
    assert order([pair, single], [[], []]) == [1, 0]


def test_what_is_slower_in_a_loop_is_no_better() -> None:
    single, pair = entry(1, "single"), entry(2)
    paced = [[1.0] * 5, [0.5] * 5]
    assert order([single, pair], paced, [[1.0] * 5, [1.0] * 5]) == [1, 0]
    assert order([single, pair], paced, [[1.0] * 5, [1.1] * 5]) == [0, 1]


def test_where_the_host_takes_time_a_plan_has_to_gain_more() -> None:
    shortlist = [entry(1, "single"), entry(2)]
    assert order(shortlist, [[1.0] * 10, [0.8] * 10], stolen=0.05) == [1, 0]
    assert order(shortlist, [[1.0] * 10, [0.8] * 10], stolen=0.15) == [0, 1]
    # Five rounds are enough on a machine of one's own only.
    assert order(shortlist, [[1.0] * 5, [0.8] * 5], stolen=0.05) == [0, 1]
    assert order(shortlist, [[1.0] * 5, [0.8] * 5], stolen=0.01) == [1, 0]


def with_cpp(plan: Candidate) -> Candidate:
    return replace(plan, devices=("cpu:0/cpp",))


def test_one_race_is_no_proof() -> None:
    times = [[1.0] * 9, [0.5] * 9]
    assert decided([entry(1, "single"), entry(2)], times)[0].devices == entry(2).devices
    first, second = decided([entry(1, "single"), entry(2)], times, starts=1)
    assert len(first.devices) == 1 and second.status == "in doubt"
    assert second.reason.endswith("in 1 race; 2 are needed, with new starts")


def test_another_engine_has_to_gain_more() -> None:
    plain = entry(1, "single")
    other = with_cpp(plain)
    assert order([other, plain], [[0.96] * 5, [1.0] * 5]) == [1, 0]
    assert order([other, plain], [[0.94] * 5, [1.0] * 5]) == [0, 1]
    # The first engine is what is compared with, whichever was predicted to be faster.
    assert order([other, plain], [[1.0] * 5, [1.1] * 5]) == [0, 1]
    assert order([other, plain], [[], []]) == [1, 0]


OWN = Candidate(("cpu:0-1",), "single", engines=("onnxruntime",), own_session=True)
OTHER = with_cpp(entry(1, "single"))
PAIR = entry(2)
UNSTEADY = [0.8, 1.2, 0.8, 1.1, 0.9, 1.1, 0.8]


@pytest.mark.parametrize(
    ("plan", "paced_s", "loop_s", "stolen", "status", "reason"),
    [
        (OTHER, [0.9] * 7, None, 0.0, "taken", "it takes 0.90 of the time of ONNX Runtime at up "
         "to 30 requests a second, and it was faster in 7 of 7 rounds"),
        (OTHER, [0.96] * 7, None, 0.0, "not taken", "it takes 0.96 of the time of ONNX Runtime; a "
         "plan with a GPU, an NPU or a further engine is taken below 0.95"),
        (PAIR, [0.995] * 7, None, 0.0, "not taken", "it takes 0.995 of the time of ONNX Runtime; "
         "a plan for CPU cores with their first engine is taken below 0.97"),
        (PAIR, [0.95] * 10, None, 0.05, "not taken", "it takes 0.95 of the time of ONNX Runtime; a "
         "plan for CPU cores with their first engine is taken below 0.97, lowered by 0.10 because "
         "the host took 5% of the processor time"),
        (PAIR, [1.24] * 7, None, 0.0, "not taken", "it takes 1.24 times the time of ONNX Runtime"),
        (PAIR, UNSTEADY, None, 0.0, "not taken", "it takes 0.90 of the time of ONNX Runtime in the "
         "median, but it was faster in 4 of 7 rounds; 6 are needed"),
        (PAIR, [0.9] * 7, [1.23] * 7, 0.0, "not taken", "it takes 0.90 of the time of ONNX Runtime "
         "at up to 30 requests a second, but 1.23 times its time in a loop; at most 1.01 is "
         "accepted there"),
        (PAIR, [0.5] * 2, None, 0.0, "in doubt", "it takes 0.50 of the time of ONNX Runtime in 2 "
         "rounds; 5 are needed"),
        (PAIR, [0.5] * 6, None, 0.05, "in doubt", "it takes 0.50 of the time of ONNX Runtime in 6 "
         "rounds; 10 are needed, as the host took 5% of the processor time"),
        (PAIR, [1.1] * 2, None, 0.0, "not taken", "it takes 1.10 times the time of ONNX Runtime"),
    ],
)  # fmt: skip
def test_reasons_name_the_rule_and_the_numbers(
    plan: Candidate,
    paced_s: list[float],
    loop_s: list[float] | None,
    stolen: float,
    status: str,
    reason: str,
) -> None:
    ones = [1.0] * len(paced_s)
    loops = None if loop_s is None else [ones, loop_s]
    rows = decided([OWN, plan], [ones, paced_s], loops, stolen)
    (row,) = [row for row in rows if row.devices == plan.devices]
    assert (row.status, row.reason) == (status, reason)
    (own,) = [row for row in rows if row.is_ort_session]
    assert own.reason in (
        "the taken plan is clearly faster",
        "no other plan that may answer is proven to be faster",
    )
    assert sorted({row.status for row in rows} | {"taken"}) == sorted({status, own.status, "taken"})


def test_a_decision_is_the_same_after_it_was_stored() -> None:
    rows = decided([OWN, PAIR], [[1.0] * 5, [0.9] * 5])
    options = {"opencl": {"precision": "fp16"}}
    rows[0] = replace(rows[0], engines=("opencl",), options=options, comparison="alike")
    decision = Decision(tuple(rows), "verdict", shapes="x=1,3", passes=2, idle_passes=1)
    text = json.dumps(decision.to_json())
    assert Decision.from_json(json.loads(text)) == decision
    for damaged in ({"verdict": "candidates are missing"}, json.loads(text) | {"unknown": 1}):
        with pytest.raises(CodecError):
            Decision.from_json(damaged)


def test_what_was_never_raced_is_not_settled() -> None:
    alone = replace(entry(1, "single"), status="taken")
    assert not is_settled(alone, RULES)
    assert is_settled(replace(alone, rounds_s=((1.0, 1.0),) * 5), RULES)
    assert not is_settled(replace(alone, rounds_s=((1.0, 1.0),) * 5, others=0.5), RULES)
    assert is_settled(replace(alone, status="refused"), RULES)


@pytest.mark.long
@two_cores
def test_sessions_choose_by_themselves(tmp_path: Path) -> None:
    model = branches()
    with InferenceSession(model, devices=CPUS, cache=tmp_path, background=False) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        found = session.run(None, feeds)
        decision = session.decision
    assert decision is not None and decision.verdict.startswith(f"{decision.taken} is taken: ")
    with InferenceSession(model, devices=CPUS, cache=tmp_path) as session:
        assert session.decision is None
        session.wait()
        assert session.decision == decision
    with InferenceSession(model, devices=CPUS, cache=tmp_path, planner="heft") as session:
        assert session.decision is None
    for a, b in zip(found, plain_session(model).run(None, feeds), strict=True):
        assert worst_difference(a, b) < 1e-5


def test_a_file_that_is_no_model_is_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match="is not an ONNX model") as caught:
        Chooser(str(path), Settings(CPUS, cache=tmp_path / "cache")).make()
    assert str(caught.value).count("not an ONNX model") == 1


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="auto has no option 'top_k'; it has planners, shortlist"):
        Chooser("zoo:squeezenet", Settings(CPUS[:1], planner_options={"top_k": 3}))


@pytest.mark.usefixtures("quick_choice")
def test_explain_prints_the_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, weight = tmp_path / "m.onnx", np.ones((4, 4), np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "r"),
        helper.make_node("MatMul", ["r", "w"], ["y"], "m"),
    ]
    ends = [tensor_info("x", ["rows", 4])], [tensor_info("y", ["rows", 4])]
    onnx.save(from_nodes(nodes, *ends, {"w": weight}), path)
    arguments = [str(path), "--devices", CPUS[0], "--cache", str(tmp_path / "cache")]
    arguments += ["--shape", "rows=3"]
    assert main(["explain", *arguments, "--json"]) == 0
    decision = Decision.from_json(json.loads(capsys.readouterr().out)["decision"])
    own, rewritten = sorted(decision.candidates, key=lambda c: not c.is_ort_session)
    assert decision.reference == str(own) == f"{CPUS[0]} (ONNX Runtime's own session)"
    assert own.ratio == 1.0 and rewritten.ratio is not None and rewritten.rounds == 1
    assert decision.verdict.endswith(", for x=3,4")
    assert main(["explain", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{'verdict':10} {decision.verdict}" in lines  # the cached choice, with its decision
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "taken",
        "not taken",
        "reference",
        "figures",
    ]


@two_cores
def test_explain_gives_a_reason_for_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(), path)
    arguments = [
        str(path),
        "--devices",
        ",".join(CPUS),
        "--planner",
        "heft",
        "--cache",
        str(tmp_path / "cache"),
    ]
    assert main(["explain", *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tasks"]
    assert len(rows) == len({r["task"] for r in rows}) > 5
    assert all(r["why"] and r["device"] in CPUS and r["measured_s"] > 0 for r in rows)
    assert main(["explain", *arguments, "--top", "3"]) == 0
    assert "the 3 longest of" in capsys.readouterr().out
    assert main(["explain", *arguments, "--top", "0"]) == 2


def test_a_report_may_profile_after_the_time_of_the_choice(tmp_path: Path) -> None:
    settings = Settings(
        CPUS[:1], rules=replace(ALL_RUN, seconds=1e-9), cache=tmp_path, effort=QUICK
    )
    prepared = Chooser(branches(), settings).make()
    assert prepared.cost is not None
