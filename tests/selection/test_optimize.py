"""`coexec optimize`: a verdict within the time, and a plan where it is worth it."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu
from coexec.errors import CoexecError, ModelError, UsageError
from coexec.model.main_memory import peak_bytes
from coexec.processes import EndedError
from coexec.profiling.processors import Load, ProcessorTime
from coexec.rules import RULES, Rules
from coexec.selection import optimize as module
from coexec.selection.candidates import Deadline, OutOfTimeError
from coexec.selection.chooser import Chooser
from coexec.selection.decision import Candidate, Decision
from coexec.selection.optimize import Verdict, optimize
from coexec.selection.quiet_moment import Stopwatch
from coexec.settings import Effort, Settings
from tests.helpers.small_models import branches

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only")
QUICK = Effort(warm_up=1, least=2, most=2)
ONE_ENGINE = Rules(further_engines=False)
ORT = Candidate(("cpu:0-1",), "single", engines=("onnxruntime",), own_session=True, paced_s=0.0331)
BEST = Candidate(
    ("cpu:0-1/cpp",), "single", paced_s=0.0224, rounds_s=((0.0224, 0.0331),) * 6, reason="why"
)
UNTRIED = Candidate(("cpu:0", "cpu:1"), "", None, status="untried", reason="no time")
DOUBTFUL = replace(BEST, status="in doubt", reason="it takes 0.68 in 2 rounds; 5 are needed")
DECISION = Decision((BEST, ORT, UNTRIED), reference=str(ORT), shapes="images=1,3,224,224")
FASTER = Verdict(DECISION, "{}")
DOUBTED = Verdict(Decision((ORT, DOUBTFUL, UNTRIED), reference=str(ORT)))
SLOWER = Verdict(Decision((ORT, replace(BEST, rounds_s=((0.011, 0.010),) * 5)), reference=str(ORT)))


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "m.onnx"
    file.write_bytes(branches().SerializeToString())
    return str(file)


def test_a_verdict_is_a_sentence() -> None:
    assert FASTER.is_faster and FASTER.ratio == pytest.approx(0.0331 / 0.0224)
    assert str(FASTER) == (
        "use the plan: cpu:0-1/cpp (single) took 22.4 ms and ONNX Runtime's own session 33.1 ms "
        "at up to 30 requests a second: 1.48 times as fast, in 6 of 6 rounds, for "
        "images=1,3,224,224; more time would try cpu:0+cpu:1"
    )
    nothing = "no candidate that may answer is proven to be faster than its own session"
    assert str(SLOWER) == f"keep ONNX Runtime: {nothing}"
    assert not SLOWER.is_faster and SLOWER.ratio == pytest.approx(0.010 / 0.011)
    differs = replace(BEST, status="refused", comparison="its answers differ")
    verdict = Verdict(Decision((ORT, differs), reference=str(ORT)))
    assert verdict.refused == f"{differs} takes 0.68 of its time, but its answers differ"
    assert f"({verdict.refused})" in str(verdict)
    doubtful = Verdict(Decision((ORT, DOUBTFUL), reference=str(ORT)))
    assert str(doubtful) == f"keep ONNX Runtime (in doubt): {nothing}"
    assert doubtful.doubt == f"{DOUBTFUL}: {DOUBTFUL.reason}"
    assert (DOUBTED.doubt or "").endswith("no time to try cpu:0+cpu:1")
    assert "keep ONNX Runtime" in str(Verdict(unfinished="the model was loaded"))


class Sends:
    """Stands for the process that chooses: sends these messages, then nothing, or an error."""

    pid = os.getpid()

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)

    def receive(self, limit_s: float) -> Any:
        if not self.messages:
            raise TimeoutError
        if isinstance(message := self.messages.pop(0), CoexecError):
            raise message
        return message


def followed(*messages: Any) -> Verdict:
    return module._followed(Sends(*messages), 0.0, None)  # type: ignore[arg-type]


def test_an_unfinished_call_has_the_figures_so_far() -> None:
    race = "race of 4 plans", 30, 100, 0.6
    verdict = followed(race)
    assert verdict.unfinished == "race of 4 plans, 30 of 100" and verdict.others == 0.6
    assert verdict.peak_bytes == peak_bytes()
    for messages, ended in (
        ([FASTER, race], "the time was over"),
        ([FASTER, race, EndedError("its process has crashed")], "its process has crashed"),
    ):
        verdict = followed(*messages)
        assert verdict.is_faster and str(verdict).endswith(
            f"more time would try cpu:0+cpu:1; {ended} during this step: race of 4 plans, 30 of 100"
        )
    assert followed(race, FASTER, None) == FASTER
    with pytest.raises(EndedError, match="crashed"):
        followed(race, EndedError("its process has crashed"))


@pytest.mark.long
def test_it_ends_with_a_verdict_on_a_real_model(model: str, tmp_path: Path) -> None:
    steps: list[str] = []
    settings = Settings(CPUS[:1], cache=tmp_path / "cache", planner_options={"planners": "heft"})
    verdict = optimize(model, settings, 600.0, lambda what, done, total: steps.append(what))
    assert verdict.ratio and (verdict.plan_file is not None) == verdict.is_faster
    assert verdict.candidates and not verdict.untried and verdict.unfinished is None
    assert "plans raced" in steps


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


@pytest.mark.parametrize(
    ("verdict", "is_replaced", "text"),
    [
        (FASTER, False, "plan='m.plan.json'"),
        (FASTER, True, "m.plan.json, in place of an earlier one"),
        (SLOWER, False, "none was written"),
        (SLOWER, True, "m.plan.json is of an earlier call"),
        (replace(SLOWER, peak_bytes=3 << 30), False, "memory up to 3.00 GiB to choose and race"),
        (DOUBTED, False, f"in doubt {DOUBTED.doubt}; the next call goes on from here"),
    ],
)
def test_the_verdict_is_printed_and_the_plan_is_kept_where_it_is_faster(
    verdict: Verdict,
    is_replaced: bool,
    text: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "optimize", lambda *_: verdict)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.plan.json"
    if is_replaced:
        file.write_text("an earlier one")
    assert main(["optimize", model]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert str(verdict) in said and text in said
    assert file.exists() == (is_replaced or verdict.is_faster)
    assert not file.exists() or (file.read_text() == "{}") == verdict.is_faster
    assert main(["optimize", model, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["verdict"] == str(verdict) and facts["ratio"] == verdict.ratio
    assert facts["peak_bytes"] == verdict.peak_bytes


def test_a_choice_beyond_the_memory_limit_is_refused_in_one_sentence(
    model: str, tmp_path: Path
) -> None:
    settings = Settings(cache=tmp_path, memory_limit="80MiB")
    with pytest.raises(
        CoexecError, match=r"needs more memory than memory_limit=80\.0 MiB"
    ) as caught:
        optimize(model, settings, 20.0)
    assert len(str(caught.value).splitlines()) == 1


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


def test_a_verdict_without_rivals_says_so() -> None:
    alone = Verdict(Decision((ORT, UNTRIED), reference=str(ORT)))
    assert "keep ONNX Runtime (in doubt): there was no time to try anything else" in str(alone)


@two_cores
def test_more_time_tries_what_there_was_no_time_for(tmp_path: Path) -> None:
    def auto(seconds: float) -> Chooser:
        options = {"planners": "heft", "seconds": seconds}
        settings = Settings(
            CPUS, planner_options=options, cache=tmp_path, effort=QUICK, rules=ONE_ENGINE
        )
        return Chooser(branches(), settings)

    first = auto(1e-3).make()
    assert first.decision is not None
    untried = first.decision.untried
    assert {c.devices for c in untried} >= {tuple(CPUS)}
    assert all("within 0.001 s" in c.reason for c in untried)
    assert first.candidates[0].status == "taken"
    again = auto(600.0)
    assert again.known is not None and again.is_open
    assert not any(c.status == "untried" for c in again.go_on().candidates)


@two_cores
def test_an_earlier_choice_is_told_and_goes_on_if_it_is_open(model: str, tmp_path: Path) -> None:
    """What it takes from there is compared with ONNX Runtime on all cores, for any devices."""
    settings = Settings(CPUS, cache=tmp_path, effort=QUICK, rules=replace(ONE_ENGINE, busy=9.0))
    verdicts: list[Verdict] = []
    module._verdicts(model, settings, 600.0, lambda *_: None, verdicts.append)
    last = verdicts[-1]
    assert last.decision is not None and not last.untried and not last.is_earlier
    assert last.decision.reference is not None and whole_cpu() in last.decision.reference
    again: list[Verdict] = []
    module._verdicts(model, settings, 600.0, lambda *_: None, again.append)
    assert again[0].is_earlier and again[0].decision == last.decision
    assert (len(again) == 1) == (last.decision.doubt is None)


@pytest.mark.parametrize("seconds", [0, -1, "30", True, float("nan")])
def test_seconds_of_the_planner_are_a_number_above_zero(seconds: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="option seconds"):
        Chooser(branches(), Settings(CPUS, planner_options={"seconds": seconds}, cache=tmp_path))


def test_waiting_for_requests_does_not_count() -> None:
    times: Iterator[float] = iter([0.0, 5.0, 9.0, 11.0])
    paused = iter([0.0, 2.0, 2.0, 2.0])
    deadline = Deadline(8.0, now_s=lambda: next(times), paused_s=lambda: next(paused))
    rules = Rules(planning_share=1.0)
    assert deadline.left_s() == 5.0
    deadline.check(rules)
    with pytest.raises(OutOfTimeError):
        deadline.check(rules)


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
