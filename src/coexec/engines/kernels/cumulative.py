"""CumSum and CumProd: a work item iterates over a row and stores each partial result."""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, indented
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import neighbours
from coexec.engines.kernels.row_kernel import RowKernel
from coexec.engines.kernels.unsupported import NUMBERS, computed
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    return computed(op, 1, "axis")


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("cumulative", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    axis = int(op.constants[1][0]) % len(x.shape)
    vectors = x.block == context.value(node.output).block and not node.epilogue
    rows = RowKernel(source, x, (axis,), vectors=vectors, columns=vectors, shared=False)
    output = Output(source, context, node, scalar=True)
    side_by_side = rows.layout.side_by_side
    part = rows.layout.vectors() if side_by_side else rows.layout.scalars()
    access = part.access("k")
    add = ["all += v;" if op.op_type == "CumSum" else "all *= v;"]
    store = output.store("all", access.coordinates)
    if side_by_side:
        put = "STORE" if x.block else "PUTS"
        store = [f"{put}_y({access.at}, all);"]
        source.define("" if x.block else neighbours("y", output.value.half, context.arch.block))
    last = f"{rows.layout.length - 1} - step" if op.int("reverse", 0) else "step"
    return [
        rows.finish(
            [
                f"{rows.ctype} all = ({rows.ctype})({0 if op.op_type == 'CumSum' else 1});",
                f"for (int step = 0; step < {rows.layout.length}; step++) {{",
                f"  const int k = {last};",
                f"  const {rows.ctype} v = {part.load.format(access.at)};",
                *indented(store + add if op.int("exclusive", 0) else add + store),
                "}",
            ]
        )
    ]


KERNELS = dict.fromkeys(
    ("CumProd", "CumSum"), Kernel(launches, NUMBERS, why_not, "a computed axis")
)
