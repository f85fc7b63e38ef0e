"""The record of a choice: the candidates of planner "auto", with figures and reasons.

A decision is stored with the choice in the cache. `coexec explain` prints it, and
`InferenceSession.decision` returns it.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from coexec.codec import decode
from coexec.engines.names import parse
from coexec.settings import MODE, Mode
from coexec.units import format_seconds

Requests = Literal["paced", "loop", "rested", "parallel"]
"""Pacing of requests: 30 a second, as a camera sends them; one after the other; each after a long
rest; or many at once."""
FIGURES: Mapping[Requests, str] = {
    "paced": "at up to 30 requests a second",
    "loop": "in a loop",
    "parallel": "with many requests at once",
}
"""The figures by which plans are compared, in words."""
Status = Literal["taken", "not taken", "in doubt", "left out", "refused", "untried"]
"""The plan answers requests; another one is better; it may be faster than the reference, but its
rounds do not prove it; it did not run, because of its prediction or expectation; it cannot run or
its outputs differ; or there was no time to try it."""
Rounds = tuple[tuple[float, float], ...]
"""By round of a race, the median seconds of a plan and of the reference."""
Key = tuple[tuple[str, ...], str]
"""Devices and planner, which tell the candidates of a decision apart."""


_LEAST_GAIN = 1.05
"""Smallest gain of a lower precision that is offered."""


def share_of(rounds_s: Rounds) -> float | None:
    """Time of a plan over the time of the reference, None without rounds: the ratio of the medians,
    or the median of the ratios by round if that is larger.

    A disturbance that lasts a round changes the first of them, one that lasts a part of a round the
    second.
    """
    if not rounds_s:
        return None
    own_s, reference_s = zip(*rounds_s, strict=True)
    of_medians = statistics.median(own_s) / statistics.median(reference_s)
    return float(max(of_medians, statistics.median(own / ref for own, ref in rounds_s)))


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
    rounds_s: Rounds = ()
    """Its rounds with the reference by that figure, of all races; the reference's own with itself.
    """
    guard_s: Rounds = ()
    """The same by the figure by which it may not be slower."""
    starts: int = 0
    """Number of races with these rounds, each with a new start of both plans."""
    stolen: float = 0.0
    """Share of the processor time that the host of a virtual machine took in these rounds."""
    others: float = 0.0
    """Share of the processor time that other programs used in these rounds."""
    plan: str = ""
    """Digest of the plan: rounds of another plan do not count."""
    engines: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The user's options of these engines."""
    precision: str = ""
    """The number of tasks in each precision lower than float32: "51 of 53 tasks in bf16"; "": all
    are computed in float32."""
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
    def is_open(self) -> bool:
        """Whether a further race may show that it is the fastest."""
        return self.status in ("in doubt", "untried")

    @property
    def key(self) -> Key:
        return self.devices, self.planner

    @property
    def is_single(self) -> bool:
        return len(self.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores only, with their first engine."""
        requests = [parse(name) for name in self.devices]
        return all(request.kind == "cpu" and not request.engine for request in requests)

    @property
    def rank_unmeasured(self) -> tuple[bool, bool, bool]:
        """Order without figures: single devices first, then CPU cores with their first engine, then
        float32."""
        return not self.is_single, not self.is_plain, bool(self.precision)

    @property
    def rounds(self) -> int:
        """Number of rounds in which it ran with the reference."""
        return len(self.rounds_s)

    @property
    def rounds_won(self) -> int:
        """Number of rounds in which it was faster than the reference."""
        return sum(own_s < reference_s for own_s, reference_s in self.rounds_s)

    @property
    def reference_s(self) -> float | None:
        """Median seconds of the reference in the rounds of this candidate."""
        return statistics.median(s for _, s in self.rounds_s) if self.rounds_s else None

    @property
    def ratio(self) -> float | None:
        """Its time over the reference's, by `share_of`; None without rounds."""
        return share_of(self.rounds_s)

    @property
    def spread(self) -> float | None:
        """Width of the middle half of its rounds over their median; None for less than four."""
        if self.rounds < 4:
            return None
        low, median, high = statistics.quantiles([own_s for own_s, _ in self.rounds_s], n=4)
        return (high - low) / median

    @property
    def is_ort_session(self) -> bool:
        """Whether it is ONNX Runtime's own session, on CPU cores or with an execution provider."""
        return self.own_session

    def excluded(self, reason: str, status: Status = "refused") -> "Candidate":
        """This candidate with the reason why it may not answer requests."""
        return replace(self, status=status, reason=reason)

    def __str__(self) -> str:
        text = ", ".join(self.devices)
        how = "ONNX Runtime's own session" if self.is_ort_session else self.planner
        if self.planner == "single" and not self.is_single:
            how += " each"
        named = {parse(name).engine for name in self.devices}
        if "" not in named:
            how += "".join(f", with {engine}" for engine in self.engines if engine not in named)
        return f"{text} ({how})" if how else text


@dataclass(frozen=True)
class Offer:
    """What a lower precision, which the settings do not allow, gives on this machine."""

    device: str
    """The device with engine and precision: "cpu:0-1/openvino:bf16"."""
    seconds: float
    """Median seconds of a request, by the figure that ranks plans."""
    gain: float
    """Seconds of the taken plan over these, in the same rounds."""
    error: float
    """Largest difference of the outputs from ONNX Runtime's, relative to the largest value."""
    tolerance: float | None = None
    """The tolerance that it needs; None: the default of the precision."""

    def __str__(self) -> str:
        needed = "" if self.tolerance is None else f" --tolerance {self.tolerance:g}"
        return (
            f"with --precision {parse(self.device).precision}{needed}: "
            f"{format_seconds(self.seconds)}, {self.gain:.2g} times as fast, error "
            f"{self.error:.1g} of the largest value"
        )


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
    """Largest share of the processor time that the host of a virtual machine took in a race."""
    passes: int = 1
    """Number of times that candidates were raced for this choice."""
    idle_passes: int = 0
    """Number of the last passes that have settled no candidate. After `Rules.most_idle_passes` no
    further pass is made."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """By engine of which there are no candidates because it fails on this machine, the reason."""
    offer: Offer | None = None
    """What a lower precision would give; None: nothing was measured, or nothing is there."""

    @property
    def offered(self) -> str | None:
        """The offer in words; None if there is none, or if it gains too little."""
        return str(self.offer) if self.offer and self.offer.gain >= _LEAST_GAIN else None

    @property
    def precision(self) -> str | None:
        """The precision of the taken plan and its error; or, if that is float32, by how much plans
        in a lower one differ too much. None if there are none."""
        taken = self.taken
        if taken.precision:
            return "; ".join(filter(None, (taken.precision, taken.comparison)))
        too_wrong = [c for c in self.candidates if c.precision and c.status == "refused"]
        return f"float32, because of {too_wrong[0]}: {too_wrong[0].reason}" if too_wrong else None

    @property
    def taken(self) -> Candidate:
        return self.candidates[0]

    @property
    def reference_row(self) -> Candidate | None:
        """The candidate with which the others are compared."""
        return next((c for c in self.candidates if str(c) == self.reference), None)

    @property
    def untried(self) -> Sequence[Candidate]:
        """Candidates for which there was no time."""
        return [c for c in self.candidates if c.status == "untried"]

    @property
    def doubt(self) -> str | None:
        """The rows that a further pass may change; None if nothing may win that is not settled."""
        texts = [f"{c}: {c.reason}" for c in self.candidates if c.status == "in doubt"]
        if names := list(dict.fromkeys("+".join(c.devices) for c in self.untried)):
            texts.append(f"there was no time to try {', '.join(names)}")
        return "; ".join(texts) or None

    def to_json(self) -> dict[str, Any]:
        """This decision as lists, dicts and numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Decision":
        """The inverse of `to_json`.

        Raises:
            CodecError: it is no decision, or one of another version.
        """
        return decode(cls, data)
