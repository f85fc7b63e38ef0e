"""The memory that one run writes: device tensors, and the programs bound to them."""

from collections.abc import Mapping
from typing import Any

from coexec.engines.base import Bound, OpenEngine
from coexec.frontend.module import numpy_type
from coexec.ir.graph import Tensor
from coexec.memory.reuse import Lifetime, share
from coexec.plans.schedule import Segment, ended_before
from coexec.runtime.installation import Installation
from coexec.runtime.recorder import Recorder
from coexec.runtime.transfers import Landed, Transfers
from coexec.system.hardware import MAIN, Memory

__all__ = ["Buffers"]


class Buffers:
    """Device tensors for all values that segments hand on, and the bindings to them.

    One run at a time owns them. An interrupted run does not return them, because a binding may be
    incomplete and a device may still write: the next run gets new ones.
    """

    def __init__(self, installation: Installation) -> None:
        self._installed = installation
        self._static, self._gathers = _allocate(installation)
        self._landed: Landed = {}
        self._bindings: dict[int, Bound] = {}
        self._changing: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        """By segment, inputs and outputs that lie elsewhere in each run."""

    def transfers(self, feeds: Mapping[str, Any], recorder: Recorder) -> Transfers:
        """The values of a new run."""
        return Transfers(
            self._installed, self._static, self._landed, feeds, recorder, self._gathers
        )

    def bound(self, segment: Segment, values: Transfers) -> Bound | None:
        """The segment's program with its tensors; None if there is nothing to compute."""
        index = segment.index
        program = self._installed.programs[index]
        if program is None:
            return None
        engine = self._installed.engines[segment.place]
        bound = self._bindings.get(index)
        if bound is not None:
            changing_inputs, changing_outputs = self._changing[index]
            for name in changing_inputs:
                bound.set_input(name, values.input(name, engine, index))
            for name in changing_outputs:
                bound.set_output(name, values.returned[name])
            return bound
        names = self._installed.inputs(index)
        inputs = {name: values.input(name, engine, index) for name in names}
        module = self._installed.compiled.modules[index]
        outputs = {t.name: values.tensor(t.name) for t in module.outputs}
        self._changing[index] = (
            tuple(n for n in names if not self._stays(n, engine)),
            tuple(n for n in outputs if n not in self._static),
        )
        self._bindings[index] = bound = program.bind(inputs, outputs)
        return bound

    def _stays(self, value: str, engine: OpenEngine) -> bool:
        """Whether ``engine`` finds a value in the same tensor in every run."""
        if value not in self._static:
            return False
        return self._installed.home[value].memory == engine.memory


def _allocate(installed: Installation) -> tuple[dict[str, Any], dict[tuple[int, str], Any]]:
    """Device tensors by value, and those that segments put together, by segment and value.

    In host memory, tensors with disjoint lifetimes share buffers.
    """
    returned = {t.name for t in installed.returned}
    kept = {value for parts in installed.compiled.parts.values() for value, _ in parts}
    kept.update(t.name for t in installed.compiled.outputs)
    made = {t.name: (s.index, t) for s, m in installed.parts() for t in m.outputs}
    groups: dict[Memory, list[str]] = {}
    for name in made:
        if name not in returned:
            groups.setdefault(installed.home[name].memory, []).append(name)
    leaving = kept | {n for values in installed.crossing.values() for n, _ in values}
    leaving |= {s.value for g in installed.compiled.gathers.values() for s in g.boxes}
    static: dict[str, Any] = {}
    for memory, names in groups.items():
        if memory.name == MAIN:
            static |= _shared(installed, names, kept, made)
        else:  # such engines lay their tensors out themselves
            static |= {n: installed.home[n].allocate(made[n][1], n in leaving) for n in names}
    gathers = {
        (segment.index, tensor.name): installed.engines[segment.place].allocate(tensor)
        for segment, module in installed.parts()
        for tensor in module.inputs
        if tensor.name in installed.compiled.gathers
    }
    return static, gathers


def _shared(
    installed: Installation,
    names: list[str],
    kept: set[str],
    made: Mapping[str, tuple[int, Tensor]],
) -> dict[str, Any]:
    segments = installed.compiled.segments
    # The caller reads behind the last segment: nothing has ended before it.
    readers = {name: [len(segments)] if name in kept else [] for name in made}
    for segment, module in installed.parts():
        for name in installed.sources(module):
            if name in readers:
                readers[name].append(segment.index)
    lives = [Lifetime(made[n][1].size_bytes, made[n][0], tuple(readers[n])) for n in names]
    buffer_of, sizes = share(lives, ended_before(segments))
    allocate = installed.home[names[0]].allocate
    buffers = [allocate(Tensor("", (size,), "uint8")) for size in sizes]
    found: dict[str, Any] = {}
    for name, buffer in zip(names, buffer_of, strict=True):
        tensor = made[name][1]
        flat = buffers[buffer][: tensor.size_bytes]
        found[name] = flat.view(numpy_type(tensor.dtype)).reshape(tensor.shape)
    return found
