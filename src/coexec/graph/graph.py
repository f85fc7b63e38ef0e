"""The frozen DAG of tasks over tensors of known shape. It contains no device and no values of
weights.

A task is the unit that planners place: one operator, or a group that every engine fuses anyway
(convolution + bias + activation + residual add), HOPE's super-op. The operators stay in the ONNX
model; an `Operator` here holds only the data that shape rules need.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from coexec.graph.region import Region
from coexec.keys import digest

Scalars = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""An attribute of an operator, or the values of a small constant input."""

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "bool": 1, "int8": 1,
               "uint8": 1, "float64": 8, "int64": 8, "uint64": 8, "complex64": 8,
               "complex128": 16, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1,
               "float8_e5m2fnuz": 1}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the model: an input, a constant (weight) or a result of a task."""

    name: str
    shape: tuple[int, ...]
    """() if it is opaque and its shape is known only after it was computed."""
    dtype: str
    """numpy's or ml_dtypes' name: "float32", "int64", "bfloat16". An opaque tensor has the type as
    ONNX Runtime writes it: "seq(tensor(float))", "tensor(string)"; "" if it is unknown, too."""
    constant: bool = False
    opaque: bool = False
    """No memory can be planned for it: its shape depends on data, or it is no tensor of numbers.
    Only inputs and outputs of the model and values inside of one task can be opaque."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of an element; 0 if the tensor is opaque."""
        return 0 if self.opaque else _ITEM_BYTES.get(self.dtype, 4)

    @property
    def whole(self) -> Region:
        """The region of all elements."""
        return Region.whole(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """The data of one ONNX operator that shape rules need.

    ``inputs`` and ``outputs`` are tensor names, "" where an optional one is absent. ``constants``
    holds the values of small integer or float inputs that decide shapes (pads, axes, sizes) by
    input position.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Scalars]
    constants: Mapping[int, tuple[int, ...] | tuple[float, ...]]
    domain: str = ""
    version: int = 0
    """Version of the operator set, because the defaults of some attributes changed; 0 if not
    needed."""

    def ints(self, name: str, default: Sequence[int]) -> tuple[int, ...]:
        """The integer list ``name`` of the attributes, or ``default``."""
        value = self.attributes.get(name)
        return tuple(default) if value is None else tuple(int(v) for v in value)  # type: ignore[union-attr]

    def int(self, name: str, default: int) -> int:
        """The integer ``name`` of the attributes, or ``default``."""
        return int(self.attributes.get(name, default))  # type: ignore[arg-type]

    def number(self, name: str, default: float) -> float:
        """The float ``name`` of the attributes, or ``default``."""
        return float(self.attributes.get(name, default))  # type: ignore[arg-type]

    def text(self, name: str, default: str) -> str:
        """The string ``name`` of the attributes, or ``default``."""
        return str(self.attributes.get(name, default))


@dataclass(frozen=True, slots=True)
class Task:
    """One unit of scheduling: operators in topological order, named after the first.

    Only the last operator's outputs leave an ordinary task; ``inputs`` are the activations that it
    reads, ``weights`` the constants. An opaque task is a part of the model, up to all of it, with
    inner values that cannot be planned; it is never cut.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    signature: str
    """Equal for two tasks that take equally long: operators, attributes, shapes and dtypes."""
    macs: int
    """Multiply-accumulates of the whole task; of an opaque task, those of known shapes."""
    opaque: str = ""
    """Why the operators are run as one, in plain words; "" for ordinary tasks."""

    @property
    def kind(self) -> str:
        """The operators' types, as in "Conv+Relu"; those of an opaque task are counted."""
        if self.opaque:
            count = len(self.operators)
            return f"opaque ({count} operator{'s' if count > 1 else ''})"
        return "+".join(op.op_type for op in self.operators)


class Piece(NamedTuple):
    """The work of one device at once: a region of a task's main output, usually all of it."""

    task: str
    region: Region

    def __str__(self) -> str:
        return f"{self.task}{self.region}"


def tensor_part(name: str, region: Region, graph: "Graph") -> str:
    """Name of a part of a tensor: the tensor's name if it is whole."""
    return name if region.covers(graph.tensors[name].shape) else f"{name}{region}"


@dataclass(frozen=True)
class Graph:
    """Tasks in topological order over named tensors, with inputs and outputs of the model."""

    name: str
    tensors: Mapping[str, Tensor]
    tasks: tuple[Task, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def task(self) -> Mapping[str, Task]:
        """Task by name."""
        return {t.name: t for t in self.tasks}

    @cached_property
    def producer(self) -> Mapping[str, Task]:
        """The task that computes a tensor; inputs and constants have none."""
        return {name: t for t in self.tasks for name in t.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Task, ...]]:
        """The tasks that read a tensor, in topological order."""
        readers: dict[str, list[Task]] = {name: [] for name in self.tensors}
        for task in self.tasks:
            for name in task.inputs:
                readers[name].append(task)
        return {name: tuple(tasks) for name, tasks in readers.items()}

    @cached_property
    def predecessors(self) -> Mapping[str, tuple[Task, ...]]:
        """By task name, the tasks whose outputs it reads; each once."""
        return {
            t.name: tuple(
                {p.name: p for i in t.inputs if (p := self.producer.get(i)) is not None}.values()
            )
            for t in self.tasks
        }

    @cached_property
    def successors(self) -> Mapping[str, tuple[Task, ...]]:
        """By task name, the tasks that read its outputs; each once."""
        successors: dict[str, list[Task]] = {t.name: [] for t in self.tasks}
        for task in self.tasks:
            for before in self.predecessors[task.name]:
                successors[before.name].append(task)
        return {name: tuple(tasks) for name, tasks in successors.items()}

    @cached_property
    def fingerprint(self) -> str:
        """A digest of structure and shapes, which plans carry. Weights do not count."""
        tasks = ((task.name, task.signature, task.inputs, task.outputs) for task in self.tasks)
        return digest(*tasks, self.inputs, self.outputs)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(t.macs for t in self.tasks)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(t.size_bytes for t in self.tensors.values() if t.constant)

    def whole_piece(self, task: Task) -> Piece:
        """The piece that is all of ``task``."""
        return Piece(task.name, self.output_of(task).whole)

    def output_of(self, task: Task) -> Tensor:
        """The main output of a task, which the regions of its pieces refer to."""
        return self.tensors[task.outputs[0]]
