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
        kind = rand.choice(("turn", "cut", "split", "pick", "merge", "divide", "squeeze", "scale"))
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
        else:
            op_type, number = rand.choice(("Mul", "Div")), self.constant(1.5, np.float32)
            (name,) = self.node(op_type, [self.operand(shape, steps - 1), number])
        return name

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
        if rand.randrange(3):
            order = rand.sample(range(len(shape)), len(shape))
            (name,) = self.node("Transpose", [name], perm=order)
            shape = tuple(shape[a] for a in order)
        if rand.randrange(2):
            shape = (int(np.prod(shape[:-1])), shape[-1])
            (name,) = self.node("Reshape", [name, self.constant(shape)])
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
