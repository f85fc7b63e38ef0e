"""Random graphs rich in what is rewritten compute the same after `load`."""

import warnings
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from coexec.errors import ModelWarning
from coexec.model.difference import TOLERANCE, worst_difference
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.small_models import from_nodes, tensor_info

SHAPE = (12, 4, 5, 5)
NUMBERS = (0.0, -0.0, 1e-10, -1e-12, 1.0, 1 + 1e-6, 1 - 1e-7, 2.0, -1.0)
LIMITS = (-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 6.0)
KINDS = (
    *("arithmetic", "clip", "relu", "views", "transposes", "dropout", "join", "again", "conv"),
    *("normalise", "padded conv", "swish"),
)


class Building:
    """A model that grows node by node; every step reads and makes values of `SHAPE`."""

    def __init__(self, draw: Any, opset: int) -> None:
        self._draw, self.opset = draw, opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.last = ["x"]
        self._rng = np.random.default_rng(draw(st.integers(0, 99)))

    def one(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def number(self, choices: tuple[float, ...]) -> str:
        return self.weight(np.array(self.one(*choices), np.float32))

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def vector(self, *values: int) -> str:
        return self.weight(np.array(values, np.int64))

    def random(self, *shape: int) -> str:
        return self.weight(self._rng.standard_normal(shape).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", **attributes))
        return name

    def step(self, kind: str) -> None:
        source = self.one(*self.last[-3:])
        self.last.append(getattr(self, "_" + kind.replace(" ", "_"))(source))

    def _arithmetic(self, x: str) -> str:
        op, number = self.one("Add", "Sub", "Mul", "Div"), self.number(NUMBERS)
        swapped = op in ("Add", "Mul") and self.one(True, False)
        return self.add(op, *((number, x) if swapped else (x, number)))

    def _clip(self, x: str) -> str:
        if self.opset < 11:
            least, most = sorted((self.one(*LIMITS), self.one(*LIMITS)))
            return self.add("Clip", x, min=least, max=most)
        return self.add("Clip", x, self.number(LIMITS), self.number(LIMITS))

    def _relu(self, x: str) -> str:
        return self.add("Relu", x)

    def _views(self, x: str) -> str:
        x = self.one(x, self.add("Flatten", x, axis=self.one(0, 1, 2, 4)))
        return self.add("Reshape", x, self.vector(*self.one(SHAPE, (12, -1, 5, 5), (-1, 4, 5, 5))))

    def _transposes(self, x: str) -> str:
        first = self.one([0, 1, 3, 2], [0, 2, 3, 1], [3, 1, 2, 0], [0, 1, 2, 3])
        back = [first.index(axis) for axis in range(4)]
        return self.add("Transpose", self.add("Transpose", x, perm=first), perm=back)

    def _dropout(self, x: str) -> str:
        return self.add("Dropout", x)

    def _join(self, x: str) -> str:
        joined = self.add("Concat", x, self.last[-1], axis=1)
        if self.opset < 13:
            halves = {"split": [4, 4]}
        else:
            halves = {"num_outputs": 2} if self.opset >= 18 else {}
        name = f"v{len(self.nodes)}"
        split = helper.make_node("Split", [joined], [name, name + "b"], axis=1, **halves)
        self.nodes.append(split)
        return self.add("Add", name, name + "b")

    def _again(self, x: str) -> str:
        """The last node once more: a common subexpression."""
        if not self.nodes or len(self.nodes[-1].output) > 1:
            return x
        last = self.nodes[-1]
        same = onnx.NodeProto()
        same.CopyFrom(last)
        same.output[0], same.name = f"v{len(self.nodes)}", f"n{len(self.nodes)}"
        self.nodes.append(same)
        return self.add("Mul", last.output[0], same.output[0])

    def _conv(self, x: str) -> str:
        inputs = [x, self.random(4, 4, 3, 3), *self.one([], [self.random(4)])]
        return self.add("Conv", *inputs, pads=[1] * 4)

    def _normalise(self, x: str) -> str:
        variance = self.weight(np.abs(self._rng.standard_normal(4)).astype(np.float32) + 0.1)
        made = self._conv(x)
        inputs = [self.random(4), self.random(4), self.random(4), variance]
        return self.add("BatchNormalization", made, *inputs)

    def _padded_conv(self, x: str) -> str:
        return self.add("Conv", self._padded(x), self.random(4, 4, 3, 3))

    def _padded(self, x: str) -> str:
        pads, number = [0, 0, 1, 1, 0, 0, 1, 1], self.one(0.0, -0.0, 1.0)
        if self.opset < 11:
            return self.add("Pad", x, pads=pads, value=number)
        filling = self.weight(np.array(number, np.float32))
        return self.add("Pad", x, self.vector(*pads), filling)

    def _swish(self, x: str) -> str:
        if self.opset < 11:
            return x
        numbers = [self.number((n, n, n + 1e-5)) for n in (3.0, 0.0, 6.0, 6.0)]
        clipped = self.add("Clip", self.add("Add", x, numbers[0]), *numbers[1:3])
        return self.add("Div", self.add("Mul", x, clipped), numbers[3])

    def model(self) -> onnx.ModelProto:
        end = self.add("Neg", self.last[-1])
        return from_nodes(
            self.nodes,
            [tensor_info("x", list(SHAPE))],
            [tensor_info(end, list(SHAPE))],
            self.weights,
            self.opset,
        )


@st.composite
def graphs(draw: Any, most: int) -> onnx.ModelProto:
    building = Building(draw, draw(st.sampled_from((7, 9, 10, 11, 13, 15, 17, 18, 21))))
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=most)):
        building.step(kind)
    return building.model()


def compare(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], shown: str) -> None:
    """The simplified model computes what ONNX Runtime's session of the given one computes."""
    with warnings.catch_warnings():
        warnings.simplefilter(shown, ModelWarning)  # type: ignore[arg-type]
        loaded = load(proto)
    sessions = [plain_session(m, 1) for m in (ir.to_proto(loaded.source), proto)]
    found, expected = (session.run(None, feeds)[0] for session in sessions)
    assert worst_difference(found, expected) <= TOLERANCE


FEED = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@QUICK
@given(graphs(8))
def test_simplified_graphs_compute_the_same(proto: onnx.ModelProto) -> None:
    compare(proto, {"x": FEED}, "error")  # it is simplified, not given up


@pytest.mark.conformance
@settings(QUICK, max_examples=1500)
@given(graphs(12))
def test_many_simplified_graphs_compute_the_same(proto: onnx.ModelProto) -> None:
    compare(proto, {"x": FEED}, "error")


@QUICK
@given(graphs(4), st.sampled_from([(12, 100), (240, 5), (1, -1)]))
def test_graphs_of_open_shapes_compute_the_same(
    proto: onnx.ModelProto, shape: tuple[int, int]
) -> None:
    last = proto.graph.output[0].name
    proto.graph.node.append(helper.make_node("Reshape", [last, "s"], ["y"]))
    proto.graph.input.append(tensor_info("s", [2], TensorProto.INT64))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.ValueInfoProto(name="y"))
    compare(proto, {"x": FEED, "s": np.array(shape, np.int64)}, "ignore")
