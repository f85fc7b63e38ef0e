"""Main memory: how much there is, and how much a model needs at least."""

import os

from coexec.control_groups import memory_limit_bytes
from coexec.errors import ModelError
from coexec.graph.graph import Graph
from coexec.units import format_bytes

__all__ = ["least_bytes", "main_memory_bytes", "require_memory"]


def main_memory_bytes() -> int | None:
    """Bytes of main memory that this process may use at most; None if the machine does not show
    it."""
    try:
        size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limit_bytes = memory_limit_bytes()
    return size_bytes if limit_bytes is None else min(size_bytes, limit_bytes)


def least_bytes(graph: Graph) -> int:
    """Least number of bytes that are in use at the same time, for every plan of the graph.

    All weights, and the largest of: inputs and outputs of one task, all inputs, all outputs.
    """

    def size(names: tuple[str, ...]) -> int:
        tensors = (graph.tensors[name] for name in dict.fromkeys(names))
        return sum(tensor.size_bytes for tensor in tensors if not tensor.constant)

    groups = [(*task.inputs, *task.outputs) for task in graph.tasks]
    return graph.weight_bytes + max(map(size, (graph.inputs, graph.outputs, *groups)))


def require_memory(what: str, needed_bytes: int) -> None:
    """Raise ModelError unless the machine has that much memory, whether it is free now or not."""
    have = main_memory_bytes()
    if have is not None and needed_bytes > have:
        raise ModelError(
            f"{what} needs at least {format_bytes(needed_bytes)} of memory, and this "
            f"machine has {format_bytes(have)}; give it smaller shapes"
        )
