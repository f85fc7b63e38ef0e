"""Compares every task, by itself, with ONNX Runtime on the same inputs.

ONNX Runtime runs the tasks of the simplified model one after the other, in the model's own
operators. Its tensors are the inputs of the same task, or of a piece of it, on an engine. So the
first task that differs is wrong itself. Not compared is all that happens between tasks: transfers,
memory that values share, and operators that an engine fuses across tasks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coexec.arrays import Array
from coexec.engines.opened import OpenDevice, engine_at
from coexec.errors import CoexecError, ModelError, first_line
from coexec.graph.graph import Graph, Piece, Task, tensor_part
from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.lowering.module import Module
from coexec.lowering.text import text_of
from coexec.model.difference import (
    HALF_TOLERANCE,
    Difference,
    difference_of,
    is_rounding,
    tolerance_of,
    worst_difference,
)
from coexec.model.model import Model
from coexec.model.nondeterministic import is_random
from coexec.model.passes import pass_of
from coexec.model.reference_session import weighted_session
from coexec.model.values import run_session
from coexec.plan.plan import Plan
from coexec.plan.schedule import Schedule, Segment
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor

__all__ = ["PlacedPiece", "TaskCheck", "TaskComparison", "Verdict", "pieces_of_plan", "whole_tasks"]

PlacedPiece = tuple[Piece, Place]
Verdict = Literal["equal", "differs", "failed", "refused", "skipped"]
_REFERENCE = Place("reference", "onnxruntime")
_QUANTISING = ("Quantize", "QLinear")
"""Parts of the types of operators that round to whole numbers."""


@dataclass(frozen=True)
class TaskComparison:
    """A task, or a piece of one, at one place, and what its comparison gave."""

    task: Task
    region: Region | None
    """Part of the main output; None: all of it."""
    place: Place
    verdict: Verdict = "equal"
    reason: str = ""
    """Why it failed, or was not compared; or why a larger difference is equal."""
    output: str = ""
    """The output that differs most."""
    difference: Difference | None = None
    """Of that output; None: nothing was compared."""
    allowed: float = 0.0
    """Largest difference that counts as equal, relative to the largest value."""
    passes: tuple[str, ...] = ()
    """The passes that made operators of the task."""
    lowered: str = ""
    """The module of the engine as text; only of one that differs or failed."""

    @property
    def name(self) -> str:
        return self.task.name if self.region is None else f"{self.task.name}{self.region}"


def whole_tasks(graph: Graph, places: Sequence[Place]) -> list[PlacedPiece]:
    """Every task at each of ``places``, in topological order."""
    return [(graph.whole_piece(task), place) for task in graph.tasks for place in places]


def pieces_of_plan(graph: Graph, plan: Plan) -> list[PlacedPiece]:
    """The pieces of a plan in topological order."""
    position = {task.name: number for number, task in enumerate(graph.tasks)}
    return sorted(plan.place_of.items(), key=lambda item: position[item[0].task])


class TaskCheck:
    """The comparison of pieces of one model."""

    def __init__(
        self,
        compiler: Compiler,
        devices: Sequence[OpenDevice],
        placed: Sequence[PlacedPiece],
    ) -> None:
        """``placed``: the pieces, in topological order of their tasks."""
        self._compiler, self._devices, self._placed = compiler, devices, placed
        self._model: Model = compiler.model
        self._graph = self._model.graph

    def compare(self, feeds: Mapping[str, Any]) -> Iterator[TaskComparison]:
        """A comparison for each piece, in order.

        Raises:
            ModelError: ONNX Runtime does not run a task.
        """
        pieces_of: dict[str, list[tuple[TaskComparison, CompiledPlan | None]]] = {}
        for comparison, compiled in self._prepared():
            pieces_of.setdefault(comparison.task.name, []).append((comparison, compiled))
        readers = Counter(name for task in self._graph.tasks for name in task.inputs)
        values = dict(feeds)
        for task, module in zip(self._graph.tasks, self._reference(), strict=True):
            reference = _ReferenceTask(task.name, module, values)
            values |= reference.outputs
            for comparison, compiled in pieces_of.get(task.name, ()):
                if compiled is None:
                    yield comparison
                else:
                    yield self._compared(comparison, compiled, values, reference)
            readers.subtract(task.inputs)
            for name in (*task.inputs, *task.outputs):
                if readers[name] <= 0:
                    values.pop(name, None)

    def _prepared(self) -> Iterator[tuple[TaskComparison, CompiledPlan | None]]:
        """Each piece as a plan of its own; None if it is not compared."""
        comparisons = [self._uncompared(*pair) for pair in self._placed]
        run = [
            pair
            for pair, comparison in zip(self._placed, comparisons, strict=True)
            if comparison.verdict == "equal"
        ]
        plans = iter(_alone(self._compiler.compile(self._schedule(run), self._devices)))
        for comparison in comparisons:
            yield comparison, next(plans) if comparison.verdict == "equal" else None

    def _reference(self) -> tuple[Module, ...]:
        """The module of each task for ONNX Runtime, in order."""
        schedule = self._schedule(whole_tasks(self._graph, [_REFERENCE]))
        return self._compiler.reference_modules(schedule)

    def _uncompared(self, piece: Piece, place: Place) -> TaskComparison:
        """A comparison without results: "equal", or why there will be none."""
        task = self._graph.task[piece.task]
        nodes = [self._model.nodes[name] for op in task.operators for name in op.outputs if name]
        comparison = TaskComparison(
            task,
            None if piece == self._graph.whole_piece(task) else piece.region,
            place,
            passes=tuple(dict.fromkeys(name for node in nodes if (name := pass_of(node)))),
        )
        if task.opaque:
            reason = f"opaque, only ONNX Runtime runs it: {task.opaque}"
            return replace(comparison, verdict="skipped", reason=reason)
        if any(is_random(node, self._model.source) for node in nodes):
            return replace(comparison, verdict="skipped", reason="it draws random numbers")
        refusal = engine_at(place, self._devices).refusal(task, self._graph.tensors)
        if refusal is not None:
            return replace(comparison, verdict="refused", reason=refusal)
        return comparison

    def _schedule(self, placed: Sequence[PlacedPiece]) -> Schedule:
        """A segment for each piece. All of them read inputs and write outputs of the model."""
        graph = self._graph
        read = {name for task in graph.tasks for name in task.inputs}
        between = [name for task in graph.tasks for name in task.outputs if name in read]
        apart = replace(
            graph,
            inputs=tuple(dict.fromkeys((*graph.inputs, *between))),
            outputs=tuple(dict.fromkeys((*graph.outputs, *between))),
        )
        segments = [
            _segment(apart, index, piece, place) for index, (piece, place) in enumerate(placed)
        ]
        return Schedule(apart, tuple(segments), ())

    def _compared(
        self,
        comparison: TaskComparison,
        compiled: CompiledPlan,
        values: Mapping[str, Any],
        reference: "_ReferenceTask",
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
        precise = engine.info.precision == "fp32"
        allowed = tolerance_of(self._graph) if precise else HALF_TOLERANCE
        parts = {tensor_part(*part, self._graph): part for part in segment.writes}
        pairs = {
            name: (results[label], values[name][region.slices], region)
            for label, (name, region) in parts.items()
        }
        differences = {name: difference_of(a, b) for name, (a, b, _) in pairs.items()}
        output = max(differences, key=lambda name: differences[name].relative)
        worst, start = differences[output], pairs[output][2].start
        where = tuple(i + first for i, first in zip(worst.where, start, strict=False))
        comparison = replace(
            comparison, output=output, difference=replace(worst, where=where), allowed=allowed
        )
        if worst.relative <= allowed:
            return comparison
        if _quantises(comparison.task) and all(_is_one_step(a, b) for a, b, _ in pairs.values()):
            return replace(comparison, reason="quantised numbers are rounded the other way")
        own = reference.own_difference(output)
        if is_rounding(worst.relative, own):
            reason = f"without its optimisations, ONNX Runtime differs by {own:.1e} from itself"
            return replace(comparison, reason=reason)
        return replace(comparison, verdict="differs", lowered=text_of(module))


class _ReferenceTask:
    """A task in ONNX Runtime."""

    def __init__(self, name: str, module: Module, values: Mapping[str, Any]) -> None:
        """Run the task.

        Args:
            values: its inputs, among others.

        Raises:
            ModelError: ONNX Runtime does not run it.
        """
        self._name, self._module = name, module
        self._feeds = {tensor.name: values[tensor.name] for tensor in module.inputs}
        self.outputs = self._run(optimised=True)

    def own_difference(self, output: str) -> float:
        """Difference between ONNX Runtime's results with and without its optimisations."""
        return worst_difference(self._run(optimised=False)[output], self.outputs[output])

    def _run(self, *, optimised: bool) -> dict[str, Any]:
        module = self._module
        names = [tensor.name for tensor in module.outputs]
        try:
            session = weighted_session(module.proto, module.weights, 1, optimised=optimised)
            return dict(zip(names, run_session(session, names, self._feeds), strict=True))
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime does not run the task {self._name!r} by itself: {first_line(error)}"
            ) from None


def _segment(graph: Graph, index: int, piece: Piece, place: Place) -> Segment:
    """A segment of one piece that reads and writes nothing of other segments."""
    task = graph.task[piece.task]
    reads = needed_inputs(graph, task, piece.region)
    main, *others = task.outputs
    writes = [(main, piece.region), *((name, graph.tensors[name].whole) for name in others)]
    return Segment(
        index,
        *place,
        (piece,),
        tuple((n, r) for n, r in reads.items() if r.size or not graph.tensors[n].whole.size),
        tuple((name, region) for name, region in writes if name in graph.outputs),
        (),
    )


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


def _quantises(task: Task) -> bool:
    return any(part in op.op_type for op in task.operators for part in _QUANTISING)


def _is_one_step(found: Array, expected: Array) -> bool:
    """Whether numbers of 8 bits differ by one step at most; others have to be equal."""
    if expected.dtype not in (np.int8, np.uint8) or found.dtype != expected.dtype:
        return worst_difference(found, expected) == 0
    steps = np.abs(found.astype(np.int32) - expected.astype(np.int32))
    return bool(steps.max(initial=0) <= 1)
