"""`coexec profile`: measure the cost of each task on each device."""

from typing import Annotated

import typer

from coexec.cli.options import (
    SAMPLES,
    DebugOpt,
    JsonOpt,
    SettingOptions,
    takes,
)
from coexec.cli.verbs import prints

OptionalModelArg = Annotated[str | None, typer.Argument(help="An ONNX file, or zoo:NAME.")]

TrainOpt = Annotated[bool, typer.Option("--train", help="Learn to predict, without a model.")]

PiecesOpt = Annotated[
    bool, typer.Option("--pieces", help="Measure parts of tasks, too, for planners that divide.")
]

SamplesOpt = Annotated[int, typer.Option(help="Tasks to learn from, on each device.")]


@prints(
    tasks_s="By place and task, seconds.",
    launches_s="By place, seconds of a launch.",
    bases="By place and task, where its time comes from.",
    disturbed="By place, the tasks that were measured while other programs used the processors.",
    pieces_s="By place and part of a task, seconds.",
    layout_changes="What it costs to read tensors in another layout.",
    devices="The devices with their engines.",
    links="Latency and bandwidth from device to device.",
    predictors="With --train, in place of all others: by place and kind of kernel, its rates.",
)
@takes("devices", "shapes", "values", "examples", "fresh", "pieces", "engine_options", "cache")
def command(
    options: SettingOptions,
    model: OptionalModelArg = None,
    top: Annotated[int, typer.Option(help="Tasks to list, the longest first.")] = 20,
    train: TrainOpt = False,
    samples: SamplesOpt = SAMPLES,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show the seconds of every task on every device. Times of earlier measurements are used, also
    of other sizes (~); tasks are measured where an error could change a plan. --fresh measures all
    tasks. --pieces measures parts of tasks too, which takes some minutes; planners that divide
    tasks then need no predictor.

    With --train and no model: measure made-up networks, and learn to predict tasks and parts of
    tasks. Measurements are kept: if you stop the training, the next call continues there.
    """
    from coexec.cli.console import out
    from coexec.cli.output import print_json
    from coexec.cli.profile_tables import basis_counts, cost_facts, print_tasks, train_predictors
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.selection.planning_context import PlanningContext
    from coexec.units import format_seconds

    if train:
        if model is not None:
            raise UsageError("--train measures made-up networks; leave the model out")
        train_predictors(options, samples, json)
        return
    if model is None:
        raise UsageError("name a model, or train a predictor with --train")
    if top < 0:
        raise UsageError(f"--top {top}: list 0 tasks or more")
    with progress(f"loading {model}") as tell:
        config = options.settings(progress=tell)
        work = PlanningContext(model, config)
        cost, system = work.measured
        doubts = work.untrained
    if json:
        print_json(cost_facts(cost) | system.to_json())
        return
    print_tasks(cost, system.places, work.model.graph, top)
    for place in system.places:
        out.print(basis_counts(cost, place))
        if parts := len(cost.pieces_s.get(place, {})):
            out.print(f"{place}: {parts} parts of tasks measured")
    for line in doubts:
        out.print(line)
    for link in system.links:
        copy = (
            "memory is shared"
            if link.bandwidth_bytes_per_s == float("inf")
            else (f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s")
        )
        out.print(f"{link.source} -> {link.target}: {format_seconds(link.sync_latency_s)}, {copy}")
    for (source, target), change in cost.layout_changes.items():
        way = f"{source}, its own part" if source == target else f"{source} -> {target}"
        each_s, megabyte_s = format_seconds(change.tensor_s), format_seconds(1e6 * change.byte_s)
        out.print(
            f"{way}: tensors that change their layout: {len(change.tensors)}, each "
            f"{each_s} and {megabyte_s} a MB"
        )
