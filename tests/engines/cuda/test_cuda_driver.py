"""The file that calls CUDA's driver, with a driver that notes its calls."""

import enum
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coexec.codec import decode
from coexec.engines import trial
from coexec.engines.cuda import driver
from coexec.engines.cuda import listing as gpu_listing
from coexec.engines.cuda.driver import CudaContext, CudaError, Gpu, GraphNode, Pointer, gpus, loss
from coexec.engines.cuda.listing import Listing, listed, listing


class Result(enum.IntEnum):
    """Error codes, with CUDA's numbers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class NotingDriver:
    """A driver whose calls succeed, but for those in ``codes``. Each value is a new number."""

    CUDA_VERSION = 13010
    CUresult = Result
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2, CU_EVENT_BLOCKING_SYNC=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.returned: dict[str, list[Any]] = {}
        self.codes: dict[str, Result] = {}
        self.absent: set[str] = set()
        self.values: dict[str, Any] = {
            "cuDeviceGetCount": 1,
            "cuDeviceGetName": b"A GPU\0\0",
            "cuDeviceGetUuid": SimpleNamespace(bytes=bytes(range(16))),
            "cuDriverGetVersion": 13000,
            "cuDeviceGetAttribute": 9,
            "cuEventElapsedTime": 2.5,
            "cuDeviceTotalMem": 1 << 30,
            "cuGetErrorString": b"out of memory",
        }
        self.CUdevice_attribute: Any = SimpleNamespace(
            **{
                f"CU_DEVICE_ATTRIBUTE_{name}": name
                for name in (
                    "MULTIPROCESSOR_COUNT",
                    "MAX_THREADS_PER_BLOCK",
                    "MAX_SHARED_MEMORY_PER_BLOCK",
                    "COMPUTE_CAPABILITY_MAJOR",
                    "COMPUTE_CAPABILITY_MINOR",
                )
            }
        )
        self._numbers = itertools.count(1000)

    def CUDA_KERNEL_NODE_PARAMS(self) -> SimpleNamespace:
        return SimpleNamespace()

    def CUgraphEdgeData(self) -> SimpleNamespace:
        return SimpleNamespace()

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            if name == "cuGetErrorName":
                return Result.CUDA_SUCCESS, Result(*arguments).name.encode()
            if name in self.absent:
                raise RuntimeError(f"Function {name} is not found")
            value = self.values.get(name, next(self._numbers))
            self.calls.append((name, arguments))
            self.returned.setdefault(name, []).append(value)
            return self.codes.get(name, Result.CUDA_SUCCESS), value

        return call


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Iterator[NotingDriver]:
    noted = NotingDriver()
    monkeypatch.setattr(driver, "_driver", lambda: noted)
    monkeypatch.setattr(driver, "_lost", {})
    gpus.cache_clear()
    yield noted
    gpus.cache_clear()


@pytest.fixture
def context(noting: NotingDriver) -> CudaContext:
    (gpu,) = gpus()
    return CudaContext(gpu)


def test_a_gpu_is_described(noting: NotingDriver) -> None:
    (gpu,) = gpus()
    assert (gpu.name, gpu.version, gpu.capability) == ("A GPU", "13.0", (9, 9))
    assert gpu.identity == "000102030405060708090a0b0c0d0e0f"
    assert gpu.unusable is None


@pytest.mark.parametrize(
    "version, needed, remedy",
    [
        ("11.8", 13, ""),
        ("12.8", 13, ", or pip install 'cuda-bindings>=12.9.1,<13'"),
        ("13.0", 14, ", or pip install 'cuda-bindings>=13.0,<14'"),
    ],
)
def test_a_driver_that_is_too_old_for_the_bindings_is_unusable_with_the_remedy(
    version: str, needed: int, remedy: str, noting: NotingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noting, "CUDA_VERSION", 1000 * needed + 10)
    major, _, minor = version.partition(".")
    noting.values["cuDriverGetVersion"] = 1000 * int(major) + 10 * int(minor)
    (gpu,) = decode(Listing, json.loads(listed())).gpus
    assert gpu.unusable == (
        f"the driver of A GPU supports CUDA {version}, and the installed cuda-bindings are for "
        f"CUDA {needed}; update the driver{remedy}"
    )


def test_the_bindings_that_are_recommended_are_those_of_the_extra() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert (
        f"cuda-bindings>={driver._FIRST_BINDINGS[13]}" in project["optional-dependencies"]["cuda"]
    )


@pytest.mark.parametrize(
    "code, failure",
    [
        (Result.CUDA_ERROR_NO_DEVICE, ""),
        (Result.CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    ],
)
def test_a_machine_without_a_gpu_has_none_and_a_driver_that_fails_is_a_failure(
    code: Result, failure: str, noting: NotingDriver
) -> None:
    noting.codes["cuInit"] = code
    assert decode(Listing, json.loads(listed())) == Listing((), failure)


@pytest.mark.parametrize(
    "library, is_absent",
    [
        ("libc.so.6", False),
        ("libabsent.so.1", True),
        (__file__, False),  # it is there, and does not load
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Function cuInit is not found"),
        ImportError("undefined symbol"),
        ModuleNotFoundError("No module named 'cuda.pathfinder'", name="cuda.pathfinder"),
        ModuleNotFoundError("No module named 'cuda'", name="cuda"),
    ],
)
def test_bindings_that_are_broken_are_a_failure_where_there_is_a_driver(
    error: Exception,
    library: str,
    is_absent: bool,
    noting: NotingDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(driver, "_driver", fails)
    monkeypatch.setattr(driver, "_LIBRARY", library)
    is_absent = is_absent or getattr(error, "name", None) == "cuda"
    failure = "" if is_absent else f"bindings: {error}"
    assert decode(Listing, json.loads(listed())) == Listing((), failure)


def test_gpus_are_listed_by_another_process_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that forked children of a process that only lists them can use CUDA."""
    texts = ['{"gpus": [], "failure": "first"}', "crashed its process (Aborted)"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_tried", lambda *_: texts.pop(0))
    monkeypatch.setattr(driver, "_started_by", None)
    for _ in range(2):
        assert listing("1") == Listing(failure="first")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert listing("1") == Listing(failure="listing its GPUs crashed its process (Aborted)")
    assert driver._started_by is None


@pytest.mark.parametrize("first", ["crashed", '{"gpus": [], "failure": "not ready"}', "{}"])
def test_a_failed_listing_is_kept_for_minutes_and_a_list_for_a_day(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [first, *['{"failure": "later"}'] * 2]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_tried", lambda *_: texts.pop(0))

    def later(seconds: float) -> str:
        """The failure that a new process finds."""
        for path in trial._folder().glob("*.json"):
            os.utime(path, (time.time() - seconds,) * 2)
        monkeypatch.setattr(trial, "_verdicts", {})
        return listing("1").failure

    now = later(0)
    assert later(200) == now
    assert later(1000) == ("" if first == "{}" else "later")
    assert later(100_000) == "later"


def test_the_list_depends_on_the_driver_of_wsl_and_not_on_what_cuda_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_listing, "_DEVICES", tmp_path)
    monkeypatch.setattr(gpu_listing, "_WSL", tmp_path)
    facts = [dict(gpu_listing._machine())]
    for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "libcuda.so.1", "dxg"):
        (tmp_path / name).touch()
        facts.append(dict(gpu_listing._machine()))
    (tmp_path / "libcuda.so.1").write_text("newer")
    facts.append(dict(gpu_listing._machine()))
    changes = [before != after for before, after in itertools.pairwise(facts)]
    assert changes == [False, False, True, True, True, True]


def test_each_call_leaves_the_thread_its_context(
    context: CudaContext, noting: NotingDriver
) -> None:
    context.finish()
    pushed, popped = (noting.names().count(f"cuCtx{kind}Current") for kind in ("Push", "Pop"))
    assert pushed == popped > 0
    assert "cuCtxSetCurrent" not in noting.names()


def test_a_context_beside_another_has_a_stream_of_its_own(
    context: CudaContext, noting: NotingDriver
) -> None:
    other = context.beside()
    other.graph([]).launch()
    other.mark()
    streams = {
        noted[-1] for name, noted in noting.calls if name in ("cuGraphLaunch", "cuEventRecord")
    }
    assert streams == {other.stream} != {context.stream}


def test_an_error_has_cudas_words(context: CudaContext, noting: NotingDriver) -> None:
    noting.codes["cuMemAlloc"] = Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(CudaError, match="CUDA_ERROR_OUT_OF_MEMORY: out of memory") as caught:
        context.memory(100)
    assert caught.value.is_out_of_memory
    noting.absent.add("cuEventElapsedTime")
    with pytest.raises(CudaError, match="cuEventElapsedTime is not found"):
        context.mark(timed=True).seconds_since(context.mark(timed=True))
    assert noting.names().count("cuCtxPushCurrent") == noting.names().count("cuCtxPopCurrent")


def test_a_graph_has_its_nodes_and_what_they_wait_for(
    context: CudaContext, noting: NotingDriver
) -> None:
    kernel = context.kernel(b"code", "k")
    memory = context.memory(16)
    context.write(memory, np.ones(4, np.float32))
    first = GraphNode(kernel, (2, 1, 1), (32, 1, 1), (Pointer(memory.address), 3))
    graph = context.graph([first, GraphNode(kernel, (1, 1, 1), (1, 1, 1), (), waits=(0,))])
    added = [arguments for name, arguments in noting.calls if name == "cuGraphAddKernelNode"]
    handles = noting.returned["cuGraphAddKernelNode"]
    assert [waits for _, waits, _, _ in added] == [None, [handles[0]]]
    assert added[0][3].gridDimX == 2 and added[0][3].blockDimX == 32
    graph.change(1, first)
    graph.launch()
    assert noting.names().count("cuGraphExecKernelNodeSetParams") == 1
    assert noting.names().count("cuGraphLaunch") == 1


@pytest.mark.parametrize(
    "waits, version, capability, timed, is_early",
    [
        (True, 12030, 9, False, True),
        (True, 13000, 10, False, True),
        (True, 12020, 9, False, False),
        (True, 13000, 8, False, False),
        (False, 13000, 9, False, False),
        (True, 13000, 9, True, False),
    ],
)
def test_a_kernel_that_waits_itself_starts_early_where_the_gpu_can(
    waits: bool, version: int, capability: int, timed: bool, is_early: bool, noting: NotingDriver
) -> None:
    noting.values |= {"cuDriverGetVersion": version, "cuDeviceGetAttribute": capability}
    (gpu,) = gpus()
    context = CudaContext(gpu)
    kernel = context.kernel(b"code", "k", waits)
    node = GraphNode(kernel, (1, 1, 1), (1, 1, 1), ())
    context.graph([node, node, replace(node, waits=(0, 1))], timed)
    first, second, third = noting.returned["cuGraphAddKernelNode"]
    early = [given for name, given in noting.calls if name == "cuGraphAddDependencies_v2"]
    assert len(early) == is_early
    if is_early:
        _, earlier, later, edges, count = early[0]
        assert (earlier, later, count) == ([first, second], [third, third], 2)
        assert all((edge.type, edge.from_port) == (1, 1) for edge in edges)
    *_, (_, plain, _, _) = (given for name, given in noting.calls if name == "cuGraphAddKernelNode")
    assert (plain is None) == is_early


def test_a_timed_graph_records_around_each_kernel(
    context: CudaContext, noting: NotingDriver
) -> None:
    kernel = context.kernel(b"code", "k")
    node = GraphNode(kernel, (1, 1, 1), (1, 1, 1), ())
    graph = context.graph([node, node], timed=True)
    assert noting.names().count("cuGraphAddEventRecordNode") == 4
    (start, end), _ = graph.times
    assert end.seconds_since(start) == 2.5e-3


def test_a_mark_has_ended_when_cuda_says_so(context: CudaContext, noting: NotingDriver) -> None:
    mark = context.mark()
    noting.codes["cuEventQuery"] = Result.CUDA_ERROR_NOT_READY
    assert not mark.ended
    noting.codes["cuEventQuery"] = Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(CudaError):
        _ = mark.ended
    del noting.codes["cuEventQuery"]
    for _ in range(2):  # then CUDA is not asked again
        assert mark.ended
        mark.wait()
    assert noting.names().count("cuEventQuery") == 3
    assert noting.names().count("cuEventSynchronize") == 0


def test_a_thread_sleeps_at_a_mark_that_says_so(context: CudaContext, noting: NotingDriver) -> None:
    for sleeps in (False, True):
        context.mark(sleeps=sleeps)
        *_, (bits, *_) = (given for name, given in noting.calls if name == "cuEventCreate")
        assert bool(bits & noting.CUevent_flags.CU_EVENT_BLOCKING_SYNC) == sleeps


def test_words_are_written_and_awaited_in_the_stream(
    context: CudaContext, noting: NotingDriver
) -> None:
    context.await_word(64)
    context.set_word(68)
    assert noting.calls[-5][1] == (context.stream, 64, 1, 0)
    assert noting.calls[-2][1] == (context.stream, 68, 1, 0)


@pytest.mark.parametrize("broken", ["", "absent", "refused", "without effect"])
def test_words_are_tried_once(
    broken: str, context: CudaContext, noting: NotingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = np.zeros(1, np.uint32)
    noting.values["cuMemHostAlloc"] = word.ctypes.data
    if broken == "absent":
        noting.absent.add("cuStreamWaitValue32")
    if broken == "refused":
        noting.codes["cuStreamWaitValue32"] = Result.CUDA_ERROR_OUT_OF_MEMORY

    def finish(context: CudaContext) -> None:
        word[0] = broken != "without effect"

    monkeypatch.setattr(CudaContext, "finish", finish)
    assert context.has_words == (not broken)


CALLS = {
    "cuDevicePrimaryCtxRetain": "open",
    "cuStreamCreate": "open",
    "cuModuleLoadData": "kernel",
    "cuModuleGetFunction": "kernel",
    "cuMemAlloc": "memory",
    "cuMemHostAlloc": "host memory",
    "cuMemcpyHtoD": "write",
    "cuGraphCreate": "graph",
    "cuGraphAddKernelNode": "graph",
    "cuGraphInstantiate": "graph",
    "cuGraphExecKernelNodeSetParams": "change",
    "cuGraphLaunch": "launch",
    "cuEventCreate": "mark",
    "cuEventRecord": "mark",
    "cuEventQuery": "ended",
    "cuEventSynchronize": "wait",
    "cuEventElapsedTime": "time",
    "cuStreamSynchronize": "finish",
}
"""What needs a call of the driver."""


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_each_call_that_fails_is_an_error_and_everything_is_given_back(
    call: str, is_lost: bool, noting: NotingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a context that is lost, every call fails, also those that give something back. It is not
    lost while another library captures a graph."""
    unheard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    made: dict[str, Any] = {}
    steps: dict[str, Callable[[], Any]] = {
        "open": lambda: CudaContext(gpus()[0]),
        "memory": lambda: made["open"].memory(16),
        "host memory": lambda: made["open"].host_memory(16),
        "write": lambda: made["open"].write(made["memory"], np.ones(4, np.float32)),
        "kernel": lambda: made["open"].kernel(b"code", "k"),
        "node": lambda: GraphNode(made["kernel"], (1, 1, 1), (1, 1, 1), ()),
        "graph": lambda: made["open"].graph([made["node"]]),
        "change": lambda: made["graph"].change(0, made["node"]),
        "launch": lambda: made["graph"].launch(),
        "mark": lambda: made["open"].mark(timed=True),
        "ended": lambda: made["open"].mark().ended,
        "wait": lambda: made["open"].mark().wait(),
        "time": lambda: made["mark"].seconds_since(made["mark"]),
        "finish": lambda: made["open"].finish(),
    }
    for step, make in steps.items():
        if step != CALLS[call]:
            made[step] = make()
            continue
        code = Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        if is_lost:
            code = Result.CUDA_ERROR_ILLEGAL_ADDRESS
            ends = ("Free", "FreeHost", "Destroy", "Unload")
            gone = {name for name in noting.names() if name.endswith(ends)}
            lost = (CALLS.keys() | gone) - {"cuDevicePrimaryCtxRetain"}
            noting.codes |= dict.fromkeys(lost, code)
        noting.codes[call] = code
        with pytest.raises(CudaError, match=code.name) as caught:
            make()
        assert not caught.value.is_out_of_memory
        break
    assert noting.names().count("cuCtxPushCurrent") == noting.names().count("cuCtxPopCurrent")
    expected = is_lost and call != "cuDevicePrimaryCtxRetain"
    assert (loss(gpus()[0].identity) is not None) == expected
    made.clear()
    del caught
    gc.collect()
    assert unheard == []


def test_everything_is_given_back_but_not_in_a_forked_child(
    noting: NotingDriver, context: CudaContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, kernel, mark = context.memory(8), context.kernel(b"code", "k"), context.mark()
    graph = context.graph([GraphNode(kernel, (1, 1, 1), (1, 1, 1), ())])
    del memory, mark, graph, kernel
    gone = ("cuMemFree", "cuGraphExecDestroy", "cuGraphDestroy", "cuModuleUnload")
    assert all(noting.names().count(name) == 1 for name in gone)
    context.mark()  # which uses the event of the mark before
    assert noting.names().count("cuEventCreate") == 1
    other = CudaContext(gpus()[0])
    other.mark()
    del other
    assert noting.names().count("cuEventDestroy") == 1
    memory = context.memory(8)
    monkeypatch.setattr("coexec.engines.cuda.driver.os.getpid", lambda: -1)
    del memory
    assert noting.names().count("cuMemFree") == 1


@pytest.mark.parametrize("end", ["wait", "failure", "query", "finish", "destruction"])
def test_nothing_is_given_back_while_a_stream_waits_for_a_word(
    end: str, noting: NotingDriver
) -> None:
    """The driver may wait for the GPU then, and the GPU for this thread."""
    context, other = CudaContext(gpus()[0]), CudaContext(gpus()[0])
    memory, kernel, before = context.memory(8), other.kernel(b"code", "k"), context.mark()
    context.await_word(64)
    mark = context.mark()
    del memory, kernel
    before.wait()
    other.finish()
    assert not {"cuMemFree", "cuModuleUnload"} & set(noting.names())
    if end == "failure":
        noting.codes["cuEventSynchronize"] = Result.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(CudaError):
            mark.wait()
    elif end == "query":
        assert mark.ended
    elif end == "destruction":
        del before, mark
        context = other
    else:
        (mark if end == "wait" else context).__getattribute__(end)()
    assert {"cuMemFree", "cuModuleUnload"} <= set(noting.names())


def test_gpus_are_not_opened_to_be_listed(noting: NotingDriver) -> None:
    assert isinstance(gpus()[0], Gpu)
    assert "cuDevicePrimaryCtxRetain" not in noting.names()
