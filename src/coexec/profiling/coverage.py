"""Which tasks of a model were measured on a place, can be predicted, or have to be measured."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coexec.costs.base import Prediction, Predictor, Sample, Unmeasured
from coexec.costs.estimated import Work, work_of
from coexec.costs.scaled import scaled_by_work
from coexec.graph.graph import Graph, Task
from coexec.graph.signature import family_of
from coexec.profiling.store import Measurement

_DECIDES = 0.01
"""Largest error of all equal tasks together, as a share of the whole model's time. A plan is worth
running if it is predicted to gain 1 %."""
_BEHIND = " | "
"""Separates a task from the operators of its compiled form in a signature. Equal tasks may have
different forms, because ONNX Runtime changes layouts at some positions of a model only."""


@dataclass(frozen=True, slots=True)
class Step:
    """A task in the form in which a place runs it."""

    task: Task
    operators: str
    """Types of the engine's operators, with spaces between."""
    family: str
    """Equal for equal operators at different sizes."""
    work: Work

    @property
    def signature(self) -> str:
        """Key of the measurement; equal for tasks with equal times."""
        return f"{self.task.signature}{_BEHIND}{self.operators}"


def measured_as(stored: Mapping[str, Measurement]) -> dict[str, dict[str, float]]:
    """Measured seconds, by signature of a task and by its form: the types of the operators that the
    engine ran."""
    seconds_by_task: dict[str, dict[str, float]] = {}
    for signature, measurement in stored.items():
        task, behind, operators = signature.rpartition(_BEHIND)
        if behind:
            seconds_by_task.setdefault(task, {})[operators] = measurement.seconds
    return seconds_by_task


def steps_of(graph: Graph, tasks: Iterable[Task], operators: Mapping[str, str]) -> list[Step]:
    """``tasks`` as steps; ``operators``: the engine's operators, by name of the task."""
    return [
        Step(t, operators[t.name], _family(graph, t, operators[t.name]), work_of(graph, t))
        for t in tasks
    ]


def only_operators(
    graph: Graph, tasks: Iterable[Task], stored: Mapping[str, Measurement]
) -> Mapping[str, str] | None:
    """The operators of each task, derived from stored measurements without compiling.

    None if a task of the same family was not measured, or in more than one form.
    """
    kinds: dict[str, set[str]] = {}
    for measurement in stored.values():
        family, _, operators = measurement.family.rpartition(_BEHIND)
        kinds.setdefault(family, set()).add(operators)
    forms = {t.name: kinds.get(family_of(t, graph.tensors), set()) for t in tasks}
    if any(len(operators) != 1 for operators in forms.values()):
        return None
    return {name: next(iter(operators)) for name, operators in forms.items()}


@dataclass(frozen=True)
class Outlook:
    """The steps of a model on a place, with measurements and predictions of their times."""

    steps: Sequence[Step]
    stored: Mapping[str, Measurement]
    """Measurements of tasks of any model, by signature."""
    predictions: Mapping[str, Prediction]
    """Predictions for steps without a measurement, by signature."""

    def seconds(self, step: Step) -> float:
        """Measured or predicted seconds of ``step``. One of them has to exist."""
        measurement = self.stored.get(step.signature)
        return (
            self.predictions[step.signature].seconds if measurement is None else measurement.seconds
        )

    @cached_property
    def deciding(self) -> set[str]:
        """Signatures to measure: those without a prediction, and those with too large an error.

        An error is too large if it is more than a hundredth of the model's time, for all equal
        tasks together.
        """
        counts = Counter(step.signature for step in self.steps)
        timed = self.predictions.keys() | self.stored.keys()
        whole_s = sum(self.seconds(s) for s in self.steps if s.signature in timed)
        mattering = {
            s
            for s, p in self.predictions.items()
            if counts[s] * p.seconds * p.uncertainty > _DECIDES * whole_s
        }
        return (counts.keys() - timed) | mattering


def outlook(
    graph: Graph,
    steps: Sequence[Step],
    stored: Mapping[str, Measurement],
    predictor: Predictor,
    key: str,
    launch_s: float,
) -> Outlook:
    """The outlook for ``steps``, with predictions by ``predictor`` for those not in ``stored``."""
    samples: dict[str, list[Sample]] = {}
    for measurement in stored.values():
        sample = Sample(measurement.work, measurement.seconds)
        samples.setdefault(measurement.family, []).append(sample)
    missing = {s.signature: s for s in steps if s.signature not in stored}
    predictions = {
        signature: predictor(
            Unmeasured(graph, s.task, s.operators, key, launch_s, samples.get(s.family, ()))
        )
        for signature, s in missing.items()
    }
    return Outlook(steps, stored, {s: p for s, p in predictions.items() if p is not None})


def known_seconds(
    graph: Graph, stored: Mapping[str, Measurement], predictor: Predictor | None
) -> dict[str, float]:
    """Seconds by task on one place, without compiling; tasks of which nothing is known are left
    out.

    A task takes its measured seconds, the mean if the engine ran it in several forms; otherwise
    those that equal operators at other sizes give, by work; otherwise those of the predictor.

    Args:
        stored: measurements of any models on the place.
        predictor: the place's trained predictor; None if there is none.
    """
    forms = measured_as(stored)
    samples: dict[str, list[Sample]] = {}
    for measurement in stored.values():
        family, _, _ = measurement.family.rpartition(_BEHIND)
        samples.setdefault(family, []).append(Sample(measurement.work, measurement.seconds))

    def seconds(task: Task) -> float | None:
        if (measured := forms.get(task.signature)) is not None:
            return sum(measured.values()) / len(measured)
        of_family = samples.get(family_of(task, graph.tensors), ())
        prediction = scaled_by_work(work_of(graph, task), of_family, 0.0)
        if prediction is None and predictor is not None:
            prediction = predictor(Unmeasured(graph, task, "", "", 0.0, ()))
        return None if prediction is None else prediction.seconds

    known = {task.name: seconds(task) for task in graph.tasks}
    return {name: taken_s for name, taken_s in known.items() if taken_s is not None}


def _family(graph: Graph, task: Task, operators: str) -> str:
    return f"{family_of(task, graph.tensors)}{_BEHIND}{operators}"
