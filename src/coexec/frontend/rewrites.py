"""Rewrites that engines do not do themselves and that all of them profit from.

Pads fold into pools, sampling becomes a convolution, and activations move in front of a
concatenation, where they fuse with what makes their inputs. Networks of the NAS family spend a
tenth of their time on what these rewrites remove: engines run Pad, and any activation behind a
Concat, outside of their blocked layouts.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnxscript.rewriter.rules.common import fuse_hardswish_rules

from coexec.frontend.group import only_read

__all__ = ["rewrite", "separate_dequantised"]

_MOVING = frozenset({"Relu"})
"""Activations that give the same before and behind a Concat, and that engines fuse."""
_HARD_SWISH_SINCE = 14
"""The opset that brought HardSwish."""
_MOST_SHIFTED = 3
"""Pixels; the convolution that samples has so many rows and columns more."""


def rewrite(model: ir.Model) -> None:
    """Rewrite ``model`` in place; every value that stays keeps its meaning."""
    if model.opset_imports.get("", 0) >= _HARD_SWISH_SINCE:
        # ONNX Runtime fuses it with a convolution only after values have lost their names.
        fuse_hardswish_rules().apply_to_model(model)
    for node in list(model.graph):
        if node.domain or node.graph is None:
            continue
        if node.op_type in ("AveragePool", "MaxPool"):
            _pad_into_pool(node)
        elif node.op_type == "Concat":
            _activate_before(node)


def separate_dequantised(model: ir.Model) -> None:
    """Give every reader of a dequantised value a DequantizeLinear of its own, in place.

    Engines fuse it with what reads it, and the quantised value is a quarter of the size to move.
    """
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or node.domain:
            continue
        value = node.outputs[0]
        readers = [n for n in value.consumers() if n.graph is model.graph]
        kept = value.is_graph_output() or len(readers) < len(list(value.consumers()))
        for number, reader in enumerate(readers if kept else readers[1:]):
            own = ir.Node("", node.op_type, node.inputs, node.attributes.values(),
                          name=f"{node.name}.{number}", version=node.version)  # fmt: skip
            copy = own.outputs[0]
            copy.name = f"{value.name}.{number}"
            copy.shape, copy.type = value.shape, value.type
            model.graph.insert_after(node, own)
            for position, read in enumerate(reader.inputs):
                if read is value:
                    reader.replace_input_with(position, copy)


class _Margins(NamedTuple):
    """What a Pad adds around the last two axes; less than nothing where it cuts off."""

    top: int
    left: int
    bottom: int
    right: int


def _pad_into_pool(pool: ir.Node) -> None:
    source = pool.inputs[0]
    pad = None if source is None else source.producer()
    if pad is None or pad.op_type != "Pad" or pad.domain or not only_read(pad.outputs[0]):
        return
    margins = _margins(pad)
    kernel = pool.attributes.get_ints("kernel_shape", ())
    plain = (
        pool.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not any(pool.attributes.get_ints("pads", ()))
        and not pool.attributes.get_int("ceil_mode", 0)
        and set(pool.attributes.get_ints("dilations", (1,))) == {1}
    )
    if margins is None or not plain or len(kernel) != 2 or len(pool.outputs) != 1:
        return
    nothing = 0.0 if pool.op_type == "AveragePool" else -math.inf
    if _filling(pad) == nothing and _fits_inside(margins, kernel):
        pool.attributes["pads"] = ir.AttrInt64s("pads", margins)
        pool.attributes.pop("auto_pad", None)
        if pool.op_type == "AveragePool":
            pool.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    elif not (_filling(pad) == 0.0 and tuple(kernel) == (1, 1) and _sample(pool, pad, margins)):
        return
    if pool.graph is not None:
        pool.replace_input_with(0, pad.inputs[0])
    if pad.graph is not None:
        pad.graph.remove(pad, safe=True)


def _fits_inside(margins: _Margins, kernel: Sequence[int]) -> bool:
    """Whether pools accept the margins: not cut off, and never a window of nothing else."""
    return all(0 <= m < k for m, k in zip(margins, (*kernel, *kernel), strict=True))


def _sample(pool: ir.Node, pad: ir.Node, margins: _Margins) -> bool:
    """A pool of single pixels behind a Pad that cuts off the first rows and columns.

    As a convolution of each channel with zeros and a last one, which is the same for finite values
    and needs no Pad. Whether that was possible.
    """
    down, right = -margins.top, -margins.left
    source, sampled = pad.inputs[0], pool.outputs[0]
    if not (0 <= down <= _MOST_SHIFTED and 0 <= right <= _MOST_SHIFTED and down + right > 0):
        return False
    if min(margins.bottom, margins.right) < 0 or margins.bottom > down or margins.right > right:
        return False
    graph = pool.graph
    if source is None or source.shape is None or source.dtype != ir.DataType.FLOAT or graph is None:
        return False
    channels = source.shape[1]
    if not isinstance(channels, int):
        return False
    kernel = np.zeros((channels, 1, down + 1, right + 1), np.float32)
    kernel[:, :, -1, -1] = 1.0
    weight = ir.Value(name=f"{sampled.name}.sample", const_value=ir.tensor(kernel))
    weight.shape, weight.dtype = ir.Shape(kernel.shape), ir.DataType.FLOAT
    graph.register_initializer(weight)
    attributes: dict[str, int | Sequence[int]] = {
        "kernel_shape": kernel.shape[2:],
        "strides": pool.attributes.get_ints("strides", (1, 1)),
        "pads": (0, 0, margins.bottom, margins.right),
        "group": channels,
    }
    conv = ir.node("Conv", [source, weight], attributes, name=f"{pool.name}.sample")
    ir.convenience.replace_nodes_and_values(graph, pool, [pool], [conv], pool.outputs, conv.outputs)
    return True


def _margins(pad: ir.Node) -> _Margins | None:
    """Those of a Pad with a constant around NCHW images, if they are known."""
    amounts = _constant(pad, 1)
    if pad.attributes.get_string("mode", "constant") != "constant" or amounts is None:
        return None
    some_axes = len(pad.inputs) > 3 and pad.inputs[3] is not None
    if some_axes or len(amounts) != 8:
        return None
    top, left, bottom, right = (int(amounts[i]) for i in (2, 3, 6, 7))
    on_images = not any(amounts[i] for i in (0, 1, 4, 5))
    return _Margins(top, left, bottom, right) if on_images else None


def _filling(pad: ir.Node) -> float | None:
    """What a Pad writes, if that is known."""
    if len(pad.inputs) < 3 or pad.inputs[2] is None:
        return 0.0
    value = _constant(pad, 2)
    return None if value is None else float(value[0])


def _constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().reshape(-1)


def _activate_before(concat: ir.Node) -> None:
    """Let what makes the inputs of a Concat activate them, where all its readers would.

    Only where most of the inputs have no other reader: elsewhere nothing fuses.
    """
    joined, graph = concat.outputs[0], concat.graph
    readers = list(joined.consumers())
    kinds = {(n.domain, n.op_type) for n in readers}
    if joined.is_graph_output() or graph is None or len(kinds) != 1:
        return
    if any(reader.graph is not graph for reader in readers):
        return
    domain, kind = kinds.pop()
    parts = [v for v in concat.inputs if v is not None]
    if domain or kind not in _MOVING or len(set(parts)) < len(concat.inputs):
        return
    alone = [v for v in parts if v.producer() is not None and only_read(v)]
    if 2 * len(alone) < len(parts) or any(v.producer() is None for v in parts):
        return
    for index, part in enumerate(parts):
        node = ir.node(kind, [part], name=f"{readers[0].name}.{index}")
        activated = node.outputs[0]
        activated.name = f"{joined.name}.{kind}.{index}"
        activated.shape, activated.type = part.shape, part.type
        graph.insert_before(concat, node)
        concat.replace_input_with(index, activated)
    for reader in readers:
        if reader.outputs[0].is_graph_output():
            continue  # it changes nothing any more, but its result has a name
        reader.outputs[0].replace_all_uses_with(joined)
        graph.remove(reader, safe=True)
