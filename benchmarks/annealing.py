"""Time of a search for one plan: the evaluation of its launches, and a step of the annealing.

`problem.fusion.Evaluator` and the simulator use the same clock, the former by indices of tasks and
the latter by segments, so their results are equal. This benchmark shows how much faster the
evaluator is than `derive` and `simulate`. The networks run on simulated phones, and on two cores of
one phone, where nothing is copied.
"""

import argparse
import time
from collections.abc import Callable, Iterator

from common import show
from hope_tables import Row, graph_of

from coexec.costs.table import CostTable
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Device, Link, System
from coexec.planners import heft
from coexec.planners.methods.annealing import annealed
from coexec.problem.fusion import Evaluator, queues_of
from coexec.problem.problem import Problem
from coexec.problem.solution import simulated_s
from coexec.research.platforms import load

MODELS = ("squeezenet", "pnasnet_mobile", "nasnet_large")
STEPS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help="files or zoo names")
    parser.add_argument("--rounds", type=int, default=7, help="turns, of which the best counts")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    for model in args.models:
        graph = graph_of(model)
        show(f"{model}, {len(graph.tasks)} tasks", list(rows(graph, args.rounds)), args.json)


def rows(graph: Graph, rounds: int) -> Iterator[Row]:
    """Seconds of one evaluation, of one step, and of the simulator, for each machine."""
    phones = {name: load(name) for name in ("kirin_990", "snapdragon_712")}
    machines = {name: Problem(graph, phone.cost, phone.system) for name, phone in phones.items()}
    for name, problem in {"two cores": two_cores(graph), **machines}.items():
        start = heft.solve(problem)
        queues, evaluator = queues_of(problem, start), Evaluator(problem)

        def evaluate(evaluator: Evaluator = evaluator, queues: list = queues) -> None:
            evaluator.run(queues)

        steps_s = best_s(lambda p=problem, s=start: annealed(p, s, STEPS), 1, rounds)
        yield {
            "machine": name,
            "launches": sum(map(len, queues)),
            "evaluation_s": best_s(evaluate, 100, rounds),
            "step_s": steps_s / STEPS,
            "derived and simulated_s": best_s(
                lambda p=problem, s=start: simulated_s(p, s), 1, rounds
            ),
        }


def two_cores(graph: Graph) -> Problem:
    """Two cores of a phone with shared memory; the latency between them is 68 us, a launch 6 us."""
    phone = load("kirin_990", ["cpu:6-7"])
    tasks_s = {
        task.name: phone.cost.piece_s(
            graph, task, graph.output_of(task).whole, phone.system.places[0]
        )
        for task in graph.tasks
    }
    devices = tuple(Device(name, "simulated") for name in ("cpu:6", "cpu:7"))
    ends = [device.place for device in devices]
    links = (Link(ends[0], ends[1], 68e-6), Link(ends[1], ends[0], 68e-6))
    cost = CostTable(dict.fromkeys(ends, tasks_s), dict.fromkeys(ends, 6e-6))
    return Problem(graph, cost, System(devices, links))


def best_s(run: Callable[[], object], times: int, rounds: int) -> float:
    """CPU seconds of one run, the minimum of all rounds, because other programs only add time."""
    seconds = []
    for _ in range(rounds):
        start_s = time.process_time()
        for _ in range(times):
            run()
        seconds.append((time.process_time() - start_s) / times)
    return min(seconds)


if __name__ == "__main__":
    main()
