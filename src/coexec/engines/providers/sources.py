"""The execution providers that are installed: those built into ONNX Runtime, and plug-ins.

A plug-in is a library that ONNX Runtime loads. Packages of plug-ins have a function that returns
its path. Nothing is loaded here: a plug-in may crash its process.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from coexec.codec import decode, encode
from coexec.engines import trial
from coexec.engines.base import ONLY
from coexec.engines.names import engine_of_provider
from coexec.engines.runtimes import packages_of_onnx_runtime
from coexec.errors import DeviceError, first_line
from coexec.extras import has_onnx_runtime

_ENDING = "ExecutionProvider"
_NOT_DEVICES = frozenset({"Azure", "CPU"})
"""Built-in providers that drive no other processor of this machine."""
_KINDS = {
    "CANN": "npu",
    "Dnnl": "cpu",
    "Nnapi": "npu",
    "QNN": "npu",
    "Rknpu": "npu",
    "VSINPU": "npu",
    "VitisAI": "npu",
    "Xnnpack": "cpu",
}
"""Kinds of the processors of built-in providers; all others drive a GPU."""
_PLUG_INS = ("onnxruntime-ep-", "onnxruntime-ggml", "onnxruntime-qnn")
"""Beginnings of the names of packages that bring a plug-in."""
_PATH_FUNCTIONS = ("get_library_path", "library_path")
_DRM = Path("/sys/class/drm")


@dataclass(frozen=True)
class ListedDevice:
    """A device of a plug-in, as ONNX Runtime lists it."""

    provider: str
    """Name of the provider: "WebGpuExecutionProvider"."""
    kind: str
    title: str
    identity: str
    """The PCI address, if the plug-in lists several devices of the kind; else `ONLY`."""
    number: int
    """Index among the devices of the plug-in."""
    version: str


@dataclass(frozen=True)
class DeviceListing:
    """The devices of a provider."""

    library: str = ""
    devices: tuple[ListedDevice, ...] = ()
    failure: str = ""
    """Why it cannot be used; "" if it can."""


@dataclass(frozen=True)
class ProviderSource:
    """Where an execution provider comes from: the installed ONNX Runtime, a package, or a file."""

    engine: str
    """Name of its engine: "ort-webgpu"."""
    provider: str = ""
    """Name of a built-in provider; "" for a plug-in."""
    package: str = ""
    """Name of the package of a plug-in."""
    library: str = ""
    """Path of a plug-in that has no package."""

    @property
    def kind(self) -> str:
        """Kind of the processors of a built-in provider."""
        return _KINDS.get(self.provider.removesuffix(_ENDING), "gpu")

    @cached_property
    def version(self) -> str:
        """Its version; of a file, the time and size."""
        if self.package:
            return packages_of_onnx_runtime()[self.package]
        if self.library:
            with suppress(OSError):
                facts = os.stat(self.library)
                return f"{facts.st_size} bytes of {facts.st_mtime_ns}"
        return ""

    def listing(self) -> DeviceListing:
        """The devices of a plug-in, which a process of its own lists."""
        facts = {
            "plug-in": [self.package, self.library, self.version],
            "packages": dict(packages_of_onnx_runtime()),
            "cards": sorted(path.name for path in _DRM.glob("card*")),
        }
        target = "coexec.engines.providers.sources:listed"
        arguments = (self.engine, self.package, self.library)
        text = trial.answer(target, arguments, facts, lambda _: trial.FAILURE_LASTS_S)
        try:
            return decode(DeviceListing, json.loads(text))
        except ValueError:  # it has crashed, or has not ended
            return DeviceListing(failure=f"listing its devices {text}")


def sources() -> Iterator[ProviderSource]:
    """The providers that are installed, a plug-in before a built-in provider of its name."""
    if not has_onnx_runtime():
        return
    for package in packages_of_onnx_runtime():
        if package.startswith(_PLUG_INS):
            short = package.removeprefix("onnxruntime-").removeprefix("ep-")
            yield ProviderSource(f"ort-{short}", package=package)
    import onnxruntime

    # The available ones are also the plug-ins that this process has loaded.
    built_in = set(onnxruntime.get_all_providers())
    for provider in onnxruntime.get_available_providers():
        if provider in built_in and provider.removesuffix(_ENDING) not in _NOT_DEVICES:
            yield ProviderSource(engine_of_provider(provider), provider)


def listed(engine: str, package: str, library: str) -> str:
    """The `DeviceListing` of a plug-in as text, by loading it into this process."""
    try:
        path = library or _library_of(package)
        listed_devices = registered(engine, path)
        kinds = Counter(device.device.type.name.lower() for device in listed_devices)
        devices = tuple(
            ListedDevice(
                device.ep_name,
                kind := device.device.type.name.lower(),
                _title(device.device),
                dict(device.device.metadata).get("pci_bus_id", "") if kinds[kind] > 1 else ONLY,
                number,
                dict(device.ep_metadata).get("version", ""),
            )
            for number, device in enumerate(listed_devices)
        )
        found = DeviceListing(path, devices, "" if devices else _without_devices())
    except Exception as error:  # of the package's own code, too
        found = DeviceListing(failure=f"it does not load ({first_line(error)})")
    return json.dumps(encode(found))


def _without_devices() -> str:
    why = "it lists no device of this machine"
    if not _DRM.exists():
        why += f"; ONNX Runtime finds GPUs in {_DRM}, which this machine does not have"
    return why


def _title(hardware: Any) -> str:
    described = dict(hardware.metadata).get("Description", "")
    return described or f"{hardware.vendor} {hardware.type.name}"


def _library_of(package: str) -> str:
    """Path of the library in a package, which the package itself returns."""
    module = import_module(package.replace("-", "_"))
    for name in _PATH_FUNCTIONS:
        if hasattr(module, name):
            return str(getattr(module, name)())
    raise DeviceError(f"the package {package} has none of {', '.join(_PATH_FUNCTIONS)}")


@cache
def registered(engine: str, path: str) -> tuple[Any, ...]:
    """The ``OrtEpDevice`` objects of a plug-in, which is loaded into this process.

    Raises:
        Exception: any error of ONNX Runtime or of the plug-in.
    """
    import onnxruntime

    before = len(onnxruntime.get_ep_devices())
    onnxruntime.register_execution_provider_library(engine, path)
    return tuple(onnxruntime.get_ep_devices()[before:])
