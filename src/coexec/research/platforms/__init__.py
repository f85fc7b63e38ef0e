"""Simulated phones: a system and a cost model from a file in which each figure has its source.

    from coexec import platforms
    phone = platforms.load("kirin_990")
    plan = PLANNERS["heft"](graph, phone.cost, phone.system)

To add a platform: one TOML file in this folder. `benchmarks/fit_phones.py` fits its rates to single
operators, `benchmarks/fit_mace.py` to whole networks.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from coexec.codec import CodecError
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, EngineInfo, Link, Place, System
from coexec.research.platforms.costs import PlatformCosts, Rates
from coexec.research.platforms.files import (
    ENGINE,
    engines,
    figure,
    fitted_rates,
    names,
    power,
    read,
)

__all__ = ["ENGINE", "NAMES", "Platform", "load"]

NAMES = names()
"""The platforms that come with coexec, sorted."""


@dataclass(frozen=True)
class Platform:
    """A simulated machine."""

    name: str
    title: str
    stack: str
    """Inference engine with which its latencies were measured; the ratio of CPU to GPU speed holds
    for this engine."""
    system: System
    cost: PlatformCosts


def load(
    name: str, devices: Sequence[str] | None = None, clocks_hz: Mapping[str, float] | None = None
) -> Platform:
    """The platform ``name`` with the requested devices and clocks.

    Engines with the same layout share tensors at no cost. Between other engines, the file describes
    each direction.

    Args:
        name: one of `NAMES`.
        devices: requested devices; by default those that the platform's users would take, such as
            big cores and GPU. "gpu:0/buffer" is a device with this engine, "gpu:0" has the first
            one in the file.
        clocks_hz: by CPU device, a clock other than its highest. Rates of computation scale with
            the clock, rates of memory do not.

    Raises:
        UsageError: there is no such platform.
        DeviceError: the platform has no such device, or the device has no such engine or no clock
            to change.
        CodecError: a figure or an end of a link in the platform's file is invalid.
    """
    data = read(name)
    tables = {d["name"]: d for d in data["device"]}
    requests = [_asked(device) for device in (data["default"] if devices is None else devices)]
    clocks_hz = clocks_hz or {}
    for device in (*(d for d, _ in requests), *clocks_hz):
        if device not in tables:
            raise DeviceError(f"{name} has no device {device!r}, only {', '.join(tables)}")
    fitted, system_devices = fitted_rates(data), []
    rates: dict[Place, Rates] = {}
    for device, wanted in requests:
        table = tables[device]
        engine = _engine(name, table, wanted)
        ratio = _clock_ratio(name, table, clocks_hz.get(device))
        rates[Place(device, engine)] = fitted[_key(table, engine)].at_clock(ratio)
        system_devices.append(_device(table, data["stack"], engine))
    places = {Place(device, engine) for device in tables for engine in engines(tables[device])}
    links = [(_link(table, places), table) for table in data["link"]]
    links = [(x, table) for x, table in links if {x.source, x.target} <= rates.keys()]
    setups_s = {(x.source, x.target): figure(t, "setup_s") for x, t in links if "setup_s" in t}
    system = System(tuple(system_devices), tuple([link for link, _ in links]))
    return Platform(name, data["title"], data["stack"], system, PlatformCosts(rates, setups_s))


def _key(table: Mapping[str, Any], engine: str) -> str:
    """Name of a device with an engine in the figures of the file."""
    return f"{table['name']}/{engine}" if "engine" in table else table["name"]


def _asked(text: str) -> tuple[str, str]:
    """Processor and engine of a request such as "gpu:0/buffer"; "" is its first engine."""
    device, _, engine = text.partition("/")
    return device, engine


def _engine(name: str, table: Mapping[str, Any], requested: str) -> str:
    """The requested engine of a processor, or its first one."""
    listed = engines(table)
    if requested and requested not in listed:
        raise DeviceError(
            f"{table['name']} of {name} has no engine {requested!r}, only {', '.join(listed)}"
        )
    return requested or next(iter(listed))


def _end(table: Mapping[str, Any], key: str, places: Set[Place]) -> Place:
    """Source or target of a link. Where the file lists engines of a processor, it has to be one of
    them, as links differ between layouts."""
    device, engine = _asked(table[key])
    place = Place(device, engine or ENGINE)
    if place not in places:
        raise CodecError(
            f"{table[key]!r} is none of {', '.join(sorted(map(str, places)))}", f".link.{key}"
        )
    return place


def _clock_ratio(name: str, table: Mapping[str, Any], wanted_hz: float | None) -> float:
    """Ratio of the simulated clock to the clock at which the rates were measured."""
    if "clock_hz" not in table:
        if wanted_hz is not None:
            raise DeviceError(
                f"{table['name']} of {name} has no clock to change; give those of CPU clusters only"
            )
        return 1.0
    clock_hz = figure(table, "clock_hz") if wanted_hz is None else wanted_hz
    return clock_hz / figure(table, "measured_hz")


def _device(table: Mapping[str, Any], stack: str, engine: str) -> Device:
    cores = tuple(table["cores"]["value"]) if "cores" in table else ()
    hertz = figure(table, "clock_hz") if "clock_hz" in table else None
    return Device(
        table["name"],
        "simulated",
        EngineInfo(engine, stack, memory=engines(table)[engine]["layout"]),
        cores,
        host="simulated",
        max_frequency_hz=hertz,
        processor=table["processor"],
        power=power(table),
    )


def _link(table: Mapping[str, Any], places: Set[Place]) -> Link:
    def told(key: str, otherwise: float) -> float:
        return figure(table, key) if key in table else otherwise

    return Link(
        _end(table, "source", places),
        _end(table, "target", places),
        told("sync_latency_s", 0.0),
        told("bandwidth_bytes_per_s", math.inf),
        table["busy"],
    )
