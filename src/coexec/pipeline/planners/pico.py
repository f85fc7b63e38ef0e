"""PICO: pieces with little redundancy, stages of pieces, rows of stages."""

from typing import Literal

from coexec.errors import UsageError
from coexec.pipeline.planners.methods.network import TimeModel
from coexec.pipeline.planners.methods.pieces import DIAMETER, chain_of_blocks
from coexec.pipeline.planners.methods.pipeline import Rebalance, fine_pieces, pipelined
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution

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

    Algorithm 1 makes pieces such that the largest redundant work of a piece is least; it is exact
    except for wide graphs (`wide_chain`). Algorithm 2 finds the stages of least period on equal
    machines of mean capacity; it is exact for the model of time. Algorithm 3 assigns the stages to
    the real machines, and rows such that all machines of a stage finish together.

    Paper: Yang et al., "PICO: Pipeline Inference Framework for Versatile CNNs on Diverse Mobile
    Devices".

    Args:
        rebalance: "shares" is the paper's; "stages" also moves pieces and machines between stages,
            for machines that differ much. It is never worse, and takes up to seconds.
        model: the model of a stage's time, see `coexec.pipeline.planners.methods.network`.
        latency_limit_s: limit for the latency of one frame, by Algorithm 2's own times; None for no
            limit.
        diameter: the longest path inside a piece, in edges.
        cuts: "pieces" is the paper's. Pieces are chosen for little redundant work, and more tensors
            may cross their borders than those of blocks; "both" also plans with blocks, and takes
            the shorter period.

    Raises:
        UsageError: an option is out of its range.
        InfeasibleError: no pipeline keeps the latency limit.
    """
    if diameter < 0:
        raise UsageError(f"diameter is at least 0, not {diameter}")
    if diameter not in problem.chains:
        problem.chains[diameter] = fine_pieces(problem.bodies, diameter).chain
    chains = [problem.chains[diameter]]
    if cuts == "both":
        chains.append(tuple(chain_of_blocks(problem.rows)))
    return pipelined(problem, chains, model, latency_limit_s, rebalance)
