"""Machines, networks and small graphs for simulations of PICO's tables.

The paper gives capacities as CPU frequencies. Here one core has 2 GFLOP/s per GHz by default. Then
computation, and not the network of 50 Mbit/s, limits the machines, as in the paper, whose machines
are busy 77 to 93 % of the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.costs.capacity import Capacity, CapacityCosts
from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.receptive import splittable_axes
from coexec.graph.signature import signature_of
from coexec.hardware.hardware import Power, System
from coexec.model.load import load
from coexec.pipeline.network import NetworkKind, connected, machine
from coexec.research.zoo import build

BANDWIDTH = 50e6 / 8
"""50 Mbit/s in bytes per second."""
GHZ = 2e9
"""FLOP/s of one core per GHz."""
NCNN_GHZ = 2 * 15.47e9 / 1.072 / 1.5
"""FLOP/s per GHz with ncnn: VGG-16 in 1072 ms on one core of a Raspberry Pi 4 at 1.5 GHz."""
PI, NX = Power(busy_w=4.0, idle_w=2.7), Power(busy_w=7.0, idle_w=4.0)
"""Watts of a Raspberry Pi 4B with one busy core, and of a TX2 NX: assumed, not measured."""
MIXED = (
    ("NX@2.2 a", 2.2),
    ("NX@2.2 b", 2.2),
    ("Pi@1.5 a", 1.5),
    ("Pi@1.5 b", 1.5),
    ("Pi@1.2 a", 1.2),
    ("Pi@1.2 b", 1.2),
    ("Pi@0.8 a", 0.8),
    ("Pi@0.8 b", 0.8),
)
"""Machines of Table V, with their GHz."""


class Cluster(NamedTuple):
    """Machines for a pipeline: their costs and their system."""

    cost: CapacityCosts
    system: System


def cluster(
    gflops: Mapping[str, float], network: NetworkKind = "ports", bandwidth: float = BANDWIDTH
) -> Cluster:
    """The cluster of machines with these names and GFLOP/s."""
    devices = [machine(name, power=NX if name.startswith("NX") else PI) for name in gflops]
    cost = CapacityCosts({name: Capacity(1e9 * speed) for name, speed in gflops.items()})
    return Cluster(cost, connected(devices, bandwidth, network))


def alike(count: int, gflops: float, network: NetworkKind = "ports") -> Cluster:
    """A cluster of ``count`` Raspberry Pis with equal capacity."""
    return cluster({f"Pi {i}": gflops for i in range(1, count + 1)}, network)


def mixed(per_ghz: float, network: NetworkKind = "ports") -> Cluster:
    """The cluster of Table V."""
    return cluster({name: ghz * per_ghz / 1e9 for name, ghz in MIXED}, network)


def without_classifier(graph: Graph) -> Graph:
    """The graph up to the last feature map: the paper counts only convolutions and pools."""
    tasks = list(graph.tasks)
    while 2 not in splittable_axes(graph, tasks[-1]):
        tasks.pop()
    return replace(graph, tasks=tuple(tasks), outputs=tasks[-1].outputs)


def of_zoo(name: str) -> Graph:
    """The graph of a model of the zoo."""
    return load(build(name)).graph


def branched(branches: int, layers: int, rows: int = 56, channels: int = 64) -> Graph:
    """A graph of parallel branches of 3x3 convolutions, ``layers`` in total, joined by a
    concatenation; a chain if there is one branch."""
    net = _Network((1, channels, rows, rows))
    ends = []
    for branch in range(branches):
        tensor = "x"
        for layer in range(layers // branches):
            tensor = net.conv(tensor, f"branch{branch}/conv{layer}", channels)
        ends.append(tensor)
    if branches > 1:
        ends = [net.concat(ends)]
    return net.graph(f"{branches} branches, {layers} layers", ends)


class _Network:
    """A graph under construction: tasks of one operator each, on feature maps of one size."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._tensors = {"x": Tensor("x", self._shape, "float32")}
        self._tasks: list[Task] = []

    def conv(self, tensor: str, name: str, channels: int) -> str:
        weight = f"{name}/weight"
        shape = (channels, channels, 3, 3)
        self._tensors[weight] = Tensor(weight, shape, "float32", constant=True)
        attributes = {"pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
        op = Operator("Conv", (tensor, weight), (name,), attributes, {})
        macs = channels * channels * 9 * self._shape[2] * self._shape[3]
        return self._add(op, (tensor,), (weight,), self._shape, macs)

    def concat(self, tensors: Sequence[str]) -> str:
        channels = sum(self._tensors[name].shape[1] for name in tensors)
        op = Operator("Concat", tuple(tensors), ("joined",), {"axis": 1}, {})
        return self._add(op, tuple(tensors), (), (1, channels, *self._shape[2:]), 0)

    def graph(self, name: str, outputs: Sequence[str]) -> Graph:
        return Graph(name, self._tensors, tuple(self._tasks), ("x",), tuple(outputs))

    def _add(
        self,
        op: Operator,
        inputs: tuple[str, ...],
        weights: tuple[str, ...],
        shape: tuple[int, ...],
        macs: int,
    ) -> str:
        name = op.outputs[0]
        self._tensors[name] = Tensor(name, shape, "float32")
        signature = signature_of((op,), self._tensors)
        self._tasks.append(Task(name, (op,), inputs, weights, (name,), signature, macs))
        return name
