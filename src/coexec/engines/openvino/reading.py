"""Convert a module to OpenVINO's form of a model without copying the weights.

OpenVINO's ONNX reader copies every initializer of a model in memory. Building such a model copies
them twice more: 9 s and 3 GB for 0.5 GB of weights. So large weights are declared as inputs. After
the operators are converted, each of these inputs becomes a constant on the caller's memory: this
takes 14 ms, and nothing is copied. The total size of the weights does not matter (protobuf's limit
is 2 GiB).
"""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from coexec.arrays import Array
from coexec.engines.openvino.library import core
from coexec.lowering.module import Module

_EMBEDDED_BYTES = 1 << 16
"""Weights up to this size are passed to the reader: axes, shapes and scales, whose values it may
need to convert an operator."""


class Read(NamedTuple):
    """A converted model, and the numbers of its inputs."""

    model: Any
    """An `openvino.Model`."""
    inputs: Mapping[str, int]
    """By name, the numbers of the inputs. Inputs that no operator reads are missing."""
    quantized: bool
    """Whether OpenVINO may compute with integers of 8 bits."""


def read(module: Module) -> Read:
    """Convert ``module``. Its weights have to live as long as models compiled from the result.

    Raises:
        RuntimeError: OpenVINO does not convert an operator.
    """
    proto = onnx.load_model_from_string(module.proto)
    large = _with_inputs_for_large_weights(proto, module.weights)
    model = core().read_model(proto.SerializeToString())
    origins = _origins(proto)
    _put_weights_in(model, large, origins)
    inputs = {_name(port, origins): number for number, port in enumerate(model.inputs)}
    _copy_inputs_to_outputs(model)
    quantized = any(
        op.get_type_name() == "FakeQuantize" or _widens_integers(op) for op in model.get_ops()
    )
    return Read(model, inputs, quantized)


def _widens_integers(op: Any) -> bool:
    """Whether an operator converts integers of 8 bits to floating-point numbers, as for weights
    that are stored as integers."""
    small = op.get_type_name() == "Convert" and op.input_value(0).get_element_type().size == 1
    return small and bool(op.output(0).get_element_type().is_real())


def _origins(proto: onnx.ModelProto) -> Mapping[str, str]:
    """By value, the first input of the node that computes it."""
    return {name: node.input[0] for node in proto.graph.node if node.input for name in node.output}


def _name(port: Any, origins: Mapping[str, str]) -> str:
    """The ONNX name of an input.

    OpenVINO gives an input the name of the last value with the same elements, for example of the
    output of a Dropout.
    """
    name: str = next(iter(port.get_names()))
    while name in origins:
        name = origins[name]
    return name


def _with_inputs_for_large_weights(
    proto: onnx.ModelProto, weights: Mapping[str, Array]
) -> dict[str, Array]:
    """Embed small external weights in ``proto``, and declare large ones as inputs.

    Returns the large weights by name.
    """
    large: dict[str, Array] = {}
    inline = []
    for initializer in proto.graph.initializer:
        array = weights.get(initializer.name)
        if array is None:
            inline.append(initializer)
        elif array.nbytes <= _EMBEDDED_BYTES:
            inline.append(onnx.numpy_helper.from_array(np.asarray(array), initializer.name))
        else:
            large[initializer.name] = array
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(
                    initializer.name, initializer.data_type, array.shape
                )
            )
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(inline)
    return large


def _put_weights_in(model: Any, weights: Mapping[str, Array], origins: Mapping[str, str]) -> None:
    """Replace the parameters that stand for ``weights`` by constants on the same memory."""
    from openvino import opset14

    for parameter in model.get_parameters():
        name = _name(parameter.output(0), origins)
        if name not in weights:
            continue
        constant = opset14.constant(writable(weights[name]), shared_memory=True)
        constant.set_friendly_name(name)
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(constant.output(0))
        model.remove_parameter(parameter)
    if weights:
        model.validate_nodes_and_infer_types()


def _copy_inputs_to_outputs(model: Any) -> None:
    """Insert an Identity between an input and an output that are the same value: OpenVINO would not
    write the output."""
    from openvino import opset16

    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            result.input(0).replace_source_output(opset16.identity(source).output(0))


def writable(array: Array) -> Array:
    """``array`` itself, or a writable view of its memory if it is read-only.

    OpenVINO shares memory only with writable arrays, although it does not write to constants and
    inputs. The caller keeps ``array`` alive.
    """
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.flags.writeable or not array.nbytes:
        return array
    memory = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    return np.frombuffer(memoryview(memory), array.dtype).reshape(array.shape)
