"""Candidates of "auto" as text."""

from collections.abc import Sequence

from coexec.cli.console import out
from coexec.selection.prepared import Candidate, Requests
from coexec.selection.race import REQUESTS
from coexec.units import format_seconds

__all__ = ["format_candidate", "print_candidates"]


def print_candidates(candidates: Sequence[Candidate]) -> None:
    """Print the configurations that "auto" considered, one per line; the first one was chosen."""
    for number, candidate in enumerate(candidates):
        out.print(f"{'tried' if number else 'taken':10} {format_candidate(candidate)}")


def format_candidate(candidate: Candidate) -> str:
    """A line of text about a configuration that "auto" considered."""
    text = ", ".join(candidate.devices)
    if candidate.refused is not None:
        return f"{text}: {candidate.refused}"
    text += f" ({candidate.planner})"
    facts = []
    if candidate.predicted_s is not None:
        facts.append(f"predicted {format_seconds(candidate.predicted_s)}")
    figures: dict[Requests, float | None] = {"paced": candidate.paced_s, "loop": candidate.loop_s}
    measured = [
        f"{format_seconds(seconds)} {REQUESTS[requests]}"
        + (" (this figure decided)" if requests == candidate.requests else "")
        for requests, seconds in figures.items()
        if seconds is not None
    ]
    if measured:
        varies = "" if candidate.spread is None else f", varying by {candidate.spread:.0%}"
        facts.append(f"measured {', '.join(measured)}{varies}")
    if candidate.note is not None:
        facts.append(candidate.note)
    return f"{text}: {', '.join(facts)}" if facts else text
