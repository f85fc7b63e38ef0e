"""OpenCL on CPU cores, with kernels for cores or for a GPU, and runs of models as one program."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coexec.engines.base import OpenEngine
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.opencl import compiling, device
from coexec.engines.opencl.binaries import OPTIONS
from coexec.engines.opencl.device import OpenClDevice
from coexec.engines.options import parsed
from coexec.engines.registry import describe, load_engine
from coexec.lowering.module import Module
from coexec.model.model import Model
from tests.helpers.needs_opencl import opencl_found, opencl_name, opencl_options

Array = np.ndarray[Any, Any]


@contextmanager
def unoptimised() -> Iterator[None]:
    """Make devices that are opened in the block compile without optimisation, and without helper
    processes, whose start takes longer than such a compilation. Results of kernels are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "OPTIONS", f"{OPTIONS} -cl-opt-disable")
        patch.setattr(compiling, "_helpers", lambda *_: 0)
        yield


def opened(folder: Path | None, arch: Architecture | None = None, **options: str) -> OpenClDevice:
    """OpenCL on one core with separate memory, as a GPU has, and kernels for the core or for
    ``arch``. Skips the test if no runtime works.

    Kernels for ``arch`` are `unoptimised`: PoCL takes seconds to unroll a GPU's work groups on a
    core, and the speed of these kernels does not matter.
    """
    all_options = opencl_options(memory="own", **options)
    spec = describe(opencl_name(), all_options)
    chosen = parsed(load_engine("opencl"), all_options)
    with nullcontext() if arch is None else unoptimised():
        return OpenClDevice(spec, spec.engine, opencl_found(), chosen, folder, arch)


def on_cpu(binaries: Path, *, as_gpu: bool = False) -> OpenClDevice:
    """OpenCL on one core. With ``as_gpu`` it has blocks of four channels, and work items share
    rows."""
    gpu = Architecture("nvidia", 4, compute_units=16)
    return opened(binaries, gpu if as_gpu else None)


def compute(engine: OpenEngine, model: Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model. Fails if the engine does not accept all its tasks."""
    graph = model.graph
    assert {engine.why_not(task, graph.tensors) for task in graph.tasks} == {None}
    inputs, outputs = ([graph.tensors[n] for n in names] for names in (graph.inputs, graph.outputs))
    proto = ir.to_proto(model.source).SerializeToString()
    program = engine.compile(Module(proto, {}, tuple(inputs), tuple(outputs)))
    made = {t.name: engine.allocate(t) for t in outputs}
    program.bind({t.name: engine.upload(feeds[t.name]) for t in inputs}, made).run()
    return [np.array(engine.download(made[t.name])) for t in outputs]
