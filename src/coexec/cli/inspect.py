"""`coexec inspect`: show the tasks, operators and memory of a model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coexec.cli.options import ModelArg, SettingOptions, device_names, verb
from coexec.cli.verbs import VerbOutput

if TYPE_CHECKING:
    from coexec.engines.base import OpenEngine
    from coexec.graph.graph import Graph


@dataclass(frozen=True)
class Inspection:
    """Tasks, operators and memory of a model."""

    tasks: int
    """Number of tasks."""
    distinct: int
    """Tasks that differ in anything but their weights."""
    macs: int
    """Multiply-accumulate operations of an inference."""
    weight_bytes: int
    """Bytes of the weights."""
    activation_bytes: int
    """Bytes of all tensors between tasks."""
    width: int
    """The most tasks that can run at the same time."""
    critical_path_tasks: int
    """Tasks of the longest path."""
    critical_path_macs: int
    """Operations on the longest path."""
    operators: Mapping[str, tuple[int, int]]
    """By kind of task, their number and operations."""
    task_list: Sequence[str]
    """Names of the tasks, in order."""
    opaque: Mapping[str, str]
    """By task that only ONNX Runtime runs, the reason."""
    memory: Mapping[str, Any] | None
    """With --memory: bytes of intermediate tensors and their lower bounds, by strategy."""
    device: Mapping[str, Any] | None
    """With --device: the tasks that it runs, and why it does not run the others."""


@verb(Inspection, "shapes", "values", "examples", "cache")
def command(
    model: ModelArg,
    options: SettingOptions,
    tasks: Annotated[bool, typer.Option(help="List every task.")] = False,
    memory: Annotated[
        bool, typer.Option(help="Bytes of intermediate tensors, and their bound.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="What this device runs.")] = None,
) -> VerbOutput:
    """Show tasks, FLOPs, bytes, width and critical path. --tasks lists every task. --memory lists
    the bytes of intermediate tensors on one device, in one buffer and in shared objects, and the
    lower bound of each. --device lists what a device runs and what not."""
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.graph.text import format_graph
    from coexec.graph.width import critical_path, width
    from coexec.selection.planning_context import PlanningContext

    config = options.settings(devices=None if device is None else device_names(device))
    with progress(f"loading {model}"):
        work = PlanningContext(model, config)
        graph = work.model.graph
    if device is not None and len(work.devices) != 1:
        raise UsageError(f"--device {device!r} names {len(work.devices)} devices; name one")
    path = critical_path(graph, lambda task: float(max(task.macs, 1)))
    made = {name for task in graph.tasks for name in task.outputs}
    counts = Counter(task.kind for task in graph.tasks)
    macs: Counter[str] = Counter()
    for task in graph.tasks:
        macs[task.kind] += task.macs
    facts = Inspection(
        len(graph.tasks),
        len({task.signature for task in graph.tasks}),
        graph.macs,
        graph.weight_bytes,
        sum(graph.tensors[name].size_bytes for name in made),
        width(graph),
        len(path),
        sum(task.macs for task in path),
        {kind: (count, macs[kind]) for kind, count in counts.most_common()},
        [task.name for task in graph.tasks],
        {task.name: task.opaque for task in graph.tasks if task.opaque},
        _memory(graph) if memory else None,
        None if device is None else _support(graph, work.devices[0].engine),
    )
    if facts.device is not None:
        return VerbOutput(facts, _of_device(facts, facts.device))
    if tasks:
        return VerbOutput(facts, map(format_graph, [graph]))
    if facts.memory is not None:
        return VerbOutput(facts, _of_memory(facts.memory))
    return VerbOutput(facts, _text(facts, graph))


def _memory(graph: "Graph") -> dict[str, Any]:
    """Bytes of the intermediate tensors on one device by each strategy, and their bounds."""
    from coexec.plan.memory import BOUNDS, STRATEGIES, records_of, verify

    records = list(records_of(graph).values())
    bounds = {family: bound(records) for family, bound in BOUNDS.items()}
    rows = []
    for family, strategy in STRATEGIES.items():
        assignment = strategy(records)
        verify(records, assignment)
        total_bytes, bound_bytes = assignment.total_bytes, bounds[family]
        of_bound = total_bytes / bound_bytes if bound_bytes else 1.0
        figures = {"total_bytes": total_bytes, "of_bound": of_bound}
        rows.append({"strategy": strategy.__name__, "family": family, **figures})
    return {"tensors": len(records), "bound_bytes": bounds, "strategies": rows}


def _support(graph: "Graph", engine: "OpenEngine") -> dict[str, Any]:
    """The tasks that an engine takes; the others are on some other device."""
    from coexec.hardware.hardware import Place
    from coexec.plan.derive import derive
    from coexec.plan.plan import Plan, Provenance

    reasons = engine.refused(graph)
    order: dict[Place, list[Any]] = {}
    refused: dict[str, list[str]] = {}
    for task in graph.tasks:
        reason = reasons.get(task.name)
        place = engine.place if reason is None else Place("elsewhere", "any")
        order.setdefault(place, []).append(graph.whole_piece(task))
        if reason is not None:
            refused.setdefault(reason, []).append(task.name)
    pieces = {place: tuple(own) for place, own in order.items()}
    plan = Plan.of_places(graph.fingerprint, pieces, Provenance("offload"))
    runs = [task for task in graph.tasks if task.name not in reasons]
    segments = derive(plan, graph).segments
    return {
        "device": str(engine.place),
        "supported": dict(Counter(task.kind for task in runs).most_common()),
        "supported_tasks": len(runs),
        "supported_macs": sum(task.macs for task in runs),
        "refused": refused,
        "segments": [(each.device, [p.task for p in each.pieces]) for each in segments],
    }


def _text(facts: Inspection, graph: "Graph") -> Iterator[Any]:
    from coexec.cli.console import show, text_of
    from coexec.units import format_count

    share = f"{facts.critical_path_macs / facts.macs:.0%} of the MACs" if facts.macs else "no MACs"
    rows = [
        ("tasks", f"{facts.tasks} ({facts.distinct} distinct)"),
        ("MACs", f"{format_count(facts.macs)} ({format_count(2 * facts.macs)} FLOPs)"),
        ("weights", text_of(facts.weight_bytes, "_bytes")),
        ("activations", text_of(facts.activation_bytes, "_bytes")),
        ("width", f"{facts.width} tasks can run at the same time"),
        ("critical path", f"{facts.critical_path_tasks} tasks, {share}"),
    ]
    for name in (*graph.inputs, *graph.outputs):
        tensor = graph.tensors[name]
        sizes = "" if tensor.opaque else f"{list(tensor.shape)} "
        kind = "input" if name in graph.inputs else "output"
        rows.append((kind, f"{name} {sizes}{tensor.dtype}"))
    table = show(rows, ("", ""))
    table.show_header = False
    yield table
    kinds = ((kind, n, format_count(macs)) for kind, (n, macs) in facts.operators.items())
    yield show(kinds, ("tasks", "count", "MACs"))
    if facts.opaque:
        yield show(facts.opaque.items(), ("opaque task", "because"))


def _of_memory(memory: Mapping[str, Any]) -> Iterator[Any]:
    from coexec.cli.console import show
    from coexec.units import format_bytes

    rows = (
        (
            row["strategy"],
            row["family"],
            format_bytes(row["total_bytes"]),
            format_bytes(memory["bound_bytes"][row["family"]]),
            f"{row['of_bound']:.3f}",
        )
        for row in memory["strategies"]
    )
    yield show(rows, ("strategy", "shares", "total", "bound", "of the bound"))


def _of_device(facts: Inspection, device: Mapping[str, Any]) -> Iterator[Any]:
    from coexec.cli.console import show
    from coexec.units import format_count

    yield (
        f"{device['device']} runs {device['supported_tasks']} of {facts.tasks} tasks, "
        f"{format_count(device['supported_macs'])} of {format_count(facts.macs)} MACs"
    )
    yield show(device["supported"].items(), ("runs", "count"))
    if refused := sorted(device["refused"].items(), key=lambda item: -len(item[1])):
        rows = ((reason, len(tasks), tasks[0]) for reason, tasks in refused)
        yield show(rows, ("refuses, because", "count", "for example"))
    segments = (
        (number, place, len(tasks), tasks[0], tasks[-1])
        for number, (place, tasks) in enumerate(device["segments"])
    )
    yield show(segments, ("sub-graph", "runs on", "tasks", "from", "to"))
