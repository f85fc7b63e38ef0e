"""Limits that Linux' control groups set for this process: processor time and memory.

A limit holds for a group and all groups below it, so the least one counts. Both versions of control
groups are read, see cgroups(7).
"""

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 62
"""Version 1 writes the largest multiple of a page where there is no limit."""


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process' groups may use; None without a limit.

    Args:
        root: the folder that has proc and sys.
    """
    sizes = [
        int(text)
        for folder in _folders("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(folder / name)).isdecimal()
    ]
    return min((size for size in sizes if size < _NO_LIMIT_BYTES), default=None)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Processors whose whole time this process' groups may use, such as 1.5; None without a limit.

    Args:
        root: the folder that has proc and sys.
    """
    return min((limit for f in _folders("cpu", root) for limit in _cpu_limits(f)), default=None)


def _cpu_limits(folder: Path) -> Iterator[float]:
    both = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us"),
        _read(folder / "cpu.cfs_period_us"),
    ]
    if len(both) == 2 and all(text.isdecimal() for text in both) and int(both[1]):
        yield int(both[0]) / int(both[1])


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process' groups that may limit what ``controller`` controls, the
    process' own group first."""
    mounted = root / "sys/fs/cgroup"
    groups = {"": "/"}  # a container may show no groups, only the folder of its own
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    for name, base in ((controller, mounted / controller), ("", mounted)):
        group = Path(groups.get(name, "/").lstrip("/"))
        for part in (group, *group.parents):
            if (base / part).is_dir():
                yield base / part


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
