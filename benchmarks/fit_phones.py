"""Fit the rates of a simulated platform's processors to the latencies of single operators.

Each processor is fitted separately, to the operators in its platform file. The fit minimises the
sum over operators of |log(model / published)|, weighted by the square root of the latency: a long
operator counts more, but the short ones determine the overhead. The program prints the rates in the
form of the platform file, and the errors of the model.

    python benchmarks/fit_phones.py kirin_990

With --quality it prints the errors of the model: for the fitted operators; for operators that were
left out of the fit (each fifth in turn, with rates fitted to the others); for transfers; and for
whole networks on one processor, which were not fitted.

    python benchmarks/fit_phones.py --quality kirin_990
"""

import argparse
import math
import statistics
from dataclasses import fields, replace
from typing import Any

from common import show

from coexec.research.platforms import NAMES, load
from coexec.research.platforms.calibration import (
    Comparison,
    compare_operators,
    compare_transfers,
    described_operator,
)
from coexec.research.platforms.costs import Rates, operator_s
from coexec.research.platforms.files import figure, fitted_rates, read
from coexec.selection.planning_context import PlanningContext

START = Rates(2e10, 2e10, 2e10, 1e10, 1e10, 1e9, 3e9, 3e9, 3e9, 1e9, 1e-4, 100.0)
ROUNDS = 150
SHORTEST_S = 1e-6
"""Lower bound for the overhead of an operator: no published operator takes less."""


FOLDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    phones = [name for name in NAMES if "profiles" in read(name)["sources"]]
    parser.add_argument("platform", choices=phones)
    parser.add_argument("--quality", action="store_true", help="errors instead of rates")
    parser.add_argument("--json", action="store_true", help="errors as JSON")
    options = parser.parse_args()
    if options.quality:
        show(
            f"{options.platform}: model against published", quality(options.platform), options.json
        )
    else:
        print_rates(options.platform)


def by_device(name: str) -> dict[str, list[Comparison]]:
    """The published operators of each processor."""
    rows_of: dict[str, list[Comparison]] = {}
    for row in compare_operators(name):
        rows_of.setdefault(row.device, []).append(row)
    return rows_of


def print_rates(name: str) -> None:
    stated = fitted_rates(read(name))
    for device, own in by_device(name).items():
        now = stated[device]
        fitted = fit(own, gpu=now.half_items > 0)
        print(device)
        for field in fields(fitted):
            value, says = getattr(fitted, field.name), getattr(now, field.name)
            print(f"  {field.name:30} {value:9.3g}   the file says {says:.3g}")
        errors = error("", device, [row.published_s for row in own], times(own, fitted))
        print(f"  {errors}")


def quality(name: str) -> list[dict[str, Any]]:
    """A row for each comparison: the number of figures, and the errors of the model."""
    table = []
    for device, own in by_device(name).items():
        published_s = [row.published_s for row in own]
        table.append(error("operators, fitted", device, published_s, [r.model_s for r in own]))
        gpu = fitted_rates(read(name))[device].half_items > 0
        table.append(error("operators, left out", device, published_s, left_out_s(own, gpu=gpu)))
    links: dict[str, list[Comparison]] = {}
    for row in compare_transfers(name):
        links.setdefault(row.device, []).append(row)
    for link, own in links.items():
        published_s = [row.published_s for row in own]
        table.append(error("tensors, fitted", link, published_s, [r.model_s for r in own]))
    return table + [whole(name, check) for check in read(name).get("check", ())]


def error(what: str, where: str, published_s: list[float], model_s: list[float]) -> dict[str, Any]:
    ratios = [m / p for m, p in zip(model_s, published_s, strict=True)]
    return {
        "what": what,
        "where": where,
        "figures": len(ratios),
        "median error": f"{statistics.median(abs(r - 1) for r in ratios):.0%}",
        "within 1.5 times": f"{statistics.mean(1 / 1.5 < r < 1.5 for r in ratios):.0%}",
        "sum / published": f"{sum(model_s) / sum(published_s):.2f}",
    }


def left_out_s(rows: list[Comparison], *, gpu: bool) -> list[float]:
    """Seconds of each operator, with rates that were fitted without it."""
    seconds = [0.0] * len(rows)
    for fold in range(FOLDS):
        rates = fit([r for i, r in enumerate(rows) if i % FOLDS != fold], gpu=gpu)
        for i in range(fold, len(rows), FOLDS):
            seconds[i] = times(rows[i : i + 1], rates)[0]
    return seconds


def whole(name: str, check: dict[str, Any]) -> dict[str, Any]:
    """Row of one network on one processor; its time is the sum over its operators."""
    device, model = check["device"], check["model"]
    graph = PlanningContext(f"zoo:{model}").user_model.published_graph
    phone = load(name, [device])
    (place,) = phone.system.places
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    model_s = sum(phone.cost.piece_s(graph, task, whole, place) for task, whole in wholes)
    published_s = figure(check, "published_s")
    return error(f"{model}, not fitted", device, [published_s], [model_s])


def times(rows: list[Comparison], rates: Rates) -> list[float]:
    return [operator_s(*described_operator(row.what), rates) for row in rows]


def loss(rows: list[Comparison], rates: Rates) -> float:
    weighted = [math.sqrt(row.published_s) for row in rows]
    errors = [
        abs(math.log(t / row.published_s)) for t, row in zip(times(rows, rates), rows, strict=True)
    ]
    return sum(w * e for w, e in zip(weighted, errors, strict=True)) / sum(weighted)


def fit(rows: list[Comparison], *, gpu: bool) -> Rates:
    """Coordinate descent: multiply one rate after the other by a factor; a factor that does not
    reduce the loss shrinks."""
    rates = START if gpu else replace(START, half_items=0.0)
    names = [f.name for f in fields(rates) if gpu or f.name != "half_items"]
    factors = dict.fromkeys(names, 2.0)
    best = loss(rows, rates)
    for _ in range(ROUNDS):
        for name in names:
            for factor in (factors[name], 1 / factors[name]):
                tried = replace(rates, **{name: getattr(rates, name) * factor})
                if tried.operator_s < SHORTEST_S:
                    continue
                if (tried_loss := loss(rows, tried)) < best:
                    best, rates = tried_loss, tried
                    break
            else:
                factors[name] = math.sqrt(factors[name])
    return rates


if __name__ == "__main__":
    main()
