"""A graph as a chain of blocks: the graph is cut wherever a single tensor crosses the cut.

This is the granularity of AOFL and DeepSlicing. A graph without such a place is one block.
"""

from coexec.pipeline.planners.methods.rows import RowGraph

__all__ = ["chain_of_blocks", "single_tasks"]


def chain_of_blocks(rows: RowGraph) -> list[int]:
    """The blocks as bits of tasks.

    Inputs and outputs of the model that cross a cut do not count, because they prevent no cut.
    """
    blocks: list[int] = []
    done = start = 0
    for task in range(len(rows.macs)):
        done |= 1 << task
        results = [t for t in rows.handed_on(done) if rows.maker[t] >= 0 and t not in rows.outputs]
        if len(results) <= 1:
            blocks.append(done & ~start)
            start = done
    if done != start:
        blocks.append(done & ~start)
    return blocks


def single_tasks(rows: RowGraph) -> list[int]:
    """Pieces of one task each, as bits."""
    return [1 << task for task in range(len(rows.macs))]
