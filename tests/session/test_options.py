"""`SessionOptions`: what plans follow, what leaves the model to ONNX Runtime's own session."""

import copy
import inspect
import json
import logging
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import coexec
from coexec.errors import UsageError
from coexec.plan.plan import Plan, Provenance
from coexec.selection.plan_selector import PlanSelector
from coexec.session import options as subject
from coexec.session.model_source import declared_shapes
from coexec.session.options import ORT_KEYWORDS, why_unplanned
from tests.helpers.session_states import DEVICES, opened
from tests.helpers.small_models import branches, from_nodes, tensor_info

FEEDS = {"x": np.ones((1, 3, 20, 20), np.float32)}
DYNAMIC = from_nodes(
    [helper.make_node("Relu", ["x"], ["y"])],
    [tensor_info("x", ["N", 2])],
    [tensor_info("y", ["N", 2])],
)
BOTH = pytest.mark.parametrize("kind", [onnxruntime.SessionOptions, coexec.SessionOptions])


def with_value(options: Any, name: str, value: Any) -> Any:
    setattr(options, name, value)
    return options


def with_entry(options: Any, key: str, value: str) -> Any:
    options.add_session_config_entry(key, value)
    return options


@BOTH
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "graph_optimization_level",
            onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            "less than all optimisations",
        ),
        ("use_deterministic_compute", True, "use_deterministic_compute"),
    ],
)
def test_options_that_change_results(kind: Any, name: str, value: Any, reason: str) -> None:
    assert why_unplanned(kind(), None, None) is None
    found = why_unplanned(with_value(kind(), name, value), None, DEVICES)
    assert found is not None and reason in found


@BOTH
@pytest.mark.parametrize(
    ("key", "value", "planned"),
    [
        ("session.set_denormal_as_zero", "1", False),
        ("session.set_denormal_as_zero", "0", True),
        ("optimization.enable_gelu_approximation", "1", False),
        ("optimization.disable_specified_optimizers", "ConstantFolding", False),
        ("session.load_model_format", "ORT", False),
        ("session.load_model_format", "ONNX", True),
        ("session.intra_op.allow_spinning", "0", True),
    ],
)
def test_the_configuration(kind: Any, key: str, value: str, planned: bool) -> None:
    reason = why_unplanned(with_entry(kind(), key, value), None, DEVICES)
    assert (reason is None) == planned


@BOTH
def test_options_that_name_cores_give_way_to_named_devices(kind: Any) -> None:
    for options in (
        with_value(kind(), "use_per_session_threads", False),
        with_entry(kind(), "session.intra_op_thread_affinities", "1"),
    ):
        assert "name devices=" in (why_unplanned(options, None, None) or "")
        assert why_unplanned(options, None, DEVICES) is None


def test_what_only_our_class_tells() -> None:
    options = coexec.SessionOptions()
    weight = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    options.add_initializer("w", weight)
    assert "not in the model" in (why_unplanned(options, None, DEVICES) or "")
    options = coexec.SessionOptions()
    options.add_external_initializers(["w"], [weight])
    assert "add_external_initializers" in (why_unplanned(options, None, DEVICES) or "")
    options = coexec.SessionOptions()
    options.calls.append(("register_custom_ops_library", ("libmine.so",), {}))
    assert "libmine.so" in (why_unplanned(options, None, DEVICES) or "")
    with pytest.raises(Exception, match=r"libnone\.so"):
        options.register_custom_ops_library("libnone.so")
    assert len(options.calls) == 1  # what is refused is not remembered


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"planner": "hefd"},
            r"no planner 'hefd' \(did you mean 'heft'\?\); there are anneal, auto",
        ),
        ({"planner": "anneal", "planner_options": {"stebs": 1}}, "did you mean 'steps'"),
        ({"planner_options": {"planners": "heft,fast"}}, "there is no planner 'fast'"),
    ],
)
def test_a_planner_is_checked_before_shapes_come(
    words: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        coexec.InferenceSession(
            DYNAMIC.SerializeToString(), devices=DEVICES, cache=tmp_path, **words
        )


def test_the_keywords_of_onnx_runtime_are_its_own() -> None:
    source = inspect.getsource(onnxruntime.InferenceSession.__init__)
    assert set(re.findall(r'kwargs(?:\.get\(|\[)"(\w+)"', source)) == set(ORT_KEYWORDS)


def test_disabled_optimizers(tmp_path: Path) -> None:
    with coexec.InferenceSession(
        branches().SerializeToString(),
        disabled_optimizers=["ConstantFolding"],
        cache=tmp_path,
        devices=DEVICES,
    ) as session:
        assert "disabled_optimizers" in (session.degraded or "")
        assert session.devices == ()
        assert len(session.run(None, FEEDS)) == 2


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("by", ["name", "denotation"])
def test_free_dimensions_are_overridden(kind: Any, by: str, tmp_path: Path) -> None:
    model = from_nodes(
        [helper.make_node("Relu", ["x"], ["y"])],
        [tensor_info("x", ["N", 2])],
        [tensor_info("y", ["N", 2])],
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    for _ in range(2):  # planned, and from the cache
        options = kind()
        if by == "name":
            options.add_free_dimension_override_by_name("N", 3)
        else:
            options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
        words: dict[str, Any] = {"devices": DEVICES, "planner": "hope_greedy", "cache": tmp_path}
        with coexec.InferenceSession(model.SerializeToString(), options, **words) as session:
            assert session.degraded is None and session.devices != ()
            assert session.get_inputs()[0].shape == [3, 2]
            assert not session.ort_is_open
            x = np.array([[-1, 1]] * 3, np.float32)
            assert np.array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
            assert not session.ort_is_open


def test_declared_shapes_are_read_from_the_file(tmp_path: Path) -> None:
    both = from_nodes(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [tensor_info("a", [1, 2]), tensor_info("b", ["N", 2])],
        [tensor_info("y", [1, 2])],
        {"w": np.ones(70000, np.float32)},
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(both.SerializeToString())
    declared = {"a": [1, 2], "b": [None, 2]}
    assert declared_shapes(str(path)) == declared_shapes(both.SerializeToString()) == declared
    for content in (b"", b"\xff\xff\xff", both.SerializeToString()[:-5]):
        path.write_bytes(content)
        assert declared_shapes(str(path)).items() <= declared.items()
    assert declared_shapes(str(tmp_path / "none")) == declared_shapes("zoo:lstm") == {}
    both.graph.input[1].type.tensor_type.ClearField("shape")
    assert declared_shapes(both.SerializeToString()) == {"a": [1, 2], "b": None}


def test_what_a_plan_has_no_use_for_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_warned", set())
    options = onnxruntime.SessionOptions()
    options.enable_mem_pattern, options.log_severity_level = False, 3
    subject.warn_of(None)
    subject.warn_of(options)
    assert caplog.records == []
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    for _ in range(2):
        subject.warn_of(options)
    assert [(r.levelno, r.args[0]) for r in caplog.records] == [  # type: ignore[index]
        (logging.WARNING, "execution_mode"),
        (logging.WARNING, "inter_op_num_threads"),
    ]


@pytest.mark.parametrize("state", ["own", "plan"])
def test_profiles(state: str, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "mine")
    with opened(state, branches(), tmp_path / "cache", sess_options=options) as session:
        assert session.get_profiling_start_time_ns() > 0
        for _ in range(2):
            session.run(None, FEEDS)
        path = Path(session.end_profiling())
        assert path.parent == tmp_path and path.name.startswith("mine_") and path.suffix == ".json"
        data = json.loads(path.read_text())
        if state == "plan":
            events = [e for e in data["traceEvents"] if e.get("cat") == "compute"]
            assert {e["args"]["request"] for e in events} == {0, 1}
            first, second = ([e for e in events if e["args"]["request"] == n] for n in (0, 1))
            assert max(e["ts"] + e["dur"] for e in first) <= min(e["ts"] for e in second) + 1
        assert session.end_profiling() == ""
        session.run(None, FEEDS)


def test_nothing_profiled(tmp_path: Path) -> None:
    for state in ("own", "plan"):
        with opened(state, branches(), tmp_path) as session:
            assert session.end_profiling() == ""


def test_options_are_copied_and_pickled() -> None:
    options = coexec.SessionOptions()
    options.intra_op_num_threads, options.logid = 3, "mine"
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.add_free_dimension_override_by_name("N", 4)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for other in (pickle.loads(pickle.dumps(options)), copy.deepcopy(options)):
        assert (other.intra_op_num_threads, other.logid) == (3, "mine")
        assert other.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
        assert other.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert other.calls == options.calls
    options.add_initializer("w", onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32)))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(options)


@pytest.mark.parametrize("by", ["planner", "environment"])
def test_planning_that_is_switched_off_leaves_onnx_runtime_alone(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is planned, measured or written; the environment counts more than the keywords."""
    monkeypatch.setattr(PlanSelector, "__init__", lambda *_: pytest.fail("it plans"))
    cache = tmp_path / "cache"
    words: dict[str, Any] = {"planner": "none", "cache": cache}
    if by == "environment":
        monkeypatch.setenv("COEXEC", "off")
        words = {"devices": "cpu:4095", "planner": "heft", "cache": cache, "plan": "missing.json"}
    content = branches().SerializeToString()
    expected = onnxruntime.InferenceSession(content).run(None, FEEDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with coexec.InferenceSession(content, **words) as session:
            assert np.array_equal(session.run(None, FEEDS)[0], expected[0])
            session.set_providers(["CPUExecutionProvider"])
            assert session.devices == () and "switches planning off" in str(session.degraded)
    assert not cache.exists()


def test_a_plan_beside_no_planning_is_refused() -> None:
    plan = Plan.of_places("any", {}, Provenance("single"))
    with pytest.raises(UsageError, match=r"planner='none' tells a planner.*leave one of the two"):
        coexec.InferenceSession(branches(), planner="none", plan=plan)
