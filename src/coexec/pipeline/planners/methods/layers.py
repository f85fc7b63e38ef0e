"""Layers, for the planners in which all machines work at one frame, layer after layer."""

from collections.abc import Iterable

from coexec.pipeline.planners.methods.problem import PipelineProblem
from coexec.pipeline.planners.methods.rows import bits_of

__all__ = ["layers_of"]


def layers_of(problem: PipelineProblem) -> Iterable[int]:
    """The layers as bits of tasks: each task that can be cut by rows is a layer, and so is each run
    of tasks that cannot."""
    rows, waiting = problem.rows, 0
    for task in bits_of(problem.all):
        if rows.cuttable[task]:
            if waiting:
                yield waiting
            waiting = 0
            yield 1 << task
        else:
            waiting |= 1 << task
    if waiting:
        yield waiting
