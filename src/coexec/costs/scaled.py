"""Seconds of a task from measurements of equal operators at other sizes.

Between measured sizes the seconds are interpolated linearly by work, that is by the computation and
the moved bytes of a task. Beyond them the seconds follow ``launch + rate * work``, fitted with
least relative error and scaled to meet the nearest measured size. Where all measured sizes are
alike, the launch of the place is used.

The form does not model caches: an operator that only moves data takes three times as long for twice
the data, where the data leave a cache. The uncertainties cover this.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from coexec.costs.base import Prediction, Predictor, Sample, Unmeasured
from coexec.costs.estimated import Work, work_of

_ONE_SIZE = 0.15
_DOUBLING = 0.15
"""Uncertainty with one measured size or several alike, and the uncertainty that each doubling or
halving of the work adds. For the tasks of a network for text detection, nine of ten predictions
from one size were within 0.09 to 0.20 at 1.2 times the work, and within 0.24 to 0.28 at twice the
work, with two engines and two repetitions."""
_REPEATED = 0.10
"""Nine of ten repeated measurements differ by 0.04 to 0.13, so no prediction is better."""
_WIDE = 1.5
"""Least ratio of the largest to the smallest measured work at which the samples give a slope."""
_REACH = 3.0
"""Doublings or halvings of the work beyond which nothing is predicted."""


class _Point(NamedTuple):
    work_s: float
    """The work as seconds on a core with round figures: only ratios of it count."""
    seconds: float


class _Line(NamedTuple):
    launch_s: float
    rate: float

    def at(self, work_s: float) -> float:
        return self.launch_s + self.rate * work_s


def scaled(task: Unmeasured) -> Prediction | None:
    """The seconds of ``task``; None if no equal operators were measured near its size."""
    return scaled_by_work(work_of(task.graph, task.task), task.samples, task.launch_s)


def surest(*predictors: Predictor) -> Predictor:
    """A predictor that returns the least uncertain prediction of several predictors."""

    def predict(task: Unmeasured) -> Prediction | None:
        predictions = [prediction for p in predictors if (prediction := p(task)) is not None]
        return min(predictions, key=lambda prediction: prediction.uncertainty, default=None)

    return predict


def scaled_by_work(work: Work, samples: Sequence[Sample], launch_s: float) -> Prediction | None:
    """Predicted seconds of ``work``. They never fall with more work.

    At the work of a sample they are its measured seconds, if the samples do not fall with more work
    either; samples that fall are averaged. Straight lines are continued exactly.
    """
    at = work.rough_s()
    points = _points(samples)
    if at <= 0.0 or not points:
        return None
    beyond = max(0.0, math.log2(points[0].work_s / at), math.log2(at / points[-1].work_s))
    if beyond > _REACH:
        return None
    error = max(_REPEATED if _is_wide(points) else _ONE_SIZE, _left_out_error(points, launch_s))
    return Prediction(_seconds(at, points, launch_s), error + _DOUBLING * beyond)


def _points(samples: Sequence[Sample]) -> list[_Point]:
    """One point for each amount of work, in rising order. The seconds never fall from one point to
    the next (pool adjacent violators)."""
    by_work: dict[float, list[float]] = {}
    for sample in samples:
        if sample.work.rough_s() > 0.0 and sample.seconds > 0.0:
            by_work.setdefault(sample.work.rough_s(), []).append(sample.seconds)
    pools: list[tuple[list[float], list[float]]] = []
    for work_s, seconds in sorted(by_work.items()):
        pools.append(([work_s], list(seconds)))
        while len(pools) > 1 and _mean(pools[-2][1]) > _mean(pools[-1][1]):
            works_s, more = pools.pop()
            pools[-1][0].extend(works_s)
            pools[-1][1].extend(more)
    return [_Point(work_s, _mean(seconds)) for works_s, seconds in pools for work_s in works_s]


def _seconds(at: float, points: Sequence[_Point], launch_s: float) -> float:
    after = bisect_left(points, at, key=lambda p: p.work_s)
    if 0 < after < len(points):
        low, high = points[after - 1 : after + 1]
        share = (at - low.work_s) / (high.work_s - low.work_s)
        return min(high.seconds, low.seconds + share * (high.seconds - low.seconds))
    nearest = points[min(after, len(points) - 1)]
    line = _fitted(points, launch_s)
    return nearest.seconds * (line.at(at) / line.at(nearest.work_s))


def _is_wide(points: Sequence[_Point]) -> bool:
    return points[-1].work_s >= _WIDE * points[0].work_s


def _fitted(points: Sequence[_Point], launch_s: float) -> _Line:
    """Launch and rate with the least squared relative error, neither below 0."""
    # Each point is an equation: launch * a + rate * b = 1.
    rows = [(1 / p.seconds, p.work_s / p.seconds) for p in points]
    sum_a, sum_b = math.fsum(a for a, _ in rows), math.fsum(b for _, b in rows)
    aa, bb = math.fsum(a * a for a, _ in rows), math.fsum(b * b for _, b in rows)
    ab = math.fsum(a * b for a, b in rows)
    if not _is_wide(points):
        launch_s = min(launch_s, *(p.seconds for p in points))
        return _Line(launch_s, max(0.0, (sum_b - launch_s * ab) / bb))
    determinant = aa * bb - ab * ab
    launch, rate = sum_a * bb - sum_b * ab, sum_b * aa - sum_a * ab
    if launch <= 0.0 or determinant <= 0.0:
        return _Line(0.0, sum_b / bb)
    if rate <= 0.0:
        return _Line(sum_a / aa, 0.0)
    return _Line(launch / determinant, rate / determinant)


def _left_out_error(points: Sequence[_Point], launch_s: float) -> float:
    """Root mean square of the relative errors at the points, each predicted from all other points;
    0 for a single point."""
    errors = []
    for left_out in points if len(points) > 1 else ():
        other_points = [p for p in points if p is not left_out]
        errors.append(_seconds(left_out.work_s, other_points, launch_s) / left_out.seconds - 1.0)
    return math.sqrt(_mean([error * error for error in errors])) if errors else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
