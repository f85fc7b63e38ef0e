"""Whether a plan is proven to be faster than the reference, the order of plans, and the reasons.

This is the only place that decides it, for sessions and for all verbs. Its numbers are in
`coexec.rules`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from coexec.rules import Rules
from coexec.selection.decision import FIGURES, Candidate, Key, Requests, Rounds, Status, share_of
from coexec.settings import Mode


@dataclass(frozen=True)
class Objective:
    """The goal of a choice in numbers. Ratios are times over the time of the reference."""

    mode: Mode
    figure: Requests
    """The figure that ranks plans."""
    guard: Requests | None
    """The figure by which a plan may not be slower; None: there is none."""
    gain: float
    """Ratio below which a plan for CPU cores with their first engine is taken."""
    other_gain: float
    """The same for a plan with a GPU or a further engine."""
    stolen_factor: float
    """Factor of the share of stolen processor time, by which these ratios have to be lower."""
    rounds: tuple[int, int]
    """Least and largest number of rounds."""
    drops: bool
    """Whether clearly slower plans leave the race."""


def objective_of(mode: Mode, rules: Rules) -> Objective:
    """The objective of mode "latency" or "throughput".

    In mode "throughput" devices do not wait for each other, so that time which the host takes
    delays all plans alike.
    """
    if mode == "throughput":
        gain, count = 1 / rules.parallel_gain, rules.parallel_rounds
        return Objective(mode, "parallel", None, gain, gain, 0.0, (count, count), drops=False)
    return Objective(
        mode,
        "loop" if rules.requests == "loop" else "paced",
        "loop" if rules.requests == "both" else None,
        rules.gain,
        rules.other_gain,
        rules.stolen_factor,
        rules.rounds,
        drops=True,
    )


class Standing(NamedTuple):
    """The place of a plan in the ranking."""

    ratio: float = math.inf
    """Ranks the plan: its ratio to the reference, below one only if the plan is proven to be
    faster; infinite if it did not run."""
    against: str | None = None
    """The rule by which it is not proven to be faster than the reference; None if it is."""
    in_doubt: bool = False
    """Whether more rounds may prove it."""


@dataclass(frozen=True)
class Ranking:
    """The candidates of a choice beside the one with which they were compared."""

    rows: Sequence[Candidate]
    reference: Candidate | None
    """One of ``rows``; None if nothing was measured."""
    objective: Objective
    rules: Rules

    @property
    def standings(self) -> Mapping[Key, Standing]:
        """The standings of all candidates. One that is in doubt is not if a proven plan is better
        than its rounds say."""
        placed = {row.key: self._standing(row) for row in self.rows}
        best = min((s.ratio for s in placed.values() if s.ratio < 1), default=1.0)
        for row in self.rows:
            if row.ratio is not None and row.ratio >= best and row.others <= self.rules.busy:
                placed[row.key] = placed[row.key]._replace(in_doubt=False)
        return placed

    @property
    def best_ratio(self) -> float:
        """The smallest ratio to the reference that is proven; 1 if none is."""
        return min((s.ratio for s in self.standings.values() if s.ratio < 1), default=1.0)

    def best_in_doubt(self, keys: Collection[Key]) -> Key | None:
        """Which of some candidates may be the best one after more rounds; None if none may. On a
        busy machine more rounds prove nothing of a plan whose gain is too small there."""
        standings, best = self.standings, self.best_ratio
        ratios = {
            row.key: row.ratio
            for row in self.rows
            if row.key in keys and row.ratio is not None and row.ratio < best
            if standings[row.key].in_doubt
            if row.others <= self.rules.busy
            or row.ratio < _needed_ratio(row, self.objective, self.rules)
        }
        return min(ratios, key=ratios.__getitem__, default=None)

    def order(self, chosen: Key | None = None) -> list[Candidate]:
        """The candidates, the best first.

        A plan is better than the reference only if its rounds prove it. Then the plan with the
        smallest ratio to the reference is the best; the one that was chosen before stays if no
        other one is clearly faster. If no plan ran, single devices come first.
        """
        if self.reference is None:
            return sorted(self.rows, key=lambda row: row.rank_unmeasured)
        standings, reference = self.standings, self.reference.key

        def rank(row: Candidate) -> float:
            # The reference has no gain that has to be beaten clearly.
            is_chosen = row.key == chosen != reference
            return standings[row.key].ratio / (self.rules.lead if is_chosen else 1.0)

        return sorted(self.rows, key=rank)

    def explained(
        self, order: Sequence[Candidate], uncompared: Collection[Key] = ()
    ) -> list[Candidate]:
        """The candidates in ``order`` with status and reason; the first one is taken.

        Args:
            uncompared: plans whose outputs are not compared yet. They are in doubt if they are
                proven to be faster.
        """
        standings = self.standings
        taken, *others = order
        rows = [replace(taken, status="taken", reason=self._why_taken(taken, standings))]
        for row in others:
            if row.is_able and row.status != "left out":
                standing = standings[row.key]
                status: Status = "in doubt" if standing.in_doubt else "not taken"
                if row.ratio is None and self.reference is not None and not self._is_reference(row):
                    status = "untried"
                if row.key in uncompared and standing.ratio < 1:
                    status = "in doubt"
                row = replace(row, status=status, reason=self._why_not_taken(row, standings))
            rows.append(row)
        return rows

    def _is_reference(self, row: Candidate) -> bool:
        return self.reference is not None and row.key == self.reference.key

    def _standing(self, row: Candidate) -> Standing:
        if self.reference is None:
            return Standing()
        if self._is_reference(row):
            return Standing(self.objective.gain if row.is_single else 1.0)
        if row.ratio is None or not row.is_able:
            return Standing()
        if not self.reference.is_single:  # no single device runs: any gain counts
            return Standing(row.ratio)
        against, in_doubt = _against(row, self.reference, self.objective, self.rules)
        in_doubt |= against is not None and row.others > self.rules.busy
        return Standing(row.ratio if against is None else max(1.0, row.ratio), against, in_doubt)

    def _why_taken(self, row: Candidate, standings: Mapping[Key, Standing]) -> str:
        if self._is_reference(row):
            return "no other plan that may answer is proven to be faster"
        if self.reference is None or row.ratio is None:
            return "no plan was measured"
        if (against := standings[row.key].against) is not None:
            return f"{against}; the plans before it may not answer"
        return (
            f"{share(row, self.reference)} {FIGURES[row.requests]}, and it was faster in "
            f"{row.rounds_won} of {row.rounds} rounds"
        )

    def _why_not_taken(self, row: Candidate, standings: Mapping[Key, Standing]) -> str:
        if self._is_reference(row):
            return "the taken plan is clearly faster"
        if self.reference is None:
            return "no plan was measured"
        if row.ratio is None:
            return "it was not raced yet"
        if (against := standings[row.key].against) is not None:
            return against
        return f"{share(row, self.reference)}; the taken plan is still faster"


def is_settled(row: Candidate, rules: Rules) -> bool:
    """Whether no further race can change the place of a candidate of an earlier pass."""
    was_raced = row.rounds > 0 or row.status in ("left out", "refused")
    return was_raced and not row.is_open and row.others <= rules.busy


def is_clearly_faster(rounds_s: Rounds, rules: Rules) -> bool:
    """Whether rounds of a plan on CPU cores prove that it is faster than a reference: the part of
    the rule that every table uses, without the conditions on starts, host and other programs."""
    ratio, won = share_of(rounds_s), sum(own_s < reference_s for own_s, reference_s in rounds_s)
    return ratio is not None and ratio < rules.gain and won >= rules.enough_rounds(len(rounds_s))


def _against(
    row: Candidate, reference: Candidate, objective: Objective, rules: Rules
) -> tuple[str | None, bool]:
    """The rule by which a plan is not proven to be faster than the reference, None if it is; and
    whether more rounds may prove it.

    The ratio has to be clearly below one, lower by multiples of the shares of the processor time
    that the host of a virtual machine took, and that other programs used if it was much. The plan
    may not be slower by the guard of the objective. It has to be faster in most rounds, in enough
    of them and of races.
    """
    ratio = row.ratio
    assert ratio is not None  # it ran
    base = share(row, reference)
    gain, needed_ratio = _gain(row, objective), _needed_ratio(row, objective, rules)
    guard = share_of(row.guard_s) or 0.0
    most = rules.enough_rounds(row.rounds)
    is_stolen = row.stolen > rules.stolen and objective.stolen_factor > 0
    needed = objective.rounds[0] * (2 if is_stolen else 1)
    is_short = row.rounds < needed and row.rounds_won > 0
    if row.others > rules.busy and ratio >= needed_ratio:
        limit = f"; below {needed_ratio:.2f} it would be taken" if needed_ratio > 0 else ""
        used = f"other programs used {row.others:.0%} of the processor time"
        return f"{base}, but {used}{limit}", True
    if ratio >= needed_ratio:
        limit = _limit(row, gain, gain - needed_ratio, objective)
        against = base if ratio >= 1 else f"{base}; {limit}"
        return against, is_short and ratio < 1
    if objective.guard is not None and guard > rules.not_slower:
        return (
            f"{base} {FIGURES[objective.figure]}, but {guard:.2f} times its time "
            f"{FIGURES[objective.guard]}; at most {rules.not_slower:.2f} is accepted there"
        ), is_short
    if row.rounds_won < most:
        return (
            f"{base} in the median, but it was faster in {row.rounds_won} of "
            f"{row.rounds} rounds; {most} are needed"
        ), is_short
    if row.rounds < needed:
        host = f", as the host took {row.stolen:.0%} of the processor time" if is_stolen else ""
        return f"{base} in {row.rounds} rounds; {needed} are needed{host}", True
    if row.starts < rules.starts:
        return f"{base} in {row.starts} race; {rules.starts} are needed, with new starts", True
    return None, False


def _gain(row: Candidate, objective: Objective) -> float:
    return objective.gain if row.is_plain else objective.other_gain


def _needed_ratio(row: Candidate, objective: Objective, rules: Rules) -> float:
    """The ratio below which a plan is taken."""
    extra = objective.stolen_factor * row.stolen
    if row.others > rules.busy:
        extra += rules.busy_factor * row.others
    return _gain(row, objective) - extra


def _limit(row: Candidate, gain: float, extra: float, objective: Objective) -> str:
    """The ratio below which a plan is taken, in words."""
    if objective.mode == "throughput":
        return f"a plan is taken from {1 / gain:.2f} times on"
    kind = "with a GPU, an NPU or a further engine"
    if row.is_plain:
        kind = "for CPU cores with their first engine"
    text = f"a plan {kind} is taken below {gain:.2f}"
    if extra < 0.005:
        return text
    host = f"the host took {row.stolen:.0%} of the processor time"
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
