"""Latency predictors of the present devices."""

from coexec.costs.predictor import TrainedUnits
from coexec.engines.names import default_names
from coexec.engines.registry import check_options, open_devices
from coexec.system.hardware import Place
from coexec.workbench.bench import opened_cache
from coexec.workbench.settings import Settings

__all__ = ["trained_on"]


def trained_on(settings: Settings, count: int) -> dict[Place, TrainedUnits]:
    """Train a predictor for each device with its first engine, and keep it with the profiles.

    Args:
        settings: devices, engines' options, cache and progress count.
        count: tasks to learn from.

    Raises:
        DeviceError: a device cannot be used.
        InfeasibleError: an engine does not run what is measured.
    """
    from coexec.profiling.store import ProfileStore
    from coexec.profiling.training import train_on

    check_options(settings.engine_options)
    cache = opened_cache(settings.cache)
    names = settings.devices or default_names()
    devices = open_devices(names, settings.engine_options, cache.root)
    found: dict[Place, TrainedUnits] = {}
    with ProfileStore(cache.root) as store:
        for device in devices:
            found[device.first.place] = train_on(device, store, count, settings.progress)
            device.close()
    return found
