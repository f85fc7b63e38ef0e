"""An execution provider of ONNX Runtime as an engine: `ort-cuda`, `ort-webgpu`, `ort-openvino`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coexec.engines import detect
from coexec.engines.base import ONLY, Engine, OpenEngine, Processor
from coexec.engines.providers.options import ProviderOptions
from coexec.engines.providers.sources import (
    DeviceListing,
    ListedDevice,
    ProviderSource,
    registered,
    sources,
)
from coexec.engines.runtimes import packages_of_onnx_runtime
from coexec.errors import DeviceError
from coexec.hardware.hardware import MAIN, Device, EngineInfo
from coexec.keys import digest
from coexec.model.main_memory import main_memory_bytes
from coexec.precision import FLOAT32, Precision

_OF_CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
"""Providers with CUDA's devices, memory and graphs."""
_REMEDY = (
    "update its package or leave it out, after which coexec devices --fresh tries it again; other "
    "engines work without it"
)


def engines() -> Mapping[str, Engine]:
    """An engine for each execution provider that is installed, by name, and one for a plug-in that
    the option "library" names."""
    found = {source.engine: Providers(source) for source in reversed([*sources()])}
    return {**found, "ort-library": Providers(ProviderSource("ort-library"))}


class Providers(Engine):
    """The engine of one execution provider."""

    kinds = ("cpu", "gpu", "npu")
    rank = 30
    options = ProviderOptions

    def __init__(self, source: ProviderSource) -> None:
        self.name, self.source = source.engine, source

    @property
    def installed(self) -> str:
        versions = [f"{name} {version}" for name, version in packages_of_onnx_runtime().items()]
        library = self.source.library
        return ", ".join([*versions, *([f"{library} {self.source.version}"] if library else [])])

    def configured(self, options: ProviderOptions) -> "Providers":
        if self.name != "ort-library" or not options.library:
            return self
        return Providers(replace(self.source, library=options.library))

    def processors(self, kind: str) -> Sequence[Processor]:
        if kind == "cpu":
            # A provider for CPU cores has threads that nobody binds to cores: it computes where it
            # is named, "cpu:0-3/ort-openvino", and is tried then.
            return []
        listing = self._listing()
        if listing.failure and kind == "gpu":
            raise DeviceError(f"engine {self.name} cannot be used: {listing.failure}; {_REMEDY}")
        return [
            Processor(
                kind, d.title, d.identity, driver=_driver(d), precisions=_precisions(d.provider)
            )
            for d in listing.devices
            if d.kind == kind
        ]

    def describe(self, device: Device, options: ProviderOptions) -> EngineInfo:
        listed, own = self._listed(device, options), options.own(self.name)
        version = self.configured(options).version
        if listed.version:
            version += f", {listed.version}"
        if own or not options.cuda_graph:  # durations and programs depend on them
            version += f", options {digest(sorted(own.items()), options.cuda_graph, digits=8)}"
        on_cores = device.kind == "cpu"
        return EngineInfo(
            self.name,
            version,
            f"{self.name} on {device.name}" if self._memory else MAIN,
            main_memory_bytes() if on_cores else None,
            options.precision,
            f"the provider {listed.provider}" if on_cores else "",
        )

    def open(
        self, device: Device, info: EngineInfo, options: ProviderOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.providers.device import Provider, ProviderDevice

        engine = self.configured(options)
        listed = engine._listed(device, options)
        plug_in: tuple[Any, ...] = ()
        if not engine.source.provider:
            plug_in = (registered(engine.name, engine._listing().library)[listed.number],)
        provider = Provider(
            listed.provider,
            {**_defaults(listed, options), **options.own(self.name)},
            plug_in,
            memory=engine._memory,
            number=listed.number,
            graphs=options.cuda_graph and listed.provider == _OF_CUDA[0],
        )
        return ProviderDevice(device, info, provider)

    @property
    def _memory(self) -> str:
        """ONNX Runtime's name of the memory in which tensors stay; "" for the host's."""
        return "cuda" if self.source.provider in _OF_CUDA else ""

    def _listing(self) -> DeviceListing:
        source = self.source
        if source.provider:
            return _built_in(source)
        if not source.package and not source.library:
            return DeviceListing()  # the option names the library
        return source.listing()

    def _listed(self, device: Device, options: ProviderOptions) -> ListedDevice:
        """The device as the provider lists it.

        Raises:
            DeviceError: it does not list it.
        """
        engine = self.configured(options)
        listing = engine._listing()
        for listed in listing.devices:
            if listed.kind == device.kind and listed.identity in (ONLY, device.identity):
                return listed
        why = listing.failure or f"it does not list {device.processor or device.name}"
        if self.name == "ort-library" and not options.library:
            why = "give the path of a plug-in, ort-library.library=PATH"
        raise DeviceError(f"device {device.name!r} cannot be used through {self.name}: {why}")


def _built_in(source: ProviderSource) -> DeviceListing:
    """The devices of a built-in provider. ONNX Runtime does not list them: of CUDA, they are those
    that NVIDIA's driver lists, and of others the first one."""
    if source.provider in _OF_CUDA and find_spec("cuda") is not None:
        from coexec.engines.cuda.engine import Cuda
        from coexec.engines.cuda.listing import listing

        found = listing(Cuda().installed)
        gpus = (
            ListedDevice(source.provider, "gpu", gpu.name, gpu.identity, number, gpu.version)
            for number, gpu in enumerate(found.gpus)
        )
        return DeviceListing("", tuple(gpus), found.failure)
    title = detect.processor_name() if source.kind == "cpu" else f"device of {source.provider}"
    return DeviceListing("", (ListedDevice(source.provider, source.kind, title, ONLY, 0, ""),))


def _precisions(provider: str) -> tuple[Precision, ...]:
    """The precisions between which the engine's option chooses."""
    return (FLOAT32, "tf32") if provider == _OF_CUDA[0] else (FLOAT32,)


def _driver(device: ListedDevice) -> str:
    return f"{device.provider} {device.version}".strip()


def _defaults(device: ListedDevice, options: ProviderOptions) -> dict[str, str]:
    """Options that the provider gets unless the user sets them."""
    if device.provider not in _OF_CUDA:
        return {}
    found = {"device_id": str(device.number)}
    if device.provider == _OF_CUDA[0]:
        found["use_tf32"] = str(int(options.precision != FLOAT32))
    return found
