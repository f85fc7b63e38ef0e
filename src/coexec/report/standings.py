"""Ways to run a model, their race, and its figures."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from coexec.plan.schedule import Segment
from coexec.report.energy import MeasuredEnergy, measured_energy
from coexec.selection.decision import Rounds
from coexec.selection.quiet_moment import REAL, Rest
from coexec.selection.race import REQUESTS, Outcome, race

__all__ = ["Row", "Standings", "race_rows"]


@dataclass
class Row:
    """One way to run the model, with the measurements outside of the race."""

    name: str
    predicted_s: float | None
    run: Callable[[], Any]
    peak: Callable[[], int | None]
    """Measures the peak memory in bytes."""
    segments: tuple[Segment, ...] | None = None
    """Segments in order; None if another program runs the model."""
    is_base: bool = False
    """Whether the times of this row are the base of all ratios."""
    init_s: float = 0.0
    warm_up_s: float = 0.0
    peak_bytes: int | None = None
    energy: MeasuredEnergy = field(default_factory=MeasuredEnergy)

    def is_same(self, other: "Row") -> bool:
        """Whether both run the same segments, so that their times differ by noise only."""
        return self.segments is not None and self.segments == other.segments


@dataclass(frozen=True)
class Standings:
    """The rows, and the result of their race."""

    rows: Sequence[Row]
    same_as: Mapping[str, str]
    """Name of the row with the same plan that ran in its place, by name of a row."""
    outcome: Outcome[str]

    @property
    def base(self) -> str:
        """Name of the row whose times are the base of all ratios."""
        return next(row.name for row in self.rows if row.is_base)

    @property
    def fastest_s(self) -> float:
        """Least median seconds of all rows, of both figures."""
        samples_s = (
            self.outcome.samples_s(name, figure)
            for name in self.outcome.laps
            for figure in REQUESTS
        )
        return min(map(statistics.median, samples_s))

    def rounds_s(self, plan: str, base: str) -> Rounds:
        """By round, the median seconds of two rows at 30 requests a second."""
        names = [self.same_as.get(name, name) for name in (plan, base)]
        return tuple(zip(*(self.outcome.rounds_s(n, "paced") for n in names), strict=False))

    def facts(self, row: Row) -> dict[str, Any]:
        """Facts of a row for the JSON document. A ratio is the row's median over the base's median
        of the same figure; both medians are in the document."""
        ran = self.same_as.get(row.name, row.name)
        facts: dict[str, Any] = {
            "name": row.name,
            "same_as": self.same_as.get(row.name),
            "init_s": row.init_s,
            "warm_up_s": row.warm_up_s,
            "predicted_s": row.predicted_s,
        }
        for figure in REQUESTS:
            samples_s = self.outcome.samples_s(ran, figure)
            median_s, p90_s, p99_s = map(float, np.percentile(samples_s, [50, 90, 99]))
            base_s = float(np.median(self.outcome.samples_s(self.base, figure)))
            facts |= {
                f"{figure}_s": median_s,
                f"{figure}_p90_s": p90_s,
                f"{figure}_p99_s": p99_s,
                f"{figure}_ratio": median_s / base_s,
            }
        facts["requests_per_s"] = 1 / statistics.fmean(self.outcome.samples_s(ran, "loop"))
        return facts | {"peak_bytes": row.peak_bytes} | asdict(row.energy)


def race_rows(rows: Sequence[Row], rounds: int) -> Standings:
    """Run the race of the rows, each plan once; then measure energy and memory of each plan."""
    ran_for = {row.name: next(r for r in rows if r is row or r.is_same(row)) for row in rows}
    different = [row for row in rows if ran_for[row.name] is row]
    for row in different:
        Rest().until_idle()  # threads of the previous row may still spin for work
        row.warm_up_s = REAL.timed(row.run)
        row.run()
    runs = {row.name: row.run for row in different}
    outcome, load = REAL.with_load(partial(race, runs, (rounds, rounds)))
    outcome = replace(outcome.complete(), others=load.share)
    for row in different:
        Rest().until_idle()
        row.energy = measured_energy(row.run)
        row.peak_bytes = row.peak()
    same_as = {row.name: ran_for[row.name].name for row in rows if row not in different}
    for row in (row for row in rows if row.name in same_as):
        ran = ran_for[row.name]
        row.init_s, row.warm_up_s = ran.init_s, ran.warm_up_s
        row.energy, row.peak_bytes = ran.energy, ran.peak_bytes
    return Standings(rows, same_as, outcome)
