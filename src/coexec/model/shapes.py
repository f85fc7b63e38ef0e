"""Types and shapes of all values: those that operators compute, not those that the file declares.

ONNX Runtime infers them when it opens a session. Where it infers no shape, the shape depends on
data, and a declared one was true for one run at best. For some sizes of pools, Resize, Slice and
others it infers another shape than it computes, so a run with made-up inputs corrects them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx_ir as ir
import onnxruntime as ort

from coexec.cache import private_folder
from coexec.errors import ModelError, first_line
from coexec.graph.graph import Graph
from coexec.model.model import forget_weights
from coexec.model.opaque import live
from coexec.model.reference_session import own_session, save_without_weights
from coexec.model.types import type_proto
from coexec.model.values import run_session
from coexec.ort import OrtSession, reason_of

_MISINFERRED = "coexec.misinferred"
"""Key in the metadata of models for which ONNX Runtime infers another shape than it computes."""
_SHAPE = "coexec.shape:"
_SHAPE_VERSION = 21
"""Version of the standard operators for models that have none."""
_BY_INFERENCE = "ConstantFolding;ShapeInputMerge"
"""ONNX Runtime's optimizers that replace Shape operators by what it infers."""


def infer(model: ir.Model) -> None:
    """Set the types and shapes of the values of nodes that the outputs need, in place, by ONNX
    Runtime's inference.

    Raises:
        ModelError: ONNX Runtime does not accept the model.
    """
    for node in model.graph.all_nodes():
        for value in node.outputs:
            value.shape = None
    nodes, _ = live(model)
    values = {v.name: v for node in nodes for v in node.outputs if v.name}
    scalars = []
    for output in _described(model, values.values()) if values else ():
        proto, value = type_proto(output.type), values[output.name]
        if proto is None or "map(" in output.type:  # onnx_ir has no maps
            continue
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
        if isinstance(value.type, ir.TensorType) and output.shape:
            value.shape = ir.Shape(output.shape)
        elif isinstance(value.type, ir.TensorType):
            scalars.append(value)
    # ONNX Runtime describes a scalar and a tensor of unknown rank alike; their shapes differ.
    for output in _described(model, scalars, ranks=True) if scalars else ():
        if output.shape == [0]:
            values[output.name.removeprefix(_SHAPE)].shape = ir.Shape([])


def _described(model: ir.Model, values: Iterable[ir.Value], *, ranks: bool = False) -> list[Any]:
    """ONNX Runtime's descriptions of values; or of their shapes, whose size is the rank."""
    probe = model.clone()
    wanted = {value.name for value in values}
    probe.graph.outputs.clear()
    for node in probe.graph:
        node.name = None  # two nodes may have one name before the names are fixed
    for value in [v for node in probe.graph for v in node.outputs if v.name in wanted]:
        value.shape = None  # ONNX Runtime completes outputs without a shape
        probe.graph.outputs.append(_shape_of(probe, value) if ranks else value)
    options = _options("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        with private_folder() as folder:
            path = str(save_without_weights(probe, folder))
            session = OrtSession(path, options, providers=["CPUExecutionProvider"])
            return list(session.get_outputs())
    except OSError:  # no disk can be written; with its weights, the model is in memory
        return list(own_session(probe, options).get_outputs())
    except Exception as error:
        raise ModelError(reason_of(error)) from error
    finally:
        forget_weights(probe)


def _shape_of(model: ir.Model, value: ir.Value) -> ir.Value:
    """The output of a new Shape operator behind ``value``."""
    model.opset_imports.setdefault("", _SHAPE_VERSION)
    node = ir.node("Shape", [value])
    model.graph.append(node)
    result = node.outputs[0]
    result.name, result.type = f"{_SHAPE}{value.name}", ir.TensorType(ir.DataType.INT64)
    return result


def _options(key: str, entry: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    options.add_session_config_entry(key, entry)
    return options


class UncorrectedError(ModelError):
    """ONNX Runtime infers a wrong shape, and no run corrects it."""


def corrected_run(
    model: ir.Model, graph: Graph, feeds: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Run ``model`` on ONNX Runtime, and correct the shapes of its values, in place.

    Args:
        graph: the tasks of the model. Only shapes between tasks are compared at first, so that ONNX
            Runtime fuses the operators of a task as it does elsewhere.

    Returns:
        The outputs by name; and whether shapes were wrong, so that the graph has to be made again.

    Raises:
        UncorrectedError: a shape is wrong, and cannot be corrected.
        Exception: any error of ONNX Runtime, for example since the inputs do not suit the model.
    """
    values = {v.name: v for node in model.graph for v in node.outputs if v.name}
    between = {name for task in graph.tasks for name in task.outputs}
    outputs, shapes = _run(model, between, feeds)
    if all(values[name].shape == shape for name, shape in shapes.items()):
        return outputs, False
    try:
        compute_shapes(model, feeds)
    except Exception as error:
        raise UncorrectedError(
            f"ONNX Runtime infers a wrong shape, and the run that would correct it failed "
            f"({first_line(error)})"
        ) from error
    model.metadata_props[_MISINFERRED] = "1"
    return outputs, True


def compute_shapes(model: ir.Model, feeds: Mapping[str, Any]) -> None:
    """Replace the inferred shapes of ``model`` that do not depend on data by those of a run.

    Raises:
        Exception: any error of ONNX Runtime.
    """
    values = {v.name: v for node in model.graph for v in node.outputs if v.name}
    _, shapes = _run(model, values, feeds, optimised=False)
    for name, shape in shapes.items():
        values[name].shape = ir.Shape(shape)


def _run(
    model: ir.Model, names: Collection[str], feeds: Mapping[str, Any], *, optimised: bool = True
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The outputs of the model, and the shapes of the tensors ``names`` that do not depend on
    data."""
    probe = model.clone()
    outputs = [value.name or "" for value in probe.graph.outputs]
    tensors = [v for node in probe.graph for v in node.outputs if v.name in names and _is_static(v)]
    probe.graph.outputs.extend(_shape_of(probe, value) for value in tensors)
    options = _options("optimization.disable_specified_optimizers", _BY_INFERENCE)
    # A Shape runs as soon as it can; else its input stays in memory until the end. In blocked
    # layouts, an operator that has no priority would be between the two.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_EXTENDED if optimised else level.ORT_DISABLE_ALL
    )
    session = own_session(probe, options)
    forget_weights(probe)
    results = run_session(session, [v.name or "" for v in probe.graph.outputs], feeds)
    shapes = (tuple(map(int, shape)) for shape in results[len(outputs) :])
    by_name = zip((value.name or "" for value in tensors), shapes, strict=True)
    return dict(zip(outputs, results, strict=False)), dict(by_name)


def is_misinferred(model: ir.Model) -> bool:
    """Whether ONNX Runtime infers another shape for a value of ``model`` than it computes."""
    return _MISINFERRED in model.metadata_props


def contradictions(original: ir.Model, model: ir.Model) -> list[str]:
    """The shapes that ``original`` declares and that differ from those in ``model``, as texts."""
    shapes = {v.name: v.shape for node in model.graph for v in node.outputs}
    declared = ((v, shapes.get(v.name)) for node in original.graph for v in node.outputs)
    return [
        f"{value.name!r} as {_text(value.shape)} where it has {_text(shape)}"
        for value, shape in declared
        if shape is not None and value.shape is not None and _contradict(shape, value.shape)
    ]


def _contradict(shape: ir.Shape, declared: ir.Shape) -> bool:
    return len(shape) != len(declared) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(shape, declared, strict=True)
    )


def _text(shape: ir.Shape) -> str:
    return "[" + ", ".join(str(d) for d in shape) + "]"


def _is_static(value: ir.Value) -> bool:
    """Whether it has a shape of numbers, and a type that Shape takes: none of half a byte."""
    if not isinstance(value.type, ir.TensorType) or value.shape is None:
        return False
    dtype = value.type.dtype
    return value.shape.is_static() and (dtype == ir.DataType.STRING or dtype.bitwidth >= 8)
