"""Lower a model with ONNX Runtime's own optimizer, once, before it is cut into segments.

If each segment were optimised separately, tensors would be converted between NCHW and the blocked
layout of the convolution kernels at each border, and pools and element-wise operators at the start
of a segment would stay in the slow layout. That took 20 to 50 % of the time of the measured models.
If the model is cut after lowering, segments pass blocked tensors on, together take as long as the
whole model, and are created in a fraction of the time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.engines.onnxruntime.alignment import align, block_of
from coexec.errors import ModelError, first_line
from coexec.lowering.lowered_model import BORDER
from coexec.model.nondeterministic import MERGING, random_nodes
from coexec.model.reference_session import value_info
from coexec.model.shapes import is_misinferred
from coexec.model.tensors import why_opaque
from coexec.model.types import show_maps
from coexec.ort import OrtSession

__all__ = ["lower"]

_SHAPE = "shape of "
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
    if is_misinferred(model):
        if any(why_opaque(v) for node in model.graph for v in node.outputs if v.name):
            raise ModelError(
                "shapes that depend on data, and others that ONNX Runtime infers wrong"
            )
        _record_shapes(lowered, _computed)
    else:
        _record_shapes(lowered, _inferred)
    return lowered


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    return options


def _record_shapes(
    lowered: Path, shapes_of: Callable[[onnx.ModelProto, Path], list[onnx.ValueInfoProto]]
) -> None:
    """Add the types and shapes that ONNX Runtime infers but does not save.

    For example those of blocked tensors, and of values in the body of an inlined function.

    Args:
        shapes_of: returns types and shapes of values of a model; the path is for a temporary file.
    """
    proto = onnx.load(str(lowered), load_external_data=False)
    path = lowered.with_name("probe.onnx")
    infos = {v.name: v for v in shapes_of(proto, path)}
    path.unlink(missing_ok=True)
    for declared in (proto.graph.value_info, proto.graph.output):
        for info in declared:
            info.CopyFrom(infos.pop(info.name, info))
    proto.graph.value_info.extend(infos.values())
    onnx.save(proto, str(lowered))


def _inferred(proto: onnx.ModelProto, path: Path) -> list[onnx.ValueInfoProto]:
    """Types and shapes that ONNX Runtime infers for the values without a type in ``proto``."""
    graph = proto.graph
    typed = {v.name for v in (*graph.value_info, *graph.output)}
    untyped = [n for node in graph.node for n in node.output if n and n not in typed]
    return _asked(proto, untyped, path) if untyped else []


def _asked(proto: onnx.ModelProto, names: list[str], path: Path) -> list[onnx.ValueInfoProto]:
    # Types and shapes that ONNX Runtime infers for the values ``names``.
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    del probe.graph.output[:]
    # ONNX Runtime completes outputs without a type.
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = _opened(probe, path)
    infos = (value_info(output) for output in session.get_outputs())
    return [info for info in infos if info is not None]


def _computed(proto: onnx.ModelProto, path: Path) -> list[onnx.ValueInfoProto]:
    """The shapes of all values as computed in one run on zeros.

    For models in which ONNX Runtime infers a shape that differs from the computed one.
    """
    infos = _asked(proto, [n for node in proto.graph.node for n in node.output if n], path)
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    del probe.graph.output[:], probe.graph.value_info[:]
    for info in infos:
        probe.graph.node.append(onnx.helper.make_node("Shape", [info.name], [_SHAPE + info.name]))
        probe.graph.output.append(onnx.ValueInfoProto(name=_SHAPE + info.name))
    session = _opened(probe, path)
    feeds = {
        v.name: np.zeros(
            [d.dim_value for d in v.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type),
        )
        for v in probe.graph.input
    }
    shapes = session.run(None, feeds)
    return [
        onnx.helper.make_tensor_value_info(
            info.name, info.type.tensor_type.elem_type, [int(d) for d in shape]
        )
        for info, shape in zip(infos, shapes, strict=True)
    ]


def _opened(probe: onnx.ModelProto, path: Path) -> OrtSession:
    onnx.save(probe, str(path))
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    return OrtSession(str(path), options, providers=["CPUExecutionProvider"])
