"""Programs as CUDA graphs, on a GPU that is computed by OpenCL (`tests/helpers/fake_cuda.py`)."""

import re
import time
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.arrays import address_of
from coexec.engines.cuda import compilers, driver
from coexec.engines.cuda.device import CudaDevice
from coexec.engines.cuda.driver import CudaError
from coexec.engines.cuda.failures import CompileError
from coexec.engines.kernels.dependencies import Dependencies
from coexec.errors import DeviceError, ExecutionError, ForkedError
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.timing.lanes import kernels_in_words
from tests.helpers.fake_cuda import FakeContext, fake_cuda
from tests.helpers.gpu_networks import mixed_network, module_of, run_on, small_network
from tests.helpers.patience import until
from tests.helpers.small_models import branches, from_nodes, tensor_info

Array = np.ndarray[Any, Any]


def feeds_of(proto: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32)
        for i in proto.graph.input
    }


def expected(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    session = plain_session(proto)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_close(made: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert made.keys() == wanted.keys()
    for name, array in wanted.items():
        largest = np.abs(array).max()
        assert np.abs(made[name] - array).max() <= 1e-5 * largest, name


@pytest.mark.parametrize("order", ["all", "none", "auto"])
@pytest.mark.parametrize("make", [mixed_network, branches])
def test_a_network_is_computed_as_by_onnx_runtime(make: Any, order: str) -> None:
    proto = make()
    feeds = feeds_of(proto)
    with fake_cuda(branches=order) as engine:
        assert_close(run_on(engine, load(proto), feeds), expected(proto, feeds))


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_every_sequence_that_the_graph_allows_gives_the_same_numbers(seed: int) -> None:
    proto = branches(width=4, channels=8, size=8)
    feeds = feeds_of(proto)
    with fake_cuda(seed, branches="all") as engine:
        made = run_on(engine, load(proto), feeds)
    with fake_cuda(branches="none") as engine:
        chain = run_on(engine, load(proto), feeds)
    for name, array in chain.items():
        np.testing.assert_array_equal(made[name], array)


def bound_network(engine: CudaDevice, proto: onnx.ModelProto, leaving: bool = True) -> Any:
    """A bound program with its inputs and outputs."""
    module = module_of(load(proto))
    outputs = {t.name: engine.allocate(t, leaving) for t in module.outputs}
    inputs = {t.name: engine.allocate(t) for t in module.inputs}
    return engine.compile(module).bind(inputs, outputs), inputs, outputs


@pytest.mark.parametrize("leaving", [True, False])
def test_a_program_answers_one_request_after_the_other(leaving: bool) -> None:
    proto = small_network("concat", as_model=True)
    with fake_cuda() as engine:
        bound, inputs, outputs = bound_network(engine, proto, leaving)
        for seed in range(3):
            feeds = feeds_of(proto, seed)
            engine.upload(feeds["x"], inputs["x"])
            bound.run()
            made = {name: engine.download(tensor).copy() for name, tensor in outputs.items()}
            assert_close(made, expected(proto, feeds))


def test_a_tensor_from_another_program_is_not_fetched_again() -> None:
    proto = small_network("swish", as_model=True)
    with fake_cuda(branches="none") as engine:
        bound, inputs, _ = bound_network(engine, proto)
        context = engine._context
        assert isinstance(context, FakeContext)
        engine.upload(feeds_of(proto)["x"], inputs["x"])
        bound.run()
        bound.run()  # the input is on the device now
        with_fetch, without = context.launched[-2:]
        assert with_fetch == without + 1


def test_other_tensors_are_read_and_written_from_the_next_run_on() -> None:
    proto = small_network("pad", as_model=True)
    feeds, others = feeds_of(proto), feeds_of(proto, 1)
    with fake_cuda() as engine:
        bound, inputs, outputs = bound_network(engine, proto)
        engine.upload(feeds["x"], inputs["x"])
        bound.run()
        (output,) = module_of(load(proto)).outputs
        target = engine.allocate(output, True)
        bound.set_input("x", engine.upload(others["x"]))
        bound.set_output("y", target)
        bound.run()
        assert_close({"y": engine.download(target)}, expected(proto, others))
        assert_close({"y": engine.download(outputs["y"])}, expected(proto, feeds))


def test_a_tensor_is_put_together_from_boxes() -> None:
    with fake_cuda() as engine:
        proto = small_network("swish", as_model=True)
        _, inputs, _ = bound_network(engine, proto)
        array = feeds_of(proto)["x"]
        halves = [Region((0, 0, 0, 0), (1, 8, 4, 7)), Region((0, 0, 4, 0), (1, 8, 9, 7))]
        engine.fill(inputs["x"], [(array[half.slices], half) for half in halves])
        np.testing.assert_array_equal(engine.download(inputs["x"]), array)


def test_the_clock_has_every_kernel_with_its_result() -> None:
    proto = small_network("concat", as_model=True)
    with fake_cuda() as engine:
        bound, inputs, _ = bound_network(engine, proto)
        engine.upload(feeds_of(proto)["x"], inputs["x"])
        engine.start_timing()
        run = bound.launch()
        run.wait()
        start_s, end_s = run.span_s()
        details = engine.stop_timing()
    assert start_s <= end_s
    assert [(d.name, d.result) for d in details] == [
        ("reorder", "x"),
        ("conv_tiled", "left"),
        ("conv_tiled", "right"),
        ("reorder", "y"),
    ]
    assert {d.device for d in details} == {"gpu:0"}


def test_kernels_of_branches_are_timed_side_by_side() -> None:
    proto = branches(width=3)
    with fake_cuda(branches="all") as engine:
        bound, inputs, _ = bound_network(engine, proto)
        engine.upload(feeds_of(proto)["x"], inputs["x"])
        engine.start_timing()
        bound.launch().wait()
        assert "3 side by side" in kernels_in_words(engine.stop_timing())


def test_the_order_is_measured_once_and_told_with_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = branches(width=3)
    with fake_cuda(branches="auto") as engine:
        program = engine.compile(module_of(load(proto)))
        launches = len(program.build.launches)
        assert program.order.waits != Dependencies.chain(launches).waits
        (told,) = engine.decisions
        words = r"gpu:0 runs the branches of joined, y side by side: that takes (0\.\d\d) of the "
        found = re.match(words, told)
        assert found is not None
        levels = 1 + max(bin(before).count("1") for before in program.order.before)
        assert 0 < float(found[1]) <= levels / launches + 0.01
        monkeypatch.setattr("coexec.engines.cuda.branches._gain", lambda *_: 1 / 0)
        assert engine.compile(module_of(load(proto))).order.waits == program.order.waits
        assert engine.decisions == (told,)


def test_a_kernel_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        def compile_(source: str) -> bytes:
            raise CompileError("line 3: error: no such thing")

        return compile_, "broken"

    with fake_cuda() as engine:
        monkeypatch.setattr(compilers, "_chosen", fails)
        engine.images._compile = fails()[0]
        with pytest.raises(
            DeviceError, match=r"compiling what makes y \(kernel \w+ of '\w+': line 3: error"
        ):
            engine.compile(small_network("swish"))


@pytest.mark.parametrize(
    "name, text", [("CUDA_ERROR_OUT_OF_MEMORY", "ran out of memory"), ("CUDA_ERROR_X", "failed")]
)
def test_an_error_of_the_driver_names_the_tasks_and_the_remedy(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise CudaError(name, "what CUDA says")

    proto = small_network("swish", as_model=True)
    with fake_cuda() as engine:
        bound, inputs, _ = bound_network(engine, proto)
        engine.upload(feeds_of(proto)["x"], inputs["x"])
        monkeypatch.setattr(FakeContext, "mark", fails)
        with pytest.raises(ExecutionError, match=f"gpu:0 {text} while running 'c' to 'c'"):
            bound.run()
        monkeypatch.setattr(FakeContext, "memory", fails)
        with pytest.raises(DeviceError, match=f"gpu:0 {text} while compiling"):
            engine.compile(small_network("concat"))


def test_a_forked_child_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_started_by", 1)
    with pytest.raises(ForkedError, match=r"started in process 1 .* method 'spawn'"), fake_cuda():
        pass


def test_more_groups_than_cuda_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coexec.engines.cuda.kernels._MOST_GROUPS", 0)
    with fake_cuda() as engine, pytest.raises(DeviceError, match=r"\w+ has \d+ x \d+ x \d+ groups"):
        engine.compile(small_network("swish"))


def test_what_does_not_fit_twice_runs_one_launch_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To measure both orders takes the memory of both."""

    def fails(*_: object) -> float:
        raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")

    monkeypatch.setattr("coexec.engines.cuda.branches._gain", fails)
    proto = branches()
    feeds = feeds_of(proto)
    with fake_cuda(branches="auto") as engine:
        program = engine.compile(module_of(load(proto)))
        assert program.order.waits == Dependencies.chain(len(program.build.launches)).waits
        assert_close(run_on(engine, load(proto), feeds), expected(proto, feeds))


def test_a_run_writes_the_tensors_that_it_was_launched_with() -> None:
    proto = small_network("swish", as_model=True)
    feeds = feeds_of(proto)
    with fake_cuda() as engine:
        bound, inputs, outputs = bound_network(engine, proto)
        engine.upload(feeds["x"], inputs["x"])
        run = bound.launch()
        (tensor,) = module_of(load(proto)).outputs
        bound.set_output("y", engine.allocate(tensor, True))
        run.wait()
        assert_close({"y": engine.download(outputs["y"])}, expected(proto, feeds))


def words_of(engine: CudaDevice) -> tuple[Any, Array, int]:
    """The tensor and the array of two words, and the address of the first."""
    tensor = engine.allocate(Tensor("words", (2,), "int32"))
    array = engine.host_array(tensor)
    array[...] = 0
    return tensor, array, address_of(array)


def test_a_program_that_was_launched_begins_at_a_word_and_sets_one_at_its_end() -> None:
    proto = small_network("concat", as_model=True)
    with fake_cuda() as engine:
        bound, inputs, outputs = bound_network(engine, proto)
        _, words, address = words_of(engine)
        entrance = engine.host_array(inputs["x"])
        for seed in range(3):
            entrance[...] = np.nan
            words[...] = 0
            run = bound.launch(["x"], [address], address + 4)
            time.sleep(0.01)
            assert not run.ended and not words[1]
            feeds = feeds_of(proto, seed)
            entrance[...] = feeds["x"]
            words[0] = 1
            until(lambda: words[1] == 1, "the word that the program sets")
            made = {name: engine.host_array(tensor).copy() for name, tensor in outputs.items()}
            assert_close(made, expected(proto, feeds))
            run.wait()
        assert not inputs["x"].users


def test_nothing_keeps_a_program_that_nobody_has() -> None:
    """Its memory on the GPU is free at once, without a run of the garbage collector."""
    proto = small_network("concat", as_model=True)
    with fake_cuda() as engine:
        bound, inputs, _ = bound_network(engine, proto)
        engine.upload(feeds_of(proto)["x"], inputs["x"])
        bound.run()
        gone = weakref.ref(bound)
        del bound
        assert gone() is None


def channels_last_networks() -> dict[str, tuple[list[Any], dict[str, Array], list[int], list[int]]]:
    """Transposes between channels on the second and on the last axis: nodes, weights, shapes of
    ``x`` and ``y``."""
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node

    def weights(*shape: int) -> Array:
        return 0.3 * rng.standard_normal(shape, np.float32)

    to_last, back = [0, 2, 3, 1], [0, 3, 1, 2]
    depthwise = {"group": 24, "pads": [3, 3, 3, 3]}
    block = [
        node("Conv", ["x", "stem"], ["a"], strides=[2, 2]),
        node("Conv", ["a", "deep"], ["b"], **depthwise),
        node("Transpose", ["b"], ["c"], perm=to_last),
        node("LayerNormalization", ["c", "scale"], ["d"]),
        node("MatMul", ["d", "out"], ["e"]),
        node("Relu", ["e"], ["f"]),
        node("MatMul", ["f", "in"], ["g"]),
        node("Transpose", ["g"], ["h"], perm=back),
        node("Add", ["h", "a"], ["i"]),
        node("Conv", ["i", "wide"], ["y"]),
    ]
    shared = {
        "deep": weights(24, 1, 7, 7), "scale": weights(24), "out": weights(24, 48),
        "in": weights(48, 24),
    }  # fmt: skip
    divided = [
        node("MatMul", ["x", "out"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=back),
        node("Conv", ["b", "narrow"], ["c"], pads=[1, 1, 1, 1]),
        node("Transpose", ["c"], ["d"], perm=to_last),
        node("MatMul", ["d", "last"], ["y"]),
    ]
    pooled = [
        node("Transpose", ["x"], ["a"], perm=back),
        node("Conv", ["a", "same"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2]),
        node("Transpose", ["d"], ["y"], perm=to_last),
    ]
    return {
        "block": (
            block,
            {**shared, "stem": weights(24, 3, 2, 2), "wide": weights(40, 24, 1, 1)},
            [2, 3, 12, 18],
            [2, 40, 6, 9],
        ),
        "divided": (
            divided,
            {"out": weights(24, 512), "narrow": weights(8, 512, 3, 3), "last": weights(8, 8)},
            [1, 4, 5, 24],
            [1, 4, 5, 8],
        ),
        "pooled": (pooled, {"same": weights(8, 8, 1, 1)}, [2, 8, 6, 8], [2, 7, 5, 8]),
    }


@pytest.mark.parametrize("name, transposes", [("block", 0), ("divided", 0), ("pooled", 2)])
def test_blocks_lie_where_the_last_axis_needs_them(name: str, transposes: int) -> None:
    nodes, weights, x, y = channels_last_networks()[name]
    proto = from_nodes(nodes, [tensor_info("x", x)], [tensor_info("y", y)], weights)
    feeds = feeds_of(proto)
    with fake_cuda() as engine:
        assert_close(run_on(engine, load(proto), feeds), expected(proto, feeds))
        launches = engine.compile(module_of(load(proto))).build.launches
    names = [launch.name for launch in launches]
    assert names.count("transpose") == transposes
    assert ("conv_sum" in names) == (name == "divided")


def _convolved(weights: list[int], pads: list[int], x: list[int], y: list[int], **more: Any) -> Any:
    return [onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=pads, **more)], weights, x, y


def _behind_a_transpose(weights: list[int], pads: list[int], x: list[int], y: list[int]) -> Any:
    """A convolution whose input has its channels last."""
    node = onnx.helper.make_node
    nodes = [
        node("MatMul", ["x", "m"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2]),
        node("Conv", ["b", "w"], ["y"], pads=pads),
    ]
    return nodes, weights, x, y


def _divided(by: float) -> Any:
    """A product of numbers that are far from 1 without their divisors."""
    node = onnx.helper.make_node
    nodes = [
        node("Mul", ["x", "by"], ["a"]),
        node("Div", ["a", "by"], ["b"]),
        node("Mul", ["x", "by"], ["c"]),
        node("Div", ["c", "by"], ["d"]),
        node("Transpose", ["d"], ["e"], perm=[1, 0]),
        node("MatMul", ["b", "e"], ["y"]),
    ]
    return nodes, by, [6, 8], [6, 6]


RARE = {
    "1 x 1 with padding at the end": _convolved(
        [12, 8, 1, 1], [0, 0, 2, 2], [1, 8, 7, 5], [1, 12, 9, 7]
    ),
    "to few channels": _behind_a_transpose([2, 8, 3, 3], [1, 2, 0, 1], [1, 6, 5, 8], [1, 2, 5, 6]),
    "large factors": _divided(1e25),
    "small factors": _divided(1e-30),
}


@pytest.mark.parametrize("name", RARE)
def test_rare_networks_are_right(name: str) -> None:
    nodes, constant, x, y = RARE[name]
    rng = np.random.default_rng(0)
    weights = {"m": rng.standard_normal((8, 8), np.float32)}
    if isinstance(constant, float):
        weights["by"] = np.array(constant, np.float32)
    else:
        weights["w"] = rng.standard_normal(constant, np.float32)
    read = {name for node in nodes for name in node.input}
    used = {name: array for name, array in weights.items() if name in read}
    proto = from_nodes(nodes, [tensor_info("x", x)], [tensor_info("y", y)], used)
    feeds = feeds_of(proto)
    if isinstance(constant, float):  # ONNX Runtime multiplies the product by 0
        wanted = {"y": feeds["x"] @ feeds["x"].T}
    else:
        wanted = expected(proto, feeds)
    with fake_cuda() as engine:
        assert_close(run_on(engine, load(proto), feeds), wanted)


def test_long_rows_of_pixels_fit_the_grid() -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], group=8),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        node("MatMul", ["b", "m"], ["y"]),
    ]
    weights = {"w": np.ones((8, 1, 1, 1), np.float32), "m": np.ones((8, 1), np.float32)}
    infos = tensor_info("x", [1, 8, 70001, 1]), tensor_info("y", [1, 70001, 1, 1])
    proto = from_nodes(nodes, [infos[0]], [infos[1]], weights)
    with fake_cuda() as engine:
        engine.compile(module_of(load(proto)))
