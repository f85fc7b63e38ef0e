"""AOFL: layers are fused where that is worth the halo; all machines compute one block after the
other."""

from coexec.pipeline.plan.plan import Stage
from coexec.pipeline.planners.methods.bodies import in_proportion
from coexec.pipeline.planners.methods.building import notes_of, stages_of
from coexec.pipeline.planners.methods.pieces import chain_of_blocks
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution


def solve(problem: PipelineProblem) -> PipelineSolution:
    """Fused blocks of least latency, each on all machines, with rows in proportion to their
    capacities.

    A dynamic program over the ends of blocks. The latency of a block is its longest computation,
    plus all messages that the leader (the strongest machine) sends and receives; the latency of the
    blocks before it is added. One frame at a time. A baseline. From "Adaptive Parallel Execution of
    Deep Neural Networks on Heterogeneous Edge Devices" (Zhou et al., SEC 2019), which also cuts
    between blocks only.
    """
    machines = problem.machines
    weights = [problem.rate[name] for name in machines]
    blocks = chain_of_blocks(problem.rows)
    dones = [0]
    for block in blocks:
        dones.append(dones[-1] | block)
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(dones)):
        options = []
        for start in range(end):
            body = problem.bodies.of(dones[end] & ~dones[start])
            shares = in_proportion(body.height, weights)
            load = problem.load(dones[start], body, machines, shares)
            # The leader is always the same: nothing is forwarded.
            time = problem.wires.stage_time(load._replace(forwarded_bytes=0), "forwarding")
            options.append((best[start][0] + time.latency_s, start))
        best.append(min(options))
    stages, end = list[Stage](), len(blocks)
    while end:
        start = best[end][1]
        body = problem.bodies.of(dones[end] & ~dones[start])
        shares = in_proportion(body.height, weights)
        stages[:0] = stages_of(problem, body, machines, shares)
        end = start
    return PipelineSolution(tuple(stages), best[-1][0], at_once=1, notes=notes_of(problem))
