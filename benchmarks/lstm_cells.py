"""The paper's LSTM, written out: a task for each gate of each step, as engines for phones run it.

The zoo's LSTM is one ONNX operator, which leaves a scheduler nothing to choose.
"""

from coexec.ir.graph import Graph, Operator, Task, Tensor

GATES = {"input": "Sigmoid", "forget": "Sigmoid", "cell": "Tanh", "output": "Sigmoid"}


def lstm_cells(steps: int = 10, size: int = 1024) -> Graph:
    """One layer: [x, h] times a matrix of its own for each gate, then the usual sums.

    Step t reads "x<t>" of ``size`` features; the state starts as the inputs "h" and "c".
    """
    graph = _Recorder(size)
    h, c = graph.input("h"), graph.input("c")
    for t in range(steps):
        both = graph.task(f"{t}/concat", ["Concat"], [graph.input(f"x{t}"), h], 2 * size)
        i, f, g, o = (graph.gate(f"{t}/{gate}", act, both) for gate, act in GATES.items())
        new = graph.task(f"{t}/write", ["Mul"], [i, g])
        kept = graph.task(f"{t}/keep", ["Mul"], [f, c])
        c = graph.task(f"{t}/c", ["Add"], [new, kept])
        h = graph.task(f"{t}/h", ["Mul"], [o, graph.task(f"{t}/tanh", ["Tanh"], [c])])
    return graph.finish(h)


class _Recorder:
    """Collects tasks in topological order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tensors: dict[str, Tensor] = {}
        self._tasks: list[Task] = []
        self._inputs: list[str] = []

    def input(self, name: str) -> str:
        self._inputs.append(name)
        return self._tensor(name, (1, self._size))

    def gate(self, name: str, activation: str, both: str) -> str:
        weight = self._tensor(f"{name}/w", (2 * self._size, self._size), constant=True)
        return self.task(name, ["MatMul", activation], [both], weights=(weight,))

    def task(
        self,
        name: str,
        kinds: list[str],
        reads: list[str],
        features: int | None = None,
        weights: tuple[str, ...] = (),
    ) -> str:
        """A task of operators of these kinds, one behind the other; the tensor that it makes."""
        shape = (1, features or self._size)
        operators, inputs = [], (*reads, *weights)
        for number, kind in enumerate(kinds):
            last = number == len(kinds) - 1
            output = self._tensor(name if last else f"{name}/{kind}", shape)
            operators.append(Operator(kind, inputs, (output,), {"axis": 1}, {}))
            inputs = (output,)
        signature = f"{kinds} {reads and self._tensors[reads[0]].shape} {shape}"
        macs = 2 * self._size * self._size if weights else 0
        made = Task(name, tuple(operators), tuple(reads), weights, (name,), signature, macs)
        self._tasks.append(made)
        return name

    def finish(self, output: str) -> Graph:
        tasks, inputs = tuple(self._tasks), tuple(self._inputs)
        return Graph("lstm_cells", self._tensors, tasks, inputs, (output,))

    def _tensor(self, name: str, shape: tuple[int, ...], constant: bool = False) -> str:
        self._tensors[name] = Tensor(name, shape, "float32", constant)
        return name
