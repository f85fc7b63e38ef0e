"""Engines that run generated kernels on one core, and runs of models as one program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coexec.arrays import aligned_bytes
from coexec.engines.base import OpenEngine
from coexec.engines.cpp.compiler import has_compiler
from coexec.engines.cpp.device import CppCores
from coexec.engines.detect import usable_cores
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.options import EngineOptions, parsed
from coexec.engines.registry import describe, load_engine
from coexec.graph.graph import Tensor
from coexec.lowering.module import Module
from coexec.model.model import Model

Array = np.ndarray[Any, Any]

BLOCK = ["auto"]
"""The engine's option ``block``; set by pytest's option."""
_GUARD = 4096


def cpp_name(cores: int = 1) -> str:
    """The name of a device that computes with the engine `cpp` on the last cores. Skips the test if
    there is no compiler, or if there are fewer cores."""
    usable = usable_cores()
    if not has_compiler() or len(usable) < cores:
        pytest.skip("there is no C++ compiler, or there are too few cores")
    return f"cpu:{','.join(map(str, usable[-cores:]))}/cpp"


def cpp_options(**options: str) -> EngineOptions:
    """The engine's options: the width of blocks, and others."""
    return {"cpp": {"block": BLOCK[0], **options}}


def opened_cpp(
    folder: Path | None, arch: Architecture | None = None, cores: int = 1, **options: str
) -> CppCores:
    """The engine `cpp` on some cores, with kernels for them or for ``arch``."""
    given = cpp_options(**options)
    spec = describe(cpp_name(cores), given)
    return CppCores(spec, spec.engine, parsed(load_engine("cpp"), given), folder, arch)


def compute(engine: OpenEngine, model: Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model. Fails if the engine refuses one of its tasks, or if kernels write
    outside of an output in the host's memory."""
    graph = model.graph
    assert {engine.why_not(task, graph.tensors) for task in graph.tasks} == {None}
    inputs, outputs = ([graph.tensors[n] for n in names] for names in (graph.inputs, graph.outputs))
    proto = ir.to_proto(model.source).SerializeToString()
    program = engine.compile(Module(proto, {}, tuple(inputs), tuple(outputs)))
    around = {t.name: _Guarded(t) for t in outputs} if isinstance(engine, CppCores) else {}
    made = {t.name: around[t.name].array if around else engine.allocate(t) for t in outputs}
    program.bind({t.name: engine.upload(feeds[t.name]) for t in inputs}, made).run()
    assert [name for name, guarded in around.items() if not guarded.is_intact] == []
    return [np.array(engine.download(made[t.name])) for t in outputs]


class _Guarded:
    """Memory for a tensor, between bytes that must not change."""

    def __init__(self, tensor: Tensor) -> None:
        self._bytes = aligned_bytes(tensor.size_bytes + 2 * _GUARD)
        self._bytes[...] = 0xA5
        flat = self._bytes[_GUARD : _GUARD + tensor.size_bytes]
        self.array = flat.view(tensor.dtype).reshape(tensor.shape)

    @property
    def is_intact(self) -> bool:
        guards = self._bytes[:_GUARD], self._bytes[self.array.nbytes + _GUARD :]
        return all((guard == 0xA5).all() for guard in guards)
