"""A GPU with CUDA's graphs, computed by OpenCL on a CPU core.

It has the interface of `coexec.engines.cuda.driver.CudaContext`. A thread does the work of the
stream. The nodes of a graph run one after the other, in a random one of the sequences that the
graph allows: a dependency that is missing, or memory that two tensors share wrongly, gives wrong
numbers sooner or later. By its clock, each kernel takes `KERNEL_S` and starts as soon as those that
it waits for have ended.
"""

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from coexec.engines import registry
from coexec.engines.base import NativeCall, Processor
from coexec.engines.cuda import compilers, device, driver, engine
from coexec.engines.cuda.device import CudaDevice
from coexec.engines.cuda.driver import CudaError, GraphNode, Pointer
from coexec.engines.cuda.engine import Cuda
from coexec.engines.cuda.listing import ListedGpu, Listing
from coexec.engines.cuda.options import CudaOptions
from coexec.engines.kernels.base import OPENCL_PRELUDE
from coexec.engines.opencl.engine import OpenCl
from coexec.engines.reference import ReferenceEngine
from coexec.hardware.hardware import Device, EngineInfo
from tests.helpers.opencl_gpu import plan_in_this_process, stand_in_gpu


def _matrix_unit(unit: str, ctype: str, depth: int, get: str) -> str:
    """The multiplication of `kernels.matrix_units` by one work item."""
    return f"""
typedef __local const {ctype}* left_{unit};
typedef __local const {ctype}* right_{unit};
#define left_of_{unit}(p, lane) (p)
#define right_of_{unit}(p, lane) (p)
void multiply_{unit}(float4* top, float4* bottom, left_{unit} x, right_{unit} w, int lane) {{
  for (int part = 0; part < 2; part++) {{
    const int row = lane / 4 + 8 * part;
    float sums[4];
    for (int i = 0; i < 4; i++) {{
      const int column = lane % 4 * 4 + i;
      float sum = 0.0f;
      for (int k = 0; k < {depth}; k++) {{
        const int unit = k / {depth // 4}, rest = k % {depth // 4};
        const int a = row * {depth} + (unit ^ row / 2 % 4) * {depth // 4} + rest;
        const int b = column * {depth} + (unit ^ column / 2 % 4) * {depth // 4} + rest;
        sum += {get.format("x", "a")} * {get.format("w", "b")};
      }}
      sums[i] = sum;
    }}
    *(part ? bottom : top) += (float4)(sums[0], sums[1], sums[2], sums[3]);
  }}
}}
"""


_MATRIX_UNITS = (
    """
float in_tf32(float v) { return as_float((as_int(v) + 0x1000) & ~0x1fff); }
void keep_one_tf32(float v, int i, __local float* p) { p[i] = in_tf32(v); }
void keep_tf32(float4 v, int i, __local float* p) {
  vstore4((float4)(in_tf32(v.x), in_tf32(v.y), in_tf32(v.z), in_tf32(v.w)), 0, p + i);
}
void keep_one_fp16(float v, int i, __local ushort* p) { vstore_half(v, i, (__local half*)p); }
void keep_raw(ushort4 v, int i, __local ushort* p) { vstore4(v, 0, p + i); }
void keep_fp16(float4 v, int i, __local ushort* p) { vstore_half4(v, 0, (__local half*)(p + i)); }
void copy_raw(__local ushort* to, __global const ushort4* from, int inside) {
  vstore4(inside ? *from : (ushort4)(0), 0, to);
}
#define commit_copies()
#define wait_copies(n)
"""
    + _matrix_unit("tf32", "float", 16, "{}[{}]")
    + _matrix_unit("fp16", "ushort", 32, "vload_half({1}, (__local const half*){0})")
)
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
    native_calls: int = 0
    """Number of calls of C functions."""

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


class _Mark:
    def __init__(self, context: "FakeContext") -> None:
        self._context = context
        self._reached = threading.Event()
        self.at_s = 0.0

    def renew(self) -> None:
        """Mark another place of the stream."""
        self._reached.clear()

    def reach(self, at_s: float | None = None) -> None:
        real = self._context.has_real_clock
        self.at_s = time.perf_counter() if real else self._context.clock_s if at_s is None else at_s
        self._reached.set()

    @property
    def ended(self) -> bool:
        self._context.faults.at("ended")
        if self._reached.is_set() and self._context.broken is not None:
            raise self._context.broken
        return self._reached.is_set() and not self._context.faults.hangs

    def wait(self) -> None:
        self._context.faults.at("wait")
        self._reached.wait()
        if self._context.broken is not None:
            raise self._context.broken

    def seconds_since(self, earlier: "_Mark") -> float:
        return self.at_s - earlier.at_s


@dataclass(eq=False)
class FakeKernel:
    """A loaded kernel."""

    kernel: Any


@cache
def _opencl_context() -> Any:
    """That of all GPUs, so that they have their programs in common."""
    return stand_in_gpu().context()


@cache
def _program(image: bytes) -> Any:
    """The built program of a text. PoCL takes 0.3 s for one."""
    import pyopencl as cl

    program = cl.Program(_opencl_context(), OPENCL_PRELUDE + _MATRIX_UNITS + image.decode())
    return program.build("-cl-std=CL1.2 -cl-opt-disable")


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
        self.queue = cl.CommandQueue(_opencl_context())
        self.clock_s = 0.0
        self.has_real_clock = False
        """Whether kernels take the time that they take here."""
        self.launched: list[int] = []
        """Number of nodes of each graph that was launched."""
        self.broken: Exception | None = None
        """What the driver reports from now on: the GPU does no work any more."""
        self.has_words = True
        self._inside: set[int] = set()
        """Threads in which C functions may be called."""
        self._functions: list[Any] = []
        self._error = CudaError("none", "")
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_works, args=(self._work,), daemon=True).start()

    def beside(self) -> "FakeContext":
        return self

    def __enter__(self) -> None:
        self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._inside.remove(threading.get_ident())

    def native(self, graph: "_Graph", end: _Mark) -> list[NativeCall]:
        """The calls of C functions, which are written in Python here."""

        def worked(do: Callable[[], None]) -> int:
            assert threading.get_ident() in self._inside
            self.faults.native_calls += 1
            try:
                do()
            except CudaError as error:
                self._error = error
                return 700
            return 0

        def record() -> None:
            self.faults.at("mark")
            end.renew()
            self._work.put(end.reach)

        end._reached.wait()  # nothing of the past reaches it later
        calls = []
        for do in (graph.launch, record, end.wait):
            function = ctypes.CFUNCTYPE(ctypes.c_int)(partial(worked, do))
            self._functions.append(function)
            calls.append(NativeCall(ctypes.cast(function, ctypes.c_void_p).value or 0, ()))
        return calls

    def error(self, code: int) -> CudaError:
        assert code == 700
        return self._error

    def kernel(self, image: bytes, name: str, waits: bool = False) -> Any:
        import pyopencl as cl

        self.faults.at("kernel")
        return FakeKernel(cl.Kernel(_program(image), name))

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

    def queue_work(self, work: Callable[[], None]) -> None:
        """Append to the stream."""
        self._work.put(lambda: None if self.broken else work())

    def await_word(self, address: int) -> None:
        word = ctypes.c_uint32.from_address(address)

        def wait() -> None:
            while not word.value:
                time.sleep(1e-5)

        self.queue_work(wait)

    def set_word(self, address: int) -> None:
        word = ctypes.c_uint32.from_address(address)
        self.queue_work(lambda: setattr(word, "value", 1))

    def mark(self, timed: bool = False, sleeps: bool = False) -> _Mark:
        self.faults.at("mark")
        mark = _Mark(self)
        self._work.put(mark.reach)
        return mark

    def finish(self) -> None:
        self.faults.at("finish")
        self.mark().wait()

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)

    def release(self, name: str, handle: Any) -> None:
        """Nothing has to be given back."""


def _works(work: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (one := work.get()) is not None:
        one()


class _Graph:
    def __init__(self, context: FakeContext, nodes: Sequence[GraphNode], timed: bool) -> None:
        assert all(other < n for n, node in enumerate(nodes) for other in node.waits)
        assert all(max(node.groups[1:]) <= 65535 for node in nodes)  # as CUDA requires
        self._context = context
        self._nodes = list(nodes)
        self.times = [(_Mark(context), _Mark(context)) for _ in nodes] if timed else []

    def change(self, number: int, node: GraphNode) -> None:
        self._context.faults.at("change")
        self._nodes[number] = node

    def launch(self) -> None:
        self._context.faults.at("launch")
        nodes = dict(enumerate(self._nodes))
        self._context.launched.append(len(nodes))
        self._context.queue_work(lambda: self._run_all(nodes))

    def _run_all(self, nodes: dict[int, GraphNode]) -> None:
        begin_s, left = self._context.clock_s, dict(nodes)
        while left:
            ready = [n for n, node in left.items() if not set(node.waits) & left.keys()]
            number = self._context.random.choice(ready)
            real = self.times[number] if self.times and self._context.has_real_clock else ()
            for mark in real[:1]:
                mark.reach()
            self._run(left.pop(number))
            for mark in real[1:]:
                mark.reach()
        if self._context.has_real_clock:
            return
        ends_s: list[float] = []
        for number, node in nodes.items():
            start_s = max((ends_s[other] for other in node.waits), default=begin_s)
            ends_s.append(start_s + KERNEL_S)
            if self.times:
                for mark, at_s in zip(self.times[number], (start_s, ends_s[-1]), strict=True):
                    mark.reach(at_s)
        self._context.clock_s = max(ends_s, default=begin_s)

    def _run(self, node: GraphNode) -> None:
        import pyopencl as cl

        arguments = []
        for argument in node.arguments:
            if isinstance(argument, Pointer):
                host = self._context.memories[argument.address].bytes
                flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
                arguments.append(cl.Buffer(_opencl_context(), flags, hostbuf=host))
            else:
                arguments.append(np.int32(argument))
        grid = tuple(g * n for g, n in zip(node.groups, node.group, strict=True))
        node.function.kernel(self._context.queue, grid, node.group, *arguments)
        self._context.queue.finish()


@contextmanager
def fake_cuda(seed: int = 0, **options: Any) -> Iterator[CudaDevice]:
    """The CUDA engine on such a GPU. Skips the test if no OpenCL runtime works."""
    context = FakeContext(FakeGpu(), seed=seed)
    with closing(context), pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "CudaContext", lambda gpu, sleeps: context)
        patch.setattr(compilers, "_chosen", lambda *_: (str.encode, "fake"))
        spec = Device(NAME, "gpu", EngineInfo("cuda", "1", f"cuda on {NAME}"))
        yield CudaDevice(spec, spec.engine, context.gpu, CudaOptions(**options), None)


@contextmanager
def machine_with_gpu(has_opencl: bool = True, count: int = 1) -> Iterator[Faults]:
    """This machine with a GPU, "gpu:0", which the engine `cuda` drives as `fake_cuda` does, and
    `opencl`, in whose place the reference engine computes. Planning takes no process of its own.

    Args:
        count: number of GPUs. Those after the first one do not fail.
    """
    gpus = tuple(FakeGpu(f"Fake {n}" if n else "Fake", f"{n:02}") for n in range(count))
    faults = Faults()
    contexts: list[FakeContext] = []

    def opened(gpu: FakeGpu, sleeps: bool) -> FakeContext:
        contexts.append(FakeContext(gpu, sleeps, faults=faults if gpu == gpus[0] else None))
        return contexts[-1]

    names = ("onnxruntime", "cuda", "opencl")
    engines = sorted(map(registry.load_engine, names), key=lambda engine: engine.rank)
    listed = tuple(
        ListedGpu(gpu.name, gpu.identity, gpu.version, gpu.memory_bytes, 16, "9.0", None)
        for gpu in gpus
    )
    opencl = [Processor("gpu", gpu.name, gpu.identity) for gpu in gpus] if has_opencl else []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_working", lambda: tuple(engines))
        patch.setattr(engine, "find_spec", lambda name: True)
        patch.setattr(engine, "listing", lambda bindings: Listing(listed))
        patch.setattr(engine, "gpus", lambda: gpus)
        patch.setattr(driver, "_lost", {})
        patch.setattr(Cuda, "needs_trial", False)
        patch.setattr(OpenCl, "needs_trial", False)
        patch.setattr(device, "CudaContext", opened)
        patch.setattr(compilers, "_chosen", lambda *_: (str.encode, "fake"))
        patch.setattr(OpenCl, "processors", lambda self, kind: opencl if kind == "gpu" else [])
        patch.setattr(OpenCl, "describe", lambda *_: EngineInfo("opencl", "1"))
        patch.setattr(OpenCl, "open", lambda self, device, info, *_: ReferenceEngine(device, info))
        plan_in_this_process(patch)
        yield faults
    for context in contexts:
        context.close()
