"""Kernels whose groups are one work item, as a function that a short kernel calls."""

import re
from collections.abc import Sequence

from coexec.engines.kernels.kernel_launch import Grid

__all__ = ["fixed_group", "outlined"]


def fixed_group(group: Grid) -> str:
    """The attribute of a kernel that runs in groups of this size only."""
    return f"__attribute__((reqd_work_group_size({', '.join(map(str, group))})))"


def outlined(
    name: str, vector: str, declared: Sequence[str], sizes: Sequence[str], body: str
) -> str:
    """A kernel for groups of one work item, and the function that it calls to do all its work.

    PoCL compiles the code of a kernel three times, of which one copy runs, but the function once.
    The function takes a vector, ``zero``: LLVM would otherwise split vectors of 512 bits in it.

    Args:
        declared: parameters, one or more in each text.
        sizes: names of the integers in the array that is the last parameter, if there are any.
        body: uses ``item_0``, ``item_1``, ``item_2`` as the position of the work item.
    """
    parameters = ", ".join([*declared, *(["__global const int* restrict sizes"] if sizes else [])])
    size_lines = "".join(f"  const int {text} = sizes[{i}];\n" for i, text in enumerate(sizes))
    values = [*re.findall(r"(\w+)(?:,|$)", parameters), *(f"get_global_id({i})" for i in range(3))]
    return (
        f"__attribute__((noinline)) static void {name}_item({parameters}, "
        f"int item_0, int item_1, int item_2, {vector} zero)\n{{\n{size_lines}{body}}}\n"
        f"{fixed_group((1, 1, 1))}\n__kernel void {name}({parameters})\n{{\n"
        f"  {name}_item({', '.join(values)}, ({vector})(0.0f));\n}}\n"
    )
