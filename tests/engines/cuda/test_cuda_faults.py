"""What a session does when CUDA fails: who answers, what is said, and how often.

The GPU is computed by OpenCL, see `tests/helpers/fake_cuda.py`.
"""

import gc
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coexec import InferenceSession
from coexec.cli import main
from coexec.engines import survey
from coexec.engines.cuda import driver
from coexec.engines.cuda.driver import CudaError
from coexec.engines.cuda.listing import Listing
from coexec.engines.onnxruntime.program import _BoundSession
from coexec.engines.registry import broken, describe, processors
from coexec.errors import ClosedError, DegradedWarning, DeviceError, ExecutionError
from coexec.model.reference_session import plain_session
from coexec.plan.plan import Plan, Provenance
from coexec.runtime import executor
from coexec.selection.planning_context import PlanningContext
from tests.helpers.fake_cuda import FakeContext, Faults, fake_cuda, machine_with_gpu
from tests.helpers.gpu_networks import small_network
from tests.helpers.patience import ENOUGH_S, until

MODEL = small_network("concat", as_model=True)
X = np.random.default_rng(0).standard_normal((1, 8, 9, 7), np.float32)
WANTED = plain_session(MODEL).run(None, {"x": X})[0]
NO_MEMORY = CudaError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
LOST = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")
NO_IMAGE = CudaError("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")
STARTS = [
    ("open", NO_MEMORY, "gpu:0 ran out of memory while opening Fake (CUDA_ERROR_OUT_OF_MEMORY: "),
    ("open", LOST, "gpu:0 failed while opening Fake (CUDA_ERROR_ILLEGAL_ADDRESS: "),
    ("kernel", NO_IMAGE, "compiling what makes y (kernel conv_tiled of 'left': CUDA_ERROR_INVALID"),
    ("memory", NO_MEMORY, "gpu:0 ran out of memory while compiling what makes y (CUDA_ERROR_OUT_"),
    ("write", LOST, "gpu:0 failed while compiling what makes y (CUDA_ERROR_ILLEGAL_ADDRESS: "),
]
"""Where CUDA fails before the first request, its error, and the beginning of what is said."""
RUNS = [(at, error) for at in ("launch", "mark", "wait") for error in (NO_MEMORY, LOST)]


@contextmanager
def said() -> Iterator[list[str]]:
    """The texts of warnings. All of them are `DegradedWarning`, and none is raised in a
    destructor."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
        assert {each.category for each in caught} <= {DegradedWarning}
        texts += [str(each.message) for each in caught]


def opened(folder: Path, *devices: str, **words: Any) -> InferenceSession:
    names = list(devices or ["gpu:0"])
    return InferenceSession(MODEL, devices=names, planner="single", cache=folder, **words)


def assert_right(session: InferenceSession) -> None:
    (made,) = session.run(None, {"x": X})
    assert np.abs(made - WANTED).max() <= 1e-5 * np.abs(WANTED).max()


def engine_of(session: InferenceSession) -> str:
    """The engine that answers; "" for ONNX Runtime's own session."""
    plans = session.coexec_router.plans
    running = plans.selector.running(()) if plans else None
    return "" if running is None else running.prepared.plan.places[0].engine


def wait_for(session: InferenceSession) -> str:
    """The engine that answers when nothing goes on in the background."""
    plans = session.coexec_router.plans
    assert plans is not None
    until(lambda: not plans.selector.state(()).is_busy)
    return engine_of(session)


@pytest.mark.parametrize("at, error, text", STARTS)
def test_a_gpu_that_cannot_start_is_said_once_and_opencl_computes(
    at: str, error: CudaError, text: str, tmp_path: Path
) -> None:
    with machine_with_gpu() as faults, said() as texts:
        faults.errors[at] = error
        with opened(tmp_path) as session:
            assert engine_of(session) == "opencl" and session.degraded is None
            assert_right(session)
    (only,) = texts
    assert text in only and only.endswith(". gpu:0/opencl computes in its place")
    assert faults.opened == 1


@pytest.mark.parametrize("name", ["gpu:0", "gpu:0/cuda"])
@pytest.mark.parametrize("at, error, text", STARTS)
def test_without_opencl_the_cpu_answers(
    at: str, error: CudaError, text: str, name: str, tmp_path: Path
) -> None:
    """Nor does OpenCL answer where the user has named CUDA."""
    with machine_with_gpu(has_opencl=name != "gpu:0") as faults, said() as texts:
        faults.errors[at] = error
        with opened(tmp_path, name) as session:
            assert engine_of(session) == "" and text in str(session.degraded)
            assert_right(session)
    (only,) = texts
    assert text in only and only.endswith("carries on with ONNX Runtime on the CPU")
    assert faults.opened == 1


@pytest.mark.parametrize("at, error", RUNS)
def test_a_run_that_fails_is_answered_by_the_cpu_and_later_ones_by_opencl(
    at: str, error: CudaError, tmp_path: Path
) -> None:
    with machine_with_gpu() as faults, said() as texts, opened(tmp_path) as session:
        assert_right(session)
        assert engine_of(session) == "cuda"
        faults.errors[at] = error
        assert_right(session)
        assert "CUDA_ERROR" in str(session.degraded)
        assert wait_for(session) == "opencl" and session.degraded is None
        for _ in range(3):
            assert_right(session)
    (only,) = texts
    assert "segment 0 (left, right, y)" in only and str(error) in only
    assert only.endswith("ONNX Runtime on the CPU until a plan on gpu:0/opencl is ready")
    assert faults.opened == 1


@contextmanager
def on_two_devices(folder: Path, first: str) -> Iterator[InferenceSession]:
    """A session in which the device ``first`` needs a result of gpu:0."""

    def plan(context: PlanningContext, *_: object) -> Plan:
        graph = context.model.graph
        parts = {
            device.spec.place: tuple(
                graph.whole_piece(task)
                for task in graph.tasks
                if (task.name == "right") == (device.spec.name == "gpu:0")
            )
            for device in context.devices
        }
        return Plan.of_places(graph.fingerprint, parts, Provenance("test"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanningContext, "plan", plan)
        names = [first, "gpu:0"]
        with InferenceSession(MODEL, devices=names, planner="heft", cache=folder) as session:
            yield session


def places_of(session: InferenceSession) -> set[str]:
    """The places of the plan that answers."""
    plans = session.coexec_router.plans
    running = plans.selector.running(()) if plans else None
    return {str(place) for place in running.prepared.plan.places} if running else set()


def test_of_two_gpus_only_the_one_that_fails_in_a_run_gets_another_engine(tmp_path: Path) -> None:
    with (
        machine_with_gpu(count=2) as faults,
        said() as texts,
        on_two_devices(tmp_path, "gpu:1") as session,
    ):
        assert_right(session)
        assert places_of(session) == {"gpu:1/cuda", "gpu:0/cuda"}
        faults.errors["wait"] = LOST
        assert_right(session)
        wait_for(session)
        assert places_of(session) == {"gpu:1/cuda", "gpu:0/opencl"}
        assert_right(session)
    (only,) = texts
    assert only.endswith("until a plan on gpu:0/opencl is ready")


@pytest.mark.parametrize("first", ["cpu:0", "gpu:1"])
@pytest.mark.parametrize("at, error, text", STARTS)
def test_only_the_device_that_fails_at_the_start_gets_another_engine(
    at: str, error: CudaError, text: str, first: str, tmp_path: Path
) -> None:
    with machine_with_gpu(count=2) as faults, said() as texts:
        faults.errors[at] = error
        with on_two_devices(tmp_path, first) as session:
            assert places_of(session) - {"gpu:1/cuda", "cpu:0/onnxruntime"} == {"gpu:0/opencl"}
            assert_right(session)
    (only,) = texts
    assert only.endswith(". gpu:0/opencl computes in its place")


def test_a_failure_of_the_cpu_leaves_the_gpu_its_engine(tmp_path: Path) -> None:
    real, failures = _BoundSession.run, list[str]()

    def run(session: _BoundSession) -> None:
        if failures:
            raise ExecutionError(failures[0])
        real(session)

    with machine_with_gpu(), said() as texts, pytest.MonkeyPatch.context() as patch:
        patch.setattr("coexec.engines.onnxruntime.device.native_api", lambda: None)
        patch.setattr(_BoundSession, "run", run)
        with on_two_devices(tmp_path, "cpu:0") as session:
            assert places_of(session) == {"cpu:0/onnxruntime", "gpu:0/cuda"}
            failures.append("cpu:0: no memory")
            assert_right(session)
            assert wait_for(session) == "" and "cpu:0 failed in segment" in str(session.degraded)
    (only,) = texts
    assert only.endswith("carries on with ONNX Runtime on the CPU")


def test_if_opencl_fails_too_the_cpu_answers_and_nothing_is_tried_again(tmp_path: Path) -> None:
    def fails(*_: object) -> Any:
        raise DeviceError("OpenCL has failed, too")

    with (
        machine_with_gpu() as faults,
        said() as texts,
        pytest.MonkeyPatch.context() as patch,
        opened(tmp_path) as session,
    ):
        assert_right(session)
        patch.setattr("coexec.engines.opencl.engine.OpenCl.open", fails)
        faults.errors["wait"] = LOST
        assert_right(session)
        assert wait_for(session) == ""
        assert_right(session)
        assert session.degraded == "OpenCL has failed, too"
    assert len(texts) == 1 and faults.opened == 1


def test_a_plan_that_does_not_start_in_the_background_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with machine_with_gpu() as faults, said() as texts:
        with opened(tmp_path, background=True) as session:
            assert wait_for(session) == "cuda"
        faults.opened, faults.errors["memory"] = 0, NO_MEMORY
        caplog.set_level("WARNING", "coexec")
        with opened(tmp_path, background=True) as session:
            assert wait_for(session) == "opencl"
            assert_right(session)
    (only,) = caplog.messages
    assert "its plan does not start: gpu:0 ran out of memory while compiling" in only
    assert texts == [] and faults.opened == 1


def test_requests_that_fail_together_say_it_once(tmp_path: Path) -> None:
    with machine_with_gpu() as faults, said() as texts, opened(tmp_path) as session:
        assert_right(session)
        faults.errors["wait"] = LOST
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(assert_right, [session] * 8))
        assert wait_for(session) == "opencl"
    assert len(texts) == 1


def test_a_lost_gpu_is_left_out_by_later_sessions_of_the_process(tmp_path: Path) -> None:
    with machine_with_gpu() as faults:
        with said(), opened(tmp_path) as session:
            faults.errors["wait"] = LOST
            assert_right(session)
        with said() as texts, opened(tmp_path) as session:
            assert engine_of(session) == "opencl"
            assert_right(session)
        assert texts == [] and faults.opened == 1
        (gpu,) = processors("gpu")
        assert gpu.usable == ("opencl",)
        with said() as texts, opened(tmp_path, "gpu:0/cuda") as session:
            assert_right(session)
        (only,) = texts
        assert "failed on it in this process" in only and "a new process can use it again" in only
        assert faults.opened == 1


def test_a_gpu_without_memory_is_tried_again_by_the_next_session(tmp_path: Path) -> None:
    with machine_with_gpu() as faults:
        faults.errors["memory"] = NO_MEMORY
        with said() as texts, opened(tmp_path):
            pass
        faults.errors.clear()
        with said() as later, opened(tmp_path) as session:
            assert engine_of(session) == "cuda"
    assert len(texts) == 1 and later == []


def test_an_engine_that_is_lost_is_closed_without_an_error() -> None:
    faults = Faults()
    with fake_cuda() as engine:
        context = engine._context
        assert isinstance(context, FakeContext)
        context.faults = faults
        faults.errors["all"] = NO_MEMORY
        with pytest.raises(DeviceError, match="while coming to rest"):
            engine.rests(time.monotonic() + ENOUGH_S)
        engine.close()


def test_a_gpu_that_hangs_ends_the_session_after_the_same_time_as_with_opencl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_REST_S", 0.05)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeContext, "native", lambda *_: [])
    with machine_with_gpu() as faults, opened(tmp_path) as session:
        assert_right(session)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coexec.engines.cuda.program._GraphRun.wait", interrupted)
            faults.hangs = True
            with pytest.raises(KeyboardInterrupt):
                session.run(None, {"x": X})
        for _ in range(2):
            with pytest.raises(ClosedError, match=r"gpu:0 has not ended what it began .* new sess"):
                session.run(None, {"x": X})


@pytest.mark.parametrize("has_functions", [True, False])
def test_c_functions_launch_a_plan_of_one_gpu(
    has_functions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_functions:
        monkeypatch.setattr(FakeContext, "native", lambda *_: [])
    rng, reference = np.random.default_rng(1), plain_session(MODEL)
    with machine_with_gpu() as faults, opened(tmp_path) as session:
        assert_right(session)
        before = faults.native_calls
        for traced in (False, False, True, False, True, False):
            x = rng.standard_normal(X.shape, np.float32)
            feeds = {"x": x}
            made = session.run_with_trace(None, feeds)[0] if traced else session.run(None, feeds)
            wanted = reference.run(None, feeds)[0]
            assert np.abs(made[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()
        # To launch, to mark the end and to wait for it, except where a trace is recorded.
        assert faults.native_calls - before == (3 * 4 if has_functions else 0)


def test_a_forked_child_is_told_the_remedy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine_with_gpu(has_opencl=False) as faults, said() as texts:
        monkeypatch.setattr(driver, "_started_by", 1)
        with opened(tmp_path) as session:
            assert_right(session)
    (only,) = texts
    assert f"does not work in its forked child {os.getpid()}; start the child with" in only
    assert faults.opened == 0


def test_a_session_that_is_open_while_the_process_is_forked_answers_by_the_cpu(
    tmp_path: Path,
) -> None:
    with machine_with_gpu(has_opencl=False), opened(tmp_path) as session:
        assert_right(session)
        child = os.fork()
        if not child:
            with said() as texts:
                assert_right(session)
                assert_right(session)
            os._exit(0 if len(texts) == 1 and "'spawn'" in texts[0] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert_right(session)
        assert engine_of(session) == "cuda"


def test_a_driver_that_does_not_start_is_shown_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported display driver"
    with machine_with_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("coexec.engines.cuda.engine.listing", lambda bindings: Listing((), failure))
        assert describe("gpu:0").engine.name == "opencl"
        with pytest.raises(DeviceError, match=failure):
            describe("gpu:0/cuda")
        assert failure in broken()["cuda"]
        assert main(["devices"]) == 0
        asked: Any = SimpleNamespace(receive=lambda: "cuda", send=lambda listing: None)
        with pytest.raises(DeviceError, match=failure):  # which coexec doctor shows
            survey.serve(asked)
    assert f"CUDA cannot be used: {failure}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_a_verb_ends_with_the_error(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL.SerializeToString())
    words = ["--devices", "gpu:0", "--planner", "single", "--cache", str(tmp_path / "cache")]
    with machine_with_gpu() as faults:
        faults.errors["memory"] = NO_MEMORY
        assert main([verb, str(path), *words]) != 0
    assert "gpu:0 ran out of memory while" in capsys.readouterr().err


def test_ended_work_of_a_gpu_that_has_failed_is_known_without_an_error() -> None:
    from tests.engines.cuda.test_cuda_programs import bound_network, feeds_of

    with fake_cuda() as engine:
        bound, inputs, _ = bound_network(engine, MODEL)
        engine.upload(feeds_of(MODEL)["x"], inputs["x"])
        run = bound.launch()
        context = engine._context
        assert isinstance(context, FakeContext)
        context.faults.errors["all"] = NO_MEMORY
        assert run.ended
        with pytest.raises(ExecutionError, match="while running 'left' to 'right'"):
            run.wait()
