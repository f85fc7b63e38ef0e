"""Simulated phones: each figure has a source, the model repeats what was published, plans work."""

import math
import re
import statistics
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, NamedTuple

import onnx.parser
import pytest

from coexec.codec import CodecError
from coexec.errors import DeviceError, UsageError
from coexec.graph.graph import Graph
from coexec.graph.region import Region
from coexec.hardware.hardware import Place, System
from coexec.model.load import load as load_model
from coexec.plan.derive import derive
from coexec.plan.plan import verify_plan
from coexec.planners import PLANNERS
from coexec.problem.problem import Problem
from coexec.research import platforms
from coexec.research.platforms import NAMES, load
from coexec.research.platforms.calibration import (
    Comparison,
    compare_operators,
    compare_transfers,
    described_operator,
    described_s,
)
from coexec.research.platforms.costs import PlatformCosts
from coexec.research.platforms.files import fitted_rates, read
from coexec.research.zoo import build
from coexec.timing.simulate import simulate
from tests.helpers.small_models import branches

HOPE = ("kirin_990", "snapdragon_625", "snapdragon_712")
"""Fitted to many operators, one by one; the others to a few whole networks, see test_mace.py."""
every_platform = pytest.mark.parametrize("name", NAMES)
every_profiled = pytest.mark.parametrize("name", HOPE)
Table = Mapping[str, Any]

# What the model keeps of the latencies that it was fitted to, and of those it was not.
MEDIAN_ERROR, MEDIAN_TRANSFER_ERROR = 0.17, 0.40
SUM_ERROR = 0.05
WITHIN_HALF = 0.78
MODEL_ERROR = {"inception_v4": 0.07, "mobilenet_v1": 0.15, "pnasnet_mobile": 0.30}


# Sources


class Figure(NamedTuple):
    value: Any
    source: str | None


def figures(node: Any, source: str | None = None) -> Iterator[Figure]:
    """Each number of a file with the source that it names, or that its table does."""
    if isinstance(node, dict):
        source = node.get("from", source)
        for value in node.values():
            yield from figures(value, source)
    elif isinstance(node, list):
        for value in node:
            yield from figures(value, source)
    elif isinstance(node, int | float):
        yield Figure(node, source)


def sources(node: Any) -> Iterator[str]:
    """All that is named as a source."""
    if isinstance(node, dict):
        yield from (text for key, text in node.items() if key == "from" or key.endswith("_from"))
    for value in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from sources(value)


@every_platform
def test_every_figure_has_a_source(name: str) -> None:
    data = read(name)
    found = list(figures(data))
    assert len(found) > 60
    assert not [f for f in found if f.source is None]
    assert set(sources(data)) == set(data["sources"])
    assert all(len(text.split()) > 5 for text in data["sources"].values())
    assert all("busy_from" in link for link in data["link"])


@pytest.mark.parametrize(
    ("line", "changed", "said"),
    [
        ('target = "gpu:0/image"', 'target = "gpu:0"', "link.target: 'gpu:0' is none of cpu:4-7/"),
        ('source = "gpu:0/image"', 'source = "gpu:1"', "link.source: 'gpu:1' is none of cpu:4-7/"),
        ("busy_w", "busy", "the field 'busy_w' is missing"),
        ("[device.power]", '[device.power]\nw = { value = 1, from = "power" }', "'w' is unknown"),
        ("value = 5.79,", "value = nan,", "busy_w: {'value': nan"),
        ("value = 5.79,", "value = '1',", "busy_w: {'value': '1'"),
        ("value = 5.79,", "value = true,", "busy_w: {'value': True"),
        ("value = 5.79, from", "from", "busy_w: {'from': 'power'}"),
        ("conv_macs_per_s", "macs_per_s", "the field 'conv_macs_per_s' is missing"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    line: str, changed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (resources.files(platforms) / "snapdragon_855.toml").read_text()
    assert line in text
    data = tomllib.loads(text.replace(line, changed, 1))
    monkeypatch.setattr(platforms, "read", lambda name: data)
    with pytest.raises(CodecError, match=re.escape(said)):
        load("snapdragon_855")


@every_profiled
def test_calibration_knows_no_scheduler(name: str) -> None:
    """One operator on one processor a figure, from files that hold nothing else."""
    data = read(name)
    devices = {d["name"] for d in data["device"]}
    assert set(data["operators"]["devices"]) <= devices
    for what, *columns in data["operators"]["us"]:
        described_operator(what)
        assert len(columns) == len(data["operators"]["devices"])
    assert {link for pair in data["transfers"]["links"] for link in pair} <= devices
    assert {c["device"] for c in data["check"]} <= devices
    text = str(data).lower()
    assert not re.findall(r"mosaic|starpu|dmdar|heft|[uµ]layer|placement|speed-?up", text)
    single = ("layerwise-latency.csv", "data-trans.csv", "cpu-big-2.csv", "gpu-1.csv")
    files = re.findall(r"[\w*/.-]*\.csv", str(data["sources"]))
    published = [f for f in files if "freqbench" not in f and not f.startswith("results/")]
    assert published
    assert all(f.endswith(single) for f in published)


# Calibration


def by_device(found: list[Comparison]) -> dict[str, list[Comparison]]:
    return {
        device: [c for c in found if c.device == device] for device in {c.device for c in found}
    }


@every_profiled
def test_published_operators_are_reproduced(name: str) -> None:
    for device, found in by_device(compare_operators(name)).items():
        assert len(found) > 50, device
        assert statistics.median(abs(c.ratio - 1) for c in found) < MEDIAN_ERROR, device
        assert statistics.mean(1 / 1.5 < c.ratio < 1.5 for c in found) > WITHIN_HALF, device
        sums = [
            math.fsum(s) for s in zip(*((c.model_s, c.published_s) for c in found), strict=True)
        ]
        assert sums[0] == pytest.approx(sums[1], rel=SUM_ERROR), device


@every_profiled
def test_published_transfers_are_reproduced(name: str) -> None:
    for link, found in by_device(compare_transfers(name)).items():
        error = statistics.median(abs(c.ratio - 1) for c in found)
        assert error < MEDIAN_TRANSFER_ERROR, link


@cache
def zoo_graph(model: str) -> Graph:
    return load_model(build(model), name=model, rewrites=False, digest=model).graph


def alone_s(graph: Graph, cost: PlatformCosts, device: str) -> float:
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    return math.fsum(
        cost.piece_s(graph, task, whole, Place(device, "simulated")) for task, whole in wholes
    )


@pytest.mark.long
@every_profiled
def test_whole_models_that_nothing_was_fitted_to(name: str) -> None:
    for check in read(name)["check"]:
        graph, device = zoo_graph(check["model"]), check["device"]
        model_s = alone_s(graph, load(name, [device]).cost, device)
        error = MODEL_ERROR[check["model"]]
        assert model_s == pytest.approx(check["published_s"]["value"], rel=error), check


# Costs


@every_platform
def test_costs_grow_with_the_work(name: str) -> None:
    """In channels, in the size of the map, in the share of a piece and in bytes."""
    rates = fitted_rates(read(name))
    kinds = (
        "Conv 1x1/1",
        "Conv 3x3/1",
        "Conv 3x3/2",
        "Conv 1x7/1",
        "Depthwise 5x5/1",
        "Depthwise 3x3/2",
        "Pool 3x3/2",
        "Relu 1x1/1",
        "Add 1x1/1",
        "Concat 4x1/1",
    )
    for device, kind in product(rates, kinds):
        sizes = [(c, s) for c in (8, 16, 40, 64, 256) for s in (4, 16, 28, 112)]
        s = {(c, n): described_s(f"{kind} {c}>{c} {n}x{n}", rates[device]) for c, n in sizes}
        assert all(0 < value < math.inf for value in s.values())
        for a, b in product(sizes, repeat=2):
            if a[0] <= b[0] and a[1] <= b[1]:
                assert s[a] <= s[b], (device, kind, a, b)


@every_platform
def test_pieces_and_transfers(name: str) -> None:
    phone = load(name)
    graph = zoo_graph("squeezenet")
    for task, place in product(graph.tasks, phone.system.places):
        whole = graph.output_of(task).whole
        part = Region(whole.start, tuple(max(1, n // 2) for n in whole.stop))
        part_s, whole_s = (phone.cost.piece_s(graph, task, r, place) for r in (part, whole))
        assert 0 < part_s <= whole_s
    for link in phone.system.links:
        times_s = [phone.cost.transfer_s("t", n, link) for n in (0, 4, 4000, 4_000_000)]
        assert times_s == sorted(times_s)
        assert times_s[0] + link.sync_latency_s > 0 or link.source == link.target
        # HOPE's engine lets the CPU convert layouts, MACE the GPU, whichever way the tensor goes.
        assert getattr(link, link.busy).device.startswith("cpu:" if name in HOPE else "gpu:")


@every_platform
def test_an_output_that_nothing_reads(name: str) -> None:
    """The graph has no tensor for it. Here this is the first output, by which costs are counted."""
    platform = load(name)
    graph = load_model(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[5,1,8] x, float[1,64,8] w, float[1,64,16] r) => (float[1,1,16] last) {
              unread, last = LSTM<hidden_size = 16>(x, w, r)
            }"""
        )
    ).graph
    (task,) = graph.tasks
    assert "unread" not in graph.tensors
    for place in platform.system.places:
        assert 0 < platform.cost.piece_s(graph, task, graph.output_of(task).whole, place) < math.inf


def test_a_slower_clock_slows_computing_and_not_memory() -> None:
    graph = zoo_graph("inception_v3")
    hertz = (652.8e6, 1689.6e6, 2016e6)
    costs = [load("snapdragon_625", clocks_hz={"cpu:0-3": f}).cost for f in hertz]
    slow, middle, fast = (alone_s(graph, cost, "cpu:0-3") for cost in costs)
    assert fast < middle < slow < fast * hertz[2] / hertz[0]
    assert costs[2] == load("snapdragon_625").cost
    assert alone_s(graph, costs[0], "gpu:0") == alone_s(graph, costs[2], "gpu:0")


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (UsageError, ("nokia",), "no platform 'nokia'; there are kirin_990"),
        (DeviceError, ("kirin_990", ["npu:0"]), "has no device 'npu:0', only cpu:6-7"),
        (DeviceError, ("kirin_990", None, {"gpu:0": 1e9}), "gpu:0 of kirin_990 has no clock"),
    ],
)
def test_what_a_platform_does_not_have(
    error: type[Exception], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(*arguments)


# Plans


def check_plan(planner: str, graph: Graph, cost: PlatformCosts, system: System) -> None:
    plan = PLANNERS[planner](graph, cost, system)
    verify_plan(plan, graph, system)
    simulated_s = simulate(derive(plan, graph), cost, system).makespan_s
    wholes = {graph.whole_piece(task) for task in graph.tasks}
    if wholes.issuperset(plan.device_of):  # the bound is that of plans which divide no task
        assert Problem(graph, cost, system).bound_s <= simulated_s * (1 + 1e-9)
    assert simulated_s < math.inf


@pytest.mark.sampled(7)
@pytest.mark.parametrize("planner", PLANNERS)
@every_platform
def test_every_planner_plans_for_every_platform(name: str, planner: str) -> None:
    graph = load_model(branches(2), name="branches").graph
    every_device = tuple(d["name"] for d in read(name)["device"])
    for devices in (None, every_device):
        phone = load(name, devices)
        check_plan(planner, graph, phone.cost, phone.system)


@pytest.mark.parametrize("planner", ["heft", "hope_greedy", "single"])
@every_platform
def test_quick_planners_plan_a_whole_model(name: str, planner: str) -> None:
    phone = load(name)
    check_plan(planner, zoo_graph("squeezenet"), phone.cost, phone.system)
