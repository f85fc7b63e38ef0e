"""PICO's tables with the paper's figures: planned on this machine, with simulated periods.

    python benchmarks/pico.py                        # everything: half an hour
    python benchmarks/pico.py --parts pieces         # Table IV
    python benchmarks/pico.py --parts speedup --json

Parts: "pieces" (Table IV: Algorithm 1 on six models), "exact" (Tables VI and VII, Figs 17 and 18:
planning time and period, compared with the exhaustive planner), "speedup" (Fig. 12: pieces and
blocks on 1 to 8 machines), "models" (the same by the paper's Eq. 11, and with the messages that
Eq. 11 leaves out), "schemes" (Figs 13 to 15: all schemes on 2 to 8 machines of three capacities),
"mixed" (Table V and Fig. 16: a cluster of unlike machines). No other machine is needed, and only
planning times depend on this machine.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping

from common import show, some_of
from pico_clusters import (
    GHZ,
    NCNN_GHZ,
    Cluster,
    alike,
    mixed,
    of_zoo,
    without_classifier,
)
from pico_tables import (
    PAPER_PIECES,
    Row,
    beside_exact,
    by_model,
    machine_rows,
    pieces_row,
    scheme_row,
    speedups,
)

from coexec.errors import CoexecError
from coexec.pipeline.network import NetworkKind
from coexec.pipeline.planners import PIPELINES
from coexec.pipeline.planners.methods.problem import PipelineProblem

Tables = Iterable[tuple[str, list[Row]]]
Arguments = argparse.Namespace
SCHEMES = {
    "LW": ("layer_wise", {}), "EFL": ("early_fused", {}), "OFL": ("optimal_fused", {}),
    "CoEdge": ("coedge", {}), "PICO": ("pico", {}),
    "PICO stages": ("pico", {"rebalance": "stages"}),
}  # fmt: skip
"""Planner and options by the paper's name; the last entry is not in the paper."""
PAPER_MIXED = {
    "vgg16": {"EFL": "67.4 / 15.7 / 164", "OFL": "67.3 / 9.4 / 153", "CoEdge": "53.4 / 1.5 / 158",
              "PICO": "77.4 / 6.0 / 125"},
    "yolov2": {"EFL": "68.5 / 36.5 / 194", "OFL": "69.9 / 35.9 / 198",
               "CoEdge": "52.6 / 0.8 / 248", "PICO": "93.1 / 5.7 / 137"},
}  # fmt: skip
"""Table V: mean utilisation and redundancy in percent, memory in MB."""


def main() -> None:
    options = _arguments()
    try:
        for part in options.parts:
            for title, table in PARTS[part](options):
                show(title, table, options.json)
    except CoexecError as error:
        sys.exit(f"pico.py: {error}")


def pieces(options: Arguments) -> Tables:
    yield "Table IV: Algorithm 1 / paper", [pieces_row(name) for name in PAPER_PIECES]


def exact(options: Arguments) -> Tables:
    for table, about in (("VI", "branches, machines alike"), ("VII", "chains, unlike machines")):
        rows = list(beside_exact(table, options.limit))
        yield f"Table {table}, {about}: beside the exhaustive planner", rows


def speedup(options: Arguments) -> Tables:
    graphs = {name: of_zoo(name) for name in ("resnet34", "inception_v3")}
    networks: tuple[NetworkKind, ...] = ("ports", "half-duplex ports", "shared")
    for gflops in (2.0, 8.0):
        for network in networks:
            rows = list(speedups(graphs, gflops, network, range(1, 9)))
            yield f"Fig. 12, simulated: {gflops:g} GFLOP/s, 50 Mbit/s, {network}", rows


def models(options: Arguments) -> Tables:
    graphs = {name: of_zoo(name) for name in ("resnet34", "inception_v3")}
    networks: tuple[NetworkKind, ...] = ("ports", "shared")
    rows = [
        row
        for gflops in (2.0, 8.0)
        for network in networks
        for row in by_model(graphs, gflops, network)
    ]
    yield "Eight machines by model of time: times the throughput of one machine", rows


def schemes(options: Arguments) -> Tables:
    for name in ("vgg16", "yolov2"):
        graph = without_classifier(of_zoo(name))
        problem = PipelineProblem(graph, *alike(1, 1.0))
        for network in ("ports", "shared"):
            for gflops in (2.0, 4.0, 8.0):
                rows = []
                for label, (planner, extra) in list(SCHEMES.items())[:-1]:
                    row: Row = {"scheme": label}
                    for count in range(2, 9) if network == "ports" else (8,):
                        where = alike(count, gflops, network)
                        cells = scheme_row(graph, planner, extra, problem.on(*where))
                        row[str(count)] = cells["period, s"]
                    last = {k: v for k, v in cells.items() if k != "period, s"}
                    rows.append(row | last)
                yield (
                    f"Figs 13 to 15, simulated: {name}, {gflops:g} GFLOP/s, {network}: period "
                    f"in s by machines; the rest with 8",
                    rows,
                )


def mixed_cluster(options: Arguments) -> Tables:
    for name in ("vgg16", "yolov2"):
        graph = without_classifier(of_zoo(name))
        problem = PipelineProblem(graph, *alike(1, 1.0))
        for per_ghz in (GHZ, NCNN_GHZ):
            where = mixed(per_ghz)
            rows = []
            for label, (planner, extra) in SCHEMES.items():
                cells = scheme_row(graph, planner, extra, problem.on(*where))
                paper = PAPER_MIXED[name].get(label, "")
                rows.append({"scheme": label, **cells, "paper: busy / redundant / MB": paper})
            yield f"Table V, Fig. 16, simulated: {name}, {per_ghz / 1e9:.1f} GFLOP/s a GHz", rows
        plan = PIPELINES["pico"].plan(problem.on(*mixed(GHZ)), rebalance="stages")
        by_machine = list(machine_rows(graph, plan, Cluster(*mixed(GHZ))))
        yield f"Table V by machine, simulated: {name}, PICO stages", by_machine


PARTS: Mapping[str, Callable[[Arguments], Tables]] = {
    "pieces": pieces, "exact": exact, "speedup": speedup, "models": models,
    "schemes": schemes, "mixed": mixed_cluster,
}  # fmt: skip


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", type=some_of(PARTS), default=[*PARTS])
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="of the exhaustive planner for a case",
    )
    parser.add_argument("--json", action="store_true", help="a table as JSON in each line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
