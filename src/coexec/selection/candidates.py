"""The candidates of a choice: which configurations are tried, in which order, and their plans.

Configurations that run in any case come first, then the others by expectation, as many as the rules
allow. Each is profiled, planned by several planners and simulated, until the time is over. What is
left out, and why, is a row of the decision, too.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from coexec.engines.names import parse
from coexec.errors import CoexecError
from coexec.keys import digest
from coexec.plan.plan import Plan
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.configurations import Configuration
from coexec.selection.decision import Candidate, Key, Status
from coexec.selection.planning_context import PlanningContext
from coexec.settings import Mode
from coexec.timing.simulate import simulate

_T = TypeVar("_T")

Plans = Sequence[tuple[PlanningContext, Plan]]
"""The plans of a candidate with their devices: one; in mode "throughput", one for each device."""


class OutOfTimeError(Exception):
    """The time for a step is over; the text is for the user. Raised inside this package only: the
    caller gets a row for each untried configuration instead."""


class Deadline:
    """The moment at which a choice has to end.

    A measuring step reports its progress. When the time is over, the step is interrupted at its
    next report. Work that cannot be interrupted (a driver that compiles, a session that is created)
    is finished first.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        *,
        now_s: Callable[[], float] = time.monotonic,
        paused_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        Args:
            seconds: time limit from now on.
            paused_s: seconds so far in which planning waited for the user's own requests. They do
                not count.
        """
        self.seconds = seconds
        self._now_s, self._paused_s = now_s, paused_s
        self._start_s = self._clock_s()

    def _clock_s(self) -> float:
        return self._now_s() - self._paused_s()

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until ``share`` of the time is over; negative after that."""
        return self._start_s + share * self.seconds - self._clock_s()

    def check(self, rules: Rules) -> None:
        """Check that the time for profiles and plans is not over.

        Raises:
            OutOfTimeError: it is over.
        """
        if self.left_s(rules.planning_share) <= 0:
            raise OutOfTimeError(f"there was no time for it within {rules.seconds:.3g} s")

    def rest(self) -> "Deadline":
        """The same moment; shares are those of the time that is left now."""
        return Deadline(max(0.0, self.left_s()), now_s=self._now_s, paused_s=self._paused_s)


class PlannerTimes:
    """Times of planners for one model, by number of devices.

    A planner cannot be interrupted, and its time grows with the number of devices: with its square,
    until two numbers have been timed (searches climb where there are many devices, see
    `planners.methods.splitting.climb`).
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._taken_s: dict[str, dict[int, float]] = {}

    def timed(self, planner: str, devices: int, plan: Callable[[], _T]) -> _T:
        """The result of ``plan``, whose time is remembered."""
        start_s = self._now_s()
        result = plan()
        self._taken_s.setdefault(planner, {})[devices] = self._now_s() - start_s
        return result

    def expected_s(self, planner: str, devices: int) -> float:
        """Expected seconds for a number of devices; infinite if this planner was never timed."""
        taken = sorted(self._taken_s.get(planner, {}).items())
        if not taken:
            return math.inf
        (count, seconds), power = taken[-1], 2.0
        if len(taken) > 1 and min(s for _, s in taken[-2:]) > 0.0:
            fewer, fewer_s = taken[-2]
            power = max(1.0, math.log(seconds / fewer_s) / math.log(count / fewer))
        return seconds * math.pow(max(1.0, devices / count), power)


def candidate_of(
    names: Configuration, planner: str, plans: Plans, predicted_s: float | None = None
) -> Candidate:
    """The candidate of a configuration with these plans by ``planner``."""
    places = [place for _, plan in plans for place in plan.places]
    engines = tuple(dict.fromkeys(place.engine_name for place in places))
    options = plans[0][0].settings.engine_options
    return Candidate(
        names,
        planner,
        predicted_s,
        plan=digest([plan.to_json() for _, plan in plans]),
        engines=engines,
        options={engine: dict(options[engine]) for engine in engines if engine in options},
        precision=" and ".join(plan.lower_in_words for _, plan in plans if plan.lower),
        own_session=all(plan.as_given for _, plan in plans),
    )


def without_plan(
    names: Configuration,
    status: Status,
    reason: str,
    expected_s: float | None = None,
    *,
    planner: str = "",
) -> Candidate:
    """The candidate of a configuration for which there is no plan, at least not by ``planner``."""
    engines = tuple(dict.fromkeys(engine for name in names if (engine := parse(name).engine)))
    return Candidate(
        names, planner, engines=engines, status=status, reason=reason, expected_s=expected_s
    )


def release(plans: Plans) -> None:
    """Close the engines of plans: some can use only one set of cores at a time."""
    for work, _ in plans:
        work.release()


@dataclass
class Candidates:
    """The candidates of one model, made configuration by configuration."""

    open: Callable[[Configuration], PlanningContext]
    """Opens the devices of a configuration. Profiles report their progress, and the report raises
    OutOfTimeError when the time is over."""
    alone: Callable[[str], tuple[PlanningContext, Plan]]
    """The plan of a single device, with the context that starts it."""
    mode: Mode
    rules: Rules
    deadline: Deadline
    report: ReportProgress
    expected_s: Callable[[Configuration], float | None] | None = None
    """Returns the expected seconds of a configuration, from the profiles so far; None if nothing is
    known. Without it, all configurations are tried in the given order."""
    profiled: Callable[[], None] = lambda: None
    """Called after each profile."""
    made_certain: Callable[["Candidates"], None] = lambda made: None
    """Called once, when the certain configurations have their plans."""
    settled: Collection[Key] = ()
    """Candidates for which no plan is made, because an earlier pass has settled them."""
    planner_times: PlannerTimes = field(default_factory=PlannerTimes)
    rows: list[Candidate] = field(default_factory=list)
    """All candidates, in the order in which they were made."""
    plans: dict[Key, Plans] = field(default_factory=dict)
    """The plans of those that can run."""

    def make(
        self,
        certain: Sequence[Configuration],
        optional: Sequence[Configuration],
        before_optional: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the plans of the configurations that are worth it, with simulated times.

        The first configuration that can run is planned even if the time is over.

        Args:
            certain: configurations that are tried in any case, in this order.
            optional: configurations that are tried afterwards, the best expectations first.
            before_optional: called once, before the first optional one is chosen by expectation.
        """
        what, count = "configurations of devices", len(certain) + len(optional)
        left = list(optional)
        ordered = self._ordered(certain, left, before_optional)
        for number, names in enumerate(ordered, 1):
            expected_s = self._expected_s(names)
            try:
                if self.plans:
                    self.deadline.check(self.rules)
                self._plan_configuration(names, expected_s)
            except OutOfTimeError as error:
                self.rows.append(without_plan(names, "untried", str(error), expected_s))
            except CoexecError as error:
                self.rows.append(without_plan(names, "refused", str(error), expected_s))
            self.report(what, number, count)
        self.report(what, count, count)
        best_s, tried = self._best_s([*certain, *optional]), len(optional) - len(left)
        for names in left:
            reason = self._why_left_out(names, best_s, tried)
            self.rows.append(without_plan(names, "left out", reason, self._expected_s(names)))

    def _ordered(
        self,
        certain: Sequence[Configuration],
        left: list[Configuration],
        before_optional: Callable[[], None],
    ) -> Iterator[Configuration]:
        """The configurations in the order in which they are tried. Those that are not worth it
        remain in ``left``.

        Expectations are computed again before each step, because the profile of one configuration
        improves the expectations of the rest. A configuration of many devices follows one of at
        least half as many: only then is it known how long planners will take.
        """
        yield from certain
        self.made_certain(self)
        if self.expected_s is None:
            while left:
                yield left.pop(0)
            return
        if left:
            before_optional()
        every, most_devices = [*certain, *left], 0
        for _ in range(self.rules.most_profiled):
            best_s = self._best_s(every)
            worth = [names for names in left if self._is_worth(names, best_s)]
            quick = max(self.rules.quick_devices, 2 * most_devices)
            choices = [names for names in worth if len(names) <= quick] or worth
            if not choices:
                return
            expected = {names: self._expected_s(names) for names in choices}
            names = min(choices, key=lambda n: best_s if (s := expected[n]) is None else s)
            left.remove(names)
            most_devices = max(most_devices, len(names))
            yield names

    def _expected_s(self, names: Configuration) -> float | None:
        return None if self.expected_s is None else self.expected_s(names)

    def _best_s(self, every: Sequence[Configuration]) -> float:
        """The best expectation, also of configurations that were tried."""
        expected = map(self._expected_s, every)
        return min((seconds for seconds in expected if seconds is not None), default=math.inf)

    def _is_worth(self, names: Configuration, best_s: float) -> bool:
        expected_s = self._expected_s(names)
        return expected_s is None or expected_s <= self.rules.worth_profiling * best_s

    def _why_left_out(self, names: Configuration, best_s: float, tried: int) -> str:
        expected_s = self._expected_s(names)
        if expected_s is None or self._is_worth(names, best_s):
            return f"others come first, and at most {tried} are profiled"
        return (
            f"that is {expected_s / best_s:.2f} times the best expectation; above "
            f"{self.rules.worth_profiling:g} a configuration is not tried"
        )

    def _add(
        self,
        names: Configuration,
        planner: str,
        plans: Plans,
        predicted_s: float | None = None,
        expected_s: float | None = None,
    ) -> None:
        """Add a candidate that can run, unless it is settled."""
        if (names, planner) not in self.settled:
            row = candidate_of(names, planner, plans, predicted_s)
            self.rows.append(replace(row, expected_s=expected_s))
            self.plans[row.key] = plans

    def _plan_configuration(self, names: Configuration, expected_s: float | None) -> None:
        """Add the different plans of a configuration.

        A single device needs no profile: there is one plan for it. If its engine has a session of
        its own, there are two candidates: that session, and the model as rewritten by coexec, which
        makes some models much faster (`engines.onnxruntime.alignment`).

        Raises:
            CoexecError: the configuration cannot run the model.
            OutOfTimeError: the time is over.
        """
        several = len(names) > 1
        planners = ["single"]
        if several and self.mode == "latency":
            planners = self.rules.planner_names
        if several and all((names, planner) in self.settled for planner in planners):
            return
        if several and self.mode == "latency":
            work = self.open(names)
            try:
                self._plan_by(planners, work, names, expected_s)
            finally:
                work.release()  # some engines can use only one set of cores at a time
            return
        plans = [self.alone(name) for name in names]
        release(plans)
        self._add(names, "single", plans, expected_s=expected_s)
        work, plan = plans[0]
        if plan.as_given and self.mode == "latency":
            rewritten = [(work, replace(plan, as_given=False))]
            self._add(names, "single, rewritten", rewritten, expected_s=expected_s)

    def _plan_by(
        self,
        planners: Sequence[str],
        work: PlanningContext,
        names: Configuration,
        expected_s: float | None,
    ) -> None:
        """Add the plans of several devices by the planners that are not settled."""
        cost, system = work.measured
        self.profiled()
        made: dict[Any, str] = {}
        rows: list[Candidate] = []
        narrow: list[Candidate] = []
        """Of plans for a single device, which is a configuration of its own."""
        for planner in (name for name in planners if (names, name) not in self.settled):
            row = partial(without_plan, names, expected_s=expected_s, planner=planner)
            try:
                plan = self._plan(work, planner, len(names))
            except OutOfTimeError as error:
                rows.append(row("untried", str(error)))
                continue
            except CoexecError as error:
                rows.append(row("refused", str(error)))
                continue
            if len(plan.places) == 1:
                narrow.append(row("left out", f"its plan uses only {plan.places[0]}"))
                continue
            key = tuple(plan.order.items()), plan.places, plan.fused
            if (same := made.setdefault(key, planner)) != planner:
                rows.append(row("left out", f"its plan is that of {same}"))
                continue
            predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
            self._add(names, planner, [(work, plan)], predicted_s, expected_s)
        if len(narrow) == len(planners):
            reason = "planners use only one of these devices"
            narrow = [without_plan(names, "left out", reason, expected_s)]
        self.rows += rows + narrow

    def _plan(self, work: PlanningContext, planner: str, devices: int) -> Plan:
        """The plan of a planner.

        Raises:
            OutOfTimeError: the time is over, or would be before the planner ends.
        """
        self.report(f"planner {planner}", 0, 1)
        self.deadline.check(self.rules)
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
