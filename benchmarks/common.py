"""What the benchmarks share: rivals in turns, medians, pairwise ratios, a table or JSON."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from coexec.engines.detect import usable_cores

__all__ = ["arguments", "in_turns", "ratio", "show", "source", "two_cores"]

REST_S = 0.03
"""Before each run: the threads of a rival that spins for work leave the cores to the next."""


def arguments(about: str, models: Sequence[str], rounds: int = 30) -> argparse.Namespace:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(models), help="files or zoo names")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each rival")
    parser.add_argument("--cache", default=None, help="folder for profiles and plans")
    parser.add_argument("--fresh", action="store_true", help="profile and plan anew")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def source(name: str) -> str:
    """A file as it is, anything else as a model of the zoo."""
    return name if "/" in name or name.endswith(".onnx") else f"zoo:{name}"


def two_cores() -> list[str]:
    """Two one-core clusters; ends the program where the machine has no two cores."""
    cores = usable_cores()
    if len(cores) < 2:
        sys.exit(f"this benchmark needs two cores, this process may use {len(cores)}")
    return [f"cpu:{core}" for core in cores[:2]]


def in_turns(
    rivals: Mapping[str, Callable[[], Any]], rounds: int, rest_s: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each rival, ``rounds`` times, one after the other: noise meets all alike.

    Each turn is two runs, of which the second is timed: weights are in the caches then, and PoCL,
    which keeps 128 kernels, has loaded those of this rival. The order turns with each round.
    """
    names = list(rivals)
    for name in names:
        for _ in range(3):
            rivals[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            time.sleep(rest_s)
            rivals[name]()
            start_s = time.perf_counter()
            rivals[name]()
            times[name].append(time.perf_counter() - start_s)
    return times


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median of a / b over the rounds: a disturbance that lasts a round drops out."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def show(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print the rows, numbers called ..._s in milliseconds; as JSON in one line, in seconds."""
    if as_json:
        print(json.dumps({"title": title, "rows": rows}), flush=True)
        return
    keys = list(dict.fromkeys(key for row in rows for key in row))
    columns = (f"{key.removesuffix('_s')}, ms" if key.endswith("_s") else key for key in keys)
    table = Table(*columns, title=title, box=None)
    for row in rows:
        table.add_row(*(_cell(key, row.get(key, "")) for key in keys))
    Console(width=150).print(table)


def _cell(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{1e3 * value:.2f}" if key.endswith("_s") else f"{value:.3f}"
    return str(value)
