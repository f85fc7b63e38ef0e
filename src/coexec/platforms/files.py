"""Read platform files: TOML in which each figure names its source."""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from coexec.costs.platform import Rates
from coexec.errors import UsageError

__all__ = ["Rates", "figure", "fitted_rates", "names", "read"]


def names() -> tuple[str, ...]:
    """The platforms that come with coexec, sorted."""
    found = (f.name for f in files("coexec.platforms").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def read(name: str) -> dict[str, Any]:
    """The file of platform ``name`` as nested tables.

    Raises:
        UsageError: there is no such platform.
    """
    if name not in names():
        raise UsageError(f"there is no platform {name!r}; there are {', '.join(names())}")
    return tomllib.loads((files("coexec.platforms") / f"{name}.toml").read_text())


def figure(table: Mapping[str, Any], key: str) -> float:
    """The number of a figure ``{ value = 2.0e9, from = "source" }``."""
    return float(table[key]["value"])


def fitted_rates(data: Mapping[str, Any]) -> dict[str, Rates]:
    """By device, its rates at the clock that they were measured at."""
    own = {
        d["name"]: Rates(**{key: figure(d["rates"], key) for key in d["rates"]})
        for d in data["device"]
        if "rates" in d
    }
    return {d["name"]: own[d.get("rates_of", d["name"])] for d in data["device"]}
