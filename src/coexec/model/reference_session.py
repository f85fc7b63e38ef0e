"""ONNX Runtime as its users call it: the reference for results and for the outputs of operators."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.arrays import Array
from coexec.model.shape_mismatch import UnfitError
from coexec.model.stored import LARGE_BYTES, detached
from coexec.model.types import show_maps
from coexec.model.values import FOREIGN, ort_value
from coexec.ort import FOLDER_OF_WEIGHTS, OpenSession, OrtSession, on_cpu, reason_of

_CONTENT_BYTES = 1 << 16
"""From this size on, the values of weights decide no shape and no fusion."""


def plain_session(
    model: str | onnx.ModelProto | ir.Model, threads: int = 0, *, optimised: bool = True
) -> OrtSession:
    """A session of ``model``, or of the file of that path, on ONNX Runtime. 0 threads: one for each
    core.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    options = _options(threads, optimised=optimised)
    if not isinstance(model, str):
        return own_session(model, options)
    with refusals():
        return _opened(model, {}, options)


def weighted_session(
    content: bytes, weights: Mapping[str, Array], threads: int = 0, *, optimised: bool = True
) -> OrtSession:
    """A session of a serialized model whose large weights are placeholders, with their values.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    options = _options(threads, optimised=optimised)
    with refusals():
        return _opened(content, _lend(weights, options), options)


def _options(threads: int, *, optimised: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def own_session(
    model: onnx.ModelProto | ir.Model,
    options: ort.SessionOptions,
    open_session: OpenSession = on_cpu,
) -> OrtSession:
    """A session of ``model`` on ONNX Runtime with options of the caller.

    Weights in files stay there, mapped by ONNX Runtime, if all files are in one folder. Other large
    weights are passed as arrays, which ONNX Runtime copies.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    with refusals():
        content, weights = own_content(model, options)
        return _opened(content, weights, options, open_session)


@contextmanager
def refusals() -> Iterator[None]:
    """Context in which any error means that ONNX Runtime does not run the model.

    Raises:
        UnfitError: with ONNX Runtime's reason.
    """
    try:
        yield
    except Exception as error:
        raise UnfitError("ONNX Runtime does not run the model", reason_of(error)) from None


def own_content(
    model: onnx.ModelProto | ir.Model, options: ort.SessionOptions
) -> tuple[bytes, Mapping[str, ort.OrtValue]]:
    """A model for ONNX Runtime, serialized without its large weights, which ``options`` have then.

    Returns:
        The model, and weights whose memory ONNX Runtime uses: keep them as long as the session.
    """
    if isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    if (folder := folder_of_weights(model)) is not None:
        options.add_session_config_entry(FOLDER_OF_WEIGHTS, folder)
    proto, weights = without_weights(model, in_files=folder is not None)
    return proto.SerializeToString(), _lend(weights, options)


def _lend(weights: Mapping[str, Array], options: ort.SessionOptions) -> Mapping[str, ort.OrtValue]:
    # ONNX Runtime needs aligned memory; a file may have the values at any offset.
    aligned = {n: np.require(array, requirements=["C", "A"]) for n, array in weights.items()}
    values = {name: ort_value(array) for name, array in aligned.items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    return values


def _opened(
    content: str | bytes,
    weights: Mapping[str, ort.OrtValue],
    options: ort.SessionOptions,
    open_session: OpenSession = on_cpu,
) -> OrtSession:
    session = open_session(content, options)
    session.borrowed_weights = weights  # the session uses their memory
    return session


def folder_of_weights(model: ir.Model) -> str | None:
    """The one folder that has all files of external weights; None if there is none."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    files = [os.path.realpath(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)]
    folders = {os.path.dirname(file) for file in files}
    return folders.pop() if len(folders) == 1 else None


def without_weights(
    model: ir.Model, *, in_files: bool = False
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with placeholders for its large weights, and the values of these weights.

    Args:
        in_files: external weights refer to their files instead, which are in one folder.
    """
    hollow = model.clone()
    weights: dict[str, Array] = {}
    for name, value in hollow.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            continue
        if tensor.nbytes < LARGE_BYTES and not _is_external(tensor):
            continue
        if in_files and isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.ExternalTensor(
                os.path.basename(os.path.realpath(tensor.path)),
                tensor.offset,
                tensor.length,
                tensor.dtype,
                shape=tensor.shape,
                name=name,
            )
            continue
        if is_plain(tensor.dtype):
            weights[name] = tensor.numpy()
            value.const_value = _external(tensor, name, "weights")
        elif _is_external(tensor):
            value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    proto = ir.to_proto(hollow)
    show_maps(proto)
    return proto, weights


def save_without_weights(model: ir.Model, folder: Path) -> Path:
    """Write ``model`` into ``folder`` and return its path.

    Large weights are zeros there, in a file without content, which takes no room on the disk.
    """
    hollow = model.clone()
    most_bytes = 0
    for name, value in hollow.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            continue
        if tensor.nbytes < _CONTENT_BYTES:
            value.const_value = detached(tensor)
            continue
        most_bytes = max(most_bytes, tensor.nbytes)
        value.const_value = _external(tensor, name, "zeros")
    with (folder / "zeros").open("wb") as zeros:
        zeros.truncate(most_bytes)
    proto = ir.to_proto(hollow)
    show_maps(proto)
    onnx.save(proto, str(folder / "model.onnx"))
    return folder / "model.onnx"


def _external(tensor: ir.TensorProtocol, name: str, location: str) -> ir.ExternalTensor:
    """A tensor of this type and shape at the begin of another file."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(location, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)


def _is_external(tensor: ir.TensorProtocol) -> bool:
    return isinstance(tensor, ir.ExternalTensor)


def is_plain(dtype: ir.DataType) -> bool:
    """Whether an element is a number of whole bytes: numpy's types, bfloat16 and the float8s."""
    if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return False
    return dtype.numpy().isbuiltin == 1 or dtype.numpy().name in FOREIGN
