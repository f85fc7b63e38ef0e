"""Random operators for the kernels that compute along axes and over windows.

Shapes are drawn so that tensors lie row-major, in whole blocks of channels, and in blocks that are
not full.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from onnx import helper

from coexec.model.model import Model
from tests.helpers.onnx_models import direct, tensor
from tests.helpers.operator_cases import Case, Draw, ints, random

__all__ = ["FAMILIES", "Example", "model_of"]


@dataclass(frozen=True)
class Example:
    """A case, the shape of its output, and what its inputs are."""

    case: Case
    shape: tuple[int, ...] | None = None
    """Where ONNX does not infer it."""
    positive: bool = False


def images(draw: Draw) -> tuple[int, ...]:
    """A batch of images: row-major, of whole blocks, and of blocks that are not full."""
    sizes = draw(st.sampled_from([(3, 4), (9, 7)]))
    return draw(st.integers(1, 2)), draw(st.sampled_from([3, 16, 20, 40])), *sizes


def shapes(draw: Draw) -> tuple[int, ...]:
    """Rows of few and of many elements."""
    return draw(st.sampled_from([images(draw), (5, 70), (2, 3, 130), (6,), (2, 3, 4)]))


def signed(draw: Draw, axis: int, rank: int) -> int:
    return draw(st.sampled_from([axis, axis - rank]))


def parameter(draw: Draw, shape: tuple[int, ...]) -> Any:
    """A constant, or an input."""
    return draw(st.sampled_from([abs(random(shape)) + 0.5, shape]))


_REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


@st.composite
def reduction(draw: Draw) -> Example:
    shape = shapes(draw)
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    attributes = {"keepdims": draw(st.integers(0, 1))}
    kind = f"Reduce{draw(st.sampled_from(_REDUCTIONS))}"
    if draw(st.booleans()):
        return Example(Case(kind, (shape, ints(*axes)), attributes, 18), positive=True)
    opset = 11 if kind == "ReduceSum" else 17
    return Example(Case(kind, (shape,), attributes | {"axes": axes}, opset), positive=True)


@st.composite
def softmax(draw: Draw) -> Example:
    shape = shapes(draw)
    kind = draw(st.sampled_from(["Softmax", "LogSoftmax"]))
    axis = signed(draw, draw(st.integers(0, len(shape) - 1)), len(shape))
    return Example(Case(kind, (shape,), {"axis": axis}, draw(st.sampled_from([11, 17]))))


@st.composite
def channel_norm(draw: Draw) -> Example:
    shape = draw(st.sampled_from([images(draw), (2, 5, 40)]))
    kind = draw(st.sampled_from(["InstanceNormalization", "BatchNormalization"]))
    count = 2 if kind[0] == "I" else 4
    parameters = [parameter(draw, (shape[1],)) for _ in range(count)]
    return Example(Case(kind, (shape, *parameters)), positive=True)


@st.composite
def layer_norm(draw: Draw) -> Example:
    shape = shapes(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    thin = shape[axis:] if draw(st.booleans()) else shape[-1:]
    given = {"axis": signed(draw, axis, len(shape))}
    if draw(st.booleans()):
        case = Case("RMSNormalization", (shape, parameter(draw, thin)), given, 23)
        return Example(case, shape=shape)
    parameters = (parameter(draw, thin), parameter(draw, thin))
    return Example(Case("LayerNormalization", (shape, *parameters), given))


def window(draw: Draw, rank: int) -> dict[str, Any]:
    """Kernels of three elements that fit on five."""
    kinds = [
        {},
        {"pads": [1] * 2 * rank, "strides": [2] * rank},
        {"dilations": [2] * rank},
        {"auto_pad": "SAME_LOWER", "strides": [2] * rank},
    ]
    return {"kernel_shape": [3] * rank, **draw(st.sampled_from(kinds))}


def volumes(draw: Draw) -> tuple[int, ...]:
    """One to three spatial axes, mostly two."""
    sizes = draw(st.sampled_from([(7,), (7, 6), (7, 6), (6, 5), (5, 6, 5)]))
    return draw(st.integers(1, 2)), draw(st.sampled_from([3, 16, 20])), *sizes


@st.composite
def pool(draw: Draw) -> Example:
    shape = volumes(draw)
    attributes = window(draw, len(shape) - 2)
    kind = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    if kind == "AveragePool":
        attributes["count_include_pad"] = draw(st.integers(0, 1))
    return Example(Case(kind, (shape,), attributes, 22))


@st.composite
def global_pool(draw: Draw) -> Example:
    kind = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
    return Example(Case(kind, (volumes(draw),)))


@st.composite
def conv(draw: Draw) -> Example:
    """What has no fast variant: axes, groups, few output channels."""
    batch, channels, *sizes = volumes(draw)
    attributes = window(draw, len(sizes))
    groups = draw(st.sampled_from([1, 1, 2])) if channels != 3 else 1
    weights = random((groups * 3, channels // groups, *attributes["kernel_shape"]))
    bias = [random((groups * 3,))] if draw(st.booleans()) else []
    shape = (batch, channels, *sizes)
    return Example(Case("Conv", (shape, weights, *bias), attributes | {"group": groups}))


@st.composite
def conv_transpose(draw: Draw) -> Example:
    batch, channels, *sizes = volumes(draw)
    rank = len(sizes)
    kinds: list[dict[str, Any]] = [
        {},
        {"strides": [2] * rank, "pads": [1] * 2 * rank, "output_padding": [1] * rank},
        {"strides": [3] * rank, "dilations": [2] * rank},
        {"strides": [2] * rank, "auto_pad": "SAME_UPPER"},
        {"strides": [2] * rank, "output_shape": [2 * size for size in sizes]},
    ]
    groups = draw(st.sampled_from([1, 2])) if channels == 16 else 1
    outputs = draw(st.sampled_from([3, 16, 20]))
    weights = random((channels, outputs, *[3] * rank))
    bias = [random((groups * outputs,))] if draw(st.booleans()) else []
    attributes = {"kernel_shape": [3] * rank, "group": groups, **draw(st.sampled_from(kinds))}
    return Example(Case("ConvTranspose", ((batch, channels, *sizes), weights, *bias), attributes))


FAMILIES = {
    f.__name__: f()
    for f in (
        reduction,
        softmax,
        channel_norm,
        layer_norm,
        pool,
        global_pool,
        conv,
        conv_transpose,
    )
}


def model_of(example: Example, after: str = "") -> Model:
    """The operator, perhaps with an element-wise one behind that is computed with it."""
    case = example.case
    inputs, weights, names = [], {}, []
    for i, item in enumerate(case.inputs):
        names.append("" if item is None else f"x{i}")
        if isinstance(item, tuple):
            inputs.append(tensor(f"x{i}", item, case.dtypes.get(i, "float32")))
        elif item is not None:
            weights[f"x{i}"] = item
    node = helper.make_node(case.op_type, names, ["y0"], "node", **case.attributes)
    if example.shape:
        return direct([node], inputs, [tensor("y0", example.shape)], weights, case.opset)
    plain = direct([node], inputs, ["y0"], weights, case.opset)
    if not after or plain.graph.tensors["y0"].dtype != "float32":
        return plain
    more = [tensor("more", plain.graph.tensors["y0"].shape)] if after == "Mul" else []
    behind = helper.make_node(after, ["y0", *(m.name for m in more)], ["z"], "behind")
    return direct([node, behind], [*inputs, *more], ["z"], weights, case.opset)
