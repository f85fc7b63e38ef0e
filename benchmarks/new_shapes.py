"""Profiling time of a new shape of a known model, and the errors of its predicted times.

Shapes are profiled one after the other in one store, in the order of a session's requests. Each
shape is then measured completely, twice, in separate stores. Predictions are compared with the
second measurement; the first one shows how well measurements repeat. In the second one, kernels are
already built.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import show, source

from coexec.costs.table import CostTable
from coexec.hardware.hardware import Place
from coexec.profiling.profiler import Profiler
from coexec.profiling.store import ProfileStore
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Settings

NEAR = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a file with a dynamic input")
    parser.add_argument("input", help="that input")
    parser.add_argument("shapes", nargs="+", help="as 1x3x320x448")
    parser.add_argument("--devices", default="cpu:0,cpu:1/cpp")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        for text in args.shapes:
            shape = tuple(map(int, text.split("x")))
            settings = Settings(args.devices.split(","), cache=folder, shapes={args.input: shape})
            show(
                f"{args.model}, {text}",
                list(rows(PlanningContext(source(args.model), settings))),
                args.json,
            )


def rows(work: PlanningContext) -> Iterator[dict[str, Any]]:
    """A row for each place."""
    work.compiler  # noqa: B018 - loading the model is not profiling
    started_s = time.perf_counter()
    cost, _ = work.measured
    profile_s = time.perf_counter() - started_s
    (first, _), (full, full_s) = in_full(work), in_full(work)
    for place, bases in cost.bases.items():
        predicted_s = {n: cost.tasks_s[place][n] for n, b in bases.items() if b == "predicted"}
        near = [n for n, s in predicted_s.items() if abs(s / full.tasks_s[place][n] - 1.0) < NEAR]
        yield {
            "place": str(place),
            "measured": sum(basis == "measured" for basis in bases.values()),
            "known": sum(basis == "known" for basis in bases.values()),
            "predicted": len(predicted_s),
            "within 20 %, tasks": len(near) / len(predicted_s) if predicted_s else None,
            "within 20 %, time": share(near, list(predicted_s), full, place)
            if predicted_s
            else None,
            "sum": total(list(bases), cost, place) / total(list(bases), full, place),
            "sum repeated": total(list(bases), first, place) / total(list(bases), full, place),
            "profile_s": profile_s,
            "in full_s": full_s,
        }
    work.release()


def in_full(work: PlanningContext) -> tuple[CostTable, float]:
    """Measured times of all tasks, and the seconds of this measurement."""
    with TemporaryDirectory() as folder, ProfileStore(Path(folder)) as store:
        started_s = time.perf_counter()
        cost = Profiler(work.devices, store, fresh=True).cost(work.compiler)
        return cost, time.perf_counter() - started_s


def total(names: list[str], cost: CostTable, place: Place) -> float:
    return sum(cost.tasks_s[place][name] for name in names)


def share(names: list[str], of: list[str], cost: CostTable, place: Place) -> float:
    return total(names, cost, place) / total(of, cost, place)


if __name__ == "__main__":
    main()
