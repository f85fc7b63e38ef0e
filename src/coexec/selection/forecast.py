"""Expected seconds of configurations, before anything is measured or planned for them.

The seconds of a task on a device are those that the store or a trained predictor has for these
cores; otherwise those of other numbers of cores, scaled by Amdahl's law (`costs.threads`);
otherwise an estimate from computation and moved bytes. From them follows the time of a plan without
making one: `makespan_s`. That takes milliseconds, so that all configurations can be compared, and
only the best ones are profiled.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from pathlib import Path

from coexec.costs.base import TrainedPredictor
from coexec.costs.estimated import estimated_s
from coexec.costs.threads import on_cores
from coexec.engines.registry import open_device
from coexec.errors import DeviceError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Device
from coexec.planners.methods.splitting.shares import axis_of
from coexec.profiling.coverage import known_seconds
from coexec.profiling.engines import stored_handover_s
from coexec.profiling.store import ProfileStore
from coexec.profiling.trained import trained_predictor
from coexec.selection.configurations import Configuration
from coexec.settings import Mode, Waiting

_HANDOVER_S = 60e-6
"""Seconds of a handover that was never measured: those between two threads of Python."""
_EXCHANGE = 1 / 3
"""Handovers for each divided task: planner `codl` chains tasks, and only the ends of a chain
exchange data."""
_ROUND_HZ = 3e9
"""Frequency of the cores of `costs.estimated`."""
_LEAST_S = 1e-9
"""Lower bound for the seconds of a task, so that rates are finite."""


def makespan_s(
    graph: Graph, rows: Sequence[Sequence[float]], handover_s: float, divided: Collection[str] = ()
) -> float:
    """Seconds of the model on devices that compute at once, without a plan.

    The shorter of two times. Whole tasks in parallel: the longest path, with each task on its
    fastest device and a handover before each task with several predecessors, or the work divided by
    all devices if that takes longer. Or one task after the other: all devices compute it in
    proportion to their speed, or the fastest one alone if that is faster. A plan rarely reaches
    either time, the less so the more devices there are.

    Args:
        rows: by device, the seconds of each task in topological order; none is 0.
        handover_s: seconds from the end of a segment to the start of one on another device.
        divided: names of the tasks that a planner may divide.
    """
    alone_s = [min(each_s) for each_s in zip(*rows, strict=True)]
    if len(rows) == 1:
        return math.fsum(alone_s)
    shared_s = [1 / math.fsum(1 / s for s in each_s) for each_s in zip(*rows, strict=True)]
    parallel_s = max(math.fsum(shared_s), _longest_path_s(graph, alone_s, handover_s))
    in_turn_s = math.fsum(
        min(alone, shared + _EXCHANGE * handover_s) if task.name in divided else alone
        for task, alone, shared in zip(graph.tasks, alone_s, shared_s, strict=True)
    )
    return min(parallel_s, in_turn_s)


def _longest_path_s(graph: Graph, tasks_s: Iterable[float], handover_s: float) -> float:
    ends_s: dict[str, float] = {}
    for task, seconds in zip(graph.tasks, tasks_s, strict=True):
        before = graph.predecessors[task.name]
        ready_s = max((ends_s[earlier.name] for earlier in before), default=0.0)
        ends_s[task.name] = ready_s + seconds + (handover_s if len(before) > 1 else 0.0)
    return max(ends_s.values(), default=0.0)


def divisible(graph: Graph) -> frozenset[str]:
    """Names of the tasks that can be divided by rows or channels."""
    return frozenset(
        task.name
        for task in graph.tasks
        if not task.opaque
        and (axis_of(graph, task, "H") is not None or axis_of(graph, task, "OC") is not None)
    )


class Forecasts:
    """Expected seconds of one model on configurations of this machine."""

    def __init__(
        self,
        graph: Graph,
        folder: Path,
        describe: Callable[[str], Device],
        whole: Device,
        sizes: Collection[int],
        *,
        mode: Mode,
        waiting: Waiting,
        divides: bool,
    ) -> None:
        """
        Args:
            folder: folder of the profile store.
            describe: returns the device of a name (`registry.describe`).
            whole: all cores with their first engine. Further engines of which nothing is known are
                expected to be as fast.
            sizes: numbers of cores of devices of which measurements may exist.
            divides: whether a planner may divide tasks.
        """
        self._graph, self._folder, self._describe = graph, folder, describe
        self._whole, self._sizes = whole, sorted(sizes)
        self._mode, self._waiting, self._divides = mode, waiting, divides
        self._devices: dict[str, Device] = {}
        self._known_s: dict[str, dict[str, float]] = {}
        self._rows: dict[str, Sequence[float] | None] = {}
        self._seconds: dict[Configuration, float | None] = {}

    def forget(self) -> None:
        """Read the store again: there are new measurements."""
        self._known_s.clear()
        self._rows.clear()
        self._seconds.clear()

    def of(self, names: Configuration) -> float | None:
        """Expected seconds of one request on these devices together; in mode "throughput", of one
        request of many at once.

        None if a device cannot be used, or if it is no set of CPU cores and was not profiled.
        """
        if names not in self._seconds:
            try:
                self._seconds[names] = self._of([self._device(name) for name in names])
            except DeviceError:
                self._seconds[names] = None
        return self._seconds[names]

    def _device(self, name: str) -> Device:
        if name not in self._devices:
            self._devices[name] = self._describe(name)
        return self._devices[name]

    def _of(self, devices: Sequence[Device]) -> float | None:
        rows = [row for device in devices if (row := self._row(device)) is not None]
        if len(rows) < len(devices):
            return None
        if self._mode == "throughput":
            return 1 / math.fsum(1 / math.fsum(row) for row in rows)
        return makespan_s(self._graph, rows, self._handover_s(devices), self._divided)

    @cached_property
    def _divided(self) -> Collection[str]:
        return divisible(self._graph) if self._divides else ()

    def _row(self, device: Device) -> Sequence[float] | None:
        """Seconds of each task on a device, in topological order; None if nothing is known."""
        key = device.key
        if key not in self._rows:
            self._rows[key] = self._expected(device)
        return self._rows[key]

    def _expected(self, device: Device) -> Sequence[float] | None:
        names = [task.name for task in self._graph.tasks]
        if device.kind != self._whole.kind:
            known = self._known(device)
            return [known[name] for name in names] if len(known) == len(names) else None
        by_size = self._by_size(device)
        by_size = by_size or self._by_size(replace(device, engine=self._whole.engine))
        slower = _ROUND_HZ / (device.max_frequency_hz or _ROUND_HZ)
        row = []
        for name, rough_s in zip(names, self._rough_s, strict=True):
            known_s = {size: seconds[name] for size, seconds in by_size.items() if name in seconds}
            row.append(on_cores(known_s or {1: slower * rough_s}, len(device.cores)))
        return [max(_LEAST_S, seconds) for seconds in row]

    @cached_property
    def _rough_s(self) -> Sequence[float]:
        """Estimated seconds of each task on one core."""
        return [estimated_s(self._graph, task, 1) for task in self._graph.tasks]

    def _by_size(self, device: Device) -> dict[int, dict[str, float]]:
        """Known seconds by number of cores of this kind with the device's engine, then by task."""
        known = {size: self._known(self._of_size(device, size)) for size in self._sizes}
        return {size: seconds for size, seconds in known.items() if seconds}

    def _of_size(self, device: Device, size: int) -> Device:
        return replace(device, cores=self._whole.cores[:size])

    def _known(self, device: Device) -> dict[str, float]:
        """Seconds by task that the store or a trained predictor has for a device."""
        key = device.key
        if key not in self._known_s:
            with ProfileStore(self._folder) as store:
                stored, predictor = store.read(key), _trained(device, store)
            self._known_s[key] = (
                known_seconds(self._graph, stored, predictor) if stored or predictor else {}
            )
        return self._known_s[key]

    def _handover_s(self, devices: Sequence[Device]) -> float:
        """Seconds of the slowest handover between the devices; of any handover between cores if
        these were not measured."""
        if len(devices) == 1:
            return 0.0
        keys = (device.key for device in devices)
        of_size = (self._of_size(self._whole, size).key for size in self._sizes)
        return (
            self._slowest_s(permutations(keys, 2))
            or self._slowest_s((key, key) for key in of_size)
            or _HANDOVER_S
        )

    def _slowest_s(self, pairs: Iterable[tuple[str, str]]) -> float | None:
        with ProfileStore(self._folder) as store:
            measured = (stored_handover_s(store, *pair, self._waiting) for pair in set(pairs))
            return max((seconds for seconds in measured if seconds is not None), default=None)


def _trained(device: Device, store: ProfileStore) -> TrainedPredictor | None:
    """The trained predictor of a device. Opens the engine only if there is one."""
    if not store.read_predictor(device.key):
        return None
    opened = open_device(device)
    try:
        return trained_predictor(opened.engine, store)
    except DeviceError:  # reported when the configuration is tried
        return None
    finally:
        opened.close()
