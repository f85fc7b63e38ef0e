"""The processors of this machine: clusters of cores with equal maximum frequency."""

import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from coexec.keys import digest

CoreCluster = tuple[tuple[int, ...], float | None]
"""Cores, and their maximum frequency in Hz; None if the system does not report it."""

_SYSTEM = Path("/sys/devices/system/cpu")
_FASTEST = 1024.0
"""Capacity of the fastest core of a machine, in the kernel's unit."""


def allowed_threads() -> tuple[int, ...]:
    """The hardware threads that this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_cores(root: Path = _SYSTEM) -> tuple[int, ...]:
    """The cores that this process may use, one for each physical core, ascending.

    A second hardware thread of a core shares its vector units; giving both to convolutions slows
    both down, so only the first counts.
    """
    return tuple(members[0] for members in threads_by_core(allowed_threads(), root))


def threads_by_core(threads: Iterable[int], root: Path = _SYSTEM) -> tuple[tuple[int, ...], ...]:
    """The hardware threads grouped by physical core."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for thread in sorted(threads):
        siblings = _read(root / f"cpu{thread}/topology/thread_siblings_list")
        key = tuple(core_list(siblings)) if siblings else (thread,)
        cores.setdefault(key, []).append(thread)
    return tuple(map(tuple, cores.values()))


def is_whole_machine(cores: Collection[int]) -> bool:
    """Whether these are all usable cores, and this process may use every hardware thread.

    Libraries that count processors count those of the machine, even if a process may use fewer.
    ONNX Runtime then starts threads for all of them, and binds threads to cores that this process
    may not use.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return set(cores) == set(usable_cores()) and allowed in (None, os.cpu_count())


def clusters(root: Path = _SYSTEM, cores: Iterable[int] | None = None) -> tuple[CoreCluster, ...]:
    """The usable cores grouped by speed, the fastest cluster first.

    Cores differ if their maximum frequency or the capacity that an ARM kernel reports differs.
    """
    groups: dict[tuple[float, float], list[int]] = {}
    for core in usable_cores(root) if cores is None else cores:
        hertz = 1e3 * float(_read(root / f"cpu{core}/cpufreq/cpuinfo_max_freq") or 0)
        capacity = float(_read(root / f"cpu{core}/cpu_capacity") or 0)
        groups.setdefault((capacity, hertz), []).append(core)
    ordered = sorted(groups.items(), reverse=True)
    return tuple((tuple(members), hertz or None) for (_, hertz), members in ordered)


def capacity(cores: Iterable[int], root: Path = _SYSTEM) -> float:
    """The least speed of these cores over the speed of the machine's fastest core, as an ARM kernel
    reports it; 1 if it reports none."""
    reported = (float(_read(root / f"cpu{core}/cpu_capacity") or _FASTEST) for core in cores)
    return min(reported) / _FASTEST


def partitions(
    root: Path = _SYSTEM, cores: Iterable[int] | None = None
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The usable cores in groups that share a memory, one partition for each kind of memory: NUMA
    nodes, then caches from the last level to the second.

    Empty if the system does not report them. A partition with a single group, or with a group for
    each core, is left out.
    """
    chosen = sorted(usable_cores(root) if cores is None else cores)
    groups: dict[str, dict[str, list[int]]] = {}
    for core in chosen:
        for memory, shared in _memories(root / f"cpu{core}"):
            groups.setdefault(memory, {}).setdefault(shared, []).append(core)
    found = (
        tuple(tuple(group) for group in by_text.values())
        for _, by_text in sorted(groups.items(), reverse=True)
        if 1 < len(by_text) < len(chosen) == sum(map(len, by_text.values()))
    )
    return tuple(dict.fromkeys(found))


def _memories(folder: Path) -> Iterator[tuple[str, str]]:
    """The kind of each memory that a core shares with others, and text that is equal for them."""
    yield from (("node", path.name) for path in folder.glob("node[0-9]*"))
    for cache_folder in folder.glob("cache/index[0-9]*"):
        level, kind = _read(cache_folder / "level"), _read(cache_folder / "type")
        if level > "1" and kind != "Instruction":
            yield f"cache of level {level}", _read(cache_folder / "shared_cpu_list")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def core_list(text: str) -> list[int]:
    """ "0-2,7" as [0, 1, 2, 7]."""
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def processor_name(info_file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as the system reports it."""
    info = _read(info_file)
    for field in ("model name", "Hardware", "Model"):
        match = re.search(rf"^{field}\s*:\s*(.+)$", info, re.MULTILINE)
        if match:
            return match.group(1).strip()
    return platform.processor() or platform.machine()


@cache
def features() -> tuple[str, ...]:
    """The instruction set extensions of this processor that numpy detects, sorted: "AVX2", ...

    numpy queries the processor directly. That is correct under an emulator, too, where
    /proc/cpuinfo is wrong. Empty if numpy has no such list any more.
    """
    try:
        supported = import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):  # the list is private in numpy, which may move it
        return ()
    return tuple(sorted(name for name, has in supported.items() if has))


@cache
def processor_features() -> str:
    """A digest of the instruction sets that this process may use.

    The processor's name is not enough: a virtual machine with the same name may lack some sets.
    """
    text = " ".join(features() or reported_features())
    return digest(platform.machine(), text, digits=8)


def reported_features(info_file: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """The instruction sets and other properties of this processor that the kernel reports,
    sorted: "avx2", ... More of them than numpy detects, and those of the host in an emulator."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read(info_file), re.MULTILINE)
    return tuple(sorted(match[1].split())) if match else ()
