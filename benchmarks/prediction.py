"""Accuracy of the simulator's prediction of the executor's time.

The profile measures single tasks on one core and contains no time of a complete plan. The tables
compare simulated makespans with times measured in a loop, which is also how tasks are profiled, for
the parallel plan and for one device alone. Goal: a median error of at most 10 % over the zoo.
"""

import statistics
from functools import partial

from common import arguments, in_turns, show, source, two_cores

from coexec.model.inputs import random_inputs
from coexec.research.zoo import MODELS
from coexec.selection.planning_context import PlanningContext, make_plan
from coexec.settings import Settings
from coexec.timing.simulate import simulate


def main() -> None:
    args = arguments(__doc__ or "", list(MODELS))
    devices = two_cores()
    rows = []
    for name in args.models:
        work = PlanningContext(source(name), Settings(devices, cache=args.cache, fresh=args.fresh))
        cost, system = work.measured
        feeds = random_inputs(work.model.graph)
        for planner in ("hope_greedy", "single"):
            plan = make_plan(planner, {}, work.model.graph, cost, system)
            predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
            with work.start(work.prepared(plan)) as executor:
                outcome = in_turns({"run": partial(executor.run, feeds)}, args.rounds, ["loop"])
            measured_s = outcome.median_s("run", "loop")
            rows.append(
                {
                    "model": name,
                    "planner": planner,
                    "simulated_s": predicted_s,
                    "measured_s": measured_s,
                    "error": predicted_s / measured_s - 1,
                }
            )
    for planner in ("hope_greedy", "single"):
        errors = [abs(row["error"]) for row in rows if row["planner"] == planner]
        rows.append(
            {
                "model": "median",
                "planner": planner,
                "simulated_s": "",
                "measured_s": "",
                "error": statistics.median(errors),
            }
        )
    show("simulated against measured makespan, " + " + ".join(devices), rows, args.json)


if __name__ == "__main__":
    main()
