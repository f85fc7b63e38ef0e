"""Which backend answers a request, on which way, and what the session says of it."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import coexec
from coexec.cache import Cache
from coexec.errors import DegradedWarning, ExecutionError, InfeasibleError, InputError
from coexec.session.exporting import export
from coexec.session.router import Router
from coexec.settings import Settings
from tests.helpers.session_states import DEVICES, opened
from tests.helpers.small_models import from_nodes, tensor_info


def relu(shape: list[Any]) -> onnx.ModelProto:
    relu = helper.make_node("Relu", ["x"], ["y"], "relu")
    return from_nodes([relu], [tensor_info("x", shape)], [tensor_info("y", shape)])


def x(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(shape, np.float32)}


def callers() -> list[str]:
    """The functions of coexec that have called the caller of this one, from the outermost."""
    names = []
    frame = sys._getframe(2)
    while frame is not None:
        if "coexec" in frame.f_globals["__name__"].split("."):
            names.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return names[::-1]


def test_a_request_that_a_plan_answers_passes_four_functions_before_the_run_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("plan", relu([2]), tmp_path) as session:
        runner, ways = session.coexec_router.running.runner, []
        run: Callable[..., Any] = runner.run

        def noted(*request: Any, **words: Any) -> Any:
            ways.append(callers())
            return run(*request, **words)

        monkeypatch.setattr(runner, "run", noted)
        session.run(None, x(2))
    assert ways == [["inference.run", "router.run", "router._by_plan", "plan_backend.run"]]


def test_any_other_request_passes_four_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened("own", relu([2]), tmp_path) as session:
        ort, ways = session.coexec_router.ort.open(), []

        class Handle:
            """In place of the native session."""

            def run(self, *_: Any) -> list[Any]:
                ways.append(callers())
                return ["its answer"]

        monkeypatch.setattr(ort, "_sess", Handle())
        assert session.run(None, x(2)) == ["its answer"]
    assert ways == [["inference.run", "router.run", "router._by_ort", "ort_backend.run"]]


@pytest.mark.parametrize("from_file", [True, False], ids=["plan", "shapes"])
def test_what_is_degraded_is_the_latest_request(from_file: bool, tmp_path: Path) -> None:
    words: dict[str, Any] = {"devices": DEVICES, "planner": "hope_greedy", "shapes": {"N": 2}}
    if from_file:
        onnx.save(relu(["N", 3]), str(tmp_path / "m.onnx"))
        export(tmp_path / "m.onnx", tmp_path / "e", Settings(**words, cache=tmp_path / "c"))
        words = {"plan": tmp_path / "e" / "plan.json"}
    model = relu(["N", 3]).SerializeToString()
    with coexec.InferenceSession(model, cache=tmp_path / "c", **words) as session:
        for _ in range(2):
            assert session.degraded is None and session.devices
            session.run(None, x(4, 3))
            why = "made for other shapes" if from_file else "before more requests of these shapes"
            assert why in session.degraded and session.devices == ()
            session.run(None, x(2, 3))


def test_requests_of_every_form_count_for_the_planning_of_their_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Router, "account_every_s", -1.0)

    def bound(session: coexec.InferenceSession) -> None:
        binding = session.io_binding()
        binding.bind_cpu_input("x", x(4, 3)["x"])
        binding.bind_output("y")
        session.run_with_iobinding(binding)

    value = onnxruntime.OrtValue.ortvalue_from_numpy(x(4, 3)["x"])
    forms: list[Callable[[coexec.InferenceSession], object]] = [
        lambda session: session.run(None, x(4, 3)),
        lambda session: session.run_with_ort_values(None, {"x": value}),
        lambda session: session.run_with_trace(None, x(4, 3)),
        bound,
    ]
    words: dict[str, Any] = {"devices": DEVICES, "planner": "single", "cache": tmp_path}
    for form in forms:
        with coexec.InferenceSession(relu(["N", 3]).SerializeToString(), **words) as session:
            form(session)
            assert "before more requests of these shapes" in session.degraded


def test_the_warning_of_a_device_that_fails_names_the_programs_line(tmp_path: Path) -> None:
    with opened("plan", relu([2]), tmp_path) as session:

        def fails(*_: object, **__: object) -> None:
            raise ExecutionError("cpu:0 is on fire")

        session.coexec_router.running.runner.run = fails
        with pytest.warns(DegradedWarning, match="on fire") as caught:
            session.run(None, x(2))
        assert caught[0].filename == __file__


def refusal(session: coexec.InferenceSession, *shape: int) -> str:
    with pytest.raises(InputError) as caught:
        session.run(None, x(*shape))
    assert isinstance(caught.value, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)
    return str(caught.value)


@pytest.mark.parametrize(
    "words", [{}, {"shapes": {"N": 2}}], ids=["shapes of requests", "shapes of the session"]
)
def test_a_shape_that_the_model_fixes(words: dict[str, Any], tmp_path: Path) -> None:
    words = {"devices": DEVICES, "planner": "single", "cache": tmp_path, **words}
    with coexec.InferenceSession(relu(["N", 3, None]).SerializeToString(), **words) as session:
        said = "input 'x' has shape {}, the model takes [N, 3, ?]"
        for shape in ((2, 4, 5), (2, 3), (2, 3, 5, 1)):
            assert refusal(session, *shape) == said.format(list(shape))


def test_shapes_are_the_remedy_where_session_options_fix_a_size(tmp_path: Path) -> None:
    options = coexec.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    words: dict[str, Any] = {"devices": DEVICES, "planner": "single", "cache": tmp_path}
    model = relu(["N", 3]).SerializeToString()
    with coexec.InferenceSession(model, options, **words) as session:
        assert refusal(session, 4, 3) == (
            "input 'x' has shape [4, 3], the model takes [2, 3]; for other shapes load the model "
            "with shapes={'x': ...}"
        )
        assert refusal(session, 4, 4) == "input 'x' has shape [4, 4], the model takes [2, 3]"
    with coexec.InferenceSession(model, options, shapes={"x": (4, 3)}, **words) as session:
        assert session.run(None, x(4, 3))[0].shape == (4, 3)


def test_the_shape_of_an_export_and_of_a_plan(tmp_path: Path, cache: Cache) -> None:
    path, folder, plan = tmp_path / "m.onnx", tmp_path / "e", tmp_path / "p.json"
    onnx.save(relu(["N", 3]), str(path))
    settings = Settings(devices=DEVICES[:1], planner="single", shapes={"N": 2}, cache=cache)
    export(path, folder, settings)
    plan.write_text((folder / "plan.json").read_text())
    with coexec.InferenceSession(folder, cache=cache) as session:
        assert refusal(session, 2, 4) == (
            "input 'x' has shape [2, 4], the export takes [N, 3]; its plan is for [2, 3]"
        )
    with coexec.InferenceSession(path, plan=plan, cache=cache) as session:
        assert refusal(session, 2, 4) == (
            f"input 'x' has shape [2, 4], the model takes [N, 3]; the plan {str(plan)!r} is for "
            f"[2, 3]"
        )


def test_a_tensor_of_any_rank_is_refused_in_onnx_runtimes_words(tmp_path: Path) -> None:
    model = relu([2])
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    with opened("own", model, tmp_path) as session:
        assert session.run(None, x(2, 2))[0].shape == (2, 2)
        with pytest.raises(InputError, match="data type"):
            session.run(None, {"x": np.ones(2)})


def test_feeds_of_constants_are_ignored_in_every_form(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "b"], ["y"])
    model = from_nodes(
        [add], [tensor_info("x", [2]), tensor_info("b", [2])], [tensor_info("y", [2])]
    )
    feeds = {**x(2), "b": np.ones(2, np.float32)}
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(fed) for name, fed in feeds.items()}
    for state in ("own", "plan"):
        with opened(state, model, tmp_path, values={"b": [5.0, 6.0]}) as session:
            assert session.run(None, feeds)[0].tolist() == [6, 7]
            assert session.run_with_trace(None, feeds)[0][0].tolist() == [6, 7]
            assert session.run_with_ort_values(None, values)[0].numpy().tolist() == [6, 7]


def test_providers_that_onnx_runtime_has_fallen_back_to_stay(tmp_path: Path) -> None:
    with opened("own", relu([2]), tmp_path) as session:
        own = session.coexec_router.ort.open()
        own.set_providers(["CPUExecutionProvider"])  # as ONNX Runtime does after an EPFail
        own.disable_fallback()
        session.give_back_ort()
        assert session.coexec_router.ort.arguments.providers == ["CPUExecutionProvider"]
        assert session._enable_fallback is False


def test_a_session_has_no_attributes_but_those_of_a_subclass(tmp_path: Path) -> None:
    class Named(coexec.InferenceSession):
        def __init__(self, *arguments: Any, **words: Any) -> None:
            super().__init__(*arguments, **words)
            self.router = self._metadata = "the program's own"

    for kind, names in ((coexec.InferenceSession, set()), (Named, {"router", "_metadata"})):
        with kind(relu([2]).SerializeToString(), cache=tmp_path) as session:
            assert len(session.run(None, x(2))) == 1 and session._sess is not None
            assert vars(session).keys() == names
            with pytest.raises(AttributeError, match=f"'{kind.__name__}' object has no attribute"):
                _ = session._nothing


@pytest.mark.parametrize("strict", [False, True])
def test_a_task_that_no_named_device_runs(strict: bool, cache: Cache, gpu: str) -> None:
    """The message names devices that run it."""
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"])]
    x, y = tensor_info("x", [1, 8]), tensor_info("y", [1, 3])
    model = from_nodes(nodes, [x], [y], {"k": np.array([3], np.int64)})
    make = partial(coexec.InferenceSession, model, planner="single", cache=cache)
    if strict:
        with pytest.raises(InfeasibleError, match="no kernel for TopK"):
            make(devices=[gpu], strict=True)
        return
    with pytest.warns(DegradedWarning, match="no kernel for TopK.*--devices ") as caught:
        session = make(devices=[gpu])
    values = np.arange(8, dtype=np.float32)[None]
    assert np.array_equal(session.run(["y"], {"x": values})[0], [[7, 6, 5]])
    assert "no kernel for TopK" in session.degraded
    session.close()
    said = re.search(r"--devices (\S+)\. ", str(caught[0].message))
    assert said is not None
    with make(devices=said[1].split(","), strict=True) as session:
        assert np.array_equal(session.run(["y"], {"x": values})[0], [[7, 6, 5]])
