"""The tables of `coexec profile`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from rich.table import Table

from coexec.cli.console import out
from coexec.cli.options import SAMPLES, SettingOptions
from coexec.cli.output import print_json
from coexec.cli.progress import progress
from coexec.costs.table import Basis, CostTable
from coexec.errors import UsageError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Place
from coexec.research_loader import load_research
from coexec.units import format_seconds

__all__ = ["basis_counts", "cost_facts", "print_tasks", "train_predictors"]


def cost_facts(cost: CostTable) -> dict[str, Any]:
    return {
        "tasks_s": {str(place): seconds for place, seconds in cost.tasks_s.items()},
        "launches_s": {str(place): seconds for place, seconds in cost.launches_s.items()},
        "bases": {str(place): by_task for place, by_task in cost.bases.items()},
        "disturbed": {str(place): sorted(names) for place, names in cost.disturbed.items()},
        "pieces_s": {
            str(place): {str(piece): seconds for piece, seconds in by_piece.items()}
            for place, by_piece in cost.pieces_s.items()
        },
        "layout_changes": [
            {
                "source": str(source),
                "target": str(target),
                "tensors": sorted(change.tensors),
                "tensor_s": change.tensor_s,
                "byte_s": change.byte_s,
            }
            for (source, target), change in cost.layout_changes.items()
        ],
    }


def print_tasks(cost: CostTable, places: Sequence[Place], graph: Graph, top: int) -> None:
    table = Table("task", "kind", *map(str, places), box=None)
    first = cost.tasks_s[places[0]]
    for task in sorted(graph.tasks, key=lambda t: -first[t.name])[:top]:
        table.add_row(task.name, task.kind, *(_time(cost, p, task.name) for p in places))
    if len(graph.tasks) > top:
        table.add_row(f"… {len(graph.tasks) - top} more", "", *("" for _ in places))
    table.add_row("sum", "", *(format_seconds(cost.total_s(p)) for p in places))
    table.add_row("a launch", "", *(format_seconds(cost.launch_s(p)) for p in places))
    out.print(table)


def train_predictors(options: SettingOptions, samples: int, json: bool) -> None:
    if samples < 1:
        raise UsageError(f"--samples {samples}: learn from 1 or more, {SAMPLES} are a good number")
    with progress("measuring made-up networks") as tell:
        config = options.settings(progress=tell)
        units_by_place = load_research("predictor.training").trained_on(config, samples)
    if json:
        learnt = {
            str(place): {
                kind: {"units_s": k.units_s, "error": k.error} for kind, k in kinds.items()
            }
            for place, kinds in units_by_place.items()
        }
        print_json({"predictors": learnt})
        return
    for place, kinds in units_by_place.items():
        table = Table(f"{place}: kernels", "nine of ten within", box=None)
        for kind, units in kinds.items():
            table.add_row(kind, f"{units.error:.0%}")
        out.print(table)


def _time(cost: CostTable, place: Place, task: str) -> str:
    basis = cost.bases.get(place, {}).get(task)
    return ("~" if basis == "predicted" else "") + format_seconds(cost.tasks_s[place][task])


def basis_counts(cost: CostTable, place: Place) -> str:
    """Line with the number of tasks by the basis of their times: measured, predicted and so on."""
    counts = Counter(cost.bases.get(place, {}).values())
    texts = [f"{counts[basis]} {basis}" for basis in get_args(Basis) if counts[basis]]
    line = f"{place}: {', '.join(texts) or 'runs none'} of {len(cost.tasks_s[place])} tasks"
    disturbed = len(cost.disturbed.get(place, ()))
    return (
        line
        if not disturbed
        else (
            f"{line}; {disturbed} while other programs used the processors: "
            f"when these are idle, the next plan measures again"
        )
    )
