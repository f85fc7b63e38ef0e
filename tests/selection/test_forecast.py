"""Expected seconds of configurations, without a plan and before anything is measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from coexec.costs.estimated import work_of
from coexec.costs.threads import on_cores
from coexec.errors import DeviceError
from coexec.graph.graph import Graph
from coexec.graph.signature import family_of
from coexec.hardware.hardware import Device, EngineInfo
from coexec.plan.derive import derive
from coexec.profiling.store import Measurement, ProfileStore
from coexec.research.predictor.latency import KernelUnits, to_json
from coexec.selection.forecast import Forecasts, divisible, makespan_s
from coexec.settings import Mode
from coexec.timing.simulate import simulate
from tests.helpers.graphs import Case, cases, make_graph, quickly
from tests.helpers.many_cores import ORT_MS, TASKS, chain, task_rows

HANDOVER_S = 60e-6
"""Between two threads of Python."""


def expected_ms(model: str, devices: int, cores: int, handover_s: float = HANDOVER_S) -> float:
    """On ``devices`` clusters of ``cores`` cores, from the measured times of 4 and 8 threads."""
    graph, (_, four_ms, eight_ms, _) = chain(model), ORT_MS[model]
    seconds = on_cores({4: four_ms / 1e3, 8: eight_ms / 1e3}, cores)
    rows = task_rows(model, seconds, devices)
    return 1e3 * makespan_s(graph, rows, handover_s, divisible(graph))


def test_a_network_that_threads_do_not_help_is_expected_to_gain_from_clusters() -> None:
    wide, halves, quarters = (expected_ms("ghostnet", k, 16 // k) for k in (1, 2, 4))
    assert quarters < halves < wide
    # codl's plans were predicted to take 4.4 and 3.9 ms
    assert halves == pytest.approx(4.4, rel=0.6) and quarters == pytest.approx(3.9, rel=0.6)


def test_a_network_of_large_convolutions_is_not_expected_to_lose_more_than_it_does() -> None:
    """Measured: 7.6 ms with 16 threads, 13.0 for the plan of codl, which was predicted at 7.2."""
    assert expected_ms("resnet34", 1, 16) == pytest.approx(7.6, rel=0.2)
    assert expected_ms("resnet34", 4, 4) < 7.2 * 1.1


@pytest.mark.parametrize(
    ("model", "predicted_ms"),
    [("mobilenet_v2", 2.2), ("resnet34", 7.2), ("densenet121", 15.7), ("ghostnet", 3.9)],
)
def test_four_clusters_are_expected_as_codl_is_predicted(model: str, predicted_ms: float) -> None:
    """Expectations leave out rows that are computed twice, and a configuration is profiled up to
    twice the best expectation."""
    assert predicted_ms / 2 < expected_ms(model, 4, 4) < predicted_ms * 2


@pytest.mark.parametrize("model", TASKS)
def test_without_handovers_the_division_is_perfect(model: str) -> None:
    alone_ms = expected_ms(model, 1, 4, 0.0)
    assert expected_ms(model, 4, 4, 0.0) == pytest.approx(alone_ms / 4)
    assert expected_ms(model, 4, 4, 1.0) == pytest.approx(alone_ms)  # all on one device


@given(cases(max_tasks=5))
def test_whole_tasks_on_equal_devices_are_never_faster_than_expected(case: Case) -> None:
    """The longest path and the work divided by all devices are lower bounds of every plan. Launches
    and handovers, which a plan may save, are left out."""
    names = [task.name for task in case.graph.tasks]
    first = case.cost.tasks_s[case.system.places[0]]
    tasks_s = dict.fromkeys(case.system.places, first)
    cost = replace(case.cost, tasks_s=tasks_s, launches_s={})
    plan = quickly("hope_greedy", Case(case.graph, cost, case.system))
    simulated_s = simulate(derive(plan, case.graph), cost, case.system).makespan_s
    rows = [[first[name] for name in names]] * len(case.system.devices)
    assert makespan_s(case.graph, rows, 0.0) <= simulated_s * (1 + 1e-9)


ORT, CPP = EngineInfo("onnxruntime", "1"), EngineInfo("cpp", "1")
SPEED_S = {1: 8e-3, 2: 5e-3, 4: 3e-3, 8: 2e-3}
"""Seconds of a task, by number of cores."""


def device(name: str) -> Device:
    """ "cpu:0-3/cpp" on a machine of eight cores; there is no core 9."""
    cores, _, engine = name.partition(":")[2].partition("/")
    first, _, last = cores.partition("-")
    if name.startswith("gpu"):
        return Device("gpu:0", "gpu", EngineInfo("opencl", "1"))
    if first == "9":
        raise DeviceError("there is no core 9")
    info = CPP if engine == "cpp" else ORT
    numbers = tuple(range(int(first), int(last or first) + 1))
    return Device(name.partition("/")[0], "cpu", info, numbers)


class Machine:
    """Forecasts for a machine of eight cores, with a store."""

    def __init__(self, folder: Path, graph: Graph, mode: Mode = "latency") -> None:
        self.folder, self.graph = folder, graph
        self.forecasts = Forecasts(
            graph,
            folder,
            device,
            device("cpu:0-7"),
            {1, 2, 4, 8},
            mode=mode,
            waiting="active",
            divides=True,
        )

    def profile(self, name: str, seconds: float) -> None:
        """Store ``seconds`` for each task on a device."""
        spec, tensors = device(name), self.graph.tensors
        with ProfileStore(self.folder) as store:
            store.write(
                spec.key,
                {
                    f"{task.signature} | Sum": Measurement(
                        seconds,
                        0.0,
                        1,
                        f"{family_of(task, tensors)} | Sum",
                        work_of(self.graph, task),
                    )
                    for task in self.graph.tasks
                },
            )
        self.forecasts.forget()

    def of(self, *names: str) -> float:
        seconds = self.forecasts.of(names)
        assert seconds is not None
        return seconds


GRAPH = make_graph({"a": [], "b": ["a"], "c": ["b"]}, {"a": 1 << 20, "b": 1 << 20, "c": 1 << 20})


def test_what_was_measured_is_expected(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH)
    rough_s = machine.of("cpu:0-3")
    machine.profile("cpu:0-3", SPEED_S[4])
    assert machine.of("cpu:0-3") == machine.of("cpu:4-7") == pytest.approx(3 * SPEED_S[4])
    assert rough_s != machine.of("cpu:0-3")


def test_two_profiles_give_the_other_sizes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH)
    machine.profile("cpu:0", SPEED_S[1])
    machine.profile("cpu:0-7", SPEED_S[8])
    for size in (2, 4):
        expected_s = on_cores({1: SPEED_S[1], 8: SPEED_S[8]}, size)
        assert machine.of(f"cpu:0-{size - 1}") == pytest.approx(3 * expected_s)
    assert machine.of("cpu:0-3", "cpu:4-7") < machine.of("cpu:0-3")


def test_an_unknown_engine_is_expected_to_be_as_fast_as_the_first(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH)
    machine.profile("cpu:0-3", SPEED_S[4])
    assert machine.of("cpu:0-3/cpp") == machine.of("cpu:0-3")
    machine.profile("cpu:0-1/cpp", SPEED_S[2] / 2)
    assert machine.of("cpu:0-3/cpp") < machine.of("cpu:0-3")


def test_nothing_is_expected_of_what_cannot_be_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH)
    assert machine.forecasts.of(("gpu:0",)) is None
    assert machine.forecasts.of(("cpu:0-7", "gpu:0")) is None
    assert machine.forecasts.of(("cpu:9",)) is None
    machine.profile("gpu:0", 1e-4)
    assert machine.of("gpu:0") == pytest.approx(3e-4)


def test_a_measured_handover_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH)
    machine.profile("cpu:0-3", 1e-3)
    before_s = machine.of("cpu:0-3", "cpu:4-7")
    key = device("cpu:0-3").key
    with ProfileStore(tmp_path) as store:
        store.write(f"{key} -> {key}", {"handover, awake": Measurement(3e-6, 0.0, 1)})
    machine.forecasts.forget()
    assert machine.of("cpu:0-3", "cpu:4-7") < before_s


def test_in_throughput_the_rates_of_devices_add_up(tmp_path: Path) -> None:
    machine = Machine(tmp_path, GRAPH, "throughput")
    machine.profile("cpu:0-3", 2e-3)
    assert machine.of("cpu:0-3", "cpu:4-7") == pytest.approx(machine.of("cpu:0-3") / 2)


def test_a_trained_predictor_needs_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coexec.engines.null import NullEngine
    from coexec.engines.opened import OpenDevice
    from coexec.research.predictor.latency import describe

    machine = Machine(tmp_path, GRAPH)
    spec = device("cpu:0-3")
    engine = NullEngine(spec, spec.engine)
    monkeypatch.setattr(
        "coexec.selection.forecast.open_device",
        lambda spec: OpenDevice.of(NullEngine(spec, spec.engine)),
    )
    terms = tuple(describe(engine)(GRAPH.tasks[0].operators, GRAPH.tensors, "").terms)
    units: Mapping[str, KernelUnits] = {"Sum": KernelUnits({"launch": 5e-3}, terms, 0.1)}
    with ProfileStore(tmp_path) as store:
        store.write_predictor(device("cpu:0-3").key, to_json(units))
    assert machine.of("cpu:4-7") == pytest.approx(3 * 5e-3)
