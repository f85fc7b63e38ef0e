"""The OpenCL engine around its kernels: architectures, storage, fusion, memory, caches, faults."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("pyopencl")

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import ConvTraits, KernelLaunch
from coexec.engines.kernels.building import build
from coexec.engines.kernels.tuner import candidates, rounded, rule
from coexec.engines.names import without_engine
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.engines.opencl.platforms import devices
from coexec.engines.options import parsed
from coexec.engines.registry import check_options, describe, load_engine, open_devices
from coexec.errors import CacheWarning, DegradedWarning, DeviceError, UsageError
from coexec.lowering.module import Module
from coexec.lowering.synthetic import products
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.session import InferenceSession
from tests.helpers.gpu_networks import in_float16, mixed_network, run_on, small_network
from tests.helpers.opencl_gpu import GPU, opened, stand_in
from tests.helpers.patience import ENOUGH_S

ARCHITECTURES = {
    "nvidia": Architecture("nvidia", 4, compute_units=132, max_group=1024, local_bytes=49152),
    "mobile": Architecture("mobile", 4, compute_units=4),
    "images": Architecture("mobile", 4, compute_units=4, image_edge=16384),
}


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("kernels")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "half"),
    [
        pytest.param(
            name,
            half,
            id=f"{name}-{'fp16' if half else 'fp32'}",
            marks=[pytest.mark.long] if half and name != "mobile" else [],
        )
        for name in ARCHITECTURES
        for half in (False, True)
    ],
)
def test_every_architecture_computes_the_same(name: str, half: bool, binaries: Path) -> None:
    proto = mixed_network()
    arch = replace(ARCHITECTURES[name], half=half)
    device = opened(binaries, arch, precision="fp16" if half else "float32")
    model = load(proto)
    feeds = random_inputs(model.graph)
    names = [o.name for o in proto.graph.output]
    expected = plain_session(proto).run(names, feeds)
    found = run_on(device, model, feeds)
    for output, reference in zip(names, expected, strict=True):
        assert worst_difference(found[output], reference) < (1e-2 if half else 1e-4), output


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["mobile", "nvidia"])
def test_a_network_in_float16_runs_on_a_gpu(name: str, half: bool, binaries: Path) -> None:
    """Its numbers are float32 there, and 16-bit floats in the host's memory; stored in 16 bits with
    the precision fp16."""
    proto = in_float16(mixed_network())
    device = opened(binaries, replace(ARCHITECTURES[name], half=half))
    model = load(proto)
    feeds = random_inputs(model.graph)
    assert all(device.refusal(task, model.graph.tensors) is None for task in model.graph.tasks)
    names = [o.name for o in proto.graph.output]
    expected = plain_session(proto).run(names, feeds)
    found = run_on(device, model, feeds)
    for output, reference in zip(names, expected, strict=True):
        assert found[output].dtype == np.float16
        assert worst_difference(found[output], reference) < 1e-2, output


def test_images_are_used_where_they_may_be(binaries: Path) -> None:
    device = opened(binaries, ARCHITECTURES["images"])
    model = load(mixed_network())
    program = run_on(device, model, random_inputs(model.graph), only_compile=True)
    assert program.images and len(program.images) < len(program.launches)


def test_activations_residuals_and_gates_join_the_kernel_before() -> None:
    """One convolution with sigmoid, product and residual is one launch; Concat is none."""
    launches = build(small_network("swish"), ARCHITECTURES["nvidia"]).launches
    assert [launch.name for launch in launches] == ["conv_tiled"]
    joined = build(small_network("concat"), ARCHITECTURES["nvidia"])
    assert [launch.name for launch in joined.launches] == ["conv_tiled", "conv_tiled"]
    assert {joined.aliases.of(n).root for n in ("left", "right")} == {"y"}


def test_pads_are_merged() -> None:
    assert len(build(small_network("pad"), ARCHITECTURES["nvidia"]).launches) == 1


def compiled(folder: Path) -> tuple[int, dict[str, Any]]:
    """How many kernels of the network were compiled, and what it computes."""
    with stand_in():
        (device,) = open_devices([GPU], folder=folder)
        device.engine  # noqa: B018 - opened here
    model = load(mixed_network())
    found = run_on(device.engine, model, random_inputs(model.graph))
    return device.engine.binaries.compiled, found  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, dict[str, Any]]:
    """A folder of binaries, not to be changed; and what `compiled` returned for the first time."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, *compiled(folder)


def test_memory_is_what_was_planned(gpu: str, kept: tuple[Path, int, dict[str, Any]]) -> None:
    (device,) = open_devices([gpu], folder=kept[0])
    model = load(mixed_network())
    program = run_on(device.engine, model, random_inputs(model.graph), only_compile=True)
    assert program.planned_bytes == program.scratch_bytes > 0


def test_compiled_kernels_are_kept_and_damaged_ones_are_not_trusted(
    kept: tuple[Path, int, dict[str, Any]], tmp_path: Path
) -> None:
    folder, first, expected = kept
    assert first > 0
    proto = mixed_network()
    reference = plain_session(proto).run(list(expected), random_inputs(load(proto).graph))
    for array, right in zip(expected.values(), reference, strict=True):
        assert worst_difference(array, right) < 1e-4
    shutil.copytree(folder / "kernels", tmp_path / "kernels")
    again, found = compiled(tmp_path)
    assert again == 0
    files = sorted(tmp_path.glob("kernels/*"))
    files[0].write_bytes(files[0].read_bytes()[:-7])  # cut off
    changed = bytearray(files[1].read_bytes())
    changed[-1] ^= 1
    files[1].write_bytes(bytes(changed))
    files[2].write_bytes(b"")
    with pytest.warns(CacheWarning, match="damaged"):
        repaired, found = compiled(tmp_path)
    assert repaired == 3
    for name, array in expected.items():
        assert np.array_equal(found[name], array)


def test_exhaustive_tuning_measures_once(tmp_path: Path) -> None:
    proto = small_network("swish", as_model=True)
    model = load(proto)
    feeds = random_inputs(model.graph)
    expected = plain_session(proto).run(None, feeds)[0]
    arch = Architecture("mobile", 4, max_group=64)
    for _ in range(2):
        found = run_on(opened(tmp_path, arch, tuning="exhaustive"), model, feeds)
        assert worst_difference(found["y"], expected) < 1e-5
        (file,) = tmp_path.glob("tuning/*")
        known = file.read_bytes()
        if _ == 0:
            first = known
    assert known == first
    file.write_text("{damaged")
    with pytest.warns(CacheWarning, match="damaged"):
        found = run_on(opened(tmp_path, arch, tuning="exhaustive"), model, feeds)
    assert worst_difference(found["y"], expected) < 1e-5


def launch(grid: tuple[int, int, int], traits: ConvTraits | None = None) -> KernelLaunch:
    return KernelLaunch("k", "", (), frozenset(), grid, None, traits)


@pytest.mark.parametrize(
    ("model", "traits", "grid", "group"),
    [
        ("QUALCOMM Adreno(TM) 630", ConvTraits("convolution", 3, 1), (56, 56, 16), (4, 8, 4)),
        ("QUALCOMM Adreno(TM) 630", ConvTraits("convolution", 3, 2), (56, 56, 16), (8, 4, 4)),
        ("QUALCOMM Adreno(TM) 630", ConvTraits("depthwise", 3, 2), (56, 56, 16), (4, 4, 4)),
        ("QUALCOMM Adreno(TM) 630", ConvTraits("depthwise", 5, 1), (56, 56, 16), (4, 4, 8)),
        ("QUALCOMM Adreno(TM) 540", ConvTraits("convolution", 1, 1), (56, 56, 16), (8, 2, 2)),
        ("QUALCOMM Adreno(TM) 509", ConvTraits("depthwise", 3, 1), (56, 56, 16), (8, 8, 2)),
        # few channels, few pixels, another GPU, another kernel: the generic rule
        ("QUALCOMM Adreno(TM) 540", ConvTraits("convolution", 1, 1), (56, 56, 4), (28, 2, 4)),
        ("QUALCOMM Adreno(TM) 540", ConvTraits("convolution", 1, 1), (5, 56, 8), (3, 10, 8)),
        ("Mali-G72", ConvTraits("convolution", 3, 1), (56, 56, 6), (28, 4, 2)),
        ("QUALCOMM Adreno(TM) 540", None, (7, 1, 1), (4, 1, 1)),
    ],
)
def test_work_groups_by_rule(
    model: str, traits: ConvTraits | None, grid: tuple[int, int, int], group: tuple[int, int, int]
) -> None:
    arch = Architecture("mobile", 4, max_group=256, model=model)
    asked = launch(grid, traits)
    assert rule(asked, arch) == group
    filled = rounded(grid, group)
    assert all(a >= b and a % g == 0 for a, b, g in zip(filled, grid, group, strict=True))
    for candidate in candidates(asked, arch):
        assert np.prod(candidate) <= 256


def test_timings_tell_kernels_and_copies_apart(gpu: str, tmp_path: Path) -> None:
    session = InferenceSession(
        small_network("concat", as_model=True),
        devices=[gpu],
        planner="single",
        cache=tmp_path,
    )
    feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
    for _ in range(2):
        _, trace = session.run_with_trace(None, feeds)
    kernels = [d for d in trace.details if d.kind == "kernel"]
    assert {"x", "left", "right"} <= {d.result for d in kernels} | {"x"}
    for d in trace.details:
        assert d.queued_s <= d.submitted_s <= d.start_s <= d.end_s
        assert -1e-3 < d.start_s < trace.makespan_s + 1e-3
    assert json.loads(trace.to_chrome())["traceEvents"]
    session.close()


@pytest.mark.parametrize("waiting", ["passive", "active"])
def test_both_ways_to_wait(gpu: str, waiting: str, tmp_path: Path) -> None:
    proto = small_network("swish", as_model=True)
    with InferenceSession(
        proto,
        devices=[gpu],
        planner="single",
        cache=tmp_path,
        engine_options={"opencl": {"waiting": waiting}},
    ) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        found = session.run(None, feeds)[0]
    assert worst_difference(found, plain_session(proto).run(None, feeds)[0]) < 1e-5


def test_a_failing_device_is_replaced_by_the_cpu(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyopencl as cl

    proto = small_network("swish", as_model=True)
    session = InferenceSession(proto, devices=[gpu], planner="single", cache=tmp_path)
    feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
    expected = session.run(None, feeds)[0]
    assert session.degraded is None

    def gone(*_: object) -> None:
        raise cl.RuntimeError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", gone)
    with pytest.warns(
        DegradedWarning, match=r"while receiving .*DEVICE_NOT_AVAIL.*on with ONNX Runtime"
    ):
        found = session.run(None, feeds)[0]
    assert worst_difference(found, expected) < 1e-5
    assert "DEVICE_NOT_AVAILABLE" in str(session.degraded)
    assert worst_difference(session.run(None, feeds)[0], expected) < 1e-5
    session.close()


def test_kernels_that_do_not_compile_leave_the_model_to_the_cpu(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coexec.engines.kernels import base

    text = base.Source._text
    monkeypatch.setattr(base.Source, "_text", lambda *a: text(*a) + "\nnonsense;")
    proto = small_network("swish", as_model=True)
    with pytest.warns(DegradedWarning, match=r"compiling the kernel conv_\w+ of 'c'.*error:"):
        session = InferenceSession(proto, devices=[gpu], planner="single", cache=tmp_path)
    feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
    expected = plain_session(proto).run(None, feeds)[0]
    assert worst_difference(session.run(None, feeds)[0], expected) < 1e-5
    session.close()


def test_out_of_memory_names_the_amount(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    from coexec.graph.graph import Tensor

    (device,) = open_devices([gpu])

    def full(*_: object, **__: object) -> None:
        raise cl.MemoryError("clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE")

    monkeypatch.setattr(cl, "Buffer", full)
    with pytest.raises(DeviceError, match="ran out of memory while taking 4096 bytes for 'big'"):
        device.engine.allocate(Tensor("big", (1024,), "float32"))


def test_what_leaves_is_read_without_waiting_for_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened(tmp_path)
    model = load(small_network("swish", as_model=True))
    graph = model.graph
    x, y = graph.tensors[graph.inputs[0]], graph.tensors[graph.outputs[0]]
    proto = ir.to_proto(model.source)
    made = device.allocate(y, leaving=True)
    feeds = [np.full(x.shape, value, np.float32) for value in (1.0, 2.0)]
    bound = device.compile(Module(proto.SerializeToString(), {}, (x,), (y,))).bind(
        {x.name: device.upload(feeds[0])}, {y.name: made}
    )
    found = []
    for feed in feeds:
        bound.set_input(x.name, device.upload(feed))
        bound.run()
        with monkeypatch.context() as patch:
            patch.setattr(DeviceQueue, "finish", lambda self: pytest.fail("it waits for the queue"))
            found.append(device.download(made).copy())
    for feed, result in zip(feeds, found, strict=True):
        expected = plain_session(proto).run(None, {x.name: feed})[0]
        assert worst_difference(result, expected) < 1e-5


def test_it_rests_when_it_has_ended_all(tmp_path: Path) -> None:
    device, module = opened(tmp_path), products(range(3), 256)
    inputs = {t.name: device.allocate(t) for t in module.inputs}
    outputs = {t.name: device.allocate(t) for t in module.outputs}
    bound = device.compile(module).bind(inputs, outputs)
    for kernel, grid, group in bound.calls:
        device._queue.launch(kernel, grid, group, "kernel", "result")
    assert not device.rests(time.monotonic())
    assert device.rests(time.monotonic() + ENOUGH_S)


def test_answers_from_the_cpu_while_kernels_compile(gpu: str, tmp_path: Path) -> None:
    proto = small_network("swish", as_model=True)
    with InferenceSession(
        proto,
        devices=[gpu],
        planner="single",
        cache=tmp_path,
        background=True,
    ) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        expected = plain_session(proto).run(None, feeds)[0]
        assert worst_difference(session.run(None, feeds)[0], expected) < 1e-5
        session.wait()
        assert session.degraded is None and session.devices == (without_engine(gpu),)
        assert worst_difference(session.run(None, feeds)[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu:", "has no number; write for example gpu:0"),
        ("gpu:x", "has no number"),
        ("gpu:99", r"does not exist; this machine's devices of that kind: (none\.|gpu:0 )"),
        ("gpu:0@1", "has no number"),
        ("cpu:0,0/cpp", "names a core twice"),
        ("cpu:/cpp", "names no cores"),
        ("cpu:0/opencl", r"on CPU cores the engine cpp runs the same .*pip install ziglang$"),
        ("null:0/opencl", "engine 'opencl' does not drive 'null:0', but gpu"),
    ],
)
def test_wrong_names(name: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        describe(name)


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="opencl has no option 'speed'; it has precision, waiting"):
        check_options({"opencl": {"speed": "high"}})
    with pytest.raises(UsageError, match=r"opencl\.precision='fp8': it is one of float32, fp16"):
        check_options({"opencl": {"precision": "fp8"}})
    with pytest.raises(UsageError, match=r"for the engine 'opncl', which is none of .*opencl"):
        check_options({"opncl": {"precision": "fp16"}})
    assert parsed(load_engine("opencl"), {"opencl": {"precision": "fp16"}}).precision == "fp16"


@pytest.mark.usefixtures("gpu")
def test_an_identity_is_the_uuid_where_the_driver_tells_it() -> None:
    for found in devices():
        told = "cl_khr_device_uuid" in found.handle.extensions
        assert bool(re.fullmatch("[0-9a-f]{32}", found.identity)) == told
        assert told or found.identity.startswith(found.name)
        assert not told or int(found.identity, 16)
    assert len({found.identity for found in devices()}) == len(devices())


def test_unknown_operators_are_reasons(gpu: str) -> None:
    (device,) = open_devices([gpu])
    node = onnx.helper.make_node("NonZero", ["x"], ["y"], "n")
    assert node.op_type == "NonZero"
    from coexec.graph.graph import Operator, Task, Tensor

    op = Operator("NonZero", ("x",), ("y",), {}, {})
    tensors = {"x": Tensor("x", (3,), "float32"), "y": Tensor("y", (1, 3), "int64")}
    task = Task("n", (op,), ("x",), (), ("y",), "", 0)
    assert device.engine.why_not(task, tensors) == "there is no kernel for NonZero"


def test_weights_on_a_device_have_no_copy_in_the_host_memory(tmp_path: Path) -> None:
    program = opened(tmp_path).compile(small_network("pad"))
    arguments = [a for launch in program.launches for a in launch.arguments]
    constants = [a for a in arguments if isinstance(a, np.ndarray)]
    assert constants and all(a.nbytes == 0 for a in constants)
