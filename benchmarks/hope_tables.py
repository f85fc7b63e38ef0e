"""Common parts of HOPE's tables, simulated or measured: models, planners, the paper's figures.

A row is one planner with one model on one machine. ``rounds_s`` has its seconds by round at 30
requests a second, ``loop_rounds_s`` in a loop. A simulated row has one figure in ``rounds_s``. Both
are None if the planner does not exist or refuses; ``skipped`` then has the reason.
"""

import inspect
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from common import source
from lstm_cells import lstm_cells

from coexec.errors import CoexecError
from coexec.graph.graph import Graph
from coexec.planners import PLANNERS
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import REQUESTS, ratio

__all__ = [
    "AUTO", "LSTM", "MODELS", "PAPER_BIG_LITTLE", "PLANNED", "Row", "Tables", "all_tried",
    "beside_the_paper", "by_requests", "explained", "graph_of", "head", "in_ms", "limited",
    "normalised", "saved_by_hope", "source_of", "tried",
]  # fmt: skip

Row = dict[str, Any]
Tables = Iterator[tuple[str, Sequence[Row]]]
"""Pairs of a title and rows."""

LSTM = "lstm"
MODELS = (
    "inception_v3",
    "inception_v4",
    "pnasnet_mobile",
    "pnasnet_large",
    "nasnet_large",
    "squeezenet",
    LSTM,
)
PLANNED = ("mosaic", "dmdar", "heft", "hope_greedy", "hope_ilp", "anneal", "cpsat")
"""The paper's planners in its order, with heft, annealing, and cpsat (the whole graph with a bound)
added."""
AUTO = "auto"

PAPER: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("hope_ilp", "mosaic"): (23.4, 24.1, 2.9, 29.4, 31.1, 21.3, 23.3),
    ("hope_ilp", "dmdar"): (13.7, 9.1, 2.9, 17.9, 18.0, 10.0, 0.0),
    ("hope_greedy", "dmdar"): (8.2, 3.2, 0.5, 12.9, 11.7, 0.0, 0.0),
}
"""Percent that the first is faster than the second, by model, mean of the phones."""
PAPER_MEAN = {("hope_ilp", "mosaic"): 22.0, ("hope_ilp", "dmdar"): 10.2}
"""Means that the paper states."""
PAPER_BIG_LITTLE = {("hope_ilp", "dmdar"): (15.7, 2.2, 2.6, 9.8, 8.3, 3.2, 0.0)}


def source_of(model: str) -> Any:
    """A file, a model of the zoo, or the paper's LSTM with its gates written out."""
    return _lstm() if model == LSTM else source(model)


@cache
def _lstm() -> bytes:
    return lstm_cells().SerializeToString()


@cache
def graph_of(model: str) -> Graph:
    return PlanningContext(source_of(model)).user_model.published_graph


def head(platform: str, model: str, planner: str) -> Row:
    """A row without results."""
    nothing = dict.fromkeys(
        ("rounds_s", "loop_rounds_s", "status", "bound_s", "planning_s", "simulated_s")
    )
    return {"platform": platform, "model": model, "planner": planner} | nothing | {"skipped": ""}


def by_requests(found: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Measured rows twice, each time with a title: with ``rounds_s`` unchanged, and with the times
    of the loop as ``rounds_s``."""
    yield REQUESTS["paced"], [*found]
    yield REQUESTS["loop"], [row | {"rounds_s": row["loop_rounds_s"]} for row in found]


def limited(planner: str, limit_s: float | None) -> dict[str, float]:
    """The option for a time limit of ``limit_s``; empty if the planner has no such option."""
    option_names = inspect.signature(PLANNERS[planner]).parameters if planner in PLANNERS else ()
    return {"time_limit_s": limit_s} if limit_s and "time_limit_s" in option_names else {}


def tried(row: Row, fill: Callable[[], Row]) -> Row:
    """``row`` with the results of ``fill``, or with the reason why there are none."""
    try:
        return row | fill()
    except CoexecError as error:
        return row | {"skipped": f"{row['planner']}: {error}"}


def all_tried(row: Row, where: str, compare: Callable[[], list[Row]]) -> list[Row]:
    """The rows of ``compare``, or ``row`` with the reason why there are none."""
    try:
        return compare()
    except CoexecError as error:
        return [row | {"skipped": f"{where}: {error}"}]


def explained(title: str, found: Sequence[Row], as_json: bool) -> Tables:
    """With JSON output, all rows. The reasons of missing results are always printed."""
    if as_json:
        yield title, found
    for reason in reasons(found):
        print(reason, file=sys.stderr)


def reasons(found: Iterable[Row]) -> list[str]:
    """Reasons why results are missing or could be better; each reason once."""
    skipped = {f"left out: {row['skipped']}" for row in found if row["skipped"]}
    hurried = {
        f"{row['planner']} with {row['model']} on {row['platform']} was stopped by its time limit: "
        f"another run may find another plan, a higher --time-limit a better one"
        for row in found
        if row["status"] == "time limit"
    }
    return sorted(skipped | hurried)


def _reductions(found: Sequence[Row], better: str, worse: str) -> dict[str, float]:
    """Percent that ``better`` saves of ``worse``'s latency, by model, mean of the platforms."""
    rounds_s = {(r["model"], r["platform"], r["planner"]): r["rounds_s"] for r in found}
    saved: dict[str, list[float]] = {}
    for (model, platform, planner), new_s in rounds_s.items():
        old_s = rounds_s.get((model, platform, worse))
        if planner == better and new_s and old_s:
            saved.setdefault(model, []).append(100 * (1 - ratio(new_s, old_s)))
    return {model: statistics.mean(values) for model, values in saved.items()}


def beside_the_paper(
    found: Sequence[Row], figures: Mapping[tuple[str, str], Sequence[float]] = PAPER
) -> list[Row]:
    """Percent saved, by coexec and in the paper, by model and in the mean of the models."""
    table: dict[str, Row] = {}
    for (better, worse), percents in figures.items():
        savings, paper = _reductions(found, better, worse), dict(zip(MODELS, percents, strict=True))
        if not savings:
            continue
        for model, percent in savings.items():
            cells = table.setdefault(model, {"model": model})
            cells[f"{better} against {worse}"] = _pair(percent, paper.get(model))
        mean = statistics.mean(percents)
        stated = PAPER_MEAN.get((better, worse), mean) if figures is PAPER else mean
        cells = table.setdefault("mean", {"model": "mean"})
        cells[f"{better} against {worse}"] = _pair(
            statistics.mean(savings.values()), stated if savings.keys() >= {*MODELS} else None
        )
    return sorted(table.values(), key=lambda row: row["model"] == "mean")


def saved_by_hope(found: Sequence[Row], paper: Sequence[float | None]) -> Row:
    """Percent that HOPE's planners save of mosaic's and of dmdar's latency, mean of the models.

    The figures in ``paper`` for its ILP are added if the rows have all of its models.
    """
    cells: Row = {}
    for better in ("hope_ilp", "hope_greedy"):
        for worse, percent in zip(("mosaic", "dmdar"), paper, strict=True):
            if saved := _reductions(found, better, worse).values():
                paper_percent = (
                    percent if better == "hope_ilp" and len(saved) == len(MODELS) else None
                )
                cells[f"{better} against {worse}"] = _pair(statistics.mean(saved), paper_percent)
    return cells


def _pair(ours: float, paper: float | None) -> str:
    return f"{ours:.1f}" if paper is None else f"{ours:.1f} / {paper:.1f}"


def in_ms(found: Iterable[Row]) -> list[Row]:
    """A row for each platform and model: milliseconds by planner, and the lower bound for plans."""
    table: dict[tuple[str, str], Row] = {}
    bounds_s: dict[tuple[str, str], float] = {}
    for row in found:
        key = row["platform"], row["model"]
        cells = table.setdefault(key, {"platform": key[0], "model": key[1]})
        cells[row["planner"]] = _cell(row["rounds_s"], 1e3, 1)
        bounds_s[key] = max(bounds_s.get(key, 0.0), row["bound_s"] or 0.0)
    return [cells | {"bound": f"{bounds_s[key] * 1e3:.1f}"} for key, cells in table.items()]


def normalised(found: Iterable[Row], unit: Callable[[str], str]) -> list[Row]:
    """Latencies by planner over the latency of ``unit(platform)``, as in the paper's Fig. 4."""
    found = [row for row in found if row["rounds_s"]]
    unit_s = {
        (r["platform"], r["model"]): statistics.median(r["rounds_s"])
        for r in found
        if r["planner"] == unit(r["platform"])
    }
    table: dict[tuple[str, str], Row] = {}
    for row in found:
        key = row["platform"], row["model"]
        if key in unit_s:
            cells = table.setdefault(key, {"platform": key[0], "model": key[1]})
            cells[row["planner"]] = _cell(row["rounds_s"], 1 / unit_s[key], 2)
    return [*table.values()]


def _cell(rounds_s: Sequence[float] | None, scale: float, digits: int) -> str:
    return f"{statistics.median(rounds_s) * scale:.{digits}f}" if rounds_s else "-"
