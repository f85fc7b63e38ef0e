"""Read platform files: TOML in which each figure names its source."""

import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from coexec.codec import CodecError, decode
from coexec.errors import UsageError
from coexec.hardware.hardware import Power
from coexec.research.platforms.costs import Rates

ENGINE = "simulated"
"""The engine of a device that lists none."""


def names() -> tuple[str, ...]:
    """The platforms that come with coexec, sorted."""
    file_names = (f.name for f in files("coexec.research.platforms").iterdir())
    return tuple(
        sorted(name.removesuffix(".toml") for name in file_names if name.endswith(".toml"))
    )


def read(name: str) -> dict[str, Any]:
    """The file of platform ``name`` as nested tables.

    Raises:
        UsageError: there is no such platform.
    """
    if name not in names():
        raise UsageError(f"there is no platform {name!r}; there are {', '.join(names())}")
    return tomllib.loads((files("coexec.research.platforms") / f"{name}.toml").read_text())


def figure(table: Mapping[str, Any], key: str) -> float:
    """The number of a figure ``{ value = 2.0e9, from = "source" }``.

    Raises:
        CodecError: there is no such figure, or its value is no finite number.
    """
    match table.get(key):
        case {"value": value} if type(value) in (int, float) and math.isfinite(value):
            return float(value)
        case other:
            raise CodecError(f'{other!r} is not {{ value = 2.0, from = "source" }}', f".{key}")


def engines(device: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Tables of a device's engines, by name. Each engine has its own layout and rates. A device
    that lists none has the engine `ENGINE`, whose layout and rates stand in the device's table."""
    return {e["name"]: e for e in device["engine"]} if "engine" in device else {ENGINE: device}


def fitted_rates(data: Mapping[str, Any]) -> dict[str, Rates]:
    """Rates at the clock at which they were measured, by device, or by "device/engine" where a
    device lists engines. Figures of the file use the same keys.

    Raises:
        CodecError: a rate is missing or unknown, or no figure.
    """
    tables = {
        device["name"] + ("" if table is device else f"/{engine}"): table
        for device in data["device"]
        for engine, table in engines(device).items()
    }
    listed_rates = {
        name: decode(Rates, {key: figure(table["rates"], key) for key in table["rates"]})
        for name, table in tables.items()
        if "rates" in table
    }
    return {name: listed_rates[table.get("rates_of", name)] for name, table in tables.items()}


def power(device: Mapping[str, Any]) -> Power | None:
    """Power draw of a device; None if its table has none.

    Raises:
        CodecError: ``busy_w`` or ``idle_w`` is missing or no figure, or there is another key.
    """
    table = device.get("power")
    return None if table is None else decode(Power, {key: figure(table, key) for key in table})
