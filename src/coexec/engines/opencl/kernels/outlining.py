"""Kernels whose groups are one work item, as a function that a short kernel calls."""

import re
from collections.abc import Sequence

from coexec.engines.opencl.kernels.kernel_launch import Grid

__all__ = ["fixed_group", "outlined"]


def fixed_group(group: Grid) -> str:
    """The attribute of a kernel that runs in groups of this size only."""
    return f"__attribute__((reqd_work_group_size({', '.join(map(str, group))})))"


def outlined(
    name: str, vector: str, declared: Sequence[str], sizes: Sequence[str], body: str
) -> str:
    """A kernel and the function that it calls for all it does, for groups of one work item.

    PoCL compiles a kernel's own code three times, of which one copy runs; the function's once. The
    function takes a vector, ``zero``: LLVM would otherwise split vectors of 512 bits inside of it.

    Args:
        declared: parameters, one or more in each text.
        sizes: names of the integers in the array that is the last parameter, if there are any.
        body: calls the work item's position ``item_0``, ``item_1``, ``item_2``.
    """
    parameters = ", ".join([*declared, *(["__global const int* restrict sizes"] if sizes else [])])
    known = "".join(f"  const int {text} = sizes[{i}];\n" for i, text in enumerate(sizes))
    given = [*re.findall(r"(\w+)(?:,|$)", parameters), *(f"get_global_id({i})" for i in range(3))]
    return (
        f"__attribute__((noinline)) static void {name}_item({parameters}, "
        f"int item_0, int item_1, int item_2, {vector} zero)\n{{\n{known}{body}}}\n"
        f"{fixed_group((1, 1, 1))}\n__kernel void {name}({parameters})\n{{\n"
        f"  {name}_item({', '.join(given)}, ({vector})(0.0f));\n}}\n"
    )
