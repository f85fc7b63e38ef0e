"""CoDL's tables on simulated phones: five models, three phones; all simulated.

Latencies come from `coexec.research.platforms`, calibrated on single processors. Links and sync
latencies are those that the paper measured separately. No figure of two processors at once was used
in a fit, so the planners' results are predictions. docs/codl.md lists the differences and their
causes."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from codl_plans import Chain, chains_of, held_bytes, moved_bytes, sharing_s, ways_of
from codl_tables import (
    ALONE,
    COUNTED,
    MULAYER,
    OURS,
    PAPER_S,
    PHONES,
    beside,
    by_case,
    dividing,
    latencies,
    means,
    perfect,
    ratios,
)
from common import energy_of
from hope_phones import Plans
from hope_tables import Row, Tables, graph_of, head, tried

from coexec.graph.graph import Graph
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.planners.methods.splitting.shares import STEPS
from coexec.research.platforms import Platform, load
from coexec.timing.simulate import simulate

BLOCK = 4
"""Number of channels in a block of a phone's engine."""
_PAPER_SHARING_MS = {
    "retinaface": (118, 65), "yolov2": (30.4, 7.6), "vgg16": (23.3, 7.9), "posenet": (37.7, 15.3),
    "style_transfer": (29.1, 13.4),
}  # fmt: skip
"""Milliseconds that sharing adds, by model on the first phone: without chains, and with chains."""
_PAPER_ENERGY = {MULAYER: -62, "CPU": -39, "GPU": 52}
"""Additional energy of CoDL over each of these, in percent."""
PAPER_CHAINS = {
    "yolov2": ("2 6 3 7 then nine of 1", "1 1 .7x6 .5x11 1 .5 1 .5 .5 .5 .5 1, as printed"),
    "vgg16": ("1 2 5 2 2 then nine of 1", "not printed"),
}


def platform_of(phone: str, label: str) -> Platform:
    """The phone for rival ``label``: uLayer shares buffers, all others use images on the GPU."""
    return load(phone, ["cpu:4-7", "gpu:0/buffer"] if label == MULAYER else None)


def options_of(planner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a planner; planners that divide tasks also get the phone's block of channels and
    the paper's steps of a tenth."""
    divides = "channel_block" in PLANNERS[planner].options
    return {**given, "channel_block": BLOCK, "steps": STEPS} if divides else dict(given)


def rows(plans: Plans, models: Sequence[str], phones: Sequence[str]) -> Iterator[list[Row]]:
    """For each phone and model, a row for each single processor and each kind of division."""
    for phone in phones:
        for model in models:
            yield [*_compare(plans, model, phone)]


def _compare(plans: Plans, model: str, phone: str) -> Iterator[Row]:
    graph = graph_of(model)
    for label, device in zip(ALONE, load(phone).system.names, strict=True):
        fill = partial(_run, plans, "single", graph, load(phone), device=device)
        yield tried(head(phone, model, label), fill)
    for label, (planner, extra) in dividing().items():
        options = options_of(planner, extra)
        fill = partial(_run, plans, planner, graph, platform_of(phone, label), **options)
        yield tried(head(phone, model, label), fill)


def _run(plans: Plans, planner: str, graph: Graph, phone: Platform, **options: Any) -> Row:
    plan, took_s = plans.make(planner, graph, phone, **options)
    schedule = derive(plan, graph)
    trace = simulate(schedule, phone.cost, phone.system)
    return {
        "rounds_s": [trace.makespan_s],
        "simulated_s": trace.makespan_s,
        "planning_s": took_s,
        "status": plan.provenance.status,
        "energy_j": energy_of(trace, phone.system),
        "moved_bytes": moved_bytes(schedule),
        "held_bytes": held_bytes(schedule),
        "sharing_s": sharing_s(schedule, phone.cost, phone.system),
        "ways": ways_of(plan, graph),
        "chains": chains_of(plan, graph),
    }


def tables(found: Sequence[Row]) -> Tables:
    """The paper's figures and tables, from simulated rows."""
    yield "simulated phones, ms: simulated / paper", latencies(found)
    yield "latency over codl's: simulated / paper", ratios(found, COUNTED)
    yield "mean of latency over codl's: simulated / paper", means(found)
    yield "share of perfect division, c g / (c + g): simulated / paper", _perfect(found)
    yield "ms that sharing adds, and convolutions by how codl runs them", _sharing(found)
    yield "energy of an inference: simulated / mean in the paper", _energy(found)
    yield "MB moved between the processors, and held by both: simulated", _bytes(found)
    yield "chains of codl: simulated, and as published for the 855", _chains(found)


def _perfect(found: Sequence[Row]) -> list[Row]:
    table = []
    for (phone, model), own in by_case(found).items():
        cells: Row = {"platform": phone, "model": model}
        if not own.keys() >= {*ALONE}:
            continue
        best_s = perfect(*(own[label]["rounds_s"] for label in ALONE))[0]
        cells["perfect, ms"] = f"{best_s * 1e3:.1f}"
        for label in own.keys() - {*ALONE}:
            paper = None
            if (phone, model, label) in PAPER_S:
                c, g = (PAPER_S[phone, model, alone] for alone in ALONE)
                paper = c * g / (c + g) / PAPER_S[phone, model, label]
            simulated = best_s / own[label]["rounds_s"][0]
            cells[label] = beside(simulated, paper, 2) if paper is not None else f"{simulated:.2f}"
        table.append(
            {key: cells[key] for key in ("platform", "model", "perfect, ms", *own) if key in cells}
        )
    return table


def _sharing(found: Sequence[Row]) -> list[Row]:
    """Time that copying, mapping and waiting add to a plan, and the dimensions of its divisions. In
    the paper 77 % of the operators are divided by H and 23 % by OC."""
    table = []
    for (phone, model), own in by_case(found).items():
        if OURS not in own:
            continue
        cells: Row = {"platform": phone, "model": model}
        paper = _PAPER_SHARING_MS.get(model, (None, None)) if phone == PHONES[0] else (None, None)
        for label, ms in zip(("H or OC", OURS), paper, strict=True):
            shared_ms = 1e3 * own[label]["sharing_s"]
            cells[label] = beside(shared_ms, ms, 1) if ms is not None else f"{shared_ms:.1f}"
        cells |= {dimension: f"{share:.0%}" for dimension, share in own[OURS]["ways"].items()}
        cells["planning, ms"] = f"{1e3 * own[OURS]['planning_s']:.0f}"
        table.append(cells)
    return table


def _energy(found: Sequence[Row]) -> list[Row]:
    """Energy on phones whose file has watts. A single processor works while the other idles."""
    table = []
    for (phone, model), own in by_case(found).items():
        if OURS not in own or own[OURS]["energy_j"] is None:
            continue
        ours_j = own[OURS]["energy_j"]
        cells: Row = {"platform": phone, "model": model}
        cells |= {
            f"{label}, J": f"{row['energy_j']:.2f}"
            for label, row in own.items()
            if label in (*COUNTED, OURS)
        }
        for label, paper in _PAPER_ENERGY.items():
            if label in own:
                more = 100 * (ours_j / own[label]["energy_j"] - 1)
                cells[f"codl over {label}, %"] = f"{more:+.0f} / {paper:+d}"
        table.append(cells)
    return table


def _bytes(found: Sequence[Row]) -> list[Row]:
    table = []
    for (phone, model), own in by_case(found).items():
        cells: Row = {"platform": phone, "model": model}
        for label, row in own.items():
            if label not in ALONE:
                cells[f"{label}, moved"] = f"{row['moved_bytes'] / 1e6:.1f}"
        for label in (ALONE[1], OURS):
            if label in own:
                cells[f"{label}, held"] = f"{own[label]['held_bytes'] / 1e6:.0f}"
        table.append(cells)
    return table


def _chains(found: Sequence[Row]) -> list[Row]:
    table = []
    for (phone, model), own in by_case(found).items():
        if OURS in own and model in PAPER_CHAINS:
            table.append(chain_row(phone, model, own[OURS]["chains"]))
            if phone == PHONES[0]:
                lengths, shares = PAPER_CHAINS[model]
                table.append(
                    {
                        "platform": "855 in the paper",
                        "model": model,
                        "lengths": lengths,
                        "GPU's share": shares,
                    }
                )
    return table


def chain_row(phone: str, model: str, chains: Sequence[Chain]) -> Row:
    lengths = " ".join(str(chain.length) for chain in chains)
    shares = " ".join(f"{chain.ratio:.1f}".removeprefix("0") for chain in chains)
    return {"platform": phone, "model": model, "lengths": lengths, "GPU's share": shares}
