"""Shapes that ONNX Runtime computes where ONNX's shape inference gives, or may give, others.

The table below lists the operators and attributes for which the two disagree for some sizes. ONNX
Runtime runs such a node alone, on zeros of the shapes of its inputs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.model.types import type_proto
from coexec.ort import OrtSession

__all__ = ["doubtful_shapes", "is_misinferred"]

_Shape = tuple[int, ...]

_SHAPE = "shape of "
_MICROSOFT = "com.microsoft"
_MOST_ELEMENTS = 1 << 26
"""Most elements of an input or output; a node with a larger one is not run."""
_LARGE_STEP = 1 << 31
_TO_THE_END = (1 << 31) - 1
_WHOLE_EIGHTHS = 8
"""Scales that are multiples of 1/8 give the same product with a size in every precision."""
_INTERPOLATING = frozenset({"antialias", "cubic_coeff_a", "exclude_outside", "mode"})
_SLICE_WITH_STEPS, _RESIZE_WITH_ROI, _NEGATIVE_AXES = 10, 11, 11
"""Versions of operator sets."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Nodes of a type for which inference may differ, and how such a node is run."""

    applies: Callable[[ir.Node, int], bool]
    """Whether inference may differ, by node and version of its operator set."""
    parameters: tuple[int, ...] = ()
    """Inputs whose values decide the shape; of all others only shape and type count."""
    leading: Callable[[ir.Node], int] = lambda _: 0
    """Number of first axes in which every output equals the first input: one element along each of
    them is enough to compute the other axes."""
    keeps_rank: bool = True
    """Whether every output has as many axes as the first input."""


def doubtful_shapes(node: ir.Node, model: ir.Model) -> list[ir.Shape | None] | None:
    """The shapes of the outputs of a node for which inference and ONNX Runtime may disagree; None
    for other nodes.

    A dimension is open, or a shape None, if it cannot be computed: an input's shape or a parameter
    is not known, the tensors are too large to try, or ONNX Runtime does not run the node.
    """
    function = model.functions.get(node.op_identifier())
    if function is not None:
        inside = any((n.domain, n.op_type) in _DOUBTS for n in function.all_nodes())
        return [None for _ in node.outputs] if inside else None
    doubt = _DOUBTS.get((node.domain, node.op_type))
    if doubt is None or not doubt.applies(node, model.opset_imports.get(node.domain, 0)):
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None or first.shape is None:
        return [None for _ in node.outputs]
    kept = first.shape.dims[: doubt.leading(node)]
    probe = _probe(node, doubt, model)
    computed = None if probe is None else _computed(probe)
    if computed is None:
        rank_kept, unknown_dims = doubt.keeps_rank, [None] * (len(first.shape) - len(kept))
        return [
            ir.Shape([*kept, *unknown_dims]) if rank_kept and v.name else None for v in node.outputs
        ]
    shapes = (computed.get(f"y{i}") for i in range(len(node.outputs)))
    return [None if s is None else ir.Shape([*kept, *s[len(kept) :]]) for s in shapes]


def is_misinferred(node: ir.Node, model: ir.Model) -> bool:
    """Whether inference gives ``node`` another shape than ONNX Runtime computes, or may do so in a
    function that it calls."""
    if doubtful_shapes(node, model) is None:
        return False
    doubt = _DOUBTS.get((node.domain, node.op_type))
    probe = None if doubt is None else _probe(node, doubt, model)
    return doubt is None or (probe is not None and _inferred(probe) != _computed(probe))


def _probe(node: ir.Node, doubt: _Doubt, model: ir.Model) -> bytes | None:
    """A model of ``node`` alone that computes the shapes of its outputs "y0", "y1", ... The leading
    axes have one element each."""
    first = node.inputs[0]
    if first is None or first.shape is None:
        return None
    leading = min(doubt.leading(node), len(first.shape))
    inputs, constants = [], []
    written = ir.serde.serialize_node(node)
    for field in ("name", "doc_string", "metadata_props"):
        written.ClearField(field)
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        written.input[i] = name = f"x{i}"
        if i in doubt.parameters:
            tensor = ir.convenience.get_const_tensor(value)
            if tensor is None:
                return None
            constants.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
            continue
        if value.dtype is None or value.shape is None:
            return None
        dims = value.shape.dims[leading if i == 0 else 0 :]
        sizes = [size for size in dims if isinstance(size, int)]
        if len(sizes) < len(dims) or math.prod(sizes) > _MOST_ELEMENTS:
            return None
        shape = [1] * (len(value.shape) - len(sizes)) + sizes
        inputs.append(onnx.helper.make_tensor_value_info(name, int(value.dtype), shape))
    if any(_elements(v, leading) > _MOST_ELEMENTS for v in node.outputs):
        return None
    outputs = [f"y{i}" if v.name else "" for i, v in enumerate(node.outputs)]
    written.output[:] = outputs
    _cheapen(written)
    shapes = [onnx.helper.make_node("Shape", [n], [_SHAPE + n]) for n in outputs if n]
    infos = [
        onnx.helper.make_tensor_value_info(n.output[0], onnx.TensorProto.INT64, None)
        for n in shapes
    ]
    graph = onnx.helper.make_graph([written, *shapes], "probe", inputs, infos, constants)
    opsets = [onnx.helper.make_opsetid(*row) for row in sorted(model.opset_imports.items())]
    probe = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    content: bytes = probe.SerializeToString(deterministic=True)
    return content


def _elements(value: ir.Value, leading: int) -> int:
    """Number of elements by inference: exact enough to find outputs that are too large."""
    static = value.shape is not None and value.shape.is_static()
    return math.prod(value.shape.numpy()[leading:]) if static and value.shape is not None else 0


def _cheapen(node: onnx.NodeProto) -> None:
    """Let Resize copy elements: the kind of interpolation does not change the shape."""
    if node.op_type not in ("Resize", "Upsample"):
        return
    kept = [a for a in node.attribute if a.name not in _INTERPOLATING]
    del node.attribute[:]
    node.attribute.extend(kept)


@lru_cache(maxsize=1024)
def _computed(probe: bytes) -> dict[str, _Shape] | None:
    """The shapes that a model from `_probe` computes; None if it does not run."""
    try:
        session = _session(probe)
        feeds = {
            v.name: np.zeros(v.shape, onnx.helper.tensor_dtype_to_np_dtype(_element(v.type)))
            for v in session.get_inputs()
        }
        names = [output.name.removeprefix(_SHAPE) for output in session.get_outputs()]
        shapes = session.run(None, feeds)
    except Exception:  # whatever ONNX Runtime raises for a node that it cannot run
        return None
    return {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}


@lru_cache(maxsize=1024)
def _inferred(probe: bytes) -> dict[str, _Shape]:
    """The shapes of the same outputs by ONNX Runtime's inference."""
    proto = onnx.load_model_from_string(probe)
    names = [name for name in proto.graph.node[0].output if name]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    outputs = _session(proto.SerializeToString()).get_outputs()
    return {output.name: tuple(output.shape) for output in outputs}


def _element(text: str) -> int:
    """ONNX's number for the type of a tensor's elements."""
    proto = type_proto(text)
    return 0 if proto is None else int(proto.tensor_type.elem_type)


def _session(content: bytes) -> OrtSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return OrtSession(content, options, providers=["CPUExecutionProvider"])


def _constant(node: ir.Node, index: int) -> list[float] | None:
    """Values of a constant input; [] if it is absent, None if it is computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return []
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().reshape(-1).tolist()


def _pool(node: ir.Node, _: int) -> bool:
    """``ceil_mode`` drops windows that start behind the input; SAME ignores dilations."""
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    dilated = max(node.attributes.get_ints("dilations", ()), default=1) > 1
    return bool(node.attributes.get_int("ceil_mode", 0)) or (same and dilated)


def _conv_transpose(node: ir.Node, _: int) -> bool:
    same = node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME")
    padded = any(node.attributes.get_ints("output_padding", ()))
    return "output_shape" in node.attributes or (same and padded)


def _scales(node: ir.Node, opset: int) -> list[float] | None:
    """The scales; [] if they are absent, None if they are computed."""
    attribute = node.attributes.get("scales")
    if attribute is not None:
        return list(attribute.as_floats())
    return _constant(node, 1 if node.op_type == "Upsample" or opset < _RESIZE_WITH_ROI else 2)


def _resize(node: ir.Node, opset: int) -> bool:
    """A product of size and scale is rounded to float32 before it is rounded down."""
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    scales = _scales(node, opset)
    return policy != "stretch" or scales is None or any(s * _WHOLE_EIGHTHS % 1 for s in scales)


def _unscaled(node: ir.Node) -> int:
    """Number of first axes that Resize leaves as they are, for all sizes."""
    opset = 0 if node.graph is None else node.graph.opset_imports.get("", 0)
    axes, scales = node.attributes.get("axes"), _scales(node, opset)
    rank = (
        0 if node.inputs[0] is None or node.inputs[0].shape is None else (len(node.inputs[0].shape))
    )
    if axes is not None:
        return min((a % rank for a in axes.as_ints()), default=rank)
    return next((i for i, s in enumerate(scales or [0.0]) if s != 1), rank)


def _slice(node: ir.Node, opset: int) -> bool:
    """Steps are cut to 32 bits. With negative steps, bounds outside of the axis have another
    meaning. In the first version, inference does not cover bounds that are counted from the end,
    empty results, and axes that are not in order."""
    if opset < _SLICE_WITH_STEPS:
        order, *bounds = (node.attributes.get_ints(n, ()) for n in ("axes", "starts", "ends"))
        empty = any(not 0 <= start < end for start, end in zip(*bounds, strict=False))
        return empty or list(order) != sorted(order)
    steps = _constant(node, 4)
    if steps is None:
        return True
    if all(0 < s < _LARGE_STEP for s in steps):
        return False
    starts, ends = _constant(node, 1), _constant(node, 2)
    if starts is None or ends is None or any(abs(s) >= _LARGE_STEP for s in steps):
        return True
    return min(starts, default=0) < -1 or max(ends, default=0) >= _TO_THE_END


def _squeeze(node: ir.Node, opset: int) -> bool:
    """An empty tensor of axes stands for all axes of size 1. In the first version, inference is
    wrong for axes that are negative or not in order."""
    if opset < _NEGATIVE_AXES:
        order = list(node.attributes.get_ints("axes", ()))
        return min(order, default=0) < 0 or order != sorted(order)
    has_axes = len(node.inputs) > 1 and node.inputs[1] is not None
    return node.op_type == "Squeeze" and has_axes and not _constant(node, 1)


def _stft(node: ir.Node, _: int) -> bool:
    """ONNX and ONNX Runtime may differ in whether the spectrum is one-sided by default."""
    return "onesided" not in node.attributes


_POOL = _Doubt(_pool, leading=lambda _: 2)
_RESIZE = _Doubt(_resize, (1, 2, 3), _unscaled)
_SQUEEZE = _Doubt(_squeeze, (1,), keeps_rank=False)

_DOUBTS: Mapping[tuple[str, str], _Doubt] = {
    ("", "AveragePool"): _POOL,
    ("", "LpPool"): _POOL,
    ("", "MaxPool"): _POOL,
    (_MICROSOFT, "NhwcMaxPool"): _Doubt(_pool),
    (_MICROSOFT, "QLinearAveragePool"): _Doubt(_pool),
    ("", "ConvTranspose"): _Doubt(_conv_transpose, leading=lambda _: 1),
    ("", "Resize"): _RESIZE,
    ("", "Upsample"): _RESIZE,
    ("", "Slice"): _Doubt(_slice, (1, 2, 3, 4)),
    ("", "Squeeze"): _SQUEEZE,
    ("", "Unsqueeze"): _SQUEEZE,
    ("", "STFT"): _Doubt(_stft, (1, 3), keeps_rank=False),
}
