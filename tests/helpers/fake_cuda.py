"""A GPU with CUDA's graphs, computed by OpenCL on a CPU core.

It has the interface of `coexec.engines.cuda.driver.CudaContext`. The nodes of a graph run one after
the other, in a random one of the sequences that the graph allows: a dependency that is missing, or
memory that two tensors share wrongly, gives wrong numbers sooner or later. By its clock, each
kernel takes `KERNEL_S` and starts as soon as those that it waits for have ended.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from coexec.engines import registry
from coexec.engines.base import Processor
from coexec.engines.cuda import compilers, device, driver, engine
from coexec.engines.cuda.device import CudaDevice
from coexec.engines.cuda.driver import CudaError, GraphNode, Pointer
from coexec.engines.cuda.engine import Cuda
from coexec.engines.cuda.listing import ListedGpu, Listing
from coexec.engines.cuda.options import CudaOptions
from coexec.engines.kernels.base import OPENCL_PRELUDE
from coexec.engines.opencl.engine import OpenCl
from coexec.engines.reference import ReferenceEngine
from coexec.errors import CoexecError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.selection import background, prepare
from tests.helpers.needs_opencl import opencl_found

NAME = "gpu:0"
KERNEL_S = 1e-5


@dataclass
class FakeGpu:
    """The properties of a GPU."""

    name: str = "Fake"
    identity: str = "00"
    version: str = "13.0"
    memory_bytes: int = 1 << 30
    compute_units: int = 16
    max_group: int = 256
    local_bytes: int = 32768
    capability: tuple[int, int] = (9, 0)
    unusable: str | None = None


@dataclass
class Faults:
    """Errors of CUDA: each call of a method of `FakeContext`, of its graphs and marks fails that is
    named here. "open" is its constructor."""

    errors: dict[str, CudaError] = field(default_factory=dict)
    opened: int = 0
    """Number of contexts that were opened, or failed to open."""
    hangs: bool = False
    """Whether launched work does not end."""

    def at(self, method: str) -> None:
        """Fail if ``method`` has to. After an error that is no lack of memory, or of a kernel that
        does not load, the GPU is lost for this process."""
        error = self.errors.get(method) or self.errors.get("all")
        if error is None:
            return
        if not error.is_out_of_memory and method != "kernel":
            self.errors["all"] = error
            driver._lost[FakeGpu.identity] = str(error)
        raise error


class _Memory:
    def __init__(self, size_bytes: int) -> None:
        whole = np.full(size_bytes + 256, 0xFF, np.uint8)  # NaN: nothing may read it
        self.bytes = whole[-whole.ctypes.data % 256 :][:size_bytes]
        self.address = self.bytes.ctypes.data


@dataclass
class _Mark:
    faults: Faults
    at_s: float = 0.0

    @property
    def ended(self) -> bool:
        self.faults.at("ended")
        return not self.faults.hangs

    def wait(self) -> None:
        """Everything has ended."""
        self.faults.at("wait")

    def seconds_since(self, earlier: "_Mark") -> float:
        return self.at_s - earlier.at_s


@dataclass(eq=False)
class FakeKernel:
    """A loaded kernel."""

    kernel: Any


class FakeContext:
    """An open GPU."""

    def __init__(
        self, gpu: FakeGpu, sleeps: bool = False, seed: int = 0, faults: Faults | None = None
    ) -> None:
        import pyopencl as cl

        self.gpu = gpu
        self.faults = faults or Faults()
        self.faults.opened += 1
        self.faults.at("open")
        self.is_forked = False
        self.random = random.Random(seed)
        self.memories: dict[int, _Memory] = {}
        self.opencl = opencl_found().context()
        self.queue = cl.CommandQueue(self.opencl)
        self.clock_s = 0.0
        self.launched: list[int] = []
        """Number of nodes of each graph that was launched."""

    def kernel(self, image: bytes, name: str) -> Any:
        import pyopencl as cl

        self.faults.at("kernel")
        program = cl.Program(self.opencl, OPENCL_PRELUDE + image.decode())
        kernel = cl.Kernel(program.build("-cl-std=CL1.2 -cl-opt-disable"), name)
        return FakeKernel(kernel)

    def memory(self, size_bytes: int) -> _Memory:
        self.faults.at("memory")
        memory = _Memory(max(size_bytes, 4))
        self.memories[memory.address] = memory
        return memory

    def host_memory(self, size_bytes: int) -> _Memory:
        self.faults.at("host_memory")
        return self.memory(size_bytes)

    def write(self, memory: _Memory, array: "np.ndarray[Any, Any]") -> None:
        self.faults.at("write")
        memory.bytes[: array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)

    def graph(self, nodes: Sequence[GraphNode], timed: bool = False) -> "_Graph":
        self.faults.at("graph")
        return _Graph(self, nodes, timed)

    def mark(self, timed: bool = False) -> _Mark:
        self.faults.at("mark")
        return _Mark(self.faults, self.clock_s)

    def finish(self) -> None:
        """Everything has ended."""
        self.faults.at("finish")

    def release(self, name: str, handle: Any) -> None:
        """Nothing has to be given back."""


class _Graph:
    def __init__(self, context: FakeContext, nodes: Sequence[GraphNode], timed: bool) -> None:
        assert all(other < n for n, node in enumerate(nodes) for other in node.waits)
        assert all(max(node.groups[1:]) <= 65535 for node in nodes)  # as CUDA requires
        self._context = context
        self._nodes = list(nodes)
        self.times = [(context.mark(), context.mark()) for _ in nodes] if timed else []

    def change(self, number: int, node: GraphNode) -> None:
        self._context.faults.at("change")
        self._nodes[number] = node

    def launch(self) -> None:
        self._context.faults.at("launch")
        context, left = self._context, dict(enumerate(self._nodes))
        context.launched.append(len(left))
        while left:
            ready = [n for n, node in left.items() if not set(node.waits) & left.keys()]
            self._run(left.pop(context.random.choice(ready)))
        ends_s: list[float] = []
        for number, node in enumerate(self._nodes):
            start_s = max((ends_s[other] for other in node.waits), default=context.clock_s)
            ends_s.append(start_s + KERNEL_S)
            if self.times:
                start, end = self.times[number]
                start.at_s, end.at_s = start_s, ends_s[-1]
        context.clock_s = max(ends_s, default=context.clock_s)

    def _run(self, node: GraphNode) -> None:
        import pyopencl as cl

        arguments = []
        for argument in node.arguments:
            if isinstance(argument, Pointer):
                host = self._context.memories[argument.address].bytes
                flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
                arguments.append(cl.Buffer(self._context.opencl, flags, hostbuf=host))
            else:
                arguments.append(np.int32(argument))
        grid = tuple(g * n for g, n in zip(node.groups, node.group, strict=True))
        node.function.kernel(self._context.queue, grid, node.group, *arguments)
        self._context.queue.finish()


@contextmanager
def fake_cuda(seed: int = 0, **options: Any) -> Iterator[CudaDevice]:
    """The CUDA engine on such a GPU. Skips the test if no OpenCL runtime works."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "CudaContext", lambda gpu, sleeps: FakeContext(gpu, sleeps, seed))
        patch.setattr(compilers, "_chosen", lambda *_: (str.encode, "fake"))
        spec = Device(NAME, "gpu", EngineInfo("cuda", "1", f"cuda on {NAME}"))
        yield CudaDevice(spec, spec.engine, FakeGpu(), CudaOptions(**options), None)


@contextmanager
def machine_with_gpu(has_opencl: bool = True) -> Iterator[Faults]:
    """This machine with a GPU, "gpu:0", which the engine `cuda` drives as `fake_cuda` does, and
    `opencl`, in whose place the reference engine computes. Planning takes no process of its own.
    """
    gpu, faults = FakeGpu(), Faults()
    names = ("onnxruntime", "cuda", "opencl")
    engines = sorted(map(registry.load_engine, names), key=lambda engine: engine.rank)
    listed = ListedGpu(gpu.name, gpu.identity, gpu.version, gpu.memory_bytes, 16, "9.0", None)
    opencl = [Processor("gpu", gpu.name, gpu.identity)] if has_opencl else []

    def planned(job: Any, source: Any, settings: Any, again: bool) -> Exception | None:
        try:
            prepare.prepare(source, settings, again)
        except CoexecError as error:
            return error
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_working", lambda: tuple(engines))
        patch.setattr(engine, "find_spec", lambda name: True)
        patch.setattr(engine, "listing", lambda bindings: Listing((listed,)))
        patch.setattr(engine, "gpus", lambda: (gpu,))
        patch.setattr(driver, "_lost", {})
        patch.setattr(Cuda, "needs_trial", False)
        patch.setattr(device, "CudaContext", partial(FakeContext, faults=faults))
        patch.setattr(compilers, "_chosen", lambda *_: (str.encode, "fake"))
        patch.setattr(OpenCl, "processors", lambda self, kind: opencl if kind == "gpu" else [])
        patch.setattr(OpenCl, "describe", lambda *_: EngineInfo("opencl", "1"))
        patch.setattr(OpenCl, "open", lambda self, device, info, *_: ReferenceEngine(device, info))
        patch.setattr(background, "error_of_planning", planned)
        yield faults
