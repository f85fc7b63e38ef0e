"""Training of latency predictors for this machine's devices."""

from coexec.costs.predictor import TrainedUnits
from coexec.engines.names import default_names
from coexec.engines.registry import check_options, open_devices
from coexec.hardware.hardware import Place
from coexec.selection.opened_model import opened_cache
from coexec.settings import Settings

__all__ = ["trained_on"]


def trained_on(settings: Settings, count: int) -> dict[Place, TrainedUnits]:
    """Train a predictor for each device with its first engine, and store it with the profiles.

    Args:
        settings: only devices, engine options, cache and progress are used.
        count: least number of tasks to train on.

    Raises:
        DeviceError: a device cannot be used.
        InfeasibleError: an engine does not run the measured tasks.
    """
    from coexec.profiling.store import ProfileStore
    from coexec.profiling.training import train_on

    check_options(settings.engine_options)
    cache = opened_cache(settings.cache)
    names = settings.devices or default_names()
    devices = open_devices(names, settings.engine_options, cache.root)
    units_by_place: dict[Place, TrainedUnits] = {}
    with ProfileStore(cache.root) as store:
        for device in devices:
            units_by_place[device.engine.place] = train_on(device, store, count, settings.progress)
            device.close()
    return units_by_place
