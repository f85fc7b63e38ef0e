"""Seconds of tasks and of their parts, from what their kernels do: CoDL's form.

The step functions of blocking are written out by the engine (`Workload`): a kernel that computes
four blocks of channels together takes as long for three and a half. Only unit times are learnt, by
a linear regression for each kind of kernel on each place, in which no unit time is negative
(`coexec.costs.fitting`). A kind is some ten numbers.

Jia et al., "CoDL: Efficient CPU-GPU Co-execution for Deep Learning Inference on Mobile Devices",
MobiSys 2022. Handing tensors over and putting them together are costs of links and not in here.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coexec.costs.base import Prediction, Predictor, Unmeasured, Workload
from coexec.costs.fitting import fitted
from coexec.costs.part import part_of_task
from coexec.ir.graph import Operator, Task, Tensor
from coexec.ir.parts import TaskParts
from coexec.ir.region import Region

__all__ = ["Describe", "KernelUnits", "LatencyPredictor", "PartShares", "TrainedUnits", "from_json",
           "surest", "to_json", "train"]  # fmt: skip

Describe = Callable[[Sequence[Operator], Mapping[str, Tensor], str], Workload]
"""`OpenEngine.workload`: what an engine's kernels do for the operators of a task."""

_LEAST_SAMPLES = 20
"""Of a kind: with fewer, errors cannot be told."""
_FOLDS = 5
_KEPT = 0.9
"""Share of the predictions that keep the uncertainty."""
_LEAST_ERROR = 0.05
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class KernelUnits:
    """What is learnt of one kind of kernel on one place."""

    units_s: Mapping[str, float]
    """By term of the workload, the seconds of a unit; terms that take none are left out."""
    terms: tuple[str, ...]
    """All terms of the kind, to tell workloads of another version."""
    error: float
    """Relative, which nine of ten samples keep that were not learnt from."""

    def seconds(self, workload: Workload) -> float | None:
        """None if the workload has other terms than those that were learnt."""
        if workload.terms.keys() != set(self.terms):
            return None
        return math.fsum(unit * workload.terms[name] for name, unit in self.units_s.items())


TrainedUnits = Mapping[str, KernelUnits]
"""By kind of kernel."""


@dataclass(frozen=True)
class LatencyPredictor:
    """Predicts on one place. Called with a task that was not measured, it is a `Predictor`."""

    kinds: TrainedUnits
    describe: Describe

    def __call__(self, task: Unmeasured) -> Prediction | None:
        return self._predicted(task.task.operators, task.graph.tensors, task.operators, task.task)

    def part(self, parts: TaskParts, region: Region) -> Prediction | None:
        """Of ``region`` of a task's main output; None if the kind of kernel is not known, or the
        task cannot be cut so."""
        found = part_of_task(parts, region)
        return None if found is None else self._predicted(*found, "", parts.task)

    def _predicted(
        self, operators: Sequence[Operator], tensors: Mapping[str, Tensor], compiled: str,
        task: Task,
    ) -> Prediction | None:  # fmt: skip
        if task.opaque:
            return None
        workload = self.describe(operators, tensors, compiled)
        units = self.kinds.get(workload.kind)
        seconds = None if units is None else units.seconds(workload)
        if units is None or not seconds:
            return None
        return Prediction(seconds, units.error)


class PartShares:
    """Seconds of the parts of a task relative to those of the whole, as predicted on a place."""

    def __init__(self, predictor: LatencyPredictor, parts: TaskParts) -> None:
        self._predictor, self._parts = predictor, parts
        self._known: dict[Region, float | None] = {}

    @cached_property
    def _whole(self) -> Prediction | None:
        return self._predictor.part(self._parts, self._parts.whole)

    def of(self, region: Region) -> float | None:
        """At most 1; None if the part or the whole cannot be predicted."""
        if region not in self._known:
            whole, part = self._whole, self._predictor.part(self._parts, region)
            share = None if part is None or whole is None else part.seconds / whole.seconds
            self._known[region] = None if share is None else min(1.0, share)
        return self._known[region]


def surest(*predictors: Predictor) -> Predictor:
    """The prediction of least uncertainty of several predictors."""

    def predict(task: Unmeasured) -> Prediction | None:
        found = [said for p in predictors if (said := p(task)) is not None]
        return min(found, key=lambda said: said.uncertainty, default=None)

    return predict


def train(samples: Iterable[tuple[Workload, float]]) -> dict[str, KernelUnits]:
    """Unit times of each kind of which there are samples enough.

    Args:
        samples: workloads and the seconds that they took.
    """
    by_kind: dict[str, list[tuple[Workload, float]]] = {}
    for workload, seconds in samples:
        if seconds > 0.0:
            by_kind.setdefault(workload.kind, []).append((workload, seconds))
    enough = {k: rows for k, rows in by_kind.items() if len(rows) >= _LEAST_SAMPLES}
    return {kind: _learnt(rows) for kind, rows in sorted(enough.items())}


def _learnt(samples: Sequence[tuple[Workload, float]]) -> KernelUnits:
    names = tuple(samples[0][0].terms)
    rows = [[workload.terms[name] for name in names] for workload, _ in samples]
    seconds = [taken for _, taken in samples]
    units = fitted(rows, seconds)
    kept = {n: _rounded(unit) for n, unit in zip(names, units, strict=True) if unit > 0.0}
    return KernelUnits(kept, names, _error(rows, seconds))


def _error(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> float:
    """Which most samples keep that the units were not learnt from: each fifth in turn."""
    errors = []
    for fold in range(_FOLDS):
        taught = [i for i in range(len(rows)) if i % _FOLDS != fold]
        units = fitted([rows[i] for i in taught], [seconds[i] for i in taught])
        for i in range(fold, len(rows), _FOLDS):
            said = math.fsum(u * t for u, t in zip(units, rows[i], strict=True))
            errors.append(abs(said / seconds[i] - 1.0))
    kept = sorted(errors)[math.ceil(_KEPT * len(errors)) - 1]
    return _rounded(max(_LEAST_ERROR, kept))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")


def to_json(kinds: TrainedUnits) -> dict[str, str]:
    """By kind, its numbers as text."""
    return {
        kind: json.dumps(
            {"error": k.error, "units_s": {t: k.units_s.get(t, 0) for t in k.terms}},
            separators=(",", ":"),
        )
        for kind, k in kinds.items()
    }


def from_json(texts: Mapping[str, str]) -> dict[str, KernelUnits]:
    """Inverse of `to_json`.

    Raises:
        ValueError: a text was not written by it.
    """
    found = {}
    for kind, text in texts.items():
        try:
            data = json.loads(text)
            units = {str(n): float(unit) for n, unit in data["units_s"].items()}
            error = float(data["error"])
        except (KeyError, TypeError, AttributeError) as failure:
            raise ValueError(f"the numbers of kernel {kind!r} cannot be read") from failure
        kept = {name: unit for name, unit in units.items() if unit > 0.0}
        found[kind] = KernelUnits(kept, tuple(units), error)
    return found
