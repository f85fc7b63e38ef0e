"""What a lower precision than the settings allow gives on this machine, measured."""

import math
import statistics

from coexec.plan.plan import Plan
from coexec.rules import Rules
from coexec.selection.comparison import ReferenceAnswers, compared
from coexec.selection.decision import Offer, share_of
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Compete, warm_turn
from coexec.selection.ranking import Objective


def measured_offer(
    work: PlanningContext,
    plan: Plan,
    taken: Prepared,
    reference: ReferenceAnswers,
    objective: Objective,
    rules: Rules,
    compete: Compete,
) -> Offer | None:
    """The offer of a device, raced with the plan that was taken. If its outputs differ too much,
    it has the tolerance that it needs; None if there is no such tolerance.

    Args:
        work: the model on a device in a lower precision.
        plan: that of the device.
        compete: runs a race.

    Raises:
        CoexecError: one of the two does not run.
    """
    prepared, tolerance = work.prepared(plan), None
    agreement = compared(prepared, reference=reference)
    if agreement.differs is not None and agreement.errors is not None:
        if not 0 < agreement.errors.largest < 1:  # it fails, or integers or shapes differ
            return None
        tolerance = _rounded_up(agreement.errors.largest)
        if tolerance >= 1:
            return None
        work = work.with_settings(tolerance=tolerance)
        prepared = work.prepared(work.whole(plan))
        agreement = compared(prepared, reference=reference)
    if agreement.reason is not None or agreement.errors is None:
        return None
    feeds = reference.answers[0].feeds
    with taken.start() as base, prepared.start() as lower:
        turns = [warm_turn(runner, feeds, objective.mode, rules) for runner in (base, lower)]
        outcome = compete(dict(enumerate(turns)), objective.rounds, budget_s=rules.race_s)
    work.release()
    base_s, lower_s = (outcome.rounds_s(n, objective.figure) for n in range(2))
    share = share_of(tuple(zip(lower_s, base_s, strict=False)))
    if share is None:
        return None
    seconds = statistics.median(lower_s)
    return Offer(work.device_names[0], seconds, 1 / share, agreement.errors.largest, tolerance)


def _rounded_up(error: float) -> float:
    """A tolerance with two digits above an error."""
    step = 10.0 ** (math.floor(math.log10(error)) - 1)
    return round((math.floor(error / step) + 1) * step, 12)
