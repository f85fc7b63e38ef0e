"""Det: a work item eliminates one small matrix; the largest element of a column is the pivot."""

import math
from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import at, split
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]

_LARGEST = 16
"""Most rows of a matrix, which is kept in private memory."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    size = tensors[op.inputs[0]].shape[-1]
    if size > _LARGEST:
        return f"Det of matrices of {size} rows: only of up to {_LARGEST}"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    source = Source("det", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    output = Output(source, context, node, scalar=True)
    *batch, size, _ = x.shape
    outer = split("index", batch)
    source.lines(
        [
            "const int index = get_global_id(0);",
            f"float a[{size}][{size}], result = 1.0f;",
            f"for (int i = 0; i < {size}; i++)",
            f"  for (int j = 0; j < {size}; j++)",
            f"    a[i][j] = GET_x({at('x', [*outer, 'i', 'j'])});",
            f"for (int k = 0; k < {size}; k++) {{",
            "  int pivot = k;",
            f"  for (int i = k + 1; i < {size}; i++)",
            "    if (fabs(a[i][k]) > fabs(a[pivot][k])) pivot = i;",
            "  if (pivot != k) result = -result;",
            f"  for (int j = k; j < {size}; j++) {{",
            "    const float other = a[pivot][j]; a[pivot][j] = a[k][j]; a[k][j] = other;",
            "  }",
            "  result *= a[k][k];",
            "  if (a[k][k] == 0.0f) break;",
            f"  for (int i = k + 1; i < {size}; i++) {{",
            "    const float factor = a[i][k] / a[k][k];",
            f"    for (int j = k; j < {size}; j++) a[i][j] -= factor * a[k][j];",
            "  }",
            "}",
            *output.store("result", outer),
        ]
    )
    return [source.finish((math.prod(batch),))]


KERNELS = {"Det": Kernel(launches, FLOAT32, why_not, f"matrices of more than {_LARGEST} rows")}
