"""Whether a race has decided anything, or should be run again at another time.

A choice made while something else kept the machine busy would otherwise stay for ever.
"""

import statistics
from collections.abc import Sequence

from coexec.choosing.race import ratio
from coexec.profiling.processors import BUSY, STOLEN
from coexec.workbench import Candidate

__all__ = ["MOST_RACES", "doubt", "spread"]

MOST_RACES = 3
"""A choice that is still in doubt after as many races stays: it hardly matters."""
_LEAD = 1.03
"""The second's time over the winner's: below, the next race may have it the other way round."""
_SPREAD = 0.2
_DISAGREEMENT = 1.35
"""Between the measured time and the predicted one."""


def spread(rounds_s: Sequence[float]) -> float | None:
    """The middle half of the rounds over their median; None of fewer than four."""
    if len(rounds_s) < 4:
        return None
    low, median, high = statistics.quantiles(rounds_s, n=4)
    return (high - low) / median


def doubt(
    winner: Candidate,
    won_s: Sequence[float],
    others: Sequence[tuple[Candidate, Sequence[float]]],
    before: Candidate | None,
    stolen: float = 0.0,
    others_share: float = 0.0,
) -> str | None:
    """Why a choice should be raced again; None if it is clear.

    Args:
        won_s: the winner's rounds, in seconds.
        others: the other rivals that ran, with theirs.
        before: what was chosen before, in doubt. The same winner twice is no chance.
        stolen: the share of the processors' time that the host of a virtual machine gave to others.
        others_share: the share that other programs of this machine used.
    """
    if others_share > BUSY:
        return f"other programs used {others_share:.0%} of the processors' time meanwhile"
    if before is not None:
        same = (winner.devices, winner.planner) == (before.devices, before.planner)
        return None if same else f"two races disagree: {', '.join(before.devices)} won before"
    if stolen > STOLEN:
        return f"the host took {100 * stolen:.0f} % of the processors' time for others"
    varies = spread(won_s)
    if varies is not None and varies > _SPREAD:
        return f"its times vary by {100 * varies:.0f} %"
    for rival, rounds_s in others:
        lead = ratio(rounds_s, won_s) if won_s and rounds_s else _LEAD
        if lead < _LEAD:
            return (
                f"{', '.join(rival.devices)} ({rival.planner}) is {100 * (lead - 1):.1f} % behind"
            )
    measured_s, predicted_s = winner.measured_s, winner.predicted_s
    if measured_s and predicted_s:
        off = max(measured_s / predicted_s, predicted_s / measured_s)
        if off > _DISAGREEMENT:
            return f"it takes {measured_s / predicted_s:.2f} of the predicted time"
    return None
