"""Common parts of the benchmarks: options, races of rivals, output as a table or JSON."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coexec.engines.detect import usable_cores
from coexec.hardware.hardware import System
from coexec.profiling.processors import STOLEN
from coexec.research.zoo import MODELS as ZOO
from coexec.selection.decision import Requests
from coexec.selection.race import PACING, REQUESTS, Outcome, race
from coexec.timing.energy import device_energy_j
from coexec.timing.trace import Trace

__all__ = [
    "a_count",
    "a_model",
    "arguments",
    "by_figure",
    "energy_of",
    "in_turns",
    "show",
    "some_of",
    "source",
    "tell_disturbances",
    "two_cores",
]


_REPEATS = 2
"""Limit of rounds that are repeated because other guests of the host took processor time, as a
multiple of the number of rounds."""


def arguments(about: str, models: Sequence[str], rounds: int = 30) -> argparse.Namespace:
    """The command line of a benchmark, with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(models), help="files or zoo names")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each")
    parser.add_argument("--cache", default=None, help="folder for profiles and plans")
    parser.add_argument("--fresh", action="store_true", help="profile and plan anew")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser.parse_args()


def energy_of(trace: Trace, system: System) -> float | None:
    """Joules of all devices together; None if the watts of a device are unknown."""
    joules = device_energy_j(trace, system)
    return None if joules is None else math.fsum(joules.values())


def source(name: str) -> str:
    """The source of a model: a path of a file unchanged, any other name as a model of the zoo."""
    return name if "/" in name or name.endswith(".onnx") else f"zoo:{name}"


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """The type of an option whose value is a list of known names, separated by commas."""

    def names(text: str) -> list[str]:
        chosen = list(dict.fromkeys(text.split(",")))
        if unknown := [name for name in chosen if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(map(repr, unknown))}: there are only {', '.join(known)}"
            )
        return chosen

    return names


def a_model(text: str) -> str:
    """The type of an option whose value is a model of the zoo or a file."""
    if text not in ZOO and not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file and none of {', '.join(ZOO)}")
    return text


def a_count(text: str) -> int:
    """The type of an option whose value is a number of rounds."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds; give 1 or more")
    return int(text)


def two_cores() -> list[str]:
    """Two devices of one core each; ends the program if the machine has fewer than two cores."""
    cores = usable_cores()
    if len(cores) < 2:
        sys.exit(f"this benchmark needs two cores, this process may use {len(cores)}")
    return [f"cpu:{core}" for core in cores[:2]]


def in_turns(
    rivals: Mapping[str, Callable[[], Any]],
    rounds: int,
    figures: Sequence[Requests] = tuple(REQUESTS),
) -> Outcome[str]:
    """Warm up the rivals, and race them in this process.

    Args:
        figures: the kinds of requests that are measured.

    Raises:
        CoexecError: a rival failed.
    """
    for run in rivals.values():
        for _ in range(3):
            run()
    left_out = {figure: 0 for figure in REQUESTS if figure not in figures}
    pacing = replace(PACING, **left_out)
    outcome = race(rivals, (rounds, rounds), repeats=_REPEATS * rounds, pacing=pacing).complete()
    tell_disturbances(outcome)
    return outcome


def tell_disturbances(outcome: Outcome[Any]) -> None:
    """Print to standard error the disturbances that make the figures of a race doubtful."""
    if outcome.disturbed:
        print(f"{outcome.disturbed} turns began while other threads were busy", file=sys.stderr)
    if outcome.repeated:
        print(
            f"{outcome.repeated} rounds were run again, as other guests of this machine's host "
            f"took processors' time in them",
            file=sys.stderr,
        )
    if outcome.stolen > STOLEN:
        print(
            f"other guests of this machine's host took {outcome.stolen:.0%} of its processors' "
            f"time: plans on several devices wait for each of them, so figures are worse than on "
            f"a machine of one's own",
            file=sys.stderr,
        )


def by_figure(
    outcome: Outcome[str], ratios: Mapping[str, tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """A row for each kind of request: medians of all rivals, and the named ratios of two rivals."""
    for figure, words in REQUESTS.items():
        if any(outcome.rounds_s(name, figure) for name in outcome.laps):
            medians = {f"{name}_s": outcome.median_s(name, figure) for name in outcome.laps}
            compared = {title: outcome.ratio(a, b, figure) for title, (a, b) in ratios.items()}
            yield {"requests": words} | medians | compared


def show(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print the rows as a table, in which columns named ..._s are in milliseconds; or as one line
    of JSON, in which they are in seconds."""
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
        return (
            f"{1e3 * value:.2f}"
            if key.endswith("_s")
            else f"{value:.{3 if abs(value) < 100 else 0}f}"
        )
    return escape(str(value))
