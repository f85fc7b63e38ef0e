"""The plan of any planner: "auto", or a planner that is named; or the plan of a file."""

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

_log = logging.getLogger("coexec")


PlanMaker = Chooser | PlanningContext
"""Makes the plan that settings request, for one model. Both have `user_model`, the model; `known`,
the plan from the cache; `is_open`, whether one more pass may find a better plan; and `make`."""


def plan_maker(source: Any, settings: Settings) -> PlanMaker:
    """What makes the plan that ``settings`` request.

    Devices and options that do not exist are refused now, before any step that takes long.

    Raises:
        DeviceError: a device cannot be used.
        UsageError: an option that does not exist.
    """
    if settings.plan is not None:
        with devices_of_plan(settings):
            return PlanningContext(source, settings)
    return (Chooser if settings.planner == AUTO else PlanningContext)(source, settings)


def prepare(
    source: Any, settings: Settings, again: bool = False, maker: PlanMaker | None = None
) -> Prepared:
    """The plan that ``settings`` contain, or else a plan by the planner that they name. Begin, end
    and refusal are logged.

    Args:
        again: make one more pass for a choice of "auto" that is open.
        maker: the `plan_maker` of these settings; None: a new one.

    Raises:
        CoexecError: the plan cannot be made or used.
    """
    maker = maker or plan_maker(source, settings)
    if settings.examples:
        _ = (
            maker.user_model.model
        )  # refuses examples that do not fit before planning, which takes long
    name = str(source) if isinstance(source, str | os.PathLike) else "the model"
    _log.info("%s: planning with %s begins", name, settings.planner)
    start_s = time.monotonic()
    try:
        prepared = maker.make(again)
    except CoexecError as error:
        _log.info("%s: no plan by %s: %s", name, settings.planner, error)
        raise
    _log.info(
        "%s: planned with %s in %s: %s on %s",
        name,
        settings.planner,
        format_seconds(time.monotonic() - start_s),
        prepared.plan.provenance.planner,
        ", ".join(prepared.plan.used) or "no device",
    )
    return prepared
