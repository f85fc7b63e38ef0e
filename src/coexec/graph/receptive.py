"""Receptive fields through the operators of a task: the regions of its inputs that a piece needs.

The planners, the simulator, the executor and the extraction of pieces all use this module. Going
backwards from a region of the task's main output, the rule of each operator (`coexec.graph.rules`)
gives the region of each input. A task that has more than one output, or an operator whose exactness
under cutting is not certain, is only ever computed as a whole.
"""

from collections.abc import Collection
from typing import NamedTuple

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Operator, Task
from coexec.graph.region import Region
from coexec.graph.rules import RULES, OperatorRegion
from coexec.graph.rules.base import Tensors, empty_region


class ReceptiveField(NamedTuple):
    """The regions that a region of a task's main output is computed from."""

    operators: tuple[OperatorRegion, ...]
    """The region of each operator, in order; none for an empty region."""
    inputs: tuple[Region, ...]
    """The needed box of each activation in ``task.inputs``."""


def needed_inputs(graph: Graph, task: Task, region: Region) -> dict[str, Region]:
    """The box of each activation in ``task.inputs`` that ``region`` is computed from, by name.

    The whole output needs whole inputs, as an unsplit task runs unchanged. A part needs the
    smallest box, the hull where an input is read more than once. An empty region needs empty
    regions, and so does an input that a cut concatenation does not reach.

    Raises:
        PlanError: ``region`` lies outside of the main output or cuts an axis that must be whole.
    """
    if region == graph.output_of(task).whole:
        return {name: graph.tensors[name].whole for name in task.inputs}
    return dict(zip(task.inputs, receptive_field(graph, task, region).inputs, strict=True))


def operator_regions(graph: Graph, task: Task, region: Region) -> tuple[OperatorRegion, ...]:
    """The region of each operator of ``task`` for ``region`` of the main output, in order.

    Raises:
        PlanError: ``region`` is empty, lies outside of the main output or cuts an axis that must be
            whole.
    """
    field = receptive_field(graph, task, region)
    if not field.operators:
        _check(graph, task, region, None)
    return field.operators


def receptive_field(
    graph: Graph, task: Task, region: Region, axes: Collection[int] | None = None
) -> ReceptiveField:
    """`needed_inputs` and `operator_regions` at once.

    Args:
        axes: `splittable_axes` of the task, where they are known.

    Raises:
        PlanError: ``region`` lies outside of the main output or cuts an axis that must be whole.
    """
    tensors, main = graph.tensors, graph.output_of(task)
    if region == main.whole:
        wholes = tuple(_whole(op, tensors) for op in task.operators)
        return ReceptiveField(wholes, tuple(tensors[name].whole for name in task.inputs))
    if len(region.start) == len(main.shape) and not region.size:
        return ReceptiveField((), tuple(empty_region(len(tensors[n].shape)) for n in task.inputs))
    _check(graph, task, region, axes)
    return _backwards(tensors, task, region)


def splittable_axes(graph: Graph, task: Task) -> tuple[int, ...]:
    """The axes of the main output along which any cut is exact, in order; not those of size 1."""
    shape = graph.output_of(task).shape
    if task.opaque:
        return ()
    axes, inside = set(range(len(shape))), set[str]()
    for op in task.operators:
        rule = None if op.domain else RULES.get(op.op_type)
        live = [name for name in op.outputs if name in graph.tensors]
        if rule is None or live != [op.outputs[0]]:
            return ()
        # An axis must mean the same throughout the task: otherwise a cut along one axis would
        # become a cut along another.
        turned = any(name in inside for name in op.inputs[rule.aligned :])
        if turned or len(graph.tensors[live[0]].shape) != len(shape):
            return ()
        axes.intersection_update(rule.axes(op, graph.tensors))
        inside.add(live[0])
    return tuple(axis for axis in sorted(axes) if shape[axis] > 1)


def _backwards(tensors: Tensors, task: Task, region: Region) -> ReceptiveField:
    need = {task.outputs[0]: region}
    cuts = []
    for op in reversed(task.operators):
        requested = need[op.outputs[0]]
        whole = requested == tensors[op.outputs[0]].whole
        part = _whole(op, tensors) if whole else RULES[op.op_type].cut(op, tensors, requested)
        for name, read in zip(op.inputs, part.inputs, strict=True):
            if read is not None:
                before = need.get(name)
                need[name] = read if before is None else before.hull(read)
        cuts.append(part)
    return ReceptiveField(tuple(reversed(cuts)), tuple(need[name] for name in task.inputs))


def _whole(op: Operator, tensors: Tensors) -> OperatorRegion:
    # The first output may be absent, as LSTM's Y where only Y_h is read.
    main = next(tensors[name].whole for name in op.outputs if name in tensors)
    inputs = tuple(tensors[name].whole if name else None for name in op.inputs)
    return OperatorRegion(main, main, inputs)


def _check(graph: Graph, task: Task, region: Region, axes: Collection[int] | None) -> None:
    """Raise PlanError unless ``region`` can be computed by itself."""
    main = graph.output_of(task)
    ranges = list(zip(region.start, region.stop, strict=True))
    inside = len(ranges) == len(main.shape) and all(
        [0 <= a < b <= size for (a, b), size in zip(ranges, main.shape, strict=True)]
    )
    if not inside:
        raise PlanError(
            f"{_refused(graph, task, region)}: that is empty or outside of {main.whole}; give a "
            f"part that lies inside"
        )
    axes = splittable_axes(graph, task) if axes is None else axes
    for axis, (range_, size) in enumerate(zip(ranges, main.shape, strict=True)):
        if range_ != (0, size) and axis not in axes:
            can = f"only axes {', '.join(map(str, axes))} can be cut" if axes else "no axis can be"
            raise PlanError(
                f"{_refused(graph, task, region)}: axis {axis} is cut, but {can}; give the whole "
                f"range 0:{size} there"
            )


def _refused(graph: Graph, task: Task, region: Region) -> str:
    main = graph.output_of(task).name
    return f"task {task.name!r} ({task.kind}) cannot compute {region} of its output {main!r}"
