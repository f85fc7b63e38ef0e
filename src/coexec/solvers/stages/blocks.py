"""A graph as a chain of blocks: cut wherever a single tensor is handed on.

The granularity of AOFL and DeepSlicing. A graph without such places is one block.
"""

from coexec.solvers.stages.rows import RowGraph

__all__ = ["chain_of_blocks", "single_tasks"]


def chain_of_blocks(rows: RowGraph) -> list[int]:
    """The blocks as bits of tasks. Outputs of the model and its inputs do not count as handed on
    beside the tensor, as they are in the way of no cut."""
    found: list[int] = []
    done = start = 0
    for task in range(len(rows.macs)):
        done |= 1 << task
        results = [t for t in rows.handed_on(done) if rows.maker[t] >= 0 and t not in rows.outputs]
        if len(results) <= 1:
            found.append(done & ~start)
            start = done
    if done != start:
        found.append(done & ~start)
    return found


def single_tasks(rows: RowGraph) -> list[int]:
    """Each task a piece of its own."""
    return [1 << task for task in range(len(rows.macs))]
