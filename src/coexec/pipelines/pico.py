"""PICO: pieces with little redundancy, stages of pieces, rows of stages."""

from typing import Literal

from coexec.errors import UsageError
from coexec.solvers.stages.blocks import chain_of_blocks
from coexec.solvers.stages.network import TimeModel
from coexec.solvers.stages.pieces import DIAMETER
from coexec.solvers.stages.pipeline import Rebalance, fine_pieces, pipelined
from coexec.solvers.stages.problem import PipelineProblem, PipelineSolution

__all__ = ["solve"]

Cuts = Literal["pieces", "both"]


def solve(
    problem: PipelineProblem,
    *,
    rebalance: Rebalance = "shares",
    model: TimeModel = "overlap",
    latency_limit_s: float | None = None,
    diameter: int = DIAMETER,
    cuts: Cuts = "both",
) -> PipelineSolution:
    """Cut the graph into a chain of pieces, pieces into stages, and stages into rows.

    Algorithm 1 makes pieces of which the one with the most redundant work has as little as can be;
    exact, but for wide graphs (`solvers.stages.wide`). Algorithm 2 finds the stages of least period
    on equal machines of mean capacity, exactly for the model of time. Algorithm 3 gives them to the
    machines there are, and their rows so that all finish together.

    Paper: Yang et al., "PICO: Pipeline Inference Framework for Versatile CNNs on Diverse Mobile
    Devices".

    Args:
        rebalance: "shares" is the paper's; "stages" also moves pieces and machines between stages,
            for machines that differ much. It is never worse, and takes up to seconds.
        model: of a stage's time, see `solvers.stages.network`.
        latency_limit_s: of one frame, by Algorithm 2's own times; None for no limit.
        diameter: the longest path inside of a piece, in edges.
        cuts: "pieces" is the paper's. Pieces are chosen for little work, and may hand on more than
            blocks do; "both" plans with blocks, too, and takes the shorter period.

    Raises:
        UsageError: an option out of its range.
        InfeasibleError: no pipeline keeps the limit of latency.
    """
    if diameter < 0:
        raise UsageError(f"diameter is at least 0, not {diameter}")
    if cuts not in ("pieces", "both"):
        raise UsageError(f"cuts is pieces or both, not {cuts!r}")
    if diameter not in problem.chains:
        problem.chains[diameter] = fine_pieces(problem.bodies, diameter).chain
    chains = [problem.chains[diameter]]
    if cuts == "both":
        chains.append(tuple(chain_of_blocks(problem.rows)))
    return pipelined(problem, chains, model, latency_limit_s, rebalance)
