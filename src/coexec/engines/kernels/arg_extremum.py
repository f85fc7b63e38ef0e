"""ArgMax and ArgMin, and the index of the extremum for other operators, over rows as in `rows`."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.reductions import joined
from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.unsupported import NUMBERS

__all__ = ["KERNELS", "extremum"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """A work item, or a group, for each scalar of the result."""
    op = node.operator
    source = Source("arg_extremum", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    axis = op.int("axis", 0) % len(x.shape)
    rows = RowKernel(source, x, (axis,), vectors=False)
    output = Output(source, context, node, scalar=True)
    lines = extremum(rows, op.op_type == "ArgMax", bool(op.int("select_last_index", 0)))
    at = [f"p{a}" if a != axis else "0" for a in range(len(x.shape))]
    if not op.int("keepdims", 1):
        del at[axis]
    store = output.store("(long)found", at)
    return [rows.finish([*lines, *(["if (item > 0) return;"] if rows.sharing > 1 else []), *store])]


def extremum(rows: RowKernel, largest: bool, last: bool) -> list[str]:
    """Lines that declare ``best``, the largest or smallest element, and its index ``found``.

    Of equal elements, it is the first one or the ``last`` one. ``rows`` must give elements one by
    one.
    """
    better = ">" if largest else "<"
    either = f"{better}=" if last else better
    later = ">" if last else "<"
    lines = [f"{rows.ctype} best = 0;", "int found = -1;"]
    lines += rows.loop(
        rows.layout.scalars(),
        lambda access: [
            f"if (found < 0 || v {either} best) {{",
            f"  best = v; found = {access.index};",
            "}",
        ],
    )
    merge = [
        f"if (found_other >= 0 && (found < 0 || best_other {better} best",
        f"    || (best_other == best && found_other {later} found))) {{",
        "  best = best_other; found = found_other;",
        "}",
    ]
    return lines + joined(rows.sharing, {"best": rows.ctype, "found": "int"}, merge)


KERNELS = dict.fromkeys(("ArgMax", "ArgMin"), Kernel(launches, NUMBERS, takes_epilogue=True))
