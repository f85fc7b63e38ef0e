"""What each of HOPE's ideas is worth on the simulated phones; all simulated.

Tensor caching, merging of short operators, K of the greedy search and the size of the parts that
the ILP solves, each changed alone; and what would change if tensors moved faster than published.

    python benchmarks/hope_ablations.py inception_v3 squeezenet --phones kirin_990
"""

import argparse
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from common import show
from hope_phones import MODELS, PHONES, Row, graph_of, make, simulated_s

from coexec.ir.graph import Graph
from coexec.planners import PLANNERS
from coexec.platforms import Platform, load

MERGE_BELOW_S = (0.0, 0.5e-3, 1e-3, 2e-3, 4e-3)
"""Handing a tensor to the other processor takes 0.2 to 2 ms; a GPU starts nothing in less."""
TOP_K = (1, 2, 3, 4)
PART_TASKS = (4, 8, 12, 16)
"""The paper takes 12."""
PART_OPTION = "part_tasks"
TRANSFER_SHARES = (1.0, 0.5, 0.25, 0.0)


def ablations(models: Sequence[str], platforms: Sequence[str]) -> dict[str, list[Row]]:
    """By title, a row for each model and platform: milliseconds by variant."""
    return {
        "tensors moved once, or anew for each reader": [*_rows(models, platforms, _caching)],
        "hope_greedy: operators merged that are shorter": [*_rows(models, platforms, _merging)],
        "hope_greedy: K": [*_rows(models, platforms, _top_k)],
        "hope_ilp: NT": [*_rows(models, platforms, _parts)],
        "tensors that move in this share of the published time": [
            *_rows(models, platforms, _transfers)
        ],
    }


def _rows(models: Sequence[str], platforms: Sequence[str], variants: Any) -> Iterator[Row]:
    for model in models:
        for name in platforms:
            found = {label: f"{s * 1e3:.1f}" for label, s in variants(graph_of(model), load(name))}
            if found:
                yield {"model": model, "platform": name, **found}


Variants = Iterator[tuple[str, float]]


def _caching(graph: Graph, phone: Platform) -> Variants:
    for planner in ("dmdar", "hope_greedy", "hope_ilp"):
        if planner in PLANNERS:
            plan = make(planner, graph, phone)
            yield f"{planner}, once", simulated_s(plan, graph, phone)
            yield f"{planner}, anew", simulated_s(plan, graph, phone, caching=False)


def _merging(graph: Graph, phone: Platform) -> Variants:
    for below_s in MERGE_BELOW_S:
        plan = make("hope_greedy", graph, phone, merge_below_s=below_s)
        label = f"than {below_s * 1e3:.1f} ms" if below_s else "never"
        yield label, simulated_s(plan, graph, phone)


def _top_k(graph: Graph, phone: Platform) -> Variants:
    for k in TOP_K:
        plan = make("hope_greedy", graph, phone, top_k=k)
        yield f"K={k}", simulated_s(plan, graph, phone)


def _parts(graph: Graph, phone: Platform) -> Variants:
    if "hope_ilp" not in PLANNERS:
        return
    known = inspect.signature(PLANNERS["hope_ilp"]).parameters
    if PART_OPTION not in known:
        return
    for count in PART_TASKS:
        plan = make("hope_ilp", graph, phone, **{PART_OPTION: count})
        yield f"NT={count}", simulated_s(plan, graph, phone)


def _transfers(graph: Graph, phone: Platform) -> Variants:
    for share in TRANSFER_SHARES:
        faster = _moving_in(phone, share)
        for planner in ("mosaic", "hope_ilp"):
            if planner in PLANNERS:
                plan = make(planner, graph, faster)
                yield f"{planner} x{share:g}", simulated_s(plan, graph, faster)


def _moving_in(phone: Platform, share: float) -> Platform:
    """The same phone with transfers that take ``share`` of their time."""
    links = tuple(
        replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / share if share else math.inf)
        for x in phone.system.links
    )
    setups_s = {ends: s * share for ends, s in phone.cost.setups_s.items()}
    system, cost = replace(phone.system, links=links), replace(phone.cost, setups_s=setups_s)
    return replace(phone, system=system, cost=cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--phones", default=",".join(PHONES))
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    for title, table in ablations(args.models, args.phones.split(",")).items():
        if table:
            show(f"{title} (ms, simulated)", table, args.json)


if __name__ == "__main__":
    main()
