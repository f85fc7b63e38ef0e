"""HOPE's tables on simulated phones: seven models, three phones, every planner; all simulated.

Latencies come from `coexec.platforms`, calibrated on published latencies of single operators on
single processors and never on a scheduler's result, so what planners do with them is a prediction.
Printed beside it: what the paper measured. docs/phones.md says why they differ where they do.

    python benchmarks/hope_phones.py                        # everything
    python benchmarks/hope_phones.py inception_v3 squeezenet --planners mosaic,hope_ilp --json
"""

import argparse
import inspect
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from common import show, source
from lstm_cells import lstm_cells

from coexec.derive import derive
from coexec.errors import CoexecError
from coexec.ir.graph import Graph
from coexec.pipeline import Pipeline
from coexec.plan import Plan, verify_plan
from coexec.planners import PLANNERS
from coexec.platforms import NAMES, Platform, load
from coexec.simulate import simulate

Row = dict[str, Any]

MODELS = ("inception_v3", "inception_v4", "pnasnet_mobile", "pnasnet_large", "nasnet_large",
          "squeezenet", "lstm")  # fmt: skip
PHONES = ("snapdragon_625", "snapdragon_712", "kirin_990")
PLANNED = tuple(name for name in ("mosaic", "dmdar", "heft", "hope_greedy", "hope_ilp", "cpsat"))
"""In the paper's order, and what it did not have: heft, and the whole graph with a bound."""

PAPER: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("hope_ilp", "mosaic"): (23.4, 24.1, 2.9, 29.4, 31.1, 21.3, 23.3),
    ("hope_ilp", "dmdar"): (13.7, 9.1, 2.9, 17.9, 18.0, 10.0, 0.0),
    ("hope_greedy", "dmdar"): (8.2, 3.2, 0.5, 12.9, 11.7, 0.0, 0.0),
}
"""Percent that the first is faster than the second, by model, mean of the phones."""
PAPER_MEAN = {("hope_ilp", "mosaic"): 22.0, ("hope_ilp", "dmdar"): 10.2}
PAPER_BIG_LITTLE = (15.7, 2.2, 2.6, 9.8, 8.3, 3.2, 0.0)
"""hope_ilp against dmdar on two big and four little cores of the Kirin 990."""
PAPER_CLOCKS = {652.8e6: (19.2, 10.8), 1689.6e6: (17.5, 9.3), 2016.0e6: (22.1, 10.3)}
"""By CPU clock of the Snapdragon 625: mean against mosaic, against dmdar."""
SLOW_LIMIT_S = 20.0
"""For planners that would go on longer."""


def rows(
    models: Sequence[str] = MODELS,
    platforms: Sequence[str] = PHONES,
    planners: Sequence[str] = PLANNED,
) -> list[Row]:
    """A row for each planner, platform and model, one for each of their processors alone.

    ``latency_s`` is simulated; ``to_gpu`` is normalised as in the paper's Fig. 4. A planner that
    is not there, or refuses, has no latency and says why in ``skipped``.
    """
    return [
        row
        for name in platforms
        for model in models
        for row in _compare(graph_of(model), load(name), planners, model)
    ]


def _compare(graph: Graph, phone: Platform, planners: Sequence[str], model: str) -> list[Row]:
    head = {"platform": phone.name, "model": model}
    alone = [
        head | {"planner": device, **_run("single", graph, phone, device=device)}
        for device in phone.system.names
    ]
    found = alone + [head | {"planner": name, **_run(name, graph, phone)} for name in planners]
    unit_s = next((r["latency_s"] for r in alone if r["planner"] == "gpu:0"), None)
    for row in found:
        known = row["latency_s"] is not None and unit_s is not None
        row["to_gpu"] = row["latency_s"] / unit_s if known else None
    return found


def _run(planner: str, graph: Graph, phone: Platform, **options: Any) -> Row:
    """One planner's latency, the best bound that it knows, and how long it thought."""
    nothing = {"latency_s": None, "bound_s": None, "planning_s": None}
    start_s = time.perf_counter()
    try:
        plan = make(planner, graph, phone, **options)
    except (KeyError, CoexecError) as error:
        return nothing | {"skipped": f"{planner}: {_reason(error)}"}
    took_s = time.perf_counter() - start_s
    latency_s = simulated_s(plan, graph, phone)
    bound_s = plan.provenance.bound_s
    return {"latency_s": latency_s, "bound_s": bound_s, "planning_s": took_s, "skipped": ""}


def make(planner: str, graph: Graph, phone: Platform, **options: Any) -> Plan:
    """A verified plan; planners that search until they are stopped get a limit."""
    known = inspect.signature(PLANNERS[planner]).parameters
    if "time_limit_s" in known and planner == "cpsat":
        options.setdefault("time_limit_s", SLOW_LIMIT_S)
    plan = PLANNERS[planner](graph, phone.cost, phone.system, **options)
    verify_plan(plan, graph, phone.system)
    return plan


def simulated_s(plan: Plan, graph: Graph, phone: Platform, *, caching: bool = True) -> float:
    """The makespan; without ``caching`` a tensor is moved anew for each segment that reads it."""
    schedule = derive(plan, graph, tensor_caching=caching)
    return simulate(schedule, phone.cost, phone.system).makespan_s


def _reason(error: Exception) -> str:
    return "not registered" if isinstance(error, KeyError) else str(error)


@cache
def graph_of(model: str) -> Graph:
    """The graph of a zoo model or a file; the paper's LSTM with its gates written out."""
    return lstm_cells() if model == "lstm" else Pipeline(source(model)).model.graph


def reductions(found: Iterable[Row], better: str, worse: str) -> dict[str, float]:
    """Percent that ``better`` saves of ``worse``'s latency, by model, mean of the platforms."""
    latency_s = {(r["model"], r["platform"], r["planner"]): r["latency_s"] for r in found}
    saved: dict[str, list[float]] = {}
    for (model, platform, planner), new_s in latency_s.items():
        old_s = latency_s.get((model, platform, worse))
        if planner == better and new_s is not None and old_s is not None:
            saved.setdefault(model, []).append(100 * (1 - new_s / old_s))
    return {model: statistics.mean(values) for model, values in saved.items()}


def by_model(found: Iterable[Row]) -> list[Row]:
    """A row for each platform and model: milliseconds by planner, and what no plan can beat."""
    table: dict[tuple[str, str], Row] = {}
    bounds_s: dict[tuple[str, str], float] = {}
    for row in found:
        key = row["platform"], row["model"]
        cells = table.setdefault(key, {"platform": key[0], "model": key[1]})
        if row["latency_s"] is not None:
            device, alone, _ = row["planner"].partition(":")
            cells[device.upper() if alone else device] = f"{row['latency_s'] * 1e3:.1f}"
            bounds_s[key] = max(bounds_s.get(key, 0.0), row["bound_s"] or 0.0)
    return [cells | {"bound": f"{bounds_s[key] * 1e3:.1f}"} for key, cells in table.items()]


def beside_the_paper(found: Sequence[Row]) -> list[Row]:
    """The percentages of ours and of the paper, by model and in the mean."""
    table: dict[str, Row] = {}
    for (better, worse), percents in PAPER.items():
        ours, paper = reductions(found, better, worse), dict(zip(MODELS, percents, strict=True))
        if not ours:
            continue
        known = {model: paper[model] for model in ours if model in paper}
        mean = PAPER_MEAN.get((better, worse), statistics.mean(percents))
        ours["mean"], known["mean"] = statistics.mean(ours.values()), mean
        for model, percent in ours.items():
            cells = table.setdefault(model, {"model": model})
            cells[f"{better} against {worse}"] = _pair(percent, known.get(model))
    return sorted(table.values(), key=lambda row: row["model"] == "mean")


def big_little(models: Sequence[str]) -> list[Row]:
    """Two big and four little cores of the Kirin 990, no GPU."""
    phone = load("kirin_990", ["cpu:6-7", "cpu:0-3"])
    names = ("dmdar", "hope_greedy", "hope_ilp")
    found = [row for m in models for row in _compare(graph_of(m), phone, names, m)]
    paper = dict(zip(MODELS, PAPER_BIG_LITTLE, strict=True))
    ours = reductions(found, "hope_ilp", "dmdar")
    return [
        {"model": m, "hope_ilp against dmdar": _pair(percent, paper.get(m))}
        for m, percent in ours.items()
    ]


def clocks(models: Sequence[str]) -> list[Row]:
    """The Snapdragon 625 with its CPU at the lowest, middle and highest clock; mean of models."""
    table = []
    for hertz, paper in PAPER_CLOCKS.items():
        phone = load("snapdragon_625", clocks_hz={"cpu:0-3": hertz})
        found = [
            row
            for m in models
            for row in _compare(graph_of(m), phone, ("mosaic", "dmdar", "hope_ilp"), m)
        ]
        cells = {"CPU clock": f"{hertz / 1e6:.0f} MHz"}
        for worse, percent in zip(("mosaic", "dmdar"), paper, strict=True):
            if saved := reductions(found, "hope_ilp", worse).values():
                cells[f"hope_ilp against {worse}"] = _pair(statistics.mean(saved), percent)
        table.append(cells)
    return table if len(table[0]) > 1 else []


def _pair(ours: float, paper: float | None) -> str:
    return f"{ours:.1f}" if paper is None else f"{ours:.1f} / {paper:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--phones", default=",".join(PHONES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--planners", default=",".join(PLANNED))
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    found = rows(args.models, args.phones.split(","), args.planners.split(","))
    for reason in sorted({r["skipped"] for r in found} - {""}):
        print(f"skipped: {reason}")
    show("simulated phones, ms", found if args.json else by_model(found), args.json)
    for title, table in (
        ("latency saved, %: simulated / as the paper measured it", beside_the_paper(found)),
        ("the same on two big and four little cores of kirin_990", big_little(args.models)),
        ("the same by CPU clock of snapdragon_625", clocks(args.models)),
    ):
        if table:
            show(title, table, args.json)


if __name__ == "__main__":
    main()
