"""planner="auto": which devices, in which configuration, with which plan. Decided by running.

The cores of a machine can be one wide device or several narrow ones, beside a GPU or not, and what
is fastest depends on the model: many branches favour plans, one long chain favours a wide device.
So every configuration is profiled, planned by several planners and simulated; the best predictions,
and always the best single device, then run for real, in turns (`race`), until it is clear which one
is fastest. That one is compared with ONNX Runtime (`comparison`): where it computes anything else,
it is out, and the next one is compared. What is taken is remembered. A plan that is not clearly
faster than the best single device is not taken.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from coexec.cache import Entry
from coexec.choosing.comparison import ReferenceAnswers, compared, is_exact, known
from coexec.choosing.configurations import Configuration, configurations
from coexec.choosing.doubt import MOST_RACES, doubt, spread
from coexec.choosing.idle import Stopwatch, cpu_clock
from coexec.choosing.race import REQUESTS, Lap, Outcome, compete, mostly, ratios, turn
from coexec.choosing.rival import RivalProcess
from coexec.engines import detect
from coexec.engines.names import parse, whole_cpu
from coexec.engines.registry import installed
from coexec.errors import (
    CoexecError,
    DeviceError,
    ExecutionError,
    InfeasibleError,
    PlanError,
    StoreError,
    UsageError,
    nearest,
)
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.profiling.traffic import Quiet, undisturbed
from coexec.timing.simulate import simulate
from coexec.workbench import Candidate, Prepared, Requests, Settings, Workbench
from coexec.workbench.bench import opened_cache
from coexec.workbench.given import GivenModel

__all__ = ["Auto"]

_SHORTLIST = 5
"""Plans that run for real."""
_WORTH_TRYING = 1.25
"""Predicted makespan over the best prediction: beyond, predictions are not that wrong."""
_BUDGET_S = 6.0
"""For all runs of the shortlist together."""
_ROUNDS = (5, 40)
"""At least and at most."""
_GAIN = 0.99
"""A plan for several devices has to take less than this share of what one device takes."""
_OTHER_GAIN = 0.95
"""The same for GPUs and for further engines of CPU cores: they start more slowly, and their results
differ in the last digits."""
_STOLEN = 2.0
"""A plan has to gain as many times the share of the processors' time that the host of a virtual
machine took, in addition: its devices wait for each other, and for the one that the host has
stopped, whereas threads without a processor of their own go where there is time. What a race of
seconds has seen of that tells little of the next minute: a plan that it found to take 0.9 of the
single device's time then took 1.3, where the host took 15 %."""
_BOTH = "both"
_NOT_SLOWER = 1.01
"""What may count as equally fast by the figure that does not decide."""
_OPTIONS = {
    "planners": "hope_greedy,heft,anneal,codl", "shortlist": _SHORTLIST, "requests": _BOTH,
}  # fmt: skip


Tell = Callable[[str, int, int], None]
"""As `Settings.progress`."""


def _silent(what: str, done: int, total: int) -> None:
    pass


class _Contender(NamedTuple):
    """A candidate, ready to be compiled."""

    candidate: Candidate
    work: Workbench
    plan: Plan
    rounds_s: Sequence[float] = ()
    """What it took in each round of the race, by the figure that decides."""

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores with their first engine alone."""
        asked = [parse(name) for name in self.candidate.devices]
        return all(request.kind == "cpu" and not request.engines for request in asked)

    def raced(self, outcome: Outcome[int], which: int, requests: Requests) -> "_Contender":
        """With what was measured of it as rival ``which``, or why it failed where others ran."""
        error = outcome.failed.get(which) if any(outcome.laps.values()) else None
        rounds_s = outcome.rounds_s(which, requests)
        candidate = replace(
            self.candidate,
            paced_s=outcome.median_s(which, "paced"),
            loop_s=outcome.median_s(which, "loop"),
            requests=requests,
            spread=spread(rounds_s),
            refused=None if error is None else str(error),
        )
        return self._replace(candidate=candidate, rounds_s=rounds_s)

    def refused(self, reason: str) -> "_Contender":
        """With why it may not answer requests."""
        return self._replace(candidate=replace(self.candidate, refused=reason))

    def why_not(self, reference: ReferenceAnswers) -> str | None:
        """Why it may not answer requests; None if it computes what ONNX Runtime does."""
        try:
            prepared = self.work.prepared(self.plan)
            return None if is_exact(prepared) else compared(prepared, None, reference).reason
        except CoexecError as error:
            return str(error)
        finally:
            self.work.release()  # some engines compute on one set of cores at a time


class Auto:
    """Chooses for one model on one machine; what it has chosen before, it takes from the cache."""

    def __init__(self, source: Any, settings: Settings | None = None) -> None:
        """
        Args:
            source: as for `Workbench`.
            settings: of the planner's options, "planners", comma-separated, are for configurations
                of several devices; "shortlist" is how many plans run for real; "requests" is the
                figure that decides: "paced", 30 a second as a camera sends them, or "loop", one
                after the other; by default the first decides, and the second must not suffer.

        Raises:
            UsageError: an option that does not exist, or a value that it does not take.
            DeviceError: a device that does not exist.
        """
        self._settings = settings = settings or Settings()
        chosen = _checked(settings.planner_options)
        self._planners = _names(chosen["planners"])
        self._shortlist: int = chosen["shortlist"]
        self._both = chosen["requests"] == _BOTH
        self._requests: Requests = "paced" if self._both else chosen["requests"]
        self._cache = opened_cache(settings.cache)
        self._source = source
        self._first_names = tuple(settings.devices or [whole_cpu()])
        self._first = self._open(self._first_names)
        self._doubt: str | None = None
        self._races = 0
        self._before: Candidate | None = None

    @cached_property
    def _configurations(self) -> Sequence[Configuration]:
        """What is to be tried. Asked for only when nothing is remembered: it loads all engines."""
        return configurations(self._settings.devices)

    @cached_property
    def _known(self) -> Prepared | None:
        """What was decided before."""
        return None if self._settings.fresh else self._remembered(self._key)

    def _open(self, names: Sequence[str]) -> Workbench:
        return Workbench(self._source, replace(self._settings, devices=names, cache=self._cache))

    @property
    def given(self) -> GivenModel:
        """The model."""
        return self._first.given

    @property
    def known(self) -> Prepared | None:
        """What was decided before, if it was; nothing is decided for it."""
        return self._known

    @property
    def doubt(self) -> str | None:
        """Why what was decided before should be raced again; None if it should not."""
        return self._doubt if self._known is not None and self._races < MOST_RACES else None

    def reconsider(self) -> Prepared:
        """Race again what was decided in doubt. It is confirmed, or another way is taken."""
        known = self._known
        self._before = known.candidates[0] if known is not None else None
        self._known = None
        return self.choose()

    def choose(self) -> Prepared:
        """The fastest way found to run the model.

        Raises:
            InfeasibleError: no configuration runs it.
            ExecutionError: none computes what ONNX Runtime does.
            CoexecError: the model cannot be loaded.
        """
        if self._known is not None:
            return self._known
        graph = self._first.graph  # a model that cannot be loaded is no configuration's fault
        able: list[_Contender] = []
        refused: list[Candidate] = []
        tell, count = self._settings.progress or _silent, len(self._configurations)
        for number, names in enumerate(self._configurations, 1):
            try:
                able += self._planned(names)
            except CoexecError as error:
                refused.append(Candidate(names, "", None, refused=str(error)))
            tell("configurations of devices", number, count)
        if not able:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.refused}" for c in refused)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        shortlist = self._worth_running(able)
        outcome = _outcome(shortlist, self._requests, self._settings.quiet, tell)
        ranked = self._compared(_ranked(shortlist, outcome, self._requests, self._both))
        others = [entry.candidate for entry in able if entry not in shortlist]
        others.sort(key=_predicted_s)
        candidates = [entry.candidate for entry in ranked] + others + refused
        work, plan = ranked[0].work, ranked[0].plan
        self._doubt = self._doubt_of(ranked, outcome.stolen)
        self._races += 1
        self._remember(work, plan, candidates)
        return replace(work.prepared(plan), candidates=tuple(candidates))

    @cached_property
    def _key(self) -> str:
        """The choice depends on model, processors, what is installed, and what was asked for.

        No engine is loaded for it that the devices do not name. Drivers of those that are chosen
        are compared by `_remembered`.
        """
        of = self._settings
        asked = (self._planners, sorted(of.pins.items()), sorted(of.engine_options.items()),
                 of.waiting, self._shortlist, self._requests, self._both)  # fmt: skip
        machine = (of.devices, detect.clusters(), self._first.fingerprint, installed())
        text = repr((self._first.given.digest, machine, asked))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _planned(self, names: tuple[str, ...]) -> list[_Contender]:
        """A configuration with its plans, as simulated; each different one once.

        A device alone needs no profile: there is one plan for it, and it is always raced.

        Raises:
            CoexecError: it cannot run the model.
        """
        work = self._first if names == self._first_names else self._open(names)
        try:
            if len(names) == 1:
                return _alone(work, names)
            cost, system = work.measured
            found: dict[Any, _Contender] = {}
            for planner in self._planners:
                plan = work.plan(planner)
                if len(plan.used) == 1:
                    continue  # a configuration of its own
                predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
                entry = _Contender(Candidate(names, planner, predicted_s), work, plan)
                found.setdefault((tuple(plan.order.items()), plan.places, plan.fused), entry)
            return list(found.values())
        finally:
            work.release()  # some engines compute on one set of cores at a time

    def _worth_running(self, able: Sequence[_Contender]) -> list[_Contender]:
        """The best predictions, and every device alone."""
        alone = [entry for entry in able if entry.is_single]
        plans = sorted((entry for entry in able if not entry.is_single),
                       key=lambda entry: _predicted_s(entry.candidate))  # fmt: skip
        limit = _WORTH_TRYING * _predicted_s(plans[0].candidate) if plans else 0.0
        near = [entry for entry in plans if _predicted_s(entry.candidate) <= limit]
        return alone + near[: self._shortlist]

    def _compared(self, ranked: Sequence[_Contender]) -> list[_Contender]:
        """``ranked`` from the best that computes what ONNX Runtime does; then what does not.

        Raises:
            ExecutionError: nothing does.
        """
        reference = ReferenceAnswers(self._first)
        out: list[_Contender] = []
        for number, entry in enumerate(ranked):
            reason = entry.why_not(reference)
            if reason is None:
                return [entry, *ranked[number + 1 :], *out]
            out.append(entry.refused(reason))
        reasons = "; ".join(f"{'+'.join(e.candidate.devices)}: {e.candidate.refused}" for e in out)
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _doubt_of(self, ranked: Sequence[_Contender], stolen: float) -> str | None:
        """Why the choice should be raced again."""
        winner, *others = ranked
        raced = [(entry.candidate, entry.rounds_s) for entry in others
                 if entry.rounds_s and entry.candidate.refused is None]  # fmt: skip
        return doubt(winner.candidate, winner.rounds_s, raced, self._before, stolen)

    def _remember(self, work: Workbench, plan: Plan, candidates: Iterable[Candidate]) -> None:
        data = {
            "plan": plan.to_json(),
            "devices": work.fingerprint,
            "candidates": [asdict(c) for c in candidates],
            "doubt": self._doubt,
            "races": self._races,
        }
        self._cache.add("choices", self._key, Entry({"choice.json": json.dumps(data).encode()}))

    def _remembered(self, key: str) -> Prepared | None:
        """The choice in the cache, unless it is damaged or its devices have other drivers now."""
        entry = self._cache.find("choices", key)
        if entry is None:
            return None
        try:
            data = json.loads(entry.files["choice.json"])
            rows = data["candidates"]
            candidates = tuple(Candidate(**(r | {"devices": tuple(r["devices"])})) for r in rows)
            plan = Plan.from_json(data["plan"])
            work = self._open(candidates[0].devices)
            if work.fingerprint != data["devices"]:
                return None
            prepared = work.prepared(plan)
            if not is_exact(prepared) and (before := known(prepared)) and before.reason:
                return None  # a request has shown that it differs
            self._doubt, self._races = data["doubt"], data["races"]
            return replace(prepared, candidates=candidates)
        except (OSError, ValueError, KeyError, TypeError, IndexError, PlanError, StoreError,
                DeviceError):  # fmt: skip
            return None


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options, the default ones included.

    Raises:
        UsageError: one does not exist, or has another value than it may have.
    """
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"planner auto has no option {name!r}{nearest(name, _OPTIONS)}; "
                             f"it has {', '.join(_OPTIONS)}")  # fmt: skip
    chosen: dict[str, Any] = {**_OPTIONS, **options}
    if not isinstance(chosen["shortlist"], int) or chosen["shortlist"] < 1:
        raise UsageError(f"option shortlist of planner auto is {chosen['shortlist']!r}; it wants "
                         f"a number from 1 on")  # fmt: skip
    if "planners" in options:  # the default ones are there, and are not imported for this
        from coexec.planners import find_planner

        for planner in _names(chosen["planners"]):
            find_planner(planner)
    if chosen["requests"] not in (_BOTH, *REQUESTS):
        raise UsageError(f"option requests of planner auto is {chosen['requests']!r}; it is one "
                         f"of {', '.join((_BOTH, *REQUESTS))}")  # fmt: skip
    return chosen


def _names(planners: Any) -> list[str]:
    return [name.strip() for name in str(planners).split(",")]


def _alone(work: Workbench, names: Configuration) -> list[_Contender]:
    """The ways in which a device runs the model alone.

    Where its engine has an own session: that, and the model as coexec rewrites it, which some
    models gain much from (`engines.onnxruntime.alignment`).
    """
    plan = work.plan("single")
    found = [_Contender(Candidate(names, "single", None), work, plan)]
    if plan.as_given:
        rewritten = replace(plan, as_given=False)
        found.append(_Contender(Candidate(names, "single, rewritten", None), work, rewritten))
    return found


def _predicted_s(candidate: Candidate) -> float:
    return math.inf if candidate.predicted_s is None else candidate.predicted_s


def _outcome(
    shortlist: Sequence[_Contender], requests: Requests, quiet: Quiet | None, tell: Tell
) -> Outcome[int]:
    """What was measured of the shortlist, by index; nothing needs to run if it is one plan."""
    if len(shortlist) == 1:
        return Outcome()
    with ExitStack() as stack:
        started = _started(shortlist, stack)
        watch = Stopwatch(used_s=cpu_clock(started.processes))
        what, start_s = f"race of {len(started.turns)} plans", watch.now_s()

        def told(run: Callable[[], Lap]) -> Lap:
            share = (watch.now_s() - start_s) / max(_BUDGET_S, 1e-9)
            tell(what, round(100 * min(1.0, share)), 100)
            return undisturbed(run, quiet)

        turns = {which: partial(told, run) for which, run in started.turns.items()}
        outcome = compete(turns, _ROUNDS, drop_by=requests, budget_s=_BUDGET_S, watch=watch)
        tell(what, 100, 100)
    for entry in shortlist:
        entry.work.release()
    return replace(outcome, failed={**started.failed, **outcome.failed})


@dataclass
class _Started:
    """What runs of a shortlist, by index."""

    turns: dict[int, Callable[[], Lap]] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    """Those of plans that run in a process of their own."""
    failed: dict[int, CoexecError] = field(default_factory=dict)


def _started(shortlist: Sequence[_Contender], stack: ExitStack) -> _Started:
    """The plans that run with the first made-up inputs that suit the model."""
    for feeds in shortlist[0].work.model.candidates():
        started = _Started()
        with ExitStack() as attempt:
            for which, entry in enumerate(shortlist):
                try:
                    _start(entry, which, feeds, started, attempt)
                except CoexecError as error:
                    started.failed[which] = error
            if started.turns:
                stack.push(attempt.pop_all())
                return started
    return _Started()


def _start(
    entry: _Contender, which: int, feeds: Mapping[str, Array], started: _Started, stack: ExitStack
) -> None:
    """Start a plan here; or, if an engine cannot be open beside those that are, elsewhere."""
    work, plan = entry.work, entry.plan
    try:
        executor = stack.enter_context(work.start(work.prepared(plan)))
        for _ in range(2):
            executor.run(feeds)
        started.turns[which] = partial(turn, partial(executor.run, feeds))
    except DeviceError:
        rival = stack.enter_context(RivalProcess(work, plan, feeds))
        started.turns[which] = rival.turn
        started.processes.append(rival.pid)


def _ranked(
    shortlist: Sequence[_Contender], outcome: Outcome[int], requests: Requests, both: bool
) -> list[_Contender]:
    """The shortlist with what was measured, the best first by the figure ``requests``.

    ``both``: what is slower by the other figure than the best single device is not better.
    """
    times = [outcome.rounds_s(which, requests) for which in range(len(shortlist))]
    other: Requests = "loop" if requests == "paced" else "paced"
    guard = [outcome.rounds_s(which, other) for which in range(len(shortlist))] if both else times
    order = _order(shortlist, times, guard, outcome.stolen)
    return [shortlist[which].raced(outcome, which, requests) for which in order]


def _order(
    shortlist: Sequence[_Contender], times: Sequence[Sequence[float]],
    guard: Sequence[Sequence[float]], stolen: float,
) -> list[int]:  # fmt: skip
    """Indices of the shortlist, the best first.

    That is the one with the least median ratio to the best single device, with the first engine of
    its cores if that ran, or to any other that ran; and the single device itself unless that ratio
    is clearly below one, and below one in three of four rounds: few rounds of a large network have
    medians that are off by a percent. Nor may it be slower by the times ``guard``. Where the host
    has ``stolen`` a share of the processors' time, the ratio has to be that much clearer.
    Where nothing could be run, nothing is clearly faster than the best single device.
    """
    ran = [which for which, seconds in enumerate(times) if seconds]
    if not ran:
        return sorted(
            range(len(shortlist)),
            key=lambda w: (not shortlist[w].is_single, not shortlist[w].is_plain),
        )
    singles = sorted((w for w in ran if shortlist[w].is_single),
                     key=lambda which: not shortlist[which].is_plain)  # fmt: skip
    single = singles[0] if singles else None
    unit = ran[0] if single is None else single
    by_round = {which: ratios(times[which], times[unit]) for which in ran}
    ratio = {which: statistics.median(by_round[which]) for which in ran}
    if single is not None:
        for which in ran:
            enough = _GAIN if shortlist[which].is_plain else _OTHER_GAIN
            enough -= _STOLEN * stolen
            slower = statistics.median(ratios(guard[which], guard[unit])) > _NOT_SLOWER
            faster = ratio[which] < enough and mostly(share < 1 for share in by_round[which])
            if slower or not faster:
                ratio[which] = max(1.0, ratio[which])
        ratio[single] = _GAIN
    return sorted(range(len(shortlist)), key=lambda which: ratio.get(which, float("inf")))
