"""The setting `precision`: candidates, errors and limits, tasks that stay in float32, the offer.

The engine "rough" computes in bf16 with errors that are known, whatever the processor has.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from coexec.cli.checks import check_outputs
from coexec.engines.base import Processor
from coexec.engines.detect import usable_cores
from coexec.engines.names import parse
from coexec.engines.registry import Driven, describe, processors
from coexec.errors import DeviceError, DeviceNameError, UsageError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.model.difference import errors_of
from coexec.plan.plan import Plan, Provenance
from coexec.plan.plan_file import PlanFile
from coexec.precision import PRECISIONS, allowed
from coexec.rules import Rules
from coexec.selection.chooser import Chooser
from coexec.selection.comparison import ReferenceAnswers, compared
from coexec.selection.configurations import (
    check_precision,
    configurations,
    in_lower_precision,
)
from coexec.selection.decision import Candidate, Decision, Offer
from coexec.selection.mixed import MixedPlans, PrecisePlans
from coexec.selection.optimize import optimize
from coexec.selection.plan_files import text_of
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Lap, Outcome
from coexec.session import InferenceSession
from coexec.settings import Settings
from tests.helpers.engine_packages import installed_package
from tests.helpers.gpu_networks import in_float16
from tests.helpers.small_models import from_nodes, tensor_info

CPU = f"cpu:{usable_cores()[0]}"
ROUGH, BF16 = f"{CPU}/rough", f"{CPU}/rough:bf16"
RULES = Rules(starts=1, busy=9.0, stolen=9.0)
LIMIT = 0.02
"""The default of bf16."""


@pytest.fixture(autouse=True)
def package() -> Iterator[Path]:
    """Installs the package with the engine "rough"."""
    with installed_package("rough") as folder:
        yield folder


def chain(*operators: str) -> Any:
    """Operators of one input, one after the other, each with a product behind it."""
    nodes, name = [], "x"
    for number, operator in enumerate(operators):
        nodes.append(helper.make_node(operator, [name], [f"h{number}"], f"{operator}_{number}"))
        name = f"m{number}"
        nodes.append(helper.make_node("MatMul", [f"h{number}", "w"], [name], f"product_{number}"))
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) / 3
    return from_nodes(nodes, [tensor_info("x", [2, 8])], [tensor_info(name, [2, 8])], {"w": weight})


PRECISE, WITH_TANH = chain("Neg", "Abs"), chain("Neg", "Tanh", "Abs", "Neg")


def faster(gain: float) -> Any:
    """A race in which the second rival is ``gain`` times as fast as the first one."""

    def compete(rivals: Mapping[int, Any], *_: object, **__: object) -> Outcome[int]:
        seconds = {which: 0.01 / (gain if place else 1.0) for place, which in enumerate(rivals)}
        return Outcome({which: [Lap((s,), (s,))] * 6 for which, s in seconds.items()})

    return compete


def in_turn(gains: Iterable[float], steps: list[Any]) -> Any:
    """Races with these gains, one after the other. Each one is noted in ``steps``."""
    left = iter(gains)

    def compete(rivals: Mapping[int, Any], *_: object, **__: object) -> Outcome[int]:
        steps.append(next(left))
        outcome: Outcome[int] = faster(steps[-1])(rivals)
        return outcome

    return compete


def decided(
    model: Any, cache: Path, gain: float = 2.0, **settings: Any
) -> tuple[Chooser, Decision]:
    words = {"devices": [ROUGH], "precision": "bf16", "rules": RULES} | settings
    chooser = Chooser(model, Settings(cache=cache, **words), compete=faster(gain))
    decision = chooser.make().decision
    assert decision is not None
    return chooser, decision


def row_of(decision: Decision, device: str = BF16) -> Candidate:
    return next(row for row in decision.candidates if row.devices == (device,))


def test_what_each_precision_allows() -> None:
    assert [allowed(least) for least in PRECISIONS] == [
        ("float32",),
        ("float32", "tf32"),
        ("float32", "tf32", "bf16"),
        ("float32", "tf32", "fp16"),
    ]


def test_a_device_is_named_with_its_precision() -> None:
    assert parse(BF16).engine == "rough" and parse(BF16).precision == "bf16"
    device = describe(BF16)
    assert str(device.place) == BF16 and device.engine.precision == device.place.precision == "bf16"
    assert str(describe(f"{ROUGH}:float32").place) == str(describe(ROUGH).place) == ROUGH
    option = {"rough": {"precision": "bf16"}}
    assert describe(ROUGH, option).place == device.place
    assert str(describe(f"{ROUGH}:float32", option).place) == ROUGH  # the name counts
    assert device.key != describe(ROUGH).key  # a profile of its own
    with pytest.raises(
        DeviceError, match=r"'onnxruntime' computes in float32 on .*, and not in bf16"
    ):
        describe(f"{CPU}/onnxruntime:bf16")
    with pytest.raises(UsageError, match=r"rough\.precision='fp16': it is one of float32, bf16"):
        describe(f"{ROUGH}:fp16")
    with pytest.raises(DeviceNameError, match="'int8', which is none of float32, tf32, bf16, fp16"):
        parse(f"{ROUGH}:int8")


def driven(name: str, **precisions: tuple[str, ...]) -> Driven:
    by = {e: Processor(name.partition(":")[0], name, precisions=p) for e, p in precisions.items()}
    return Driven(name, name, by)


MACHINE = [
    driven("cpu", onnxruntime=("float32",), openvino=("float32", "bf16")),
    driven("gpu:0", cuda=("float32", "tf32", "fp16"), opencl=("float32", "fp16")),
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(kind: str | None = None) -> list[Driven]:
        return [d for d in MACHINE if kind in (None, d.name.partition(":")[0])]

    def described(name: str, *_: object) -> Device:
        of = parse(name)
        engine = EngineInfo(of.engine or "onnxruntime", precision=of.precision or "float32")
        return Device(of.device, of.kind, engine)

    for name in ("processors", "untried"):
        monkeypatch.setattr(f"coexec.selection.configurations.{name}", listed)
    monkeypatch.setattr("coexec.selection.configurations.describe", described)


@pytest.mark.usefixtures("machine")
def test_each_engine_is_one_more_candidate_in_each_allowed_precision() -> None:
    engines = {
        "float32": ["", "/openvino"],
        "tf32": ["", "/openvino"],
        "bf16": ["", "/openvino", "/openvino:bf16"],
    }
    for precision, endings in engines.items():
        tried = configurations([CPU], precision=precision)  # type: ignore[arg-type]
        assert tried == [(f"{CPU}{ending}",) for ending in endings]
    # Who names an engine, gets this one, and its precisions.
    assert configurations([f"{CPU}/onnxruntime"], precision="bf16") == [(f"{CPU}/onnxruntime",)]
    named = f"{CPU}/openvino"
    assert configurations([named], precision="bf16") == [(named,), (f"{named}:bf16",)]
    assert configurations([f"{named}:bf16"]) == [(f"{named}:bf16",)]
    given = {"openvino": {"precision": "bf16"}}
    assert configurations([named], precision="bf16", options=given) == [(named,)]
    gpus = ["gpu:0", "gpu:0/cuda:tf32", "gpu:0/cuda:fp16"]  # opencl runs the same kernels
    of_machine = [names[0] for names in configurations(precision="fp16") if len(names) == 1]
    assert [name for name in of_machine if name.startswith("gpu")] == gpus
    assert configurations(["gpu:0/opencl"])[0] == ("gpu:0/opencl",)


@pytest.mark.usefixtures("machine")
def test_a_precision_that_nothing_has_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    check_precision("float32")
    check_precision("fp16")
    check_precision("bf16", [CPU])
    with pytest.raises(UsageError) as caught:
        check_precision("fp16", [f"{CPU}/openvino", f"{CPU}/onnxruntime"])
    assert str(caught.value) == (
        "precision='fp16': no engine of these devices computes in it; "
        "cpu/onnxruntime has float32; cpu/openvino has float32, bf16"
    )
    with pytest.raises(UsageError, match=r"precision='tf32'.*openvino has float32, bf16"):
        InferenceSession(PRECISE, devices=[CPU], precision="tf32", cache=tmp_path)


@pytest.mark.parametrize(
    ("device", "why"),
    [("gpu:9", "does not exist"), ("tpu:0", "unknown device"), (f"{CPU}/absent", "no engine")],
)
def test_a_device_that_is_not_there_is_no_question_of_precision(device: str, why: str) -> None:
    with pytest.raises(DeviceError, match=why):
        check_precision("bf16", [device])


def test_an_engine_that_exists_by_its_options_is_planned_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a plug-in that an option names: without the option, there is none."""
    options = {"rough": {"precision": "bf16"}}
    asked = []

    def with_options(name: str, given: Any = None) -> Any:
        asked.append(given)
        return describe(name, given)

    monkeypatch.setattr("coexec.selection.configurations.describe", with_options)
    assert (ROUGH,) in configurations([ROUGH], options=options)
    monkeypatch.setattr("coexec.selection.configurations.untried", lambda kind: [])  # not listed
    check_precision("bf16", [ROUGH], options)
    with pytest.raises(UsageError, match=f"computes in it; {ROUGH} has bf16$"):
        check_precision("fp16", [ROUGH], options)
    assert asked == [options] * 3


def test_without_a_lower_precision_nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("coexec.selection.configurations.untried", fails)
    check_precision("float32")


def test_errors_are_relative_to_the_largest_value() -> None:
    expected = np.array([[0.0, 4.0], [3.0, 1.0]], np.float32)
    actual = np.array([[0.0, 4.0], [1.0, 3.0]], np.float32)
    errors = errors_of(actual, expected)
    assert (errors.largest, errors.mean) == (0.5, 0.25)
    assert (errors.same_class, errors.rows) == (1, 2)
    assert errors_of(actual, expected, usual=8.0).largest == 0.25
    assert errors_of(expected.astype(np.int64), expected.astype(np.int64)).rows == 0
    assert errors_of(actual[:, :1], expected).largest == np.inf  # how many boxes were found


def test_a_plan_in_a_lower_precision_states_its_error_and_the_limit(tmp_path: Path) -> None:
    _, decision = decided(PRECISE, tmp_path)
    taken = decision.taken
    assert taken.devices == (BF16,) and taken.precision == "4 of 4 tasks in bf16"
    assert taken.comparison is not None
    assert "error 0.004 of the largest value" in taken.comparison
    assert "the first class stays in" in taken.comparison and "(limit 0.02)" in taken.comparison
    assert decision.precision == f"{taken.precision}; {taken.comparison}"
    _, default = decided(PRECISE, tmp_path, precision="float32")
    assert all(not row.precision for row in default.candidates) and default.precision is None


def test_it_is_compared_on_the_inputs_of_the_user(tmp_path: Path) -> None:
    inputs = {"x": np.full((2, 8), 0.5, np.float32)}
    _, decision = decided(PRECISE, tmp_path, examples=inputs)
    assert decision.taken.comparison is not None
    assert "for the given inputs: error 0.004 " in decision.taken.comparison
    assert "stays in 2 of 2 rows" in decision.taken.comparison
    _, others = decided(PRECISE, tmp_path, examples={"x": inputs["x"] * 2})
    assert others.taken.comparison is not None and others.passes == 1  # a choice of its own


def test_tasks_that_lose_too_much_stay_in_float32(tmp_path: Path) -> None:
    chooser, decision = decided(WITH_TANH, tmp_path)
    assert decision.taken.devices == (BF16,)
    assert decision.taken.precision == "6 of 7 tasks in bf16"
    assert chooser.known is not None
    plan = chooser.known.plan
    (tanh,) = [piece for piece, place in plan.place_of.items() if place.precision == "float32"]
    operators = chooser.known.graph.task[tanh.task].operators
    assert "Tanh" in {operator.op_type for operator in operators}
    assert {str(place) for place in plan.places} == {BF16, ROUGH}
    # The plan is remembered, and its file says in which precision each task is.
    again = Chooser(WITH_TANH, Settings([ROUGH], precision="bf16", rules=RULES, cache=tmp_path))
    assert again.known is not None and again.known.plan.lower == {"bf16": 6}
    file = PlanFile.from_json(text_of(plan, chooser.known.graph, {}))
    with InferenceSession(WITH_TANH, plan=file.plan, strict=True, cache=tmp_path) as session:
        x = np.ones((2, 8), np.float32)
        session.run(None, {"x": x})
        assert session.degraded is None


@pytest.mark.parametrize(
    "model, expected, taken",
    [
        # The gains of bf16, ONNX Runtime without changes, float32, bf16 with a task in float32.
        (WITH_TANH, [4.0, 1.0, 2.0, "searched", 3.0], (BF16, "6 of 7")),
        (WITH_TANH, [4.0, 1.0, 2.0, "searched", 1.5], (ROUGH, "")),
        (WITH_TANH, [2.0, 1.0, 4.0], (ROUGH, "")),  # a mixed plan would not be faster either
        (WITH_TANH, [0.5, 1.0, 4.0], (ROUGH, "")),
        (PRECISE, [4.0, 1.0, 2.0], (BF16, "4 of 4")),
    ],
)
def test_tasks_that_stay_in_float32_are_searched_only_where_bf16_is_the_fastest(
    model: Any,
    expected: Sequence[Any],
    taken: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search may take all of the time, so all others are raced before."""
    steps: list[Any] = []
    best = MixedPlans.best

    def noted(plans: MixedPlans) -> Plan:
        steps.append("searched")
        return best(plans)

    monkeypatch.setattr(MixedPlans, "best", noted)
    compete = in_turn([step for step in expected if step != "searched"], steps)
    settings = Settings(precision="bf16", rules=RULES, cache=tmp_path, devices=[ROUGH])
    decision = Chooser(model, settings, beside_ort=True, compete=compete).make().decision
    assert steps == expected
    assert decision is not None and decision.taken.devices == taken[:1]
    assert decision.taken.precision.startswith(taken[1])
    assert len({row.key for row in decision.candidates}) == len(decision.candidates)


@pytest.mark.parametrize("gain, taken", [(4.0, BF16), (1.5, ROUGH)])
def test_a_choice_in_bf16_goes_on_from_the_one_in_float32(
    gain: float, taken: str, tmp_path: Path
) -> None:
    raced: list[float] = []

    def chosen(precision: str, *gains: float, **more: Any) -> tuple[str, ...]:
        compete = in_turn(gains, raced)
        words: dict[str, Any] = {"precision": precision, "rules": RULES} | more
        settings = Settings([ROUGH], cache=tmp_path, **words)
        plan = Chooser(PRECISE, settings, beside_ort=True, compete=compete).make()
        assert plan.decision is not None
        assert {row.devices for row in plan.decision.candidates} >= {(ROUGH,)}
        with plan.start() as runner:
            runner.run({"x": np.ones((2, 8), np.float32)})
        return plan.decision.taken.devices

    assert chosen("float32", 1.0, 2.0) == (ROUGH,)
    assert chosen("bf16", gain) == (taken,)
    assert raced == [1.0, 2.0, gain]
    assert chosen("bf16", gain, 1.0, 2.0, fresh=True) == (taken,)


def test_a_tolerance_that_cannot_be_met_keeps_float32_and_says_by_how_much(tmp_path: Path) -> None:
    _, decision = decided(PRECISE, tmp_path, tolerance=2e-4)
    assert decision.taken.precision == ""
    row = row_of(decision)
    assert row.status == "refused" and decision.precision is not None
    assert decision.precision == f"float32, because of {row}: {row.reason}"
    assert (
        "differs by 0.004 of its largest value" in row.reason and "2e-04 is allowed" in row.reason
    )


def test_a_tolerance_replaces_the_limit_and_stays_with_the_plan(tmp_path: Path) -> None:
    chooser, decision = decided(WITH_TANH, tmp_path, tolerance=0.2)
    assert decision.taken.precision == "7 of 7 tasks in bf16"
    assert "(limit 0.2)" in str(decision.taken.comparison)
    assert chooser.known is not None
    text = text_of(chooser.known.plan, chooser.known.graph, {})
    file = PlanFile.from_json(text)
    assert Settings(plan=file).tolerance == 0.2
    assert Settings(plan=file, tolerance=0.1).tolerance == 0.1


@pytest.mark.parametrize("by", ["planner", "file"])
def test_a_comparison_holds_for_its_tolerance_alone(by: str, tmp_path: Path) -> None:
    work = PlanningContext(WITH_TANH, Settings([BF16], cache=tmp_path))
    file = PlanFile.from_json(text_of(work.plan("single"), work.graph, {}))
    words: dict[str, Any] = {"plan": file} if by == "file" else {"devices": [BF16]}

    def agrees(tolerance: float | None) -> bool:
        settings = Settings(cache=tmp_path, tolerance=tolerance, **words)
        planned = PlanningContext(WITH_TANH, settings)
        known = planned.make() if by == "file" else planned.prepared_by("single", {})
        return compared(known).reason is None

    assert [agrees(each) for each in (0.5, None, 0.05, 0.5)] == [True, False, False, True]


def test_check_names_the_tolerance_as_the_remedy(tmp_path: Path) -> None:
    work = PlanningContext(WITH_TANH, Settings([BF16], cache=tmp_path))
    feeds = {"x": np.ones((2, 8), np.float32)}
    wrong = {name: value * 1.1 for name, value in work.user_model.reference(feeds).items()}
    error = check_outputs(work, feeds, wrong).error
    assert "2e-02 is allowed" in str(error)
    assert "in a lower precision: allow more with --tolerance" in str(error)


def test_in_mode_throughput_each_device_is_made_precise(tmp_path: Path) -> None:
    names = [f"cpu:{core}/rough" for core in usable_cores()[:2]]
    _, decision = decided(WITH_TANH, tmp_path, devices=names, mode="throughput")
    in_bf16 = tuple(f"{name}:bf16" for name in names)
    row = next(row for row in decision.candidates if row.devices == in_bf16)
    assert row.status != "refused"
    assert row.precision == " and ".join(["6 of 7 tasks in bf16"] * len(names))


def test_an_option_of_the_engine_may_name_the_precision(tmp_path: Path) -> None:
    options = {"rough": {"precision": "bf16"}}
    _, decision = decided(WITH_TANH, tmp_path, engine_options=options, precision="float32")
    assert decision.taken.precision == "6 of 7 tasks in bf16"


def test_the_users_own_session_is_never_made_more_precise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_precise = list[Candidate]()

    def as_precise(_: PrecisePlans, row: Candidate, *__: object) -> Candidate:
        made_precise.append(row)
        return row

    monkeypatch.setattr(PrecisePlans, "_as_precise", as_precise)
    decided(PRECISE, tmp_path / "without")
    assert [row.devices for row in made_precise] == [(BF16,)]
    made_precise.clear()
    monkeypatch.setattr(Chooser, "_reference", (BF16,))
    with pytest.raises(DeviceError, match="no plan is compared"):  # it has no session of its own
        decided(PRECISE, tmp_path / "with")
    assert not made_precise


def test_the_offer_is_measured_once_and_kept(tmp_path: Path) -> None:
    chooser, decision = decided(PRECISE, tmp_path, precision="float32")
    assert chooser.can_offer and decision.offer is None
    offered = chooser.make_offer()
    assert offered is not None and offered.offer is not None
    assert offered.offered == (
        "with --precision bf16: 5.00 ms, 2 times as fast, error 0.004 of the largest value"
    )
    assert offered.taken == decision.taken  # it is not allowed
    assert chooser.decision == offered and not chooser.can_offer
    again, same = decided(PRECISE, tmp_path, precision="float32")
    assert same == offered and again.make_offer() is None


def test_an_offer_names_the_tolerance_that_it_needs(tmp_path: Path) -> None:
    chooser, _ = decided(WITH_TANH, tmp_path, precision="float32")
    offered = chooser.make_offer()
    assert offered is not None and offered.offer is not None
    needed = offered.offer.tolerance
    assert needed is not None and LIMIT < offered.offer.error <= needed < 0.2
    assert f"with --precision bf16 --tolerance {needed:g}: " in (offered.offered or "")
    _, decision = decided(WITH_TANH, tmp_path, tolerance=needed)
    assert decision.taken.precision == "7 of 7 tasks in bf16"


def test_nothing_is_offered_where_integers_differ(tmp_path: Path) -> None:
    """No tolerance would allow it."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("Mul", ["h", "thousand"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.INT64),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, [2, 8])
    constants = {"thousand": np.array(1000.0, np.float32)}
    model = from_nodes(nodes, [tensor_info("x", [2, 8])], [output], constants)
    chooser, _ = decided(model, tmp_path, precision="float32")
    assert chooser.can_offer and chooser.make_offer() is None


def test_nothing_is_offered_where_nothing_is_there_or_gained(tmp_path: Path) -> None:
    chooser, _ = decided(PRECISE, tmp_path, gain=1.04, precision="float32")
    offered = chooser.make_offer()
    assert offered is not None and offered.offered is None and not chooser.can_offer
    named, _ = decided(PRECISE, tmp_path, devices=[f"{CPU}/onnxruntime"], precision="float32")
    assert not named.can_offer and named.make_offer() is None
    allowed_already, _ = decided(PRECISE, tmp_path, precision="bf16")
    assert not allowed_already.can_offer


@pytest.mark.usefixtures("machine")
def test_which_precision_is_offered() -> None:
    names = [CPU, "gpu:0"]
    assert in_lower_precision(names, "float32") == f"{CPU}/openvino:bf16"
    assert in_lower_precision(names, "bf16") == "gpu:0/cuda:fp16"
    assert in_lower_precision([f"{CPU}/onnxruntime"], "float32") is None


def test_optimize_ends_with_the_offer(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(package))  # of the process that chooses
    settings = Settings([ROUGH], rules=RULES, cache=tmp_path)
    verdict = optimize(PRECISE.SerializeToString(), settings, 60.0)
    assert verdict.decision is not None and verdict.decision.offer is not None
    assert parse(verdict.decision.offer.device).precision == "bf16"


def test_an_offer_is_stored_with_the_decision() -> None:
    offer = Offer(BF16, 0.0194, 2.71, 0.0047)
    decision = Decision((Candidate((CPU,), "single"),), offer=offer)
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
    assert str(offer) == (
        "with --precision bf16: 19.4 ms, 2.7 times as fast, error 0.005 of the largest value"
    )
    assert replace(decision, offer=replace(offer, gain=1.0)).offered is None


def test_engines_of_this_machine_state_their_precisions() -> None:
    for each in processors("cpu"):
        assert all("float32" in processor.precisions for processor in each.by.values())


@pytest.mark.usefixtures("machine")
def test_a_model_in_float16_allows_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        MACHINE[0].by, "rough", Processor("cpu", "", precisions=("float32", "fp16"))
    )
    settings = Settings([ROUGH], cache=tmp_path)
    assert Chooser(PRECISE, settings)._configurations == [(ROUGH,)]
    halves = Chooser(in_float16(PRECISE), settings)
    assert halves._configurations == [(ROUGH,), (f"{ROUGH}:fp16",)]


def test_the_tasks_of_another_device_are_tried_first(tmp_path: Path) -> None:
    work = PlanningContext(WITH_TANH, Settings([BF16, ROUGH], cache=tmp_path))
    bf16, _ = (device.spec.place for device in work.devices)
    all_low = Plan.in_turns(work.graph, dict.fromkeys(work.graph.task, bf16), Provenance("single"))
    steps: list[str] = []

    def best(precise: Collection[str]) -> Plan:
        steps.clear()
        reference = ReferenceAnswers(work)

        def noted(what: str, *_: object) -> None:
            steps.append(what)

        return MixedPlans(work, all_low, reference, noted, precise)._search()

    searched = best(())
    lower = [p.task for p, place in searched.place_of.items() if place.precision == "bf16"]
    assert len(lower) == 6 and len(steps) > 6
    precise = work.graph.task.keys() - lower
    assert best(precise) == searched and len(steps) == 1
    for others in (lower[:1], [*precise, *lower[:3]]):  # they do not agree; too few are left
        assert best(others) == searched and len(steps) > 6
