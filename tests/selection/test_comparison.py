"""No plan answers before it was compared with ONNX Runtime."""

import gc
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import coexec
from coexec.cli.checks import check_outputs
from coexec.engines.detect import usable_cores
from coexec.errors import CheckError, DegradedWarning, DeviceError, ExecutionError
from coexec.model.difference import largest
from coexec.runtime.runner import Runner
from coexec.selection import chooser as chooser_module
from coexec.selection import comparison as comparison_module
from coexec.selection.chooser import Chooser
from coexec.selection.comparison import (
    Agreement,
    ReferenceAnswers,
    compared,
    is_exact,
    usual_values,
)
from coexec.selection.kept_requests import ENOUGH, KeptRequests
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Lap, Outcome
from coexec.settings import Settings
from tests.helpers.quick_choice import QUICK_RULES
from tests.helpers.small_models import branches, from_nodes, tensor_info

CORES = usable_cores()[:2]
CPUS = [f"cpu:{core}" for core in CORES]
pytestmark = [
    pytest.mark.skipif(len(CORES) < 2, reason="this process may use one core only"),
    pytest.mark.usefixtures("quick_choice"),
]
X = np.random.default_rng(0).standard_normal((1, 3, 20, 20)).astype(np.float32)
Outputs = dict[str, Any]
Change = Callable[[Mapping[str, Any], Outputs], Outputs]


class Faulty:
    """A plan whose outputs are not those of the model."""

    def __init__(self, runner: Runner, change: Change) -> None:
        self._runner, self._change = runner, change

    def run(self, feeds: Mapping[str, Any], *words: Any, **named: Any) -> Outputs:
        return self._change(feeds, self._runner.run(feeds, *words, **named))

    def close(self) -> None:
        self._runner.close()

    def __enter__(self) -> "Faulty":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that one device computes is cut into modules, too: it is not ONNX Runtime's own."""
    monkeypatch.setattr(PlanningContext, "whole", lambda work, plan: plan)


in_modules = pytest.mark.usefixtures("never_whole")


def test_fewer_inputs_are_compared_if_a_choice_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = PlanningContext(branches(), Settings(CPUS, cache=tmp_path))
    whole = len(ReferenceAnswers(work).answers)
    assert len(ReferenceAnswers(work, -1.0).answers) == whole  # two seconds are enough for all
    monkeypatch.setattr(comparison_module, "_LEAST_S", 0.0)
    assert len(ReferenceAnswers(work, -1.0).answers) == comparison_module._LEAST < whole


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Makes every plan but ONNX Runtime's own session change its outputs."""
    start = PlanningContext.start

    def use(change: Change) -> None:
        def started(work: PlanningContext, prepared: Any) -> Any:
            runner = start(work, prepared)
            return runner if is_exact(prepared) else Faulty(runner, change)

        monkeypatch.setattr(PlanningContext, "start", started)

    return use


def with_output(outputs: Outputs, change: Callable[[Any], Any]) -> Outputs:
    return {**outputs, "y": change(outputs["y"])}


def one_off(array: Any) -> Any:
    changed = array.copy()
    changed.reshape(-1)[0] += np.float32(2e-4) * abs(array).max()
    return changed


FAULTS: dict[str, tuple[Change, str]] = {
    "shape": (lambda fed, out: with_output(out, lambda y: y[:, 1:]), r"ordinary.*shape"),
    "type": (lambda fed, out: with_output(out, lambda y: y.astype(np.float64)), "type float64"),
    "value": (lambda fed, out: with_output(out, one_off), "of its largest value"),
    "NaN from numbers": (
        lambda fed, out: with_output(out, lambda y: y * np.float32(np.nan)),
        r"with ordinary inputs \(coexec check\), output 'y' has nan",
    ),
    "zeros": (
        lambda fed, out: out if np.any(fed["x"]) else with_output(out, lambda y: y + 1),
        r"with zeros \(coexec check --probe zeros\), output 'y'",
    ),
    "large": (
        lambda fed, out: out if np.max(fed["x"]) < 100 else with_output(out, lambda y: y * 0),
        "large numbers",
    ),
}


@pytest.mark.parametrize(
    ("found", "text"),
    [(6e-9, None), (1e-3, r"differs by 0\.004 of its largest value for ordinary inputs")],
)
def test_an_answer_of_zero_is_judged_on_the_scale_of_ordinary_answers(
    found: float, text: str | None
) -> None:
    """A detector answers 0 where nothing is, and some engines' exponential gives nearly 0."""
    rules = Agreement(allowed=1e-4, usual=usual_values({"y": np.array([0.0, -0.25], np.float32)}))
    outputs, zero = {"y": np.array([0, found], np.float32)}, {"y": np.zeros(2, np.float32)}
    why = dict(rules.why_unlike(outputs, zero)).get("y")
    assert (why is None) if text is None else re.search(text, str(why))


@pytest.mark.sampled(3)
@in_modules
@pytest.mark.parametrize("fault", FAULTS)
def test_a_plan_that_differs_is_told_apart(fault: str, tmp_path: Path) -> None:
    change, text = FAULTS[fault]
    work = PlanningContext(branches(), Settings(devices=CPUS, planner="heft", cache=tmp_path))
    prepared = work.prepared_by("heft", {})
    with work.start(prepared) as runner:
        result = compared(prepared, Faulty(runner, change))
    assert re.search(text, str(result.differs))
    assert compared(prepared) == result  # remembered


@in_modules
def test_where_onnx_runtime_differs_from_itself_inputs_do_not_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the scale of ordinary answers is: a chain of normalisations makes noise of zeros."""
    monkeypatch.setattr(
        comparison_module,
        "usual_values",
        lambda ordinary: {name: 1e6 * largest(value) for name, value in ordinary.items()},
    )
    monkeypatch.setattr(
        ReferenceAnswers,
        "plain",
        lambda self, answer: {n: v * np.float32(1.001) for n, v in answer.outputs.items()},
    )
    work = PlanningContext(branches(), Settings(devices=CPUS, planner="heft", cache=tmp_path))
    prepared = work.prepared_by("heft", {})
    with work.start(prepared) as runner:
        result = compared(prepared, Faulty(runner, FAULTS["large"][0]))
    assert result.differs is None and result.alike


def quantized(output: str) -> onnx.ModelProto:
    """Two convolutions between quantizers; the output is a float, or an integer of 8 bits."""
    rng = np.random.default_rng(0)
    weights = (
        rng.integers(-60, 60, (8, 3, 3, 3), np.int8),
        rng.integers(-60, 60, (8, 8, 3, 3), np.int8),
    )
    node = helper.make_node
    nodes = []
    for index, (source, scale) in enumerate([("x", "s0"), ("c0", "s1"), ("c1", "s2")]):
        nodes.append(node("QuantizeLinear", [source, scale, "zero"], [f"q{index}"]))
        nodes.append(node("DequantizeLinear", [f"q{index}", scale, "zero"], [f"d{index}"]))
        if index < 2:
            nodes.append(node("DequantizeLinear", [f"w{index}", "sw"], [f"f{index}"]))
            nodes.append(node("Conv", [f"d{index}", f"f{index}"], [f"c{index}"], pads=[1] * 4))
    nodes[-1 if output == "float32" else -2].output[0] = "y"
    kind = TensorProto.FLOAT if output == "float32" else TensorProto.UINT8
    constants = {
        "s0": np.float32(0.04), "s1": np.float32(0.06), "s2": np.float32(0.1),
        "sw": np.float32(0.005), "zero": np.uint8(128), "w0": weights[0], "w1": weights[1],
    }  # fmt: skip
    y = tensor_info("y", [1, 8, 20, 20], kind)
    nodes = nodes if output == "float32" else nodes[:-1]
    return from_nodes(nodes, [tensor_info("x", [1, 3, 20, 20])], [y], constants)


@in_modules
@pytest.mark.parametrize("output", ["float32", "uint8"])
@pytest.mark.parametrize(("steps", "is_right"), [(1, True), (6, False)])
def test_a_quantized_model_may_round_the_other_way_in_sessions_and_in_check(
    output: str, steps: int, is_right: bool, tmp_path: Path
) -> None:
    """By as much as ONNX Runtime's own answer if its inputs change in their last digits."""

    def stepped(fed: Mapping[str, Any], out: Outputs) -> Outputs:
        if not 1 < np.max(np.abs(fed["x"]), initial=0) < 10:
            return out  # zeros are quantized without rounding, and the largest numbers are cut off
        y = out["y"].copy()
        y.reshape(-1)[::50] += y.dtype.type(steps if output == "uint8" else 0.1 * steps)
        return {"y": y}

    work = PlanningContext(quantized(output), Settings(CPUS, planner="heft", cache=tmp_path))
    prepared = work.prepared_by("heft", {})
    feeds = next(work.model.candidates())
    with work.start(prepared) as runner:
        faulty = Faulty(runner, stepped)
        result = compared(prepared, faulty)
        checked = check_outputs(work, feeds, faulty.run(feeds))
    if is_right:
        assert result.reason is None and result.alike
        assert "amplifies rounding" in checked.verdict and checked.error is None
    else:
        assert "with ordinary inputs (coexec check), output 'y'" in str(result.differs)
        assert isinstance(checked.error, CheckError)
        assert "please report it with the model" in str(checked.error)


@in_modules
def test_a_plan_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(devices=CPUS, planner="heft", cache=tmp_path)
    prepared = PlanningContext(branches(), settings).prepared_by("heft", {})
    first = compared(prepared)
    assert first.alike == 6 and first.reason is None
    monkeypatch.setattr(comparison_module, "_compare", lambda *_: pytest.fail("compared again"))
    again = PlanningContext(branches(), settings).prepared_by("heft", {})
    assert compared(again) == first


@in_modules
def test_a_plan_that_raises_differs(tmp_path: Path) -> None:
    work = PlanningContext(branches(), Settings(devices=CPUS, planner="heft", cache=tmp_path))
    prepared = work.prepared_by("heft", {})

    def fail(fed: Mapping[str, Any], out: Outputs) -> Outputs:
        raise DeviceError("lost")

    with work.start(prepared) as runner:
        result = compared(prepared, Faulty(runner, fail))
    assert "it fails with ordinary" in str(result.reason) and "lost" in str(result.reason)


def later_is_faster(rivals: Iterable[int], *_: Any, **__: Any) -> Outcome[int]:
    """A race that those win that were started last: plans for several devices."""
    laps = {which: [Lap((1 / (1 + which),), (1 / (1 + which),))] * 5 for which in rivals}
    return Outcome(laps)


def test_auto_takes_nothing_that_differs(tmp_path: Path, faulty: Callable[[Change], None]) -> None:
    """The winner is out, with the reason in the decision; the best of the others is taken."""
    faulty(lambda fed, out: with_output(out, one_off))
    settings = Settings(devices=CPUS, cache=tmp_path)
    chosen = Chooser(branches(), settings, compete=later_is_faster).make()
    assert is_exact(chosen)
    out = [c for c in chosen.candidates if c.status == "refused"]
    assert out and all("of its largest value" in c.reason for c in out)
    assert all(c.comparison == c.reason for c in out)
    assert chosen.candidates[0].status == "taken"
    known = Chooser(branches(), settings).known
    assert known is not None and known.candidates == chosen.candidates


def test_throughput_takes_nothing_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(prepared: Any, **_: Any) -> Agreement:
        differs = None if is_exact(prepared) else "output 'y' has other values"
        return Agreement(differs=differs)

    monkeypatch.setattr(chooser_module, "compared", differs)
    rules = replace(QUICK_RULES, parallel_rounds=1, parallel_turn_s=0.02)
    settings = Settings(devices=CPUS, mode="throughput", cache=tmp_path, rules=rules)

    def pairs_win(turns: Mapping[int, Callable[[], Lap]], *_: Any, **__: Any) -> Outcome[int]:
        laps = {which: turn() for which, turn in turns.items()}
        assert all(lap.parallel and not lap.paced for lap in laps.values())
        return Outcome({which: [Lap(parallel=(0.1 * (1 + which),))] for which in laps})

    chosen = Chooser(branches(), settings, compete=pairs_win).make()
    assert is_exact(chosen) and not chosen.beside
    assert chosen.candidates[0].per_s == pytest.approx(5.0)
    assert any("other values" in c.reason and len(c.devices) == 2 for c in chosen.candidates)


@in_modules
def test_a_named_planner_that_differs_says_so_once(
    tmp_path: Path, faulty: Callable[[Change], None]
) -> None:
    faulty(lambda fed, out: with_output(out, one_off))
    expected = onnxruntime.InferenceSession(branches().SerializeToString()).run(None, {"x": X})
    words: dict[str, Any] = {"devices": CPUS, "planner": "heft", "cache": tmp_path}
    for _ in ("compared now", "remembered"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with coexec.InferenceSession(branches(), **words) as session:
                for _ in range(3):
                    found = session.run(None, {"x": X})
                    assert all(map(np.array_equal, found, expected))
                assert "does not compute what ONNX Runtime does" in str(session.degraded)
            gc.collect()
        (warning,) = [w for w in told if w.category is DegradedWarning]
        assert "of its largest value" in str(warning.message)


def reshaped() -> onnx.ModelProto:
    """Two convolutions, and a shape that is an input: made-up ones do not fit."""
    w = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Reshape", ["c", "s"], ["y"]),
    ]
    ends = [tensor_info("x", [4, 4]), tensor_info("s", [3], TensorProto.INT64)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return from_nodes(nodes, ends, [y], {"v": w, "w": w[::-1].copy()})


@in_modules
@pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")
def test_where_made_up_inputs_do_not_run_requests_decide(tmp_path: Path) -> None:
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    feeds = {"x": x, "s": np.array([2, 2, 4])}
    expected = onnxruntime.InferenceSession(reshaped().SerializeToString()).run(None, feeds)
    with coexec.InferenceSession(
        reshaped(), devices=CPUS, planner="heft", cache=tmp_path
    ) as session:
        assert "compared with the next" in str(session.degraded)
        for number in range(ENOUGH):
            assert not session.devices, number
            assert np.array_equal(session.run(None, feeds)[0], expected[0])
        session.wait()
        assert session.devices and session.degraded is None
        assert np.allclose(session.run(None, feeds)[0], expected[0], rtol=1e-5)
    with coexec.InferenceSession(
        reshaped(), devices=CPUS, planner="heft", cache=tmp_path
    ) as session:
        assert session.devices and session.degraded is None  # remembered


@in_modules
@pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")
def test_requests_refuse_a_plan_for_good(tmp_path: Path, faulty: Callable[[Change], None]) -> None:
    faulty(lambda fed, out: with_output(out, one_off))
    feeds = {"x": np.ones((4, 4), np.float32), "s": np.array([2, 2, 4])}
    words: dict[str, Any] = {"devices": CPUS, "planner": "heft", "cache": tmp_path}
    with coexec.InferenceSession(reshaped(), **words) as session:
        for _ in range(ENOUGH):
            session.run(None, feeds)
        session.wait()
        assert not session.devices
        assert "for a request of the program" in str(session.degraded)
    with (
        pytest.warns(DegradedWarning, match="for a request of the program"),
        coexec.InferenceSession(reshaped(), **words) as session,
    ):
        assert not session.devices


def noisy() -> onnx.ModelProto:
    """Two matrix products with noise that is drawn anew in each run."""
    w = np.eye(4, dtype=np.float32)
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["n"]),
        helper.make_node("Add", ["x", "n"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["x", "w"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    return from_nodes(nodes, [tensor_info("x", [4, 4])], [tensor_info("y", [4, 4])], {"w": w})


@in_modules
@pytest.mark.filterwarnings("ignore::coexec.errors.ModelWarning")
def test_what_draws_random_numbers_stays_with_onnx_runtime(tmp_path: Path) -> None:
    work = PlanningContext(noisy(), Settings(devices=CPUS, planner="heft", cache=tmp_path))
    result = compared(work.prepared_by("heft", {}))
    assert result.is_random and "random numbers" in str(result.reason)


class TestAnswered:
    """Requests that are kept in memory."""

    def test_the_latest_are_kept_and_copied(self) -> None:
        kept = KeptRequests(period_s=0.0)
        for number in range(2 * ENOUGH):
            fed, made = np.full(4, number), np.full(2, number)
            kept.add({"x": fed}, ["y"], [made])
            fed[:] = made[:] = -1
        assert [int(r.feeds["x"][0]) for r in kept._kept] == list(range(ENOUGH, 2 * ENOUGH))
        assert [int(r.outputs["y"][0]) for r in kept._kept] == list(range(ENOUGH, 2 * ENOUGH))

    def test_memory_is_bounded(self) -> None:
        kept = KeptRequests(period_s=0.0, most_bytes=300)
        kept.add({"x": np.zeros(80, np.uint8)}, ["y"], [np.zeros(30, np.uint8)])
        assert not kept._kept
        for _ in range(10):
            kept.add({"x": np.zeros(80, np.uint8)}, ["y"], [np.zeros(20, np.uint8)])
        assert (
            sum(a.nbytes for r in kept._kept for a in (*r.feeds.values(), *r.outputs.values()))
            <= 300
        )

    def test_one_in_a_period(self) -> None:
        kept = KeptRequests()
        for number in range(10 * ENOUGH):
            kept.add({"x": np.full(4, number)}, ["y"], [np.zeros(1)])
        assert [int(r.feeds["x"][0]) for r in kept._kept] == list(range(ENOUGH))

    @pytest.mark.parametrize("fed", [[1, 2], {"x": [1.0]}, {"x": np.array(["a"], object)}, None])
    def test_what_is_no_array_is_not_kept(self, fed: Any) -> None:
        kept = KeptRequests()
        kept.add(fed, ["y"], [np.zeros(1)])
        assert not kept._kept


@in_modules
def test_requests_under_way_refuse_a_plan(
    tmp_path: Path, faulty: Callable[[Change], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is right for all made-up inputs and wrong for what the program feeds."""
    odd = np.full_like(X, 12345.0)

    def change(fed: Mapping[str, Any], out: Outputs) -> Outputs:
        return with_output(out, one_off) if np.array_equal(fed["x"], odd) else out

    faulty(change)
    from coexec.selection.plan_selector import PlanSelector
    from coexec.selection.plan_states import PlanState
    from coexec.selection.prepare import prepare

    serving = PlanSelector(
        branches().SerializeToString(), Settings(devices=CPUS, planner="heft", cache=tmp_path)
    )
    own = onnxruntime.InferenceSession(branches().SerializeToString())
    slot = serving._slot(())
    slot.state, slot.requests = PlanState(task="plan"), KeptRequests()
    names = [o.name for o in own.get_outputs()]
    serving.observe((), {"x": odd}, names, own.run(names, {"x": odd}))
    prepared = prepare(serving.source, serving._settings)
    serving._start(slot, prepared)
    assert slot.state.running is None and "for a request of the program" in str(slot.state.reason)
    assert slot.requests is None and not serving.watches
    serving.close()


@pytest.fixture(autouse=True)
def no_plan_left() -> Iterator[None]:
    yield
    gc.collect()


def test_where_nothing_agrees_there_is_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        chooser_module, "compared", lambda *_, **__: Agreement(differs="output 'y' is wrong")
    )
    with pytest.raises(ExecutionError, match=r"no plan may answer.*output 'y' is wrong"):
        Chooser(branches(), Settings(devices=CPUS, cache=tmp_path)).make()


def chooses() -> onnx.ModelProto:
    """Which of four equal rows is the greatest: any of them for zeros."""
    w = np.random.default_rng(0).standard_normal((4, 1)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("ArgMax", ["a"], ["y"], axis=0, keepdims=0),
    ]
    ends = [tensor_info("x", [4, 4])], [tensor_info("y", [1], TensorProto.INT64)]
    return from_nodes(nodes, *ends, {"w": w})


@in_modules
def test_another_choice_among_equals_is_no_fault(tmp_path: Path) -> None:
    def last_of_equals(fed: Mapping[str, Any], out: Outputs) -> Outputs:
        return with_output(out, lambda y: y * 0 + 3) if not fed["x"].any() else out

    def wrong(fed: Mapping[str, Any], out: Outputs) -> Outputs:
        return with_output(out, lambda y: (y + 1) % 4)

    for number, (change, is_right) in enumerate([(last_of_equals, True), (wrong, False)]):
        cache = tmp_path / str(number)
        work = PlanningContext(chooses(), Settings(devices=CPUS, planner="heft", cache=cache))
        prepared = work.prepared_by("heft", {})
        with work.start(prepared) as runner:
            result = compared(prepared, Faulty(runner, change))
        assert (result.reason is None) == is_right, result
