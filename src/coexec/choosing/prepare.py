"""The plan of any planner, "auto" or another: where the two are told apart."""

import logging
import os
import time
from typing import Any

from coexec.choosing.auto import Auto
from coexec.choosing.throughput import Throughput
from coexec.defaults import AUTO
from coexec.errors import CoexecError
from coexec.plans.plan import Plan
from coexec.units import format_seconds
from coexec.workbench import Prepared, Settings, Workbench

__all__ = ["Asked", "prepare"]

_log = logging.getLogger("coexec")


class Asked:
    """The plan that settings ask for, for one model."""

    def __init__(self, source: Any, settings: Settings) -> None:
        """Refuse devices and options that do not exist, before anything that takes long.

        Raises:
            DeviceError: a device cannot be used.
            UsageError: an option that does not exist.
        """
        self._settings = settings
        self._name = str(source) if isinstance(source, str | os.PathLike) else "the model"
        self._by: Auto | Throughput | Workbench
        if settings.planner != AUTO:
            self._by = Workbench(source, settings)
        elif settings.mode == "throughput":
            self._by = Throughput(source, settings)
        else:
            self._by = Auto(source, settings)

    @property
    def is_told_quickly(self) -> bool:
        """Whether `known` answers without reading the whole model."""
        return self._by.given.is_told_quickly

    @property
    def known(self) -> Prepared | None:
        """The plan, if it was made before and lies in the cache.

        Raises:
            ModelError: the model is not there.
        """
        if not isinstance(self._by, Workbench):
            return self._by.known
        return self._by.found(self._settings.planner, self._settings.planner_options)

    def check_examples(self) -> None:
        """Refuse inputs that do not fit, before a plan is made, which takes long.

        Raises:
            InputError: they are not the model's.
            ModelError: it cannot be loaded.
        """
        _ = self._by.given.model

    @property
    def doubt(self) -> str | None:
        """Why what is known should be decided again."""
        return self._by.doubt if isinstance(self._by, Auto) else None

    def prepare(self, again: bool = False) -> Prepared:
        """The plan, made now if it is not known. Begin, end and refusal are logged.

        ``again``: what "auto" has decided in doubt is decided again.

        Raises:
            CoexecError: it cannot be had.
        """
        name, planner = self._name, self._settings.planner
        _log.info("%s: planning with %s begins", name, planner)
        start_s = time.monotonic()
        try:
            found = self._prepare(again)
        except CoexecError as error:
            _log.info("%s: no plan by %s: %s", name, planner, error)
            raise
        _log.info("%s: planned with %s in %s: %s on %s", name, planner,
                  format_seconds(time.monotonic() - start_s), found.plan.provenance.planner,
                  ", ".join(found.plan.used) or "no device")  # fmt: skip
        return found

    def _prepare(self, again: bool) -> Prepared:
        if isinstance(self._by, Auto):
            return self._by.reconsider() if again else self._by.choose()
        if isinstance(self._by, Throughput):
            return self._by.choose()
        return self._by.prepared_by(self._settings.planner, self._settings.planner_options)


def prepare(source: Any, settings: Settings, given: Plan | None = None) -> Prepared:
    """The plan that is given, or else the one that ``settings`` ask for.

    Raises:
        CoexecError: it cannot be had.
    """
    if given is not None:
        return Workbench(source, settings).prepared(given)
    asked = Asked(source, settings)
    if settings.examples:
        asked.check_examples()
    return asked.prepare()
