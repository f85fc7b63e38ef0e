"""Random networks of matrix products whose operands are parts of other tensors, and attention."""

import random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from coexec.model.reference_session import plain_session
from tests.helpers.small_models import from_nodes, tensor_info

TOLERANCES = {"float32": 1e-5, "tf32": 5e-3, "fp16": 1e-2}
"""By precision of the products, relative to the largest value."""
Shape = tuple[int, ...]


class _Network:
    """A random network of products whose operands are parts of other tensors."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: dict[str, Shape] = {}
        self.outputs: dict[str, Shape] = {}

    def node(self, op_type: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(op_type, inputs, names, names[0], **attributes))
        return names

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._numbers.standard_normal(shape) / shape[0] ** 0.5, np.float32)

    def operand(self, shape: Shape, steps: int) -> str:
        """A tensor of this shape, made by some operators that move elements."""
        name = self._part(shape, steps) if steps else self._source(shape)
        kind = self._random.randrange(12)
        if kind == 0:
            self.outputs[name] = shape
        elif kind == 1:
            (other,) = self.node("Neg", [name])
            self.outputs[other] = shape
        return name

    def _source(self, shape: Shape) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (int(np.prod(shape[:-1])), shape[-1])
        kind = self._random.randrange(3)
        if kind == 1:
            (name,) = self.node("Neg", [name])
        elif kind == 2:
            (name,) = self.node("MatMul", [name, self.weight(shape[-1], shape[-1])])
        (name,) = self.node("Reshape", [name, self.constant(shape)])
        return name

    def _part(self, shape: Shape, steps: int) -> str:
        rand, rank = self._random, len(shape)
        axis = rand.randrange(rank)
        kind = rand.choice(
            (
                "turn",
                "cut",
                "split",
                "pick",
                "merge",
                "divide",
                "squeeze",
                "scale",
                "windows",
                "join",
            )
        )
        if kind == "turn":
            order = rand.sample(range(rank), rank)
            before = tuple(shape[order.index(a)] for a in range(rank))
            (name,) = self.node("Transpose", [self.operand(before, steps - 1)], perm=order)
        elif kind == "cut":
            step, start = rand.choice((1, 1, 2, -1)), rand.choice((0, 1, 4))
            after = rand.choice((0, 3))
            span = (shape[axis] - 1) * abs(step) + 1
            before = (*shape[:axis], start + span + after, *shape[axis + 1 :])
            first, last = (start, start + span) if step > 0 else (start + span - 1, start - 1)
            bounds = [first, last if last >= 0 else -1000, axis, step]
            source = self.operand(before, steps - 1)
            (name,) = self.node("Slice", [source, *(self.constant([b]) for b in bounds)])
        elif kind == "split":
            sizes = [shape[axis] + rand.randrange(3), shape[axis], rand.randrange(1, 5)]
            before = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
            source = self.operand(before, steps - 1)
            others = self.node("Split", [source, self.constant(sizes)], 3, axis=axis)
            name = others[1]
            if rand.randrange(3) == 0:
                (other,) = self.node("Neg", [others[2]])
                self.outputs[other] = (*shape[:axis], sizes[2], *shape[axis + 1 :])
        elif kind == "pick":
            count = rand.randrange(1, 4)
            source = self.operand((*shape[:axis], count, *shape[axis:]), steps - 1)
            index = self.constant(rand.randrange(-count, count))
            (name,) = self.node("Gather", [source, index], axis=axis)
        elif kind == "merge":
            part = rand.choice([d for d in range(1, shape[axis] + 1) if shape[axis] % d == 0])
            before = (*shape[:axis], part, shape[axis] // part, *shape[axis + 1 :])
            source = self.operand(before, steps - 1)
            (name,) = self.node("Reshape", [source, self.constant(shape)])
        elif kind == "divide" and axis + 1 < rank:
            before = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            source = self.operand(before, steps - 1)
            (name,) = self.node("Reshape", [source, self.constant(shape)])
        elif kind == "squeeze":
            source = self.operand((*shape[:axis], 1, *shape[axis:]), steps - 1)
            (name,) = self.node("Squeeze", [source, self.constant([axis])])
        elif kind == "windows":
            finer, order = self._finer(shape)
            before = tuple(finer[a] for a in np.argsort(order))
            (name,) = self.node("Transpose", [self.operand(before, steps - 1)], perm=order)
            (name,) = self.node("Reshape", [name, self.constant(shape)])
        elif kind == "join" and shape[axis] > 1:
            first = rand.randrange(1, shape[axis])
            parts = [(*shape[:axis], n, *shape[axis + 1 :]) for n in (first, shape[axis] - first)]
            names = [self.operand(part, steps - 1) for part in parts]
            (name,) = self.node("Concat", names, axis=axis)
        else:
            op_type, number = rand.choice(("Mul", "Div")), self.constant(1.5, np.float32)
            (name,) = self.node(op_type, [self.operand(shape, steps - 1), number])
        return name

    def _finer(self, shape: Shape) -> tuple[Shape, list[int]]:
        """A shape in which some axes are divided in two, and an order of its axes."""
        finer: list[int] = []
        for size in shape:
            part = self._random.choice([d for d in range(1, size + 1) if size % d == 0])
            finer += [size // part, part] if 1 < part < size else [size]
        return tuple(finer), self._random.sample(range(len(finer)), len(finer))

    def _moved(self, name: str, shape: Shape) -> tuple[str, Shape]:
        """What Transposes and Reshapes make of a result, and perhaps element-wise operators between
        and behind them."""
        rand = self._random
        for _ in range(rand.randrange(3)):
            kind, order = rand.randrange(3), []
            if kind == 0:
                order = rand.sample(range(len(shape)), len(shape))
                (name,) = self.node("Transpose", [name], perm=order)
                shape = tuple(shape[a] for a in order)
            elif kind == 1:
                finer, order = self._finer(shape)
                (name,) = self.node("Reshape", [name, self.constant(finer)])
                (name,) = self.node("Transpose", [name], perm=order)
                shape = tuple(finer[a] for a in order)
            if rand.randrange(2):
                whole = int(np.prod(shape[:-1])) if shape else 1
                shape = (whole, *shape[-1:])
                (name,) = self.node("Reshape", [name, self.constant(shape)])
            kind = rand.randrange(4)
            if kind == 0:
                other = self.operand(shape, rand.randrange(2))
                (name,) = self.node("Add", rand.sample([name, other], 2))
            elif kind == 1:
                sizes = [rand.choice((1, size)) for size in shape][rand.randrange(2) :]
                values = self.constant(self._numbers.standard_normal(sizes), np.float32)
                (name,) = self.node(rand.choice(("Add", "Mul")), [name, values])
            elif kind == 2:
                (name,) = self.node("Relu", [name])
            if rand.randrange(8) == 0:
                (other,) = self.node("Neg", [name])
                self.outputs[other] = shape
            if order and len(order) == len(shape) and rand.randrange(2):
                back = [order.index(axis) for axis in range(len(order))]
                (name,) = self.node("Transpose", [name], perm=back)
                shape = tuple(shape[a] for a in back)
        return name, shape

    def product(self) -> None:
        rand = self._random
        sizes = (1, 2, 3, 4, 8, 13, 16, 20, 24, 36)
        m, k, n, columns = (rand.choice(sizes) for _ in range(4))
        batch = tuple(rand.choice((1, 2, 3)) for _ in range(rand.randrange(4)))
        left = tuple(rand.choice((1, size)) for size in batch)
        right = () if rand.randrange(4) == 0 else batch
        batch = tuple(np.broadcast_shapes(left, right))
        across = [not batch and rand.randrange(2) for _ in "ab"]
        a = self.operand((*left, *((k, m) if across[0] else (m, k))), rand.randrange(5))
        b = self.operand((*right, *((n, k) if across[1] else (k, n))), rand.randrange(5))
        shape = (*batch, m, n)
        if any(across):
            attributes = {"transA": across[0], "transB": across[1], "alpha": 0.5, "beta": 2.0}
            (name,) = self.node("Gemm", [a, b, self.weight(n)], **attributes)
        else:
            (name,) = self.node("MatMul", [a, b])
        if rand.randrange(2):
            (name,) = self.node("Add", [name, self.weight(n)])
        name, shape = self._moved(name, shape)
        if rand.randrange(2):
            (name,) = self.node("MatMul", [name, self.weight(shape[-1], columns)])
            shape = (*shape[:-1], columns)
        (name,) = self.node(rand.choice(("Neg", "Identity")), [name])
        self.outputs[name] = shape

    def model(self) -> onnx.ModelProto:
        infos = (
            [tensor_info(n, list(s)) for n, s in of.items()] for of in (self.inputs, self.outputs)
        )
        return from_nodes(self.nodes, *infos, self.weights)


def random_network(seed: int) -> onnx.ModelProto:
    """One product or two, with some operators that move elements around them."""
    network = _Network(seed)
    network.product()
    return network.model()


def attention(tokens: int = 13, heads: int = 3, width: int = 8) -> onnx.ModelProto:
    """Attention as vision transformers have it."""
    network = _Network(0)
    size = heads * width
    network.inputs["x"] = (2, tokens, size)
    node, constant = network.node, network.constant
    (qkv,) = node("MatMul", ["x", network.weight(size, 3 * size)])
    (parts,) = node("Reshape", [qkv, constant([2, tokens, 3, heads, width])])
    split = [node("Squeeze", [n, constant([2])])[0] for n in node("Split", [parts], 3, axis=2)]
    q, k, v = (
        node("Transpose", [name], perm=order)[0]
        for name, order in zip(split, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scale = constant(width**-0.25, np.float32)
    q, k = (node("Mul", [name, scale])[0] for name in (q, k))
    (p,) = node("Softmax", node("MatMul", [q, k]), axis=-1)
    (o,) = node("Transpose", node("MatMul", [p, v]), perm=[0, 2, 1, 3])
    (o,) = node("Reshape", [o, constant([2, tokens, size])])
    (y,) = node("MatMul", [o, network.weight(size, size)])
    network.outputs[y] = (2, tokens, size)
    return network.model()


def window_block(
    height: int = 8, width: int = 12, window: int = 4, size: int = 8
) -> onnx.ModelProto:
    """A product in windows of an image, behind which the windows become an image again, to which
    the input is added."""
    network = _Network(0)
    image, rows = (1, height, width, size), (height * width, size)
    network.inputs["x"] = rows
    node, constant = network.node, network.constant
    (x,) = node("Reshape", ["x", constant(image)])
    finer = [1, height // window, window, width // window, window, size]
    (y,) = node("Reshape", [x, constant(finer)])
    (y,) = node("Transpose", [y], perm=[0, 1, 3, 2, 4, 5])
    (y,) = node("Reshape", [y, constant([-1, window * window, size])])
    (y,) = node("MatMul", [y, network.weight(size, size)])
    (y,) = node("Add", [y, network.weight(size)])
    (y,) = node("Reshape", [y, constant([finer[a] for a in (0, 1, 3, 2, 4, 5)])])
    (y,) = node("Transpose", [y], perm=[0, 1, 3, 2, 4, 5])
    (y,) = node("Reshape", [y, constant(image)])
    (y,) = node("Slice", [y, constant([0]), constant([height]), constant([1])])  # the whole of it
    (y,) = node("Add", [x, y])
    (y,) = node("Reshape", [y, constant(rows)])
    network.outputs[y] = rows
    return network.model()


def channels_last_blocks(blocks: int = 3, size: int = 8) -> onnx.ModelProto:
    """Depthwise convolutions with products of channels behind them, and residuals that convolutions
    read."""
    network = _Network(0)
    image = (1, size, 6, 5)
    network.inputs["x"] = image
    node = network.node
    (x,) = node("Conv", ["x", network.weight(size, size, 1, 1)])
    for _ in range(blocks):
        depthwise = network.weight(size, 1, 3, 3)
        (y,) = node("Conv", [x, depthwise], group=size, pads=[1] * 4)
        (y,) = node("Transpose", [y], perm=[0, 2, 3, 1])
        (y,) = node("MatMul", [y, network.weight(size, size)])
        (y,) = node("Transpose", [y], perm=[0, 3, 1, 2])
        (y,) = node("Mul", [y, network.weight(size, 1, 1)])
        (x,) = node("Add", [y, x])
    (x,) = node("Transpose", [x], perm=[0, 2, 3, 1])
    (x,) = node("MatMul", [x, network.weight(size, size)])
    network.outputs[x] = (1, 6, 5, size)
    return network.model()


def feeds_and_outputs(proto: onnx.ModelProto) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random inputs, and ONNX Runtime's outputs."""
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32)
        for i in proto.graph.input
    }
    names = [output.name for output in proto.graph.output]
    return feeds, dict(zip(names, plain_session(proto).run(names, feeds), strict=True))


def assert_close(made: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    """Fail if an output differs by more than ``tolerance`` times its largest value."""
    for name, array in wanted.items():
        assert np.abs(made[name] - array).max() <= tolerance * max(np.abs(array).max(), 1), name
