"""Simulated phones: a system and a cost model from a file in which each figure has its source.

    from coexec import platforms
    phone = platforms.load("kirin_990")
    plan = PLANNERS["heft"](graph, phone.cost, phone.system)

To add a platform: one TOML file in this folder. `benchmarks/fit_phones.py` fits its rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coexec.costs.platform import PlatformCosts
from coexec.errors import DeviceError
from coexec.platforms.files import figure, fitted_rates, names, read
from coexec.system.hardware import Device, EngineInfo, Link, System

__all__ = ["ENGINE", "NAMES", "Platform", "load"]

NAMES = names()
"""The platforms that come with coexec, sorted."""

ENGINE = "simulated"
"""The only engine of a platform's devices."""


@dataclass(frozen=True)
class Platform:
    """A machine that is simulated."""

    name: str
    title: str
    stack: str
    """The engine that its latencies were measured with: CPU and GPU are in balance for this one."""
    system: System
    cost: PlatformCosts


def load(
    name: str, devices: Sequence[str] | None = None, clocks_hz: Mapping[str, float] | None = None
) -> Platform:
    """The platform ``name`` with the devices that are asked for, at the clocks that are asked for.

    Devices with the same layout of tensors share them at no cost; between others a file describes
    each direction.

    Args:
        name: one of `NAMES`.
        devices: by default those that the platform's users would take, such as big cores and GPU.
        clocks_hz: by CPU device, another clock than its highest; compute rates go with it, what
            memory bounds does not.

    Raises:
        UsageError: there is no such platform.
        DeviceError: it has no such device, or no clock to change.
    """
    data = read(name)
    tables = {d["name"]: d for d in data["device"]}
    chosen = list(data["default"] if devices is None else devices)
    clocks_hz = clocks_hz or {}
    for device in (*chosen, *clocks_hz):
        if device not in tables:
            raise DeviceError(f"{name} has no device {device!r}, only {', '.join(tables)}")
    rates = fitted_rates(data)
    for device in chosen:
        ratio = _clock_ratio(name, tables[device], clocks_hz.get(device))
        rates[device] = rates[device].at_clock(ratio)
    links = [link for link in data["link"] if {link["source"], link["target"]} <= {*chosen}]
    system = System(
        tuple(_device(tables[d], data["stack"]) for d in chosen), tuple(map(_link, links))
    )
    setups_s = {(x["source"], x["target"]): figure(x, "setup_s") for x in links}
    cost = PlatformCosts({d: rates[d] for d in chosen}, setups_s)
    return Platform(name, data["title"], data["stack"], system, cost)


def _clock_ratio(name: str, table: Mapping[str, Any], wanted_hz: float | None) -> float:
    """Of the simulated clock to the one that the rates were measured at."""
    if "clock_hz" not in table:
        if wanted_hz is not None:
            raise DeviceError(f"{table['name']} of {name} has no clock to change; give those of "
                              f"CPU clusters only")  # fmt: skip
        return 1.0
    clock_hz = figure(table, "clock_hz") if wanted_hz is None else wanted_hz
    return clock_hz / figure(table, "measured_hz")


def _device(table: Mapping[str, Any], stack: str) -> Device:
    cores = tuple(table["cores"]["value"]) if "cores" in table else ()
    hertz = figure(table, "clock_hz") if "clock_hz" in table else None
    engine = EngineInfo(ENGINE, stack, memory=table["layout"])
    return Device(
        table["name"], "simulated", (engine,), cores, host="simulated",
        max_frequency_hz=hertz, processor=table["processor"],
    )  # fmt: skip


def _link(table: Mapping[str, Any]) -> Link:
    bytes_per_s = figure(table, "bandwidth_bytes_per_s")
    return Link(table["source"], table["target"], 0.0, bytes_per_s, table["busy"])
