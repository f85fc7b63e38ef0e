"""PICO's steps after the choice of pieces: stages on equal machines, then on the real machines."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from coexec.errors import InfeasibleError, UsageError
from coexec.pipeline.planners.methods.bodies import Bodies
from coexec.pipeline.planners.methods.building import notes_of, stages_of_groups
from coexec.pipeline.planners.methods.network import TimeModel
from coexec.pipeline.planners.methods.period import least_period
from coexec.pipeline.planners.methods.pieces import (
    DIAMETER,
    Dag,
    TooWide,
    least_chain,
    wide_chain,
)
from coexec.pipeline.planners.methods.problem import Group, PipelineProblem, PipelineSolution
from coexec.pipeline.planners.methods.table import StageTable
from coexec.pipeline.planners.methods.unlike import assigned, moved
from coexec.units import format_seconds

Rebalance = Literal["shares", "stages"]
_ARCS = 10_000
"""A graph counts as wide if more pieces than this would have to be tried."""


class Pieces(NamedTuple):
    """A chain of pieces, each as bits of tasks."""

    chain: tuple[int, ...]
    exact: bool
    """Whether all chains were tried, and not only those of `wide_chain`."""


def fine_pieces(bodies: Bodies, diameter: int = DIAMETER) -> Pieces:
    """The pieces of Algorithm 1."""
    dag = Dag(bodies.rows.before)

    def redundancy(piece: int) -> float:
        return float(bodies.of(piece).redundant_macs())

    wide = wide_chain(dag, redundancy, diameter)
    most = max(map(redundancy, wide), default=0.0)
    try:
        return Pieces(tuple(least_chain(dag, redundancy, diameter, _ARCS, most)), True)
    except TooWide:
        return Pieces(tuple(wide), False)


def stages_on_machines(
    problem: PipelineProblem,
    pieces: Sequence[int],
    model: TimeModel,
    limit_s: float,
    rebalance: Rebalance,
) -> list[Group]:
    """Algorithms 2 and 3 for a chain of pieces.

    Raises:
        InfeasibleError: no pipeline keeps the latency limit.
    """
    count = len(problem.machines)
    table = StageTable(problem.rows, pieces, count, problem.mean_mac_s)
    times = {key: problem.wires.stage_time(load, model) for key, load in table.loads.items()}
    stages = least_period(times, len(pieces), count, limit_s)
    if stages is None:
        whole = [times[key] for key in times if key[:2] == (0, len(pieces) - 1)]
        least_s = min(time.latency_s for time in whole)
        raise InfeasibleError(
            f"no pipeline of {problem.graph.name!r} on {count} machines answers within "
            f"{format_seconds(limit_s)}: one stage takes {format_seconds(least_s)}; raise "
            f"latency_limit_s, or use faster machines"
        )
    groups = assigned(problem, table, pieces, stages)
    return moved(problem, table, pieces, groups, model) if rebalance == "stages" else groups


def pipelined(
    problem: PipelineProblem,
    chains: Sequence[Sequence[int]],
    model: TimeModel,
    limit_s: float | None,
    rebalance: Rebalance,
) -> PipelineSolution:
    """The pipeline with the least period, over all ``chains`` of pieces.

    Raises:
        UsageError: an option has no meaning.
        InfeasibleError: no pipeline keeps the latency limit.
    """
    if limit_s is not None and not limit_s > 0:
        raise UsageError(f"latency_limit_s is above 0, not {limit_s:g}")
    limit = math.inf if limit_s is None else limit_s
    pipelines: list[list[Group]] = []
    errors: list[InfeasibleError] = []
    for pieces in chains:
        try:
            pipelines.append(stages_on_machines(problem, pieces, model, limit, rebalance))
        except InfeasibleError as error:
            errors.append(error)
    if not pipelines:
        raise errors[0]
    groups = min(pipelines, key=lambda groups: problem.period_s(groups, model))
    stages = stages_of_groups(problem, groups)
    return PipelineSolution(stages, problem.period_s(groups, model), notes=notes_of(problem))
