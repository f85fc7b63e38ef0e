"""The engine `cpp`: sessions, blocks of any width, and the cache of kernels."""

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from coexec.engines import detect
from coexec.engines.cpp import libraries
from coexec.engines.detect import usable_cores
from coexec.engines.names import whole_cpu, without_engine
from coexec.engines.registry import describe, load_engine, open_devices
from coexec.errors import CacheWarning, DeviceError
from coexec.hardware import hardware
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.plan import Plan, Provenance
from coexec.research import zoo
from coexec.selection.planning_context import PlanningContext
from coexec.session import InferenceSession
from coexec.settings import Settings
from tests.helpers.core_programs import cpp_name, opened_cpp
from tests.helpers.gpu_networks import in_float16, mixed_network, module_of, run_on, small_network
from tests.helpers.small_models import branches, from_nodes, tensor_info

WIDTHS = ("4", "8", "16")


def right(session: InferenceSession, proto: Any) -> None:
    feeds = random_inputs(load(proto).graph)
    expected = plain_session(proto).run(None, feeds)
    for _ in range(2):
        for found, each in zip(session.run(None, feeds), expected, strict=True):
            assert worst_difference(found, each) < 1e-5


@pytest.mark.parametrize("width", WIDTHS)
def test_a_session_computes_with_blocks_of_any_width(width: str, tmp_path: Path) -> None:
    proto, options = mixed_network(), {"cpp": {"block": width}}
    (device,) = open_devices([cpp_name()], options)
    assert device.engine.dialect.block == int(width)
    with InferenceSession(
        proto, devices=[cpp_name()], planner="single", cache=tmp_path, engine_options=options
    ) as session:
        right(session, proto)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v3", "mobilenet_v1"])
def test_networks_are_right(name: str, tmp_path: Path) -> None:
    proto = zoo.build(name)
    with InferenceSession(proto, devices=[cpp_name()], planner="single", cache=tmp_path) as session:
        right(session, proto)


def test_all_cores_are_one_device(tmp_path: Path) -> None:
    cpp_name()
    proto = branches(channels=18)
    with InferenceSession(
        proto, devices=[f"{whole_cpu()}/cpp"], planner="single", cache=tmp_path
    ) as session:
        right(session, proto)


def test_profiles_are_of_one_width() -> None:
    """The width is part of the engine's version; the processor's own has one name."""
    versions = {w: describe(cpp_name(), {"cpp": {"block": w}}).engine.version for w in WIDTHS}
    assert len(set(versions.values())) == len(WIDTHS)
    assert describe(cpp_name()).engine.version in versions.values()


def test_arrays_are_read_as_they_are_and_float16_is_refused() -> None:
    graph = load(in_float16(mixed_network())).graph
    reason = opened_cpp(None).refusal(graph.tasks[0], graph.tensors)
    assert reason is not None and "Conv of float16: there are no kernels for this type" in reason


@pytest.mark.parametrize("width", WIDTHS)
def test_a_session_computes_in_bf16(width: str, tmp_path: Path) -> None:
    """On any processor, also without the instructions for it. The numbers of the caller's arrays
    are float32."""
    proto, options = mixed_network(), {"cpp": {"block": width}}
    feeds = random_inputs(load(proto).graph)
    expected = plain_session(proto).run(None, feeds)
    with InferenceSession(
        proto,
        devices=[f"{cpp_name()}:bf16"],
        planner="single",
        cache=tmp_path,
        engine_options=options,
    ) as session:
        found = session.run(None, feeds)
    errors = [worst_difference(a, b) for a, b in zip(found, expected, strict=True)]
    assert all(1e-5 < error < 2e-2 for error in errors)


@pytest.mark.parametrize(("sets", "lower"), [(["AVX512BF16"], ["bf16"]), (["AVX512F"], [])])
def test_bf16_is_offered_where_the_processor_multiplies_pairs(
    sets: list[str], lower: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "features", lambda: tuple(sets))
    monkeypatch.setattr(detect, "reported_features", lambda: ())
    (processor,) = load_engine("cpp").processors("cpu")
    assert [*processor.precisions] == ["float32", *lower]


def test_a_position_out_of_range_is_an_error_of_onnx_runtime(tmp_path: Path) -> None:
    weights = {"table": np.ones((7, 16), np.float32), "w": np.ones((16, 16), np.float32)}
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["rows"], "rows"),
        helper.make_node("MatMul", ["rows", "w"], ["y"], "product"),
    ]
    words = tensor_info("words", [2, 3], TensorProto.INT64)
    proto = from_nodes(nodes, [words], [tensor_info("y", [2, 3, 16])], weights)
    with InferenceSession(proto, devices=[cpp_name()], planner="single", cache=tmp_path) as session:
        given = np.array([[0, 6, -7], [1, 2, 3]])
        expected = plain_session(proto).run(None, {"words": given})
        np.testing.assert_array_equal(session.run(None, {"words": given}), expected)
        for run in (session.run, plain_session(proto).run):
            with pytest.raises(InvalidArgument, match="indices element out of data bounds"):
                run(None, {"words": given + 1})


def test_an_array_at_any_address_is_read_and_written() -> None:
    """Of the caller: at an odd address, or one that is no multiple of a vector."""
    model = load(small_network("swish", as_model=True))
    engine = opened_cpp(None)
    program = engine.compile(module_of(model))
    (x,) = random_inputs(model.graph).values()
    raw = np.zeros(x.nbytes + 8, np.uint8)
    expected = run_on(engine, model, {"x": x})["y"]
    bound = program.bind({"x": x}, {"y": np.empty_like(expected)})
    for shift in (1, 4):
        moved = raw[shift : shift + x.nbytes].view(x.dtype).reshape(x.shape)
        moved[...] = x
        made = np.zeros(expected.size + 1, np.float32)[1:].reshape(expected.shape)
        bound.set_input("x", moved)
        bound.set_output("y", made)
        bound.run()
        assert np.array_equal(made, expected)
        moved[...] = 2 * x
        bound.set_input("x", moved)  # the same array with other numbers
        bound.run()
        assert not np.array_equal(made, expected)


def compiled(folder: Path | None) -> tuple[int, dict[str, Any]]:
    """How many kernels of a network are compiled, as in a new process, and what it computes."""
    libraries._loaded.clear()
    engine = opened_cpp(folder)
    model = load(mixed_network())
    found = run_on(engine, model, random_inputs(model.graph))
    return engine.libraries.compiled, found


def test_kernels_are_kept_and_damaged_ones_are_not_trusted(tmp_path: Path) -> None:
    first, expected = compiled(tmp_path)
    again, _ = compiled(tmp_path)
    assert (first > 0, again) == (True, 0)
    for path in tmp_path.glob("kernels/*"):
        path.write_bytes(path.read_bytes()[:-7])  # cut off
    with pytest.warns(CacheWarning, match="damaged"):
        repaired, found = compiled(tmp_path)
    assert repaired == first
    for name, array in expected.items():
        assert np.array_equal(found[name], array)


def test_a_stored_library_that_cannot_be_loaded_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of a machine with another C library."""
    _, expected = compiled(tmp_path)
    load_library = ctypes.CDLL
    refused = []

    def refuse_once(path: str) -> ctypes.CDLL:
        if not refused:
            refused.append(path)
            raise OSError(f"{path}: version `GLIBC_9' not found")
        return load_library(path)

    monkeypatch.setattr(libraries.ctypes, "CDLL", refuse_once)
    again, found = compiled(tmp_path)
    assert (again, len(refused)) == (0, 1)
    for name, array in expected.items():
        assert np.array_equal(found[name], array)


def test_without_a_folder_everything_is_compiled() -> None:
    assert compiled(None)[0] > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes(tmp_path: Path) -> None:
    proto = branches(channels=18)
    with InferenceSession(proto, devices=[cpp_name()], planner="single", cache=tmp_path) as session:
        right(session, proto)
        child = os.fork()
        if child == 0:
            try:
                right(session, proto)
            except BaseException:
                os._exit(1)
            os._exit(0 if session.degraded is None else 2)
        assert os.waitpid(child, 0)[1] == 0
        right(session, proto)


def test_two_devices_share_all_cores_or_none() -> None:
    core, ours = usable_cores()[-1], cpp_name()
    assert hardware.System((describe(f"cpu:{core}"), describe(ours))).names == (f"cpu:{core}",)
    if len(usable_cores()) > 1:
        with pytest.raises(DeviceError, match=f"share core {core}"):
            hardware.System((describe(whole_cpu()), describe("reference:0"), describe(ours)))


def test_two_devices_on_one_core(tmp_path: Path) -> None:
    """They are one after the other on the core, and tensors get from one to the other."""
    proto = small_network("concat", as_model=True)
    ours, core = cpp_name(), without_engine(cpp_name())
    for names in ([ours, core], [f"{core}/onnxruntime", ours]):
        work = PlanningContext(proto, Settings(devices=names, cache=tmp_path))
        tasks = [work.model.graph.whole_piece(task) for task in work.model.graph.tasks]
        engines = [("cpp", "onnxruntime")[n % 2] for n in range(len(tasks))]
        plan = Plan(
            work.model.graph.fingerprint,
            {core: tuple(tasks)},
            dict(zip(tasks, engines, strict=True)),
            Provenance("by hand"),
        )
        feeds = random_inputs(work.model.graph)
        with work.start(work.prepared(plan)) as executor:
            found = executor.run(feeds)
        for output, expected in work.user_model.reference(feeds).items():
            assert worst_difference(found[output], expected) < 1e-5
        work.release()
