"""`coexec optimize`: a verdict within the time, and a plan where it is worth it."""

import json
import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu
from coexec.errors import CoexecError, ModelError, UsageError
from coexec.model.main_memory import peak_bytes
from coexec.profiling.processors import Load, ProcessorTime
from coexec.profiling.profiler import Effort
from coexec.rules import RULES, Rules
from coexec.selection import optimize as module
from coexec.selection.chooser import Chooser
from coexec.selection.deadline import Deadline, OutOfTimeError
from coexec.selection.decision import Candidate, Decision
from coexec.selection.optimize import Verdict, optimize
from coexec.selection.planning_context import PlanningContext
from coexec.selection.quiet_moment import Stopwatch
from coexec.selection.race import Lap, Outcome
from coexec.settings import Settings
from tests.helpers.small_models import branches

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")
QUICK = Effort(warm_up=1, least=2, most=2)
ONE_ENGINE = Rules(further_engines=False)
BEST = Candidate(("cpu:0-1/opencl",), "single", None, paced_s=0.0224)
UNTRIED = Candidate(("cpu:0", "cpu:1"), "", None, status="untried", reason="no time")
DECISION = Decision((BEST, UNTRIED), shapes="images=1,3,224,224")
FASTER = Verdict(
    0.0331, 0.0224, 1.48, is_faster=True, decision=DECISION, reason="1.48 times as fast"
)
SLOWER = Verdict(
    0.010,
    0.011,
    0.909,
    decision=Decision((BEST,)),
    reason="1.10 of its time, and only below 0.97 a plan is clearly faster",
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "m.onnx"
    file.write_bytes(branches().SerializeToString())
    return str(file)


def test_a_verdict_is_a_sentence() -> None:
    assert str(FASTER) == (
        "use the plan: in a last race against ONNX Runtime's session with default options, "
        "cpu:0-1/opencl (single) took 22.4 ms and that session 33.1 ms at up to 30 requests a "
        "second: 1.48 times as fast, for images=1,3,224,224; more time would try cpu:0+cpu:1"
    )
    assert str(SLOWER) == (
        "keep ONNX Runtime: in a last race against ONNX Runtime's session with default options, "
        "cpu:0-1/opencl (single) took 11.0 ms and that session 10.0 ms at up to 30 requests a "
        "second: 1.10 of its time, and only below 0.97 a plan is clearly faster"
    )
    own = replace(BEST, own_session=True, engines=("onnxruntime",))
    assert str(replace(SLOWER, decision=Decision((own,)))) == (
        "keep ONNX Runtime: no candidate that may answer is clearly faster than its own session"
    )
    differs = replace(BEST, status="refused", comparison="its answers differ")
    rows = (replace(own, paced_s=0.0331), differs)
    verdict = replace(SLOWER, decision=Decision(rows))
    assert verdict.refused == f"{differs} takes 0.68 of its time, but its answers differ"
    assert f"({verdict.refused})" in str(verdict)
    assert replace(SLOWER, decision=Decision((rows[0], BEST))).refused is None
    for verdict, word in [(FASTER, "use the plan"), (SLOWER, "keep ONNX Runtime")]:
        assert str(replace(verdict, others=0.5)).startswith(f"{word} (in doubt): ")
    assert "keep ONNX Runtime" in str(Verdict(unfinished="the model was loaded"))


def test_an_unfinished_call_tells_the_load_until_then() -> None:
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    messages.put(("race of 3 plans", 4, 100, 0.6))
    verdict = module._followed(messages, 0.0, None, os.getpid())
    assert verdict.unfinished == "race of 3 plans, 4 of 100"
    assert verdict.others == 0.6 and verdict.is_busy
    assert verdict.peak_bytes == peak_bytes()
    messages.put(FASTER)
    messages.put(("race of 4 plans", 30, 100, 0.0))
    verdict = module._followed(messages, 0.0, None, os.getpid())
    assert verdict.is_faster and str(verdict).endswith(
        "more time would try cpu:0+cpu:1; a second choice, among all devices, was not finished in "
        "the time (race of 4 plans, 30 of 100)"
    )


def chosen_with(*rows: Any, reference: str | None = None) -> Any:
    """A chosen plan whose decision has these candidates, the taken one first."""
    return SimpleNamespace(
        decision=Decision(rows, reference=reference),
        plan="plan",
        graph=None,
        origin=SimpleNamespace(shapes={}),
        work=SimpleNamespace(settings=SimpleNamespace(rules=RULES)),
    )


def test_until_the_last_race_has_ended_the_race_of_all_candidates_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "text_of", lambda *_: "{}")
    monkeypatch.setattr(module, "is_whole_machine", lambda _: True)
    monkeypatch.setattr(module, "whole_cpu", lambda: "cpu:0-1")
    ort = replace(
        BEST, devices=("cpu:0-1",), own_session=True, engines=("onnxruntime",), paced_s=0.033
    )
    chooser: Any = SimpleNamespace(doubt=None)

    def verdict(*rows: Any, reference: str | None = str(ort)) -> Verdict | None:
        return module._until_raced(chosen_with(*rows, reference=reference), chooser)

    quick = replace(BEST, paced_s=0.022, rounds=6, rounds_won=6)
    found = verdict(quick, ort)
    assert found is not None and found.is_faster and found.ratio == pytest.approx(1.5)
    assert found.plan_file == "{}"
    text = str(replace(found, unfinished="race with ONNX Runtime"))
    assert text.startswith(f"use the plan (in doubt): in the race of all candidates, {quick} took")
    assert text.endswith("; a last race was not finished in the time (race with ONNX Runtime)")
    kept = verdict(ort, replace(quick, paced_s=0.034))
    assert kept is not None and not kept.is_faster and str(kept).startswith("keep ONNX Runtime")
    # no figure of ONNX Runtime, few rounds won, or rounds against another plan
    assert verdict(quick) is None
    assert verdict(quick, replace(ort, paced_s=None)) is None
    assert verdict(replace(quick, rounds_won=2), ort) is None
    assert verdict(quick, ort, reference="another plan") is None


def judged(
    decision: Decision, paced: float, loop: float, monkeypatch: pytest.MonkeyPatch
) -> Verdict:
    """The verdict on a plan whose times are these shares of ONNX Runtime's."""
    laps = {"plan": [Lap((paced,), (loop,))] * 5, "ONNX Runtime": [Lap((1.0,), (1.0,))] * 5}
    chosen: Any = SimpleNamespace(decision=decision, plan=None, graph=None, shapes=None, doubt=None)
    chosen.origin = chosen
    monkeypatch.setattr(module, "text_of", lambda *_: "{}")
    return module._judged(chosen, Outcome(laps), 0.0, chosen, RULES)


@pytest.mark.parametrize(
    ("paced", "loop", "is_faster", "reason"),
    [
        (0.9, 0.9, True, "1.11 times as fast"),
        (0.98, 0.9, False, "0.98 of its time, and only below 0.97 a plan is clearly faster"),
        (0.9, 1.0, True, "1.11 times as fast"),
        (0.9, 1.1, False, "0.90 of its time, but 1.10 of its time in a loop"),
    ],
)
def test_a_plan_is_faster_by_one_figure_and_not_slower_by_the_other(
    paced: float, loop: float, is_faster: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = judged(DECISION, paced, loop, monkeypatch)
    assert verdict.is_faster == is_faster and verdict.ratio == pytest.approx(1 / paced)
    assert verdict.reason == reason


@pytest.mark.parametrize(("whole", "word"), [(True, "keep ONNX Runtime"), (False, "use the plan")])
def test_its_default_session_is_not_faster_than_itself(
    whole: bool, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chance it may be in a race. With fewer threads than by default it may be in truth."""
    monkeypatch.setattr(module, "is_whole_machine", lambda cores: whole)
    session = replace(BEST, devices=(whole_cpu(),), engines=("onnxruntime",), own_session=True)
    assert str(judged(Decision((session,)), 0.9, 0.9, monkeypatch)).startswith(word)


@pytest.mark.parametrize(("budget_s", "starts"), [(100.0, 3), (0.0, 1)])
def test_the_last_race_starts_its_rivals_anew(
    budget_s: float, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    rounds: list[tuple[int, int]] = []

    @contextmanager
    def rivals(chosen: Any) -> Iterator[dict[str, Any]]:
        started.append({})
        yield started[-1]

    def race(rivals: Any, limits: tuple[int, int], budget_s: float) -> Outcome[str]:
        assert rivals is started[-1] and budget_s > 0
        rounds.append(limits)
        return Outcome({name: [Lap((float(len(started)),))] for name in ("plan", "ONNX Runtime")})

    monkeypatch.setattr(module, "_rivals", rivals)
    monkeypatch.setattr(module, "race", race)
    chosen: Any = SimpleNamespace(work=SimpleNamespace(settings=Settings()))
    outcome, _ = module._raced(chosen, budget_s)
    assert outcome.rounds_s("plan", "paced") == [float(n + 1) for n in range(starts)]
    assert sum(least for least, _ in rounds) >= RULES.rounds[0]


@pytest.mark.long
def test_it_ends_with_a_verdict_on_a_real_model(model: str, tmp_path: Path) -> None:
    steps: list[str] = []
    settings = Settings(CPUS[:1], cache=tmp_path / "cache", planner_options={"planners": "heft"})
    verdict = optimize(model, settings, 600.0, lambda what, done, total: steps.append(what))
    assert verdict.ort_s and verdict.plan_s and verdict.plan_file is not None
    assert verdict.candidates and not verdict.untried and verdict.unfinished is None
    assert "race with ONNX Runtime" in steps


def test_devices_are_closed_after_the_race(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = PlanningContext(model, Settings(CPUS[:1], cache=tmp_path))
    closed: list[PlanningContext] = []
    monkeypatch.setattr(work, "release", lambda: closed.append(work))
    outcome, _ = module._raced(work.prepared_by("single", {}), 0.1)
    assert closed == [work]
    assert outcome.ratio("plan", "ONNX Runtime", "loop") > 0


def test_a_time_that_is_too_short_is_said(model: str, tmp_path: Path) -> None:
    verdict = optimize(model, Settings(CPUS[:1], cache=tmp_path), 0.1)
    assert verdict.plan_file is None and "the time was over" in str(verdict)


def test_what_cannot_be_optimized(model: str, tmp_path: Path) -> None:
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="--time 30"):
            optimize(model, Settings(cache=tmp_path), seconds)
    with pytest.raises(UsageError, match="heft"):
        optimize(model, Settings(cache=tmp_path, planner="heft"), 1.0)
    with pytest.raises(ModelError, match="absent"):
        optimize(str(tmp_path / "absent.onnx"), Settings(cache=tmp_path), 60.0)


@pytest.mark.parametrize("verdict", [FASTER, SLOWER])
def test_the_plan_is_kept_where_it_is_faster(
    verdict: Verdict,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "optimize", lambda *_: replace(verdict, plan_file="{}"))
    monkeypatch.chdir(tmp_path)
    assert main(["optimize", model]) == 0
    said = capfd.readouterr().out
    assert str(verdict) in said and ("plan='m.plan.json'" in said) == verdict.is_faster
    assert (tmp_path / "m.plan.json").exists() == verdict.is_faster
    assert main(["optimize", model, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["verdict"] == str(verdict) and facts["ratio"] == verdict.ratio
    assert facts["peak_bytes"] is None


def test_the_memory_of_the_choice_is_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "optimize", lambda *_: replace(SLOWER, peak_bytes=3 << 30))
    assert main(["optimize", model]) == 0
    assert "memory     up to 3.00 GiB to choose and race" in capfd.readouterr().out
    assert main(["optimize", model, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["peak_bytes"] == 3 << 30


def test_a_choice_beyond_the_memory_limit_is_refused_in_one_sentence(
    model: str, tmp_path: Path
) -> None:
    settings = Settings(cache=tmp_path, memory_limit="80MiB")
    with pytest.raises(
        CoexecError, match=r"needs more memory than memory_limit=80\.0 MiB"
    ) as caught:
        optimize(model, settings, 20.0)
    assert len(str(caught.value).splitlines()) == 1


def test_a_plan_of_an_earlier_call_is_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "optimize", lambda *_: SLOWER)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.plan.json").write_text("{}")
    assert main(["optimize", model]) == 0
    assert "m.plan.json is of an earlier call" in capfd.readouterr().out
    monkeypatch.setattr(module, "optimize", lambda *_: replace(FASTER, plan_file="{}"))
    assert main(["optimize", model]) == 0
    assert "m.plan.json, in place of an earlier one" in capfd.readouterr().out


def test_a_plan_file_that_is_not_used_is_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["simulate", model, "--planner", "heft", "--cache", str(tmp_path / "cache")]
    assert main(words) == 0 and "--plan" not in capfd.readouterr().err
    Path("m.plan.json").write_text("{}")
    assert main(words) == 0
    assert "m.plan.json is here, and is used with --plan m.plan.json only" in (
        " ".join(capfd.readouterr().err.split())
    )


def test_a_busy_machine_and_a_doubt_are_one_line(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    doubtful = replace(FASTER, plan_file="{}", doubt="the times vary by 30%")
    for others, text in (
        (0.0, "doubt the times vary by 30%; the next call measures again"),
        (0.5, "doubt other programs used 50% of the processors' time"),
    ):
        verdict = replace(doubtful, others=others)
        monkeypatch.setattr(module, "optimize", lambda *_, verdict=verdict: verdict)
        assert main(["optimize", model]) == 0
        said = " ".join(capfd.readouterr().out.split())
        assert text in said and said.count("doubt ") == 1


def test_a_verdict_without_rivals_says_so() -> None:
    session = replace(BEST, engines=("onnxruntime",), own_session=True)
    alone = Verdict(0.010, 0.010, 1.0, decision=Decision((session, UNTRIED)))
    assert "keep ONNX Runtime: there was no time to try anything else" in str(alone)


def test_an_earlier_choice_is_raced_first_and_then_reconsidered(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    class Chosen:
        known, doubt = (
            SimpleNamespace(decision=DECISION, candidates=(BEST,)),
            "the machine was busy",
        )

        def reconsider(self) -> Any:
            calls.append("reconsider")
            return self.known

    def verdict(*_: Any) -> Verdict:
        calls.append("race")
        return FASTER

    monkeypatch.setattr(module, "_chooser", lambda *_, **__: Chosen())
    monkeypatch.setattr(module, "_verdict", verdict)
    monkeypatch.setattr(module, "_until_raced", lambda *_: None)
    settings = Settings(CPUS[:1], cache=tmp_path)
    verdicts = list(module._verdicts(model, settings, 60.0, lambda *_: None))
    assert calls == ["race", "reconsider", "race"]
    assert [v.is_earlier for v in verdicts] == [True, False]


@two_cores
def test_more_time_tries_what_there_was_no_time_for(
    tmp_path: Path,
) -> None:

    def auto(seconds: float) -> Chooser:
        options = {"planners": "heft", "seconds": seconds}
        settings = Settings(
            CPUS, planner_options=options, cache=tmp_path, effort=QUICK, rules=ONE_ENGINE
        )
        return Chooser(branches(), settings)

    first = auto(1e-3).choose()
    assert first.decision is not None
    untried = first.decision.untried
    assert {c.devices for c in untried} >= {tuple(CPUS)}
    assert all("within 0.001 s" in c.reason for c in untried)
    assert first.candidates[0].status == "taken"
    assert auto(1e-4).known is not None
    assert auto(600.0).known is None
    assert not any(c.status == "untried" for c in auto(600.0).choose().candidates)
    assert auto(1200.0).known is not None


@two_cores
def test_what_was_chosen_among_devices_alone_is_chosen_again(
    tmp_path: Path,
) -> None:
    rules = replace(ONE_ENGINE, planners="heft")
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    first = Chooser(branches(), settings, alone=True).choose()
    assert all(len(c.devices) == 1 for c in first.candidates if c.status != "untried")
    assert any(c.devices == tuple(CPUS) for c in first.candidates if c.status == "untried")
    assert Chooser(branches(), settings, alone=True).known is not None
    assert Chooser(branches(), settings).known is None
    assert not any(c.status == "untried" for c in Chooser(branches(), settings).choose().candidates)
    assert Chooser(branches(), settings, alone=True).known is not None


@two_cores
def test_a_choice_is_kept_where_there_is_no_time_to_try_its_plan_again(tmp_path: Path) -> None:
    """A process that was slower than expected has started one plan, and it is another one."""
    rules = replace(ONE_ENGINE, planners="heft")
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=rules)
    second = (CPUS[1],)

    def compete(rivals: Any, *_: Any, **__: Any) -> Outcome[int]:
        laps = {which: [Lap((1.0 + which,), (1.0 + which,))] * 5 for which in rivals}
        return Outcome(laps)

    first = Chooser(branches(), settings, alone=True, compete=compete)
    assert first.choose().decision is not None
    taken = first.decision.taken
    assert taken.devices != second

    class Only(Chooser):
        @property
        def _configurations(self) -> Any:
            return [second]

    later = Only(branches(), settings, compete=compete)
    assert later.known is None
    assert later.choose().decision is not None and later.decision.taken == taken
    assert later.decision.races == 2 and not later.decision.alone


@pytest.mark.parametrize("seconds", [0, -1, "30", True, float("nan")])
def test_seconds_of_the_planner_are_a_number_above_zero(seconds: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="option seconds"):
        Chooser(branches(), Settings(CPUS, planner_options={"seconds": seconds}, cache=tmp_path))


def test_waiting_for_requests_does_not_count() -> None:
    times: Iterator[float] = iter([0.0, 5.0, 9.0, 11.0])
    paused = iter([0.0, 2.0, 2.0, 2.0])
    deadline = Deadline(8.0, now_s=lambda: next(times), paused_s=lambda: next(paused))
    assert deadline.left_s() == 5.0
    deadline.check()
    with pytest.raises(OutOfTimeError):
        deadline.check()


def test_the_share_of_other_programs() -> None:
    """Two of three busy seconds are of others."""
    clock = iter([0.0, 2.0])
    used = iter([0.0, 1.0])
    busy = iter([ProcessorTime(10.0), ProcessorTime(13.0)])
    watch = Stopwatch(
        now_s=lambda: next(clock), used_s=lambda: next(used), processor_time=lambda: next(busy)
    )
    value, load = watch.with_load(lambda: "value")
    assert value == "value" and load.others_s == 2.0
    assert Load(1.0, 4.0).plus(Load(0.0, 4.0)).share == 0.125 > RULES.busy
    assert Load().share == 0.0
