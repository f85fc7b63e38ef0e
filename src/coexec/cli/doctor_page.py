"""The page of `coexec doctor`: versions, devices and engines, load and limits of this machine."""

import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.table import Table

from coexec.__about__ import __version__
from coexec.cli.console import Trimmed, out
from coexec.cli.processors import engine_table, remarks
from coexec.control_groups import cpu_limit, memory_limit_bytes
from coexec.engines import detect
from coexec.engines.registry import Driven
from coexec.engines.runtimes import onnx_runtimes
from coexec.engines.survey import survey
from coexec.errors import WITHOUT_ONNX_RUNTIME, first_line
from coexec.extras import BRINGS, EXTRAS, has_onnx_runtime, install, needed
from coexec.profiling.processors import load_from_now, processor_time
from coexec.rules import BUSY, STOLEN
from coexec.runtime.loops import loop_reason
from coexec.units import format_bytes, format_numbers

_T = TypeVar("_T")

_WINDOW_S = 1.0
"""Seconds in which the load is observed: a tick of /proc/stat is a hundredth of it."""
_FALLBACK = "onnxruntime"
"""The engine that every model needs."""
_FAMILIES = ("onnxruntime", "openvino", "pyopencl")
"""Beginnings of names of packages that replace each other or disturb each other."""
_HOMES = re.compile(r"/(?:home|Users)/[^/\s'\":,;)]+")

Fact = str | int | float | None
"""The unit is the end of its name; a text where there is none, or no value could be determined."""


@dataclass(frozen=True)
class Page:
    """All that the page shows, with the names of its fields in JSON."""

    verdict: str
    versions: Mapping[str, Fact]
    packages: Mapping[str, str | None]
    missing: Mapping[str, str]
    processors: Sequence[Driven]
    broken: Mapping[str, str]
    load: Mapping[str, float]
    limits: Mapping[str, Fact]


def examined(root: Path = Path("/")) -> Page:
    """Examine this machine and this installation, for some seconds. The page has ~ in place of home
    folders.

    Args:
        root: the folder that has proc and sys.
    """
    load = _observed(root)  # before any other process is started
    packages, engines = _packages(), survey()
    # A package of the operating system may lack the list of its files.
    runtimes = [*onnx_runtimes()] or [_FALLBACK] * has_onnx_runtime()
    page = Page(
        verdict(packages, engines.processors, engines.broken, load, runtimes),
        _facts(_VERSIONS, root),
        packages,
        _missing(packages),
        engines.processors,
        engines.broken,
        load,
        _facts(_LIMITS, root),
    )
    return private(page)


def private(value: _T) -> _T:
    """``value`` with ~ in place of home folders, in all texts of dataclasses and collections."""
    return cast(_T, _private(value))


def _private(value: Any) -> Any:
    if isinstance(value, str):
        home = str(Path.home())
        text = value if home == "/" else re.sub(rf"{re.escape(home)}(?=\W|$)", "~", value)
        return _HOMES.sub("~", text)
    if isinstance(value, Mapping):
        return {key: _private(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_private, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _private(getattr(value, f.name)) for f in fields(value)})
    return value


def _facts(readers: Mapping[str, Callable[[Path], Fact]], root: Path) -> Mapping[str, Fact]:
    """Facts by name. An error of a reader becomes the text of its fact: the page is for machines
    on which something is wrong."""

    def fact(read: Callable[[Path], Fact]) -> Fact:
        try:
            return read(root)
        except OSError as error:
            return f"unknown: {error.filename or 'a file'}: {error.strerror or error}"
        except Exception as error:
            return f"unknown: {first_line(error) or type(error).__name__}"

    return {name: fact(read) for name, read in readers.items()}


def _distribution(root: Path) -> Fact:
    text = (root / "etc/os-release").read_text(errors="replace")
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return name[1] if name else "unknown: /etc/os-release has no PRETTY_NAME"


def _python(_: Path) -> Fact:
    own = ", in a virtual environment" if sys.prefix != sys.base_prefix else ""
    return f"{platform.python_implementation()} {platform.python_version()}{own}"


_VERSIONS: Mapping[str, Callable[[Path], Fact]] = {
    "coexec": lambda _: __version__,
    "run_loop": lambda _: ": ".join(loop_reason()),
    "python": _python,
    "system": lambda _: f"{platform.system()} {platform.release()}, {platform.machine()}",
    "distribution": _distribution,
    "c_library": lambda _: os.confstr("CS_GNU_LIBC_VERSION") or "unknown: it is not glibc",
    "processor": lambda root: detect.processor_name(root / "proc/cpuinfo"),
    "instruction_sets": lambda _: " ".join(detect.features()),
}


def _threads(_: Path) -> Fact:
    threads = detect.allowed_threads()
    count = max(len(threads), os.cpu_count() or 1)
    return f"{len(threads)} of {count} ({format_numbers(threads)})"


def _memory_bytes(name: str) -> Callable[[Path], Fact]:
    """A reader of the bytes under ``name`` in /proc/meminfo."""

    def read(root: Path) -> Fact:
        text = (root / "proc/meminfo").read_text()
        size = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
        return int(size[1]) << 10 if size else f"unknown: /proc/meminfo has no {name}"

    return read


def _open_files(_: Path) -> Fact:
    count = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if count == resource.RLIM_INFINITY else count


_LIMITS: Mapping[str, Callable[[Path], Fact]] = {
    "hardware_threads": _threads,
    "cores": lambda root: len(detect.usable_cores(root / "sys/devices/system/cpu")),
    "quota_processors": cpu_limit,
    "memory_bytes": _memory_bytes("MemTotal"),
    "available_memory_bytes": _memory_bytes("MemAvailable"),
    "memory_limit_bytes": memory_limit_bytes,
    "open_files": _open_files,
}
"""Processors, memory and files that this process may use; None: without a limit."""


def _observed(root: Path) -> Mapping[str, float]:
    """The load of the machine during a second; empty where the system does not report it."""
    try:
        load_so_far = load_from_now(processors=lambda: processor_time(root))
        time.sleep(_WINDOW_S)
        load = load_so_far()
        if not processor_time(root).busy_s:
            return {}
        average = os.getloadavg()[0]
    except (OSError, ValueError):  # sandboxes show other fields
        return {}
    return {
        "other_programs_share": load.share,
        "taken_by_host_share": load.processors.stolen,
        "average_of_a_minute": average,
    }


def _packages() -> Mapping[str, str | None]:
    """Versions of the packages that coexec and its extras need, None if not installed, and of
    further packages of the same libraries: two that bring the same module, such as onnxruntime and
    onnxruntime-gpu, overwrite each other's files."""
    try:
        lines = [line for line in requires("coexec") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        lines = []
    names = [re.split(r"[^\w.-]", line)[0] for line in lines]
    names += [package for packages in EXTRAS.values() for package in packages]
    # A package that was removed by half has no name.
    here = (str(p.metadata["Name"] or "").lower().replace("_", "-") for p in distributions())
    names += sorted(name for name in here if name.startswith(_FAMILIES))
    return {name: _version(name) for name in names}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _missing(packages: Mapping[str, str | None]) -> Mapping[str, str]:
    """By extra with packages that are not installed, their names and the command."""
    return {
        extra: f"without {' and '.join(absent)}: {install(extra)} ({BRINGS[extra]})"
        for extra in EXTRAS
        if (absent := [name for name in needed(extra) if packages[name] is None])
    }


def verdict(
    packages: Mapping[str, str | None],
    processors: Iterable[Driven],
    broken: Mapping[str, str],
    load: Mapping[str, float],
    runtimes: Collection[str],
) -> str:
    """One sentence: ready, ready but with which limits, or not ready and why; with the remedy.

    Args:
        runtimes: the installed packages that bring ONNX Runtime's module.
    """
    extras = {name for names in EXTRAS.values() for name in names}
    if absent := [n for n, text in packages.items() if text is None and n not in extras]:
        names = " ".join(absent)
        return (
            f"Not ready, because packages are not installed: {names} (python -m pip install "
            f"{names})."
        )
    if not runtimes:
        return f"Not ready, because {WITHOUT_ONNX_RUNTIME}."
    if _FALLBACK in broken:
        return f"Not ready, because the engine {_FALLBACK} cannot be used: {broken[_FALLBACK]}."
    if not any(driven.name == "cpu" and _FALLBACK in driven.usable for driven in processors):
        return (
            f"Not ready, because the engine {_FALLBACK} runs on no CPU (python -m pip install "
            f"--force-reinstall {_FALLBACK})."
        )
    limits = []
    if len(runtimes) > 1:
        limits.append(
            f"{' and '.join(runtimes)} bring the same module and have overwritten each other's "
            f"files; remove all of them (pip uninstall {' '.join(runtimes)}) and install one"
        )
    limits += [f"the engine {name} cannot be used: {reason}" for name, reason in broken.items()]
    if (share := load.get("other_programs_share", 0.0)) > BUSY:
        limits.append(
            f"other programs use {share:.0%} of the processors' time; end them to measure"
        )
    if (share := load.get("taken_by_host_share", 0.0)) > STOLEN:
        limits.append(
            f"the host takes {share:.0%} of the processors' time; measure at another time"
        )
    return f"Ready, but {'; '.join(limits)}." if limits else "Ready."


def print_page(page: Page) -> None:
    """Print the page for people."""
    engines = [*remarks(page.processors), *(f"{n}: {why}" for n, why in page.broken.items())]
    packages = [(name, text) for name, text in page.packages.items() if text is not None]
    sections: Mapping[str, list[Table]] = {
        "VERSIONS": [
            _table(_worded(page.versions)),
            _table(packages),
            _table(page.missing.items()),
        ],
        "ENGINES": [engine_table(page.processors), _table((text,) for text in engines)],
        "LOAD": [_table(_worded(page.load) or [("unknown", "the system does not report it")])],
        "LIMITS": [_table(_worded(page.limits))],
    }
    out.print(page.verdict)
    for title, tables in sections.items():
        out.print()
        out.print(title)
        for table in tables:
            if table.row_count:
                out.print(Trimmed(table))


def _worded(facts: Mapping[str, Fact]) -> list[tuple[str, str]]:
    return [_row(name, value) for name, value in facts.items()]


def _row(name: str, value: Fact) -> tuple[str, str]:
    label = re.sub(r"_(bytes|share)$", "", name).replace("_", " ")
    if isinstance(value, str):
        return label, value
    if value is None:
        return label, "no limit"
    if name.endswith("_bytes"):
        return label, format_bytes(value)
    if name.endswith("_share"):
        return label, f"{value:.1%}"
    return label, f"{value:.2f}" if isinstance(value, float) else str(value)


def _table(rows: Iterable[Sequence[str]]) -> Table:
    """A table without a head, in which nothing is cut off."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    for row in rows:
        while len(table.columns) < len(row):
            table.add_column(overflow="fold")
        table.add_row(*row)
    return table
