"""Which test beds stand on this machine, whose they are, and how one is removed.

All that a test bed makes on the machine carries its tag: namespaces, a folder, control groups. The
tag has the process id of the owner and the time that the owner started at, so that nothing has to
be written down before it is made, and a later process with the same id is not taken for the owner.
"""

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cpu_quota
from host_commands import command, signals_wait

from coexec.errors import ExecutionError

__all__ = ["Tag", "end_processes", "new_tag", "processes", "remove", "standing"]

_PREFIX = "coexec-bed-"
_NAMESPACES = Path("/run/netns")
_NUMBERS = itertools.count()
_END_S = 10.0
"""Time that killed processes have to vanish."""


@dataclass(frozen=True, order=True)
class Tag:
    """Names one test bed of one process."""

    pid: int
    started: int
    """Start of the owner, in clock ticks since the machine booted."""
    number: int

    def __str__(self) -> str:
        return f"{self.pid:x}-{self.started:x}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Tag":
        """The tag that is written so.

        Raises:
            ValueError: the text is no tag.
        """
        pid, started, number = text.split("-")
        return cls(int(pid, 16), int(started, 16), int(number))

    @property
    def folder(self) -> Path:
        """For the files of the test bed. Short, because Ray puts sockets into it."""
        return Path(tempfile.gettempdir()) / f"{_PREFIX}{self}"

    def namespace(self, machine: str) -> str:
        return f"{_PREFIX}{self}.{machine}"

    @property
    def group(self) -> str:
        """What the names of its control groups begin with."""
        return f"{_PREFIX}{self}."

    @property
    def has_owner(self) -> bool:
        """Whether the process that made it still runs."""
        return _started(self.pid) == self.started


def new_tag() -> Tag:
    """A tag of this process that no other test bed has."""
    started = _started(os.getpid())
    assert started is not None
    return Tag(os.getpid(), started, next(_NUMBERS))


def standing() -> dict[Tag, bool]:
    """All test beds of which something is left on this machine; whether their owner runs."""
    names = [path.name for path in _NAMESPACES.glob(f"{_PREFIX}*")]
    names += [path.name for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")]
    names += cpu_quota.groups(_PREFIX)
    return {tag: tag.has_owner for tag in sorted(set(_tags(names)))}


def remove(tag: Tag) -> None:
    """End all processes of a test bed and remove what it made. Nothing happens if it is gone.

    Signals to this process wait until it is done.

    Raises:
        ExecutionError: a process does not end, or something cannot be removed.
    """
    with signals_wait():
        places = list(_NAMESPACES.glob(f"{tag.namespace('*')}"))
        inside = [place.stat().st_ino for place in places]
        end_processes(inside)
        for place in places:
            command("ip", "netns", "delete", place.name)
        # What was about to enter a namespace when the others ended. No more can: it has no name.
        end_processes(inside)
        try:
            cpu_quota.remove(tag.group, tag.folder)
            if tag.folder.exists():
                shutil.rmtree(tag.folder)
        except OSError as error:
            raise ExecutionError(
                f"test bed {tag} is not gone yet: {error}; `testbed.py down` tries again"
            ) from error


def end_processes(namespaces: Iterable[int]) -> None:
    """Kill all processes in network namespaces, given by their inodes, and see them end.

    Raises:
        ExecutionError: some do not end.
    """
    inside, end_s = set(namespaces), time.monotonic() + _END_S
    while found := list(processes(inside)):
        if time.monotonic() > end_s:
            raise ExecutionError(
                f"processes {', '.join(map(str, found))} of a test bed do not end within "
                f"{_END_S:g} s of being killed; they wait for a device: see `ps -o stat,wchan`"
            )
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def processes(namespaces: set[int]) -> Iterator[int]:
    """Ids of the processes in network namespaces, given by their inodes."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                inode = (folder / "ns/net").stat().st_ino
            except OSError:  # it has ended
                continue
            if inode in namespaces:
                yield int(folder.name)


def _tags(names: Iterable[str]) -> Iterator[Tag]:
    for name in names:
        try:
            yield Tag.parse(name.removeprefix(_PREFIX).split(".")[0])
        except ValueError:  # another program's
            continue


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Field 22 of proc(5); the second one, a name in brackets, may have spaces and brackets inside.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])
