"""`coexec bench`: equal rows, bounds, memory."""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from coexec.hardware.hardware import Place
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.report import peak, race
from coexec.report.bound import bound_of
from coexec.report.race import RaceEntry, race_rivals
from coexec.report.ways import Way, gain_in_words
from coexec.selection.decision import Candidate, Decision
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.settings import Settings
from coexec.units import format_seconds
from tests.cli.conftest import CPU, TWO, CommandLine
from tests.helpers.busy_machine import used_by_others
from tests.helpers.small_models import branches

HEFT = ("bench", "MODEL", "--devices", TWO, "--planner", "heft", "--repeats", "2")
SINGLE = ("bench", "MODEL", "--devices", TWO, "--planner", "single", "--repeats", "2")


@pytest.mark.parametrize(
    ("plan_s", "alone_s", "base_s", "end"),
    [
        (0.8, 1.0, 1.0, "that is a gain"),
        (0.8, 1.0, 0.7, "no gain over ORT"),
        (0.8, 0.8, 0.7, "no gain over ORT"),
        (0.99, 1.0, 2.0, "that is a gain over ORT, and none over cpu:0 alone"),
    ],
)
def test_the_last_line_says_what_was_gained(
    plan_s: float, alone_s: float, base_s: float, end: str
) -> None:
    plan, alone = Way(name="heft", paced_s=plan_s, is_plan=True), Way(name="cpu:0", paced_s=alone_s)
    base = Way(name="ORT", paced_s=base_s, is_base=True)
    ways = [replace(alone, name="cpu:0 alone"), plan, base]
    said = gain_in_words(ways, {way.name: [way.paced_s or 0.0] * 5 for way in ways})
    times = f"({format_seconds(plan_s)} a request in place of {format_seconds(base_s)})"
    assert said.startswith(f"heft takes {plan_s / base_s:.2f} of the time of ORT {times} and ")
    assert f"{plan_s / alone_s:.2f} of the time of cpu:0 alone: {end}" in said


@pytest.mark.usefixtures("no_memory")
def test_ratios_of_bench_are_those_of_the_medians_that_it_prints(shared: CommandLine) -> None:
    found = shared.json(*HEFT)
    rows = {row["name"]: row for row in found["rows"]}
    assert {"heft", *(f"{name} alone" for name in TWO.split(","))} < set(rows)
    base = rows[found["base"]]
    assert base["name"].startswith("ONNX Runtime") and found["disturbed_turns"] >= 0
    for row in rows.values():
        for figure in ("paced", "loop"):
            assert 0 < row[f"{figure}_s"] <= row[f"{figure}_p90_s"] <= row[f"{figure}_p99_s"]
            assert row[f"{figure}_ratio"] == row[f"{figure}_s"] / base[f"{figure}_s"]
        assert row["requests_per_s"] > 0


def plan_on(device: str, engine: str = "onnxruntime", planner: str = "x") -> Plan:
    graph = load(branches()).graph
    pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
    return Plan.of_places("m", {Place(device, engine): pieces}, Provenance(planner))


def test_a_plan_that_is_there_twice_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "Rest", lambda: SimpleNamespace(until_idle=lambda: True))
    ran: list[str] = []

    def rival(name: str, plan: Plan | None) -> RaceEntry:
        segments = None if plan is None else derive(plan, load(branches()).graph).segments
        way = Way(name=name, init_s=len(name), is_base=name == "ORT")
        return RaceEntry(way, partial(ran.append, name), lambda: len(ran), segments)

    # On one device, who made it and what it calls fused make no difference to what runs.
    again = replace(plan_on("cpu:0", planner="y"), fused=frozenset(plan_on("cpu:0").device_of))
    plans = {
        "one": plan_on("cpu:0"),
        "other engine": plan_on("cpu:0", "cpp"),
        "again": again,
        "ORT": None,
        "ORT, once more": None,
    }
    ways = race_rivals([rival(name, plan) for name, plan in plans.items()], 3).ways
    assert set(ran) == {"one", "other engine", "ORT", "ORT, once more"}
    assert [way.name for way in ways if way.same_as] == ["again"]
    assert ways[2] == replace(ways[0], name="again", same_as="one")


@pytest.mark.usefixtures("no_memory")
def test_equal_rows_are_named(shared: CommandLine) -> None:
    rows = {row["name"]: row for row in shared.json(*SINGLE)["rows"]}
    assert rows["single"]["same_as"] in {f"{name} alone" for name in TWO.split(",")}
    assert rows["single"]["paced_s"] == rows[rows["single"]["same_as"]]["paced_s"]
    assert all(row["same_as"] is None for name, row in rows.items() if name != "single")
    printed = shared(*SINGLE)
    assert "measured once" in printed and "single =" in printed


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_race_knows_the_load_by_other_programs(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(race, "REAL", used_by_others(share))
    found = race_rivals([RaceEntry(Way(name="a", is_base=True), lambda: 0, lambda: 0)], 1)
    assert found.others == pytest.approx(share)


def test_the_order_of_turns_rotates() -> None:
    order: list[str] = []
    ways = [Way(name=name, is_base=name == "a") for name in "abc"]
    race_rivals([RaceEntry(w, partial(order.append, w.name), lambda: 0) for w in ways], 3)
    firsts = [a for a, b in zip(order, ["", *order], strict=False) if a != b]
    assert "".join(firsts[-9:]) == "abcbcacab"


@pytest.mark.long
def test_every_row_has_its_memory(shared: CommandLine) -> None:
    peaks = {row["name"]: row["peak_bytes"] for row in shared.json(*HEFT)["rows"]}
    ort = peaks.pop(next(name for name in peaks if name.startswith("ONNX Runtime")))
    # An interpreter with numpy and ONNX Runtime; ours has the same libraries beside other code.
    assert 2**24 < ort < min(peaks.values())


def test_memory_of_onnx_runtime_grows_with_the_model(tmp_path: Path) -> None:
    sizes = []
    for number, size in enumerate((20, 200)):
        onnx.save(branches(size=size), str(tmp_path / f"{number}.onnx"))
        work = PlanningContext(str(tmp_path / f"{number}.onnx"), Settings([CPU]))
        graph = load(branches(size=size)).graph
        feeds = {n: np.zeros(graph.tensors[n].shape, np.float32) for n in graph.inputs}
        sizes.append(peak.of_onnx_runtime(work, 1, feeds) or 0)
    assert sizes[0] and sizes[1] - sizes[0] > max(t.size_bytes for t in graph.tensors.values())


def _dies(feeds: Mapping[str, Any]) -> int:
    os._exit(9)


def test_a_process_that_dies_is_no_error() -> None:
    assert peak._in_a_process(_dies, {}) is None


def bounded(bound_s: float | None, *candidates: Candidate) -> Prepared:
    plan = replace(plan_on("cpu:0"), provenance=Provenance("x", bound_s=bound_s))
    places = (Place("cpu:0", "onnxruntime"), Place("cpu:1", "cpp"))
    origin = SimpleNamespace(measured=(None, SimpleNamespace(places=places)))
    return Prepared(origin, plan, None, Decision(candidates))  # type: ignore[arg-type]


def test_a_bound_says_for_which_devices() -> None:
    narrow, wide = ("cpu:0", "cpu:1"), ("cpu:0-1",)
    chosen = Candidate(narrow, "heft", 1.2, 0.9, 0.9)  # measured below the profile's bound
    bound = bound_of(bounded(1.0, chosen, Candidate(wide, "single", 1.1, 1.3, 1.4)))
    assert bound is not None and bound.devices == ("cpu:0/onnxruntime", "cpu:1/cpp")
    assert str(bound) == (
        "1.00 s: no plan of whole tasks on cpu:0/onnxruntime, cpu:1/cpp is faster"
    )
    assert bound_of(bounded(None, chosen)) is None


@pytest.mark.parametrize("figures", [(0.9, None, None), (2.0, 0.9, None), (2.0, 2.0, 0.9)])
def test_a_bound_is_not_above_what_other_devices_take(figures: tuple[Any, ...]) -> None:
    chosen = Candidate(("cpu:0", "cpu:1"), "heft", 1.2)
    faster = Candidate(("cpu:0-1",), "single", *figures)
    assert bound_of(bounded(1.0, chosen, faster)) is None
    assert bound_of(bounded(1.0, chosen, replace(faster, status="refused"))) is not None
    assert bound_of(bounded(1.0, chosen), fastest_s=0.99) is None


@pytest.mark.usefixtures("no_memory")
def test_bench_prints_no_bound_above_a_row(
    shared: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        "coexec.report.bound.bound_of", lambda plan, fastest_s: asked.append(fastest_s)
    )
    found = shared.json(*HEFT)
    medians = [statistic for row in found["rows"] for statistic in (row["paced_s"], row["loop_s"])]
    assert asked[0] == pytest.approx(min(medians)) and found["bound_s"] is None
