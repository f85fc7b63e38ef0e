"""Compares every task, by itself, with ONNX Runtime on the same inputs.

ONNX Runtime runs the tasks of the simplified model one after the other, in the model's own
operators. Its tensors are the inputs of the same task, or of a piece of it, on an engine. So the
first task that differs is wrong itself. A result that ONNX's own evaluator confirms is not wrong:
some functions of ONNX Runtime are approximations.

The segments of a plan are compared in the same way: one that differs although none of its tasks
does is wrong in what the engine makes of the tasks together. Not compared are transfers, and memory
that values share.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coexec.arrays import is_float
from coexec.engines.opened import OpenDevice, engine_at
from coexec.engines.reference import evaluator_of
from coexec.errors import CoexecError, ModelError, first_line
from coexec.graph.graph import Graph, Piece, Task, tensor_part
from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.lowering.module import Module
from coexec.lowering.text import text_of
from coexec.model.difference import (
    Difference,
    difference_of,
    is_rounding,
    moved,
    own_difference,
    quantises,
    tolerance_in,
    unlike,
    worst_difference,
)
from coexec.model.model import Model
from coexec.model.nondeterministic import is_random
from coexec.model.reference_session import weighted_session
from coexec.model.values import run_session
from coexec.plan.plan import Plan
from coexec.plan.schedule import Schedule, Segment
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor

Verdict = Literal["equal", "differs", "failed", "refused", "skipped"]
_REFERENCE = Place("reference", "onnxruntime")


@dataclass(frozen=True)
class TaskComparison:
    """A task, a piece of one, or a segment of a plan, at its place, and the result of its
    comparison."""

    name: str
    """Of the task, with the region of a piece; of a segment, its first and last task."""
    tasks: tuple[Task, ...]
    place: Place
    region: Region | None = None
    """Part of the main output of a task; None: all of it, or a segment."""
    verdict: Verdict = "equal"
    reason: str = ""
    """Why it failed, or was not compared; or why a larger difference is equal."""
    output: str = ""
    """The output that differs most."""
    difference: Difference | None = None
    """Of that output; None: nothing was compared."""
    allowed: float = 0.0
    """Largest difference that counts as equal, relative to the largest value."""
    lowered: str = ""
    """The module of the engine as text; only of one that differs or failed."""

    @property
    def kind(self) -> str:
        """The operators of a task; the number of tasks of a segment."""
        return self.tasks[0].kind if len(self.tasks) == 1 else f"{len(self.tasks)} tasks"


def whole_tasks(graph: Graph, places: Sequence[Place]) -> list[Segment]:
    """A segment for every task at each of ``places``."""
    pairs = ((graph.whole_piece(task), place) for task in graph.tasks for place in places)
    return [_segment(graph, piece, place) for piece, place in pairs]


def pieces_of_plan(graph: Graph, plan: Plan) -> list[Segment]:
    """A segment for each piece of a plan."""
    return [_segment(graph, piece, place) for piece, place in plan.place_of.items()]


class TaskCheck:
    """The comparison of segments of one model with ONNX Runtime."""

    def __init__(
        self, compiler: Compiler, devices: Sequence[OpenDevice], segments: Iterable[Segment]
    ) -> None:
        self._compiler, self._devices = compiler, devices
        self._model: Model = compiler.model
        self._graph = self._model.graph
        self._position = {task.name: number for number, task in enumerate(self._graph.tasks)}
        self.segments = sorted(segments, key=self._last)
        """In the order in which ONNX Runtime has all of their results."""

    def compare(self, feeds: Mapping[str, Any]) -> Iterator[TaskComparison]:
        """A comparison for each segment, in order.

        Raises:
            ModelError: ONNX Runtime does not run a task.
        """
        modules = self._reference()
        ended: dict[int, list[tuple[TaskComparison, CompiledPlan | None]]] = {}
        for segment, comparison, compiled in self._prepared():
            ended.setdefault(self._last(segment), []).append((comparison, compiled))
        last_use = self._last_use()
        values = dict(feeds)
        for position, task in enumerate(self._graph.tasks):
            values |= _run(task.name, modules[task.name], values)
            for comparison, compiled in ended.get(position, ()):
                if compiled is None:
                    yield comparison
                else:
                    yield self._compared(comparison, compiled, values, modules)
            for name in [n for n in values if last_use.get(n, -1) <= position]:
                del values[name]

    def _last(self, segment: Segment) -> int:
        """Position of the last task of a segment."""
        return max(self._position[piece.task] for piece in segment.pieces)

    def _last_use(self) -> dict[str, int]:
        """By tensor, the position of the task after which nothing reads it or is compared with
        it."""
        last_use: dict[str, int] = {}
        for position, task in enumerate(self._graph.tasks):
            last_use |= dict.fromkeys(task.inputs, position)
        for segment in self.segments:
            tasks = [self._graph.task[piece.task] for piece in segment.pieces]
            made = {name for task in tasks for name in task.outputs}
            read = {name for task in tasks for name in task.inputs} - made
            for name in (*read, *(name for name, _ in (*segment.reads, *segment.writes))):
                last_use[name] = max(last_use.get(name, -1), self._last(segment))
        return last_use

    def _prepared(self) -> Iterator[tuple[Segment, TaskComparison, CompiledPlan | None]]:
        """Each segment as a plan of its own; None if it is not compared."""
        comparisons = [self._uncompared(segment) for segment in self.segments]
        pairs = list(zip(self.segments, comparisons, strict=True))
        run = [segment for segment, comparison in pairs if comparison.verdict == "equal"]
        schedule = _apart(self._graph, run)
        plans = iter(_alone(self._compiler.compile(schedule, self._devices)))
        for segment, comparison in pairs:
            yield segment, comparison, next(plans) if comparison.verdict == "equal" else None

    def _reference(self) -> dict[str, Module]:
        """The module of each task for ONNX Runtime, by name of the task."""
        schedule = _apart(self._graph, whole_tasks(self._graph, [_REFERENCE]))
        modules = self._compiler.reference_modules(schedule)
        return {task.name: m for task, m in zip(self._graph.tasks, modules, strict=True)}

    def _uncompared(self, segment: Segment) -> TaskComparison:
        """A comparison without results: "equal", or why there will be none."""
        graph = self._graph
        tasks = tuple(
            graph.task[name] for name in dict.fromkeys(piece.task for piece in segment.pieces)
        )
        names = [name for task in tasks for op in task.operators for name in op.outputs if name]
        nodes = [self._model.nodes[name] for name in names]
        comparison = TaskComparison(segment.name, tasks, segment.place)
        if len(segment.pieces) == 1 and segment.pieces[0] != graph.whole_piece(tasks[0]):
            (piece,) = segment.pieces
            comparison = replace(comparison, name=str(piece), region=piece.region)
        if all(task.opaque for task in tasks):
            reason = f"opaque, only ONNX Runtime runs it: {tasks[0].opaque}"
            return replace(comparison, verdict="skipped", reason=reason)
        if any(graph.tensors[name].opaque for name, _ in segment.writes):
            return replace(comparison, verdict="skipped", reason="a result is opaque")
        if any(is_random(node, self._model.source) for node in nodes):
            return replace(comparison, verdict="skipped", reason="it draws random numbers")
        engine = engine_at(segment.place, self._devices)
        refusals = (engine.refusal(task, graph.tensors) for task in tasks)
        refusal = next((reason for reason in refusals if reason is not None), None)
        if refusal is not None:
            return replace(comparison, verdict="refused", reason=refusal)
        return comparison

    def _compared(
        self,
        comparison: TaskComparison,
        compiled: CompiledPlan,
        values: Mapping[str, Any],
        modules: Mapping[str, Module],
    ) -> TaskComparison:
        (module,), (segment,) = compiled.modules, compiled.segments
        try:
            with Executor(compiled, self._devices) as executor:
                results = executor.run(values)
        except Exception as error:  # an engine of another package may raise any
            kind = "" if isinstance(error, CoexecError) else f"{type(error).__name__}: "
            reason = f"{kind}{first_line(error)}"
            return replace(comparison, verdict="failed", reason=reason, lowered=text_of(module))
        engine = engine_at(comparison.place, self._devices)
        allowed = tolerance_in(engine.info.precision, self._graph)
        parts = {tensor_part(*part, self._graph): part for part in segment.writes}
        pairs = {
            label: (results[label], values[name][region.slices])
            for label, (name, region) in parts.items()
        }
        differences = {label: difference_of(*pair) for label, pair in pairs.items()}
        label = max(differences, key=lambda label: differences[label].relative)
        worst, (output, region) = differences[label], parts[label]
        where = tuple(i + first for i, first in zip(worst.where, region.start, strict=False))
        difference = replace(worst, where=where)
        comparison = replace(comparison, output=output, difference=difference, allowed=allowed)
        if worst.relative <= allowed:
            return comparison
        if all(unlike(*pair, allowed) is None for pair in pairs.values()):
            reason = "numbers below the normal ones became 0, which a plan may do"
            accepted = replace(difference, relative=allowed)  # the difference may be infinite
            return replace(comparison, reason=reason, difference=accepted)
        quantised = quantises(op for task in comparison.tasks for op in task.operators)
        several = len(comparison.tasks) > 1
        answers = _own_answers(comparison.tasks, modules, values, quantised)
        own = {
            label: own_difference(
                # A task by itself rounds a result once: its integers may be one step apart.
                [answer[name] for answer in answers if several or is_float(values[name].dtype)],
                values[name],
                quantised=quantised,
            )
            for label, (name, _) in parts.items()
        }
        distance = {
            label: worst_difference(*pair, quantised=quantised) for label, pair in pairs.items()
        }
        if all(
            distance[label] <= allowed
            or is_rounding(distance[label], own[label], quantised=quantised)
            for label in parts
        ):
            reason = (
                "quantised numbers are rounded the other way"
                if quantised
                else f"without its optimisations, ONNX Runtime's answer differs by {own[label]:.1e}"
            )
            accepted = replace(difference, relative=distance[label])
            return replace(comparison, reason=reason, difference=accepted)
        exact = _evaluated(comparison.tasks, modules, values)
        if exact is not None and all(
            worst_difference(results[label], exact[name][region.slices]) <= allowed
            for label, (name, region) in parts.items()
        ):
            reason = (
                f"ONNX's evaluator agrees with it, and differs from ONNX Runtime by "
                f"{worst_difference(values[output], exact[output]):.1e}"
            )
            return replace(comparison, reason=reason)
        return replace(comparison, verdict="differs", lowered=text_of(module))


def _segment(graph: Graph, piece: Piece, place: Place) -> Segment:
    """A segment of one piece."""
    task = graph.task[piece.task]
    reads = needed_inputs(graph, task, piece.region)
    main, *side_outputs = task.outputs
    writes = [(main, piece.region), *((name, graph.tensors[name].whole) for name in side_outputs)]
    return Segment(
        0,
        *place,
        (piece,),
        tuple((n, r) for n, r in reads.items() if r.size or not graph.tensors[n].whole.size),
        tuple((n, r) for n, r in writes if n in graph.outputs or graph.readers[n]),
        (),
    )


def _apart(graph: Graph, segments: Sequence[Segment]) -> Schedule:
    """A schedule in which segments hand over nothing: all of them read inputs and write outputs of
    the model."""
    read = (name for segment in segments for name, _ in segment.reads)
    written = (name for segment in segments for name, _ in segment.writes)
    apart = replace(
        graph,
        inputs=tuple(dict.fromkeys((*graph.inputs, *read))),
        outputs=tuple(dict.fromkeys((*graph.outputs, *written))),
    )
    indexed = (replace(s, index=index, after=()) for index, s in enumerate(segments))
    return Schedule(apart, tuple(indexed), ())


def _alone(compiled: CompiledPlan) -> Iterator[CompiledPlan]:
    """Each segment as a plan of its own."""
    for segment, module in zip(compiled.segments, compiled.modules, strict=True):
        names = [tensor.name for tensor in module.inputs]
        yield CompiledPlan(
            module.inputs,
            module.outputs,
            {},
            {},
            (replace(segment, index=0),),
            (),
            (module,),
            {name: compiled.gathers[name] for name in names if name in compiled.gathers},
        )


def _run(
    name: str, module: Module, values: Mapping[str, Any], *, optimised: bool = True
) -> dict[str, Any]:
    """The results of a task in ONNX Runtime.

    Args:
        name: of the task.
        values: its inputs, among others.

    Raises:
        ModelError: ONNX Runtime does not run it.
    """
    names = [tensor.name for tensor in module.outputs]
    feeds = {tensor.name: values[tensor.name] for tensor in module.inputs}
    try:
        session = weighted_session(module.proto, module.weights, 1, optimised=optimised)
        return dict(zip(names, run_session(session, names, feeds), strict=True))
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime does not run the task {name!r} by itself: {first_line(error)}"
        ) from None


def _own_answers(
    tasks: Sequence[Task], modules: Mapping[str, Module], values: Mapping[str, Any], quantised: bool
) -> list[dict[str, Any]]:
    """ONNX Runtime's results of tasks without optimisations; of tasks that quantise, also those for
    inputs changed in the last digits."""
    answers = [_unoptimised(tasks, modules, values)]
    if quantised:
        read = {name: values[name] for task in tasks for name in task.inputs if name in values}
        changed = {**values, **moved(read, quantised=True)}
        answers.append(_unoptimised(tasks, modules, changed))
    return answers


def _unoptimised(
    tasks: Sequence[Task], modules: Mapping[str, Module], values: Mapping[str, Any]
) -> dict[str, Any]:
    """``values`` with the results of tasks, in topological order, without optimisations."""
    results = dict(values)
    for task in tasks:
        results |= _run(task.name, modules[task.name], results, optimised=False)
    return results


def _evaluated(
    tasks: Sequence[Task], modules: Mapping[str, Module], values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """``values`` with the results of tasks, in topological order, by the ONNX project's own
    evaluator: some functions of ONNX Runtime are approximations. None: it does not run a task."""
    results = dict(values)
    try:
        with np.errstate(all="ignore"):
            for task in tasks:
                module = modules[task.name]
                names = [tensor.name for tensor in module.outputs]
                feeds = {tensor.name: results[tensor.name] for tensor in module.inputs}
                outputs = evaluator_of(module).run(names, feeds)
                results |= dict(zip(names, outputs, strict=True))
    except Exception:
        return None
    return results
