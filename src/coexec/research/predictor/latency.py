"""Predicted seconds of tasks and of their parts, from the work of their kernels: CoDL's form.

The engine writes out the step functions of blocking (`Workload`): a kernel that computes four
blocks of channels together takes as long for three and a half. Only unit times are learned, by a
linear regression for each kind of kernel on each place, in which no unit time is negative
(`coexec.research.predictor.fitting`). A kind is about ten numbers.

Jia et al., "CoDL: Efficient CPU-GPU Co-execution for Deep Learning Inference on Mobile Devices",
MobiSys 2022. Handing over tensors and assembling them are costs of links and not included here.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from coexec.costs.base import Prediction, Unmeasured
from coexec.engines.base import OpenEngine
from coexec.engines.kernels.architecture import Architecture
from coexec.graph.graph import Operator, Task, Tensor
from coexec.graph.region import Region
from coexec.graph.rules import OperatorRegion
from coexec.graph.task_samples import TaskParts
from coexec.research.predictor import kernels, mlas
from coexec.research.predictor.fitting import fitted
from coexec.research.predictor.workloads import Workload, plain_workload

Describe = Callable[[Sequence[Operator], Mapping[str, Tensor], str], Workload]
"""The work of an engine's kernels for the operators of a task and their tensors; the text has the
types of the engine's own operators, separated by spaces, or nothing if they are not known."""

_LEAST_SAMPLES = 20
"""Least number of samples of a kind: with fewer, the error cannot be estimated."""
_FOLDS = 5
_KEPT = 0.9
"""Share of the predictions whose error is at most the uncertainty."""
_LEAST_ERROR = 0.05
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class KernelUnits:
    """Unit times learned for one kind of kernel on one place."""

    units_s: Mapping[str, float]
    """Seconds of one unit, by term of the workload; terms that take no time are left out."""
    terms: tuple[str, ...]
    """All terms of the kind, to recognise workloads of another version."""
    error: float
    """Relative error that nine of ten samples keep if they were not used for training."""

    def seconds(self, workload: Workload) -> float | None:
        """Seconds of ``workload``; None if its terms are not those of the training."""
        if workload.terms.keys() != set(self.terms):
            return None
        return math.fsum(unit * workload.terms[name] for name, unit in self.units_s.items())


TrainedUnits = Mapping[str, KernelUnits]
"""Unit times by kind of kernel."""


@dataclass(frozen=True)
class LatencyPredictor:
    """Predicts seconds on one place. It is a `Predictor`: callable with a task without
    measurement."""

    kinds: TrainedUnits
    describe: Describe

    def __call__(self, task: Unmeasured) -> Prediction | None:
        return self._predicted(task.task.operators, task.graph.tensors, task.operators, task.task)

    def part(self, parts: TaskParts, region: Region) -> Prediction | None:
        """Prediction for ``region`` of a task's main output; None if the kind of kernel is not
        known, or the task cannot be cut like this."""
        part = part_of_task(parts, region)
        return None if part is None else self._predicted(*part, "", parts.task)

    def shares(self, parts: TaskParts) -> Callable[[Region], float | None]:
        """Function from a region to its share of the whole task; see `TrainedPredictor`."""
        whole = self.part(parts, parts.whole)

        @cache
        def share(region: Region) -> float | None:
            part = None if whole is None else self.part(parts, region)
            return None if part is None or whole is None else min(1.0, part.seconds / whole.seconds)

        return share

    def _predicted(
        self,
        operators: Sequence[Operator],
        tensors: Mapping[str, Tensor],
        compiled: str,
        task: Task,
    ) -> Prediction | None:
        if task.opaque:
            return None
        workload = self.describe(operators, tensors, compiled)
        units = self.kinds.get(workload.kind)
        seconds = None if units is None else units.seconds(workload)
        if units is None or not seconds:
            return None
        return Prediction(seconds, units.error)


def part_of_task(
    parts: TaskParts, region: Region
) -> tuple[tuple[Operator, ...], Mapping[str, Tensor]] | None:
    """A part of a task as operators over tensors of its own size: the operators that compute
    ``region`` of the main output, and their tensors by name. None if the region is empty or cannot
    be computed by itself.

    Only the padding at the tensor's own borders is left, and only the weights that the region
    reads.
    """
    task, graph_tensors = parts.task, parts.graph.tensors
    if region == parts.whole:
        return task.operators, graph_tensors
    field = parts.receptive_field(region)
    if field is None or not field.operators:
        return None
    # Outputs without a reader are no tensors of the graph.
    names = (name for op in task.operators for name in (*op.inputs, *op.outputs))
    tensors = {name: graph_tensors[name] for name in names if name in graph_tensors}
    operators = []
    for op, cut in zip(task.operators, field.operators, strict=True):
        for name, read in zip(op.inputs, cut.inputs, strict=True):
            if name and read is not None:
                tensors[name] = _resized(tensors[name], read.shape)
        tensors[op.outputs[0]] = _resized(tensors[op.outputs[0]], cut.computes.shape)
        operators.append(_cut(op, cut))
    return tuple(operators), tensors


def _resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor if tensor.shape == shape else replace(tensor, shape=shape)


def _cut(op: Operator, cut: OperatorRegion) -> Operator:
    changed = {**op.attributes, **cut.attributes}
    attributes = {name: value for name, value in changed.items() if value is not None}
    return replace(op, attributes=attributes, constants={**op.constants, **cut.constants})


def describe(engine: OpenEngine) -> Describe:
    """The function that counts the work of an engine's kernels: a method ``workload`` of its own,
    or one of this package."""
    stated: Describe | None = getattr(engine, "workload", None)
    if stated is not None:
        return stated
    arch = getattr(engine, "arch", None)
    if isinstance(arch, Architecture):  # it compiles our kernels
        return lambda operators, tensors, compiled: kernels.workload(operators, tensors, arch)
    if engine.info.name == "onnxruntime":
        block = engine.dialect.block
        return lambda operators, tensors, compiled: mlas.workload(
            operators, tensors, compiled, block
        )
    return lambda operators, tensors, compiled: plain_workload(operators, tensors)


def predictor_of(engine: OpenEngine, texts: Mapping[str, str]) -> LatencyPredictor | None:
    """The predictor with stored numbers (`to_json`); None if another version wrote them."""
    try:
        return LatencyPredictor(from_json(texts), describe(engine))
    except ValueError:
        return None


def train(samples: Iterable[tuple[Workload, float]]) -> dict[str, KernelUnits]:
    """Unit times of each kind with enough samples.

    Args:
        samples: workloads and their measured seconds.
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
    """Relative error that most samples keep if the units are learned without them: cross-validation
    in which each fifth of the samples is left out in turn."""
    errors = []
    for fold in range(_FOLDS):
        training = [i for i in range(len(rows)) if i % _FOLDS != fold]
        units = fitted([rows[i] for i in training], [seconds[i] for i in training])
        for i in range(fold, len(rows), _FOLDS):
            predicted_s = math.fsum(u * t for u, t in zip(units, rows[i], strict=True))
            errors.append(abs(predicted_s / seconds[i] - 1.0))
    kept = sorted(errors)[math.ceil(_KEPT * len(errors)) - 1]
    return _rounded(max(_LEAST_ERROR, kept))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS - 1}e}")


def to_json(kinds: TrainedUnits) -> dict[str, str]:
    """The numbers of each kind as text, by kind."""
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
        ValueError: a text was not written by `to_json`.
    """
    units_by_kind = {}
    for kind, text in texts.items():
        try:
            data = json.loads(text)
            units = {str(n): float(unit) for n, unit in data["units_s"].items()}
            error = float(data["error"])
        except (KeyError, TypeError, AttributeError) as failure:
            raise ValueError(f"the numbers of kernel {kind!r} cannot be read") from failure
        kept = {name: unit for name, unit in units.items() if unit > 0.0}
        units_by_kind[kind] = KernelUnits(kept, tuple(units), error)
    return units_by_kind
