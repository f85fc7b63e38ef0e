"""CPU quotas for the processes of a machine, by version 1 of control groups.

A quota is the cross-check of pace, not its replacement: Linux lets the processes run at full speed
until the quota of a period is used up and then stops them, so that a long computation takes as long
as asked, and a short one or a message does not. `testbed.py check` prints the longest pause.
"""

import math
import time
from collections.abc import Iterable
from pathlib import Path

from host_commands import command

from coexec.errors import ExecutionError, UsageError

__all__ = ["groups", "limit", "remove"]

_SHORTEST_QUOTA_US = 1000
"""Linux accepts no shorter one."""
_PERIOD_US = 5000
_REMEDY = "pace needs no quota"


def limit(name: str, cores: float, pids: Iterable[int], folder: Path) -> Path:
    """Limit processes to ``cores`` together; later ones join by the returned file.

    The controller is mounted in ``folder`` where it is not mounted.

    Raises:
        UsageError: ``cores`` is not positive.
        ExecutionError: this machine has no CPU controller of version 1.
    """
    if not cores > 0:
        raise UsageError(f"a quota of {cores:g} cores lets nothing run; give more than 0")
    group = _controller(folder) / name
    # The period is 5 ms, or as long as the shortest quota needs.
    period_us = max(_PERIOD_US, math.ceil(_SHORTEST_QUOTA_US / cores))
    if period_us > 1_000_000:
        raise UsageError(f"a quota of {cores:g} cores is too small; Linux knows 0.001 and more")
    try:
        group.mkdir(exist_ok=True)
        # A quota is checked against the period before it.
        (group / "cpu.cfs_quota_us").write_text("-1")
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(round(cores * period_us)))
        for pid in pids:
            _join(group, pid)
    except OSError as error:
        raise ExecutionError(f"no control group with a CPU quota: {error}; {_REMEDY}") from error
    return group / "cgroup.procs"


def groups(prefix: str) -> list[str]:
    """Names of the control groups that begin with ``prefix``."""
    place = _mounted()
    return [path.name for path in place.glob(f"{prefix}*")] if place else []


def remove(prefix: str, folder: Path) -> None:
    """Remove the groups that begin with ``prefix``, whose processes have ended, and the mount.

    Raises:
        OSError: a group has processes.
    """
    place = _mounted()
    if place is None:
        return
    for group in place.glob(f"{prefix}*"):
        _remove_group(group)
    if place.is_relative_to(folder):
        command("umount", str(place))


def _remove_group(group: Path, tries: int = 200) -> None:
    """Linux counts a process a little longer than its entry in /proc exists."""
    for left in reversed(range(tries)):
        try:
            return group.rmdir()
        except OSError:
            if not left:
                raise
            time.sleep(0.01)


def _join(group: Path, pid: int) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:  # it has ended
        return


def _controller(folder: Path) -> Path:
    """The folder of the CPU controller's groups; mounted in ``folder`` if it is not mounted.

    Raises:
        ExecutionError: this machine has none.
    """
    if place := _mounted():
        return place
    try:
        rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()]
    except OSError as error:
        raise ExecutionError(f"this machine has no control groups: {error}; {_REMEDY}") from error
    known = {row[0]: row for row in rows}.get("cpu")
    if known is None or known[3] != "1":
        raise ExecutionError(f"this kernel has no CPU controller of cgroup v1; {_REMEDY}")
    # A controller that version 2 has taken, or an unprivileged process, gets an error here.
    place = folder / "cpu"
    place.mkdir(parents=True, exist_ok=True)
    command("mount", "-t", "cgroup", "-o", "cpu", "coexec", str(place))
    return place


def _mounted() -> Path | None:
    """Where the CPU controller of version 1 is mounted; None if nowhere."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(place)
    return None
