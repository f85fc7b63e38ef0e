"""Random graphs of 3 to 30 nodes, and their feeds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.helpers.campaign.draws import Draws
from tests.helpers.campaign.probe import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A model, and sets of feeds for it."""

    index: int
    model: bytes
    sets: tuple[dict[str, Array], ...]
    shapes: dict[str, Shape]
    """Shapes of the inputs that are dynamic in the model."""
    operators: tuple[str, ...]

    def feeds(self, number: int) -> dict[str, Array]:
        return self.sets[number]

    def __str__(self) -> str:
        return f"{len(self.operators)} nodes: {', '.join(self.operators)}"


class _Builder:
    """A graph under construction, with the shapes of its tensors."""

    def __init__(self, d: Draws, heavy: bool) -> None:
        self.d, self.heavy = d, heavy
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}
        self.inputs: dict[str, Array] = {}
        """Inputs that determine shapes. All other inputs are drawn for each set of feeds."""

    def pick(self, rank: int = 0, without: str = "") -> str:
        """A random tensor; later tensors are more frequent."""
        fits = [n for n, s in self.shapes.items() if (not rank or len(s) == rank) and n != without]
        return self.d.pick(fits[-4:] if self.d.chance(0.7) else fits) if fits else ""

    def weight(self, values: Any, dtype: str = "float32") -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values).astype(dtype)
        return name

    def normal(self, *shape: int) -> str:
        fan = max(1, int(np.prod(shape[1:])))
        return self.weight(self.d.rng.standard_normal(shape) / np.sqrt(fan))

    def add(self, op_type: str, reads: list[str], shape: Shape | None, **attributes: Any) -> str:
        """Add a node. ``shape`` is None if its result is not an activation."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, reads, [name], name=f"{op_type}_{name}", **attributes)
        )
        if shape is not None:
            self.shapes[name] = shape
        return name


def conv(b: _Builder) -> None:
    if not (x := b.pick(4)):
        return
    n, c, h, w = b.shapes[x]
    k, s = b.d.pick((1, 3, 3)), b.d.pick((1, 1, 2))
    out = b.d.pick((16, 32, 48) if b.heavy else (3, 8, 16, 20))
    depthwise = b.d.chance(0.2)
    weight = b.normal(c, 1, k, k) if depthwise else b.normal(out, c, k, k)
    out, group = (c, c) if depthwise else (out, 1)
    shape = (n, out, (h + 2 * (k // 2) - k) // s + 1, (w + 2 * (k // 2) - k) // s + 1)
    bias = [b.normal(out)] if b.d.chance(0.5) else []
    y = b.add("Conv", [x, weight, *bias], shape, pads=[k // 2] * 4, strides=[s, s], group=group)
    if b.d.chance(0.3):
        vectors = [b.weight(np.abs(b.d.rng.standard_normal(out)) + 0.5) for _ in range(4)]
        y = b.add("BatchNormalization", [y, *vectors], shape)
    if b.d.chance(0.5):
        b.add(b.d.pick(("Relu", "Sigmoid", "HardSwish", "LeakyRelu")), [y], shape)


def pool(b: _Builder) -> None:
    if not (x := b.pick(4)):
        return
    n, c, h, w = b.shapes[x]
    k = min(b.d.pick((2, 3)), h, w)
    up = b.d.number(0, 1)
    sizes = [-(-(s - k) // 2) + 1 if up else (s - k) // 2 + 1 for s in (h, w)]
    sizes = [size - (2 * (size - 1) >= s) for size, s in zip(sizes, (h, w), strict=True)]
    kind = b.d.pick(("MaxPool", "AveragePool"))
    b.add(kind, [x], (n, c, *sizes), kernel_shape=[k, k], strides=[2, 2], ceil_mode=up)


def activation(b: _Builder) -> None:
    x = b.pick()
    kind = b.d.pick(
        (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Exp",
            "Abs",
            "Erf",
            "Softplus",
            "Sqrt",
            "Floor",
            "Neg",
            "Elu",
            "Log",
        )
    )
    b.add(kind, [x], b.shapes[x])


def clip_chain(b: _Builder) -> None:
    x = b.pick()
    y = x
    for _ in range(b.d.number(1, 3)):
        low, high = b.d.pick(((0.0, 6.0), (-1.0, 1.0), (0.5, 0.2), (-np.inf, 2.0), (0.0, np.inf)))
        bounds = [b.weight(v) if b.d.chance(0.85) else "" for v in (low, high)]
        if b.d.chance(0.3):
            y = b.add("Relu", [y], b.shapes[x])
        elif b.d.chance(0.25):
            kind = b.d.pick(("Max", "Min"))
            y = b.add(kind, [y, b.weight(low if kind == "Max" else high)], b.shapes[x])
        else:
            y = b.add("Clip", [y, *bounds], b.shapes[x])


def residual(b: _Builder) -> None:
    x = b.pick()
    same_shape = [n for n, s in b.shapes.items() if s == b.shapes[x]]
    kind = b.d.pick(("Add", "Add", "Sub", "Mul", "Max", "Div"))
    b.add(kind, [x, b.d.pick(same_shape)], b.shapes[x])


def tiny(b: _Builder) -> None:
    """Numbers so close to 0 or 1 that a rewrite with a tolerance would ignore them."""
    x = b.pick()
    kind = b.d.pick(("Add", "Mul", "Sub", "Div", "Pow"))
    value = {"Add": 1e-10, "Sub": 1e-9, "Mul": 1.000004, "Div": 0.999996, "Pow": 1.0}[kind]
    y = b.add(kind, [x, b.weight(value)], b.shapes[x])
    if b.d.chance(0.5):
        b.add("Log", [b.add("Abs", [y], b.shapes[x])], b.shapes[x])


def concat(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.d.number(0, len(shape) - 1)
    fits = [
        n
        for n, s in b.shapes.items()
        if len(s) == len(shape) and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
    ]
    further = [b.d.pick(fits) for _ in range(b.d.number(1, 2))]
    total = shape[axis] + sum(b.shapes[o][axis] for o in further)
    if total < 200:
        b.add(
            "Concat",
            [x, *further],
            (*shape[:axis], total, *shape[axis + 1 :]),
            axis=axis - (len(shape) if b.d.chance(0.3) else 0),
        )


def reshape(b: _Builder) -> None:
    """Reshape by a constant, or by arithmetic on the shape of the input."""
    x = b.pick()
    shape = b.shapes[x]
    total = int(np.prod(shape))
    if b.d.chance(0.4):
        sizes = b.add("Shape", [x], None)
        first = b.add("Gather", [sizes, b.weight([0], "int64")], None, axis=0)
        ends = b.add("Concat", [first, b.weight([-1], "int64")], None, axis=0)
        b.add("Reshape", [x, ends], (shape[0], total // shape[0]))
        return
    target = (shape[0], total // shape[0]) if b.d.chance(0.5) else (1, *shape[:-1], shape[-1])
    b.add("Reshape", [x, b.weight(target, "int64")], target)


def transpose(b: _Builder) -> None:
    x = b.pick()
    order = [int(a) for a in b.d.rng.permutation(len(b.shapes[x]))]
    b.add("Transpose", [x], tuple(b.shapes[x][a] for a in order), perm=order)


def reduction(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.d.number(0, len(shape) - 1)
    kind = b.d.pick(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceMin"))
    kept = (*shape[:axis], 1, *shape[axis + 1 :])
    axes_input = [b.weight([axis], "int64")] if kind == "ReduceSum" else []
    attributes = {} if axes_input else {"axes": [axis]}
    y = b.add(kind, [x, *axes_input], kept, keepdims=1, **attributes)
    if b.d.chance(0.5):
        b.add(b.d.pick(("Mul", "Sub")), [x, y], shape)


def product(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    if len(shape) < 2:
        return
    out = b.d.pick((4, 16, 33))
    y = b.add("MatMul", [x, b.normal(shape[-1], out)], (*shape[:-1], out))
    if b.d.chance(0.5):
        b.add("Add", [y, b.normal(out)], (*shape[:-1], out))


def norm(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    if b.d.chance(0.5):
        b.add("Softmax", [x], shape, axis=b.d.number(-len(shape), len(shape) - 1))
        return
    b.add("LayerNormalization", [x, b.normal(shape[-1]), b.normal(shape[-1])], shape, axis=-1)


def resize(b: _Builder) -> None:
    if not (x := b.pick(4)):
        return
    n, c, h, w = b.shapes[x]
    if h > 40 or w > 40:
        return
    mode = b.d.pick(("nearest", "linear"))
    transformation = b.d.pick(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    scale = b.d.pick((0.5, 0.7, 1.4, 1.8, 2.0))
    sizes = tuple(int(np.float32(scale) * np.float32(s)) for s in (h, w))
    if 0 in sizes:
        return
    # ONNX truncates the product in float64, and ONNX Runtime's kernel truncates it in float32.
    alike = sizes == tuple(int(float(np.float32(scale)) * s) for s in (h, w))
    if b.d.chance(0.5) and alike:
        scales = b.weight([1, 1, scale, scale])
        roi = b.weight([]) if b.d.chance(0.3) else ""
        reads = [x, roi, scales]
    else:
        reads = [x, "", "", b.weight([n, c, *sizes], "int64")]
    b.add("Resize", reads, (n, c, *sizes), mode=mode, coordinate_transformation_mode=transformation)


def slice_pad(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.d.number(0, len(shape) - 1)
    if shape[axis] < 3:
        return
    if b.d.chance(0.5):
        values = [[1], [shape[axis] + 9], [axis], [2]]
        size = len(range(1, shape[axis], 2))
        kept = (*shape[:axis], size, *shape[axis + 1 :])
        b.add("Slice", [x, *(b.weight(v, "int64") for v in values)], kept)
        return
    pads = np.zeros(2 * len(shape), np.int64)
    pads[axis], pads[axis + len(shape)] = 1, 2
    kept = (*shape[:axis], shape[axis] + 3, *shape[axis + 1 :])
    mode = b.d.pick(("constant", "reflect", "edge"))
    b.add("Pad", [x, b.weight(pads, "int64")], kept, mode=mode)


def where(b: _Builder) -> None:
    x = b.pick()
    mask = b.add("Greater", [x, b.weight(b.d.pick((0.0, 0.5)))], None)
    b.add("Where", [mask, x, b.weight(b.d.pick((0.0, -1e9, 1e-9)))], b.shapes[x])


def scatter(b: _Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    updates = b.normal(2, *shape[1:])
    places = b.weight([[0], [0 if shape[0] == 1 else 1]], "int64")
    reduction = b.d.pick(("add", "max", "none")) if shape[0] > 1 else b.d.pick(("add", "max"))
    b.add("ScatterND", [x, places, updates], shape, reduction=reduction)


def random(b: _Builder) -> None:
    """Two random nodes without a seed differ, and one node that is read twice is equal to itself.
    Both checks do not depend on the random numbers, which are different in each session."""
    x = b.pick()
    one = b.add("RandomNormalLike", [x], None)
    if b.d.chance(0.5):
        b.add("Add", [x, b.add("Sub", [one, one], None)], b.shapes[x])
        return
    other = b.add("RandomNormalLike", [x], None)
    apart = b.add("Abs", [b.add("Sub", [one, other], None)], None)
    most = b.add("ReduceMax", [apart], None, keepdims=0)
    differ = b.add("Cast", [b.add("Greater", [most, b.weight(1e-6)], None)], None, to=1)
    b.add("Mul", [x, differ], b.shapes[x])


def decided_by_input(b: _Builder) -> None:
    """An additional input determines the shape of a tensor."""
    x = b.pick()
    shape = b.shapes[x]
    name = f"s{len(b.inputs)}"
    if b.d.chance(0.5):
        target = (int(np.prod(shape)) // shape[-1], shape[-1])
        b.inputs[name] = np.array(target, np.int64)
        b.add("Reshape", [x, name], target)
        return
    target = (2, *shape)
    if int(np.prod(target)) < 50_000:
        b.inputs[name] = np.array(target, np.int64)
        b.add("Expand", [x, name], target)


_LAYERS: dict[Callable[[_Builder], None], int] = {
    conv: 6, pool: 2, activation: 3, clip_chain: 2, residual: 3, tiny: 1, concat: 2, reshape: 1,
    transpose: 1, reduction: 2, product: 2, norm: 1, resize: 2, slice_pad: 1, where: 1,
    scatter: 1, random: 1, decided_by_input: 1,
}  # fmt: skip
_WEIGHTED = [layer for layer, share in _LAYERS.items() for _ in range(share)]


def network(seed: int, index: int) -> Network:
    """Graph ``index`` of the campaign; equal arguments give equal graphs on every machine."""
    d = Draws(seed, index)
    heavy = d.chance(0.3)
    b = _Builder(d, heavy)
    for number in range(d.pick((1, 1, 1, 2))):
        side = d.pick((20, 28)) if heavy else d.pick((5, 8, 9, 14))
        b.shapes[f"x{number}"] = (d.pick((1, 1, 2)), d.pick((3, 8, 16)), side, side)
    fed = dict(b.shapes)
    goal = d.number(3, 30)
    while len(b.nodes) < goal:
        d.pick(_WEIGHTED)(b)
    read = {name for node in b.nodes for name in node.input}
    ends = [name for name in b.shapes if name not in read and name not in fed]
    if d.chance(0.2):  # an output that other nodes also read
        inner = [name for name in b.shapes if name in read and name not in fed]
        ends += [d.pick(inner)] if inner else []
    dynamic = d.chance(0.15)
    sets = [{n: d.data(s, summed=True).sets[i] for n, s in fed.items()} for i in (0, 1, 2)]
    return Network(
        index,
        _model(b, fed, ends, dynamic),
        tuple(f | b.inputs for f in sets),
        {name: s for name, s in fed.items() if dynamic},
        tuple(n.op_type for n in b.nodes),
    )


def _model(b: _Builder, fed: dict[str, Shape], ends: list[str], dynamic: bool) -> bytes:
    inputs = [
        helper.make_tensor_value_info(n, 1, ["N", *s[1:]] if dynamic else s) for n, s in fed.items()
    ]
    inputs += [helper.make_tensor_value_info(n, 7, v.shape) for n, v in b.inputs.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in ends]
    weights = [numpy_helper.from_array(v, n) for n, v in b.weights.items()]
    graph = helper.make_graph(b.nodes, "campaign", inputs, outputs, weights)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
