"""Fit the rates of a simulated platform's processors to the latencies of single operators.

Each processor is fitted on its own, to the operators that its platform file lists. What is made
small is the sum over operators of |log(model / published)|, weighted by the square root of the
latency: a long operator counts more, yet the short ones decide the overhead. Printed are the rates
as they stand in the platform file, and how far the model is off.

    python benchmarks/fit_phones.py kirin_990

With --quality: how far the model is off, for the operators that were fitted to; for operators that
were left out, in turns a fifth of them, with rates fitted to the others; for transfers; and for
whole networks on one processor, which were not fitted to.

    python benchmarks/fit_phones.py --quality kirin_990
"""

import argparse
import math
import statistics
from dataclasses import fields, replace
from typing import Any

from common import show

from coexec.costs.platform import Rates, operator_s
from coexec.platforms import NAMES, load
from coexec.platforms.calibration import (
    Comparison,
    compare_operators,
    compare_transfers,
    described_operator,
)
from coexec.platforms.files import figure, fitted_rates, read
from coexec.workbench import Workbench

START = Rates(2e10, 2e10, 2e10, 1e10, 1e10, 1e9, 3e9, 3e9, 3e9, 1e9, 1e-4, 100.0)
ROUNDS = 150
SHORTEST_S = 1e-6
"""No operator of the published ones takes less."""


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
    found: dict[str, list[Comparison]] = {}
    for row in compare_operators(name):
        found.setdefault(row.device, []).append(row)
    return found


def print_rates(name: str) -> None:
    stated = fitted_rates(read(name))
    for device, own in by_device(name).items():
        now = stated[device]
        found = fit(own, gpu=now.half_items > 0)
        print(device)
        for field in fields(found):
            value, says = getattr(found, field.name), getattr(now, field.name)
            print(f"  {field.name:30} {value:9.3g}   the file says {says:.3g}")
        errors = error("", device, [row.published_s for row in own], times(own, found))
        print(f"  {errors}")


def quality(name: str) -> list[dict[str, Any]]:
    """A row for each thing that can be compared: how many figures, how far off the model is."""
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
    """Seconds of each operator by rates that were fitted without it."""
    found = [0.0] * len(rows)
    for fold in range(FOLDS):
        rates = fit([r for i, r in enumerate(rows) if i % FOLDS != fold], gpu=gpu)
        for i in range(fold, len(rows), FOLDS):
            found[i] = times(rows[i : i + 1], rates)[0]
    return found


def whole(name: str, check: dict[str, Any]) -> dict[str, Any]:
    """One network on one processor, operator by operator."""
    device, model = check["device"], check["model"]
    graph = Workbench(f"zoo:{model}").given.published_graph
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
    """Multiply one rate after the other by a factor that shrinks while it does not help."""
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
