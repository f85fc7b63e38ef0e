"""Which tasks of a model were measured on a place, which can be predicted, and which decide."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from coexec.costs.base import Prediction, Predictor, Sample, Unmeasured
from coexec.costs.estimated import Work, work_of
from coexec.ir.graph import Graph, Task
from coexec.ir.signature import family_of
from coexec.profiling.store import Measurement

__all__ = ["Outlook", "Step", "measured_as", "only_operators", "outlook", "steps_of"]

_DECIDES = 0.01
"""Share of the whole model that the errors of all equal tasks may come to. A plan is worth running
if it is predicted to gain 1 %."""
_BEHIND = " | "
"""Between a task and what the engine makes of it, which may differ with what stands around it: ONNX
Runtime changes layouts in some places and not in others."""


@dataclass(frozen=True, slots=True)
class Step:
    """A task as a place runs it."""

    task: Task
    operators: str
    """Types of the engine's operators, with spaces between."""
    family: str
    """Equal for equal operators at different sizes."""
    work: Work

    @property
    def signature(self) -> str:
        """Equal for tasks that take equally long."""
        return f"{self.task.signature}{_BEHIND}{self.operators}"


def measured_as(stored: Mapping[str, Measurement]) -> dict[str, dict[str, float]]:
    """By signature of a task, the seconds of each form in which the engine ran it: by the types of
    its operators."""
    found: dict[str, dict[str, float]] = {}
    for signature, measurement in stored.items():
        task, behind, operators = signature.rpartition(_BEHIND)
        if behind:
            found.setdefault(task, {})[operators] = measurement.seconds
    return found


def steps_of(graph: Graph, tasks: Iterable[Task], operators: Mapping[str, str]) -> list[Step]:
    """``tasks`` as steps; ``operators`` are the engine's, by name of the task."""
    return [
        Step(t, operators[t.name], _family(graph, t, operators[t.name]), work_of(graph, t))
        for t in tasks
    ]


def only_operators(
    graph: Graph, tasks: Iterable[Task], stored: Mapping[str, Measurement]
) -> Mapping[str, str] | None:
    """The operators of each task, told from what was measured: nothing has to be compiled.

    None if equal tasks were not measured, or as several kinds of operators.
    """
    kinds: dict[str, set[str]] = {}
    for measurement in stored.values():
        family, _, operators = measurement.family.rpartition(_BEHIND)
        kinds.setdefault(family, set()).add(operators)
    found = {t.name: kinds.get(family_of(t, graph.tensors), set()) for t in tasks}
    if any(len(operators) != 1 for operators in found.values()):
        return None
    return {name: next(iter(operators)) for name, operators in found.items()}


@dataclass(frozen=True)
class Outlook:
    """What is known of the steps of a model on a place, and what can be predicted."""

    steps: Sequence[Step]
    stored: Mapping[str, Measurement]
    """By signature, of any model."""
    predictions: Mapping[str, Prediction]
    """By signature, of what is not stored."""

    def seconds(self, step: Step) -> float:
        """What ``step`` takes, measured or predicted; it has to be one of both."""
        known = self.stored.get(step.signature)
        return self.predictions[step.signature].seconds if known is None else known.seconds

    @cached_property
    def deciding(self) -> set[str]:
        """The signatures to measure: those without a prediction, or whose errors may matter.

        They may if they come to more than a hundredth of the model, all equal tasks together.
        """
        counts = Counter(step.signature for step in self.steps)
        told = self.predictions.keys() | self.stored.keys()
        whole_s = sum(self.seconds(s) for s in self.steps if s.signature in told)
        mattering = {
            s
            for s, p in self.predictions.items()
            if counts[s] * p.seconds * p.uncertainty > _DECIDES * whole_s
        }
        return (counts.keys() - told) | mattering


def outlook(
    graph: Graph, steps: Sequence[Step], stored: Mapping[str, Measurement], predictor: Predictor,
    key: str, launch_s: float,
) -> Outlook:  # fmt: skip
    """``predictor`` is asked for the steps that are not ``stored``."""
    samples: dict[str, list[Sample]] = {}
    for measurement in stored.values():
        sample = Sample(measurement.work, measurement.seconds)
        samples.setdefault(measurement.family, []).append(sample)
    missing = {s.signature: s for s in steps if s.signature not in stored}
    found = {
        signature: predictor(
            Unmeasured(graph, s.task, s.operators, key, launch_s, samples.get(s.family, ()))
        )
        for signature, s in missing.items()
    }
    return Outlook(steps, stored, {s: said for s, said in found.items() if said is not None})


def _family(graph: Graph, task: Task, operators: str) -> str:
    return f"{family_of(task, graph.tensors)}{_BEHIND}{operators}"
