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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from coexec.engines.names import parse
from coexec.errors import CoexecError, UsageError
from coexec.pipeline.cluster.limits import Limits
from coexec.pipeline.cluster.machine import MachineOptions
from coexec.pipeline.cluster.nodes import check_name, split_address
from coexec.pipeline.network import NetworkKind
from coexec.planners import PLANNERS
from coexec.settings import AUTO

__all__ = ["ClusterSettings", "read_settings"]

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
    stated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Stated "flops_per_s" and "bandwidth_bytes_per_s", by machine."""

    def known_of(self, name: str) -> Mapping[str, float]:
        """Stated properties of a machine, including those stated for the whole network."""
        properties = dict(self.stated.get(name, {}))
        if self.bandwidth_bytes_per_s is not None:
            properties.setdefault("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        if self.latency_s is not None:
            properties["latency_s"] = self.latency_s
        return properties


def read_settings(path: Path) -> ClusterSettings:
    """
    Raises:
        UsageError: the file cannot be read, or an entry is invalid; the message names the entry.
    """
    try:
        with path.open("rb") as file:
            data = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    return _Reader(str(path)).settings(data)


class _Reader:
    """Converts the tables of the file; its errors name the faulty entry."""

    def __init__(self, path: str) -> None:
        self._path = path

    def settings(self, data: dict[str, Any]) -> ClusterSettings:
        top = self._table(data, "", {"cluster", "network", "faults", "machines"})
        cluster = self._table(top.get("cluster", {}), "cluster", {"address"})
        network = self._table(
            top.get("network", {}), "network", {"medium", "bandwidth_mbit_s", "latency_ms"}
        )
        limits = {f.name for f in fields(Limits)}
        faults = self._table(top.get("faults", {}), "faults", limits)
        medium = network.get("medium", "ports")
        if medium not in get_args(NetworkKind):
            raise self._error(
                "network.medium", f"{medium!r} is none of {', '.join(get_args(NetworkKind))}"
            )
        bandwidth = self._number(network, "network", "bandwidth_mbit_s")
        latency = self._number(network, "network", "latency_ms", least=0.0)
        machines = top.get("machines", {})
        if not isinstance(machines, dict):
            raise self._error("machines", "wants a table for each machine: [machines.NAME]")
        options, stated = {}, {}
        for name, row in machines.items():
            self._fits(f"machines.{name}", check_name, name)
            options[name], stated[name] = self._machine(f"machines.{name}", row)
        return ClusterSettings(
            self._address(cluster),
            medium,
            None if bandwidth is None else bandwidth * _MBIT,
            None if latency is None else latency / 1e3,
            self._limits(faults),
            options,
            stated,
        )

    def _limits(self, faults: Mapping[str, Any]) -> Limits:
        numbers = {key: self._number(faults, "faults", key) for key in faults}
        if (gain := numbers.get("gain") or 0.0) >= 1:
            raise self._error("faults.gain", f"wants a share below 1, not {gain:g}")
        return replace(Limits(), **{k: v for k, v in numbers.items() if v is not None})

    def _machine(self, where: str, row: Any) -> tuple[MachineOptions, dict[str, float]]:
        keys = {"devices", "planner", "gflops", "bandwidth_mbit_s", "pace_gflops", "cache"}
        row = self._table(row, where, keys)
        devices = row.get("devices")
        if devices is not None and not (
            isinstance(devices, list) and devices and all(isinstance(d, str) for d in devices)
        ):
            raise self._error(f"{where}.devices", f"wants a list of names, not {devices!r}")
        for device in devices or ():
            self._fits(f"{where}.devices", parse, device)
        pace = self._number(row, where, "pace_gflops")
        stated = {}
        speed, port = (
            self._number(row, where, "gflops"),
            self._number(row, where, "bandwidth_mbit_s"),
        )
        if speed is not None:
            stated["flops_per_s"] = speed * 1e9
        if port is not None:
            stated["bandwidth_bytes_per_s"] = port * _MBIT
        planner = self._text(row, where, "planner") or AUTO
        if planner not in (AUTO, *PLANNERS):
            raise self._error(
                f"{where}.planner", f"{planner!r} is none of {', '.join((AUTO, *PLANNERS))}"
            )
        options = MachineOptions(
            devices, planner, None if pace is None else pace * 1e9, self._text(row, where, "cache")
        )
        return options, stated

    def _table(self, value: Any, where: str, keys: set[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where, "is no table")
        for key in sorted(value.keys() - keys):
            raise self._error(
                f"{where}.{key}".lstrip("."), f"means nothing; known are {', '.join(sorted(keys))}"
            )
        return value

    def _number(
        self, table: Mapping[str, Any], where: str, key: str, least: float | None = None
    ) -> float | None:
        value = table.get(key)
        if value is None:
            return None
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not (0 < value < math.inf or (least is not None and value == least)):
            raise self._error(f"{where}.{key}", f"wants a number above 0, not {value!r}")
        return float(value)

    def _text(self, table: Mapping[str, Any], where: str, key: str) -> str | None:
        value = table.get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise self._error(f"{where}.{key}", f"wants text, not {value!r}")
        return value

    def _address(self, cluster: Mapping[str, Any]) -> str | None:
        address = self._text(cluster, "cluster", "address")
        if address is not None:
            self._fits("cluster.address", split_address, address)
        return address

    def _fits(self, where: str, check: Callable[[str], Any], value: str) -> None:
        """Run a check, and add the place in the file to its error."""
        try:
            check(value)
        except CoexecError as error:
            raise self._error(f"{where}:", str(error)) from None

    def _error(self, where: str, what: str) -> UsageError:
        return UsageError(f"{self._path}: {where} {what}")
