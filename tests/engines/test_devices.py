"""One contract for every kind of device in the registry."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from coexec.cache import Cache
from coexec.engines.detect import clusters, usable_cores
from coexec.engines.names import cpu_name, default_names, parse, split_names
from coexec.engines.opened import OpenDevice
from coexec.engines.registry import describe, open_devices, processors
from coexec.errors import DeviceError
from coexec.graph.graph import Graph, Tensor
from coexec.hardware.hardware import MAIN, Device, EngineInfo, Link, Memory, Place, System
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive, stepwise
from coexec.plan.plan import Plan, Provenance
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from tests.helpers.core_programs import cpp_name
from tests.helpers.small_models import branches

CPU = f"cpu:{usable_cores()[0]}"
KINDS = ("onnxruntime", "cpp", "null", "reference")
COMPUTING = [kind for kind in KINDS if kind != "null"]


def names_of(kind: str) -> list[str]:
    """Devices with this engine, as many as there may be at once: one or two."""
    if kind == "onnxruntime":
        return [f"cpu:{core}" for core in usable_cores()[:2]]
    if kind == "cpp":
        return [f"cpu:{core}/cpp" for core in usable_cores()[:2] if cpp_name()]
    return [f"{kind}:0", f"{kind}:1"]


def alternating(graph: Graph, places: Sequence[Place]) -> Plan:
    """Every task at the next place in turn: the most borders that a plan can have."""
    pieces = [graph.whole_piece(task) for task in graph.tasks]
    place_of = {piece: places[i % len(places)] for i, piece in enumerate(pieces)}
    order = {
        d: tuple(p for p in pieces if place_of[p].device == d)
        for d in dict.fromkeys(place.device for place in places)
    }
    engine_of = {piece: place.engine for piece, place in place_of.items()}
    return Plan(graph.fingerprint, order, engine_of, Provenance("test"))


def places_of(devices: Iterable[OpenDevice]) -> list[Place]:
    """The identities of the devices."""
    return [device.spec.place for device in devices]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_go_up_and_come_down(kind: str) -> None:
    for device in open_devices(names_of(kind)):
        engine = device.engine
        array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        assert np.array_equal(engine.download(engine.upload(array)), array)
        tensor = engine.allocate(Tensor("t", (2, 3), "float32"))
        assert engine.download(tensor).shape == (2, 3)
        assert (engine.memory.name == MAIN) == isinstance(tensor, np.ndarray)
        assert set(engine.thread_cores) <= set(device.spec.cores)
        device.close()


@pytest.mark.parametrize("kind", COMPUTING)
def test_same_outputs_as_onnx_runtime(kind: str, cache: Cache) -> None:
    proto = branches()
    model = load(proto)
    feeds = random_inputs(model.graph)
    expected = plain_session(proto).run(["y", "joined"], feeds)
    devices = open_devices(names_of(kind))
    schedule = derive(alternating(model.graph, places_of(devices)), model.graph)
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
    schedule = stepwise(model.graph, dict.fromkeys(model.graph.task, devices[0].engine.place))
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)
    expected = plain_session(proto).run(["y"], feeds)[0]
    assert worst_difference(found["y"], expected) < 1e-5


@pytest.mark.parametrize("other", ["cpp", "reference"])
def test_engines_mix_in_one_plan(other: str, cache: Cache) -> None:
    proto = branches()
    model = load(proto)
    feeds = random_inputs(model.graph)
    devices = open_devices([names_of("onnxruntime")[0], names_of(other)[-1]])
    schedule = derive(alternating(model.graph, places_of(devices)), model.graph)
    with Executor(Compiler(model, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)
    for name, array in zip(["y", "joined"], plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(found[name], array) < 1e-5


def test_what_cannot_be_compiled_is_a_device_error() -> None:
    from coexec.lowering.module import Module

    (device,) = open_devices(names_of("onnxruntime")[:1])
    broken = onnx.ModelProto(ir_version=8)
    module = Module(broken.SerializeToString(), {}, (), (Tensor("y", (1,), "float32"),))
    with pytest.raises(DeviceError, match="cannot compile what makes y"):
        device.engine.compile(module)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu:0", "unknown device 'tpu:0'.*is none of cpu, gpu, npu, "),
        ("cpu:", "names no cores"),
        ("cpu:x", "names no cores"),
        ("cpu:3-1", "not a range"),
        ("cpu:0,0", "names a core twice"),
        ("cpu:0-99999999", "not a range"),
        ("cpu:4000", "wants core 4000, but this process may use only"),
        ("cpu", "is no device; write for example"),
        ("cpu:0/", "does not name its engine"),
        ("cpu:0/:bf16", "does not name its engine; write for example cpu:0/cpp"),
        ("cpu:0/cpp+onnxruntime", "write cpu:0/cpp,cpu:0/onnxruntime$"),
        (f"{CPU}/nothing", "there is no engine 'nothing' here, only .*onnxruntime"),
        (f"{CPU}/null", f"engine 'null' does not drive '{CPU}', but null"),
        ("null:x", "has no number; write for example null:0"),
        ("null:999", "'null:999' does not exist"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        describe(name)


def test_a_device_has_the_engine_that_is_named() -> None:
    plain = describe(CPU)
    assert str(plain.place) == f"{CPU}/onnxruntime" and plain.memory == Memory("localhost", MAIN)
    if "cpp" in usable_on_cpu():
        other = describe(f"{CPU}/cpp")
        assert str(other.place) == f"{CPU}/cpp" and other.memory == plain.memory
        system = System((other, plain))
        assert system.names == (CPU,) and system.processors == (0, 0)


def usable_on_cpu() -> tuple[str, ...]:
    (cpu,) = processors("cpu")
    return cpu.usable


def test_a_link_has_two_devices_as_its_ends() -> None:
    a, b = (Device(name, "null") for name in "AB")
    system = System((a, b), (Link(a.place, b.place, 1),))
    assert system.link(a.place, b.place).sync_latency_s == 1
    assert system.link(b.place, a.place) == Link(b.place, a.place)
    with pytest.raises(DeviceError, match="ends at C/null, which is none of A/null, B/null"):
        System((a, b), (Link(a.place, Place("C", "null")),))


def test_a_device_is_named_once() -> None:
    with pytest.raises(DeviceError, match="onnxruntime is named twice; name each one once"):
        open_devices([CPU, f"{CPU}/onnxruntime"])


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        ("cpu:0-1/a,cpu:0/b", "name cpu:1/a,cpu:0/b"),
        ("cpu:0/a,cpu:0-3/a,cpu:0-3/b,cpu:2/b", "name cpu:0/a,cpu:1,3/a,cpu:1,3/b,cpu:2/b"),
        ("cpu:0-1/a,cpu:0,1/b", "leave 'cpu:0,1' out, the others have all of its cores"),
    ],
)
def test_devices_that_share_cores_are_told_apart(names: str, advice: str) -> None:
    def devices(text: str) -> tuple[Device, ...]:
        asked = [parse(name) for name in split_names(text)]
        return tuple(
            Device(r.device, "cpu", EngineInfo(r.engine), tuple(cores(r.suffix))) for r in asked
        )

    def cores(text: str) -> Iterator[int]:
        for part in text.split(","):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)

    with pytest.raises(DeviceError, match="share core 0") as caught:
        System(devices(names))
    assert str(caught.value).endswith(f": {advice}")
    if advice.startswith("name "):
        assert System(devices(advice.removeprefix("name ")))  # it leads to no other error


def test_one_pool_of_threads_serves_one_device_of_a_plan() -> None:
    pool, free = EngineInfo("pooled", pool="its threads"), EngineInfo("free")
    first, second = (Device(f"cpu:{core}", "cpu", pool, (core,)) for core in (0, 1))
    with pytest.raises(DeviceError, match="name one device, cpu:0-1/pooled, or give one"):
        System((first, second))
    System((first, replace(second, engine=free)))
    System((first, replace(second, host="another")))


def test_names_are_split_at_devices_not_at_cores() -> None:
    assert split_names("cpu:0-1,3, cpu:2/a,gpu:0") == ["cpu:0-1,3", "cpu:2/a", "gpu:0"]
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
    assert set(device.engine.thread_cores) == {cores[0]}
    assert os.sched_getaffinity(0) == before
