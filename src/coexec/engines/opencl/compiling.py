"""Kernels compiled on several cores: by this process, and by helpers that fill the folder.

Drivers lock while they compile (PoCL has one lock for its code generator), so threads would wait
for each other. A helper is a process of its own. It compiles its share of the kernels into the
folder of binaries, from where this process reads them. What a helper does not deliver, because it
does not start, crashes or finds an error, this process compiles itself. So errors are raised here
only, where the operator's name is known.

A process that has asked PoCL for many binaries launches its kernels slowly (`pocl`). Then helpers
compile all of them.

    python -P -m coexec.engines.opencl.compiling NAME DRIVER FOLDER OPTIONS < SOURCES
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from coexec import processes
from coexec.engines import detect
from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.platforms import devices

__all__ = ["programs", "shares"]

_Helper: TypeAlias = "subprocess.Popen[bytes]"

_MOST_HELPERS = 3
"""Each takes a core, and 200 MB of memory."""
_START = 60_000
"""Characters of source that compile in the time in which a helper starts."""
_LEAST = 10_000
"""Characters that compile in the time that the shortest kernel takes."""
_LIMIT_S = 60
"""For a kernel of a helper, while this process waits for it."""


def programs(
    binaries: Binaries, sources: Sequence[str], options: str, build: Callable[[str], Any],
    arch: Architecture,
) -> dict[str, Any]:  # fmt: skip
    """The program of each source, by source.

    Args:
        build: compiles a source or reads its binary; its errors name the operator.
    """
    wanted = list(dict.fromkeys(sources))
    missing = [source for source in wanted if not binaries.has(source, options)]
    helpers = _helpers(binaries, arch)
    takes_part = binaries.keeps_own or not helpers
    own, *others = shares(missing, helpers, takes_part)
    found: dict[str, Any] = {}
    with _helped(binaries, others, options) as processes:
        for source in own:
            found[source] = build(source)
        if takes_part:
            for share in others:
                found |= _taken_over(binaries, share, options, build)
        _wait(processes, lambda: sum(binaries.has(source, options) for source in missing))
    delivered = 0
    for source in wanted:
        if source not in found:
            before = binaries.compiled
            found[source] = build(source)
            delivered += source in missing and binaries.compiled == before
    binaries.compiled += delivered
    return found


def shares(sources: Sequence[str], helpers: int, takes_part: bool = True) -> list[list[str]]:
    """What this process compiles, if it takes part, and each helper that is worth its start.

    Long sources first.
    """
    found: list[list[str]] = [[] for _ in range(helpers + 1)]
    loads = [0 if takes_part else math.inf] + [_START] * helpers
    for source in sorted(sources, key=len, reverse=True):
        lightest = loads.index(min(loads))
        found[lightest].append(source)
        loads[lightest] += _LEAST + len(source)
    return [found[0], *(share for share in found[1:] if share)]


def _helpers(binaries: Binaries, arch: Architecture) -> int:
    """How many helpers may run beside this process. A GPU's driver would take it for each."""
    if binaries.folder is None or not processes.can_start() or arch.family != "cpu":
        return 0
    cores = len(detect.usable_cores()) - binaries.keeps_own
    return min(_MOST_HELPERS, cores)


def _taken_over(
    binaries: Binaries, share: Sequence[str], options: str, build: Callable[[str], Any]
) -> dict[str, Any]:
    """Compile a helper's kernels from the last one back, but for the one that it is at."""
    found: dict[str, Any] = {}
    while True:
        left = [source for source in share if not binaries.has(source, options)]
        if len(left) < 2:
            return found
        found[left[-1]] = build(left[-1])


@contextlib.contextmanager
def _helped(
    binaries: Binaries, lists: Sequence[Sequence[str]], options: str
) -> Iterator[list[_Helper]]:
    """Helpers at work on a list of sources each. Those that are left are ended."""
    processes: list[_Helper] = []
    try:
        with contextlib.suppress(OSError):  # no process can be started: nothing is delivered
            processes += [_started(binaries, sources, options) for sources in lists]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait(processes: Sequence[_Helper], delivered: Callable[[], int]) -> None:
    """Until all have ended, as long as anything is delivered."""
    for process in processes:
        before = -1
        while process.poll() is None and before < (before := delivered()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LIMIT_S)


def _started(binaries: Binaries, sources: Sequence[str], options: str) -> _Helper:
    """A helper that finds the same modules as this process."""
    found = binaries.found
    words = (found.name, found.driver, str(binaries.written_folder), options)
    command = processes.command("coexec.engines.opencl.compiling", *words)
    env = processes.variables(POCL_MAX_PTHREAD_COUNT="1", POCL_KERNEL_CACHE="0")
    with tempfile.TemporaryFile() as given:  # a pipe would have to wait until the helper reads
        given.write(json.dumps(sources).encode())
        given.seek(0)
        return subprocess.Popen(
            command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
        )


def _main(name: str, driver: str, folder: str, options: str) -> None:
    """Compile the sources on standard input into ``folder``."""
    found = next(d for d in devices() if (d.name, d.driver) == (name, driver))
    import pyopencl

    binaries = Binaries(found, found.context(), Path(folder), launched=False)
    for source in json.load(sys.stdin):
        if not binaries.has(source, options):
            with contextlib.suppress(pyopencl.Error):  # raised again where it can be explained
                binaries.program(source, options)
    # Without the usual clean-up: a driver that crashes there has compiled what it should.
    os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
