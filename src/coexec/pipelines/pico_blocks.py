"""PICO with blocks in place of pieces: what Algorithm 1 is worth."""

from coexec.solvers.stages.blocks import chain_of_blocks
from coexec.solvers.stages.network import TimeModel
from coexec.solvers.stages.pipeline import Rebalance, pipelined
from coexec.solvers.stages.problem import PipelineProblem, PipelineSolution

__all__ = ["solve"]


def solve(
    problem: PipelineProblem,
    *,
    rebalance: Rebalance = "shares",
    model: TimeModel = "overlap",
    latency_limit_s: float | None = None,
) -> PipelineSolution:
    """`pico`, but stages begin and end only where a single tensor is handed on.

    A graph that hands on several everywhere, such as NASNet, is one stage. The baseline of the
    paper's Fig. 12. Options are those of `pico`.

    Raises:
        UsageError: an option out of its range.
        InfeasibleError: no pipeline keeps the limit of latency.
    """
    blocks = chain_of_blocks(problem.rows)
    return pipelined(problem, [blocks], model, latency_limit_s, rebalance)
