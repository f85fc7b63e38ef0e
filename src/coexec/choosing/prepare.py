"""The plan of any planner, "auto" or another: where the two are told apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coexec.choosing.auto import Auto
from coexec.engines.names import whole_cpu
from coexec.engines.registry import may_be_replaced
from coexec.plans.plan import Plan
from coexec.workbench import AUTO, Prepared, Settings, Workbench

__all__ = ["Preparation", "on_cpu", "preparation", "prepare"]

Preparation = Callable[[], Prepared]


def preparation(source: Any, settings: Settings) -> tuple[Preparation, bool]:
    """What prepares the plan that ``settings`` ask for; and whether the CPU can take over from it.

    Devices and options are checked at once, before anything that takes long.

    Raises:
        DeviceError: a device cannot be used.
        UsageError: an option that does not exist.
    """
    if settings.planner == AUTO:
        auto = Auto(source, settings)
        return auto.choose, auto.may_need_the_cpu
    work = Workbench(source, settings)
    replaceable = any(may_be_replaced(device.spec) for device in work.devices)
    return lambda: work.prepared_by(settings.planner, settings.planner_options), replaceable


def prepare(source: Any, settings: Settings, given: Plan | None = None) -> Prepared:
    """The plan that is given, or else the one that ``settings`` ask for.

    Raises:
        CoexecError: it cannot be had.
    """
    if given is not None:
        return Workbench(source, settings).prepared(given)
    return preparation(source, settings)[0]()


def on_cpu(source: Any, settings: Settings) -> Prepared:
    """The model on all cores of this machine as one device, whatever the settings say."""
    alone = replace(settings, devices=[whole_cpu()], planner="single", planner_options={}, pins={})
    return Workbench(source, alone).prepared_by("single", {})
