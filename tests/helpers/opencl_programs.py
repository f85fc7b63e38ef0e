"""OpenCL on CPU cores as itself and as a GPU, and models run on it as one program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from needs_opencl import opencl_name, opencl_number

from coexec.engines.base import Device, Options
from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.device import OpenClDevice
from coexec.engines.opencl.platforms import devices
from coexec.engines.registry import describe
from coexec.frontend.model import Model
from coexec.frontend.module import Module

Array = np.ndarray[Any, Any]


def on_cpu(binaries: Path, *, as_gpu: bool = False) -> Device:
    """A device on one core. As a GPU it has blocks of four channels, and work items share rows.

    Skips the test where none works.
    """
    options = Options(binaries=binaries)
    spec = describe(opencl_name(), options)
    gpu = Architecture("nvidia", 4, compute_units=16)
    return OpenClDevice(spec, devices()[opencl_number()], options, gpu if as_gpu else None)


def compute(device: Device, model: Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model that the device must accept."""
    graph = model.graph
    assert {device.why_not(task, graph.tensors) for task in graph.tasks} == {None}
    inputs, outputs = ([graph.tensors[n] for n in names] for names in (graph.inputs, graph.outputs))
    proto = ir.to_proto(model.source).SerializeToString()
    program = device.compile(Module(proto, {}, tuple(inputs), tuple(outputs)))
    made = {t.name: device.allocate(t) for t in outputs}
    program.bind({t.name: device.upload(feeds[t.name]) for t in inputs}, made).run()
    return [np.array(device.download(made[t.name])) for t in outputs]
