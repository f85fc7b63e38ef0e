"""The ways to run a model side by side: their figures in one race."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coexec.rules import current_rules
from coexec.selection.decision import Decision, Requests
from coexec.selection.ranking import is_clearly_faster
from coexec.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to run a model, with its figures. Ratios are over the figures of the base, which is
    ONNX Runtime; None: not measured."""

    name: str
    same_as: str | None = None
    """The way that ran in its place, because both are the same plan."""
    is_base: bool = False
    is_plan: bool = False
    predicted_s: float | None = None
    init_s: float | None = None
    warm_up_s: float | None = None
    paced_s: float | None = None
    """Median seconds of a request at 30 requests a second."""
    paced_p90_s: float | None = None
    paced_p99_s: float | None = None
    paced_ratio: float | None = None
    loop_s: float | None = None
    """The same in a loop."""
    loop_p90_s: float | None = None
    loop_p99_s: float | None = None
    loop_ratio: float | None = None
    requests_per_s: float | None = None
    """In a loop; in mode "throughput" from several threads."""
    share: float | None = None
    """Its time over the base's, by ``requests``."""
    requests: Requests = "paced"
    """The figure by which it was compared."""
    rounds: int = 0
    peak_bytes: int | None = None
    energy_j: float | None = None
    energy_unknown: str | None = None
    planner: str = ""
    status: str = ""
    """What "auto" did with it."""
    reason: str = ""
    """The rule by which "auto" took it or left it out."""

    @property
    def measured_s(self) -> float | None:
        """Median seconds by the figure by which it was compared."""
        if self.requests == "parallel":
            return None if self.requests_per_s is None else 1 / self.requests_per_s
        return self.paced_s if self.requests == "paced" else self.loop_s


def considered(decision: Decision | None) -> Iterator[Way]:
    """The candidates of planner "auto" with the figures of its race; none if ONNX Runtime's own
    session or the taken plan did not run in it."""
    candidates = () if decision is None else decision.candidates
    sessions = [each for each in candidates if each.is_ort_session and each.ratio is not None]
    if not sessions or candidates[0].ratio is None:
        return
    base = min(sessions, key=lambda each: each.ratio or 0.0)
    for each in candidates:
        yield Way(
            name=str(each),
            is_base=each is base,
            is_plan=each is candidates[0],
            predicted_s=each.expected_s if each.predicted_s is None else each.predicted_s,
            paced_s=each.paced_s,
            loop_s=each.loop_s,
            requests_per_s=each.per_s,
            share=each.ratio / base.ratio if each.ratio and base.ratio else None,
            requests=each.requests,
            rounds=each.rounds,
            planner=each.planner,
            status=each.status,
            reason=each.reason,
        )


def gain_in_words(ways: Sequence[Way], rounds_s: Mapping[str, Sequence[float]]) -> str:
    """Sentence about the time of the plan relative to the base and to the fastest single device:
    medians at 30 requests a second.

    Args:
        rounds_s: by name of a way, the median of each round.
    """
    p50_s = {way.name: way.paced_s or 0.0 for way in ways}
    plan = next(way.name for way in ways if way.is_plan)
    base = next(way.name for way in ways if way.is_base)
    alone = [name for name in p50_s if name not in (plan, base)]
    baselines = [base, *([min(alone, key=p50_s.__getitem__)] if alone else [])]
    shares = {name: p50_s[plan] / p50_s[name] for name in baselines}
    each = [f"{share:.2f} of the time of {name}" for name, share in shares.items()]
    both = f"{format_seconds(p50_s[plan])} a request in place of {format_seconds(p50_s[base])}"
    comparison = " and ".join([f"{each[0]} ({both})", *each[1:]])
    gains = [
        name
        for name in baselines
        if is_clearly_faster(
            tuple(zip(rounds_s[plan], rounds_s[name], strict=False)), current_rules()
        )
    ]
    if base not in gains:
        end = f"no gain over {base}; coexec optimize tries other ways"
    elif len(gains) == len(shares):
        end = "that is a gain"
    else:
        end = f"that is a gain over {base}, and none over {baselines[1]}"
    return f"{plan} takes {comparison}: {end}"
