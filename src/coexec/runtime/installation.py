"""A compiled plan on open devices: its programs, and where each value lies."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from coexec.compiling.compiled import CompiledPlan
from coexec.engines.base import Device, Program
from coexec.errors import DeviceError
from coexec.frontend.module import Module
from coexec.ir.graph import Tensor
from coexec.plans.schedule import Segment

__all__ = ["Installation"]

_SMALL_BYTES = 2**15
"""Of outputs: below, a copy is quicker than new memory in each run."""


class Installation:
    """The part of an executor that all runs share and no run changes."""

    def __init__(
        self, compiled: CompiledPlan, devices: Sequence[Device], tensor_caching: bool
    ) -> None:
        """Compile the modules.

        Raises:
            DeviceError: a device of the plan is missing, or cannot compile its part.
        """
        self.compiled = compiled
        self.devices = {d.spec.name: d for d in devices}
        self.tensor_caching = tensor_caching
        for segment in compiled.segments:
            if segment.device not in self.devices:
                raise DeviceError(
                    f"the plan uses {segment.device!r}, which is not open; open devices: "
                    f"{', '.join(self.devices)}"
                )
        self.home = {t.name: self.devices[s.device] for s, m in self.parts() for t in m.outputs}
        """By value that a segment computes: the device that computes it."""
        self.programs: list[Program | None] = [
            self.devices[s.device].compile(m) if m.outputs else None for s, m in self.parts()
        ]

    def parts(self) -> Iterator[tuple[Segment, Module]]:
        """The segments with their modules."""
        return zip(self.compiled.segments, self.compiled.modules, strict=True)

    @cached_property
    def used(self) -> tuple[str, ...]:
        """Names of the devices that have something to do."""
        return tuple(dict.fromkeys(s.device for s in self.compiled.segments))

    @cached_property
    def returned(self) -> tuple[Tensor, ...]:
        """Outputs that a segment writes straight into the caller's array.

        Large ones only: for small ones, making and binding new memory in each run takes longer
        than a copy.
        """
        whole = {t.name for t in self.compiled.outputs} - self.compiled.parts.keys()
        return tuple(
            t
            for _, module in self.parts()
            for t in module.outputs
            if t.name in whole
            and t.size_bytes >= _SMALL_BYTES
            and self.home[t.name].spec.memory == "host"
        )

    @cached_property
    def crossing(self) -> Mapping[int, Sequence[tuple[str, str]]]:
        """By segment, the values that move into another memory, each with its first reader there.

        Empty without tensor caching: each reader fetches what it needs then.
        """
        if not self.tensor_caching:
            return {}
        maker = {t.name: s.index for s, m in self.parts() for t in m.outputs}
        first: dict[tuple[str, str], str] = {}
        for segment, module in self.parts():
            memory = self.devices[segment.device].spec.memory
            for tensor in module.inputs:
                if tensor.name in maker and self.home[tensor.name].spec.memory != memory:
                    first.setdefault((tensor.name, memory), segment.device)
        found: dict[int, list[tuple[str, str]]] = {}
        for (value, _), device in first.items():
            found.setdefault(maker[value], []).append((value, device))
        return found
