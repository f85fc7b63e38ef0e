"""The rows of `coexec cluster bench`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from rich.table import Table

from coexec.cli.cluster.frames import Answered, Frames
from coexec.cli.console import out
from coexec.errors import UsageError
from coexec.pipeline.cluster.cluster import Cluster
from coexec.pipeline.cluster.machine import MachineOptions
from coexec.pipeline.cluster.session import ClusterSession
from coexec.pipeline.cluster.settings import ClusterSettings
from coexec.pipeline.plan.work import redundancy
from coexec.units import format_seconds

_SCHEMES = ("layer_wise", "coedge", "optimal_fused", "early_fused")
"""Schemes with which PICO is compared."""


def rivals(
    cluster: "Cluster", session: "ClusterSession", planner: str
) -> "list[tuple[str, str, ClusterSettings]]":
    """Name, planner and cluster settings of each rival. Capacities of machines and bandwidths of
    their ports are those measured for the session.

    Raises:
        UsageError: there is only one machine.
    """
    machines = session.status().machines
    if len(machines) < 2:
        raise UsageError(
            "the cluster has one machine, and nothing to compare it with; let others "
            "join with `coexec cluster join`, or try --nodes 4"
        )
    settings = lasting(cluster.settings)
    options = {
        each.name: replace(
            settings.machines.get(each.name, MachineOptions()),
            flops_per_s=each.flops_per_s,
            bandwidth_bytes_per_s=each.bandwidth_bytes_per_s,
        )
        for each in machines
    }
    latency_s = max(each.latency_s for each in machines)
    settings = replace(settings, machines=options, latency_s=latency_s)
    best = max(machines, key=lambda each: each.flops_per_s).name
    alone = replace(settings, machines={best: options[best]})
    schemes = [(scheme, scheme, settings) for scheme in _SCHEMES if scheme != planner]
    return [(f"{best} alone", planner, alone), *schemes]


def lasting(settings: "ClusterSettings") -> "ClusterSettings":
    """``settings``, changed so that a plan changes only if a machine is lost."""
    return replace(settings, limits=replace(settings.limits, rest_s=math.inf))


@dataclass
class BenchRow:
    """The turns of a scheme."""

    name: str
    periods_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Its period over the pipeline's period in the turn before, for each turn."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Predictions and figures of its plan."""

    def note(self, answered: "Answered", beside: "BenchRow | None" = None) -> None:
        """Record a turn; ``beside``: the pipeline's row, which has had its turn just before."""
        self.periods_s.append(answered.period_s)
        self.latencies_s.append(answered.latency_s)
        if beside is not None:
            self.ratios.append(answered.period_s / beside.periods_s[-1])

    def told(self, session: "ClusterSession") -> None:
        """Record the predictions and the plan of a session."""
        status = session.status()
        self.plan = {
            "predicted_period_s": status.predicted_period_s,
            "predicted_latency_s": status.predicted_latency_s,
            "redundancy": redundancy(session.graph, session.plan),
            "stages": len(session.plan.stages),
            "machines": session.plan.machines,
            "changes": status.changes[1:],
        }

    def facts(self) -> dict[str, Any]:
        """Facts of the row for the JSON document."""
        return {
            "name": self.name,
            "period_s": median(self.periods_s),
            "latency_s": median(self.latencies_s),
            "ratio": median(self.ratios) if self.ratios else 1.0,
            **self.plan,
        }


def print_bench(name: str, rows: list[BenchRow], frames: "Frames") -> None:
    table = Table(
        "", "stages", "machines", "period", "predicted", "ratio", "latency", "redundant", box=None
    )
    for row in rows:
        facts = row.facts()
        table.add_row(
            row.name,
            str(facts["stages"]),
            str(len(facts["machines"])),
            format_seconds(facts["period_s"]),
            format_seconds(facts["predicted_period_s"]),
            f"{facts['ratio']:.2f}",
            format_seconds(facts["latency_s"]),
            f"{facts['redundancy']:.1%}",
        )
    out.print(f"{name}, {frames.count} frames a turn; as many inside as credits allow")
    out.print(table)
    out.print("ratio: its period over that of the pipeline in the turn before, the median")
    for row in rows:
        for line in row.plan["changes"]:
            out.print(f"changed {row.name}: {line}")
