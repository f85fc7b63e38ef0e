"""Devices of the OpenVINO engine, and models run on them as one program.

Importing this skips the tests of a module where OpenVINO is not installed. OpenVINO itself is not
imported: the engine has to load it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coexec.engines.base import Device
from coexec.engines.openvino.device import OpenVinoDevice, OpenVinoOptions
from coexec.engines.openvino.library import installed_version
from coexec.frontend.model import Model
from coexec.frontend.module import Module
from coexec.system import hardware

if installed_version() is None:
    pytest.skip(
        "OpenVINO is not installed: pip install 'coexec[openvino]'", allow_module_level=True
    )

Array = np.ndarray[Any, Any]


def on_cores(*cores: int, precision: str = "fp32") -> OpenVinoDevice:
    """A device on these cores."""
    name = "cpu:" + ",".join(map(str, cores))
    spec = hardware.Device(name, "cpu", cores, engine=f"openvino {installed_version()}")
    return OpenVinoDevice(spec, OpenVinoOptions(precision))


def module_around(model: Model) -> Module:
    """The whole model as one module, its weights inside."""
    graph = model.graph
    inputs, outputs = (
        tuple(graph.tensors[name] for name in names) for names in (graph.inputs, graph.outputs)
    )
    return Module(ir.to_proto(model.source).SerializeToString(), {}, inputs, outputs)


def compute(device: Device, module: Module, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name. Memory for them is filled with what they cannot be by chance."""
    outputs = {tensor.name: device.allocate(tensor) for tensor in module.outputs}
    for array in outputs.values():
        array.fill(77)
    before = {name: array.copy() for name, array in feeds.items()}
    device.compile(module).bind(feeds, outputs).run()
    for name, array in feeds.items():
        assert np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f"), name
    return outputs
