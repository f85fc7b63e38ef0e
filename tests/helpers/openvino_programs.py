"""Devices of the OpenVINO engine, and runs of models on them as one program.

Importing this module skips the tests of the importing module if OpenVINO is not installed. OpenVINO
itself is not imported: the engine has to load it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coexec.engines.base import OpenEngine
from coexec.engines.openvino.device import OpenVinoDevice
from coexec.engines.openvino.library import installed_version
from coexec.engines.openvino.options import OpenVinoOptions
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module
from coexec.model.model import Model

if installed_version() is None:
    pytest.skip("OpenVINO is not installed: pip install openvino", allow_module_level=True)

Array = np.ndarray[Any, Any]


def on_cores(*cores: int, precision: str = "float32") -> OpenVinoDevice:
    """A device on these cores."""
    name = "cpu:" + ",".join(map(str, cores))
    return opened(Device(name, "cpu", cores=cores), precision)


def opened(
    device: Device, precision: Any = "float32", folder: Path | None = None, plugin: str = "CPU"
) -> OpenVinoDevice:
    """An open OpenVINO engine on a processor."""
    info = EngineInfo("openvino", f"openvino {installed_version()}", precision=precision)
    device = replace(device, engine=info)
    return OpenVinoDevice(device, info, OpenVinoOptions(precision), folder, plugin)


def module_around(model: Model) -> Module:
    """The whole model, with its weights, as one module."""
    graph = model.graph
    inputs, outputs = (
        tuple(graph.tensors[name] for name in names) for names in (graph.inputs, graph.outputs)
    )
    return Module(ir.to_proto(model.source).SerializeToString(), {}, inputs, outputs)


def compute(device: OpenEngine, module: Module, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name. Their memory is filled first, with a value that they do not have by
    chance."""
    outputs = {tensor.name: device.allocate(tensor) for tensor in module.outputs}
    for array in outputs.values():
        array.fill(77)
    before = {name: array.copy() for name, array in feeds.items()}
    device.compile(module).bind(feeds, outputs).run()
    for name, array in feeds.items():
        assert np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f"), name
    return outputs
