"""Races with made-up rivals on a made-up machine; and two with real threads and processes."""

import itertools
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from coexec.errors import ExecutionError
from coexec.profiling.processors import ProcessorTime, processor_time
from coexec.rules import RULES
from coexec.selection import plan_race
from coexec.selection.candidates import Deadline
from coexec.selection.decision import Candidate, Key
from coexec.selection.quiet_moment import REAL, Rest, Stopwatch, cpu_clock
from coexec.selection.race import Outcome, Pacing, compete, race, turn
from coexec.selection.ranking import objective_of
from tests.helpers.patience import ENOUGH_S

pytestmark = pytest.mark.alone

ONCE = Pacing(paced=1, loop=1)


class Machine:
    """A clock that only runs when a rival does or the race waits, and the CPU time used by then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.used_s = 0.0
        self.stolen_s = 0.0
        """What a host gave to others."""
        self.spinning_until_s = 0.0
        self.log: list[str] = []
        """Names of the rivals as they run."""
        self.disturbed: list[str] = []
        """Those that ran while threads of another one were spinning."""
        self._owner = ""

    @property
    def watch(self) -> Stopwatch:
        return Stopwatch(
            lambda: self.now_s,
            lambda: self.used_s,
            self._pass,
            lambda: ProcessorTime(self.used_s, self.stolen_s),
        )

    def _pass(self, seconds: float, busy: float = 0.0) -> None:
        spinning_s = max(0.0, min(seconds, self.spinning_until_s - self.now_s))
        self.now_s += seconds
        self.used_s += busy * seconds + spinning_s

    def rival(self, name: str, seconds: float, spins_s: float = 0.0) -> Callable[[], None]:
        """Takes ``seconds``, twice that beside the spinning threads of another one."""

        def run() -> None:
            others = self._owner != name and self.spinning_until_s > self.now_s
            self.log.append(name)
            self.disturbed += [name] * others
            self._pass(seconds * (2 if others else 1), busy=1.0)
            if spins_s:
                self._owner, self.spinning_until_s = name, self.now_s + spins_s

        return run


def test_the_order_rotates_and_the_first_run_of_a_turn_is_discarded() -> None:
    machine = Machine()
    rivals = {name: machine.rival(name, 0.005) for name in "abc"}
    cold = rivals["a"]

    def after_others() -> None:
        if len(machine.log) == 0 or machine.log[-1] != "a":
            machine._pass(0.01, busy=1.0)  # what the others have driven out of the caches
        cold()

    outcome = race(rivals | {"a": after_others}, (4, 4), pacing=ONCE, watch=machine.watch)
    runs = "".join(machine.log)
    assert runs == "".join(3 * name for name in "abcbcacababc")
    assert outcome.samples_s("a", "loop") == pytest.approx([0.005] * 4)
    assert outcome.samples_s("a", "paced") == pytest.approx([0.005] * 4)
    assert outcome.failed == {} and outcome.disturbed == 0


def test_paced_requests_come_with_the_period_and_a_loop_does_not_wait() -> None:
    machine = Machine()
    starts_s: list[float] = []
    run = machine.rival("a", 0.005)

    def noted() -> None:
        starts_s.append(machine.now_s)
        run()

    lap = turn(noted, Pacing(discard=1, paced=3, loop=2, period_s=0.05), machine.watch)
    gaps_s = [b - a for a, b in itertools.pairwise(starts_s)]
    assert gaps_s == pytest.approx([0.05, 0.05, 0.05, 0.005, 0.005])
    assert (len(lap.paced), len(lap.loop), len(lap.rested)) == (3, 2, 0)


def test_a_rival_that_needs_longer_than_the_period_runs_back_to_back() -> None:
    machine = Machine()
    lap = turn(machine.rival("a", 0.08), Pacing(paced=2, loop=5, period_s=0.05), machine.watch)
    assert len(machine.log) == 3  # the two requests are a loop as well
    assert lap.paced == lap.loop == pytest.approx((0.08, 0.08))


def test_a_request_that_takes_long_is_a_turn_of_its_own() -> None:
    machine = Machine()
    pacing = Pacing(paced=2, loop=5, long_s=0.5)
    lap = turn(machine.rival("a", 0.6), pacing, machine.watch)
    assert len(machine.log) == 1 and lap.paced == lap.loop == pytest.approx((0.6,))
    turn(machine.rival("b", 0.4), pacing, machine.watch)
    assert machine.log.count("b") > 1


def test_a_late_request_behind_one_that_was_slow_for_once_does_not_count_as_paced() -> None:
    machine = Machine()
    took_s = iter([0.4, 0.01, 0.02, 0.03])  # cold; late, though quick itself; paced; in a loop
    lap = turn(lambda: machine._pass(next(took_s)), ONCE, machine.watch)
    assert (lap.paced, lap.loop) == (pytest.approx((0.02,)), pytest.approx((0.03,)))


def test_a_request_after_a_rest_is_timed_where_asked_for() -> None:
    machine = Machine()
    idle_s: list[float] = []
    last_s = 0.0

    def run() -> None:
        nonlocal last_s
        idle_s.append(machine.now_s - last_s)
        machine._pass(0.005)
        last_s = machine.now_s

    lap = turn(run, Pacing(paced=0, loop=1, rest_s=0.3), machine.watch)
    assert len(lap.rested) == 1 and idle_s[1] >= 0.3 and lap.paced == ()


def test_no_rival_runs_beside_the_spinning_threads_of_another_one() -> None:
    machine = Machine()
    rivals = {
        "first": machine.rival("first", 0.01),
        "spins": machine.rival("spins", 0.004, spins_s=0.05),
        "second": machine.rival("second", 0.01),
    }
    outcome = race(rivals, (6, 6), pacing=ONCE, watch=machine.watch)
    assert machine.disturbed == [] and outcome.disturbed == 0
    for figure in ("paced", "loop"):  # the same plan twice, once behind the one that spins
        assert outcome.median_s("first", figure) == pytest.approx(0.01)
        assert outcome.ratio("second", "first", figure) == pytest.approx(1.0)


def test_the_limit_of_a_rest_is_told_and_not_paid_in_every_turn() -> None:
    machine = Machine()
    machine.spinning_until_s = 1e6  # a thread of the program that has nothing to do with the race
    rest = Rest(machine.watch)
    waited_s = []
    for _ in range(12):
        before_s = machine.now_s
        assert not rest.until_idle()
        waited_s.append(machine.now_s - before_s)
    assert waited_s[0] > waited_s[1] > waited_s[2] and sum(waited_s[2:]) < sum(waited_s[:2])
    outcome = race({"a": machine.rival("a", 0.01)}, (3, 3), pacing=ONCE, watch=machine.watch)
    assert outcome.disturbed == 3
    machine.spinning_until_s = 0.0
    assert rest.until_idle()
    machine.spinning_until_s = 1e6
    before_s = machine.now_s
    assert not rest.until_idle() and machine.now_s - before_s == pytest.approx(waited_s[0])


def test_a_reading_of_a_clock_that_ticks_is_not_taken_for_idleness() -> None:
    """Linux adds up the time of a thread that runs elsewhere every 4 ms, or every 10."""
    machine = Machine()
    machine.spinning_until_s = 0.06
    ticking = Stopwatch(
        machine.watch.now_s, lambda: machine.used_s // 0.01 * 0.01, machine.watch.sleep
    )
    assert Rest(ticking).until_idle()
    assert machine.now_s >= machine.spinning_until_s


def test_a_rival_that_fails_is_out_and_the_others_go_on() -> None:
    machine = Machine()
    runs = 0

    def fails() -> None:
        nonlocal runs
        runs += 1
        if runs > 4:
            raise ExecutionError("the device is gone")

    rivals: dict[str, Any] = {"a": machine.rival("a", 0.01), "b": fails}
    outcome = race(rivals, (3, 3), pacing=ONCE, watch=machine.watch)
    assert len(outcome.samples_s("a", "paced")) == 3 and runs == 5
    assert outcome.samples_s("b", "paced") == [] and outcome.median_s("b", "loop") is None
    assert str(outcome.failed["b"]) == "the device is gone"
    with pytest.raises(ExecutionError, match="gone"):
        outcome.complete()
    alone = race({"b": fails}, (3, 3), pacing=ONCE, watch=machine.watch)
    assert list(alone.failed) == ["b"] and runs == 6


def test_errors_of_signal_handlers_are_not_taken_for_failures_of_a_rival() -> None:
    def interrupted() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        race({"a": interrupted}, (3, 3), watch=Machine().watch)


def test_a_race_ends_when_it_is_decided_or_its_budget_is_spent() -> None:
    machine = Machine()
    rivals = {"fast": machine.rival("fast", 0.010), "slow": machine.rival("slow", 0.011)}

    def rounds(**words: Any) -> list[int]:
        outcome = compete(
            {name: partial(turn, run, ONCE, machine.watch) for name, run in rivals.items()},
            (3, 8),
            watch=machine.watch,
            **words,
        )
        return [len(outcome.rounds_s(name, "loop")) for name in rivals]

    assert rounds() == [8, 8]
    assert rounds(budget_s=1e-9) == [3, 3]
    seen: list[int] = []

    def is_decided(outcome: Outcome[str], took_s: float) -> bool:
        assert took_s > 0
        seen.append(len(outcome.rounds_s("slow", "paced")))
        return seen[-1] == 2

    assert rounds(is_decided=is_decided) == [2, 2] and seen == [1, 2]


class OfOnePlan:
    """Stands for the plan of a candidate: counts the plans that are open at the same time."""

    opened: ClassVar[list[str]] = []
    most = 0

    def __init__(self, name: str, seconds: float, machine: Machine) -> None:
        self.name, self.run = name, machine.rival(name, seconds)
        model = SimpleNamespace(candidates=lambda: iter([{}]), graph=None)
        self.work: Any = SimpleNamespace(model=model, release=lambda: None)

    def __enter__(self) -> Self:
        self.opened.append(self.name)
        OfOnePlan.most = max(OfOnePlan.most, len(self.opened))
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.remove(self.name)


def plan_race_of(
    seconds: Sequence[float],
    monkeypatch: pytest.MonkeyPatch,
    left_s: float = 1e6,
    engines: Sequence[str] = ("onnxruntime",),
) -> plan_race.PlanRace:
    """A race of a candidate for each of these times: the first is the reference. The engines are
    those of the candidates in turn."""
    machine, rows, plans = Machine(), dict[Key, Candidate](), dict[Key, Any]()
    for number, each_s in enumerate(seconds):
        plan = OfOnePlan(str(number), each_s, machine)
        engine = engines[number % len(engines)]
        row = Candidate((f"cpu:{number}",), "single", engines=(engine,))
        rows[row.key], plans[row.key] = row, [(plan.work, plan)]
    monkeypatch.setattr(
        plan_race, "prepared_of", lambda plans: SimpleNamespace(start=lambda: plans[0][1])
    )
    monkeypatch.setattr(plan_race, "main_memory_bytes", lambda: None)
    monkeypatch.setattr(plan_race, "least_bytes", lambda graph: 0)
    monkeypatch.setattr(
        plan_race, "warm_turn", lambda plan, *_: partial(turn, plan.run, ONCE, machine.watch)
    )
    monkeypatch.setattr(plan_race, "Stopwatch", lambda **_: machine.watch)
    objective, deadline = (
        objective_of("latency", RULES),
        Deadline(left_s, now_s=lambda: machine.now_s),
    )
    return plan_race.PlanRace(
        rows, plans, objective, RULES, deadline, None, lambda *_: None, compete
    )


def raced_plans(
    seconds: Sequence[float], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[list[int], list[Candidate]]:
    """The rounds of each candidate of `plan_race_of`, and the candidates."""
    plans_raced = plan_race_of(seconds, monkeypatch, **options)
    first = next(iter(plans_raced.rows))
    plans_raced.run()
    assert plans_raced.reference == first
    ran = list(plans_raced.rows.values())
    return [row.rounds for row in ran], ran


@pytest.mark.parametrize("before", [1, 2])
def test_plans_are_untried_if_the_reference_does_not_start_again(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a race of two plans, and after one in which the reference was alone."""

    def fails(plan: OfOnePlan) -> OfOnePlan:
        raise ExecutionError("the device is gone")

    plans_raced = plan_race_of([0.010, 0.012, 0.005], monkeypatch)
    plans = plans_raced.plans
    first, *_, added = plans
    plans_raced.plans = dict(list(plans.items())[:before])
    plans_raced.run()
    rounds = plans_raced.rows[first].rounds
    plans_raced.plans = plans
    monkeypatch.setattr(OfOnePlan, "__enter__", fails)
    plans_raced.run()
    assert plans_raced.reference == first and plans_raced.rows[first].is_able
    assert plans_raced.rows[first].rounds == rounds
    assert plans_raced.rows[added].status == "untried"
    assert plans_raced.rows[added].reason == (
        f"{plans_raced.rows[first]} did not start again: the device is gone"
    )


def test_plans_race_one_after_the_other_with_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, _ = raced_plans([0.010, 0.005, 0.012, 0.006, 0.010], monkeypatch)
    assert OfOnePlan.most == 2 and not OfOnePlan.opened
    assert rounds[0] == sum(rounds[1:])
    assert rounds[1] >= RULES.rounds[0]
    # Slower than the reference, or than the best plan so far, in each of two rounds.
    assert [rounds[2], rounds[3], rounds[4]] == [RULES.cut_rounds] * 3


def test_a_plan_in_doubt_races_again_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def two_rounds(turns: Any, rounds: tuple[int, int], **words: Any) -> Outcome[int]:
        calls.extend(which for which in turns if which)
        return Outcome({which: [run() for _ in range(2)] for which, run in turns.items()})

    monkeypatch.setattr(sys.modules[__name__], "compete", two_rounds)
    rounds, _ = raced_plans([0.010, 0.005, 0.020], monkeypatch)
    assert calls == [1, 2, 1, 1] and rounds[1] == 6 >= RULES.rounds[0]


def test_before_a_compiler_starts_a_plan_in_doubt_races_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    whole_race = compete

    def noted(turns: Any, *args: Any, **words: Any) -> Outcome[int]:
        calls.extend(which for which in turns if which)
        return whole_race(turns, *args, **words)

    monkeypatch.setattr(sys.modules[__name__], "compete", noted)
    engines = ["onnxruntime", "cpp", "onnxruntime", "cpp"]
    raced_plans([0.010, 0.004, 0.005, 0.020], monkeypatch, engines=engines)
    assert calls == [2, 2, 1, 1, 3]


def test_a_race_that_is_clearly_won_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    won = RULES.clearly_faster - 0.1
    rounds, _ = raced_plans([0.010, 0.010 * won], monkeypatch)
    assert rounds[1] == RULES.starts * RULES.rounds[0]
    rounds, _ = raced_plans([0.010, 0.010 * (RULES.clearly_faster + 0.1)], monkeypatch)
    assert rounds[1] > RULES.starts * RULES.rounds[0]


def test_a_plan_for_which_there_is_no_time_is_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ran = raced_plans([1.0, 0.9, 0.5], monkeypatch, left_s=5.0)
    first, second = ran[1:]
    assert 0 < first.rounds < RULES.rounds[0] and second.status == "untried"
    assert "within 5 s" in second.reason


def test_what_the_host_takes_is_told_as_a_share() -> None:
    machine = Machine()

    def stolen_from() -> None:
        machine._pass(0.9, busy=1.0)
        machine.stolen_s += 0.1

    outcome = race({"one": stolen_from}, (4, 4), watch=machine.watch)
    assert outcome.stolen == pytest.approx(0.1)


@pytest.mark.parametrize(("repeats", "seconds"), [(0, [9.0, 2.0, 3.0]), (1, [2.0, 3.0, 4.0])])
def test_a_round_of_which_the_host_took_a_part_is_run_again(
    repeats: int, seconds: list[float]
) -> None:
    machine = Machine()
    due = iter([9.0, 2.0, 3.0, 4.0])

    def run() -> None:
        took_s = next(due)
        machine._pass(took_s, busy=1.0)
        machine.stolen_s += 1.0 if took_s == 9.0 else 0.0

    pacing = Pacing(discard=0, paced=0, loop=1)
    outcome = race({"one": run}, (3, 3), repeats=repeats, pacing=pacing, watch=machine.watch)
    assert outcome.rounds_s("one", "loop") == seconds
    assert outcome.repeated == repeats
    assert outcome.stolen == pytest.approx(0.0 if repeats else 1 / 15)
    assert next(due, None) == (None if repeats else 4.0)


def test_the_times_of_this_machine() -> None:
    before = processor_time()
    _spin(*(threading.Event() for _ in range(3)))
    after = processor_time()
    assert 0.0 <= after.since(before).stolen < 1.0
    if sys.platform == "linux":
        assert after.busy_s > before.busy_s
    assert after.since(after).stolen == 0.0


def test_nothing_to_race() -> None:
    assert race({}, (3, 8), watch=Machine().watch) == Outcome()


def test_a_thread_that_spins_after_each_run_is_waited_for() -> None:
    spinning = threading.Event()
    seen: list[bool] = []
    threads: list[threading.Thread] = []
    starved: list[float] = []

    def spin() -> None:
        began_s, end_s = time.perf_counter(), REAL.used_s() + 0.03
        while REAL.used_s() < end_s:
            pass
        took_s = time.perf_counter() - began_s
        if took_s > 0.045:  # other programs had its core meanwhile, so it looked as if it rested
            starved.append(took_s)
        spinning.clear()

    def starts_a_spinning_thread() -> None:
        if not spinning.is_set():
            spinning.set()
            threads.append(threading.Thread(target=spin))
            threads[-1].start()

    rivals = {"spins": starts_a_spinning_thread, "other": lambda: seen.append(spinning.is_set())}
    outcome = race(rivals, (3, 3), pacing=Pacing(paced=0, loop=1))
    for thread in threads:
        thread.join()
    assert len(threads) + outcome.disturbed + len(starved) >= 3 and len(seen) == 6
    # None, unless the limit of a rest was reached or the thread did not get a core.
    assert sum(seen) <= 2 * (outcome.disturbed + len(starved)), starved


def _spin(begun: Any, ended: Any, starved: Any) -> None:
    begun.set()
    began_s, end_s = time.perf_counter(), REAL.used_s() + 0.05
    while REAL.used_s() < end_s:
        pass
    if time.perf_counter() - began_s > 0.065:  # see above
        starved.set()
    ended.set()


def test_processes_that_spin_are_waited_for() -> None:
    context = multiprocessing.get_context("spawn")
    begun, ended, starved = context.Event(), context.Event(), context.Event()
    process = context.Process(target=_spin, args=(begun, ended, starved))
    process.start()
    clock = cpu_clock([process.pid or 0])
    rest = Rest(Stopwatch(used_s=clock))
    begun.wait()
    while not rest.until_idle():
        pass
    seen = ended.is_set()
    assert ended.wait(ENOUGH_S) and (seen or starved.is_set())
    before_s = clock()
    process.join()
    assert 0.0 < clock() < before_s  # a process that has ended is no error, and no longer counted


def test_rivals_in_processes_of_their_own_return_their_laps() -> None:
    machine = Machine()
    order: list[str] = []

    def lap_of(name: str) -> Callable[[], Any]:
        def run() -> Any:
            order.append(name)
            return turn(machine.rival(name, 0.01), ONCE, machine.watch)

        return run

    outcome = compete({n: lap_of(n) for n in "ab"}, (2, 2), watch=machine.watch)
    assert order == ["a", "b", "b", "a"]
    assert outcome.samples_s("b", "loop") == pytest.approx([0.01, 0.01])
