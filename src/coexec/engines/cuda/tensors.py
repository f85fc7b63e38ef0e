"""Tensors in the memory of a GPU, and their way from and to the host.

A tensor that comes from the host waits in page-locked memory. The graph that reads it begins with a
kernel that fetches it from there and changes its layout at once; a graph that makes a tensor for
the host ends with the opposite kernel. So there are no copies besides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coexec.arrays import Array, numpy_type
from coexec.engines.cuda.driver import CudaContext, CudaMemory, GraphNode, HostMemory, Mark
from coexec.engines.cuda.kernels import LoadedKernels
from coexec.engines.cuda.timing import GraphTimer
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import KernelLaunch, Value
from coexec.engines.kernels.reorder import reorder
from coexec.graph.region import Region


@dataclass(eq=False)
class GpuTensor:
    """A tensor in the memory and the layout of a GPU."""

    value: Value
    memory: CudaMemory
    leaving: bool = False
    """Whether the program that writes it sends it to the host in the same run."""
    host: HostMemory | None = None
    """The tensor in the layout of numpy, for the host; made when it is first needed."""
    array: Array | None = None
    """The array in this memory."""
    is_pending: bool = False
    """Whether the newest values are in `host`, and not yet in `memory`."""
    users: list[Mark] = field(default_factory=list)
    """The ends of work that may be reading `host`."""


class GpuMemory:
    """The tensors of one open GPU."""

    def __init__(self, context: CudaContext, arch: Architecture, kernels: LoadedKernels) -> None:
        self.context = context
        self.kernels = kernels
        self.timer: GraphTimer | None = None
        """Records the times of all graphs that are launched now."""
        self._arch = arch

    def allocate(self, value: Value, leaving: bool = False) -> GpuTensor:
        """Uninitialised memory for a tensor."""
        return GpuTensor(value, self.context.memory(value.size_bytes), leaving)

    def constant(self, array: Array) -> CudaMemory:
        """Memory with a copy of ``array``."""
        memory = self.context.memory(array.nbytes)
        self.context.write(memory, array)
        return memory

    def fill(self, tensor: GpuTensor, boxes: Sequence[tuple[Array, Region]]) -> None:
        """Copy arrays into boxes that together cover ``tensor``. Returns once the arrays have been
        read."""
        while tensor.users:
            tensor.users.pop().wait()
        for array, region in boxes:
            self.array(tensor)[region.slices] = array
        tensor.is_pending = True

    def download(self, tensor: GpuTensor) -> Array:
        """The values of ``tensor``, valid until it is written or downloaded again."""
        if not (tensor.leaving or tensor.is_pending):
            graph = self.context.graph([self.leave(tensor)])
            graph.launch()
            self.context.finish()
        return self.array(tensor)

    def array(self, tensor: GpuTensor) -> Array:
        """The array in page-locked memory."""
        if tensor.array is None:
            plain = tensor.value.on_host
            bytes_ = self._with_host(tensor).bytes[: plain.size_bytes]
            tensor.array = bytes_.view(numpy_type(plain.host_dtype)).reshape(plain.shape)
        return tensor.array

    def enter(self, tensor: GpuTensor) -> GraphNode:
        """The kernel that fetches a tensor from the host's memory."""
        return self._reordering(tensor, enters=True)

    def leave(self, tensor: GpuTensor, waits: Sequence[int] = ()) -> GraphNode:
        """The kernel that writes a tensor to the host's memory."""
        return self._reordering(tensor, enters=False, waits=waits)

    def prepare(self, values: Sequence[Value]) -> list[Any]:
        """The kernels that tensors need on their way from and to the host. They are loaded as long
        as somebody has them."""
        both = [self._launch(value, enters) for value in values for enters in (True, False)]
        return self.kernels.of(both)

    def _with_host(self, tensor: GpuTensor) -> HostMemory:
        if tensor.host is None:
            tensor.host = self.context.host_memory(tensor.value.on_host.size_bytes)
        return tensor.host

    def _launch(self, value: Value, enters: bool) -> KernelLaunch:
        there = replace(value, name="there")
        here = replace(value.on_host, name="here")
        return reorder(here, there, self._arch) if enters else reorder(there, here, self._arch)

    def _reordering(self, tensor: GpuTensor, enters: bool, waits: Sequence[int] = ()) -> GraphNode:
        launch = self._launch(tensor.value, enters)
        (kernel,) = self.kernels.of([launch])
        addresses = {"there": tensor.memory.address, "here": self._with_host(tensor).address}

        return self.kernels.node(launch, kernel, lambda value: (addresses[value.name], 0), waits)
