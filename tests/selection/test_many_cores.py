"""planner="auto" on sixteen cores that do not exist: what is profiled, planned, raced or left out.

The cores are pretended, their times are simulated, and no plan runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from coexec.costs.estimated import work_of
from coexec.costs.table import CostTable
from coexec.engines import detect
from coexec.engines.base import Processor
from coexec.engines.registry import Driven
from coexec.errors import InfeasibleError
from coexec.graph.signature import family_of
from coexec.hardware.hardware import Device, Link, System
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.profiling.store import Measurement, ProfileStore
from coexec.rules import RULES, Rules
from coexec.selection.candidates import Candidates, Deadline, PlannerTimes
from coexec.selection.chooser import Chooser
from coexec.selection.configurations import Configuration, configurations
from coexec.selection.decision import Candidate
from coexec.selection.plan_race import PlanRace, with_figures
from coexec.selection.planning_context import PlanningContext
from coexec.selection.race import Lap, Outcome
from coexec.settings import Settings
from tests.helpers.graphs import layered, quickly
from tests.helpers.small_models import branches

ONE_ENGINE = Rules(further_engines=False, planners="hope_greedy,heft")
HANDOVER_S = 20e-6


@dataclass
class Machine:
    """A machine with equal cores whose times follow Amdahl's law, and a clock."""

    cores: int = 16
    serial_s: float = 100e-6
    parallel_s: float = 800e-6
    """Seconds of each task: serial + parallel / cores."""
    profile_s: float = 1.0
    """Seconds of profiling one kind of cluster; it reports its progress twenty times."""
    now_s: float = 0.0
    profiled: list[Configuration] = field(default_factory=list)
    """The configurations, in the order in which they were profiled."""
    raced: list[Candidate] = field(default_factory=list)

    def seconds(self, device: Device) -> float:
        return self.serial_s + self.parallel_s / len(device.cores)

    def measured(self, work: PlanningContext) -> tuple[CostTable, System]:
        """Stands for `PlanningContext.measured`."""
        graph, devices = work.graph, [device.spec for device in work.devices]
        assert work.settings.progress is not None
        with ProfileStore(work.cache.root) as store:
            for spec in {spec.key: spec for spec in devices}.values():
                for step in range(20):
                    self.now_s += self.profile_s / 20
                    work.settings.progress(f"{spec.name}: tasks", step, 20)
                store.write(
                    spec.key,
                    {
                        f"{task.signature} | X": Measurement(
                            self.seconds(spec),
                            0.0,
                            1,
                            f"{family_of(task, graph.tensors)} | X",
                            work_of(graph, task),
                        )
                        for task in graph.tasks
                    },
                )
        self.profiled.append(work.names)
        tasks_s = {
            spec.place: {task.name: self.seconds(spec) for task in graph.tasks} for spec in devices
        }
        links = (Link(a.place, b.place, HANDOVER_S) for a, b in permutations(devices, 2))
        return CostTable(tasks_s), System(tuple(devices), tuple(links))

    def race(self, plans: PlanRace) -> None:
        """Stands for `PlanRace.run`: the first single device wins."""
        self.raced = [row for key, row in plans.rows.items() if key in plans.plans]
        seconds = (1.0 + which for which in range(len(plans.rows)))
        outcome = Outcome({which: [Lap((s,), (s,))] * 5 for which, s in enumerate(seconds)})
        for which, row in enumerate(self.raced):
            plans.rows[row.key] = with_figures(row, outcome, which, 0, plans.objective)
        plans.reference = self.raced[0].key


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    pretended = Machine()

    def cores(*_: Any) -> tuple[int, ...]:
        return tuple(range(pretended.cores))

    def clusters(root: Any = None, cores: Sequence[int] = ()) -> tuple[detect.CoreCluster, ...]:
        return ((tuple(cores) or tuple(range(pretended.cores)), None),)

    monkeypatch.setattr(detect, "usable_cores", cores)
    monkeypatch.setattr(detect, "clusters", clusters)
    monkeypatch.setattr(detect, "partitions", lambda: ())
    monkeypatch.setattr(detect, "capacity", lambda _: 1.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(cores()), raising=False)
    measured = cached_property(pretended.measured)
    measured.__set_name__(PlanningContext, "measured")
    monkeypatch.setattr(PlanningContext, "measured", measured)
    monkeypatch.setattr("coexec.selection.chooser._compared", lambda row, *_: row)
    monkeypatch.setattr(PlanRace, "run", lambda plans: pretended.race(plans))
    timed = partial(Deadline, now_s=lambda: pretended.now_s)
    monkeypatch.setattr("coexec.selection.chooser.Deadline", timed)
    return pretended


def chosen(folder: Path, rules: Rules = ONE_ENGINE, **settings: Any) -> Sequence[Candidate]:
    """The candidates of a choice."""
    settings = {"cache": folder, "rules": rules} | settings
    decision = Chooser(branches(), Settings(**settings)).make().decision
    assert decision is not None
    return decision.candidates


def test_configurations_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "usable_cores", lambda: (0, 1))
    monkeypatch.setattr(detect, "clusters", lambda: (((0, 1), None),))
    monkeypatch.setattr(detect, "partitions", lambda: ())
    listed = [
        Driven("cpu", "a CPU", dict.fromkeys(("onnxruntime", "cpp"), Processor("cpu", "a CPU"))),
        Driven("gpu:0", "a GPU", {"opencl": Processor("gpu", "a GPU")}),
    ]
    monkeypatch.setattr("coexec.selection.configurations.processors", lambda kind=None: listed)
    assert configurations() == [
        ("cpu:0-1",),
        ("cpu:0", "cpu:1"),
        ("gpu:0",),
        ("cpu:0-1", "gpu:0"),
        ("cpu:0", "cpu:1", "gpu:0"),
        ("cpu:0-1/cpp",),
        ("cpu:0/cpp", "cpu:1/cpp"),
        ("cpu:0", "cpu:1/cpp"),
    ]


def test_on_two_cores_everything_is_tried_and_nothing_is_expected(
    machine: Machine, tmp_path: Path
) -> None:
    machine.cores, machine.serial_s = 2, 1.0  # a second core gains nothing
    rows = chosen(tmp_path)
    assert machine.profiled == [("cpu:0", "cpu:1")]
    assert {row.devices for row in rows} == {("cpu:0-1",), ("cpu:0", "cpu:1")}
    assert all(row.expected_s is None for row in rows)


def test_every_configuration_of_sixteen_cores_is_in_the_decision(
    machine: Machine, tmp_path: Path
) -> None:
    rows = chosen(tmp_path)
    assert {row.devices for row in rows} == set(configurations(rules=ONE_ENGINE))
    assert all(row.reason for row in rows)
    assert all(row.expected_s for row in rows if row.status != "untried")
    first, *several = machine.profiled
    assert first == ("cpu:0-15",)
    assert 0 < len(several) <= RULES.most_profiled
    for names in several:  # planned, and raced or left out by their predictions
        planned = [row for row in rows if row.devices == names]
        assert all(row.planner for row in planned)
        predicted = [row for row in planned if not row.reason.startswith("its plan is that of")]
        assert predicted and all(row.predicted_s for row in predicted)
    for row in rows:
        if len(row.devices) > 1 and row.devices not in machine.profiled:
            assert row.status == "left out" and not row.planner
    measured = {row.devices for row in rows if row.measured_s is not None}
    assert ("cpu:0-15",) in measured
    assert measured == {row.devices for row in machine.raced}


@pytest.mark.parametrize(
    ("serial_s", "parallel_s", "raced"),
    [
        (1e-3, 1e-6, {"cpu:0-15", "cpu:0-7", "cpu:0-3", "cpu:0-1"}),
        (1e-6, 16e-3, {"cpu:0-15"}),
    ],
)
def test_fewer_cores_run_where_threads_do_not_help(
    machine: Machine, tmp_path: Path, serial_s: float, parallel_s: float, raced: set[str]
) -> None:
    machine.serial_s, machine.parallel_s = serial_s, parallel_s
    rows = chosen(tmp_path)
    assert {row.devices[0] for row in machine.raced if len(row.devices) == 1} == raced
    left_out = [row for row in rows if len(row.devices) == 1 and row.devices[0] not in raced]
    assert all(row.status == "left out" and "best expectation" in row.reason for row in left_out)
    assert machine.raced[0].devices == ("cpu:0-15",)  # with which the others are compared


def test_few_configurations_are_profiled_and_the_best_expectations_first(
    machine: Machine, tmp_path: Path
) -> None:
    rules = replace(ONE_ENGINE, most_profiled=1, worth_profiling=100.0)
    rows = chosen(tmp_path, rules)
    assert len(machine.profiled) == 2  # all cores, and one configuration of several devices
    several = [row for row in rows if len(row.devices) > 1]
    assert sum(row.status == "left out" and not row.planner for row in several) == 3
    assert any("at most 1 are profiled" in row.reason for row in several)


def test_the_choice_ends_in_time_however_slow_profiles_are(
    machine: Machine, tmp_path: Path
) -> None:
    machine.profile_s = 25.0
    rules = replace(ONE_ENGINE, seconds=60.0)
    rows = chosen(tmp_path, rules)
    step_s = machine.profile_s / 20
    assert machine.now_s <= rules.planning_share * rules.seconds + step_s
    assert machine.profiled == [("cpu:0-15",)]  # a second profile was interrupted
    untried = [row for row in rows if row.status == "untried"]
    assert untried and all(row.expected_s for row in untried)
    assert {row.reason for row in untried} == {"there was no time for it within 60 s"}
    assert rows[0].status == "taken" and rows[0].devices == ("cpu:0-15",)
    # More time goes on, with the stored profiles.
    settings = Settings(cache=tmp_path, rules=replace(rules, seconds=600.0))
    more = Chooser(branches(), settings).go_on().candidates
    assert not any(row.status == "untried" for row in more) and len(machine.profiled) > 2


def test_in_throughput_the_number_of_configurations_is_bounded(
    machine: Machine, tmp_path: Path
) -> None:
    rows = chosen(tmp_path, replace(ONE_ENGINE, most_profiled=2), mode="throughput")
    assert machine.profiled == []
    raced = {row.devices for row in machine.raced if len(row.devices) > 1}
    assert len(raced) == 2
    assert {row.devices for row in rows} == set(configurations(rules=ONE_ENGINE))


def test_where_time_is_limited_the_first_engine_starts_first(
    machine: Machine, tmp_path: Path
) -> None:
    machine.cores = 2
    chooser = Chooser(branches(), Settings(cache=tmp_path, rules=ONE_ENGINE))
    rows = [
        Candidate(("cpu:0-1/openvino",), "single", engines=("openvino",)),
        Candidate(("cpu:0", "cpu:1/openvino"), "codl", 1e-3, engines=("onnxruntime", "openvino")),
        Candidate(("cpu:0-1",), "single", engines=("onnxruntime",)),
        Candidate(("cpu:0", "cpu:1"), "codl", 1e-3, engines=("onnxruntime",)),
    ]
    made = candidates_with(lambda names: None, ONE_ENGINE, [0.0])
    made.rows, made.plans = rows, {row.key: () for row in rows}
    shortlist, left_out = chooser._worth_running(made)
    assert left_out == [] and shortlist == [rows[i] for i in (2, 3, 0, 1)]


def test_single_devices_alone_are_also_fewer_cores(machine: Machine, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path, rules=ONE_ENGINE)
    decision = Chooser(branches(), settings).go_on(alone=True).decision
    assert decision is not None and machine.profiled == []
    assert all(len(row.devices) == 1 for row in machine.raced)
    untried = {row.devices for row in decision.untried}
    assert untried == {names for names in configurations(rules=ONE_ENGINE) if len(names) > 1}


@dataclass
class Work:
    """Stands for `PlanningContext`: devices of one letter, planners that take time of a clock."""

    names: Configuration
    clock: list[float]
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        self.case = layered(12, 3, "ABCDEFGHIJKLMNOP"[: len(self.names)])
        self.measured = self.case.cost, self.case.system

    def plan(self, planner: str) -> Plan:
        self.clock[0] += 0.25 * len(self.names) ** 2 if planner == "heft" else 0.0
        return quickly(planner, self.case)

    def schedule(self, plan: Plan) -> Any:
        return derive(plan, self.case.graph)

    def release(self) -> None:
        pass


def candidates_with(
    opens: Callable[[Configuration], Any], rules: Rules, clock: list[float], **more: Any
) -> Candidates:
    """Candidates whose time is ``clock``."""

    def alone(name: str) -> tuple[Any, Plan]:
        work = opens((name,))
        return work, work.plan("single")

    return Candidates(
        opens,
        alone,
        "latency",
        rules,
        Deadline(rules.seconds, now_s=lambda: clock[0]),
        lambda what, done, total: None,
        planner_times=PlannerTimes(lambda: clock[0]),
        **more,
    )


class OtherPlans(Work):
    """Planners that raise, that use one device, or that plan as another one does."""

    def plan(self, planner: str) -> Plan:
        if planner == "exhaustive":
            raise InfeasibleError("there are more than 10 tasks")
        return quickly({"mosaic": "single", "dmdar": "heft"}.get(planner, planner), self.case)


def test_each_planner_of_a_configuration_has_a_line() -> None:
    planners = "exhaustive,mosaic,heft,dmdar"
    opens, names = partial(OtherPlans, clock=[0.0]), ("null:0", "null:1")
    made = candidates_with(opens, Rules(planners=planners), [0.0])
    made.make([], [names])
    assert made.plans.keys() == {(names, "heft")}
    assert [(row.planner, row.status, row.reason) for row in made.rows if row.reason] == [
        ("exhaustive", "refused", "there are more than 10 tasks"),
        ("dmdar", "left out", "its plan is that of heft"),
        ("mosaic", "left out", "its plan uses only B/null"),
    ]
    made = candidates_with(opens, Rules(planners="mosaic,single"), [0.0])
    made.make([], [names])
    (row,) = made.rows
    assert not made.plans and row.reason == "planners use only one of these devices"
    # The last planner says nothing about plans of others, which earlier passes have settled.
    made = candidates_with(opens, Rules(planners="heft,mosaic"), [0.0], settled={(names, "heft")})
    made.make([], [names])
    reasons = {row.planner: row.reason for row in made.rows}
    assert reasons == {"mosaic": "its plan uses only B/null"}


def test_in_throughput_nothing_is_made_that_is_settled() -> None:
    names = ("null:0", "null:1")
    made = candidates_with(partial(Work, clock=[0.0]), RULES, [0.0], settled={(names, "single")})
    made.mode = "throughput"
    made.make([], [names])
    assert not made.plans and not made.rows


def test_a_planner_that_would_not_end_in_time_is_not_started() -> None:
    clock = [0.0]
    rules = replace(RULES, planners="heft,hope_greedy", seconds=50.0, planning_share=1.0)
    opened: list[Any] = []

    def opens(names: Configuration) -> Any:
        opened.append(Work(names, clock))
        return opened[-1]

    made = candidates_with(opens, rules, clock)
    names = [tuple(f"null:{n}" for n in range(count)) for count in (2, 4, 8, 16)]
    made.make([], names)
    assert clock[0] == 1.0 + 4.0 + 16.0  # 64 s for sixteen devices would be too long
    (late,) = [row for row in made.rows if row.status == "untried"]
    assert (late.devices, late.planner, late.status) == (names[3], "heft", "untried")
    assert late.reason == (
        "planner heft is expected to take 64 s for 16 devices, and 29 s are left"
    )
    assert {planner for devices, planner in made.plans if len(devices) == 16} <= {"hope_greedy"}
