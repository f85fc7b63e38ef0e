"""The processors of this machine for which OpenVINO has a plug-in."""

from dataclasses import dataclass
from typing import Any

from coexec.engines.openvino.failures import translated
from coexec.engines.openvino.library import core
from coexec.engines.openvino.options import CAPABILITIES
from coexec.precision import Precision

_MEMORY = {"GPU": "GPU_DEVICE_TOTAL_MEM_SIZE", "NPU": "NPU_DEVICE_TOTAL_MEM_SIZE"}
_DRIVER = {"GPU": "GPU_DRIVER_VERSION", "NPU": "NPU_DRIVER_VERSION"}


@dataclass(frozen=True, slots=True)
class OpenVinoProcessor:
    """OpenVINO's description of a processor. A field is "" or None if OpenVINO does not report
    it."""

    plugin: str
    """OpenVINO's name of it: "CPU", "GPU.0", "NPU"."""
    name: str
    """The processor's own name."""
    precisions: tuple[Precision, ...]
    """The precisions in which it computes: names in `coexec.precision`."""
    uuid: str = ""
    """16 bytes in hexadecimal digits. OpenCL and Level Zero report the same UUID for a GPU."""
    pci: str = ""
    """Its PCI address, as Linux writes it: "0000:03:00.0"."""
    memory_bytes: int | None = None
    driver: str = ""


def processors() -> tuple[OpenVinoProcessor, ...]:
    """The processors that OpenVINO finds on this machine.

    Raises:
        DeviceError: OpenVINO is missing or does not start.
    """
    library = core()
    with translated("OpenVINO", "looking for processors", "reinstall it"):
        return tuple(_processor(library, plugin) for plugin in library.available_devices)


def _processor(library: Any, plugin: str) -> OpenVinoProcessor:
    kind = plugin.partition(".")[0]
    capabilities = _property(library, plugin, "OPTIMIZATION_CAPABILITIES") or ()
    memory = _property(library, plugin, _MEMORY.get(kind))
    return OpenVinoProcessor(
        plugin,
        str(_property(library, plugin, "FULL_DEVICE_NAME") or plugin).strip(),
        tuple(name for name, its_name in CAPABILITIES.items() if its_name in capabilities),
        str(_property(library, plugin, "DEVICE_UUID") or ""),
        _pci(_property(library, plugin, "DEVICE_PCI_INFO")),
        int(memory) if memory else None,
        str(_property(library, plugin, _DRIVER.get(kind)) or ""),
    )


def _property(library: Any, plugin: str, name: str | None) -> Any:
    """The value of a property; None if the plug-in or its driver does not have it."""
    if name is None:
        return None
    try:
        return library.get_property(plugin, name)
    except (RuntimeError, TypeError):  # unknown property; value of a type without a Python binding
        return None


def _pci(info: Any) -> str:
    if info is None:
        return ""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{info.function:x}"
