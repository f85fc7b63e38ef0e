"""Clusters of equal cores are measured once; unlike ones each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from coexec.cache import Cache
from coexec.engines.null import NullEngine
from coexec.engines.opened import OpenDevice
from coexec.hardware.hardware import Device, EngineInfo
from coexec.model.load import load
from coexec.profiling import engines, profiler
from coexec.profiling.profiler import Effort, Profiler
from coexec.profiling.store import ProfileStore
from coexec.runtime.compiler import Compiler
from tests.helpers.small_models import branches


def devices(sizes: Sequence[int]) -> list[OpenDevice]:
    """A device for each number of cores: those of equal numbers have equal keys in the store."""
    opened = []
    for number, size in enumerate(sizes):
        info = EngineInfo("null", f"on {size} cores")
        spec = Device(f"null:{number}", "null", (info,))
        opened.append(OpenDevice.of(NullEngine(spec, info)))
    return opened


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
