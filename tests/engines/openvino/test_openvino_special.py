"""NaN, infinities, integers and indices on OpenVINO, as ONNX Runtime takes them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.openvino.bounds import ValueBounds
from coexec.engines.openvino.program import exceeds
from coexec.engines.openvino.special import LIMIT, keep_special_values
from coexec.errors import ExecutionError
from coexec.model.difference import TOLERANCE, unlike
from coexec.model.model import Model
from tests.helpers import (
    openvino_programs,  # skips where OpenVINO is missing, before it is imported below
)
from tests.helpers.onnx_models import direct, run, tensor
from tests.helpers.openvino_programs import compute, module_around, on_cores

Array = openvino_programs.Array
SHAPE = (1, 16, 9, 9)
MOST = np.finfo(np.float32).max
ODD = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 3e38, -3e38]


@pytest.fixture(scope="module")
def device() -> Iterator[OpenEngine]:
    opened = on_cores(usable_cores()[-1])
    yield opened
    opened.close()


def hostile(seed: int, share: float = 0.3) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(SHAPE).astype(np.float32)
    return np.where(rng.random(SHAPE) < share, rng.choice(ODD, SHAPE), values).astype(np.float32)


def model(op_type: str, weights: Mapping[str, Any], opset: int = 17, **attributes: Any) -> Model:
    node = helper.make_node(op_type, ["x", *weights], ["y"], name="node", **attributes)
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return direct([node], [tensor("x", SHAPE)], ["y"], arrays, opset)


def number(value: float) -> np.float32:
    return np.float32(value)


def largest(values: Array, axes: int | tuple[int, ...]) -> Array:
    return np.asarray(values.max(axis=axes, keepdims=True))


def pooled(x: Array) -> Array:
    """Of windows of 3 by 3; a NaN makes its window NaN."""
    return np.asarray(np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3)).max(axis=(4, 5)))


def soft(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def log_soft(x: Array) -> Array:
    """Over channels."""
    below = x - x.max(axis=1, keepdims=True)
    return np.asarray(below - np.log(np.exp(below).sum(axis=1, keepdims=True)))


CASES = {
    "Relu": (model("Relu", {}), lambda x: np.maximum(x, 0)),
    "Clip": (model("Clip", {"l": number(-1), "u": number(1)}), lambda x: np.clip(x, -1, 1)),
    "Clip of opset 7": (model("Clip", {}, 7, min=-1.0, max=1.0), lambda x: np.clip(x, -1, 1)),
    "Min": (model("Min", {"u": number(1)}), lambda x: np.minimum(x, 1)),
    "Max": (model("Max", {"l": number(1)}), lambda x: np.maximum(x, 1)),
    "HardSigmoid": (model("HardSigmoid", {}), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "Exp": (model("Exp", {}), np.exp),
    "ReduceMax": (model("ReduceMax", {}, 17, axes=[3]), lambda x: largest(x, 3)),
    "ReduceMin": (model("ReduceMin", {}, 17, axes=[1, 2]), lambda x: -largest(-x, (1, 2))),
    "GlobalMaxPool": (model("GlobalMaxPool", {}), lambda x: largest(x, (2, 3))),
    "MaxPool": (model("MaxPool", {}, 17, kernel_shape=[3, 3]), pooled),
    "Softmax": (model("Softmax", {}, axis=3), lambda x: soft(x, 3)),
    "LogSoftmax": (model("LogSoftmax", {}, axis=1), log_soft),
    "Div": (model("Div", {"d": number(1e-40)}), lambda x: x / number(1e-40)),
    "Pow": (model("Pow", {"e": number(0.5)}), lambda x: np.where(np.isneginf(x), np.inf, x**0.5)),
}
"""With what NumPy makes of them, which hands NaN on wherever it comes."""


@pytest.mark.parametrize("name", CASES)
def test_nan_and_infinities_are_kept(device: OpenEngine, name: str) -> None:
    of, definition = CASES[name]
    module = module_around(of)
    for seed in range(4):
        x = hostile(seed, 0.02 if seed % 2 else 0.5)
        with np.errstate(all="ignore"):
            expected = np.asarray(definition(x), np.float32)
        # The smallest number stands for -inf in an empty maximum, here and in ONNX Runtime.
        found = compute(device, module, {"x": x})["y"]
        if name == "MaxPool":
            expected = np.maximum(expected, np.finfo(np.float32).min)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


ALONE = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "LogSoftmax",
    "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
]  # fmt: skip
"""Operators of one input that OpenVINO is given."""
FUSED = {
    "Gelu of Erf": [
        ("Div", "x", "root"), ("Erf", "0"), ("Add", "1", "one"), ("Mul", "x", "2"),
        ("Mul", "3", "half"),
    ],
    "Gelu of Tanh": [
        ("Pow", "x", "three"), ("Mul", "0", "cubic"), ("Add", "x", "1"), ("Mul", "2", "scale"),
        ("Tanh", "3"), ("Add", "4", "one"), ("Mul", "x", "5"), ("Mul", "6", "half"),
    ],
    "Swish": [("Sigmoid", "x"), ("Mul", "x", "0")],
    "Mish": [("Softplus", "x"), ("Tanh", "0"), ("Mul", "x", "1")],
    "Softplus": [("Exp", "x"), ("Add", "0", "one"), ("Log", "1")],
    "HardSwish": [("HardSigmoid", "x"), ("Mul", "x", "0")],
}  # fmt: skip
"""Operators in a row that OpenVINO fuses to one. A number is the result of the operator with this
number."""
NUMBERS = {"root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "scale": 0.797885}


def fused(row: list[tuple[str, ...]]) -> Model:
    nodes = [
        helper.make_node(kind, inputs, ["y" if number == len(row) - 1 else str(number)])
        for number, (kind, *inputs) in enumerate(row)
    ]
    used = {name: number(value) for name, value in NUMBERS.items() if name in str(row)}
    return direct(nodes, [tensor("x", SHAPE)], ["y"], used)


@pytest.mark.parametrize("name", [*ALONE, *FUSED])
def test_special_values_are_those_of_onnx_runtime(device: OpenEngine, name: str) -> None:
    of = fused(FUSED[name]) if name in FUSED else model(name, {}, 20)
    assert not any(device.why_not(task, of.graph.tensors) for task in of.graph.tasks)
    program = device.compile(module_around(of))
    y = np.empty(SHAPE, np.float32)
    for seed, value in enumerate([np.inf, -np.inf, np.nan, 1e-40, MOST, -MOST]):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(SHAPE).astype(np.float32)
        x[rng.random(SHAPE) < 0.1] = value
        program.bind({"x": x}, {"y": y}).run()
        [expected] = run(of.source, {"x": x})
        assert unlike(y, expected, TOLERANCE) is None, value


def test_two_computed_operands_are_both_looked_at(device: OpenEngine) -> None:
    node = helper.make_node("Max", ["x", "z"], ["y"])
    module = module_around(direct([node], [tensor("x", SHAPE), tensor("z", SHAPE)], ["y"], {}))
    x, z = hostile(1), hostile(2)
    found = compute(device, module, {"x": x, "z": z})["y"]
    np.testing.assert_array_equal(found, np.maximum(x, z))


@pytest.mark.parametrize("op_type", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_no_comparison_with_nan_is_true(device: OpenEngine, op_type: str) -> None:
    definition = {
        "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
        "Less": np.less,
        "LessOrEqual": np.less_equal,
    }[op_type]
    node = helper.make_node(op_type, ["x", "z"], ["y"])
    inputs = [tensor("x", SHAPE), tensor("z", SHAPE)]
    module = module_around(direct([node], inputs, ["y"], {}))
    x, z = hostile(1), hostile(2)
    found = compute(device, module, {"x": x, "z": z})["y"]
    np.testing.assert_array_equal(found, definition(x, z))


def test_a_quotient_is_no_product_with_a_reciprocal(device: OpenEngine) -> None:
    """That of 1e-40 is infinite."""
    node = helper.make_node("Div", ["x", "z"], ["y"])
    module = module_around(direct([node], [tensor("x", SHAPE), tensor("z", SHAPE)], ["y"], {}))
    x, z = hostile(1) * number(1e-30), hostile(2)
    with np.errstate(all="ignore"):
        expected = x / z
    found = compute(device, module, {"x": x, "z": z})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


def convolution() -> Model:
    """A Relu behind a convolution, which OpenVINO makes one operator of."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    return direct(nodes, [tensor("x", SHAPE)], ["y"], {"w": np.ones((8, 16, 1, 1), np.float32)})


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are compiled so that their operators can be read, which the C API does not offer."""
    monkeypatch.setattr("coexec.engines.openvino.device.native_model", lambda *_: None)


@pytest.mark.usefixtures("readable")
def test_usual_feeds_have_fused_operators(device: OpenEngine) -> None:
    program = device.compile(module_around(convolution()))
    kinds = [
        op.get_rt_info()["layerType"].astype(str)
        for op in program.compiled.get_runtime_model().get_ordered_ops()
    ]
    assert "Subgraph" not in kinds and kinds.count("Convolution") == 1


def test_unusual_feeds_have_right_answers(device: OpenEngine) -> None:
    y = np.empty((1, 8, 9, 9), np.float32)
    x = np.ones(SHAPE, np.float32)
    bound = device.compile(module_around(convolution())).bind({"x": x}, {"y": y})
    for value in (1.0, np.nan, 2.0, np.inf, -np.inf, 1e30):
        x[0, 3, 4, 4] = value
        bound.run()
        assert np.array_equal(y[0, 0, 4, 4], np.maximum(15 + number(value), 0), equal_nan=True)
        assert (y[0, :, 0] == 16).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_what_exceeds_the_limit(dtype: str) -> None:
    for value, expected in (
        (LIMIT, False),
        (-LIMIT, False),
        (2 * LIMIT, True),
        (np.nan, True),
        (-np.inf, True),
        (-0.0, False),
    ):
        values = np.ones((3, 5), dtype)
        values[1, 2] = value
        assert exceeds(values, LIMIT) is expected
    assert not exceeds(np.ones(3, np.int64), LIMIT)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_what_numbers_become(device: OpenEngine, seed: int) -> None:
    """Of random layers, with feeds at the limit."""
    import openvino
    from openvino import opset14 as ops

    rng = np.random.default_rng(seed)
    shape, once = (1, 4, 6, 6), [1, 1]
    x = ops.parameter(shape, np.float32)
    weights = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
    layers: list[Callable[[Any], Any]] = [
        lambda p: ops.convolution(p, weights, once, once, once, once),
        lambda p: ops.relu(p),
        lambda p: ops.clamp(p, -2.0, 6.0),
        lambda p: ops.hswish(p),
        lambda p: ops.add(p, number(3)),
        lambda p: ops.minimum(number(6), p),
        lambda p: ops.tanh(p),
        lambda p: ops.avg_pool(p, once, once, once, [3, 3], False),
        lambda p: ops.softmax(p, 1),
    ]
    port = x.output(0)
    for _ in range(int(rng.integers(1, 6))):
        port = layers[int(rng.integers(len(layers)))](port).output(0)
    found = ValueBounds(LIMIT).of(port)
    assert found is not None and ValueBounds(None).of(x.output(0)) is None
    compiled = openvino.Core().compile_model(openvino.Model([port], [x], "m"), "CPU")
    for sign in (-1, 1, rng.choice([-1, 1], shape)):
        values = compiled(np.full(shape, LIMIT, np.float32) * np.float32(sign))[0]
        slack = 1e-3 * found.magnitude
        assert found.low - slack <= values.min() and values.max() <= found.high + slack


def test_operators_between_integers_stay_as_they_are(device: OpenEngine) -> None:
    """Whatever is fed, a quantized value is a number."""
    import openvino
    from openvino import opset14 as ops

    x = ops.parameter([1, 4], np.float32)
    low, high = number(0), number(2)
    y = ops.relu(ops.fake_quantize(x, low, high, low, high, 256))
    of = openvino.Model([ops.relu(y)], [x], "quantized")
    assert not keep_special_values(of, None)
    assert [op.get_type_name() for op in of.get_ops()].count("Relu") == 2


def quantized() -> tuple[Model, Array]:
    """A convolution between a QuantizeLinear and its opposite. Products are as large as they can
    be, and twice that is more than 16 bits hold."""
    weights = {
        "s": number(0.5),
        "z": np.uint8(0),
        "ws": number(1),
        "wz": np.int8(0),
        "w": np.full((8, 4, 1, 1), 127, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["f"]),
        helper.make_node("Conv", ["d", "f"], ["y"]),
    ]
    shape = (1, 4, 3, 3)
    return direct(nodes, [tensor("x", shape)], ["y"], weights), np.full(shape, 127.5, np.float32)


def test_integers_do_not_saturate(device: OpenEngine) -> None:
    of, x = quantized()
    found = compute(device, module_around(of), {"x": x})["y"]
    assert np.array_equal(found, np.full((1, 8, 3, 3), 4 * 127.5 * 127, np.float32))


@pytest.mark.usefixtures("readable")
@pytest.mark.parametrize("has", [True, False])
def test_integers_are_used_where_they_do_not_saturate(
    device: OpenEngine, monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    monkeypatch.setattr("coexec.engines.openvino.trial.saturates", lambda: not has)
    program = device.compile(module_around(quantized()[0]))
    kinds = {
        str(op.get_rt_info()["primitiveType"].astype(str))
        for op in program.compiled.get_runtime_model().get_ordered_ops()
        if op.get_rt_info()["layerType"].astype(str) == "Convolution"
    }
    assert kinds and all(kind.upper().endswith("I8") == has for kind in kinds)


@pytest.mark.parametrize("index", [5, -6, 2**31 - 1, -(2**31), 2**32, -(2**63)])
def test_an_index_that_is_fed_and_is_outside(device: OpenEngine, index: int) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="pick", axis=0)
    of = direct([node], [tensor("x", (5, 2)), tensor("i", (3,), "int64")], ["y"], {})
    x, good = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, -5, 0])
    found = compute(device, module_around(of), {"x": x, "i": good})["y"]
    assert np.array_equal(found, x[good])
    with pytest.raises(ExecutionError, match=rf"index {index} is outside .* 5 elements"):
        compute(device, module_around(of), {"x": x, "i": np.array([0, index, 1])})


def test_an_index_that_is_computed_and_is_outside(device: OpenEngine) -> None:
    nodes = [
        helper.make_node("Add", ["i", "one"], ["j"]),
        helper.make_node("Gather", ["x", "j"], ["y"], name="pick"),
    ]
    inputs = [tensor("x", (5, 2)), tensor("i", (2,), "int32")]
    module = module_around(direct(nodes, inputs, ["y"], {"one": np.int32(1)}))
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = compute(device, module, {"x": x, "i": np.array([3, -6], np.int32)})["y"]
    assert np.array_equal(found, x[[4, -5]])
    with pytest.raises(ExecutionError, match=r"index 5 is outside"):
        compute(device, module, {"x": x, "i": np.array([0, 4], np.int32)})
