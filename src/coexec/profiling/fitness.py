"""Whether this machine is fit to measure on: what would disturb measured times, and the remedy."""

import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal

from coexec.control_groups import cpu_limit
from coexec.errors import first_line
from coexec.profiling.facts import MachineFiles, memory_sizes
from coexec.profiling.processors import Load, ProcessorTime, load_from_now, processor_time
from coexec.rules import BUSY, STOLEN
from coexec.units import format_bytes, format_numbers, format_seconds

__all__ = ["CHECKS", "Disturbances", "Finding", "findings", "observed"]

_WINDOW_S = 1.0
"""Seconds of an observation: a tick of /proc/stat is a hundredth of it."""
_COUNTS = 200
"""Readings of the clock in an observation."""
_SLOW_CLOCK_S = 1e-6
"""Reading a clock in the processor takes some 50 ns. A clock in another chip takes a microsecond,
as much as the hand-over of a tensor to another core."""
_COARSE_CLOCK_S = 1e-6
_TIGHT_MEMORY = 0.1
"""Share of main memory that is available below which Linux begins to move pages to the disk."""
_STEADY = ("performance", "userspace")
"""Governors that do not change the frequency with the load."""

Verdict = Literal["ok", "look", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing that could disturb measured times."""

    what: str
    verdict: Verdict
    """"look": it disturbs them. "unknown": it could not be determined; `found` has the reason."""
    found: str
    """The numbers."""
    remedy: str = ""


@dataclass(frozen=True)
class Disturbances:
    """Disturbances during about a second in which coexec itself did nothing."""

    load: Load | None = None
    """Processor time of other programs; None: it cannot be read."""
    throttled: int = 0
    """How often a processor was slowed down because of its heat."""
    swapped_pages: int = 0
    """Pages that moved between main memory and the disk."""
    clock_step_s: float = 0.0
    """Smallest difference between two readings of the clock that are unlike."""
    clock_read_s: float = 0.0
    """Median seconds of one reading of the clock."""
    binding: str = ""
    """Why a thread cannot be bound to a core; "" if it can."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Counters at the end, by name."""


def observed(machine: MachineFiles, sleep: Callable[[float], None] = time.sleep) -> Disturbances:
    """Observe the machine for about a second."""
    step_s, read_s = _clock()
    binding = _binding(machine.threads)
    before = _counters(machine)
    load_so_far = load_from_now(processors=lambda: _processor_time(machine))
    sleep(_WINDOW_S)
    load = load_so_far() if _processor_time(machine).busy_s else None
    after = _counters(machine)
    moved = {name: after[name] - before.get(name, 0) for name in after}
    return Disturbances(
        load, moved.get("throttled", 0), moved.get("swapped", 0), step_s, read_s, binding, after
    )


def _processor_time(machine: MachineFiles) -> ProcessorTime:
    try:
        return processor_time(machine.root)
    except (OSError, ValueError):  # sandboxes show other fields
        return ProcessorTime()


def _clock() -> tuple[float, float]:
    """Smallest step of the clock, and median seconds of a reading."""
    readings = [time.perf_counter() for _ in range(_COUNTS)]
    steps = [b - a for a, b in pairwise(readings)]
    return min((s for s in steps if s > 0), default=math.inf), statistics.median(steps)


def _binding(threads: Iterable[int]) -> str:
    """Bind a thread that ends at once to each of these hardware threads."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system cannot bind threads to cores"
    failures: list[str] = []

    def bind() -> None:
        for thread in threads:
            try:
                os.sched_setaffinity(0, {thread})
            except OSError as error:
                failures.append(f"{thread}: {error.strerror}")

    trial = threading.Thread(target=bind)
    trial.start()
    trial.join()
    return "; ".join(failures)


def _counters(machine: MachineFiles) -> dict[str, int]:
    """Counters of the kernel that grow when something disturbs programs; those that it has."""
    counters: dict[str, int] = {}
    files = [
        path
        for thread in machine.threads
        for path in (machine.processors / f"cpu{thread}/thermal_throttle").glob("*_throttle_count")
    ]
    if counts := _readable_numbers(files):
        counters["throttled"] = sum(counts)
    with suppress(OSError, ValueError, KeyError):
        lines = dict(line.split() for line in machine.read("proc/vmstat").splitlines())
        counters["swapped"] = int(lines["pswpin"]) + int(lines["pswpout"])
    return counters


def _readable_numbers(files: Iterable[Path]) -> list[int]:
    """The numbers in these files. A file is left out if it cannot be read: the sensor of a device
    that sleeps gives an error."""
    numbers = []
    for path in files:
        with suppress(OSError, ValueError):
            numbers.append(int(path.read_text()))
    return numbers


def findings(machine: MachineFiles, seen: Disturbances) -> list[Finding]:
    """All findings, also those that cannot be determined. No error of a check gets out."""
    return [_checked(what, check, machine, seen) for what, check in CHECKS.items()]


def _checked(
    what: str,
    check: "Callable[[MachineFiles, Disturbances], _Answer]",
    machine: MachineFiles,
    seen: Disturbances,
) -> Finding:
    try:
        found, remedy = check(machine, seen)
    except OSError as error:
        reason = f"{error.filename or 'a file'}: {error.strerror or error}"
        return Finding(what, "unknown", reason)
    except Exception as error:  # a check must not hide the others
        return Finding(what, "unknown", first_line(error) or type(error).__name__)
    return Finding(what, "look" if remedy else "ok", found, remedy)


_Answer = tuple[str, str]
"""The finding in numbers, and the remedy; "" if there is nothing to remedy."""


def _other_programs(machine: MachineFiles, seen: Disturbances) -> _Answer:
    if seen.load is None:
        raise ValueError("this system does not report processor time")
    try:
        averages = machine.read("proc/loadavg").split()
        average = f"; load {averages[0]} in the last minute"
    except OSError:
        average = ""
    share = seen.load.share
    found = f"{share:.0%} of the processors' time in {_WINDOW_S:g} s{average}"
    return found, "end other programs, such as top lists" if share > BUSY else ""


def _stolen(machine: MachineFiles, seen: Disturbances) -> _Answer:
    if seen.load is None:
        raise ValueError("this system does not report processor time")
    share = seen.load.processors.stolen
    found = f"{share:.1%} of the time in which there was work to do"
    remedy = "measure at another time, or on a machine that has no other guests"
    return found, remedy if share > STOLEN else ""


def _frequencies(machine: MachineFiles, file: str) -> dict[int, float]:
    """Hertz by hardware thread, from a file of cpufreq.

    Raises:
        ValueError: no thread has this file.
    """
    hertz = {}
    for thread in machine.threads:
        path = machine.processors / f"cpu{thread}/cpufreq/{file}"
        if path.is_file():
            hertz[thread] = 1e3 * float(path.read_text())
    if not hertz:
        raise ValueError("the system does not show frequencies (a virtual machine hides them)")
    return hertz


def _governor(machine: MachineFiles, seen: Disturbances) -> _Answer:
    by_name: dict[str, list[int]] = {}
    for thread in machine.threads:
        path = machine.processors / f"cpu{thread}/cpufreq/scaling_governor"
        if path.is_file():
            by_name.setdefault(path.read_text().strip(), []).append(thread)
    if not by_name:
        raise ValueError("the system shows no governor (a virtual machine hides it)")
    found = ", ".join(f"{name} for {format_numbers(t)}" for name, t in by_name.items())
    is_steady = all(name in _STEADY for name in by_name)
    return found, "" if is_steady else "cpupower frequency-set -g performance"


def _frequency_limits(machine: MachineFiles, seen: Disturbances) -> _Answer:
    most = _frequencies(machine, "cpuinfo_max_freq")
    allowed = _frequencies(machine, "scaling_max_freq")
    least = _frequencies(machine, "scaling_min_freq")
    lowered = [thread for thread in allowed if allowed[thread] < most.get(thread, 0)]
    found = (
        f"{min(least.values()) / 1e9:.2f} to {max(allowed.values()) / 1e9:.2f} GHz, the "
        f"processor's most is {max(most.values()) / 1e9:.2f}"
    )
    if not lowered:
        return found, ""
    return (
        f"{found}; lowered for {format_numbers(lowered)}",
        f"cpupower frequency-set -u {max(most.values()) / 1e6:.0f}MHz",
    )


_TURBO = {"sys/devices/system/cpu/intel_pstate/no_turbo": "0",
          "sys/devices/system/cpu/cpufreq/boost": "1"}  # fmt: skip
"""By file, its content while turbo is switched on."""


def _turbo(machine: MachineFiles, seen: Disturbances) -> _Answer:
    for path, on in _TURBO.items():
        if (machine.root / path).is_file():
            if machine.read(path) != on:
                return "switched off", ""
            off = "1" if on == "0" else "0"
            return (
                "switched on: the frequency depends on heat and on how many cores work",
                f"for figures that repeat: echo {off} > /{path}",
            )
    raise ValueError("the system shows no switch for it (a virtual machine hides it)")


def _throttling(machine: MachineFiles, seen: Disturbances) -> _Answer:
    sensors = list((machine.root / "sys/class/thermal").glob("thermal_zone*/temp"))
    thousandths = _readable_numbers(sensors)
    degrees = f"; the warmest sensor shows {max(thousandths) / 1000:.0f} °C" if thousandths else ""
    if "throttled" not in seen.counters:
        if thousandths:
            return f"the system counts no throttling{degrees}", ""
        if sensors:
            raise ValueError(
                f"the system counts no throttling, and none of its {len(sensors)} temperature "
                f"sensors can be read"
            )
        raise ValueError("the system shows neither throttling nor temperatures")
    total = seen.counters["throttled"]
    found = f"{seen.throttled} times in {_WINDOW_S:g} s, {total} since the start{degrees}"
    remedy = "let the machine cool down, or cool it better"
    return found, remedy if seen.throttled else ""


def _battery(machine: MachineFiles, seen: Disturbances) -> _Answer:
    folder = machine.root / "sys/class/power_supply"
    statuses = [
        (supply / "status").read_text().strip().lower()
        for supply in sorted(folder.iterdir() if folder.is_dir() else ())
        if (supply / "type").read_text().strip() == "Battery" and not _is_of_device(supply)
    ]
    found = ", ".join(statuses) or "none"
    return found, "plug the machine in" if "discharging" in statuses else ""


def _is_of_device(supply: Path) -> bool:
    """Whether a battery feeds a device beside the machine, such as a mouse."""
    try:
        return (supply / "scope").read_text().strip() == "Device"
    except OSError:
        return False


def _quota(machine: MachineFiles, seen: Disturbances) -> _Answer:
    limit = cpu_limit(machine.root)
    if limit is None:
        return "none", ""
    found = f"the time of {limit:g} processors, {len(machine.threads)} may be used"
    remedy = (
        "start the container without --cpus, with --cpuset-cpus: a quota stops all threads until "
        "its period has passed"
    )
    return found, remedy if limit < len(machine.threads) else ""


def _allowed(machine: MachineFiles, seen: Disturbances) -> _Answer:
    count = machine.thread_count
    found = (
        f"{len(machine.threads)} of {count} hardware threads ({format_numbers(machine.threads)})"
    )
    try:
        isolated = machine.read("sys/devices/system/cpu/isolated")
    except OSError:
        isolated = ""
    return found + (f"; isolated: {isolated}" if isolated else ""), ""


def _threads_bound(machine: MachineFiles, seen: Disturbances) -> _Answer:
    if not seen.binding:
        return "yes", ""
    return f"no: {seen.binding}", "allow sched_setaffinity(2), which a container may forbid"


def _timer(machine: MachineFiles, seen: Disturbances) -> _Answer:
    try:
        source = machine.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    except OSError:
        source = "unknown source"
    found = (
        f"{source}, steps of {format_seconds(seen.clock_step_s)}, a reading takes "
        f"{format_seconds(seen.clock_read_s)}"
    )
    is_good = seen.clock_step_s <= _COARSE_CLOCK_S and seen.clock_read_s <= _SLOW_CLOCK_S
    remedy = "start the kernel with clocksource=tsc, or measure longer requests"
    return found, "" if is_good else remedy


def _swap(machine: MachineFiles, seen: Disturbances) -> _Answer:
    sizes = memory_sizes(machine)
    used_bytes = sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
    available = sizes["MemAvailable"] / sizes["MemTotal"]
    found = (
        f"{format_bytes(used_bytes)} used of {format_bytes(sizes.get('SwapTotal', 0))}, "
        f"{seen.swapped_pages} pages moved in {_WINDOW_S:g} s; {available:.0%} of memory is "
        f"available"
    )
    is_tight = seen.swapped_pages or available < _TIGHT_MEMORY
    return found, "end programs that take much memory" if is_tight else ""


CHECKS: Mapping[str, Callable[[MachineFiles, Disturbances], _Answer]] = {
    "time of other programs": _other_programs,
    "time taken by the host": _stolen,
    "frequency governor": _governor,
    "frequency limits": _frequency_limits,
    "turbo": _turbo,
    "throttling by heat": _throttling,
    "battery": _battery,
    "processor quota": _quota,
    "usable processors": _allowed,
    "threads can be bound": _threads_bound,
    "timer": _timer,
    "swap": _swap,
}
"""The checks by what they find, in the order of the page."""
