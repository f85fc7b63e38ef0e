"""PICO's steps after the choice of pieces: stages on equal machines, then on the real machines."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from coexec.errors import InfeasibleError, UsageError
from coexec.pipeline.planners.methods.bodies import Bodies
from coexec.pipeline.planners.methods.building import notes_of, stages_of_groups
from coexec.pipeline.planners.methods.network import StageKey, StageTime, TimeModel
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


_Times = Mapping[StageKey, StageTime]


class _StageWay(NamedTuple):
    """A chain of stages up to some piece, on some machines."""

    shared_s: float
    latency_s: float
    stages: "tuple[_StageWay, StageKey] | None"


def least_period(
    times: _Times, pieces: int, machines: int, latency_limit_s: float = math.inf
) -> list[StageKey] | None:
    """Stages of the least period on equal machines, PICO's Algorithm 2 made exact; None if no chain
    of stages keeps the latency limit.

    The printed algorithm memoises without the latency limit and subtracts from the limit in place,
    so its result depends on the order of its calls. Here, bisection runs over the candidate
    periods. For each candidate, a dynamic program over (pieces done, machines used) finds all
    chains of stages that take no longer and are Pareto-optimal in two values: use of the shared
    medium, and latency. Of the chains with the least period, the one with the least latency is
    returned.

    O(L^2 D^2 log(L^2 D)) for L pieces and D machines without a shared medium.
    """
    bounds = sorted({time.period_s for time in times.values()})
    by_end = _by_end(times, pieces)

    def reached(bound_s: float) -> float:
        """The period of the best chain whose stages take no longer than ``bound_s``."""
        chain_ends = _ways(by_end, pieces, machines, bound_s, latency_limit_s)
        return max(bound_s, min((chain.shared_s for chain in chain_ends), default=math.inf))

    low = bisect_left(bounds, True, key=lambda bound_s: reached(bound_s) <= bound_s)
    tried = [bounds[i] for i in (low - 1, low) if 0 <= i < len(bounds)]
    period_s = min(reached(bound_s) for bound_s in tried)
    if period_s == math.inf:
        return None
    chains = _ways(by_end, pieces, machines, period_s, latency_limit_s)
    best = min((w for w in chains if w.shared_s <= period_s), key=lambda way: way.latency_s)
    stages: list[StageKey] = []
    while best.stages is not None:
        best, stage = best.stages
        stages.append(stage)
    return stages[::-1]


_ByEnd = Sequence[Sequence[tuple[float, StageKey, StageTime]]]


def _by_end(times: _Times, pieces: int) -> _ByEnd:
    """All stages by their last piece, with rising period."""
    stages_of: list[list[tuple[float, StageKey, StageTime]]] = [[] for _ in range(pieces)]
    for key, time in times.items():
        stages_of[key[1]].append((time.period_s, key, time))
    for rows in stages_of:
        rows.sort()
    return stages_of


def _ways(
    by_end: _ByEnd, pieces: int, machines: int, bound_s: float, limit_s: float
) -> Sequence[_StageWay]:
    """All Pareto-optimal chains up to the last piece (use of the shared medium, latency)."""
    chains: list[list[list[_StageWay]]] = [
        [[] for _ in range(machines + 1)] for _ in range(pieces + 1)
    ]
    chains[0][0] = [_StageWay(0.0, 0.0, None)]
    for last in range(pieces):
        for period_s, stage, time in by_end[last]:
            if period_s > bound_s:
                break
            first, _, count = stage
            for used in range(machines + 1 - count):
                for chain in chains[first][used]:
                    latency_s = chain.latency_s + time.latency_s
                    if latency_s <= limit_s:
                        _add(
                            chains[last + 1][used + count],
                            chain.shared_s + time.shared_s,
                            latency_s,
                            chain,
                            stage,
                        )
    best_chains: list[_StageWay] = []
    for end in chains[pieces]:
        for chain in end:
            if chain.stages is not None or not pieces:
                _add(best_chains, chain.shared_s, chain.latency_s, *(chain.stages or (chain, None)))
    return best_chains


def _add(
    stage_ways: list[_StageWay],
    shared_s: float,
    latency_s: float,
    before: _StageWay,
    stage: StageKey | None,
) -> None:
    if any(w.shared_s <= shared_s and w.latency_s <= latency_s for w in stage_ways):
        return
    stage_ways[:] = [w for w in stage_ways if w.shared_s < shared_s or w.latency_s < latency_s]
    stage_ways.append(_StageWay(shared_s, latency_s, None if stage is None else (before, stage)))
