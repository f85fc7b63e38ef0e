"""Reads ``cluster.toml``: the user's settings of machines and network. All entries are optional.

[cluster]
address = "192.168.1.10:6380"

[network]
medium = "ports"            # or "half-duplex ports", or "shared" for Wi-Fi
bandwidth_mbit_s = 50.0     # measured if absent
latency_ms = 0.5

[faults]
silence_s = 3.2

[machines.pi1]              # if machines are named, only these are used
devices = ["cpu:0-3"]
planner = "auto"
gflops = 8.0                # measured if absent
bandwidth_mbit_s = 50.0
pace_gflops = 2.0           # emulate a slower machine
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

from coexec.codec import decode
from coexec.costs.capacity import Capacity
from coexec.engines.names import parse
from coexec.errors import CoexecError, UsageError
from coexec.pipeline.cluster.machine import MachineOptions
from coexec.pipeline.cluster.nodes import check_name, split_address
from coexec.pipeline.cluster.planning import KnownMachine
from coexec.pipeline.cluster.supervision import Limits
from coexec.pipeline.network import NetworkKind
from coexec.planners import PLANNERS
from coexec.settings import AUTO

_MBIT = 1e6 / 8
"""Bytes a second of 1 Mbit/s."""


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster, with properties that need not be measured."""

    address: str | None = None
    network: NetworkKind = "ports"
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None
    limits: Limits = field(default_factory=Limits)
    machines: Mapping[str, MachineOptions] = field(default_factory=dict)

    def known_of(self, name: str) -> Mapping[str, float]:
        """Stated properties of a machine, including those stated for the whole network."""
        options = self.machines.get(name, MachineOptions())
        properties = {
            "flops_per_s": options.flops_per_s,
            "bandwidth_bytes_per_s": options.bandwidth_bytes_per_s or self.bandwidth_bytes_per_s,
            "latency_s": self.latency_s,
        }
        return {key: value for key, value in properties.items() if value is not None}


@dataclass(frozen=True)
class _HeadTable:
    address: str | None = None


@dataclass(frozen=True)
class _NetworkTable:
    medium: NetworkKind = "ports"
    bandwidth_mbit_s: float | None = None
    latency_ms: float | None = None


@dataclass(frozen=True)
class _MachineTable:
    devices: list[str] | None = None
    planner: str = AUTO
    gflops: float | None = None
    bandwidth_mbit_s: float | None = None
    pace_gflops: float | None = None
    cache: str | None = None


@dataclass(frozen=True)
class _SettingsFile:
    """The tables of the file."""

    cluster: _HeadTable = _HeadTable()
    network: _NetworkTable = _NetworkTable()
    faults: Limits = field(default_factory=Limits)
    machines: Mapping[str, _MachineTable] = field(default_factory=dict)


def read_settings(path: Path) -> ClusterSettings:
    """
    Raises:
        UsageError: the file cannot be read, or an entry is invalid; the message names the entry.
    """
    try:
        with path.open("rb") as file:
            entries = decode(_SettingsFile, tomllib.load(file))
        _check(entries)
    except (OSError, ValueError, CoexecError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    network = entries.network
    return ClusterSettings(
        entries.cluster.address,
        network.medium,
        _times(network.bandwidth_mbit_s, _MBIT),
        _times(network.latency_ms, 1e-3),
        entries.faults,
        {
            name: MachineOptions(
                row.devices,
                row.planner,
                _times(row.pace_gflops, 1e9),
                row.cache,
                _times(row.gflops, 1e9),
                _times(row.bandwidth_mbit_s, _MBIT),
            )
            for name, row in entries.machines.items()
        },
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _check(entries: _SettingsFile) -> None:
    """
    Raises:
        CoexecError: a value is out of its range.
    """
    rows = {f"machines.{name}": row for name, row in entries.machines.items()}
    for where, table in {"network": entries.network, "faults": entries.faults, **rows}.items():
        for key, value in vars(table).items():
            least = 0.0 if key == "latency_ms" else math.ulp(0.0)
            if isinstance(value, float) and not least <= value < math.inf:
                raise UsageError(f"{where}.{key} wants a number above 0, not {value:g}")
    if entries.faults.gain >= 1:
        raise UsageError(f"faults.gain wants a share below 1, not {entries.faults.gain:g}")
    if entries.cluster.address is not None:
        split_address(entries.cluster.address)
    for name, row in entries.machines.items():
        check_name(name)
        if row.devices == []:
            raise UsageError(f"machines.{name}.devices wants at least one name")
        for device in row.devices or ():
            parse(device)
        if row.planner not in (AUTO, *PLANNERS):
            known = ", ".join((AUTO, *PLANNERS))
            raise UsageError(f"machines.{name}.planner {row.planner!r} is none of {known}")
        if row.cache == "":
            raise UsageError(f"machines.{name}.cache wants the path of a folder")


def lacking(settings: ClusterSettings) -> str | None:
    """Text that names a missing property of the machines; None if all are stated."""
    if not settings.machines:
        return "no machine is named"
    for name in settings.machines:
        properties = settings.known_of(name)
        if "flops_per_s" not in properties:
            return f"machines.{name}.gflops is not stated"
        if "bandwidth_bytes_per_s" not in properties:
            return (
                f"neither network.bandwidth_mbit_s nor machines.{name}.bandwidth_mbit_s is stated"
            )
    return None


def stated_machines(settings: ClusterSettings) -> tuple[KnownMachine, ...]:
    """Machines of complete settings, see `lacking`."""
    return tuple(
        KnownMachine(
            name,
            Capacity(properties["flops_per_s"]),
            properties["bandwidth_bytes_per_s"],
            properties.get("latency_s", 0.0),
        )
        for name in settings.machines
        for properties in (settings.known_of(name),)
    )


def made_up(
    count: int | None, gflops: Sequence[float], mbit_s: Sequence[float]
) -> tuple[KnownMachine, ...]:
    """Machines with the names m1, m2 and so on.

    Args:
        count: number of machines; None: one for each capacity.
        gflops: capacities; the last one is used for all further machines. The same holds for
            ``mbit_s``.

    Raises:
        UsageError: there is no machine or no capacity, or there are more values than machines.
    """
    count = len(gflops) if count is None else count
    if count < 1:
        raise UsageError(f"--machines {count}: plan for at least one")
    for name, values in (("--gflops", gflops), ("--mbit", mbit_s)):
        if not values or len(values) > count:
            raise UsageError(
                f"{name} has {len(values)} values for {count} machines; give one for "
                f"each, or fewer: the last one counts for the rest"
            )
    rows = zip(range(count), *(chain(v, repeat(v[-1])) for v in (gflops, mbit_s)), strict=False)
    return tuple(
        KnownMachine(f"m{index + 1}", Capacity(1e9 * speed), _MBIT * port)
        for index, speed, port in rows
    )
