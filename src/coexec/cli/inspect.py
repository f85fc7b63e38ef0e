"""`coexec inspect`: show the tasks, operators and memory of a model."""

from typing import Annotated

import typer

from coexec.cli.options import DebugOpt, JsonOpt, ModelArg, SettingOptions, device_names, takes
from coexec.cli.verbs import prints


@prints(
    tasks="Number of tasks.",
    distinct="Tasks that differ in anything but their weights.",
    macs="Multiply-accumulate operations of an inference.",
    weight_bytes="Bytes of the weights.",
    activation_bytes="Bytes of all tensors between tasks.",
    width="The most tasks that can run at the same time.",
    critical_path_tasks="Tasks of the longest path.",
    critical_path_macs="Operations on the longest path.",
    operators="By kind of task, their number and operations.",
    task_list="Names of the tasks, in order.",
    opaque="By task that only ONNX Runtime runs, the reason.",
    memory="With --memory: bytes of intermediate tensors and their lower bounds, by strategy.",
    device="With --device: the tasks that it runs, and why it does not run the others.",
)
@takes("shapes", "values", "examples", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
    tasks: Annotated[bool, typer.Option(help="List every task.")] = False,
    memory: Annotated[
        bool, typer.Option(help="Bytes of intermediate tensors, and their bound.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="What this device runs.")] = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show tasks, FLOPs, bytes, width and critical path. --tasks lists every task. --memory lists
    the bytes of intermediate tensors on one device, in one buffer and in shared objects, and the
    lower bound of each. --device lists what a device runs and what not."""
    from rich.table import Table

    from coexec.cli import support
    from coexec.cli.console import out
    from coexec.cli.model_facts import memory_facts, model_facts, operator_counts, print_memory
    from coexec.cli.output import print_json
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.graph.text import format_graph
    from coexec.selection.planning_context import PlanningContext
    from coexec.units import format_bytes, format_count

    config = options.settings(devices=None if device is None else device_names(device))
    with progress(f"loading {model}"):
        work = PlanningContext(model, config)
        graph = work.model.graph
    facts = model_facts(graph)
    if device is not None and len(work.devices) != 1:
        raise UsageError(f"--device {device!r} names {len(work.devices)} devices; name one")
    supported = support.facts(graph, work.devices[0].engine) if device is not None else None
    if json:
        lists = {
            "operators": operator_counts(graph),
            "task_list": [t.name for t in graph.tasks],
            "opaque": {t.name: t.opaque for t in graph.tasks if t.opaque},
        }
        extra = {"memory": memory_facts(graph)} if memory else {}
        print_json(facts | lists | extra | ({"device": supported} if supported else {}))
        return
    if supported is not None:
        support.show(graph, supported)
        return
    if tasks:
        print(format_graph(graph))
        return
    if memory:
        print_memory(memory_facts(graph))
        return
    path = facts["critical_path_macs"]
    table = Table(box=None, show_header=False)
    table.add_row(
        "tasks", f"{len(graph.tasks)} ({len({t.signature for t in graph.tasks})} distinct)"
    )
    table.add_row("MACs", f"{format_count(graph.macs)} ({format_count(2 * graph.macs)} FLOPs)")
    table.add_row("weights", format_bytes(graph.weight_bytes))
    table.add_row("activations", format_bytes(facts["activation_bytes"]))
    table.add_row("width", f"{facts['width']} tasks can run at the same time")
    share = f"{path / graph.macs:.0%} of the MACs" if graph.macs else "no MACs"
    table.add_row("critical path", f"{facts['critical_path_tasks']} tasks, {share}")
    for name in (*graph.inputs, *graph.outputs):
        kind = "input" if name in graph.inputs else "output"
        tensor = graph.tensors[name]
        sizes = "" if tensor.opaque else f"{list(tensor.shape)} "
        table.add_row(kind, f"{name} {sizes}{tensor.dtype}")
    out.print(table)
    kinds = Table("tasks", "count", "MACs", box=None)
    for kind, (count, macs) in operator_counts(graph).items():
        kinds.add_row(kind, str(count), format_count(macs))
    out.print(kinds)
    opaque = Table("opaque task", "because", box=None)
    for task in graph.tasks:
        if task.opaque:
            opaque.add_row(task.name, task.opaque)
    if opaque.row_count:
        out.print(opaque)
