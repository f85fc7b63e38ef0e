"""Networks of blocks that ONNX Runtime fuses, as the small operators that exporters write."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.helpers.small_models import from_nodes, tensor_info

IMAGES = (1, 16, 6, 6)
WORDS = (1, 8, 16)
ON_IMAGES = ("silu", "hard_swish", "residual", "excited", "gelu")
ON_WORDS = ("gelu", "layer_norm", "attention", "silu", "skip")
QUANTISED = ("conv", "conv", "added", "pooled", "joined")

_SCALE, _ZERO = np.float32(0.05), np.uint8(128)


def network(blocks: Sequence[str], shape: Sequence[int]) -> onnx.ModelProto:
    """A network of ``blocks`` one after the other; inputs and outputs of each have ``shape``.

    The nodes of the block at position 3 have the names "3.Conv0", "3.Sigmoid1", ...
    """
    return _Network(shape).model(blocks)


def quantised_network(blocks: Sequence[str]) -> onnx.ModelProto:
    """A network of ``blocks`` between QuantizeLinear and DequantizeLinear."""
    return _Quantised(IMAGES).model(blocks)


def in_half(given: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with float16 instead of float32."""
    made = onnx.ModelProto()
    made.CopyFrom(given)
    for weight in made.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return made


class _Network:
    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = list(shape)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(0)
        self.block = "in"

    def model(self, blocks: Sequence[str]) -> onnx.ModelProto:
        x = self.start()
        for number, block in enumerate(blocks):
            self.block = str(number)
            x = getattr(self, block)(x)
        self.block = "out"
        self.finish(x)
        ends = [tensor_info(name, self.shape) for name in ("x", "y")]
        return from_nodes(self.nodes, ends[:1], ends[1:], self.weights)

    def start(self) -> str:
        return self.product("x")

    def finish(self, x: str) -> None:
        self.nodes.append(helper.make_node("Neg", [x], ["y"], "out.Neg"))

    def op(self, kind: str, *reads: str, **attributes: object) -> str:
        name = f"{self.block}.{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(reads), [name], name, **attributes))
        return name

    def value(self, values: object, dtype: type = np.float32) -> str:
        name = f"{self.block}.w{len(self.weights)}"
        self.weights[name] = np.array(values, dtype)
        return name

    def normal(self, *shape: int) -> str:
        return self.value(self.random.standard_normal(shape) / shape[-1] ** 0.5)

    def product(self, x: str) -> str:
        """A layer with weights: a convolution, or a linear layer with the bias as first operand."""
        channels = self.shape[1] if len(self.shape) == 4 else self.shape[-1]
        if len(self.shape) == 4:
            weight = self.value(self.random.standard_normal((channels, channels, 1, 1)) / channels)
            return self.op("Conv", x, weight, self.normal(channels))
        made = self.op("MatMul", x, self.normal(channels, channels))
        return self.op("Add", self.normal(channels), made)

    def silu(self, x: str) -> str:
        x = self.product(x)
        return self.op("Mul", x, self.op("Sigmoid", x))

    def hard_swish(self, x: str) -> str:
        x = self.product(x)
        return self.op("Mul", x, self.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))

    def gelu(self, x: str) -> str:
        x = self.product(x)
        erf = self.op("Erf", self.op("Div", x, self.value(2**0.5)))
        return self.op(
            "Mul", self.op("Mul", x, self.op("Add", erf, self.value(1))), self.value(0.5)
        )

    def residual(self, x: str) -> str:
        return self.op("Relu", self.op("Add", self.product(x), x))

    def excited(self, x: str) -> str:
        x = self.product(x)
        gate = self.op("Sigmoid", self.product(self.op("GlobalAveragePool", x)))
        return self.op("Mul", x, gate)

    def skip(self, x: str) -> str:
        return self.layer_norm(self.op("Add", self.product(x), x))

    def layer_norm(self, x: str) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        square = self.op("Pow", centred, self.value(2))
        variance = self.op("Add", self.op("ReduceMean", square, axes=[-1]), self.value(1e-5))
        scaled = self.op("Div", centred, self.op("Sqrt", variance))
        return self.op("Add", self.op("Mul", scaled, self.normal(16)), self.normal(16))

    def attention(self, x: str) -> str:
        apart, back = self.value([0, 0, 2, 8], np.int64), self.value([0, 0, 16], np.int64)
        q, k, v = (self.op("Reshape", self.product(x), apart) for _ in range(3))
        q, v = (self.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        k = self.op("Transpose", k, perm=[0, 2, 3, 1])
        scores = self.op("Div", self.op("MatMul", q, k), self.value(8**0.5))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.product(
            self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), back)
        )


class _Quantised(_Network):
    def start(self) -> str:
        return self.quantised("x")

    def finish(self, x: str) -> None:
        self.nodes.append(self.node("DequantizeLinear", x, "y"))

    def node(self, kind: str, source: str, made: str) -> onnx.NodeProto:
        reads = [source, self.value(_SCALE), self.value(_ZERO, np.uint8)]
        return helper.make_node(kind, reads, [made], f"{self.block}.{kind}{len(self.nodes)}")

    def quantised(self, x: str) -> str:
        name = f"{self.block}.q{len(self.nodes)}"
        self.nodes.append(self.node("QuantizeLinear", x, name))
        return name

    def plain(self, x: str) -> str:
        name = f"{self.block}.d{len(self.nodes)}"
        self.nodes.append(self.node("DequantizeLinear", x, name))
        return name

    def conv(self, x: str) -> str:
        whole = self.random.integers(-127, 127, (16, 16, 3, 3))
        weight = self.op("DequantizeLinear", self.value(whole, np.int8), self.value(0.002))
        bias = self.value(self.random.integers(-999, 999, 16), np.int32)
        bias = self.op("DequantizeLinear", bias, self.value(0.0001))
        return self.quantised(self.op("Conv", self.plain(x), weight, bias, pads=[1] * 4))

    def added(self, x: str) -> str:
        return self.quantised(self.op("Add", self.plain(self.conv(x)), self.plain(x)))

    def pooled(self, x: str) -> str:
        return self.quantised(
            self.op(
                "Mul",
                self.plain(x),
                self.plain(self.quantised(self.op("GlobalAveragePool", self.plain(x)))),
            )
        )

    def joined(self, x: str) -> str:
        """One DequantizeLinear with two readers."""
        plain = self.plain(x)
        weight = self.op(
            "DequantizeLinear", self.value(np.ones((16, 16, 1, 1)), np.int8), self.value(0.01)
        )
        return self.quantised(
            self.op("Add", plain, self.plain(self.quantised(self.op("Conv", plain, weight))))
        )
