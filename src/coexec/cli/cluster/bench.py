"""`coexec cluster bench`: a pipeline in turns with one machine alone and with other schemes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coexec.cli.cluster.answers import Answers
from coexec.cli.cluster.common import (
    AddressOpt,
    ClusterOpt,
    DeadlineOpt,
    NodesOpt,
    PipelineOpt,
    TokenOpt,
    checked_model,
    entered,
)
from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    JsonOpt,
    ModelArg,
    OptionOpt,
    ShapeOpt,
    ValueOpt,
    print_json,
    settings,
)
from coexec.cli.console import err, out
from coexec.errors import PlanError, UsageError
from coexec.plans.pipeline.work import redundancy
from coexec.units import format_seconds

if TYPE_CHECKING:
    from coexec.cli.cluster.frames import Answered, Frames
    from coexec.cluster.cluster import Cluster
    from coexec.cluster.session import ClusterSession
    from coexec.cluster.settings import ClusterSettings

_SCHEMES = ("layer_wise", "coedge", "optimal_fused", "early_fused")
"""Which PICO is compared with."""
_WARM_UP = 8
"""Frames before turns are timed."""


def command(
    model: ModelArg,
    cluster: ClusterOpt = None,
    address: AddressOpt = None,
    nodes: NodesOpt = None,
    token_file: TokenOpt = None,
    frames: Annotated[int, typer.Option(min=1, help="Frames of a turn.")] = 24,
    turns: Annotated[int, typer.Option(min=1, help="Of the pipeline and of each rival.")] = 3,
    planner: PipelineOpt = "pico",
    option: OptionOpt = None,
    deadline: DeadlineOpt = 60.0,
    check: bool = False,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Compare a pipeline with the best machine alone and with the schemes PICO is compared with.

    Machines are measured once, and plans stay as they are. The pipeline takes turns with each
    rival, so that a noisy machine disturbs both alike; ratios are of turns beside each other.
    """
    from coexec.cli.cluster.frames import feed, given_frames
    from coexec.cluster.settings import ClusterSettings, read_settings

    asked = settings(option=option, shape=shape, value=value, cache=cache)
    known = ClusterSettings() if cluster is None else read_settings(cluster)
    given = checked_model(model, asked, planner, None, deadline)
    graph = given.model.graph
    coming = given_frames(graph, None, frames, frames)
    warm_up = replace(coming, count=_WARM_UP)
    answers = Answers(given, coming, check, keep=False)
    how: dict[str, Any] = {"shapes": asked.shapes, "values": asked.values, "deadline_s": deadline}
    left_out: dict[str, str] = {}
    with (
        entered(known, address, nodes, token_file, cache) as joined,
        joined.session(
            model, planner=planner, planner_options=asked.planner_options,
            settings=_lasting(joined.settings), **how,
        ) as session,
    ):  # fmt: skip
        feed(session, warm_up, None, answers.take)
        ours = _BenchRow(planner)
        rows = [ours]
        for name, rival, chosen in _rivals(joined, session, planner):
            if not json:
                err.print(f"coexec: {ours.name} beside {name}", soft_wrap=True)
            try:
                beside = joined.session(model, planner=rival, settings=chosen, **how)
            except PlanError as error:
                left_out[name] = str(error)
                continue
            row = _BenchRow(name)
            with beside:
                feed(beside, warm_up, None, answers.take)
                for _ in range(turns):
                    ours.note(feed(session, coming, None, answers.take))
                    row.note(feed(beside, coming, None, answers.take), ours)
                row.told(beside)
            rows.append(row)
        if len(rows) == 1:
            ours.note(feed(session, coming, None, answers.take))
        ours.told(session)
    said = answers.judged()
    if json:
        print_json({"model": graph.name, "rows": [row.facts() for row in rows],
                    "left_out": left_out, "differences": answers.differences})  # fmt: skip
        return
    _show(graph.name, rows, coming)
    for name, reason in left_out.items():
        out.print(f"left out: {name}: {reason}")
    if check:
        out.print(f"check: {said}")


def _rivals(
    cluster: "Cluster", session: "ClusterSession", planner: str
) -> "list[tuple[str, str, ClusterSettings]]":
    """By rival its name, its planner and its machines, with capacities and ports as measured for
    the session.

    Raises:
        UsageError: there is one machine only.
    """
    from coexec.cluster.machine import MachineOptions

    machines = session.status().machines
    if len(machines) < 2:
        raise UsageError("the cluster has one machine, and nothing to compare it with; let others "
                         "join with `coexec cluster join`, or try --nodes 4")  # fmt: skip
    stated = {
        each.name: {"flops_per_s": each.flops_per_s,
                    "bandwidth_bytes_per_s": each.bandwidth_bytes_per_s}
        for each in machines
    }  # fmt: skip
    latency_s = max(each.latency_s for each in machines)
    known = replace(_lasting(cluster.settings), stated=stated, latency_s=latency_s)
    best = max(machines, key=lambda each: each.flops_per_s).name
    alone = {best: known.machines.get(best, MachineOptions())}
    rivals = [(f"{best} alone", planner, replace(known, machines=alone))]
    return rivals + [(scheme, scheme, known) for scheme in _SCHEMES if scheme != planner]


def _lasting(settings: "ClusterSettings") -> "ClusterSettings":
    """Settings by which a plan is changed only if a machine is lost."""
    return replace(settings, limits=replace(settings.limits, rest_s=math.inf))


@dataclass
class _BenchRow:
    """A scheme's turns."""

    name: str
    periods_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Of its period and the pipeline's beside it."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What is predicted."""

    def note(self, answered: "Answered", beside: "_BenchRow | None" = None) -> None:
        """A turn is over."""
        self.periods_s.append(answered.period_s)
        self.latencies_s.append(answered.latency_s)
        if beside is not None:
            self.ratios.append(answered.period_s / beside.periods_s[-1])

    def told(self, session: "ClusterSession") -> None:
        """What a session says of its plan."""
        status = session.status()
        self.plan = {
            "predicted_period_s": status.predicted_period_s,
            "predicted_latency_s": status.predicted_latency_s,
            "redundancy": redundancy(session.graph, session.plan),
            "stages": len(session.plan.stages), "machines": session.plan.machines,
            "changes": status.changes[1:],
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name, "period_s": median(self.periods_s),
            "latency_s": median(self.latencies_s),
            "ratio": median(self.ratios) if self.ratios else 1.0, **self.plan,
        }  # fmt: skip


def _show(name: str, rows: list[_BenchRow], frames: "Frames") -> None:
    table = Table("", "stages", "machines", "period", "predicted", "ratio", "latency", "redundant",
                  box=None)  # fmt: skip
    for row in rows:
        facts = row.facts()
        table.add_row(
            row.name, str(facts["stages"]), str(len(facts["machines"])),
            format_seconds(facts["period_s"]), format_seconds(facts["predicted_period_s"]),
            f"{facts['ratio']:.2f}", format_seconds(facts["latency_s"]),
            f"{facts['redundancy']:.1%}",
        )  # fmt: skip
    out.print(f"{name}, {frames.count} frames a turn; as many inside as credits allow")
    out.print(table)
    out.print("ratio: its period over that of the pipeline in the turn before, the median")
    for row in rows:
        for line in row.plan["changes"]:
            out.print(f"changed {row.name}: {line}")
