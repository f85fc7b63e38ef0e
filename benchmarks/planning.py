"""CPU seconds of planners, over networks and numbers of simulated devices.

Two machines with any number of devices. "alike": clusters of one phone with one memory and 60 us
between them. "unlike": each further device is slower, starting a segment takes 20 us, and links
copy at 5 GB/s. The digest of a plan shows whether two versions of coexec make the same plan: run
this with `--json` on both.
"""

import argparse
import cProfile
import hashlib
import json
import pstats
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from common import show
from dense_net import dense_net
from hope_tables import Row

from coexec.costs.base import CostModel
from coexec.costs.table import CostTable
from coexec.errors import CoexecError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Link, System
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.planners import PLANNERS
from coexec.research import platforms
from coexec.research.platforms.costs import PlatformCosts
from coexec.research.zoo import build
from coexec.timing.simulate import simulate

DENSE = "densenet121"
MODELS = (DENSE, "inception_v3", "nasnet_large", "resnet34")
PLANNED = ("codl", "mulayer", "hope_greedy", "heft")
MACHINES = ("alike", "unlike")
SHOWN = 25
"""Functions of a profile that are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help="densenet121 or zoo names")
    parser.add_argument("--devices", default="2,4,8", help="numbers of devices, as 2,4,8")
    parser.add_argument("--machines", default=",".join(MACHINES), help="as alike,unlike")
    parser.add_argument("--planners", default=",".join(PLANNED), help="as codl,heft")
    parser.add_argument("--options", default="{}", help="options of the planners, as JSON")
    parser.add_argument("--rounds", type=int, default=1, help="turns, of which the best counts")
    parser.add_argument("--profile", action="store_true", help="also print a profile of each call")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    args = parser.parse_args()
    for model in args.models:
        graph = graph_of(model)
        for machine in args.machines.split(","):
            title = f"{model}, {len(graph.tasks)} tasks, {machine}"
            show(title, list(rows(graph, machine, args)), args.json)


def rows(graph: Graph, machine: str, args: argparse.Namespace) -> Iterator[Row]:
    """A row for each planner and number of devices."""
    for count in map(int, args.devices.split(",")):
        system, cost = alike(count) if machine == "alike" else unlike(graph, count)
        for planner in args.planners.split(","):
            yield {"devices": count, "planner": planner} | timed(planner, graph, cost, system, args)


def timed(
    planner: str, graph: Graph, cost: CostModel, system: System, args: argparse.Namespace
) -> Row:
    options, seconds, profile = json.loads(args.options), [], cProfile.Profile()
    for _ in range(args.rounds):
        start_s = time.process_time()
        try:
            plan = PLANNERS[planner](graph, cost, system, **options)
        except CoexecError as error:
            return {"planning_s": None, "makespan_s": None, "plan": str(error)}
        seconds.append(time.process_time() - start_s)
    if args.profile:
        profile.runcall(PLANNERS[planner], graph, cost, system, **options)
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)
    makespan_s = simulate(derive(plan, graph), cost, system).makespan_s
    return {"planning_s": min(seconds), "makespan_s": makespan_s, "plan": digest_of(plan)}


def digest_of(plan: Plan) -> str:
    """Equal for plans with the same pieces in the same order on the same devices."""
    order = {device: list(map(str, pieces)) for device, pieces in plan.order.items()}
    text = json.dumps([order, sorted(map(str, plan.fused))])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def graph_of(model: str) -> Graph:
    source = dense_net() if model == DENSE else build(model)
    return load(source, digest=model).graph


def alike(count: int) -> tuple[System, PlatformCosts]:
    """Equal clusters of a phone."""
    phone = platforms.load("snapdragon_855", ["cpu:4-7"])
    (cluster,), (rates,) = phone.system.devices, phone.cost.rates.values()
    names = [f"cpu:{i}" for i in range(count)]
    devices = tuple(replace(cluster, name=n, cores=(i,)) for i, n in enumerate(names))
    links = tuple(Link(a.place, b.place, 60e-6) for a in devices for b in devices if a != b)
    system = System(devices, links)
    return system, PlatformCosts(dict.fromkeys(system.places, rates), {})


def unlike(graph: Graph, count: int) -> tuple[System, CostTable]:
    """Device i takes 1 + i / 4 times as long as the first one."""
    equal, phone = alike(count)
    links = tuple(replace(link, bandwidth_bytes_per_s=5e9) for link in equal.links)
    tasks_s = {
        place: {
            task.name: (1 + number / 4)
            * phone.piece_s(graph, task, graph.output_of(task).whole, place)
            for task in graph.tasks
        }
        for number, place in enumerate(equal.places)
    }
    launches_s = dict.fromkeys(equal.places, 20e-6)
    stitches_s = dict.fromkeys(equal.places, (5e-6, 1e-10))
    return System(equal.devices, links), CostTable(tasks_s, launches_s, stitches_s=stitches_s)


if __name__ == "__main__":
    main()
