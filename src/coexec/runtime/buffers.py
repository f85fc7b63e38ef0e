"""The memory that one run writes: device tensors, and the programs bound to them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from coexec.engines.base import Bound, OpenEngine
from coexec.plan.schedule import Segment
from coexec.runtime.allocation import allocated
from coexec.runtime.launching import SegmentsInFlight, wait_rules
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.recorder import Recorder
from coexec.runtime.transfers import Landed, Transfers

__all__ = ["Buffers"]


class _Changing(NamedTuple):
    """Inputs and outputs of a bound segment that need work in each run."""

    engine: OpenEngine
    inputs: tuple[tuple[str, bool], ...]
    """Inputs that are moved or put together, each with whether its tensor changes in each run."""
    outputs: tuple[str, ...]
    """Outputs whose tensor changes in each run."""


class Buffers:
    """Device tensors for all values that segments pass on, and the programs bound to them.

    One run at a time owns them. An interrupted run does not return them, because a binding may be
    incomplete and a device may still write: the next run gets new ones.
    """

    def __init__(self, installation: LoadedPlan) -> None:
        self._installed = installation
        self._allocation = allocated(installation)
        self._rules = wait_rules(installation, self._allocation)
        self._landed: Landed = {}
        self._bindings: dict[int, Bound] = {}
        self._changing: dict[int, _Changing] = {}
        """By index of a bound segment."""

    def transfers(self, feeds: Mapping[str, Any], recorder: Recorder) -> Transfers:
        """The values of a new run."""
        return Transfers(self._installed, self._allocation, self._landed, feeds, recorder)

    def in_flight(self) -> SegmentsInFlight:
        """An empty record of the segments that a new run launches."""
        return SegmentsInFlight(self._rules)

    def bound(self, segment: Segment, values: Transfers) -> Bound | None:
        """The segment's program bound to its tensors; None if there is nothing to compute."""
        index = segment.index
        bound = self._bindings.get(index)
        if bound is not None:
            changing = self._changing[index]
            for name, elsewhere in changing.inputs:
                tensor = values.input(name, changing.engine, index)
                if elsewhere:
                    bound.set_input(name, tensor)
            for name in changing.outputs:
                bound.set_output(name, values.returned[name])
            return bound
        program = self._installed.programs[index]
        if program is None:
            return None
        engine = self._installed.engines[segment.place]
        names = self._installed.inputs(index)
        inputs = {name: values.input(name, engine, index) for name in names}
        module = self._installed.compiled.modules[index]
        outputs = {t.name: values.tensor(t.name) for t in module.outputs}
        self._changing[index] = self._what_changes(index, engine, names, outputs)
        self._bindings[index] = bound = program.bind(inputs, outputs)
        return bound

    def _what_changes(
        self, index: int, engine: OpenEngine, inputs: Iterable[str], outputs: Iterable[str]
    ) -> _Changing:
        allocation = self._allocation
        moved = (n for n in inputs if not self._stays(n, engine))
        return _Changing(
            engine,
            tuple(
                (n, (index, n) not in allocation.gathers)
                for n in moved
                if (index, n) not in allocation.in_place
            ),
            tuple(name for name in outputs if name not in allocation.static),
        )

    def _stays(self, value: str, engine: OpenEngine) -> bool:
        """Whether ``engine`` reads a value from the same tensor in every run."""
        if value not in self._allocation.static:
            return False
        return self._installed.home[value].memory == engine.memory
