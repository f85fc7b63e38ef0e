"""Gain of each of CoDL's ideas on the simulated phones, each changed alone; all simulated.

Also the causes of most of the difference to the paper: plans from imperfect knowledge of costs, and
two convolutions that the paper shows in halves.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from codl_phones import PAPER_CHAINS, chain_row, options_of, platform_of
from codl_plans import ByMacs, Uncertain, on_engine
from codl_published import CHANNELS, ROWS, chains, fixed, published, total_s
from codl_tables import ALONE, DIVIDED, MULAYER, OURS, PAPER_S, PHONES, by_case, latencies, means
from hope_phones import Plans, simulated_s
from hope_tables import Row, Tables, graph_of, head

from coexec.costs.base import CostModel
from coexec.graph.graph import Graph
from coexec.plan.plan import Plan
from coexec.research.platforms import Platform, load
from coexec.research.platforms.calibration import described_operator
from coexec.research.platforms.costs import operator_s
from coexec.research.platforms.files import fitted_rates, read
from coexec.selection.planning_context import make_plan

WITHOUT_CHAINS = "without chains"
ON_BUFFERS = "same division, on buffers"
SPREAD = 0.068
"""Standard deviation of the logarithm of a predictor's factor. With it, 84 of 100 operators are
within 10 %, as in the paper: ln(1.1) / 1.405."""
DRAWS = 3
_PAPER_BUFFERS = 3.64
_HALVES = {
    # Convolution: ms of the GPU's half, of the CPU's half, and of the exchange of data.
    "Conv 3x3/1 32>64 112x112": (1.89, 1.95, 1.08),
    "Conv 1x1/1 256>128 52x52": (0.599, 0.599, 1.074),
}
"""The paper's figures on the 855, with both processors at once."""

_PUBLISHED = {
    "H": ((ROWS,), False),
    "OC": ((CHANNELS,), False),
    "H or OC": ((ROWS, CHANNELS), False),
    OURS: ((ROWS, CHANNELS), True),
}

_ON_BUFFERS = {"costs known": None, "half": 5, "six tenths": 6}
"""How uLayer may choose the GPU's share of the output channels: the fastest share for each task, or
one share in tenths for all tasks, which results from a cost model without information."""

Variant = Callable[[Plans, Graph, Platform], float]


def tables(plans: Plans, models: Sequence[str], phones: Sequence[str]) -> Tables:
    table = [*_rows(plans, models, phones)]
    yield "time over codl's, each changed alone: simulated / paper", [*table, *_means(table)]
    shared = [*_published(plans, models, phones)]
    divided = [row for row in shared if row["planner"] not in _ON_BUFFERS]
    yield "shared as in the paper, ms: model / paper", latencies(divided)
    yield "uLayer shared as in the paper, ms", _beside_mulayer(shared)
    against = {label: label for label in ALONE} | dict.fromkeys(_ON_BUFFERS, MULAYER)
    yield (
        "shared as in the paper, mean of latency over codl's: model / paper",
        means(shared, against),
    )
    yield "chains of Algorithm 1, shared as in the paper", [*_chains(models, phones)]
    if PHONES[0] in phones:
        yield "two convolutions of the paper in halves by rows, ms: model / paper", [*_halves()]


def _published(plans: Plans, models: Sequence[str], phones: Sequence[str]) -> Iterator[Row]:
    """Latency of each processor alone, and of CoDL's own executor."""
    for name in phones:
        for model in models:
            graph, phone, buffers = graph_of(model), load(name), platform_of(name, MULAYER)
            seconds = {}
            for label, device in zip(ALONE, phone.system.names, strict=True):
                alone = plans.make("single", graph, phone, device=device)[0]
                seconds[label] = simulated_s(alone, graph, phone)
            for label, (axes, chained) in _PUBLISHED.items():
                seconds[label] = total_s(published(graph, phone, axes, chained=chained))
            for label, gpu in _ON_BUFFERS.items():
                seconds[label] = total_s(
                    published(graph, buffers, (CHANNELS,), chained=False)
                    if gpu is None
                    else fixed(graph, buffers, gpu)
                )
            for label, own_s in seconds.items():
                yield head(name, model, label) | {"rounds_s": [own_s]}


def _beside_mulayer(shared: Sequence[Row]) -> list[Row]:
    return [
        {
            "platform": phone,
            "model": model,
            **{label: f"{1e3 * own[label]['rounds_s'][0]:.1f}" for label in _ON_BUFFERS},
            "paper": f"{1e3 * PAPER_S[phone, model, MULAYER]:.0f}",
        }
        for (phone, model), own in by_case(shared).items()
        if (phone, model, MULAYER) in PAPER_S
    ]


def _chains(models: Sequence[str], phones: Sequence[str]) -> Iterator[Row]:
    for name in phones:
        for model in models:
            if model in PAPER_CHAINS:
                graph = graph_of(model)
                steps = published(graph, load(name), (ROWS, CHANNELS), chained=True)
                yield chain_row(name, model, chains(graph, steps))


def _rows(plans: Plans, models: Sequence[str], phones: Sequence[str]) -> Iterator[Row]:
    for name in phones:
        for model in models:
            graph, phone = graph_of(model), load(name)
            ours_s = simulated_s(_codl(plans, graph, phone), graph, phone)
            cells: Row = {"platform": name, "model": model}
            for title, variant in VARIANTS.items():
                ratio = variant(plans, graph, phone) / ours_s
                cells[title] = f"{ratio:.2f}"
                paper_s = PAPER_S.get((name, model, "H or OC"))
                if title == WITHOUT_CHAINS and paper_s is not None:
                    cells[title] += f" / {paper_s / PAPER_S[name, model, OURS]:.2f}"
            yield cells


def _means(found: Sequence[Row]) -> Iterator[Row]:
    cells: Row = {"platform": "mean", "model": ""}
    for title in VARIANTS:
        cells[title] = f"{statistics.mean(float(row[title].split()[0]) for row in found):.2f}"
    cells[ON_BUFFERS] += f" / {_PAPER_BUFFERS}"
    yield cells


def _codl(plans: Plans, graph: Graph, phone: Platform) -> Plan:
    return plans.make(OURS, graph, phone, **options_of(OURS, {}))[0]


def _without_chains(plans: Plans, graph: Graph, phone: Platform) -> float:
    plan = plans.make(OURS, graph, phone, **options_of(OURS, DIVIDED["H or OC"]))[0]
    return simulated_s(plan, graph, phone)


def _on_buffers(plans: Plans, graph: Graph, phone: Platform) -> float:
    """Presumably the paper's variant: only the type of the GPU's data changes."""
    plan = on_engine(_codl(plans, graph, phone), "image", "buffer")
    return simulated_s(plan, graph, phone)


def _for_buffers(plans: Plans, graph: Graph, phone: Platform) -> float:
    buffers = platform_of(phone.name, MULAYER)
    return simulated_s(_codl(plans, graph, buffers), graph, buffers)


def _by_macs(plans: Plans, graph: Graph, phone: Platform) -> float:
    return _believing(ByMacs.of(graph, phone.cost, phone.system.places), graph, phone)


def _uncertain(plans: Plans, graph: Graph, phone: Platform) -> float:
    drawn = (Uncertain(phone.cost, SPREAD, number) for number in range(DRAWS))
    return statistics.mean(_believing(cost, graph, phone) for cost in drawn)


def _believing(cost: CostModel, graph: Graph, phone: Platform) -> float:
    """Latency, with the phone's costs, of a plan that was made with other costs."""
    plan = make_plan(OURS, options_of(OURS, {}), graph, cost, phone.system)
    return simulated_s(plan, graph, phone)


VARIANTS: Mapping[str, Variant] = {
    WITHOUT_CHAINS: _without_chains,
    ON_BUFFERS: _on_buffers,
    "planned for buffers": _for_buffers,
    "one ratio by MACs": _by_macs,
    "costs off as the paper's": _uncertain,
}


def _halves() -> Iterator[Row]:
    """Times of the halves, and of the transfers of the CPU's input rows and of its result."""
    rates = fitted_rates(read(PHONES[0]))
    system = load(PHONES[0]).system
    cpu, gpu = system.places
    there, back = system.link(gpu, cpu), system.link(cpu, gpu)
    for what, (gpu_ms, cpu_ms, sharing_ms) in _HALVES.items():
        op, tensors = described_operator(what)
        halo = tensors["w"].shape[2] // 2
        rows = tensors["x"].shape[2]
        read_bytes = tensors["x"].size_bytes * (rows // 2 + halo) // rows
        sharing_s = there.sync_latency_s + there.copy_s(read_bytes)
        sharing_s += back.sync_latency_s + back.copy_s(tensors["y"].size_bytes // 2)
        on = {
            place: operator_s(op, tensors, rates[name], 0.5)
            for place, name in ((gpu, "gpu:0/image"), (cpu, "cpu:4-7"))
        }
        yield {
            "what": what,
            "GPU": f"{1e3 * on[gpu]:.2f} / {gpu_ms:.2f}",
            "CPU": f"{1e3 * on[cpu]:.2f} / {cpu_ms:.2f}",
            "sharing": f"{1e3 * sharing_s:.2f} / {sharing_ms:.2f}",
        }
