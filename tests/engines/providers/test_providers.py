"""Execution providers of ONNX Runtime as engines, with a real plug-in and with ones that fail."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

import coexec
from coexec.cache import Cache
from coexec.engines import registry, small_model, trial
from coexec.engines.base import ONLY, Processor
from coexec.engines.detect import usable_cores
from coexec.engines.names import engine_of_provider, whole_cpu
from coexec.engines.onnxruntime.program import OrtProgram
from coexec.engines.providers.device import Provider, ProviderDevice
from coexec.engines.providers.engine import Providers
from coexec.engines.providers.options import ProviderOptions
from coexec.engines.providers.sources import (
    DeviceListing,
    ListedDevice,
    ProviderSource,
    sources,
)
from coexec.errors import (
    DegradedWarning,
    DeviceError,
    ExecutionError,
    ModelError,
    UsageError,
)
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.synthetic import products
from coexec.model.load import load
from coexec.plan.derive import stepwise
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.selection.configurations import configurations
from tests.helpers.engine_packages import forget_engines
from tests.helpers.small_models import branches, from_nodes, tensor_info

PLUG_INS = Path(sys.prefix) / "plug-ins"
"""The folder of a real plug-in, which `make` installs apart: for other tests it is not there."""
CPU = f"cpu:{usable_cores()[0]}"
LAST = f"cpu:{usable_cores()[-1]}"
GGML, HALF = f"{LAST}/ort-ggml", {"ort-ggml": {"precision": "fp16"}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No verdict is known, and the engines are looked up again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trial, "_verdicts", {})
    forget_engines()
    yield
    monkeypatch.undo()
    forget_engines()


@pytest.fixture
def ggml(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of a plug-in that computes on CPU cores; its weights are of 16 bits."""
    if not (found := [*PLUG_INS.glob("onnxruntime_ggml/lib/*")]):
        pytest.skip("onnxruntime-ggml is not installed; make lint installs it")
    monkeypatch.setenv("ORT_GGML_LOG", "error")
    monkeypatch.syspath_prepend(PLUG_INS)
    forget_engines()
    return found[0]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package of a plug-in with this code."""

    def installed(code: str) -> None:
        (tmp_path / "onnxruntime_ep_bad.py").write_text(code)
        (tmp_path / "onnxruntime_ep_bad-1.5.dist-info").mkdir()
        monkeypatch.syspath_prepend(tmp_path)
        forget_engines()

    return installed


def product() -> Any:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    weight = np.random.default_rng(0).standard_normal((16, 300)).astype(np.float32)
    return from_nodes(
        nodes, [tensor_info("x", [4, 16])], [tensor_info("y", [4, 300])], {"w": weight}
    )


def feeds_of(session: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}


def answers(model: Any, cache: Cache, devices: list[str], **words: Any) -> float:
    """Largest difference of a session's outputs from ONNX Runtime's; the plan answers."""
    expected = ort.InferenceSession(model.SerializeToString())
    feeds = feeds_of(expected)
    with_plan = coexec.InferenceSession(
        model, devices=devices, background=False, strict=True, cache=cache, **words
    )
    assert with_plan.degraded is None
    pairs = zip(with_plan.run(None, feeds), expected.run(None, feeds), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def test_a_plug_in_computes_a_whole_model_and_pieces(ggml: Path, cache: Cache) -> None:
    options = {"planner": "single", "engine_options": HALF}
    assert answers(product(), cache, [GGML], **options) < 1e-2
    mixed = {"planner": "hope_greedy", "engine_options": HALF}
    if CPU != LAST:
        assert answers(branches(), cache, [CPU, GGML], **mixed) < 1e-2


def test_a_plug_in_on_a_gpu(ggml: Path, cache: Cache, tmp_path: Path) -> None:
    """The real plug-in, whose device counts as a GPU for this process and for its trial."""
    assert registry.processors("gpu") == []
    for verdict in (tmp_path / "home").rglob("trials/*.json"):
        text = verdict.read_text()
        verdict.write_text(text.replace(r"\"kind\": \"cpu\"", r"\"kind\": \"gpu\""))
    trial._verdicts.clear()
    (gpu,) = registry.processors("gpu")
    assert gpu.name == "gpu:0" and gpu.usable == ("ort-ggml",)
    assert registry.device_of("ort-ggml", 0) == "gpu:0"
    with pytest.raises(DeviceError, match="lists 1 devices, and not number 1"):
        registry.device_of("ort-ggml", 1)
    options = {"planner": "single", "engine_options": HALF}
    assert answers(product(), cache, ["gpu:0"], **options) < 1e-2
    assert ("gpu:0",) in configurations() and (whole_cpu(), "gpu:0") in configurations()


def test_a_plug_in_without_a_package_is_a_path(ggml: Path, cache: Cache) -> None:
    options = {"ort-library": {"precision": "fp16", "library": str(ggml)}}
    words = {"planner": "single", "engine_options": options}
    assert answers(product(), cache, [f"{LAST}/ort-library"], **words) < 1e-2
    absent = {"ort-library": {"library": "/no/such/library.so"}}
    with pytest.raises(DeviceError, match=r"it does not load .*/no/such/library\.so"):
        registry.describe(f"{CPU}/ort-library", absent)
    with pytest.raises(DeviceError, match=r"give the path of a plug-in, ort-library\.library=PATH"):
        registry.describe(f"{CPU}/ort-library")


def test_numbers_that_are_less_precise_than_stated_are_refused(ggml: Path, cache: Cache) -> None:
    with pytest.warns(DegradedWarning, match="differs by 0.0"):
        session = coexec.InferenceSession(
            product(), devices=[GGML], planner="single", background=False, cache=cache
        )
    assert "1e-04 is allowed" in str(session.degraded)


def test_what_a_provider_does_not_take_does_not_run_on_the_cpu_in_silence(ggml: Path) -> None:
    device = registry.open_device(registry.describe(GGML)).engine
    assert isinstance(device, ProviderDevice)
    det = helper.make_node("Det", ["x"], ["y"])
    model = from_nodes([det], [tensor_info("x", [4, 4])], [tensor_info("y", [])], {})
    with pytest.raises(ModelError, match="ort-ggml takes none of the model's operators"):
        device.own_session(model)
    module = replace(products(range(1), 4), proto=model.SerializeToString())
    with pytest.raises(DeviceError, match="ort-ggml does not take all of its operators"):
        device.compile(module)
    partial = helper.make_node("MatMul", ["x", "x"], ["z"])
    both = from_nodes(
        [det, partial],
        [tensor_info("x", [4, 4])],
        [tensor_info("y", []), tensor_info("z", [4, 4])],
        {},
    )
    partly = registry.open_device(registry.describe(GGML), {"ort-ggml": {"options": "partial=1"}})
    partly.engine.own_session(both)
    (note,) = partly.engine.decisions
    assert "runs 1 operators of the whole model" in note and "1 on the CPU (Det 1)" in note


FAULTS = {
    "def get_library_path():\n    import os; os.abort()": r"listing its devices crashed .*Abort",
    "def get_library_path():\n    raise OSError('no GPU')": r"it does not load \(no GPU\)",
    "": r"does not load .*has none of get_library_path",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_package_that_fails_is_listed_with_the_reason(
    code: str, install: Callable[[str], None]
) -> None:
    install(code)
    assert "ort-bad" in registry.engine_names()
    assert all("ort-bad" not in driven.by for driven in registry.processors())
    reason = registry.broken()["ort-bad"]
    with pytest.raises(DeviceError, match=FAULTS[code]):
        registry.describe(f"{CPU}/ort-bad")
    assert re.search(FAULTS[code], reason)


def test_what_a_family_lists_besides_engines_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Family:
        name = "family"

        def load(self) -> Any:
            return lambda: {
                "absent": None,
                "number": 5,
                "ort-other": Providers(ProviderSource("x")),
            }

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Family()])
    assert registry._of_families.__wrapped__() == {}


def test_a_family_that_cannot_be_imported_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Family:
        name = "family"

        def load(self) -> Any:
            raise OSError("no library")

    def with_family(group: str) -> Any:
        return [Family()] if group == registry._FAMILIES else entry_points(group=group)

    monkeypatch.setattr("importlib.metadata.entry_points", with_family)
    forget_engines()
    reason = registry.broken()["family"]
    assert "'family' cannot be imported: OSError: no library" in reason
    assert registry.failing()["family"] == reason
    assert registry.processors("cpu")


def test_a_library_that_crashes_leaves_this_process(
    install: Callable[[str], None], tmp_path: Path
) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "bad.c", tmp_path / "libbad.so"
    source.write_text(
        "#include <stdlib.h>\nvoid* CreateEpFactories(void) { abort(); }\n"
        "void* ReleaseEpFactory(void) { return 0; }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    install(f"def get_library_path():\n    return {str(library)!r}")
    reason = registry.broken()["ort-bad"]
    assert re.search(r"crashed its process \(Aborted\).*other engines work", reason)


def a_gpu(monkeypatch: pytest.MonkeyPatch, identity: str = ONLY) -> Providers:
    """A plug-in that says that it drives a GPU. Its library does not exist, so its trial fails."""
    listed = ListedDevice("WebGpuExecutionProvider", "gpu", "A GPU", identity, 0, "0.4")
    monkeypatch.setattr(
        ProviderSource, "listing", lambda self: DeviceListing("/no/library.so", (listed,))
    )
    return Providers(ProviderSource("ort-webgpu", package="onnxruntime-ep-webgpu"))


def test_a_gpu_has_one_name_for_all_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = a_gpu(monkeypatch)
    others = {"opencl": [Processor("gpu", "A GPU", "uuid")]}
    (row,) = registry.grouped({**others, "ort-webgpu": engine.processors("gpu")})
    assert row.name == "gpu:0" and [*row.by] == ["opencl", "ort-webgpu"]
    two = {"opencl": [*others["opencl"], Processor("gpu", "B GPU", "other")]}
    rows = registry.grouped({**two, "ort-webgpu": engine.processors("gpu")})
    assert [row.name for row in rows] == ["gpu:0", "gpu:1", "gpu:2"]  # nobody knows which one it is


def test_a_device_that_was_not_tried_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = a_gpu(monkeypatch)
    entry = next(iter(registry._entries().values()))
    monkeypatch.setattr(registry, "_of_families", lambda: {engine.name: (engine, entry)})
    registry._working.cache_clear()
    (gpu,) = [row for row in registry.processors("gpu") if "ort-webgpu" in row.by]
    assert "ort-webgpu" not in gpu.usable
    assert "a small model failed" in str(gpu.by["ort-webgpu"].unusable)
    with pytest.raises(DeviceError, match="engine ort-webgpu is unusable"):
        registry.describe(f"{gpu.name}/ort-webgpu")


def test_a_trial_in_a_lower_precision_fails_until_an_option_permits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = registry.open_device(registry.describe(CPU)).engine
    monkeypatch.setattr(half, "download", lambda array: array.astype(np.float16) + np.float32(0))
    monkeypatch.setattr(small_model, "open_engine", lambda *_: half)
    failure = small_model.attempt("ort-x", half.device, {})
    assert re.search(r"less precisely than in float32 \(\de-04 .*ort-x\.precision=fp16", failure)
    monkeypatch.setattr(half, "info", replace(half.info, precision="fp16"))
    assert small_model.attempt("ort-x", half.device, {}) == ""
    monkeypatch.setattr(half, "download", lambda array: 2 * array)
    assert "gave wrong numbers" in small_model.attempt("ort-x", half.device, {})


def test_names_of_built_in_providers() -> None:
    assert engine_of_provider("CUDAExecutionProvider") == "ort-cuda"
    assert engine_of_provider("TensorrtExecutionProvider") == "ort-tensorrt"
    built_in = {source.provider for source in sources() if source.provider}
    assert built_in.isdisjoint({"CPUExecutionProvider", "AzureExecutionProvider"})


DEVICE = Device("gpu:0", "gpu", processor="A GPU", identity="uuid")


def opened(**words: Any) -> ProviderDevice:
    """A built-in provider that is in every package: it takes the operators of a remote server."""
    provider = Provider("AzureExecutionProvider", {}, **words)
    return ProviderDevice(DEVICE, EngineInfo("ort-azure"), provider)


def test_a_built_in_provider_that_takes_nothing() -> None:
    with pytest.raises(DeviceError, match=r"cannot compile what makes v1.*run that part elsewhere"):
        opened().compile(products(range(1), 4))
    with pytest.raises(ModelError, match="AzureExecutionProvider takes none"):
        opened().own_session(product())


def test_a_provider_that_does_not_start_is_no_cpu() -> None:
    absent = Provider("CUDAExecutionProvider", {})
    with pytest.warns(UserWarning, match="not in available"), pytest.raises(DeviceError) as raised:
        ProviderDevice(DEVICE, EngineInfo("ort-cuda"), absent)
    assert "ONNX Runtime does not start CUDAExecutionProvider" in str(raised.value)


def test_tensors_in_a_memory_of_the_device() -> None:
    """The memory that every machine has stands for that of a GPU."""
    device = opened(memory="cpu")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = device.upload(np.asfortranarray(array))
    assert isinstance(tensor, ort.OrtValue) and np.array_equal(device.download(tensor), array)
    device.upload(array + 1, tensor)
    assert np.array_equal(device.download(tensor), array + 1)
    with pytest.raises(ExecutionError, match="gpu:0/ort-azure failed while receiving a tensor"):
        device.upload(np.zeros(3, np.float32), tensor)
    with pytest.raises(DeviceError, match=r"failed while taking .* bytes"):
        device.allocate(Tensor("x", (1 << 60,), "float32"))


def test_pieces_of_a_plan_in_a_memory_of_the_device(
    ggml: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that are no arrays, as in a GPU's memory, and graphs that are recorded for them."""
    if CPU == LAST:
        pytest.skip("one core")
    monkeypatch.setattr(Providers, "_memory", "cpu")
    devices = registry.open_devices([CPU, GGML], HALF, cache.root)
    provider: Any = devices[1].engine
    monkeypatch.setattr(provider, "_provider", replace(provider._provider, graphs=True))
    nodes = [helper.make_node("MatMul", [f"v{n}", "w"], [f"v{n + 1}"]) for n in range(3)]
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    ends = [tensor_info("v0", [4, 16])], [tensor_info("v3", [4, 16])]
    model = load(from_nodes(nodes, *ends, {"w": weight}))
    turns = zip(model.graph.tasks, [devices[0], devices[1], devices[0]], strict=True)
    places = {task.name: device.spec.place for task, device in turns}
    schedule = stepwise(model.graph, places)
    compiled = Compiler(model, cache).compile(schedule, devices)
    rng = np.random.default_rng(1)
    with Executor(compiled, devices) as executor:
        for _ in range(2):
            x = rng.standard_normal((4, 16)).astype(np.float32)
            expected = x @ weight @ weight @ weight
            (found,) = executor.run({"v0": x}).values()
            assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-2


def test_a_graph_is_recorded_for_each_set_of_tensors() -> None:
    program = OrtProgram(products(range(1), 4), ort.SessionOptions(), "x", graphs=True)
    array = np.eye(4, dtype=np.float32)
    bound: Any = program.bind({"v0": array}, {"v1": np.empty_like(array)})
    numbers = []
    for _ in range(10):
        bound.run()
        bound.run()
        numbers.append(bound._options.get_run_config_entry("gpu_graph_id"))
        bound.set_input("v0", array.copy())
    assert numbers == [*map(str, range(1, 9)), "-1", "-1"]


def test_options_of_a_provider() -> None:
    own = ProviderOptions(options="device_type=GPU; num_streams = 2").own("ort-x")
    assert own == {"device_type": "GPU", "num_streams": "2"}
    with pytest.raises(UsageError, match=r"ort-x\.options='fast': 'fast' has no value"):
        ProviderOptions(options="fast").own("ort-x")


def test_what_is_measured_depends_on_each_option(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, device = a_gpu(monkeypatch), Device("gpu:0", "gpu", processor="A GPU", identity=ONLY)
    options = ("", True), ("", False), ("fast=1", True), ("fast=1", False)
    described = [
        engine.describe(device, ProviderOptions(options=text, cuda_graph=graph))
        for text, graph in options
    ]
    assert len({info.version for info in described}) == len(options)


def test_onnx_runtime_answers_where_a_provider_takes_nothing(ggml: Path, cache: Cache) -> None:
    model = from_nodes(
        [helper.make_node("Det", ["x"], ["y"])],
        [tensor_info("x", [4, 4])],
        [tensor_info("y", [])],
        {},
    )
    with pytest.warns(DegradedWarning, match="takes none of the model's operators"):
        session = coexec.InferenceSession(
            model, devices=[GGML], planner="single", background=False, cache=cache
        )
    x = np.eye(4, dtype=np.float32)
    assert session.run(None, {"x": x})[0] == 1
