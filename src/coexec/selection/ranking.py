"""The order of the plans that ran, by the rules, with the reason for each place."""

import math
from collections.abc import Sequence
from dataclasses import replace

from coexec.rules import Rules
from coexec.selection.contender import Contender, Standing
from coexec.selection.decision import FIGURES, Candidate, Status, share_of
from coexec.selection.objective import Objective

__all__ = ["best_in_doubt", "best_ratio", "explained", "is_settled", "ranked", "verdict"]


def ranked(
    entries: Sequence[Contender],
    objective: Objective,
    rules: Rules,
    chosen: Candidate | None = None,
) -> list[Contender]:
    """The contenders with their standings, the best first.

    A plan is better than the reference only if its rounds prove it (`_against`). Then the plan with
    the smallest ratio to the reference is the best; one that was chosen before stays if no other
    one is clearly faster. If no plan ran, single devices come first.
    """
    if not any(entry.standing.is_reference for entry in entries):
        return sorted(entries, key=lambda entry: (not entry.is_single, not entry.is_plain))
    placed = _placed(entries, objective, rules)

    def rank(entry: Contender) -> float:
        is_chosen = chosen is not None and entry.candidate.key == chosen.key
        is_chosen &= not entry.standing.is_reference  # it has no gain that has to be beaten clearly
        return entry.standing.ratio / (rules.lead if is_chosen else 1.0)

    return sorted(placed, key=rank)


def best_ratio(entries: Sequence[Contender], objective: Objective, rules: Rules) -> float:
    """The smallest ratio to the reference that is proven; infinite if there is none."""
    ratios = [entry.standing.ratio for entry in _placed(entries, objective, rules)]
    return min((ratio for ratio in ratios if ratio < 1), default=math.inf)


def best_in_doubt(entries: Sequence[Contender], objective: Objective, rules: Rules) -> int | None:
    """Index of the contender that may be the best one after more rounds; None if there is none. On
    a busy machine more rounds prove nothing."""
    placed = _placed(entries, objective, rules)
    best = min(1.0, best_ratio(entries, objective, rules))
    ratios = {
        which: entry.candidate.ratio
        for which, entry in enumerate(placed)
        if entry.standing.in_doubt and entry.plans and entry.candidate.others <= rules.busy
    }
    which = min(ratios, key=lambda each: ratios[each] or 0.0, default=None)
    return None if which is None or (ratios[which] or 0.0) >= best else which


def is_settled(candidate: Candidate, rules: Rules) -> bool:
    """Whether no further race can change the place of a candidate."""
    return not candidate.is_open and candidate.others <= rules.busy


def _placed(
    entries: Sequence[Contender], objective: Objective, rules: Rules
) -> Sequence[Contender]:
    reference = next((entry for entry in entries if entry.standing.is_reference), None)
    if reference is None:
        return entries
    placed = []
    for entry in entries:
        ratio = entry.candidate.ratio
        if entry is reference:
            gain = objective.gain if entry.is_single else 1.0
            standing = Standing(gain, is_reference=True)
        elif ratio is None or not entry.candidate.is_able:
            standing = Standing()
        elif not reference.is_single:  # no single device runs: any gain counts
            standing = Standing(ratio)
        else:
            against, in_doubt = _against(entry, ratio, reference.candidate, objective, rules)
            standing = Standing(
                ratio if against is None else max(1.0, ratio), against, in_doubt=in_doubt
            )
        placed.append(entry._replace(standing=standing))
    best = min((e.standing.ratio for e in placed if e.standing.ratio < 1), default=1.0)
    return [_decided(entry, best, rules) for entry in placed]


def _decided(entry: Contender, best: float, rules: Rules) -> Contender:
    """``entry``, not in doubt if a proven plan is better even so."""
    ratio, standing = entry.candidate.ratio, entry.standing
    if not standing.in_doubt or ratio is None or entry.candidate.others > rules.busy:
        return entry
    return entry._replace(standing=standing._replace(in_doubt=ratio < best))


def _against(
    entry: Contender, ratio: float, reference: Candidate, objective: Objective, rules: Rules
) -> tuple[str | None, bool]:
    """The rule by which a plan is not proven to be faster than the reference, None if it is; and
    whether more rounds may prove it.

    The ratio has to be clearly below one, lower by a multiple of the share of the processor time
    that the host of a virtual machine took. The plan may not be slower by the guard of the
    objective. It has to be faster in most rounds, in enough of them and of races, on a quiet
    machine.
    """
    row = entry.candidate
    base = share(row, reference)
    gain = objective.gain if entry.is_plain else objective.other_gain
    extra = objective.stolen_factor * row.stolen
    guard = share_of(row.guard_s) or 0.0
    most = rules.enough_rounds(row.rounds)
    is_stolen = row.stolen > rules.stolen and objective.stolen_factor > 0
    needed = objective.rounds[0] * (2 if is_stolen else 1)
    is_short = row.rounds < needed and row.rounds_won > 0
    if row.others > rules.busy:
        return f"{base}, but other programs used {row.others:.0%} of the processor time", True
    if ratio >= gain - extra:
        against = base if ratio >= 1 else f"{base}; {_limit(entry, gain, extra, objective)}"
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


def _limit(entry: Contender, gain: float, extra: float, objective: Objective) -> str:
    """The ratio below which a plan is taken, in words."""
    if objective.mode == "throughput":
        return f"a plan is taken from {1 / gain:.2f} times on"
    kind = "with a GPU, an NPU or a further engine"
    if entry.is_plain:
        kind = "for CPU cores with their first engine"
    text = f"a plan {kind} is taken below {gain:.2f}"
    if extra < 0.005:
        return text
    host = f"the host took {entry.candidate.stolen:.0%} of the processor time"
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


def explained(order: Sequence[Contender], is_final: bool = True) -> list[Candidate]:
    """The candidates of the plans in ``order``, with status and reason; the first one is taken.

    ``is_final``: whether it is the best plan whose outputs are compared. Otherwise proven plans are
    in doubt.
    """
    reference = next((e.candidate for e in order if e.standing.is_reference), None)
    taken, *other_contenders = order
    rows = [replace(taken.candidate, status="taken", reason=_why_taken(taken, reference))]
    for entry in other_contenders:
        row = entry.candidate
        if row.is_able and row.status != "left out":
            status: Status = "in doubt" if entry.standing.in_doubt else "not taken"
            if reference is not None and row.ratio is None and not entry.standing.is_reference:
                status = "untried"
            if not is_final and entry.plans and entry.standing.ratio < 1:
                status = "in doubt"
            row = replace(row, status=status, reason=_why_not_taken(entry, reference))
        rows.append(row)
    return rows


def _why_taken(entry: Contender, reference: Candidate | None) -> str:
    row = entry.candidate
    if entry.standing.is_reference:
        return "no other plan that may answer is proven to be faster"
    if reference is None or row.ratio is None:
        return "no plan was measured"
    if entry.standing.against is not None:
        return f"{entry.standing.against}; the plans before it may not answer"
    return (
        f"{share(row, reference)} {FIGURES[row.requests]}, and it was faster in {row.rounds_won} "
        f"of {row.rounds} rounds"
    )


def _why_not_taken(entry: Contender, reference: Candidate | None) -> str:
    if entry.standing.is_reference:
        return "the taken plan is clearly faster"
    if reference is None:
        return "no plan was measured"
    if entry.candidate.ratio is None:
        return "it was not raced yet"
    if entry.standing.against is not None:
        return entry.standing.against
    return f"{share(entry.candidate, reference)}; the taken plan is still faster"


def verdict(taken: Candidate, shapes: str) -> str:
    """A sentence about the taken plan, with the reason and the shapes of the inputs."""
    return f"{taken} is taken: {taken.reason}{f', for {shapes}' if shapes else ''}"
