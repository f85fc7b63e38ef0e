"""The record of a choice: the candidates of planner "auto", with figures and reasons.

A decision is stored with the choice in the cache. `coexec explain` prints it, and
`InferenceSession.decision` returns it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from coexec.settings import MODE, Mode

__all__ = ["FIGURES", "Candidate", "Decision", "Requests", "Status"]

Requests = Literal["paced", "loop", "rested", "parallel"]
"""Pacing of requests: 30 a second, as a camera sends them; one after the other; each after a long
rest; or many at once."""
FIGURES: Mapping[Requests, str] = {
    "paced": "at up to 30 requests a second",
    "loop": "in a loop",
    "parallel": "with many requests at once",
}
"""The figures by which plans are compared, in words."""
Status = Literal["taken", "not taken", "left out", "refused", "untried"]
"""The plan answers requests; it might have been taken; it did not run, because of its prediction or
expectation; it cannot run or its outputs differ; or there was no time to try it."""


@dataclass(frozen=True)
class Candidate:
    """A configuration of devices with a plan for it."""

    devices: tuple[str, ...]
    planner: str
    predicted_s: float | None = None
    """Predicted seconds; None for a single device, which needs no profile."""
    paced_s: float | None = None
    """Median seconds of requests as a camera sends them; None if the plan did not run."""
    loop_s: float | None = None
    """Median seconds of requests one after the other."""
    per_s: float | None = None
    """Requests per second from several threads, in mode "throughput"."""
    expected_s: float | None = None
    """Expected seconds: of several devices before they were profiled, of a single device after all
    profiles. None if nothing is known, or if all configurations are tried because they are few."""
    requests: Requests = "paced"
    """The figure by which it was compared."""
    spread: float | None = None
    """Width of the middle half of the rounds over their median, by that figure."""
    ratio: float | None = None
    """Median over the rounds of its time, by that figure, over the time of the reference."""
    rounds: int = 0
    """Rounds in which it ran with the reference."""
    rounds_won: int = 0
    """Rounds in which it was faster than the reference."""
    engines: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The user's options of these engines."""
    own_session: bool = False
    """Whether the engine's own session runs the whole model."""
    comparison: str | None = None
    """Result of comparing its outputs with ONNX Runtime's; None if they were not compared."""
    status: Status = "not taken"
    reason: str = ""
    """The rule that ranked or excluded it, with the numbers."""

    @property
    def measured_s(self) -> float | None:
        """Median seconds by the figure by which it was compared."""
        if self.requests == "parallel":
            return None if self.per_s is None else 1 / self.per_s
        return self.paced_s if self.requests == "paced" else self.loop_s

    @property
    def is_able(self) -> bool:
        """Whether nothing is known that keeps it from answering requests."""
        return self.status not in ("refused", "untried")

    @property
    def is_ort_session(self) -> bool:
        """Whether it is ONNX Runtime's own session."""
        return self.own_session and self.engines == ("onnxruntime",)

    def __str__(self) -> str:
        text = ", ".join(self.devices)
        each = " each" if self.planner == "single" and len(self.devices) > 1 else ""
        if self.is_ort_session:
            return f"{text} (ONNX Runtime's own session{each})"
        return f"{text} ({self.planner}{each})" if self.planner else text


@dataclass(frozen=True)
class Decision:
    """The candidates of a choice, and the verdict."""

    candidates: tuple[Candidate, ...]
    """The taken one; those that ran, the best first; those that did not, by prediction; others."""
    verdict: str = ""
    """The taken plan and the reason, in a sentence."""
    mode: Mode = MODE
    requests: str = "both"
    """The rule `Rules.requests`."""
    reference: str | None = None
    """The candidate with which the others are compared; None if nothing was measured."""
    shapes: str = ""
    """The shapes of inputs that the model leaves open: the choice holds for these."""
    others: float = 0.0
    """Share of the processor time that other programs used while candidates ran."""
    stolen: float = 0.0
    """Share of the processor time that the host of a virtual machine took meanwhile."""
    doubt: str | None = None
    """Why the result is not certain; None if it is."""
    races: int = 1
    """Number of times that this choice was made."""
    seconds: float = 0.0
    """Time limit of the choice."""
    alone: bool = False
    """Whether only single devices were to be tried."""

    @property
    def taken(self) -> Candidate:
        return self.candidates[0]

    @property
    def untried(self) -> Sequence[Candidate]:
        """Candidates for which there was no time."""
        return [c for c in self.candidates if c.status == "untried"]

    def again(self, later: "Decision") -> "Decision":
        """This decision after a later one that has not tried its plan."""
        return replace(
            self,
            races=self.races + 1,
            seconds=max(self.seconds, later.seconds),
            alone=self.alone and later.alone,
        )

    def to_json(self) -> dict[str, Any]:
        """This decision as lists, dicts and numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Decision":
        """The inverse of `to_json`.

        Raises:
            KeyError, TypeError: it is no decision, or one of another version.
        """
        rows = [
            Candidate(**{**row, "devices": tuple(row["devices"]), "engines": tuple(row["engines"])})
            for row in data["candidates"]
        ]
        return cls(**{**data, "candidates": tuple(rows)})
