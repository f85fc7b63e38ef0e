"""The plan of any planner: "auto", or a planner that is named."""

import logging
import os
import time
from typing import Any

from coexec.errors import CoexecError
from coexec.selection.chooser import Chooser
from coexec.selection.plan_files import devices_of_plan
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.settings import AUTO, Settings
from coexec.units import format_seconds

__all__ = ["PlanRequest", "prepare"]

_log = logging.getLogger("coexec")


class PlanRequest:
    """The plan that settings request, for one model."""

    def __init__(self, source: Any, settings: Settings) -> None:
        """Refuse devices and options that do not exist, before any step that takes long.

        Raises:
            DeviceError: a device cannot be used.
            UsageError: an option that does not exist.
        """
        self._settings = settings
        self._name = str(source) if isinstance(source, str | os.PathLike) else "the model"
        self._by: Chooser | PlanningContext
        if settings.plan is not None:
            with devices_of_plan(settings):
                self._by = PlanningContext(source, settings)
        elif settings.planner != AUTO:
            self._by = PlanningContext(source, settings)
        else:
            self._by = Chooser(source, settings)

    @property
    def has_cached_digest(self) -> bool:
        """Whether `known` can be computed without reading the whole model."""
        return self._by.given.has_cached_digest

    @property
    def known(self) -> Prepared | None:
        """The plan, if it was made before and is in the cache; else None.

        Raises:
            ModelError: the model does not exist.
        """
        if not isinstance(self._by, PlanningContext):
            return self._by.known
        if self._settings.plan is not None:
            return self._by.found_plan(self._settings.plan.plan)
        return self._by.found(self._settings.planner, self._settings.planner_options)

    def check_examples(self) -> None:
        """Refuse example inputs that do not fit the model, before planning, which takes long.

        Raises:
            InputError: the inputs do not fit the model.
            ModelError: the model cannot be loaded.
        """
        _ = self._by.given.model

    @property
    def is_open(self) -> bool:
        """Whether one more pass may find a better plan than `known`."""
        return isinstance(self._by, Chooser) and self._by.is_open

    def prepare(self, again: bool = False) -> Prepared:
        """The plan, made now if it is not in the cache. Begin, end and refusal are logged.

        ``again``: make one more pass for a choice of "auto" that is open.

        Raises:
            CoexecError: the plan cannot be made.
        """
        name, planner = self._name, self._settings.planner
        _log.info("%s: planning with %s begins", name, planner)
        start_s = time.monotonic()
        try:
            prepared = self._prepare(again)
        except CoexecError as error:
            _log.info("%s: no plan by %s: %s", name, planner, error)
            raise
        _log.info(
            "%s: planned with %s in %s: %s on %s",
            name,
            planner,
            format_seconds(time.monotonic() - start_s),
            prepared.plan.provenance.planner,
            ", ".join(prepared.plan.used) or "no device",
        )
        return prepared

    def _prepare(self, again: bool) -> Prepared:
        if isinstance(self._by, Chooser):
            return self._by.go_on() if again else self._by.choose()
        if self._settings.plan is not None:
            return self._by.prepared_file(self._settings.plan)
        return self._by.prepared_by(self._settings.planner, self._settings.planner_options)


def prepare(source: Any, settings: Settings) -> Prepared:
    """The plan that ``settings`` contain, or else a plan by the planner that they name.

    Raises:
        CoexecError: the plan cannot be made or used.
    """
    request = PlanRequest(source, settings)
    if settings.examples:
        request.check_examples()
    return request.prepare()
