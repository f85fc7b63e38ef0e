"""The decisions of planner "auto" as text."""

from collections.abc import Iterator, Mapping

from coexec.cli.console import labelled
from coexec.selection.decision import FIGURES, Candidate, Decision
from coexec.units import format_seconds

_LABELS: Mapping[str, str] = {"refused": "left out", "untried": "not tried"}
"""Labels of the states of candidates that are not called by their own name."""
_RANKED: Mapping[str, str] = {
    "both": ", by which plans are ranked; in a loop: one request after the other, by which a plan "
    "may not be slower",
    "paced": ", by which plans are ranked; in a loop: one request after the other",
    "loop": "; in a loop: one request after the other, by which plans are ranked",
}


def decision_lines(decision: Decision | None) -> Iterator[str]:
    """What "auto" considered, and its verdict; nothing for another planner."""
    if decision is not None:
        yield from candidate_lines(decision)
        yield from labelled(
            {
                "verdict": decision.verdict,
                "precision": decision.precision,
                "doubt": decision.doubt,
                "offer": decision.offered,
            }
        )


def candidate_lines(decision: Decision, first: str = "taken") -> Iterator[str]:
    """The configurations that "auto" considered, one per line.

    Args:
        first: label of the one that was taken.
    """
    for number, candidate in enumerate(decision.candidates):
        label = _LABELS.get(candidate.status, candidate.status) if number else first
        line = format_candidate(candidate).replace("the taken plan", f"the {first} plan")
        yield f"{label:10} {line}"
    for reason in decision.failing.values():
        yield from labelled({"left out": reason})
    if decision.reference is not None:
        others = "the others are compared with it, each in rounds of its own"
        figures = f"paced: {FIGURES['paced']}{_RANKED[decision.requests]}"
        yield from labelled(
            {
                "reference": f"{decision.reference}: {others}",
                "figures": figures if decision.mode == "latency" else None,
            }
        )


def format_candidate(candidate: Candidate) -> str:
    """A line of text about a configuration that "auto" considered."""
    facts = [candidate.precision] if candidate.precision else []
    facts += [
        f"{what} {format_seconds(seconds)}"
        for what, seconds in (
            ("expected", candidate.expected_s),
            ("predicted", candidate.predicted_s),
        )
        if seconds is not None
    ]
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
    comparison = None if candidate.is_ort_session else candidate.comparison
    facts += [text for text in dict.fromkeys((candidate.reason, comparison)) if text]
    return f"{candidate}: {'; '.join(facts)}" if facts else str(candidate)
