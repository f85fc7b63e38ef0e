"""Rows of PICO's tables, with coexec's figures and the paper's. All periods are simulated."""

import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from common import energy_of
from pico_clusters import Cluster, alike, branched, cluster, of_zoo

from coexec.errors import CoexecError
from coexec.graph.graph import Graph
from coexec.graph.width import width
from coexec.pipeline.network import NetworkKind
from coexec.pipeline.plan.memory import machine_memory
from coexec.pipeline.plan.plan import PipelinePlan
from coexec.pipeline.plan.work import redundancy, stage_work
from coexec.pipeline.planners import PIPELINES
from coexec.pipeline.planners.methods.network import MODELS
from coexec.pipeline.planners.methods.pieces import chain_of_blocks
from coexec.pipeline.planners.methods.pipeline import fine_pieces
from coexec.pipeline.planners.methods.problem import PipelineProblem
from coexec.pipeline.simulate import PipelineRun, simulate_pipeline

__all__ = [
    "CASES",
    "FRAMES",
    "PAPER_PIECES",
    "beside_exact",
    "machine_rows",
    "pieces_row",
    "run",
    "scheme_row",
    "speedups",
    "used",
]

Row = dict[str, Any]
FRAMES = 120
"""Number of frames that are sent through each plan."""
PAPER_PIECES: Mapping[str, tuple[int, int, str, str]] = {
    "vgg16": (19, 1, "0.10", "19"),
    "squeezenet": (30, 2, "0.14", "29"),
    "resnet34": (38, 2, "0.28", "21"),
    "mobilenet_v3": (96, 3, "0.79", "31"),
    "inception_v3": (99, 4, "3.01", "38"),
    "nasnet_large": (570, 8, "> 5 h, in 8 parts 1.9 h", "34"),
}
"""Table IV: layers, width, seconds, pieces."""
CASES: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "VI": ((2, 4, 4), (2, 8, 6), (3, 12, 4), (3, 12, 6), (3, 12, 8), (4, 20, 4), (4, 20, 6)),
    "VII": ((1, 4, 4), (1, 8, 4), (1, 12, 4), (1, 16, 4), (1, 8, 6), (1, 10, 6), (1, 12, 6),
            (1, 8, 8)),
}  # fmt: skip
"""Branches, layers, machines. Machines are equal in Table VI, and have 1.2, 0.8 and 0.6 GHz in
Table VII."""
PAPER_EXACT = {
    (2, 4, 4): "1.58 s", (2, 8, 6): "18.2 s", (3, 12, 4): "12 min", (3, 12, 6): "45 min",
    (3, 12, 8): "> 1 h", (4, 20, 4): "> 1 h", (4, 20, 6): "> 1 h", (1, 4, 4): "< 1 s",
    (1, 8, 4): "1.62 s", (1, 12, 4): "3.84 s", (1, 16, 4): "11.3 s", (1, 8, 6): "4.35 min",
    (1, 10, 6): "12.3 min", (1, 12, 6): "> 1 h", (1, 8, 8): "> 1 h",
}  # fmt: skip
"""Seconds of the breadth-first search in the paper."""
_CUTS = (
    ("pieces", "pico", {"cuts": "pieces"}),
    ("blocks", "pico_blocks", {}),
    ("both", "pico", {}),
)
_WINDOWS = {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool"}


def pieces_row(name: str) -> Row:
    """The row of a model in Table IV."""
    graph = of_zoo(name)
    problem = PipelineProblem(graph, *alike(1, 1.0))
    start = time.perf_counter()
    rows = problem.rows
    numbered = time.perf_counter()
    pieces = fine_pieces(problem.bodies)
    end = time.perf_counter()
    redundant = [problem.bodies.of(piece).redundant_macs() for piece in pieces.chain]
    blocks = [problem.bodies.of(b).redundant_macs() for b in chain_of_blocks(rows)]
    layers = sum(op.op_type in _WINDOWS for task in graph.tasks for op in task.operators)
    paper = PAPER_PIECES[name]
    return {
        "model": name,
        "tasks": len(graph.tasks),
        "conv and pool / paper": f"{layers} / {paper[0]}",
        "width / paper": f"{width(graph)} / {paper[1]}",
        "seconds / paper": f"{end - numbered:.2f} / {paper[2]}",
        "tables, seconds": f"{numbered - start:.2f}",
        "pieces / paper": f"{len(pieces.chain)} / {paper[3]}",
        "exact": "yes" if pieces.exact else "no",
        "largest redundancy, MMACs": f"{max(redundant) / 1e6:.1f}",
        "of blocks": f"{max(blocks) / 1e6:.1f}",
    }


def unlike(count: int) -> Cluster:
    """A cluster of machines with 1.2, 0.8 and 0.6 GHz in turn, as in Fig. 18."""
    return cluster({f"Pi {i}": 2 * (1.2, 0.8, 0.6)[i % 3] for i in range(count)})


def beside_exact(table: str, limit_s: float) -> Iterable[Row]:
    """Rows of Table VI or VII, with the figures of Figs 17 and 18: planning time, period,
    utilisation."""
    for case in CASES[table]:
        branches, layers, count = case
        graph = branched(branches, layers)
        where = alike(count, 2.0) if table == "VI" else unlike(count)
        row: Row = {"branches, layers, machines": str(case)}
        periods = {}
        for label, options in (("pico", {}), ("stages", {"rebalance": "stages"})):
            start = time.perf_counter()
            plan = PIPELINES["pico"](graph, *where, **options)
            row[f"{label}, seconds"] = f"{time.perf_counter() - start:.2f}"
            periods[label] = plan.provenance.predicted_s or 0.0
            row |= _use(label, plan, graph, where)
        best = _limited(graph, where, limit_s)
        row["exact, seconds / paper"] = (
            f"{best[0] if best else f'> {limit_s:g}'} / {PAPER_EXACT[case]}"
        )
        if best is not None:
            exact = best[1].provenance.predicted_s or 0.0
            row |= {f"{label} / exact": f"{s / exact:.3f}" for label, s in periods.items()}
            row |= _use("exact", best[1], graph, where)
        yield row


def _use(label: str, plan: PipelinePlan, graph: Graph, where: Cluster) -> Row:
    """Mean utilisation and redundancy of a plan, in percent."""
    stats = run(plan, graph, where)
    busy = sum(stats.utilisation(name) for name in where.system.names) / len(where.system.names)
    return {
        f"{label}, busy / redundant %": f"{100 * busy:.0f} / {100 * redundancy(graph, plan):.1f}"
    }


def _limited(graph: Graph, where: Cluster, limit_s: float) -> tuple[str, PipelinePlan] | None:
    """Seconds and plan of the exhaustive planner; None if it takes longer than the limit."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.Process(target=_exhaustive, args=(sender, graph, where))
    worker.start()
    received = receiver.recv() if receiver.poll(limit_s) else None
    worker.kill()
    worker.join()
    return received


def _exhaustive(sender: Any, graph: Graph, where: Cluster) -> None:
    start = time.perf_counter()
    plan = PIPELINES["pico_exhaustive"](graph, *where, max_fronts=10**6)
    sender.send((f"{time.perf_counter() - start:.2f}", plan))


def run(plan: PipelinePlan, graph: Graph, where: Cluster, frames: int = FRAMES) -> PipelineRun:
    """Simulate a plan under full load, with a few frames in each stage."""
    credits = min(2 * len(plan.stages) + 1, frames // 4)
    return simulate_pipeline(plan, graph, *where, frames, credits=credits)


def speedups(
    graphs: Mapping[str, Graph], gflops: float, network: NetworkKind, machines: Sequence[int]
) -> Iterable[Row]:
    """Fig. 12: throughput over the throughput of one machine, by number of machines."""
    for name, graph in graphs.items():
        problem = PipelineProblem(graph, *alike(1, gflops, network))
        alone = 2 * graph.macs / (1e9 * gflops)
        for label, planner, options in _CUTS:
            row: Row = {"model": name, "cuts": label}
            for count in machines:
                where = alike(count, gflops, network)
                plan = PIPELINES[planner].plan(problem.on(*where), **options)
                row[str(count)] = f"{alone / run(plan, graph, where).period_s:.2f}"
            yield row


def by_model(graphs: Mapping[str, Graph], gflops: float, network: NetworkKind) -> Iterable[Row]:
    """Speedup of eight machines with each model of time, as predicted and as simulated."""
    where = alike(8, gflops, network)
    for name, graph in graphs.items():
        problem = PipelineProblem(graph, *where)
        alone = 2 * graph.macs / (1e9 * gflops)
        for label, planner, options in _CUTS[:2]:
            row: Row = {"GFLOP/s": f"{gflops:g}", "network": network, "model": name, "cuts": label}
            for model in MODELS:
                plan = PIPELINES[planner].plan(problem, model=model, **options)
                predicted = plan.provenance.predicted_s or 0.0
                row[f"{model}, predicted"] = f"{alone / predicted:.2f}"
                row[f"{model}, simulated"] = f"{alone / run(plan, graph, where).period_s:.2f}"
            yield row


def used(graph: Graph, plan: PipelinePlan, where: Cluster) -> Row:
    """Period, latency, utilisation, redundancy, memory and energy of a plan."""
    loaded_run = run(plan, graph, where, 4 if plan.at_once == 1 else FRAMES)
    names = where.system.names
    memory = machine_memory(graph, plan)
    busy = [loaded_run.utilisation(name) for name in names]
    memory_bytes = [memory[name].total_bytes if name in memory else 0 for name in names]
    energy = energy_of(loaded_run.trace, where.system)
    frames = len(loaded_run.answered_s)
    return {
        "period, s": f"{loaded_run.period_s:.2f}",
        "latency, s": f"{loaded_run.latency_s:.2f}",
        "busy, %": f"{100 * sum(busy) / len(busy):.1f}",
        "redundant, %": f"{100 * redundancy(graph, plan):.1f}",
        "memory, MB": f"{sum(memory_bytes) / len(memory_bytes) / 1e6:.0f}",
        "largest, MB": f"{max(memory_bytes) / 1e6:.0f}",
        "energy, J": "-" if energy is None else f"{energy / frames:.0f}",
    }


def scheme_row(
    graph: Graph, planner: str, options: Mapping[str, Any], problem: PipelineProblem
) -> Row:
    """The row of one scheme on one cluster; without a plan, the row has the reason."""
    where = Cluster(problem.cost, problem.system)  # type: ignore[arg-type]
    try:
        plan = PIPELINES[planner].plan(problem, **options)
    except CoexecError as error:
        return {"period, s": "-", "why": str(error)}
    return used(graph, plan, where)


def machine_rows(graph: Graph, plan: PipelinePlan, where: Cluster) -> Iterable[Row]:
    """Rows of Table V, by machine."""
    loaded_run = run(plan, graph, where, 4 if plan.at_once == 1 else FRAMES)
    macs: dict[str, list[float]] = {name: [0.0, 0.0] for name in where.system.names}
    for stage in plan.stages:
        for work in stage_work(graph, stage):
            macs[work.machine][0] += work.strip.macs
            macs[work.machine][1] += float(work.redundant_macs)
    memory = machine_memory(graph, plan)
    for name, (total, extra) in macs.items():
        yield {
            "machine": name,
            "busy, %": f"{100 * loaded_run.utilisation(name):.1f}",
            "redundant, %": f"{100 * extra / total if total else 0.0:.1f}",
            "memory, MB": f"{memory[name].total_bytes / 1e6 if name in memory else 0:.0f}",
        }
