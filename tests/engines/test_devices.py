"""One contract for every kind of device in the registry."""

import os

import numpy as np
import onnx
import pytest
from needs_opencl import opencl_name
from small_models import branches

from coexec.cache import Cache
from coexec.compiling.compiler import Compiler
from coexec.engines.detect import clusters, usable_cores
from coexec.engines.registry import (
    KINDS,
    cpu_name,
    default_names,
    describe,
    open_devices,
    split_names,
)
from coexec.errors import DeviceError
from coexec.frontend.check import plain_session, worst_difference
from coexec.frontend.load import load, random_inputs
from coexec.ir.graph import Graph, Tensor
from coexec.plans.derive import derive, stepwise
from coexec.plans.plan import Plan, Provenance
from coexec.runtime.executor import Executor

COMPUTING = [kind for kind in KINDS if kind != "null"]


def names_of(kind: str) -> list[str]:
    if kind == "cpu":
        return [f"cpu:{core}" for core in usable_cores()[:2]]
    if kind == "gpu":
        return [opencl_name()]
    return [f"{kind}:0", f"{kind}:1"]


def alternating(graph: Graph, names: list[str]) -> Plan:
    """Every other task on the other device: the most borders that a plan can have."""
    order: dict[str, list[object]] = {name: [] for name in names}
    for i, task in enumerate(graph.tasks):
        order[names[i % len(names)]].append(graph.whole_piece(task))
    return Plan(graph.fingerprint, {n: tuple(p) for n, p in order.items()}, Provenance("test"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_go_up_and_come_down(kind: str) -> None:
    for device in open_devices(names_of(kind)):
        array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        assert np.array_equal(device.download(device.upload(array)), array)
        tensor = device.allocate(Tensor("t", (2, 3), "float32"))
        assert device.download(tensor).shape == (2, 3)
        if device.spec.memory == "host":
            assert isinstance(tensor, np.ndarray)
        assert set(device.thread_cores) <= set(device.spec.cores)
        device.close()


@pytest.mark.parametrize("kind", COMPUTING)
def test_same_outputs_as_onnx_runtime(kind: str, cache: Cache) -> None:
    proto = branches()
    model = load(proto)
    feeds = random_inputs(model.graph)
    expected = plain_session(proto).run(["y", "joined"], feeds)
    devices = open_devices(names_of(kind))
    schedule = derive(alternating(model.graph, [d.spec.name for d in devices]), model.graph)
    compiled = Compiler(model, cache).compile(schedule, devices)
    with Executor(compiled, devices) as executor:
        for _ in range(3):  # buffers are used again
            found = executor.run(feeds)
            for name, array in zip(["y", "joined"], expected, strict=True):
                assert worst_difference(found[name], array) < 1e-5


@pytest.mark.parametrize("kind", COMPUTING)
def test_a_segment_for_each_task(kind: str, cache: Cache) -> None:
    proto = branches(width=2)
    model = load(proto)
    feeds = random_inputs(model.graph)
    devices = open_devices(names_of(kind)[:1])
    schedule = stepwise(model.graph, dict.fromkeys(model.graph.task, devices[0].spec.name))
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)
    expected = plain_session(proto).run(["y"], feeds)[0]
    assert worst_difference(found["y"], expected) < 1e-5


def test_engines_mix_in_one_plan(cache: Cache) -> None:
    proto = branches()
    model = load(proto)
    feeds = random_inputs(model.graph)
    devices = open_devices([names_of("cpu")[0], "reference:0"])
    schedule = derive(alternating(model.graph, [d.spec.name for d in devices]), model.graph)
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)
    for name, array in zip(["y", "joined"], plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(found[name], array) < 1e-5


def test_what_cannot_be_compiled_is_a_device_error() -> None:
    from coexec.frontend.module import Module

    (device,) = open_devices(names_of("cpu")[:1])
    broken = onnx.ModelProto(ir_version=8)
    module = Module(broken.SerializeToString(), {}, (), (Tensor("y", (1,), "float32"),))
    with pytest.raises(DeviceError, match="cannot compile what makes y"):
        device.compile(module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu:0", "unknown device 'tpu:0'.*cpu, gpu, null, reference"),
        ("cpu:", "names no cores"),
        ("cpu:x", "names no cores"),
        ("cpu:3-1", "not a range"),
        ("cpu:0,0", "names a core twice"),
        ("cpu:0-99999999", "not a range"),
        ("cpu:4000", "wants core 4000, but this process may use only"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        describe(name)


def test_devices_of_one_plan_share_no_core() -> None:
    core = usable_cores()[0]
    with pytest.raises(DeviceError, match=f"share core {core}|named twice"):
        open_devices([f"cpu:{core}", f"cpu:{core}"])


def test_names_are_split_at_devices_not_at_cores() -> None:
    assert split_names("cpu:0-1,3, cpu:2,gpu:0@1") == ["cpu:0-1,3", "cpu:2", "gpu:0@1"]
    assert all(describe(name).cores for name in default_names())


def test_clusters_by_frequency_and_capacity(tmp_path: object) -> None:
    from pathlib import Path

    root = Path(str(tmp_path))
    for core, (khz, capacity) in enumerate([(1800000, 400)] * 4 + [(2400000, 1024)] * 2):
        (root / f"cpu{core}/cpufreq").mkdir(parents=True)
        (root / f"cpu{core}/cpufreq/cpuinfo_max_freq").write_text(f"{khz}\n")
        (root / f"cpu{core}/cpu_capacity").write_text(f"{capacity}\n")
    assert clusters(root, range(6)) == (((4, 5), 2.4e9), ((0, 1, 2, 3), 1.8e9))


def test_a_caller_stays_off_the_cores_of_the_other_threads() -> None:
    cores = usable_cores()
    if len(cores) < 2 or not hasattr(os, "sched_getaffinity"):
        pytest.skip("needs two cores, and an operating system that binds threads")
    before = os.sched_getaffinity(0)
    (device,) = open_devices([cpu_name(cores[:2])])
    assert set(device.thread_cores) == {cores[0]}
    assert os.sched_getaffinity(0) == before
