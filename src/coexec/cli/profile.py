"""`coexec profile`: what each task costs on each device."""

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
from coexec.errors import UsageError
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
    """Measure every task on every device, or read what was measured before."""
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
        print_json({"tasks_s": tasks_s, "launches_s": launches_s} | system.to_json())
        return
    table = Table("task", "kind", *map(str, system.places), box=None)
    first = cost.tasks_s[system.places[0]]
    for task in sorted(graph.tasks, key=lambda t: -first[t.name])[:top]:
        times = (format_seconds(cost.tasks_s[p][task.name]) for p in system.places)
        table.add_row(task.name, task.kind, *times)
    if len(graph.tasks) > top:
        table.add_row(f"… {len(graph.tasks) - top} more", "", *("" for _ in system.places))
    table.add_row("sum", "", *(format_seconds(cost.total_s(p)) for p in system.places))
    table.add_row("a launch", "", *(format_seconds(cost.launch_s(p)) for p in system.places))
    out.print(table)
    for link in system.links:
        copy = "memory is shared" if link.bandwidth_bytes_per_s == float("inf") else (
            f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s")  # fmt: skip
        out.print(f"{link.source} -> {link.target}: {format_seconds(link.sync_latency_s)}, {copy}")
