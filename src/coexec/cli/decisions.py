"""The decisions of planner "auto" as text."""

from collections.abc import Mapping

from coexec.cli.console import out
from coexec.selection.decision import FIGURES, Candidate, Decision
from coexec.units import format_seconds

__all__ = ["format_candidate", "print_candidates", "print_decision"]

_LABELS: Mapping[str, str] = {"refused": "left out", "untried": "not tried"}
"""Labels of the states of candidates that are not called by their own name."""
_FIGURES: Mapping[str, str] = {
    "both": "paced: {paced}, by which plans are ranked; in a loop: one request after the other, by "
    "which a plan may not be slower",
    "paced": "paced: {paced}, by which plans are ranked; in a loop: one request after the other",
    "loop": "paced: {paced}; in a loop: one request after the other, by which plans are ranked",
}


def print_decision(decision: Decision | None) -> None:
    """Print what "auto" considered, and its verdict; nothing for another planner."""
    if decision is None:
        return
    print_candidates(decision)
    out.print(f"{'verdict':10} {decision.verdict}")
    if decision.doubt is not None:
        out.print(f"{'doubt':10} {decision.doubt}")


def print_candidates(decision: Decision, first: str = "taken") -> None:
    """Print the configurations that "auto" considered, one per line.

    Args:
        first: label of the one that was taken.
    """
    for number, candidate in enumerate(decision.candidates):
        label = _LABELS.get(candidate.status, candidate.status) if number else first
        line = format_candidate(candidate).replace("the taken plan", f"the {first} plan")
        out.print(f"{label:10} {line}")
    if decision.reference is not None:
        reference = (
            f"{decision.reference}: the others are compared with it, each in rounds of its own"
        )
        out.print(f"{'reference':10} {reference}")
        if decision.mode == "latency":
            figures = _FIGURES[decision.requests].format(paced=FIGURES["paced"])
            out.print(f"{'figures':10} {figures}")


def format_candidate(candidate: Candidate) -> str:
    """A line of text about a configuration that "auto" considered."""
    facts = []
    if candidate.expected_s is not None:
        facts.append(f"expected {format_seconds(candidate.expected_s)}")
    if candidate.predicted_s is not None:
        facts.append(f"predicted {format_seconds(candidate.predicted_s)}")
    beside = ""
    if candidate.reference_s is not None and candidate.ratio != 1:
        beside = f" (beside {format_seconds(candidate.reference_s)} of the reference in its rounds)"
    measured = [
        f"{format_seconds(seconds)} {words}{beside if figure == candidate.requests else ''}"
        for figure, words, seconds in (
            ("paced", "paced", candidate.paced_s),
            ("loop", "in a loop", candidate.loop_s),
        )
        if seconds is not None
    ]
    if candidate.per_s is not None:
        measured.append(f"{candidate.per_s:.1f} requests a second")
    if measured:
        varies = "" if candidate.spread is None else f", varying by {candidate.spread:.0%}"
        facts.append(f"measured {', '.join(measured)}{varies}")
    facts += [text for text in (candidate.reason, _outputs(candidate)) if text]
    return f"{candidate}: {'; '.join(facts)}" if facts else str(candidate)


def _outputs(candidate: Candidate) -> str | None:
    """The result of the comparison of outputs, unless the reason says it."""
    if candidate.is_ort_session or candidate.comparison == candidate.reason:
        return None
    return candidate.comparison
