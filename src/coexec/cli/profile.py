"""`coexec profile`: what each task costs on each device."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    DevicesOpt,
    EngineOpt,
    FreshOpt,
    InputsOpt,
    JsonOpt,
    ShapeOpt,
    ValueOpt,
    print_json,
    progress_bar,
    settings,
)
from coexec.cli.console import out
from coexec.costs.table import Basis, CostTable
from coexec.defaults import SAMPLES
from coexec.errors import UsageError
from coexec.ir.graph import Graph
from coexec.system.hardware import Place
from coexec.units import format_seconds
from coexec.workbench import Workbench, trained_on

OptionalModelArg = Annotated[str | None, typer.Argument(help="An ONNX file, or zoo:NAME.")]
TrainOpt = Annotated[bool, typer.Option("--train", help="Learn to predict, without a model.")]
PiecesOpt = Annotated[
    bool, typer.Option("--pieces", help="Measure parts of tasks, too, for planners that divide.")
]
SamplesOpt = Annotated[int, typer.Option(help="Tasks to learn from, on each device.")]


def command(
    model: OptionalModelArg = None,
    devices: DevicesOpt = None,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    inputs: InputsOpt = None,
    fresh: FreshOpt = False,
    engine: EngineOpt = None,
    top: int = 20,
    pieces: PiecesOpt = False,
    train: TrainOpt = False,
    samples: SamplesOpt = SAMPLES,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Find what every task costs on every device: from what was measured before, also at other
    sizes (~), and by measuring what decides. --fresh measures all of it. --pieces measures parts
    of tasks too, some minutes long; planners that divide tasks then need no predictor.

    With --train and no model: measure made-up networks and learn to predict tasks and parts of
    them. What is measured is kept; when stopped, it goes on there.
    """
    if train:
        if model is not None:
            raise UsageError("--train measures made-up networks; leave the model out")
        _train(devices, engine, cache, samples, json)
        return
    if model is None:
        raise UsageError("name a model, or train a predictor with --train")
    if top < 0:
        raise UsageError(f"--top {top}: list 0 tasks or more")
    with progress_bar(json) as tell:
        asked = settings(
            devices=devices,
            shape=shape,
            value=value,
            inputs=inputs,
            cache=cache,
            fresh=fresh,
            pieces=pieces,
            progress=tell,
            engine=engine,
        )
        work = Workbench(model, asked)
        cost, system = work.measured
        doubts = work.untrained
    if json:
        print_json(_as_json(cost) | system.to_json())
        return
    _print_tasks(cost, system.places, work.model.graph, top)
    for place in system.places:
        out.print(_counted(cost, place))
        if parts := len(cost.pieces_s.get(place, {})):
            out.print(f"{place}: {parts} parts of tasks measured")
    for line in doubts:
        out.print(line)
    for link in system.links:
        copy = "memory is shared" if link.bandwidth_bytes_per_s == float("inf") else (
            f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s")  # fmt: skip
        out.print(f"{link.source} -> {link.target}: {format_seconds(link.sync_latency_s)}, {copy}")
    for (source, target), change in cost.layout_changes.items():
        way = f"{source}, its own part" if source == target else f"{source} -> {target}"
        each_s, megabyte_s = format_seconds(change.tensor_s), format_seconds(1e6 * change.byte_s)
        out.print(f"{way}: tensors that change their layout: {len(change.tensors)}, each "
                  f"{each_s} and {megabyte_s} a MB")  # fmt: skip


def _as_json(cost: CostTable) -> dict[str, Any]:
    return {
        "tasks_s": {str(place): seconds for place, seconds in cost.tasks_s.items()},
        "launches_s": {str(place): seconds for place, seconds in cost.launches_s.items()},
        "feedings_s": {str(place): seconds for place, seconds in cost.feedings_s.items()},
        "bases": {str(place): found for place, found in cost.bases.items()},
        "pieces_s": {
            str(place): {str(piece): seconds for piece, seconds in found.items()}
            for place, found in cost.pieces_s.items()
        },
        "layout_changes": [
            {"source": str(source), "target": str(target), "tensors": sorted(change.tensors),
             "tensor_s": change.tensor_s, "byte_s": change.byte_s}
            for (source, target), change in cost.layout_changes.items()
        ],
    }  # fmt: skip


def _print_tasks(cost: CostTable, places: Sequence[Place], graph: Graph, top: int) -> None:
    table = Table("task", "kind", *map(str, places), box=None)
    first = cost.tasks_s[places[0]]
    for task in sorted(graph.tasks, key=lambda t: -first[t.name])[:top]:
        table.add_row(task.name, task.kind, *(_time(cost, p, task.name) for p in places))
    if len(graph.tasks) > top:
        table.add_row(f"… {len(graph.tasks) - top} more", "", *("" for _ in places))
    table.add_row("sum", "", *(format_seconds(cost.total_s(p)) for p in places))
    table.add_row("a launch", "", *(format_seconds(cost.launch_s(p)) for p in places))
    out.print(table)


def _train(
    devices: str | None, engine: list[str] | None, cache: Path | None, samples: int, json: bool
) -> None:
    if samples < 1:
        raise UsageError(f"--samples {samples}: learn from 1 or more, {SAMPLES} are a good number")
    with progress_bar(json) as tell:
        asked = settings(devices=devices, cache=cache, engine=engine, progress=tell)
        found = trained_on(asked, samples)
    if json:
        print_json({str(place): {kind: {"units_s": k.units_s, "error": k.error}
                                 for kind, k in kinds.items()}
                    for place, kinds in found.items()})  # fmt: skip
        return
    for place, kinds in found.items():
        table = Table(f"{place}: kernels", "nine of ten within", box=None)
        for kind, learnt in kinds.items():
            table.add_row(kind, f"{learnt.error:.0%}")
        out.print(table)


def _time(cost: CostTable, place: Place, task: str) -> str:
    told = cost.bases.get(place, {}).get(task)
    return ("~" if told == "predicted" else "") + format_seconds(cost.tasks_s[place][task])


def _counted(cost: CostTable, place: Place) -> str:
    """How many tasks were measured, and where the times of the others come from."""
    counts = Counter(cost.bases.get(place, {}).values())
    told = [f"{counts[basis]} {basis}" for basis in get_args(Basis) if counts[basis]]
    return f"{place}: {', '.join(told) or 'runs none'} of {len(cost.tasks_s[place])} tasks"
