"""Phones on which MACE was measured: whole networks on one processor, images and buffers, watts."""

import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from coexec.errors import DeviceError
from coexec.graph.graph import Graph
from coexec.graph.region import Region
from coexec.hardware.hardware import Place, Power, System
from coexec.model.load import load as load_model
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.research import platforms
from coexec.research.platforms.calibration import compare_operators
from coexec.research.platforms.files import engines, figure, power, read
from coexec.research.zoo import build
from coexec.timing.energy import device_energy_j
from coexec.timing.simulate import simulate

PHONES = ("snapdragon_855", "snapdragon_865", "snapdragon_888")
CPU = Place("cpu:4-7", "simulated")
IMAGE, BUFFER = Place("gpu:0", "image"), Place("gpu:0", "buffer")
every_phone = pytest.mark.parametrize("name", PHONES)

FITTED_ERROR, MEAN_FITTED_ERROR, OPERATOR_ERROR = 0.06, 0.03, 0.14
CHECKED_ERROR = 0.37
"""Of style_transfer, on the CPU too fast and on the GPU too slow: docs/phones.md says why."""


@cache
def zoo_graph(model: str) -> Graph:
    return load_model(build(model), name=model, rewrites=False, digest=model).graph


def ratio(name: str, row: dict[str, Any]) -> float:
    """Seconds of a network on one processor over the published ones."""
    device, _, engine = row["device"].partition("/")
    graph, cost = zoo_graph(row["model"]), platforms.load(name).cost
    place = Place(device, engine or "simulated")
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    model_s = math.fsum(cost.piece_s(graph, task, whole, place) for task, whole in wholes)
    return model_s / figure(row, "published_s")


@every_phone
def test_networks_that_were_fitted_to_are_reproduced(name: str) -> None:
    rows = read(name)["fitted"]
    assert {row["device"] for row in rows} == {"cpu:4-7", "gpu:0/image"}
    errors = [abs(ratio(name, row) - 1) for row in rows]
    assert len(errors) == 8
    assert max(errors) < FITTED_ERROR
    assert math.fsum(errors) / len(errors) < MEAN_FITTED_ERROR


@every_phone
def test_a_network_that_was_not_fitted_to(name: str) -> None:
    on_cpu, on_gpu = (ratio(name, row) for row in read(name)["check"])
    assert 1 - CHECKED_ERROR < on_cpu < 1 < on_gpu < 1 + CHECKED_ERROR


def test_single_convolutions_are_reproduced() -> None:
    found = compare_operators("snapdragon_855")
    assert {row.device for row in found} == {"cpu:4-7", "gpu:0/image", "gpu:0/buffer"}
    assert max(abs(row.ratio - 1) for row in found) < OPERATOR_ERROR


@every_phone
def test_calibration_knows_no_result_of_two_processors(name: str) -> None:
    """Neither the totals of CoDL and its baseline on this phone, nor a power of both together."""
    data = read(name)
    co_executed_ms = {
        "snapdragon_855": {678, 140, 135, 242, 267, 2166, 407, 374, 691, 1065},
        "snapdragon_865": {551, 123, 119, 201, 250, 2411, 423, 411, 732, 1238},
        "snapdragon_888": {559, 119, 107, 226, 1883, 370, 325, 629, 843},
    }[name]
    rows = data["fitted"] + data["check"]
    assert not {round(1e3 * figure(row, "published_s")) for row in rows} & co_executed_ms
    assert not re.findall(r"[uµ]layer|speed-?up|8[.]5 W|5[.]4 W", str(data).lower())


# Images and buffers


@every_phone
def test_the_gpu_has_a_fast_and_a_slow_engine(name: str) -> None:
    assert platforms.load(name).system.places == (CPU, IMAGE)
    phone = platforms.load(name, ["gpu:0/image", "gpu:0/buffer"])
    assert phone.system.places == (IMAGE, BUFFER)
    graph = zoo_graph("vgg16")
    conv = next(t for t in graph.tasks if t.operators[0].op_type == "Conv")
    seconds = [
        phone.cost.piece_s(graph, conv, graph.output_of(conv).whole, p) for p in (IMAGE, BUFFER)
    ]
    assert 2 < seconds[1] / seconds[0] < 4


def test_a_device_is_restricted_to_an_engine() -> None:
    system = platforms.load("snapdragon_855", ["gpu:0/buffer", "cpu:4-7/simulated"]).system
    assert system.places == (BUFFER, CPU)
    with pytest.raises(DeviceError, match="gpu:0 of snapdragon_855 has no engine 'cuda', only ima"):
        platforms.load("snapdragon_855", ["gpu:0/cuda"])
    with pytest.raises(DeviceError, match="cpu:4-7 of snapdragon_855 has no engine 'image'"):
        platforms.load("snapdragon_855", ["cpu:4-7/image"])


def test_sharing_costs_what_was_published() -> None:
    """Milliseconds of a million elements: on the way, and with nobody busy."""
    phone = platforms.load("snapdragon_855", ["cpu:4-7", "gpu:0/image", "gpu:0/buffer"])

    def shared_ms(source: Place, target: Place) -> tuple[float, float]:
        link = phone.system.link(source, target)
        return 1e3 * phone.cost.transfer_s("t", 4_000_000, link), 1e3 * link.sync_latency_s

    assert shared_ms(IMAGE, CPU) == pytest.approx((0.33 + 0.23, 0.85), rel=0.01)
    assert shared_ms(CPU, IMAGE) == pytest.approx((0.33, 0.06), rel=0.01)
    assert shared_ms(BUFFER, CPU) == pytest.approx((0.23, 0.85), rel=0.01)
    assert shared_ms(CPU, BUFFER) == pytest.approx((0, 0.06), rel=0.01)
    assert shared_ms(IMAGE, BUFFER) == pytest.approx((0.33, 0), rel=0.01)


def test_links_of_engines_that_are_not_there_are_left_out() -> None:
    system = platforms.load("snapdragon_855", ["cpu:4-7", "gpu:0/image"]).system
    assert {(x.source, x.target) for x in system.links} == {(IMAGE, CPU), (CPU, IMAGE)}


@every_phone
def test_some_rows_read_all_weights_and_some_channels_their_own(name: str) -> None:
    """In a layer with more weights than positions, halves by channels take less together."""
    graph = zoo_graph("yolov2")
    cost = platforms.load(name).cost
    conv = max(
        (t for t in graph.tasks if t.operators[0].op_type == "Conv"),
        key=lambda t: graph.tensors[t.operators[0].inputs[1]].size_bytes,
    )
    whole = graph.output_of(conv).whole
    n, c, h, w = whole.stop
    channels, rows = Region((0,) * 4, (n, c // 2, h, w)), Region((0,) * 4, (n, c, h // 2, w))
    for place in (CPU, IMAGE):
        all_s, channels_s, rows_s = (
            cost.piece_s(graph, conv, region, place) for region in (whole, channels, rows)
        )
        assert channels_s < rows_s < all_s < 2 * channels_s


# Watts


def test_watts_give_the_published_power_of_one_processor() -> None:
    """A network on the CPU alone draws 6.1 W with the GPU waiting, on the GPU alone 3.7 W."""
    graph, phone = zoo_graph("vgg16"), platforms.load("snapdragon_855")
    for alone, watts in (("cpu:4-7", 6.1), ("gpu:0", 3.7)):
        own = platforms.load("snapdragon_855", [alone])
        plan = PLANNERS["single"](graph, own.cost, own.system)
        trace = simulate(derive(plan, graph), phone.cost, phone.system)
        joules = device_energy_j(trace, phone.system)
        assert joules is not None
        assert math.fsum(joules.values()) / trace.makespan_s == pytest.approx(watts, rel=0.01)


def test_power_was_published_for_one_phone() -> None:
    known = {
        name
        for name in platforms.NAMES
        if all(d.power is not None for d in platforms.load(name).system.devices)
    }
    assert known == {"snapdragon_855"}


def figures(**values: Any) -> dict[str, Any]:
    return {key: {"value": value, "from": "x"} for key, value in values.items()}


def test_watts_of_a_file() -> None:
    assert power({"name": "gpu:0"}) is None
    found = power({"name": "gpu:0", "power": figures(busy_w=3, idle_w=0.5)})
    assert found == Power(3.0, 0.5)


def test_a_system_with_watts_is_written_and_read() -> None:
    system = platforms.load("snapdragon_855").system
    again = System.from_json(system.to_json())
    assert again == system
    assert again.device["cpu:4-7"].power == Power(5.79, 0.579)
    without = [
        {k: v for k, v in row.items() if k != "power"} for row in system.to_json()["devices"]
    ]
    old = System.from_json(system.to_json() | {"devices": without})
    assert old.devices == tuple(replace(device, power=None) for device in system.devices)
    assert old.fingerprint == system.fingerprint


@every_phone
def test_every_engine_has_a_layout_of_its_own(name: str) -> None:
    tables = [engine for device in read(name)["device"] for engine in engines(device).values()]
    assert len({table["layout"] for table in tables}) == len(tables) == 3
