"""Compiles kernels on several cores: in this process, and in helpers that fill the folder.

Drivers hold a lock while they compile (PoCL has one lock for its code generator), so threads would
not compile in parallel. A helper is a separate process. It compiles its share of the kernels into
the folder of binaries, from which this process reads them. If a helper does not start, crashes or
finds an error, this process compiles the missing kernels itself. So errors are raised in this
process only, which has the operator's name.

A process that has requested many binaries from PoCL launches its kernels slowly (`pocl`). Then
helpers compile all of them.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coexec import processes
from coexec.engines import detect
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.platforms import devices
from coexec.errors import ExecutionError
from coexec.processes import Child, EndedError, Parent

_MOST_HELPERS = 3
"""Largest number of helpers. Each one uses a core and 200 MB of memory."""
_START = 60_000
"""Start time of a helper, in characters of source that compile in the same time."""
_LEAST = 10_000
"""Compile time of the shortest kernel, in characters of source that compile in the same time."""
_LIMIT_S = 60
"""Seconds that this process waits for the next kernel of a helper."""


def programs(
    binaries: Binaries,
    sources: Sequence[str],
    options: str,
    build: Callable[[str], Any],
    arch: Architecture,
) -> dict[str, Any]:
    """The compiled program of each source, by source.

    Args:
        build: compiles a source or reads its binary; its errors name the operator.

    Raises:
        DeviceError: the driver cannot write the files that it needs.
    """
    binaries.device.check_room()  # reading a binary writes files, too
    unique_sources = list(dict.fromkeys(sources))
    missing = [source for source in unique_sources if not binaries.has(source, options)]
    helpers = _helpers(binaries, arch)
    takes_part = binaries.keeps_own or not helpers
    own_share, *helper_shares = shares(missing, helpers, takes_part)
    programs_by_source: dict[str, Any] = {}
    with _helped(binaries, helper_shares, options) as started:
        for source in own_share:
            programs_by_source[source] = build(source)
        if takes_part:
            for share in helper_shares:
                programs_by_source |= _taken_over(binaries, share, options, build)
        _wait(started, lambda: sum(binaries.has(source, options) for source in missing))
    delivered = 0
    for source in unique_sources:
        if source not in programs_by_source:
            before = binaries.compiled
            programs_by_source[source] = build(source)
            delivered += source in missing and binaries.compiled == before
    binaries.compiled += delivered
    return programs_by_source


def shares(sources: Sequence[str], helpers: int, takes_part: bool = True) -> list[list[str]]:
    """Lists of sources: for this process, then for each helper that is worth its start.

    The longest sources are assigned first. If not ``takes_part``, the first list is empty.
    """
    lists: list[list[str]] = [[] for _ in range(helpers + 1)]
    loads = [0 if takes_part else math.inf] + [_START] * helpers
    for source in sorted(sources, key=len, reverse=True):
        lightest = loads.index(min(loads))
        lists[lightest].append(source)
        loads[lightest] += _LEAST + len(source)
    return [lists[0], *(share for share in lists[1:] if share)]


def _helpers(binaries: Binaries, arch: Architecture) -> int:
    """Number of helpers that may run beside this process. 0 on a GPU: each helper would open it."""
    if binaries.folder is None or not processes.can_start() or arch.family != "cpu":
        return 0
    cores = len(detect.usable_cores()) - binaries.keeps_own
    return min(_MOST_HELPERS, cores)


def _taken_over(
    binaries: Binaries, share: Sequence[str], options: str, build: Callable[[str], Any]
) -> dict[str, Any]:
    """Compile the kernels of a helper's share, from the last one backwards.

    Returns the programs by source. The helper starts at the front; the kernel that it is compiling
    is left to it.
    """
    programs_by_source: dict[str, Any] = {}
    while True:
        remaining = [source for source in share if not binaries.has(source, options)]
        if len(remaining) < 2:
            return programs_by_source
        programs_by_source[remaining[-1]] = build(remaining[-1])


@contextlib.contextmanager
def _helped(
    binaries: Binaries, lists: Sequence[Sequence[str]], options: str
) -> Iterator[list[Child]]:
    """Start a helper for each list of sources. Helpers that still run at the end are killed."""
    helpers: list[Child] = []
    try:
        with contextlib.suppress(ExecutionError):  # no process can be started: nothing is delivered
            for sources in lists:
                helpers.append(_started(binaries, sources, options))
        yield helpers
    finally:
        for helper in helpers:
            helper.close()


def _wait(helpers: Sequence[Child], delivered: Callable[[], int]) -> None:
    """Wait until all helpers have ended, as long as they deliver further kernels."""
    for helper in helpers:
        count, has_ended = -1, False
        while not has_ended and count < (count := delivered()):
            with contextlib.suppress(TimeoutError):
                helper.wait(_LIMIT_S)
                has_ended = True


def _started(binaries: Binaries, sources: Sequence[str], options: str) -> Child:
    """Start a helper that imports the same modules as this process."""
    device = binaries.device
    words = device.name, device.driver, binaries.written_folder, options
    env = {"POCL_MAX_PTHREAD_COUNT": "1", "POCL_KERNEL_CACHE": "0"}
    helper = Child("coexec.engines.opencl.compiling:serve", "compiles kernels", env=env)
    # This process compiles meanwhile: a pipe is full until the helper reads.
    threading.Thread(target=_sent, args=(helper, (*words, sources)), daemon=True).start()
    return helper


def _sent(helper: Child, message: object) -> None:
    with contextlib.suppress(EndedError):
        helper.send(message)


def serve(parent: Parent) -> None:
    """Compile the sources that the parent sends into a folder."""
    name, driver, folder, options, sources = parent.receive()
    device = next(d for d in devices() if (d.name, d.driver) == (name, driver))
    import pyopencl

    binaries = Binaries(device, device.context(), folder, launched=False)
    for source in sources:
        if not binaries.has(source, options):
            with contextlib.suppress(pyopencl.Error):  # raised again in the main process
                binaries.program(source, options)
    # Skip the usual clean-up: some drivers crash there, after they have compiled everything.
    os._exit(0)
