"""HOPE's tables on simulated phones: seven models, three phones, every planner; all simulated.

Latencies come from `coexec.research.platforms`, calibrated on published latencies of single
operators on single processors and never on a scheduler's result, so the planners' results are
predictions. docs/phones.md lists the differences to the paper's measurements and their causes."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from hope_tables import (
    AUTO,
    MODELS,
    PAPER_BIG_LITTLE,
    PLANNED,
    Row,
    Tables,
    beside_the_paper,
    graph_of,
    head,
    in_ms,
    limited,
    normalised,
    saved_by_hope,
    tried,
)

from coexec.graph.graph import Graph, Task
from coexec.graph.width import critical_path
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.research.platforms import Platform, load
from coexec.selection.planning_context import make_plan
from coexec.timing.simulate import simulate

PHONES = ("snapdragon_625", "snapdragon_712", "kirin_990")
PAPER_CLOCKS = {652.8e6: (19.2, 10.8), 1689.6e6: (17.5, 9.3), 2016.0e6: (22.1, 10.3)}
"""Percent saved of mosaic's and of dmdar's latency, by CPU clock of the Snapdragon 625."""


class Plans:
    """Cache of plans, because several tables need the same ones."""

    def __init__(self, limit_s: float | None = None) -> None:
        """
        Args:
            limit_s: time limit for planners with such an option; by default their own limit.
        """
        self._limit_s = limit_s
        self._known: dict[str, tuple[Plan, float]] = {}

    def make(
        self, planner: str, graph: Graph, phone: Platform, **options: Any
    ) -> tuple[Plan, float]:
        """A plan, and the seconds of planning."""
        all_options = options | limited(planner, self._limit_s)
        key = repr(
            (planner, graph.fingerprint, phone.system, phone.cost, sorted(all_options.items()))
        )
        if key not in self._known:
            start_s = time.perf_counter()
            plan = make_plan(planner, all_options, graph, phone.cost, phone.system)
            self._known[key] = plan, time.perf_counter() - start_s
        return self._known[key]


def rows(
    plans: Plans,
    models: Sequence[str] = MODELS,
    phones: Sequence[str] = PHONES,
    planners: Sequence[str] = PLANNED,
) -> Iterator[list[Row]]:
    """For each phone and model, a row for each planner and each single processor."""
    for name in phones:
        for model in models:
            yield _compare(plans, model, load(name), planners)


def _compare(plans: Plans, model: str, phone: Platform, planners: Sequence[str]) -> list[Row]:
    graph = graph_of(model)
    results = []
    for label, device in _labels(phone).items():
        row = head(phone.name, model, label)
        results.append(tried(row, partial(_run, plans, "single", graph, phone, device=device)))
    for name in planners:
        row = head(phone.name, model, name)
        if name == AUTO:
            results.append(
                row | {"skipped": "auto: it runs what it chooses from, phones are only simulated"}
            )
        else:
            results.append(tried(row, partial(_run, plans, name, graph, phone)))
    return results


def _labels(phone: Platform) -> dict[str, str]:
    """Names of processors in tables: "CPU" and "GPU" where this is unambiguous, because the numbers
    of the cores differ between phones."""
    kinds = [name.partition(":")[0].upper() for name in phone.system.names]
    clear = len(set(kinds)) == len(kinds)
    return dict(zip(kinds if clear else phone.system.names, phone.system.names, strict=True))


def _run(plans: Plans, planner: str, graph: Graph, phone: Platform, **options: Any) -> Row:
    plan, took_s = plans.make(planner, graph, phone, **options)
    latency_s = simulated_s(plan, graph, phone)
    made = {"status": plan.provenance.status, "bound_s": plan.provenance.bound_s}
    return {"rounds_s": [latency_s], "simulated_s": latency_s, "planning_s": took_s, **made}


def simulated_s(plan: Plan, graph: Graph, phone: Platform, *, caching: bool = True) -> float:
    """The makespan; without ``caching``, a tensor is moved again for each segment that reads it."""
    schedule = derive(plan, graph, tensor_caching=caching)
    return simulate(schedule, phone.cost, phone.system).makespan_s


def tables(found: Sequence[Row]) -> Tables:
    """The figures of the paper's Fig. 4 and its text, from simulated rows."""
    yield "simulated phones, ms", in_ms(found)
    yield "the same over the GPU's alone", normalised(found, lambda phone: "GPU")
    yield "latency saved, %: simulated / as the paper measured it", beside_the_paper(found)
    yield "what there is to save: % saved by hope_ilp, and by any plan at most", headroom(found)


def headroom(found: Sequence[Row]) -> list[Row]:
    """For each phone and model: the ratio of its processors' times, and the largest saving that the
    lower bound allows."""
    by_case: dict[tuple[str, str], dict[str, Row]] = {}
    for row in found:
        if row["rounds_s"]:
            by_case.setdefault((row["platform"], row["model"]), {})[row["planner"]] = row
    table = []
    for (platform, model), own in by_case.items():
        if not own.keys() & {"mosaic", "dmdar"}:
            continue
        ms = {name: 1e3 * row["rounds_s"][0] for name, row in own.items()}
        bound = max(1e3 * (row["bound_s"] or 0.0) for row in own.values())
        cells = {"platform": platform, "model": model, "GPU / CPU": f"{ms['GPU'] / ms['CPU']:.2f}"}
        cells["longest path, % of all"] = f"{100 * _serial(graph_of(model), load(platform)):.0f}"
        for worse in ("mosaic", "dmdar"):
            if worse in ms:
                if "hope_ilp" in ms:
                    cells[f"of {worse}"] = f"{100 * (1 - ms['hope_ilp'] / ms[worse]):.1f}"
                cells[f"of {worse} at most"] = f"{100 * (1 - bound / ms[worse]):.1f}"
        table.append(cells)
    return table


def _serial(graph: Graph, phone: Platform) -> float:
    """The share of the CPU's time that is on the longest path and cannot run in parallel."""
    cpu = phone.system.places[0]

    def seconds(task: Task) -> float:
        return phone.cost.piece_s(graph, task, graph.output_of(task).whole, cpu)

    return sum(map(seconds, critical_path(graph, seconds))) / sum(map(seconds, graph.tasks))


def big_little(plans: Plans, models: Sequence[str]) -> Tables:
    """Savings on two big and four little cores of the Kirin 990, without GPU."""
    phone = load("kirin_990", ["cpu:6-7", "cpu:0-3"])
    results = [
        row
        for m in models
        for row in _compare(plans, m, phone, ("dmdar", "hope_greedy", "hope_ilp"))
    ]
    title = "latency saved, %, on two big and four little cores of kirin_990: simulated / paper"
    yield title, beside_the_paper(results, PAPER_BIG_LITTLE)


def clocks(plans: Plans, models: Sequence[str]) -> Tables:
    """Savings on the Snapdragon 625 with its CPU at the lowest, middle and highest clock; mean of
    the models."""
    table = []
    for hertz, paper in PAPER_CLOCKS.items():
        phone = load("snapdragon_625", clocks_hz={"cpu:0-3": hertz})
        names = ("mosaic", "dmdar", "hope_greedy", "hope_ilp")
        results = [row for m in models for row in _compare(plans, m, phone, names)]
        table.append({"CPU clock": f"{hertz / 1e6:.0f} MHz"} | saved_by_hope(results, paper))
    yield "latency saved, %, by CPU clock of snapdragon_625: simulated / paper", table
