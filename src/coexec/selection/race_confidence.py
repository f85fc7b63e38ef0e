"""Whether the result of a race is clear, or the race should be run again later.

Otherwise a choice that was made while another program kept the machine busy would stay forever.
"""

import statistics
from collections.abc import Sequence

from coexec.rules import RULES, Rules
from coexec.selection.decision import Candidate
from coexec.selection.race import ratio

__all__ = ["doubt", "spread"]


def spread(rounds_s: Sequence[float]) -> float | None:
    """Width of the middle half of the rounds over their median; None for fewer than four rounds."""
    if len(rounds_s) < 4:
        return None
    low, median, high = statistics.quantiles(rounds_s, n=4)
    return (high - low) / median


def doubt(
    winner: Candidate,
    won_s: Sequence[float],
    rivals: Sequence[tuple[Candidate, Sequence[float]]],
    before: Candidate | None,
    stolen: float = 0.0,
    others_share: float = 0.0,
    rules: Rules = RULES,
) -> str | None:
    """Why a choice should be raced again; None if it is clear.

    Args:
        won_s: the winner's rounds, in seconds.
        rivals: the other rivals that ran, with their rounds.
        before: the earlier choice that was in doubt. The same winner twice is not by chance.
        stolen: share of the processor time that the host of a virtual machine took.
        others_share: share of the processor time that other programs of this machine used.
    """
    if others_share > rules.busy:
        return f"other programs used {others_share:.0%} of the processor time meanwhile"
    if before is not None:
        same = (winner.devices, winner.planner) == (before.devices, before.planner)
        return None if same else f"two races disagree: the earlier one took {before}"
    if stolen > rules.stolen:
        return f"the host of this virtual machine took {stolen:.0%} of the processor time"
    if rivals and 0 < len(won_s) < rules.rounds[0]:
        return f"there was time for {len(won_s)} of {rules.rounds[0]} rounds of the race"
    varies = spread(won_s)
    if varies is not None and varies > rules.spread:
        return f"the times of the taken plan vary by {varies:.0%}"
    for rival, rounds_s in rivals:
        lead = ratio(rounds_s, won_s) if won_s and rounds_s else rules.lead
        if lead < rules.lead:
            apart = f"{abs(lead - 1):.1%}"
            if lead < 1:
                return f"{rival} is {apart} faster than the taken plan, which is not a clear gain"
            return f"{rival} is only {apart} slower than the taken plan"
    measured_s, predicted_s = winner.measured_s, winner.predicted_s
    if measured_s and predicted_s:
        off = max(measured_s / predicted_s, predicted_s / measured_s)
        if off > rules.disagreement:
            return f"the taken plan takes {measured_s / predicted_s:.2f} times the predicted time"
    return None
