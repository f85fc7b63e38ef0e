"""`coexec profile`: measure the cost of each task on each device."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from coexec.cli.options import SAMPLES, SettingOptions, verb
from coexec.cli.verbs import VerbOutput

if TYPE_CHECKING:
    from coexec.costs.table import CostTable
    from coexec.graph.graph import Graph
    from coexec.hardware.hardware import Link, Place, System

OptionalModelArg = Annotated[str | None, typer.Argument(help="An ONNX file, or zoo:NAME.")]
TrainOpt = Annotated[bool, typer.Option("--train", help="Learn to predict, without a model.")]
SamplesOpt = Annotated[int, typer.Option(help="Tasks to learn from, on each device.")]


@dataclass(frozen=True)
class Profile:
    """The costs of tasks on devices."""

    tasks_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By place and task, seconds."""
    launches_s: Mapping[str, float] = field(default_factory=dict)
    """By place, seconds of a launch."""
    bases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By place and task, where its time comes from."""
    disturbed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By place, the tasks that were measured while other programs used the processors."""
    pieces_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By place and part of a task, seconds."""
    layout_changes: Sequence[Mapping[str, Any]] = ()
    """Costs of reading tensors in another layout."""
    devices: Sequence[Mapping[str, Any]] = ()
    """The devices with their engines."""
    links: Sequence[Mapping[str, Any]] = ()
    """Latency and bandwidth from device to device."""
    predictors: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None
    """With --train, in place of all others: by place and kind of kernel, its rates."""


@verb(
    Profile,
    *("devices", "shapes", "values", "examples", "fresh", "pieces", "engine_options", "cache"),
)
def command(
    options: SettingOptions,
    model: OptionalModelArg = None,
    top: Annotated[int, typer.Option(help="Tasks to list, the longest first.")] = 20,
    train: TrainOpt = False,
    samples: SamplesOpt = SAMPLES,
) -> VerbOutput:
    """Show the seconds of every task on every device. Times of earlier measurements are used, also
    of other sizes (~); tasks are measured where an error could change a plan. --fresh measures all
    tasks. --pieces measures parts of tasks too, which takes some minutes; planners that divide
    tasks then need no predictor.

    With --train and no model: measure made-up networks, and learn to predict tasks and parts of
    tasks. Measurements are kept: if you stop the training, the next call continues there.
    """
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.selection.planning_context import PlanningContext

    if train:
        if model is not None:
            raise UsageError("--train measures made-up networks; leave the model out")
        return _trained(options, samples)
    if model is None:
        raise UsageError("name a model, or train a predictor with --train")
    if top < 0:
        raise UsageError(f"--top {top}: list 0 tasks or more")
    with progress(f"loading {model}") as tell:
        work = PlanningContext(model, options.settings(progress=tell))
        cost, system = work.measured
        doubts = work.untrained
    result = Profile(
        tasks_s=_by_name(cost.tasks_s),
        launches_s=_by_name(cost.launches_s),
        bases=_by_name(cost.bases),
        disturbed={str(place): sorted(names) for place, names in cost.disturbed.items()},
        pieces_s={str(place): _by_name(seconds) for place, seconds in cost.pieces_s.items()},
        layout_changes=[
            {
                "source": str(source),
                "target": str(target),
                "tensors": sorted(change.tensors),
                "tensor_s": change.tensor_s,
                "byte_s": change.byte_s,
            }
            for (source, target), change in cost.layout_changes.items()
        ],
        **system.to_json(),
    )
    return VerbOutput(result, _text(cost, system, work.model.graph, top, doubts))


def _by_name(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Values by the text of a place or piece."""
    return {str(key): value for key, value in values.items()}


def _trained(options: SettingOptions, samples: int) -> VerbOutput:
    """The rates of kernels on each device, learnt from made-up networks."""
    from coexec.cli.console import show
    from coexec.cli.progress import progress
    from coexec.errors import UsageError
    from coexec.research_loader import load_research

    if samples < 1:
        raise UsageError(f"--samples {samples}: learn from 1 or more, {SAMPLES} are a good number")
    with progress("measuring made-up networks") as tell:
        config = options.settings(progress=tell)
        units_by_place = load_research("predictor.training").trained_on(config, samples)
    predictors = {
        str(place): {kind: {"units_s": k.units_s, "error": k.error} for kind, k in kinds.items()}
        for place, kinds in units_by_place.items()
    }
    tables = (
        show(
            ((kind, f"{rates['error']:.0%}") for kind, rates in kinds.items()),
            (f"{place}: kernels", "nine of ten within"),
        )
        for place, kinds in predictors.items()
    )
    return VerbOutput(Profile(predictors=predictors), tables)


def _text(
    cost: "CostTable", system: "System", graph: "Graph", top: int, doubts: Sequence[str]
) -> Iterator[Any]:
    from coexec.cli.console import show
    from coexec.units import format_seconds

    places = system.places
    first = cost.tasks_s[places[0]]
    rows = [
        (task.name, task.kind, *(_time(cost, place, task.name) for place in places))
        for task in sorted(graph.tasks, key=lambda task: -first[task.name])[:top]
    ]
    if len(graph.tasks) > top:
        rows.append((f"… {len(graph.tasks) - top} more", "", *("" for _ in places)))
    rows.append(("sum", "", *(format_seconds(cost.total_s(p)) for p in places)))
    rows.append(("a launch", "", *(format_seconds(cost.launch_s(p)) for p in places)))
    yield show(rows, ("task", "kind", *map(str, places)))
    for place in places:
        yield _basis_counts(cost, place)
        if parts := len(cost.pieces_s.get(place, {})):
            yield f"{place}: {parts} parts of tasks measured"
    yield from doubts
    yield from map(_of_link, system.links)
    for (source, target), change in cost.layout_changes.items():
        way = f"{source}, its own part" if source == target else f"{source} -> {target}"
        each_s, megabyte_s = format_seconds(change.tensor_s), format_seconds(1e6 * change.byte_s)
        yield (
            f"{way}: tensors that change their layout: {len(change.tensors)}, each "
            f"{each_s} and {megabyte_s} a MB"
        )


def _of_link(link: "Link") -> str:
    from coexec.units import format_seconds

    is_shared = link.bandwidth_bytes_per_s == float("inf")
    bandwidth = f"{link.bandwidth_bytes_per_s / 1e9:.1f} GB/s"
    copy = "memory is shared" if is_shared else bandwidth
    return f"{link.source} -> {link.target}: {format_seconds(link.sync_latency_s)}, {copy}"


def _time(cost: "CostTable", place: "Place", task: str) -> str:
    from coexec.units import format_seconds

    basis = cost.bases.get(place, {}).get(task)
    return ("~" if basis == "predicted" else "") + format_seconds(cost.tasks_s[place][task])


def _basis_counts(cost: "CostTable", place: "Place") -> str:
    """Line with the number of tasks by the basis of their times: measured, predicted and so on."""
    from coexec.costs.table import Basis

    counts = Counter(cost.bases.get(place, {}).values())
    texts = [f"{counts[basis]} {basis}" for basis in get_args(Basis) if counts[basis]]
    line = f"{place}: {', '.join(texts) or 'runs none'} of {len(cost.tasks_s[place])} tasks"
    if not (disturbed := len(cost.disturbed.get(place, ()))):
        return line
    return (
        f"{line}; {disturbed} while other programs used the processors: when these are idle, the "
        f"next plan measures again"
    )
