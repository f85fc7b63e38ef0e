"""`coexec profile`: what each task costs on each device."""

from collections import Counter
from typing import get_args

from rich.table import Table

from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    EngineOpt,
    FreshOpt,
    JsonOpt,
    ModelArg,
    ShapeOpt,
    ValueOpt,
    print_json,
    progress_bar,
    settings,
)
from coexec.cli.console import out
from coexec.costs.table import Basis, CostTable
from coexec.errors import UsageError
from coexec.system.hardware import Place
from coexec.units import format_seconds
from coexec.workbench import Workbench


def command(
    model: ModelArg,
    devices: DevicesOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    top: int = 20,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Find what every task costs on every device: from what was measured before, also at other
    sizes (~), and by measuring what decides. --fresh measures all of it.
    """
    if top < 0:
        raise UsageError(f"--top {top}: list 0 tasks or more")
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices,
            shape=shape,
            value=value,
            cache=cache,
            fresh=fresh,
            progress=tell,
            engine=engine,
        )
        work = Workbench(model, asked)
        cost, system = work.measured
    graph = work.model.graph
    if json:
        tasks_s = {str(place): seconds for place, seconds in cost.tasks_s.items()}
        launches_s = {str(place): seconds for place, seconds in cost.launches_s.items()}
        bases = {str(place): found for place, found in cost.bases.items()}
        print_json({"tasks_s": tasks_s, "launches_s": launches_s, "bases": bases}
                   | system.to_json())  # fmt: skip
        return
    table = Table("task", "kind", *map(str, system.places), box=None)
    first = cost.tasks_s[system.places[0]]
    for task in sorted(graph.tasks, key=lambda t: -first[t.name])[:top]:
        times = (_time(cost, p, task.name) for p in system.places)
        table.add_row(task.name, task.kind, *times)
    if len(graph.tasks) > top:
        table.add_row(f"… {len(graph.tasks) - top} more", "", *("" for _ in system.places))
    table.add_row("sum", "", *(format_seconds(cost.total_s(p)) for p in system.places))
    table.add_row("a launch", "", *(format_seconds(cost.launch_s(p)) for p in system.places))
    out.print(table)
    for place in system.places:
        out.print(_counted(cost, place))
    for link in system.links:
        copy = "memory is shared" if link.bandwidth_bytes_per_s == float("inf") else (
            f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s")  # fmt: skip
        out.print(f"{link.source} -> {link.target}: {format_seconds(link.sync_latency_s)}, {copy}")


def _time(cost: CostTable, place: Place, task: str) -> str:
    told = cost.bases.get(place, {}).get(task)
    return ("~" if told == "predicted" else "") + format_seconds(cost.tasks_s[place][task])


def _counted(cost: CostTable, place: Place) -> str:
    """How many tasks were measured, and where the times of the others come from."""
    counts = Counter(cost.bases.get(place, {}).values())
    told = [f"{counts[basis]} {basis}" for basis in get_args(Basis) if counts[basis]]
    return f"{place}: {', '.join(told) or 'runs none'} of {len(cost.tasks_s[place])} tasks"
