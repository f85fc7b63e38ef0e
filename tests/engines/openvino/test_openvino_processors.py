"""What OpenVINO tells of processors, and how its errors read."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coexec.engines.openvino import device, engine
from coexec.engines.openvino import processors as module
from coexec.engines.openvino.failures import cause, translated
from coexec.engines.openvino.library import core, installed_version
from coexec.engines.openvino.processors import OpenVinoProcessor, processors
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device
from tests.helpers.openvino_programs import opened
from tests.helpers.patience import ENOUGH_S

GPU = {
    "FULL_DEVICE_NAME": "Intel(R) Arc(TM) A770 Graphics (dGPU) ",
    "OPTIMIZATION_CAPABILITIES": ["FP32", "BIN", "FP16", "INT8"],
    "DEVICE_UUID": "8680a056080000000300000000000000",
    "DEVICE_PCI_INFO": SimpleNamespace(domain=0, bus=3, device=0, function=0),
    "GPU_DEVICE_TOTAL_MEM_SIZE": 16 << 30,
    "GPU_DRIVER_VERSION": "24.35",
}
NPU = {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "OPTIMIZATION_CAPABILITIES": ["FP16", "INT8"]}


class _Library:
    """An `openvino.Core` of another machine."""

    available_devices = ("GPU.0", "NPU")

    def get_property(self, plugin: str, name: str) -> Any:
        known = GPU if plugin == "GPU.0" else NPU
        if name not in known:
            raise RuntimeError(f"Exception from src/x.cpp:1:\nUnsupported property {name}")
        return known[name]


def test_gpus_and_npus_are_described_by_their_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "core", _Library)
    assert processors() == (
        OpenVinoProcessor(
            "GPU.0",
            "Intel(R) Arc(TM) A770 Graphics (dGPU)",
            ("float32", "fp16"),
            "8680a056080000000300000000000000",
            "0000:03:00.0",
            16 << 30,
            "24.35",
        ),
        OpenVinoProcessor("NPU", "Intel(R) AI Boost", ("fp16",)),
    )


def test_kernels_of_gpus_are_kept_by_version_processor_and_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "core", _Library)
    monkeypatch.setattr(device, "core", _Library)
    spec = Device("gpu:0", "gpu")

    def folder(plugin: str) -> Any:
        return opened(spec, "fp16", tmp_path, plugin)._properties()["CACHE_DIR"]

    first = folder("GPU.0")
    assert Path(first).parent == tmp_path and folder("GPU.0") == first != folder("NPU")
    monkeypatch.setitem(GPU, "GPU_DRIVER_VERSION", "25.01")
    assert folder("GPU.0") != first
    second = folder("GPU.0")
    monkeypatch.setattr(device, "installed_version", lambda: "2027.0")
    assert folder("GPU.0") != second
    with pytest.raises(DeviceError, match="does not compute in float32 with OpenVINO; choose fp16"):
        opened(spec, plugin="NPU")


def test_the_cpu_is_found() -> None:
    if installed_version() is None:
        pytest.skip("OpenVINO is not installed: pip install openvino")
    cpu = next(found for found in processors() if found.plugin == "CPU")
    assert "float32" in cpu.precisions and cpu.name
    assert installed_version()


def test_cores_have_the_precisions_of_their_instruction_sets() -> None:
    of_cores = {
        ("AVX2", "AVX512_SKX"): ("float32",),
        ("AVX512BF16", "AVX512_SKX"): ("float32", "bf16"),
        ("AVX512BF16", "AVX512FP16"): ("float32", "bf16", "fp16"),
        ("ASIMD", "ASIMDHP"): ("float32", "fp16"),
    }
    for features, precisions in of_cores.items():
        assert engine._of_cores(features) == precisions


def test_what_cores_are_said_to_have_is_what_openvino_computes_in() -> None:
    if installed_version() is None:
        pytest.skip("OpenVINO is not installed: pip install openvino")
    (cores,) = engine.OpenVino().processors("cpu")
    cpu = next(found for found in processors() if found.plugin == "CPU")
    assert set(cores.precisions) <= set(cpu.precisions)


def test_without_openvino_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    core.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"not available.*pip install openvino"):
            processors()
    finally:
        core.cache_clear()


MESSAGE = """Exception from src/inference/src/cpp/core.cpp:117:
Exception from src/inference/src/dev/plugin.cpp:54:
Check '!proc_type_table.empty()' failed at src/plugins/intel_cpu/src/cpu_streams.cpp:1397:
proc_type_table is empty. No CPU resources available!


"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MESSAGE, "proc_type_table is empty. No CPU resources available!"),
        (
            "Exception from a.cpp:1:\nException from b.cpp:602: unsupported src_prc: string\n",
            "unsupported src_prc: string",
        ),
        (
            "FrontEnd API failed:\n-- No conversion rule found for operations: Det-22\n"
            "To facilitate the conversion of unsupported operations, refer to ...\n",
            "-- No conversion rule found for operations: Det-22",
        ),
        ("", "RuntimeError"),
    ],
)
def test_of_its_errors_the_reason_is_told(text: str, expected: str) -> None:
    assert cause(RuntimeError(text)) == expected
    with (
        pytest.raises(DeviceError) as caught,
        translated("cpu:0", "compiling", "run that part elsewhere"),
    ):
        raise RuntimeError(text)
    assert str(caught.value) == (
        f"cpu:0 failed while compiling ({expected}); run that part elsewhere"
    )


def test_errors_of_ours_and_of_others_pass() -> None:
    with pytest.raises(DeviceError, match="mine"), translated("cpu:0", "x", "y"):
        raise DeviceError("mine")
    with pytest.raises(KeyError), translated("cpu:0", "x", "y"):
        raise KeyError("not OpenVINO's")
    with pytest.raises(DeviceError, match="out of memory while x"), translated("cpu:0", "x", "y"):
        raise MemoryError


TELEMETRY = """
import importlib.abc, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("openvino_telemetry"):
            print("sends", name)

sys.meta_path.insert(0, Finder())
from coexec.engines.openvino.library import core
core()
import openvino.tools.ovc
print("telemetry" if "openvino_telemetry" in sys.modules else "none")
"""


def test_an_import_by_coexec_sends_nothing() -> None:
    """OpenVINO has an empty class for machines without the package that sends."""
    words = [sys.executable, "-c", TELEMETRY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=ENOUGH_S, check=True)
    assert done.stdout == "none\n"
