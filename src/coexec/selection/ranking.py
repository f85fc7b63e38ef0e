"""The order of the plans that ran, by the rules, with the reason for each place."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.rules import Rules
from coexec.selection.contender import Contender, Standing
from coexec.selection.decision import FIGURES, Candidate
from coexec.selection.objective import Objective
from coexec.selection.race import Outcome, ratios

__all__ = ["explained", "ranked", "verdict"]


def ranked(
    shortlist: Sequence[Contender], outcome: Outcome[int], objective: Objective, rules: Rules
) -> list[Contender]:
    """The shortlist with its figures, the best first.

    Each plan is compared with the reference: the first single device that ran, one that uses CPU
    cores with their first engine if there is one; without a single device, the first plan that ran.
    The plan with the smallest median ratio of times is the best if the ratio is clearly below one,
    and below one in most rounds. The plan also may not be slower by the guard of the objective. If
    the host has stolen a share of the processor time, the ratio has to be lower by a multiple of
    it. Otherwise the reference is the best. If no plan ran, single devices come first.
    """
    plans = [
        entry.measured(outcome, which, objective.figure) for which, entry in enumerate(shortlist)
    ]
    ran = [which for which, entry in enumerate(plans) if entry.rounds_s]
    if not ran:
        return sorted(plans, key=lambda entry: (not entry.is_single, not entry.is_plain))
    singles = sorted((w for w in ran if plans[w].is_single), key=lambda w: not plans[w].is_plain)
    unit = singles[0] if singles else ran[0]
    comparison = _RoundComparison(plans[unit], outcome.stolen, objective, rules)
    for which in ran:
        guard = outcome.ratio(which, unit, objective.guard) if objective.guard else 0.0
        plans[which] = comparison.placed(plans[which], guard, any_gain=not singles)
    best = Standing(objective.gain if singles else 1.0, is_reference=True)
    plans[unit] = plans[unit]._replace(standing=best)
    return sorted(plans, key=lambda entry: entry.standing.ratio)


class _RoundComparison(NamedTuple):
    """Compares plans with the reference, round by round."""

    reference: Contender
    stolen: float
    objective: Objective
    rules: Rules

    def placed(self, entry: Contender, guard: float, any_gain: bool) -> Contender:
        """``entry`` with its ratio and its standing.

        ``any_gain``: take a plan that is faster at all, as no single device ran.
        """
        by_round = ratios(entry.rounds_s, self.reference.rounds_s)
        ratio, won = statistics.median(by_round), sum(share < 1 for share in by_round)
        candidate = replace(entry.candidate, ratio=ratio, rounds=len(by_round), rounds_won=won)
        entry = entry._replace(candidate=candidate)
        against = None if any_gain else self._against(entry, ratio, guard)
        standing = Standing(ratio if against is None else max(1.0, ratio), against)
        return entry._replace(standing=standing)

    def _against(self, entry: Contender, ratio: float, guard: float) -> str | None:
        """The rule by which a plan is not clearly faster than the reference; None if it is."""
        objective, rules, candidate = self.objective, self.rules, entry.candidate
        base = share(candidate, self.reference.candidate)
        gain = objective.gain if entry.is_plain else objective.other_gain
        extra = objective.stolen_factor * self.stolen
        needed = rules.enough_rounds(candidate.rounds)
        if ratio >= gain - extra:
            return base if ratio >= 1 else f"{base}; {self._limit(entry, gain, extra)}"
        if objective.guard is not None and guard > rules.not_slower:
            return (
                f"{base} {FIGURES[objective.figure]}, but {guard:.2f} times its time "
                f"{FIGURES[objective.guard]}; at most {rules.not_slower:.2f} is accepted there"
            )
        if candidate.rounds_won < needed:
            return (
                f"{base} in the median, but it was faster in {candidate.rounds_won} of "
                f"{candidate.rounds} rounds; {needed} are needed"
            )
        return None

    def _limit(self, entry: Contender, gain: float, extra: float) -> str:
        """The ratio below which a plan is taken, in words."""
        if self.objective.mode == "throughput":
            return f"a plan is taken from {1 / gain:.2f} times on"
        kind = "with a GPU, an NPU or a further engine"
        if entry.is_plain:
            kind = "for CPU cores with their first engine"
        text = f"a plan {kind} is taken below {gain:.2f}"
        if extra < 0.005:
            return text
        host = f"the host took {self.stolen:.0%} of the processor time"
        return f"{text}, lowered by {extra:.2f} because {host}"


def share(candidate: Candidate, reference: Candidate) -> str:
    """The ratio of a candidate to the reference, in words."""
    assert candidate.ratio is not None  # both ran
    name = "ONNX Runtime" if reference.is_ort_session else str(reference)
    if candidate.requests == "parallel":
        return f"it answers {1 / candidate.ratio:.2f} times as many requests a second as {name}"
    if candidate.ratio >= 1:
        return f"it takes {candidate.ratio:.2f} times the time of {name}"
    digits = 2 if candidate.ratio < 0.985 else 3
    return f"it takes {candidate.ratio:.{digits}f} of the time of {name}"


def explained(order: Sequence[Contender]) -> list[Candidate]:
    """The candidates of the plans in ``order``, with status and reason; the first one is taken."""
    reference = next((e.candidate for e in order if e.standing.is_reference), None)
    taken, *other_contenders = order
    rows = [replace(taken.candidate, status="taken", reason=_why_taken(taken, reference))]
    for entry in other_contenders:
        row = entry.candidate
        if row.is_able:
            row = replace(row, reason=_why_not_taken(entry, rows[0], reference))
        rows.append(row)
    return rows


def _why_taken(entry: Contender, reference: Candidate | None) -> str:
    if reference is None or entry.candidate.ratio is None:
        return "no plan was measured"
    if entry.standing.is_reference:
        return "no other plan that may answer is clearly faster"
    if entry.standing.against is not None:
        return f"{entry.standing.against}; the plans before it may not answer"
    row = entry.candidate
    return (
        f"{share(row, reference)} {FIGURES[row.requests]}, and it was faster in {row.rounds_won} "
        f"of {row.rounds} rounds"
    )


def _why_not_taken(entry: Contender, taken: Candidate, reference: Candidate | None) -> str:
    if reference is None or entry.candidate.ratio is None:
        return "no plan was measured"
    if entry.standing.is_reference:
        return "the taken plan is clearly faster"
    if entry.standing.against is not None:
        return entry.standing.against
    return f"{share(entry.candidate, reference)}; the taken plan is still faster"


def verdict(taken: Candidate, shapes: str) -> str:
    """A sentence about the taken plan, with the reason and the shapes of the inputs."""
    return f"{taken} is taken: {taken.reason}{f', for {shapes}' if shapes else ''}"
