"""Generates the launches of a module: read, clean up, alias, generate.

The only kernel file that imports onnx.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from coexec.arrays import Array
from coexec.cache import rest
from coexec.engines.kernels.aliasing import Aliases, alias
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Chooser,
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Value,
    in_float32,
)
from coexec.engines.kernels.border import Ends
from coexec.engines.kernels.images import Extent, stored_as_images
from coexec.engines.kernels.layouts import channels_last, row_major_tensors
from coexec.engines.kernels.moving_ahead import move_ahead, original_name
from coexec.engines.kernels.network import DeviceGraph, clean_up, fuse
from coexec.engines.kernels.operators import KERNELS
from coexec.engines.kernels.views import find_views
from coexec.graph.graph import Tensor
from coexec.lowering.module import Module
from coexec.model.operators import operator_of
from coexec.plan.memory import Record, offsets_by_size, verify

_ALIGNMENT = 256
"""Bytes: alignment that is enough for vectors and for parts of a buffer on any device."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory inside of a program, for a tensor between two launches."""

    name: str
    size_bytes: int
    first: int
    """Number of the first launch that uses it."""
    last: int


@dataclass(frozen=True, eq=False)
class Build:
    """All parts of a program, as text and numbers."""

    launches: tuple[KernelLaunch, ...]
    tasks: tuple[str, ...]
    """Name of the operator's result, for each launch, for messages and traces."""
    aliases: Aliases
    scratch: tuple[Scratch, ...]
    images: Mapping[str, Extent]
    """Tensors between launches that are stored as images and not in buffers."""


def build(
    module: Module,
    arch: Architecture,
    chooser: Chooser | None = None,
    on_arrays: bool = False,
    kernels: Mapping[str, Kernel] = KERNELS,
) -> Build:
    """Generate the kernels of a module.

    Args:
        chooser: picks among the variants of a kernel; without one, rules do.
        on_arrays: inputs and outputs are host arrays, in the layouts of the module; else they have
            the layouts that are usual inside of programs.
        kernels: rows by operator type; those of OpenCL C, or of another language.

    Raises:
        ValueError: an operator has no kernel; `why_not` reports that beforehand.
    """
    network = clean_up(_in_float32(read_network(module)))
    if arch.family != "cpu":
        network = move_ahead(network, arch, kernels)
    network = fuse(network, kernels)
    ends = Ends(network, module.layouts, arch) if on_arrays else None
    if ends is not None:
        network = ends.network()
    blocks, outer = ({}, {}) if ends is None else (ends.blocks, ends.outer)
    blocks = {**dict.fromkeys(row_major_tensors(network, arch, blocks), 0), **blocks}
    last = channels_last(network, arch, blocks) if arch.family == "nvidia" else ()
    context = Context(arch, network.tensors, network.constants, blocks, last, chooser=chooser)
    if on_arrays:
        context.of_host = frozenset((*network.inputs, *network.outputs))
    skipped: set[str] = set()
    if arch.family != "cpu":
        context.views, skipped = find_views(network, context, kernels)
    aliases, done = alias(network, context, skipped)
    launches: list[KernelLaunch] = []
    tasks: list[str] = []
    for node in network.nodes:
        if node.outputs and node.output in done:
            continue
        kernel = kernels.get(node.operator.op_type)
        if kernel is None:
            raise ValueError(f"there is no kernel for {node.operator.op_type}")
        node_launches = kernel.launches(node, context)
        launches += node_launches
        # The kernels have packed copies of the weights that they read.
        rest(context.constants[n] for n in node.operator.inputs if n in context.constants)
        result = original_name(node.operator.outputs[0])
        tasks += [outer.get(result, result)] * len(node_launches)
    external = {*network.inputs, *network.outputs}
    launches, images = stored_as_images(launches, aliases, external, arch)
    scratch = _scratch(launches, aliases, network, context)
    return Build(tuple(launches), tuple(tasks), aliases, scratch, images)


def _scratch(
    launches: list[KernelLaunch], aliases: Aliases, network: DeviceGraph, context: Context
) -> tuple[Scratch, ...]:
    """Memory for all tensors that launches use and that do not leave the program."""
    external = {*network.inputs, *network.outputs}
    lifetimes: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for index, launch in enumerate(launches):
        for value in launch.arguments:
            if not isinstance(value, Value):
                continue
            root = aliases.of(value.name).root
            if root in external:
                continue
            first, _ = lifetimes.get(root, (index, index))
            lifetimes[root] = (first, index)
            items = value.items if value.name not in network.tensors else aliases.items(root)
            sizes[root] = max(sizes.get(root, 0), items * value.size_bytes // max(value.items, 1))
    return tuple(Scratch(n, sizes[n], first, last) for n, (first, last) in lifetimes.items())


def offsets_of(scratch: Sequence[Scratch]) -> tuple[dict[str, int], int]:
    """Offset in bytes of each tensor in one buffer for all of them, and the size of that buffer."""
    records = [
        Record(-(-s.size_bytes // _ALIGNMENT) * _ALIGNMENT, s.first, s.last) for s in scratch
    ]
    plan = offsets_by_size(records)
    verify(records, plan)
    return {s.name: start for s, start in zip(scratch, plan.offsets, strict=True)}, plan.total_bytes


def _in_float32(network: DeviceGraph) -> DeviceGraph:
    """The network with float16 numbers as float32: so kernels compute them."""
    constants = {
        name: array.astype(np.float32) if array.dtype == np.float16 else array
        for name, array in network.constants.items()
    }
    tensors = {name: in_float32(tensor) for name, tensor in network.tensors.items()}
    return replace(network, tensors=tensors, constants=constants)


def read_network(module: Module) -> DeviceGraph:
    """The operators of a module, one node each."""
    model = ir.serde.deserialize_model(onnx.load_model_from_string(module.proto))
    graph = model.graph
    constants: dict[str, Array] = dict(module.weights)
    tensors = {t.name: t for t in (*module.inputs, *module.outputs)}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if name not in constants:
            constants[name] = tensor.numpy()
        tensors[name] = Tensor(name, tuple(tensor.shape.numpy()), tensor.dtype.numpy().name, True)
    for node in graph:
        for value in node.outputs:
            shape, dtype = value.shape, value.dtype
            if value.name and value.name not in tensors and shape is not None and dtype is not None:
                size = tuple(shape.numpy())
                tensors[value.name] = Tensor(value.name, size, dtype.numpy().name)
    return DeviceGraph(
        tuple(Node(operator_of(node)) for node in graph),
        tensors,
        constants,
        tuple(t.name for t in module.inputs),
        tuple(t.name for t in module.outputs),
    )
