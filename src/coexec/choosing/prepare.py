"""The plan of any planner, "auto" or another: where the two are told apart."""

from typing import Any, NamedTuple

from coexec.choosing.auto import Auto
from coexec.plans.plan import Plan
from coexec.workbench import AUTO, Prepared, Settings, Workbench

__all__ = ["MadeBefore", "check", "known", "prepare"]


class MadeBefore(NamedTuple):
    """A plan that was made before."""

    prepared: Prepared
    doubt: str | None
    """Why it should be decided again."""


def check(source: Any, settings: Settings) -> None:
    """Refuse devices and options that do not exist, before anything that takes long.

    Raises:
        DeviceError: a device cannot be used.
        UsageError: an option that does not exist.
    """
    Auto(source, settings) if settings.planner == AUTO else Workbench(source, settings)


def known(source: Any, settings: Settings) -> MadeBefore | None:
    """The plan that ``settings`` ask for, if it lies in the cache.

    Raises:
        CoexecError: the model or a device is not there.
    """
    if settings.planner == AUTO:
        auto = Auto(source, settings)
        return None if auto.known is None else MadeBefore(auto.known, auto.doubt)
    work = Workbench(source, settings)
    found = work.found(settings.planner, settings.planner_options)
    return None if found is None else MadeBefore(found, None)


def prepare(
    source: Any, settings: Settings, given: Plan | None = None, *, again: bool = False
) -> Prepared:
    """The plan that is given, or else the one that ``settings`` ask for.

    ``again``: what "auto" has decided in doubt is decided again.

    Raises:
        CoexecError: it cannot be had.
    """
    if given is not None:
        return Workbench(source, settings).prepared(given)
    if settings.planner == AUTO:
        auto = Auto(source, settings)
        return auto.reconsider() if again else auto.choose()
    return Workbench(source, settings).prepared_by(settings.planner, settings.planner_options)
