"""PICO with blocks in place of pieces, to measure the gain by Algorithm 1."""

from coexec.pipeline.planners.methods.network import TimeModel
from coexec.pipeline.planners.methods.pieces import chain_of_blocks
from coexec.pipeline.planners.methods.pipeline import Rebalance, pipelined
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution


def solve(
    problem: PipelineProblem,
    *,
    rebalance: Rebalance = "shares",
    model: TimeModel = "overlap",
    latency_limit_s: float | None = None,
) -> PipelineSolution:
    """`pico`, but stages begin and end only where a single tensor crosses the border.

    A graph in which several tensors cross each border, such as NASNet, is one stage. The baseline
    of the paper's Fig. 12. Options are those of `pico`.

    Raises:
        UsageError: an option is out of its range.
        InfeasibleError: no pipeline keeps the latency limit.
    """
    blocks = chain_of_blocks(problem.rows)
    return pipelined(problem, [blocks], model, latency_limit_s, rebalance)
