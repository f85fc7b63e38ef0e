"""CPU runtimes of OpenCL: how they are found, in which order, and bound to cores."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyopencl")

import pyopencl as cl

from coexec.engines import detect
from coexec.engines.names import whole_cpu
from coexec.engines.opencl import cpu_runtime, intel, platforms, pocl, vendors
from coexec.engines.opencl.cpu_runtime import CpuRuntime, calling_from, environment
from coexec.engines.opencl.intel import Intel
from coexec.engines.opencl.platforms import devices, start
from coexec.engines.opencl.pocl import Pocl
from coexec.engines.opencl.tried import unusable
from coexec.errors import DeviceError

TWO_CORES = """
import numpy as np
from tests.helpers.gpu_networks import small_network
from coexec.engines.registry import open_devices
from coexec.errors import DeviceError
from coexec.model.check import plain_session, worst_difference
from coexec.session import InferenceSession
from threading import Thread

names = {names!r}
proto = small_network("swish", as_model=True)
words = {{"planner": "single", "cache": {cache!r}, "engine_options": {options!r}}}
sessions = [InferenceSession(proto, devices=[name], **words) for name in names]
feeds = {{i.name: np.ones(i.shape, np.float32) for i in sessions[0].get_inputs()}}
expected = plain_session(proto).run(None, feeds)[0]
found = []
def work(session):
    for _ in range(20):
        found.append(worst_difference(session.run(None, feeds)[0], expected))
threads = [Thread(target=work, args=(s,)) for s in sessions]
[t.start() for t in threads], [t.join() for t in threads]
assert len(found) == 20 * len(names) and max(found) < 1e-4
print([s.get_providers() for s in sessions])
"""


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Where threads were bound: no thread is touched."""
    start(detect.usable_cores()[-1:])  # before anything is replaced
    seen: dict[int, set[int]] = {}

    def bind(threads: Any, cores: Any) -> None:
        seen.update(zip(threads, map(set, cores), strict=False))

    for module in (pocl, intel):
        monkeypatch.setattr(module, "bind", bind)
    for name in (
        "OCL_ICD_VENDORS",
        "OCL_ICD_FILENAMES",
        "POCL_MAX_PTHREAD_COUNT",
        "DPCPP_CPU_NUM_CUS",
        "OPENCL_VENDOR_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    return seen


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library of a wheel, which is not one that can be loaded."""
    path = tmp_path / "libintelocl.so"
    path.write_text("no library")
    monkeypatch.setattr(vendors, "installed", lambda: {"intel-opencl-rt": path})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield path


@pytest.fixture
def loader(tmp_path: Path) -> Path:
    """The folder of a pyopencl that brings a loader along."""
    (tmp_path / "pyopencl" / ".libs").mkdir(parents=True)
    (tmp_path / "pyopencl" / ".libs" / "libOpenCL-1.so").touch()
    return tmp_path / "pyopencl"


def pocl_with(threads: int) -> Pocl:
    runtime = Pocl()
    runtime.variables(threads)
    runtime.loaded(range(100, 100 + threads))
    return runtime


def intel_with(threads: int) -> Intel:
    runtime = Intel()
    runtime._threads, runtime._workers = threads, range(200, 200 + max(1, threads - 1))
    return runtime


def handle(units: int = 2) -> Any:
    return SimpleNamespace(
        create_sub_devices=lambda names: (("part", *names),), max_compute_units=units
    )


def test_the_loader_gets_the_vendors_of_the_system_too(
    library: Path, loader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    monkeypatch.setenv("OPENCL_VENDOR_PATH", str(tmp_path / "system"))
    folder = Path(vendors.variables(loader)["OCL_ICD_VENDORS"])
    assert {file.name: file.read_text().strip() for file in folder.iterdir()} == {
        "nvidia.icd": "libnvidia-opencl.so.1",
        "coexec-libintelocl.so.icd": str(library),
    }
    assert vendors.variables(loader)["OCL_ICD_VENDORS"] == str(folder)


def test_other_loaders_get_a_list(library: Path, tmp_path: Path) -> None:
    assert vendors.variables(tmp_path) == {"OCL_ICD_FILENAMES": str(library)}


def test_what_the_user_has_set_is_left(
    library: Path, loader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nowhere")
    assert vendors.variables(loader) == {}
    with environment({"OCL_ICD_VENDORS": "ours", "COEXEC_TEST": "1"}):
        assert (os.environ["OCL_ICD_VENDORS"], os.environ["COEXEC_TEST"]) == ("/nowhere", "1")
    assert os.environ["OCL_ICD_VENDORS"] == "/nowhere" and "COEXEC_TEST" not in os.environ


def test_a_cache_folder_that_cannot_be_written_is_replaced(
    library: Path, loader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = Path(vendors.variables(loader)["OCL_ICD_VENDORS"])
    assert (folder / "coexec-libintelocl.so.icd").read_text().strip() == str(library)
    monkeypatch.setattr(vendors, "substitute", lambda root: None)  # nor can any other disk
    assert vendors.variables(loader) == {}


def test_without_a_wheel_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendors, "installed", dict)
    assert vendors.variables(tmp_path) == {} and vendors.absent("") == []


def test_a_runtime_that_was_not_loaded_is_a_reason(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vendors.absent("Intel(R) OpenCL") == []
    monkeypatch.setattr(vendors, "_mapped", lambda name: None)
    (reason,) = vendors.absent("Portable Computing Language")
    assert "was not loaded" in reason and "intel-opencl-rt" in reason
    other = Path("/openvino/libs/libtbb.so.12")
    monkeypatch.setattr(vendors, "_mapped", lambda name: other)
    (reason,) = vendors.absent("")
    assert f"than {other}" in reason and "before OpenVINO is imported" in reason


def test_gpus_come_first_and_intels_runtime_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "Intel(R) OpenCL": "CPU",
        "Emulator": "ACCELERATOR",
        "Another": "CPU",
        "Portable Computing Language": "CPU",
        "GPUs": "GPU",
    }
    named = [
        SimpleNamespace(
            platform=SimpleNamespace(name=name, version=""), type=getattr(cl.device_type, kind)
        )
        for name, kind in kinds.items()
    ]
    monkeypatch.setattr(platforms, "_RUNTIMES", dict(platforms._RUNTIMES))
    monkeypatch.setattr(platforms, "_platforms", lambda: named)
    monkeypatch.setattr(platforms, "_handles", lambda platform: [platform])
    found = devices()
    assert [f.handle.platform.name for f in found] == [
        "GPUs",
        "Intel(R) OpenCL",
        "Portable Computing Language",
        "Another",
    ]
    assert [f.on_cpu for f in found] == [False, True, True, True]


def test_pocl_has_one_set_of_cores_at_a_time(bound: dict[int, set[int]]) -> None:
    runtime = pocl_with(2)
    binding = runtime.occupy("device", (0, 1))
    assert bound == {100: {0}, 101: {1}} and binding.thread_cores == (0, 1)
    again = runtime.occupy("device", (0, 1))
    with pytest.raises(DeviceError, match=r"compute on core 0, 1; .* needs another process"):
        runtime.occupy("device", (2, 3))
    with pytest.raises(DeviceError, match=r"has 2 threads .* cannot compute on 3 cores"):
        runtime.occupy("device", (0, 1, 2))
    del binding, again
    runtime.occupy("device", (2, 3))
    assert bound == {100: {2}, 101: {3}}


def test_pocls_threads_take_turns_on_fewer_cores(bound: dict[int, set[int]]) -> None:
    runtime = pocl_with(3)
    runtime.occupy("device", (4,))
    assert bound == {100: {4}, 101: {4}, 102: {4}}
    runtime.occupy("device", (1, 2))
    assert bound == {100: {1}, 101: {2}, 102: {1}}


def test_intels_caller_computes_on_the_first_core(
    bound: dict[int, set[int]],
) -> None:
    runtime = intel_with(3)
    binding = runtime.occupy(handle(), (1, 2, 4))
    assert bound == {200: {2}, 201: {4}} and binding.thread_cores == (1,)
    with pytest.raises(DeviceError, match="several devices in one process have one core each"):
        runtime.occupy(handle(), (5, 6, 7))
    with pytest.raises(DeviceError, match=r"has 3 threads .* cannot compute on 4 cores; open the"):
        runtime.occupy(handle(), (1, 2, 4, 5))


def test_intels_threads_take_turns_on_fewer_cores(bound: dict[int, set[int]]) -> None:
    runtime = intel_with(4)
    whole = handle()
    place = runtime.occupy(whole, (5,))
    assert bound == {200: {5}, 201: {5}, 202: {5}} and place.thread_cores == (5,)
    assert place.handle is whole
    with pytest.raises(DeviceError, match="several devices in one process have one core each"):
        runtime.occupy(handle(), (6,))
    del place
    place = runtime.occupy(handle(), (1, 2))
    assert bound == {200: {2}, 201: {1}, 202: {2}} and place.thread_cores == (1,)


def test_intels_devices_of_one_core_have_parts_of_their_own(
    bound: dict[int, set[int]],
) -> None:
    runtime = intel_with(1)
    first = runtime.occupy(handle(), (3,))
    assert bound == {200: {3}}
    second = runtime.occupy(handle(), (5,))
    assert bound == {200: {3, 5}}
    assert first.handle != second.handle
    assert runtime.occupy(handle(), (3,)).handle == first.handle
    del first
    runtime.occupy(handle(), (5,))
    assert bound == {200: {5}}


def test_intels_device_of_one_core_is_not_divided() -> None:
    whole = handle(units=1)
    assert intel_with(1).occupy(whole, (3,)).handle is whole


def test_an_unknown_runtime_has_all_cores() -> None:
    runtime = CpuRuntime("Another")
    cores = detect.usable_cores()
    assert runtime.occupy("device", cores).cores == cores
    with pytest.raises(DeviceError, match=rf"threads of Another, .*; write {whole_cpu()}/opencl"):
        runtime.occupy("device", (*cores, 4096))


def test_two_of_intels_devices_compute_at_the_same_time(tmp_path: Path) -> None:
    found = next((d for d in devices() if isinstance(d.runtime, Intel)), None)
    if found is None or (reason := unusable(found)) is not None:
        pytest.skip("Intel's runtime is not installed" if found is None else str(reason))
    names = [f"cpu:{core}/opencl" for core in detect.usable_cores()[:2]]
    options = {"opencl": {"runtime": "intel"}}
    code = TWO_CORES.format(names=names, cache=str(tmp_path), options=options)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_threads_of_this_process_are_listed() -> None:
    assert os.getpid() in cpu_runtime.thread_ids() or not Path("/proc/self/task").exists()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no SCHED_BATCH")
def test_bound_threads_displace_no_other_one() -> None:
    """Of threads with the usual priority; others keep what they were given."""
    ended, core = Event(), detect.usable_cores()[-1]
    threads = [Thread(target=ended.wait, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        usual, idle, other = (thread.native_id or 0 for thread in threads)
        os.sched_setscheduler(idle, os.SCHED_IDLE, os.sched_param(0))
        cpu_runtime.bind([usual, idle, other], [{core}, {core}])
        found = [os.sched_getscheduler(thread) for thread in (usual, idle, other)]
        assert found == [os.SCHED_BATCH, os.SCHED_IDLE, os.SCHED_OTHER]
        assert os.sched_getaffinity(usual) == os.sched_getaffinity(idle) == {core}
    finally:
        ended.set()


def test_a_thread_is_bound_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process may use one core only")
    chosen = sorted(before)[:2]
    with calling_from(chosen):
        assert os.sched_getaffinity(0) == set(chosen)
    assert os.sched_getaffinity(0) == before
