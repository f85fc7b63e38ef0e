"""MoDNN: each layer's feature map is cut into strips, which one master scatters and gathers."""

from coexec.pipeline.plan.plan import Stage
from coexec.pipeline.planners.methods.bodies import in_proportion
from coexec.pipeline.planners.methods.building import layers_of, notes_of, stages_of
from coexec.pipeline.planners.methods.network import StageTime
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution


def solve(problem: PipelineProblem) -> PipelineSolution:
    """Each task on all machines, with rows in proportion to their capacities.

    The strongest machine scatters and gathers, and computes tasks that cannot be cut. One frame at
    a time. A baseline: nothing is computed twice, and all maps cross the network. From "MoDNN:
    Local Distributed Mobile Computing System for Deep Neural Network" (Mao et al., DATE 2017).
    """
    machines = problem.machines
    weights = [problem.rate[name] for name in machines]
    stages, times, done = list[Stage](), list[StageTime](), 0
    for tasks in layers_of(problem):
        body = problem.bodies.of(tasks)
        shares = in_proportion(body.height, weights)
        stages += stages_of(problem, body, machines, shares)
        # The master has the outputs of the previous layer: nothing is forwarded.
        load = problem.load(done, body, machines, shares)._replace(forwarded_bytes=0)
        times.append(problem.wires.stage_time(load, "forwarding"))
        done |= tasks
    period_s = sum(time.latency_s for time in times)
    return PipelineSolution(tuple(stages), period_s, at_once=1, notes=notes_of(problem))
