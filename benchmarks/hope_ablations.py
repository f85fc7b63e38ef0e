"""Gain of each of HOPE's ideas on the simulated phones; of tensor caching also on this machine.

Tensor caching, merging of short operators, K of the greedy search, the size of the parts that the
ILP solves, and the weight of transfers in dmdar, each changed alone; also the results if tensors
moved faster than published.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from contest import Contest, accuracy
from hope_here import Pair, pairs
from hope_phones import Plans, simulated_s
from hope_tables import Row, Tables, all_tried, by_requests, graph_of, head, in_ms, source_of

from coexec.graph.graph import Graph
from coexec.plan.plan import Plan
from coexec.research.platforms import Platform, load
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

MERGE_BELOW_S = (0.0, 0.5e-3, 1e-3, 2e-3, 4e-3)
"""Moving a tensor to the other processor takes 0.2 to 2 ms; a launch on a GPU takes no less."""
TOP_K = (1, 2, 3, 4)
PART_TASKS = (4, 8, 12, 16)
"""The paper uses 12."""
CACHED = ("dmdar", "hope_greedy", "hope_ilp")
BETAS = (1.0, 2.0, 4.0)
"""StarPU's default is 1."""
Variants = Iterator[tuple[str, float]]
TRANSFER_SHARES = (1.0, 0.25, 0.0)


def tables(plans: Plans, models: Sequence[str], platforms: Sequence[str]) -> Tables:
    """A row for each model and platform, with a figure for each variant; all simulated."""
    by_title = {
        "ms with tensors moved once, or anew for each reader": _caching,
        "ms of hope_greedy, operators merged that are shorter": _merging,
        "ms of hope_greedy by K": _top_k,
        "ms of hope_ilp by NT": _parts,
        "ms of dmdar by the weight of moving data": _beta,
        "% saved of mosaic, and at most, by share of the published transfer times": _transfers,
    }
    for title, variants in by_title.items():
        yield f"{title}; simulated", [*_rows(plans, models, platforms, variants)]


def _rows(
    plans: Plans,
    models: Sequence[str],
    platforms: Sequence[str],
    variants: Callable[[Plans, Graph, Platform], Variants],
) -> Iterator[Row]:
    for model in models:
        for name in platforms:
            cells = {label: f"{x:.1f}" for label, x in variants(plans, graph_of(model), load(name))}
            yield {"model": model, "platform": name, **cells}


def _ms(plan: Plan, graph: Graph, phone: Platform, *, caching: bool = True) -> float:
    return 1e3 * simulated_s(plan, graph, phone, caching=caching)


def caching_here(models: Sequence[str], options: Any) -> Iterator[list[Row]]:
    """The rows of each model on CPU and GPU, for plans with and without tensor caching."""
    for platform, names in pairs(["cpp"]).items():
        for model in models:
            compare = partial(_compare, platform, names, model, options)
            yield all_tried(head(platform, model, "-"), platform, compare)


def _compare(platform: str, names: Pair, model: str, options: Any) -> list[Row]:
    work = PlanningContext(source_of(model), Settings(devices=names, cache=options.cache))
    with Contest(platform, model, work, limit_s=options.time_limit) as contest:
        for planner in CACHED:
            contest.planned(planner)
            contest.planned(f"{planner}, anew", planner, caching=False)
        return contest.timed(options.rounds)


def tables_here(found: Sequence[Row]) -> Tables:
    for requests, rows in by_requests(found):
        yield f"ms with tensors moved once, or anew for each reader; {requests}", in_ms(rows)
    yield "simulated / measured in a loop", accuracy(found)


def _caching(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    for planner in CACHED:
        plan = plans.make(planner, graph, phone)[0]
        yield planner, _ms(plan, graph, phone)
        yield f"{planner}, anew", _ms(plan, graph, phone, caching=False)


def _merging(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    for below_s in MERGE_BELOW_S:
        plan = plans.make("hope_greedy", graph, phone, merge_below_s=below_s)[0]
        label = f"than {below_s * 1e3:.1f} ms" if below_s else "never"
        yield label, _ms(plan, graph, phone)


def _top_k(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    for k in TOP_K:
        plan = plans.make("hope_greedy", graph, phone, top_k=k)[0]
        yield f"K={k}", _ms(plan, graph, phone)


def _parts(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    for count in PART_TASKS:
        plan = plans.make("hope_ilp", graph, phone, part_tasks=count)[0]
        yield f"NT={count}", _ms(plan, graph, phone)


def _beta(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    for beta in BETAS:
        plan = plans.make("dmdar", graph, phone, beta=beta)[0]
        yield f"beta={beta:g}", _ms(plan, graph, phone)


def _transfers(plans: Plans, graph: Graph, phone: Platform) -> Variants:
    """The share of mosaic's latency that planners save, and the largest share that the lower bound
    allows."""
    for share in TRANSFER_SHARES:
        faster = _moving_in(phone, share)
        mosaic = plans.make("mosaic", graph, faster)[0]
        mosaic_s = simulated_s(mosaic, graph, faster)
        for planner in ("hope_greedy", "hope_ilp"):
            plan = plans.make(planner, graph, faster)[0]
            saved_s = mosaic_s - simulated_s(plan, graph, faster)
            yield f"{planner} x{share:g}", 100 * saved_s / mosaic_s
        bound_s = mosaic.provenance.bound_s or 0.0
        yield f"at most x{share:g}", 100 * (1 - bound_s / mosaic_s)


def _moving_in(phone: Platform, share: float) -> Platform:
    """The same phone with transfers that take ``share`` of their time."""
    links = tuple(
        replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / share if share else math.inf)
        for x in phone.system.links
    )
    setups_s = {ends: s * share for ends, s in phone.cost.setups_s.items()}
    system, cost = replace(phone.system, links=links), replace(phone.cost, setups_s=setups_s)
    return replace(phone, system=system, cost=cost)
