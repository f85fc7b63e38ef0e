"""Facts about this machine, each with its value or the reason why it could not be determined."""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coexec.control_groups import cpu_limit, memory_limit_bytes
from coexec.engines import detect
from coexec.errors import first_line
from coexec.units import format_bytes, format_numbers

__all__ = ["MACHINE", "Fact", "MachineFiles", "determined", "memory_sizes"]

Value = str | int | float | bool


@dataclass(frozen=True)
class MachineFiles:
    """Where the facts are read."""

    root: Path = Path("/")
    """The folder that has proc, sys and etc."""
    threads: tuple[int, ...] = ()
    """The hardware threads that this process may use."""

    @classmethod
    def here(cls) -> "MachineFiles":
        return cls(threads=detect.allowed_threads())

    @property
    def processors(self) -> Path:
        """The folder with a folder for each hardware thread."""
        return self.root / "sys/devices/system/cpu"

    @property
    def thread_count(self) -> int:
        """Hardware threads of the machine that are switched on, at least those of this process."""
        try:
            return len(detect.core_list(self.read("sys/devices/system/cpu/online")))
        except (OSError, ValueError):
            return max(len(self.threads), os.cpu_count() or 1)

    def read(self, path: str) -> str:
        """The text of a file below the root.

        Raises:
            OSError: it cannot be read.
        """
        return (self.root / path).read_text(errors="replace").strip()


@dataclass(frozen=True)
class Fact:
    """A value, or the reason why there is none."""

    name: str
    """The unit is the end of the name: "memory_bytes"."""
    value: Value | None
    why_not: str = ""


def determined(name: str, read: Callable[[], Value]) -> Fact:
    """The fact that ``read`` returns. No error of it gets out."""
    try:
        return Fact(name, read())
    except OSError as error:
        return Fact(name, None, f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:  # the page is for machines on which something is wrong
        return Fact(name, None, first_line(error) or type(error).__name__)


def _system(machine: MachineFiles) -> Value:
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def _distribution(machine: MachineFiles) -> Value:
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', machine.read("etc/os-release"), re.MULTILINE)
    if name is None:
        raise ValueError("/etc/os-release has no PRETTY_NAME")
    return name[1]


def _c_library(machine: MachineFiles) -> Value:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        text = None
    if text is None:
        raise ValueError("it does not report its version, as glibc does")
    return text


def _python(machine: MachineFiles) -> Value:
    own = ", in a virtual environment" if sys.prefix != sys.base_prefix else ""
    return f"{platform.python_implementation()} {platform.python_version()}{own}"


def _virtual_machine(machine: MachineFiles) -> Value:
    info = machine.read("proc/cpuinfo")
    if re.search(r"^flags\s*:.*\bhypervisor\b", info, re.MULTILINE):
        return True
    if re.search(r"^flags\s*:", info, re.MULTILINE):
        return False
    raise ValueError("/proc/cpuinfo lists no flags")


def _processor(machine: MachineFiles) -> Value:
    return detect.processor_name(machine.root / "proc/cpuinfo")


def _hardware_threads(machine: MachineFiles) -> Value:
    own = format_numbers(machine.threads)
    return f"{len(machine.threads)} of {machine.thread_count} ({own})"


def _cores(machine: MachineFiles) -> Value:
    """One text for the usable cores, with the hardware threads of each."""
    cores = detect.threads_by_core(machine.threads, machine.processors)
    several = [format_numbers(members) for members in cores if len(members) > 1]
    siblings = f"; hardware threads of one core: {' '.join(several)}" if several else ""
    return f"{len(cores)}{siblings}"


def _clusters(machine: MachineFiles) -> Value:
    cores = [members[0] for members in detect.threads_by_core(machine.threads, machine.processors)]
    clusters = detect.clusters(machine.processors, cores)
    return "; ".join(
        f"{format_numbers(members)} at most "
        + (f"{hertz / 1e9:.2f} GHz" if hertz else "an unknown frequency")
        for members, hertz in clusters
    )


def _caches(machine: MachineFiles) -> Value:
    """Caches of the usable cores: kind, size, and how many there are."""
    found = {
        (f"L{_text(folder, 'level')} {_text(folder, 'type').lower()}", _text(folder, "size"),
         _text(folder, "shared_cpu_list"))
        for thread in machine.threads
        for folder in (machine.processors / f"cpu{thread}/cache").glob("index[0-9]*")
    }  # fmt: skip
    if not found:
        raise ValueError("the system reports no caches")
    counts = Counter((kind, size) for kind, size, _ in found)
    return ", ".join(
        f"{count} {kind.removesuffix(' unified')} of {size.replace('K', ' KiB')}"
        for (kind, size), count in sorted(counts.items())
    )


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()


def _instruction_sets(machine: MachineFiles) -> Value:
    features = detect.features()
    if not features:
        raise ValueError("NumPy has no list of them")
    return " ".join(features)


def memory_sizes(machine: MachineFiles) -> Mapping[str, int]:
    """Bytes by name in /proc/meminfo.

    Raises:
        OSError: there is no such file.
    """
    lines = re.findall(r"^(\w+):\s*(\d+) kB", machine.read("proc/meminfo"), re.MULTILINE)
    return {name: int(count) << 10 for name, count in lines}


def _memory(machine: MachineFiles) -> Value:
    return memory_sizes(machine)["MemTotal"]


def _available(machine: MachineFiles) -> Value:
    return memory_sizes(machine)["MemAvailable"]


def _memory_limit(machine: MachineFiles) -> Value:
    limit_bytes = memory_limit_bytes(machine.root)
    return "none" if limit_bytes is None else format_bytes(limit_bytes)


def _cpu_limit(machine: MachineFiles) -> Value:
    limit = cpu_limit(machine.root)
    return "none" if limit is None else f"the time of {limit:g} processors"


_DISPLAYS = ("0x03", "0x12")
"""Classes of PCI devices: display controllers, and processing accelerators such as NPUs."""
_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def _graphics(machine: MachineFiles) -> Value:
    """GPUs and NPUs on the bus, whether a driver is installed or not."""
    bus = machine.root / "sys/bus/pci/devices"
    if not bus.is_dir():
        raise ValueError("the system shows no PCI bus")
    found = [
        f"{_MAKERS.get(maker := _text(device, 'vendor'), maker)} {_text(device, 'device')}"
        f" (driver {_driver(device)})"
        for device in sorted(bus.iterdir())
        if _text(device, "class").startswith(_DISPLAYS)
    ]
    return ", ".join(found) or "none"


def _driver(device: Path) -> str:
    driver = device / "driver"
    return driver.resolve().name if driver.exists() else "none"


MACHINE: Mapping[str, Callable[[MachineFiles], Value]] = {
    "system": _system,
    "distribution": _distribution,
    "c_library": _c_library,
    "python": _python,
    "processor": _processor,
    "virtual_machine": _virtual_machine,
    "hardware_threads": _hardware_threads,
    "cores": _cores,
    "clusters": _clusters,
    "caches": _caches,
    "instruction_sets": _instruction_sets,
    "memory_bytes": _memory,
    "available_memory_bytes": _available,
    "memory_limit": _memory_limit,
    "processor_limit": _cpu_limit,
    "gpus_and_npus": _graphics,
}
"""The facts by name, in the order of the page."""
