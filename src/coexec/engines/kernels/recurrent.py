"""LSTM, GRU and RNN: one product for the inputs of all times, then launches for each time.

The states of all units are stored in temporaries between the launches. The hidden state has two
versions, as all units read the old one while the new one is computed. The time is an argument, so
that all times share a kernel. See `recurrent_cells` for the equations, `recurrent_steps` for the
kernels.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coexec.engines.kernels import gemm
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, Value
from coexec.engines.kernels.positions import at, split
from coexec.engines.kernels.recurrent_cells import GATES, activations, phases
from coexec.engines.kernels.recurrent_shape import Recurrence
from coexec.engines.kernels.recurrent_steps import TIME, RecurrentStep
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if activations(op) is None:
        names = op.attributes["activations"]
        return (
            f"the activations {names} of {op.op_type}: only of Sigmoid, Tanh and Relu, "
            f"the same in both directions"
        )
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    shape = _shape(op, context)
    projection, projected = _projection(context, shape)
    parts = phases(op, "peepholes" in shape.names)
    state_names = dict.fromkeys(name for phase in parts for name in (phase.reads, *phase.new))
    states = {name: _state(context, shape, 2 if name == "h" else 1) for name in state_names}
    steps = [
        RecurrentStep(op, context, shape, phase, projected, states).finish() for phase in parts
    ]
    kernels = [*projection, _start(context, shape, states)]
    for time in range(shape.times):
        now = np.full(1, time, np.int32)
        for step in steps:
            arguments = tuple(now if a is TIME else a for a in step.arguments)
            kernels.append(replace(step, arguments=arguments))
    return kernels


def _shape(op: Operator, context: Context) -> Recurrence:
    """The sizes; with vectors of units on CPU cores, if all parameters can be packed."""
    parameters = [n for i, n in enumerate(op.inputs) if n and i in (1, 2, 3, 7)]
    constant = all(context.constant(n) is not None for n in parameters)
    block = context.arch.block if context.arch.family == "cpu" and constant else 0
    return Recurrence.of(op, context.tensors, block)


def _state(context: Context, shape: Recurrence, versions: int) -> Value:
    """Memory of a state: [version][direction][sample][unit]."""
    outer = versions * shape.directions * shape.batch
    return context.temporary((outer, shape.width, 1, 1), shape.block)


def _projection(context: Context, shape: Recurrence) -> tuple[list[KernelLaunch], Value]:
    """The input of all times, times the weights of all gates of all directions.

    The result is [time and sample][direction][gate][unit]: a matrix product of reshaped tensors.
    """
    x, w = shape.names["x"], shape.names["w"]
    rows, columns = shape.times * shape.batch, shape.directions * shape.gates * shape.width
    result = context.temporary((rows, columns, 1, 1), shape.block, context.arch.half)
    shapes = {x: (rows, shape.inputs), w: (columns, shape.inputs), result.name: (rows, columns)}
    constants = dict(context.constants)
    array = context.constant(w)
    if array is not None:
        constants[w] = shape.padded(array)
    constants |= {n: constants[n].reshape(shapes[n]) for n in (x, w) if n in constants}
    tensors = dict(context.tensors)
    tensors |= {n: Tensor(n, s, "float32", n in constants) for n, s in shapes.items()}
    inside = replace(context, tensors=tensors, constants=constants)
    product = Operator("Gemm", (x, w), (result.name,), {"transB": 1}, {}, version=13)
    return gemm.launches(Node(product), inside), result


def _start(context: Context, shape: Recurrence, states: Mapping[str, Value]) -> KernelLaunch:
    """The kernel that sets the first version of states ``h`` and ``c``, one scalar a work item."""
    source = Source("recurrent_start", context.arch)
    count = shape.directions * shape.batch * shape.width
    d, n, unit = split("index", (shape.directions, shape.batch, shape.width))
    lines = ["const int index = get_global_id(0);", f"const int unit = {unit};"]
    for name in ("h", "c"):
        if name not in states:
            continue
        value = "0.0f"
        if f"initial_{name}" in shape.names:
            argument = f"initial_{name}"
            source.read(argument, context.operand(shape.names[argument]))
            where = [n, d, "unit"] if shape.batch_first else [d, n, "unit"]
            value = f"unit < {shape.hidden} ? GET_{argument}({at(argument, where)}) : 0.0f"
        source.write(name, states[name])
        lines.append(f"PUT_{name}(index, {value});")
    source.lines(lines)
    return source.finish((count,))


KERNELS = dict.fromkeys(
    GATES, Kernel(launches, FLOAT32, why_not, "activations other than Sigmoid, Tanh and Relu")
)
