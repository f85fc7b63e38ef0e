"""A device that is slowed, as by a lower clock: by a CPU quota, or by a delay after each program.

"quota" puts the device's thread into a control group with limited CPU time (cgroup v1, needs root).
Linux enforces quotas at timer ticks, every 4 ms if CONFIG_HZ is 250. Measured there at 50 %: with a
period of 1 ms nothing becomes slower (factor 1.00). With 5 ms, a matrix product of 0.13 ms takes
2.01 times as long in the mean and 1.00 times in the median, because the thread runs at full speed
for some milliseconds and then stops. So whole networks have the requested speed, but operators have
not.

"stretch" extends each program to 1/share of the time that the calling thread computed: the thread
keeps its core busy for the remaining time. This slows every operator equally, as a lower clock
does, and needs no rights. Times in which the thread waited are not extended. During the delay, the
thread computes hashes, because these release Python's interpreter lock for the other devices. (A
loop in Python would hold the lock for up to 5 ms, and the other device would stop.)

Both count the work of the calling thread, so they are for engines that compute in it: ONNX Runtime
on one core.
"""

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from coexec.engines.base import Bound, OpenEngine, Program
from coexec.errors import DeviceError
from coexec.lowering.module import Module

__all__ = ["WAYS", "slowed"]

WAYS = ("stretch", "quota")
_PERIOD_US = 5000
_HASH_S = 0.5e-6
"""Approximate time of one iteration of `hashlib.pbkdf2_hmac`; the first guess in each delay."""
_STEP, _STEP_S = 0.7, 1e-3
"""One call takes this share of the remaining delay, and at most this number of seconds, because the
speed of the core may change during a call."""
_SHORT_S = 10e-6
"""A delay below this is too short for a call that releases the interpreter lock."""


@contextmanager
def slowed(engine: OpenEngine, share: float, way: str) -> Iterator[OpenEngine]:
    """``engine`` at ``share`` of its speed; at 1, the unchanged engine. All changes are undone when
    the block ends.

    Raises:
        DeviceError: no control group can be created, because of missing support or rights.
    """
    if share >= 1:
        yield engine
    elif way == "stretch":
        yield cast(OpenEngine, _Stretched(engine, share))
    else:
        with _group(share) as group:
            yield cast(OpenEngine, _Limited(engine, group))


class _Like:
    """A wrapper of an engine or a program, which forwards everything that a subclass does not
    change."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stretched(_Like):
    def __init__(self, engine: OpenEngine, share: float) -> None:
        super().__init__(engine)
        self._share = share

    def compile(self, module: Module) -> Program:
        return _StretchedProgram(self._inner.compile(module), self._share)


class _StretchedProgram(_Like):
    def __init__(self, program: Program, share: float) -> None:
        super().__init__(program)
        self._share = share

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        return _StretchedBound(self._inner.bind(inputs, outputs), self._share)


class _StretchedBound(_Like):
    def __init__(self, bound: Bound, share: float) -> None:
        super().__init__(bound)
        self._share = share

    def run(self) -> None:
        before_s = time.thread_time()
        self._inner.run()
        computed_s = time.thread_time() - before_s
        _stay_busy(time.perf_counter() + computed_s * (1 / self._share - 1))


def _stay_busy(end_s: float) -> None:
    """Keep the core busy until ``end_s`` (`time.perf_counter`); the interpreter lock is released
    for most of the time."""
    hash_s, now_s = _HASH_S, time.perf_counter()
    while (rest_s := end_s - now_s) > _SHORT_S:
        count = max(1, int(min(_STEP * rest_s, _STEP_S) / hash_s))
        hashlib.pbkdf2_hmac("sha256", b"", b"", count)
        began_s, now_s = now_s, time.perf_counter()
        hash_s = (now_s - began_s) / count
    while time.perf_counter() < end_s:
        pass


class _Limited(_Like):
    def __init__(self, engine: OpenEngine, group: Path) -> None:
        super().__init__(engine)
        self._group = group

    def compile(self, module: Module) -> Program:
        return _LimitedProgram(self._inner.compile(module), self._group)


class _LimitedProgram(_Like):
    def __init__(self, program: Program, group: Path) -> None:
        super().__init__(program)
        self._group = group

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        return _LimitedBound(self._inner.bind(inputs, outputs), self._group)


class _LimitedBound(_Like):
    def __init__(self, bound: Bound, group: Path) -> None:
        super().__init__(bound)
        self._group = group

    def run(self) -> None:
        _join(self._group)
        try:
            self._inner.run()
        finally:
            _join(self._group.parent)


def _join(group: Path) -> None:
    (group / "tasks").write_text(str(threading.get_native_id()))


@contextmanager
def _group(share: float) -> Iterator[Path]:
    """A control group with a quota for this process; it is removed when the block ends."""
    group = _own_group() / f"coexec-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise DeviceError(
            f"a control group with a CPU quota cannot be made: {error}; it "
            f"needs root, stretch does not"
        ) from error
    # SIGTERM must also remove the group.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(share * _PERIOD_US)))
        yield group
    finally:
        for thread in (group / "tasks").read_text().split():
            (group.parent / "tasks").write_text(thread)
        group.rmdir()
        signal.signal(signal.SIGTERM, before)


def _own_group() -> Path:
    """The folder of this process's group in the hierarchy of the CPU controller (cgroup v1)."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise DeviceError(f"this machine has no control groups: {error}") from error
    for _, place, kind, options, *_ in map(str.split, mounts):
        if kind == "cgroup" and "cpu" in options.split(","):
            own = next(g.split(":", 2)[2] for g in groups if "cpu" in g.split(":")[1].split(","))
            return Path(place) / own.lstrip("/")
    raise DeviceError(
        "this machine has no CPU controller of cgroup v1, in which threads of one "
        "process may have different quotas; stretch works without"
    )
