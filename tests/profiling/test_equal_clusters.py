"""Clusters of equal cores are measured once; unlike ones each."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coexec.cache import Cache
from coexec.costs.table import Reading
from coexec.engines.null import NullEngine
from coexec.engines.opened import OpenDevice
from coexec.hardware.hardware import Device, EngineInfo
from coexec.model.load import load
from coexec.profiling import engines, profiler
from coexec.profiling.engines import EngineTimes
from coexec.profiling.profiler import Profiler
from coexec.profiling.store import Measurement, ProfileStore
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort
from tests.helpers.small_models import branches


def devices(sizes: Sequence[int]) -> list[OpenDevice]:
    """A device for each number of cores: those of equal numbers have equal keys in the store."""
    opened = []
    for number, size in enumerate(sizes):
        info = EngineInfo("null", f"on {size} cores")
        spec = Device(f"null:{number}", "null", info)
        opened.append(OpenDevice.of(NullEngine(spec, info)))
    return opened


@pytest.mark.parametrize(
    ("alone_s", "together_s", "expected"),
    [
        (1e-9, 1.5e-9, Reading(1e-9, 1.5e-9)),
        (1e-9, 0.9e-9, Reading(1e-9, 1e-9)),
        (0.0, 1e-9, None),
        (1e-9, 0.0, None),
    ],
)
def test_cores_that_share_a_memory_read_slower_together(
    alone_s: float,
    together_s: float,
    expected: Reading | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0 s: an engine does not run what is measured."""
    calls: list[int] = []

    def measured(of: Sequence[Any], waiting: Any) -> list[Measurement]:
        calls.append(len(of))
        seconds = [0.0, together_s, 2 * together_s] if len(of) > 1 else [alone_s]  # equal places
        return [Measurement.of([s]) for s in seconds]

    monkeypatch.setattr(engines, "reading", measured)
    opened = [
        OpenDevice.of(NullEngine(replace(device.spec, cores=(number,)), device.engine.info))
        for number, device in enumerate(devices([1] * 3))
    ]
    with ProfileStore(tmp_path) as store:

        def found(of: Sequence[OpenDevice]) -> EngineTimes:
            return EngineTimes(of, store, "passive", lambda e: e.info.version, False, nothing)

        assert found(opened[:1]).readings() == found(devices([1, 1])).readings() == {}
        readings = found(opened).readings()
        assert calls == [3, 1], "once for all places and once for equal ones"
        assert found(opened).readings() == readings and len(calls) == 2
    places = {device.engine.place for device in opened} if expected is not None else set()
    assert readings == dict.fromkeys(places, expected)


def nothing(*_: object) -> None:
    """Progress that nobody sees."""


@pytest.mark.parametrize(
    ("sizes", "kinds", "pairs"), [((4, 4, 4, 4), 1, 1), ((1,) * 8, 1, 1), ((4, 4, 2, 2), 2, 4)]
)
def test_each_kind_of_cluster_is_measured_once(
    sizes: Sequence[int],
    kinds: int,
    pairs: int,
    tmp_path: Path,
    cache: Cache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {"sweep": 0, "wake_up": 0}

    def counted(name: str, measure: Any) -> Any:
        def run(*of: Any, **words: Any) -> Any:
            counts[name] += 1
            return measure(*of, **words)

        return run

    monkeypatch.setattr(profiler, "sweep", counted("sweep", profiler.sweep))
    monkeypatch.setattr(engines, "wake_up", counted("wake_up", engines.wake_up))
    with ProfileStore(tmp_path) as store:
        measuring = Profiler(devices(sizes), store, effort=Effort(0, 2, 2))
        cost = measuring.cost(Compiler(load(branches()), cache))
        system = measuring.system()
    assert counts == {"sweep": kinds, "wake_up": pairs}
    assert len(cost.tasks_s) == len(sizes)
    assert len(system.links) == len(sizes) * (len(sizes) - 1)
