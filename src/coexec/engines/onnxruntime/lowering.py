"""Lower a model with ONNX Runtime's own optimizer, once, before it is cut into segments.

If each segment were optimised separately, tensors would be converted between NCHW and the blocked
layout of the convolution kernels at each border, and pools and element-wise operators at the start
of a segment would stay in the slow layout. That took 20 to 50 % of the time of the measured models.
If the model is cut after lowering, segments pass blocked tensors on, together take as long as the
whole model, and are created in a fraction of the time.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.arrays import Array
from coexec.engines.onnxruntime.alignment import align, block_of
from coexec.errors import ModelError, first_line
from coexec.lowering.lowered_model import BORDER
from coexec.model.nondeterministic import MERGING, random_nodes
from coexec.model.shapes import compute_shapes, infer, is_misinferred
from coexec.model.tensors import why_opaque
from coexec.model.types import hide_maps, show_maps
from coexec.ort import OrtSession

_WEIGHT_BYTES = 1024
"""Weights from this size on are stored outside of the model file."""


def lower(model: ir.Model, borders: Sequence[str], folder: Path) -> Path:
    """Write the optimised ``model`` into ``folder`` and return its path.

    Every value in ``borders`` gets an output of its own behind an Identity. This prevents ONNX
    Runtime from fusing operators across the value, but leaves the choice of the layout to it.
    Elsewhere it fuses as in the whole model.

    Raises:
        ModelError: ONNX Runtime does not accept the model.
    """
    apart = bool(borders) or bool(random_nodes(model))
    model = align(model, borders, block_of(folder))
    plain, marked, lowered = (folder / f"{n}.onnx" for n in ("plain", "marked", "lowered"))
    ir.save(model, plain, external_data="plain.bin", size_threshold_bytes=_WEIGHT_BYTES)
    proto = onnx.load(str(plain), load_external_data=False)
    show_maps(proto)
    values = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output)}
    for name in borders:
        proto.graph.node.append(onnx.helper.make_node("Identity", [name], [BORDER + name]))
        output = proto.graph.output.add()
        output.CopyFrom(values[name])
        output.name = BORDER + name
    onnx.save(proto, str(marked))
    options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    options.optimized_model_filepath = str(lowered)
    prefix = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{prefix}_file_name", "lowered.bin")
    options.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(_WEIGHT_BYTES))
    try:
        OrtSession(
            str(marked),
            options,
            providers=["CPUExecutionProvider"],
            # A segment would depend on the segment of an equal operator, which is not in the plan.
            disabled_optimizers=[MERGING] if apart else None,
        )
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime does not accept the model: {first_line(error)}; check it with "
            f"onnx.checker.check_model(path, full_check=True)"
        ) from error
    for leftover in (plain, marked, folder / "plain.bin"):
        leftover.unlink(missing_ok=True)
    opaque = any(why_opaque(v) for node in model.graph for v in node.outputs if v.name)
    if is_misinferred(model) and opaque:
        raise ModelError("shapes that depend on data, and others that ONNX Runtime infers wrong")
    _record_shapes(lowered, misinferred=is_misinferred(model))
    return lowered


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return options


def _record_shapes(lowered: Path, *, misinferred: bool) -> None:
    """Add the types and shapes that ONNX Runtime infers but does not save.

    For example those of blocked tensors, and of values in the body of an inlined function.

    Args:
        misinferred: ONNX Runtime infers other shapes than it computes: those of one run on zeros
            are used.
    """
    proto = onnx.load(str(lowered), load_external_data=False)
    typed = {v.name for v in (*proto.graph.value_info, *proto.graph.output)}
    model = ir.from_proto(hide_maps(proto))
    values = [v for node in model.graph for v in node.outputs if v.name]
    if not misinferred and typed.issuperset(v.name for v in values):
        return
    ir.external_data.set_base_dir(model.graph, lowered.parent)
    infer(model)
    if misinferred:
        compute_shapes(model, _zeros(model))
    infos = {
        v.name: ir.serde.serialize_value(v)
        for v in values
        if v.type is not None and (misinferred or v.name not in typed)
    }
    for declared in (proto.graph.value_info, proto.graph.output):
        for info in declared:
            info.CopyFrom(infos.pop(info.name, info))
    proto.graph.value_info.extend(infos.values())
    onnx.save(proto, str(lowered))


def _zeros(model: ir.Model) -> dict[str, Array]:
    inputs = ((v.name or "", v.shape, v.dtype) for v in model.graph.inputs)
    return {
        name: np.zeros(shape.numpy(), dtype.numpy())
        for name, shape, dtype in inputs
        if shape is not None and dtype is not None
    }
