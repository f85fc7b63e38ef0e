"""Plans of configurations, made one configuration after the other until the time is over."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coexec.errors import CoexecError
from coexec.plan.plan import Plan
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.agenda import Agenda
from coexec.selection.configurations import Configuration
from coexec.selection.contender import (
    Contender,
    contender,
    single_device_contenders,
    without_plan,
)
from coexec.selection.deadline import Deadline, OutOfTimeError
from coexec.selection.decision import Candidate
from coexec.selection.planner_times import PlannerTimes
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Mode
from coexec.timing.simulate import simulate

__all__ = ["ConfigurationPlanning"]

_Planned = tuple[list[Contender], list[Candidate]]
"""Plans that can run, and what cannot run or was left out, with the reason."""


@dataclass(frozen=True)
class ConfigurationPlanning:
    """Profiles configurations and plans for them."""

    open: Callable[[Configuration], PlanningContext]
    """Opens the devices of a configuration. Profiles report their progress, and the report raises
    OutOfTimeError when the time is over."""
    mode: Mode
    rules: Rules
    deadline: Deadline
    report: ReportProgress
    profiled: Callable[[], None] = lambda: None
    """Called after each profile."""
    planner_times: PlannerTimes = field(default_factory=PlannerTimes)
    settled: Collection[tuple[Configuration, str]] = ()
    """Candidates, as devices and planner, for which no plan is made."""

    def contenders(self, agenda: Agenda) -> _Planned:
        """Plans of the configurations of ``agenda`` with simulated times; and the configurations
        that cannot run, that are not worth it, or for which there was no time.

        The first configuration that can run is planned even if the time is over.
        """
        able: list[Contender] = []
        rows: list[Candidate] = []
        number = 0
        while (item := agenda.next()) is not None:
            names, expected_s = item
            try:
                if able:
                    self._check_time()
                planned, late = self._planned(names)
                able += [each.expecting(expected_s) for each in planned]
                rows += [replace(row, expected_s=expected_s) for row in late]
            except OutOfTimeError as error:
                rows.append(without_plan(names, "untried", str(error), expected_s))
            except CoexecError as error:
                rows.append(without_plan(names, "refused", str(error), expected_s))
            number += 1
            self.report("configurations of devices", number, agenda.count)
        self.report("configurations of devices", agenda.count, agenda.count)
        rows += [
            without_plan(item.names, "left out", reason, item.expected_s)
            for item, reason in agenda.left_out()
        ]
        return able, rows

    def _check_time(self) -> None:
        self.deadline.check(self.rules.planning_share)

    def _planned(self, names: Configuration) -> _Planned:
        """The different plans of a configuration.

        A single device needs no profile: there is one plan for it.

        Raises:
            CoexecError: the configuration cannot run the model.
            OutOfTimeError: the time is over.
        """
        if self.mode == "throughput":
            works = [self.open((name,)) for name in names]
            plans = [(work, work.plan("single")) for work in works]
            return [contender(names, "single", plans)], []
        if len(names) > 1 and all((names, p) in self.settled for p in self.rules.planner_names):
            return [], []
        work = self.open(names)
        try:
            if len(names) == 1:
                entries = single_device_contenders(work, names)
                return [e for e in entries if e.candidate.key not in self.settled], []
            return self._by_planners(work, names)
        finally:
            work.release()  # some engines can use only one set of cores at a time

    def _by_planners(self, work: PlanningContext, names: Configuration) -> _Planned:
        cost, system = work.measured
        self.profiled()
        contenders: dict[Any, Contender] = {}
        rows: list[Candidate] = []
        narrow: list[Candidate] = []
        """Of plans for a single device, which is a configuration of its own."""
        planners = [p for p in self.rules.planner_names if (names, p) not in self.settled]
        for planner in planners:
            row = partial(without_plan, names, planner=planner)
            try:
                plan = self._plan(work, planner, len(names))
            except OutOfTimeError as error:
                rows.append(row("untried", str(error)))
                continue
            except CoexecError as error:
                rows.append(row("refused", str(error)))
                continue
            if len(plan.used) == 1:
                narrow.append(row("left out", f"its plan uses only {plan.used[0]}"))
                continue
            key = tuple(plan.order.items()), plan.places, plan.fused
            if (same := contenders.get(key)) is not None:
                rows.append(row("left out", f"its plan is that of {same.candidate.planner}"))
                continue
            predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
            contenders[key] = contender(names, planner, [(work, plan)], predicted_s)
        if narrow and not contenders and not rows:
            reason = "planners use only one of these devices"
            return [], [without_plan(names, "left out", reason)]
        return list(contenders.values()), rows + narrow

    def _plan(self, work: PlanningContext, planner: str, devices: int) -> Plan:
        """The plan of a planner.

        Raises:
            OutOfTimeError: the time is over, or would be before the planner ends.
        """
        self.report(f"planner {planner}", 0, 1)
        self._check_time()
        expected_s = self.planner_times.expected_s(planner, devices)
        left_s = self.deadline.left_s(self.rules.planning_share)
        if devices > self.rules.quick_devices and expected_s > left_s:
            expected = f"{expected_s:.3g} s" if expected_s < math.inf else "an unknown time"
            raise OutOfTimeError(
                f"planner {planner} is expected to take {expected} for {devices} devices, and "
                f"{left_s:.3g} s are left"
            )
        plan = self.planner_times.timed(planner, devices, lambda: work.plan(planner))
        self.report(f"planner {planner}", 1, 1)
        return plan
