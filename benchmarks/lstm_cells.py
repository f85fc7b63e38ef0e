"""The paper's LSTM with separate operators for each gate of each step, as engines of phones run it.

The zoo's LSTM is one ONNX operator, which leaves a scheduler no choice.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

GATES = {"input": "Sigmoid", "forget": "Sigmoid", "cell": "Tanh", "output": "Sigmoid"}
OPSET = 17


def lstm_cells(steps: int = 10, size: int = 1024) -> onnx.ModelProto:
    """One layer: [x, h] times a separate matrix for each gate, then the usual sums.

    Step t reads "x<t>" of ``size`` features; the state starts as the inputs "h" and "c".
    """
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, inputs: list[str], output: str, **attributes: int) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    h, c = "h", "c"
    for t in range(steps):
        both = add("Concat", [f"x{t}", h], f"{t}/concat", axis=1)
        i, f, g, o = (
            add(activation, [add("MatMul", [both, f"{gate}/w"], f"{t}/{gate}/sum")], f"{t}/{gate}")
            for gate, activation in GATES.items()
        )
        new, kept = add("Mul", [i, g], f"{t}/write"), add("Mul", [f, c], f"{t}/keep")
        c = add("Add", [new, kept], f"{t}/c")
        h = add("Mul", [o, add("Tanh", [c], f"{t}/tanh")], f"{t}/h")
    inputs = [_info(name, size) for name in ("h", "c", *(f"x{t}" for t in range(steps)))]
    graph = helper.make_graph(nodes, "lstm_cells", inputs, [_info(h, size)], _weights(size))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _info(name: str, size: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, size))


def _weights(size: int) -> list[onnx.TensorProto]:
    random = np.random.default_rng(0)
    shape, scale = (2 * size, size), np.float32((2 * size) ** -0.5)
    return [
        numpy_helper.from_array(random.standard_normal(shape, np.float32) * scale, f"{gate}/w")
        for gate in GATES
    ]
