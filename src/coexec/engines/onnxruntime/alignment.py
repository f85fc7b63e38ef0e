"""Pad channels to whole blocks, so that ONNX Runtime keeps its blocked layout from end to end.

Its convolutions compute NCHWc: blocks of 16 channels with AVX-512, of 8 with AVX2. ONNX Runtime
pads the channels of a convolution itself. But it runs every Concat, pool and addition of tensors
that do not fill their blocks in NCHW, with a layout conversion before and after it. Networks of the
NAS family have 168 or 270 channels nearly everywhere and spend 6 to 12 % of their time on these
conversions. So the tensors of such regions get padding channels here. The operators that compute
and read these channels have zero weights for them.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from coexec.lowering.lowered_model import LAYOUT
from coexec.ort import OrtSession

_UNARY = frozenset(
    {
        "AveragePool",
        "Clip",
        "GlobalAveragePool",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "MaxPool",
        "Relu",
        "Sigmoid",
        "Tanh",
    }
)
"""Operators that compute each channel separately and that return finite numbers for finite ones."""
_BINARY = frozenset({"Add", "Mul", "Sub"})
_MULTIPLE = 4
"""ONNX Runtime has a blocked layout only for multiples of this number of channels, except in
convolutions that mix channels."""
_ALIGNED = "aligned:"


class _Channels(NamedTuple):
    """The position of each channel in a tensor's aligned form, and the latter's channels in all."""

    places: tuple[int, ...]
    total: int

    def spread(self, array: NDArray[Any], axis: int, filling: float = 0.0) -> NDArray[Any]:
        """``array`` with its entries along ``axis`` moved to their aligned positions."""
        shape = list(array.shape)
        shape[axis] = self.total
        spread = np.full(shape, filling, array.dtype)
        np.moveaxis(spread, axis, 0)[list(self.places)] = np.moveaxis(array, axis, 0)
        return spread


def align(model: ir.Model, borders: Collection[str], block: int) -> ir.Model:
    """``model``, or a copy of it in which every Concat joins whole blocks of channels.

    The values in ``borders`` keep name, shape and meaning. If such a value is aligned, a node
    computes it from the aligned value; `read_lowered` treats this node as a change of layout.
    """
    aligned = model.clone()
    channels = _regions(aligned.graph, block)
    if not channels:
        return model
    _Rewriter(aligned.graph, channels).rewrite(set(borders))
    return aligned


def _regions(graph: ir.Graph, block: int) -> dict[ir.Value, _Channels]:
    """The values to align: those that would not stay in the blocked layout, and their neighbours.

    Values that are added to each other, or computed from each other channel by channel, have their
    channels at the same positions. A Concat determines these positions: gaps remain between its
    parts. Without a Concat, the channels fill their blocks from the first position on.
    """
    aligned_sets, connected = _Sets(), _Sets()
    node_of: dict[ir.Value, ir.Node] = {}
    for node in graph:
        if node.domain or not _alignable(node, aligned_sets, block):
            continue
        result, kind = node.outputs[0], _kind(node)
        sources = [v for v in node.inputs if v and v in aligned_sets] if kind != "dense" else []
        for sets, values in (
            (aligned_sets, [] if kind == "Concat" else sources),
            (connected, sources),
        ):
            sets.add(result)
            for value in values:
                sets.join(value, result)
        if kind == "Concat":
            node_of[result] = node
    layout_of: dict[ir.Value, _Channels] = {}
    # With fewer channels first, the inputs of a Concat are handled before its result.
    for group in sorted(aligned_sets.all(), key=lambda g: _count(g[0])):
        candidates = {
            _joined(layout_of.get(v) or _whole(v) for v in node_of[value].inputs if v)
            for value in group
            if value in node_of
        } or {_filling(_count(group[0]), block)}
        channels = candidates.pop()
        gaps = channels.total - len(channels.places)
        if not candidates and gaps and channels.total % block == 0:
            layout_of |= dict.fromkeys(group, channels)
    roots = {
        connected.root(value)
        for value in layout_of
        if _in_plain(value.producer(), layout_of, block)
    }
    return {value: c for value, c in layout_of.items() if connected.root(value) in roots}


def _in_plain(node: ir.Node | None, layout_of: Container[ir.Value | None], block: int) -> bool:
    """Whether ONNX Runtime would run a node in NCHW because of its number of channels."""
    assert node is not None
    if node.op_type == "Concat":
        return any(v in layout_of and _count(v) % block for v in node.inputs)
    return _kind(node) != "dense" and _count(node.outputs[0]) % _MULTIPLE != 0


class _Sets:
    """Values in disjoint sets that can be joined."""

    def __init__(self) -> None:
        self._parent: dict[ir.Value, ir.Value] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._parent

    def add(self, value: ir.Value) -> None:
        self._parent[value] = value

    def root(self, value: ir.Value) -> ir.Value:
        """The representative of the set that holds ``value``."""
        while (parent := self._parent[value]) is not value:
            self._parent[value] = value = self._parent[parent]
        return value

    def join(self, one: ir.Value, other: ir.Value) -> None:
        self._parent[self.root(one)] = self.root(other)

    def all(self) -> Iterable[list[ir.Value]]:
        members: dict[ir.Value, list[ir.Value]] = {}
        for value in self._parent:
            members.setdefault(self.root(value), []).append(value)
        return members.values()


def _kind(node: ir.Node) -> str:
    """ "dense" or "depthwise" for convolutions with constant weights; else the operator's type."""
    if node.op_type != "Conv":
        return node.op_type
    group, weight = node.attributes.get_int("group", 1), _weight(node, 1)
    if weight is None or any(v is not None and v.const_value is None for v in node.inputs[1:]):
        return "Conv"
    if group == 1:
        return "dense"
    return "depthwise" if weight.shape[0] == group and weight.shape[1] == 1 else "Conv"


def _alignable(node: ir.Node, aligned_values: Container[ir.Value | None], block: int) -> bool:
    """Whether a node can compute an aligned result, if ``aligned_values`` can be aligned."""
    result, kind = node.outputs[0], _kind(node)
    if len(node.outputs) != 1 or result.shape is None or len(result.shape) != 4:
        return False
    if result.dtype != ir.DataType.FLOAT:
        return False
    if kind == "dense":
        return 2 * _count(result) > block  # for fewer, whole blocks are too much work
    if kind in _UNARY | {"depthwise", "BatchNormalization"}:
        return node.inputs[0] in aligned_values
    if kind in _BINARY:
        return all(v in aligned_values and _count(v) == _count(result) for v in node.inputs)
    if kind == "Concat" and node.attributes["axis"].as_int() in (1, -3):
        return any(v in aligned_values for v in node.inputs)
    return False


def _count(value: ir.Value | None) -> int:
    """The number of channels of a tensor. In a simplified model, all shapes are known."""
    assert value is not None and value.shape is not None
    count = value.shape[1]
    assert isinstance(count, int)
    return count


def _whole(value: ir.Value | None) -> _Channels:
    return _filling(_count(value), 1)


def _filling(count: int, block: int) -> _Channels:
    """``count`` channels one behind the other, padded to the end of the last block."""
    return _Channels(tuple(range(count)), -(-count // block) * block)


def _joined(parts: Iterable[_Channels]) -> _Channels:
    places: list[int] = []
    total = 0
    for part in parts:
        places += [total + place for place in part.places]
        total += part.total
    return _Channels(tuple(places), total)


class _Rewriter:
    """Rewrites one graph so that some of its values are aligned."""

    def __init__(self, graph: ir.Graph, channels: Mapping[ir.Value, _Channels]) -> None:
        self._graph, self._channels = graph, channels
        self._plain: dict[ir.Value, ir.Value] = {}
        self._names = {value: value.name or "" for value in channels}

    def rewrite(self, borders: Collection[str]) -> None:
        nodes = list(self._graph)
        for value in self._channels:
            value.name = _ALIGNED + self._names[value]
        for node in nodes:
            self._adapt(node)
        for value in self._channels:
            if self._names[value] in borders or value.is_graph_output():
                self._plain_of(value)
        self._graph.outputs[:] = [self._plain.get(v, v) for v in self._graph.outputs]
        for value, channels in self._channels.items():
            assert value.shape is not None
            value.shape = ir.Shape([value.shape[0], channels.total, *value.shape[2:]])
        used = {v for node in self._graph.all_nodes() for v in node.inputs}
        for name, value in list(self._graph.initializers.items()):
            if value not in used and not value.is_graph_output():
                del self._graph.initializers[name]

    def _adapt(self, node: ir.Node) -> None:
        """Change the weights of a node for aligned inputs and outputs. A node that cannot be
        aligned reads plain values instead."""
        kind = _kind(node)
        read_channels = next((c for v in node.inputs if v and (c := self._channels.get(v))), None)
        made_channels = self._channels.get(node.outputs[0])
        if kind == "dense" and not node.domain:
            if read_channels is not None:
                self._refit(node, 1, lambda w: read_channels.spread(w, 1))
            if made_channels is not None:
                self._refit(node, 1, lambda w: made_channels.spread(w, 0))
                self._refit(node, 2, lambda b: made_channels.spread(b, 0))
        elif made_channels is None:
            for index, value in enumerate(node.inputs):
                if value is not None and value in self._channels:
                    node.replace_input_with(index, self._plain_of(value))
        elif kind == "depthwise":
            self._refit(node, 1, lambda w: made_channels.spread(w, 0))
            self._refit(node, 2, lambda b: made_channels.spread(b, 0))
            node.attributes["group"] = ir.AttrInt64("group", made_channels.total)
        elif kind == "BatchNormalization":
            for index in (1, 2, 3):
                self._refit(node, index, lambda a: made_channels.spread(a, 0))
            self._refit(node, 4, lambda a: made_channels.spread(a, 0, filling=1.0))  # a divisor

    def _refit(
        self, node: ir.Node, index: int, change: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> None:
        """Replace a weight of ``node`` by a changed copy, if the node has this weight."""
        array = _weight(node, index)
        if array is None:
            return
        old = node.inputs[index]
        assert old is not None
        changed = np.ascontiguousarray(change(array.numpy()))
        name = f"{_ALIGNED}{index}:{self._names.get(node.outputs[0], node.outputs[0].name)}"
        new = self._graph.initializers.get(name) or ir.Value(name=name)
        new.const_value = ir.tensor(changed, name=name)
        new.shape, new.type = ir.Shape(changed.shape), old.type
        if name not in self._graph.initializers:
            self._graph.register_initializer(new)
        node.replace_input_with(index, new)

    def _plain_of(self, value: ir.Value) -> ir.Value:
        """The value without its padding channels, under its old name."""
        if value not in self._plain:
            name = self._names[value]
            places = np.array(self._channels[value].places, np.int64)
            index = ir.Value(name=f"{_ALIGNED}places:{name}", const_value=ir.tensor(places))
            index.shape, index.dtype = ir.Shape(places.shape), ir.DataType.INT64
            self._graph.register_initializer(index)
            node = ir.node("Gather", [value, index], {"axis": 1}, name=LAYOUT + name)
            plain = node.outputs[0]
            assert value.shape is not None
            plain.name, plain.type = name, value.type
            plain.shape = ir.Shape([value.shape[0], len(places), *value.shape[2:]])
            maker = value.producer()
            assert maker is not None
            self._graph.insert_after(maker, node)
            self._plain[value] = plain
        return self._plain[value]


def _weight(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.const_value


_blocks: list[int] = []


def block_of(folder: Path) -> int:
    """Channels in a block of ONNX Runtime's layout on this processor; 1 if it has no such layout.

    Found once in a process: ONNX Runtime optimises a convolution and pads its 33 channels to whole
    blocks. It writes the optimised model into ``folder``.
    """
    if not _blocks:
        _blocks.append(_block(folder))
    return _blocks[0]


def _block(folder: Path) -> int:
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(np.ones((33, 64, 1, 1), np.float32), "w")
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, count, 8, 8])
        for name, count in (("x", 64), ("y", 33))
    ]
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([conv], "probe", infos[:1], infos[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    path = folder / "block.onnx"
    options.optimized_model_filepath = str(path)
    OrtSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    optimised = onnx.load(str(path))
    path.unlink()
    padded = _padded_count(optimised.graph)
    return 1 if padded is None else next(b for b in (16, 8, 4, 1) if -(-33 // b) * b == padded)


def _padded_count(graph: onnx.GraphProto) -> int | None:
    weights = {t.name: t.dims for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Conv" and node.domain == "com.microsoft.nchwc":
            return int(weights[node.input[1]][0])
    return None
