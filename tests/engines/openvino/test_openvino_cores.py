"""OpenVINO's threads stay on the cores of their device."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from coexec.engines.detect import usable_cores
from coexec.engines.openvino import cores as cores_module
from coexec.engines.openvino.cores import CoreGroup, workers
from coexec.engines.openvino.device import OpenVinoDevice
from coexec.errors import DeviceError
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from tests.helpers.gpu_networks import mixed_network, module_of
from tests.helpers.openvino_programs import on_cores

CORES = usable_cores()
TASKS = Path("/proc/self/task")

pytestmark = [
    pytest.mark.skipif(len(CORES) < 2, reason="needs two cores"),
    pytest.mark.skipif(
        not TASKS.is_dir() or not hasattr(os, "sched_setaffinity"),
        reason="needs an operating system that binds threads and lists them (Linux)",
    ),
]


def ticks() -> dict[int, int]:
    """By thread, the clock ticks that it has computed for."""
    found = {}
    for task in TASKS.iterdir():
        with suppress(OSError):  # it has ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[int(task.name)] = int(fields[11]) + int(fields[12])
    return found


def run_on(device: OpenVinoDevice, times: int) -> set[bool]:
    """Run a network in a thread that is bound as the executor's threads are. Its answer has to be
    ONNX Runtime's.

    Returns:
        For each thread that has computed meanwhile, whether it is another than that.
    """
    model = load(mixed_network())
    module = module_of(model)
    feeds = random_inputs(model.graph)
    program = device.compile(module)
    outputs = {t.name: device.allocate(t) for t in module.outputs}
    bound = program.bind(feeds, outputs)

    others: set[bool] = set()

    def work() -> None:
        os.sched_setaffinity(0, device.thread_cores)
        own = threading.get_native_id()
        before = ticks()
        for _ in range(times):
            bound.run()
        for thread, count in ticks().items():
            if count - before.get(thread, 0) > 1:
                others.add(thread != own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    expected = plain_session(mixed_network()).run(list(outputs), feeds)
    assert max(map(worst_difference, outputs.values(), expected)) < 1e-4
    return others


def test_on_one_core_the_calling_thread_computes_alone() -> None:
    device = on_cores(CORES[-1])
    assert list(device.thread_cores) == [CORES[-1]]
    assert run_on(device, 2000) == {False}
    device.close()


@pytest.mark.alone
def test_threads_of_a_group_are_bound_behind_the_first_core() -> None:
    device = on_cores(*CORES[:2])
    assert run_on(device, 2000) == {False, True}
    found = workers()
    assert found
    for worker in found:
        assert os.sched_getaffinity(worker) == {CORES[1]}
    assert threading.current_thread().name and os.sched_getaffinity(0) >= set(CORES)
    assert (TASKS / str(threading.get_native_id()) / "comm").read_text().strip() != (
        cores_module._NAME
    )
    device.close()


def test_single_cores_beside_a_group() -> None:
    """The device of one core takes nothing from the group, and opening it is no conflict."""
    group = on_cores(*CORES[:2])
    single = on_cores(CORES[0])
    run_on(single, 2)
    run_on(group, 2)
    group.close()
    single.close()


def test_one_group_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = CoreGroup("cpu:0-1", (0, 1))
    same = CoreGroup("cpu:0-1", (0, 1))
    with pytest.raises(DeviceError, match=r"^cpu:2-3: .*one pool.*cpu:0-1 has it.*cores 0, 1; use"):
        CoreGroup("cpu:2-3", (2, 3))
    del first, same
    CoreGroup("cpu:2-3", (2, 3))
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(DeviceError, match="cannot be bound to cores on this operating system"):
        CoreGroup("cpu:7-8", (7, 8))
    CoreGroup("all", CORES)


def test_a_closed_device_leaves_its_cores() -> None:
    device = on_cores(*CORES[:2])
    device.close()
    assert CoreGroup("another", (CORES[0], CORES[1] + 1)).cores == (CORES[0], CORES[1] + 1)


def test_where_openvino_runs_is_tried_and_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(CORES[1]).close()
    from coexec.engines.openvino import trial  # behind the engine, which loads OpenVINO

    assert trial.affinity_inside(CORES[1], {"NUM_STREAMS": 0}) == {CORES[1]}
    monkeypatch.setattr(trial, "affinity_inside", lambda *_: {CORES[0], 4000})
    with pytest.raises(DeviceError, match=r"runs it on the cores \d+, 4000, because.*libtbbbind"):
        on_cores(CORES[0])


@pytest.mark.parametrize("cores", [CORES[1:2], CORES[:2]])
def test_a_run_does_not_widen_the_affinity_of_its_thread(cores: tuple[int, ...]) -> None:
    """libtbbbind does: it is kept away. The mask is looked at from another thread."""
    device = on_cores(*cores)
    seen: set[str] = set()
    ended = threading.Event()

    def look(thread: int) -> None:
        while not ended.is_set():
            status = (TASKS / str(thread) / "status").read_text()
            seen.add(status.partition("Cpus_allowed_list:")[2].split()[0])

    def work() -> None:
        os.sched_setaffinity(0, device.thread_cores)
        looking = threading.Thread(target=look, args=[threading.get_native_id()])
        looking.start()
        for _ in range(200):
            bound.run()
        ended.set()
        looking.join()

    model = load(mixed_network())
    module = module_of(model)
    bound = device.compile(module).bind(
        random_inputs(model.graph), {t.name: device.allocate(t) for t in module.outputs}
    )
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == {str(cores[0])}
    device.close()


def test_fewer_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = on_cores(*CORES[:2])
    monkeypatch.setattr(device, "_threads", 10_000)
    with pytest.raises(DeviceError, match="has 10000 cores, and OpenVINO takes"):
        device.compile(module_of(load(mixed_network())))
    device.close()
