"""Channels in whole blocks, so that ONNX Runtime keeps its blocked layout from end to end.

Its convolutions compute NCHWc: blocks of 16 channels with AVX-512, of 8 with AVX2. It pads the
channels of a convolution itself, but runs every Concat, pool and addition of tensors that do not
fill their blocks in NCHW, with a conversion before and behind. Networks of the NAS family have 168
or 270 channels nearly everywhere and spend 6 to 12 % of their time on it. So here the tensors of
such regions get channels that nobody reads: those who make them have zero weights for these, and so
have those who read them.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from coexec.frontend.lowered import LAYOUT
from coexec.ort import OrtSession

__all__ = ["align", "block_of"]

_UNARY = frozenset({
    "AveragePool", "Clip", "GlobalAveragePool", "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool",
    "Relu", "Sigmoid", "Tanh",
})  # fmt: skip
"""Work on each channel alone, and never make infinity or not-a-number of a finite one."""
_BINARY = frozenset({"Add", "Mul", "Sub"})
_MULTIPLE = 4
"""Of channels, without which ONNX Runtime has no blocked layout for anything but convolutions that
mix them."""
_ALIGNED = "aligned:"


class _Channels(NamedTuple):
    """Where the channels of a tensor lie among those of its aligned form."""

    places: tuple[int, ...]
    total: int

    def spread(self, array: NDArray[Any], axis: int, filling: float = 0.0) -> NDArray[Any]:
        """``array`` with its entries along ``axis`` at their places."""
        shape = list(array.shape)
        shape[axis] = self.total
        spread = np.full(shape, filling, array.dtype)
        np.moveaxis(spread, axis, 0)[list(self.places)] = np.moveaxis(array, axis, 0)
        return spread


def align(model: ir.Model, borders: Collection[str], block: int) -> ir.Model:
    """``model``, or a copy of it in which every Concat joins whole blocks of channels.

    The values in ``borders`` keep name, shape and meaning; where they are aligned they come from
    the aligned value through a node that `read_lowered` knows as a change of layout.
    """
    aligned = model.clone()
    channels = _regions(aligned.graph, block)
    if not channels:
        return model
    _Rewriter(aligned.graph, channels).rewrite(set(borders))
    return aligned


def _regions(graph: ir.Graph, block: int) -> dict[ir.Value, _Channels]:
    """The values to align: those that would not stay in the blocked layout, and their neighbours.

    Values that are added, or made from each other channel by channel, have their channels at the
    same places. A Concat decides where: behind it, gaps remain between its parts. Where none does,
    channels fill their blocks from the first on.
    """
    alike, connected = _Sets(), _Sets()
    joins: dict[ir.Value, ir.Node] = {}
    for node in graph:
        if node.domain or not _alignable(node, alike, block):
            continue
        result, kind = node.outputs[0], _kind(node)
        sources = [v for v in node.inputs if v and v in alike] if kind != "dense" else []
        for sets, values in ((alike, [] if kind == "Concat" else sources), (connected, sources)):
            sets.add(result)
            for value in values:
                sets.join(value, result)
        if kind == "Concat":
            joins[result] = node
    found: dict[ir.Value, _Channels] = {}
    for group in sorted(alike.all(), key=lambda g: _count(g[0])):  # parts before what they join
        places = {
            _joined(found.get(v) or _whole(v) for v in joins[value].inputs if v)
            for value in group if value in joins
        } or {_filling(_count(group[0]), block)}  # fmt: skip
        channels = places.pop()
        gaps = channels.total - len(channels.places)
        if not places and gaps and channels.total % block == 0:
            found |= dict.fromkeys(group, channels)
    wanted = {connected.root(value) for value in found if _in_plain(value.producer(), found, block)}
    return {value: c for value, c in found.items() if connected.root(value) in wanted}


def _in_plain(node: ir.Node | None, found: Container[ir.Value | None], block: int) -> bool:
    """Whether ONNX Runtime would leave a node in NCHW because of its number of channels."""
    assert node is not None
    if node.op_type == "Concat":
        return any(v in found and _count(v) % block for v in node.inputs)
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
        """The value that stands for the set of ``value``."""
        while (parent := self._parent[value]) is not value:
            self._parent[value] = value = self._parent[parent]
        return value

    def join(self, one: ir.Value, other: ir.Value) -> None:
        self._parent[self.root(one)] = self.root(other)

    def all(self) -> Iterable[list[ir.Value]]:
        found: dict[ir.Value, list[ir.Value]] = {}
        for value in self._parent:
            found.setdefault(self.root(value), []).append(value)
        return found.values()


def _kind(node: ir.Node) -> str:
    """ "dense" or "depthwise" for convolutions with known weights; else the operator's type."""
    if node.op_type != "Conv":
        return node.op_type
    group, weight = node.attributes.get_int("group", 1), _weight(node, 1)
    if weight is None or any(v is not None and v.const_value is None for v in node.inputs[1:]):
        return "Conv"
    if group == 1:
        return "dense"
    return "depthwise" if weight.shape[0] == group and weight.shape[1] == 1 else "Conv"


def _alignable(node: ir.Node, known: Container[ir.Value | None], block: int) -> bool:
    """Whether a node can make its result aligned, given the values that can be."""
    result, kind = node.outputs[0], _kind(node)
    if len(node.outputs) != 1 or result.shape is None or len(result.shape) != 4:
        return False
    if result.dtype != ir.DataType.FLOAT:
        return False
    if kind == "dense":
        return 2 * _count(result) > block  # for fewer, whole blocks are too much work
    if kind in _UNARY | {"depthwise", "BatchNormalization"}:
        return node.inputs[0] in known
    if kind in _BINARY:
        return all(v in known and _count(v) == _count(result) for v in node.inputs)
    if kind == "Concat" and node.attributes["axis"].as_int() in (1, -3):
        return any(v in known for v in node.inputs)
    return False


def _count(value: ir.Value | None) -> int:
    """The channels of a tensor; in a simplified model all shapes are known."""
    assert value is not None and value.shape is not None
    count = value.shape[1]
    assert isinstance(count, int)
    return count


def _whole(value: ir.Value | None) -> _Channels:
    return _filling(_count(value), 1)


def _filling(count: int, block: int) -> _Channels:
    """Channels one behind the other, up to the end of the last one's block."""
    return _Channels(tuple(range(count)), -(-count // block) * block)


def _joined(parts: Iterable[_Channels]) -> _Channels:
    places: list[int] = []
    total = 0
    for part in parts:
        places += [total + place for place in part.places]
        total += part.total
    return _Channels(tuple(places), total)


class _Rewriter:
    """Aligns values of one graph."""

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
        """Fit weights to aligned inputs and outputs; let what cannot be aligned read the plain."""
        kind = _kind(node)
        read = next((c for v in node.inputs if v and (c := self._channels.get(v))), None)
        made = self._channels.get(node.outputs[0])
        if kind == "dense" and not node.domain:
            if read is not None:
                self._refit(node, 1, lambda w: read.spread(w, 1))
            if made is not None:
                self._refit(node, 1, lambda w: made.spread(w, 0))
                self._refit(node, 2, lambda b: made.spread(b, 0))
        elif made is None:
            for index, value in enumerate(node.inputs):
                if value is not None and value in self._channels:
                    node.replace_input_with(index, self._plain_of(value))
        elif kind == "depthwise":
            self._refit(node, 1, lambda w: made.spread(w, 0))
            self._refit(node, 2, lambda b: made.spread(b, 0))
            node.attributes["group"] = ir.AttrInt64("group", made.total)
        elif kind == "BatchNormalization":
            for index in (1, 2, 3):
                self._refit(node, index, lambda a: made.spread(a, 0))
            self._refit(node, 4, lambda a: made.spread(a, 0, filling=1.0))  # a divisor

    def _refit(
        self, node: ir.Node, index: int, change: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> None:
        """Give ``node`` a changed copy of a weight, if it has that one."""
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
        """The value without the channels that nobody reads, under its old name."""
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
    """Channels in a block of ONNX Runtime's layout on this processor; 1 where it has none.

    It tells by padding 33 channels to whole blocks, once in a process. ``folder`` is where it
    writes what it has optimised.
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
