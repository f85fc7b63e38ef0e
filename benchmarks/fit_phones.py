"""Fit the rates of a simulated platform's processors to the latencies of single operators.

Each processor is fitted on its own, to the operators that its platform file lists. What is made
small is the sum over operators of |log(model / published)|, weighted by the square root of the
latency: a long operator counts more, yet the short ones decide the overhead. Printed are the rates
as they stand in the platform file, and how far the model is off.

    python benchmarks/fit_phones.py kirin_990
"""

import argparse
import math
import statistics
from dataclasses import fields, replace

from coexec.costs.platform import Rates, operator_s
from coexec.platforms import NAMES
from coexec.platforms.calibration import Comparison, compare_operators, described_operator
from coexec.platforms.files import fitted_rates, read

START = Rates(2e10, 2e10, 2e10, 1e10, 1e10, 1e9, 3e9, 3e9, 3e9, 1e9, 1e-4, 100.0)
ROUNDS = 150
SHORTEST_S = 1e-6
"""No operator of the published ones takes less."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("platform", choices=NAMES)
    name = parser.parse_args().platform
    rows = compare_operators(name)
    for device, now in fitted_rates(read(name)).items():
        own = [row for row in rows if row.device == device]
        if not own:
            continue
        found = fit(own, gpu=now.half_items > 0)
        print(device)
        for field in fields(found):
            value, stated = getattr(found, field.name), getattr(now, field.name)
            print(f"  {field.name:30} {value:9.3g}   the file says {stated:.3g}")
        ratios = [
            model_s / row.published_s for row, model_s in zip(own, times(own, found), strict=True)
        ]
        off = statistics.median(abs(r - 1) for r in ratios)
        total = sum(times(own, found)) / sum(row.published_s for row in own)
        print(
            f"  {len(own)} operators, median error {off:.1%}, sum {total:.3f} of the published one"
        )


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
