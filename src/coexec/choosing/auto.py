"""planner="auto": which devices, in which configuration, with which plan. Decided by running.

The cores of a machine can be one wide device or several narrow ones, beside a GPU or not, and what
is fastest depends on the model: many branches favour plans, one long chain favours a wide device.
So every configuration is profiled, planned by several planners and simulated; the best predictions,
and always the best single device, then run for real, in turns, until it is clear who is fastest.
That one is remembered. Who is compared runs in the same rounds, and ratios are compared rather than
times: what disturbs a machine for a second then disturbs all alike. A plan that is not clearly
faster than the best single device is not taken.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from coexec.cache import Cache, Entry
from coexec.choosing.configurations import configurations
from coexec.compiling.compiled import CompiledPlan
from coexec.engines.registry import describe, may_be_replaced
from coexec.errors import (
    CoexecError,
    InfeasibleError,
    PlanError,
    StoreError,
    UsageError,
)
from coexec.frontend.module import Array
from coexec.plans.plan import Plan
from coexec.runtime.executor import Executor
from coexec.timing.simulate import simulate
from coexec.workbench import Workbench

__all__ = ["Auto", "Candidate", "Choice", "prepared"]

_FINALISTS = 5
"""Plans that run for real."""
_WORTH_TRYING = 1.25
"""Predicted makespan over the best prediction: beyond, predictions are not that wrong."""
_REST_S = 0.03
"""Before each run: the threads of a rival that spins for work leave the cores to the next."""
_BUDGET_S = 6.0
"""For all runs of the finalists together."""
_ROUNDS = (5, 40)
"""At least and at most."""
_CLEARLY = 1.02
"""Who takes so much longer than the first in three of four rounds, is out."""
_GAIN = 0.99
"""A plan for several devices has to take less than this share of what one device takes."""
_OPTIONS = {"planners": "hope_greedy,heft,anneal", "finalists": _FINALISTS}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of devices with a plan for it."""

    devices: tuple[str, ...]
    planner: str
    predicted_s: float
    measured_s: float | None = None
    """Median of the runs; None if it was not worth one."""
    refused: str | None = None
    """Why this configuration cannot run the model."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What was decided, ready to start."""

    work: Workbench
    plan: Plan
    compiled: CompiledPlan
    candidates: tuple[Candidate, ...]
    """All that were considered: what ran, the best first, then by prediction."""


class _Entry(NamedTuple):
    """A candidate, ready to be compiled."""

    candidate: Candidate
    work: Workbench
    plan: Plan

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    def with_measured(self, times: Sequence[float]) -> "_Entry":
        measured_s = statistics.median(times) if times else None
        return self._replace(candidate=replace(self.candidate, measured_s=measured_s))


class Auto:
    """Chooses for one model on one machine; what it has chosen before, it takes from the cache."""

    def __init__(
        self,
        source: Any,
        devices: Sequence[str] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        cache: Cache | Path | str | None = None,
        fresh: bool = False,
        **settings: Any,
    ) -> None:
        """
        Args:
            source: as for `Workbench`.
            devices: what may be used; by default all that the machine has.
            options: "planners", comma-separated, for configurations of several devices, and
                "finalists", how many plans run for real.
            cache, fresh, settings: as for `Workbench`.

        Raises:
            UsageError: an option that does not exist.
            DeviceError: a device that does not.
        """
        for name in options or {}:
            if name not in _OPTIONS:
                raise UsageError(f"planner auto has no option {name!r}; it has "
                                 f"{', '.join(_OPTIONS)}")  # fmt: skip
        chosen: dict[str, Any] = {**_OPTIONS, **(options or {})}
        if not isinstance(chosen["finalists"], int) or chosen["finalists"] < 1:
            raise UsageError(f"option finalists of planner auto is {chosen['finalists']!r}; it "
                             f"wants a number from 1 on")  # fmt: skip
        self._planners = [p.strip() for p in str(chosen["planners"]).split(",")]
        self._finalists: int = chosen["finalists"]
        self._cache = cache if isinstance(cache, Cache) else Cache(cache)
        self._fresh = fresh
        self._configurations = configurations(devices)
        self._source, self._settings = source, settings

    @property
    def may_need_the_cpu(self) -> bool:
        """Whether a device may be chosen for which all CPU cores can take over."""
        return any(may_be_replaced(describe(n)) for names in self._configurations for n in names)

    def _open(self, names: Sequence[str]) -> Workbench:
        return Workbench(
            self._source, names, cache=self._cache, fresh=self._fresh, **self._settings
        )

    def choose(self) -> Choice:
        """The fastest way found to run the model.

        Raises:
            InfeasibleError: no configuration runs it.
            CoexecError: the model cannot be loaded.
        """
        first = self._open(self._configurations[0])
        key = self._key(first)
        known = None if self._fresh else self._remembered(key)
        if known is not None:
            return known
        graph = first.model.graph  # a model that cannot be loaded is no configuration's fault
        able: list[_Entry] = []
        refused: list[Candidate] = []
        for names in self._configurations:
            try:
                able += self._planned(names, first)
            except CoexecError as error:
                refused.append(Candidate(names, "", float("inf"), refused=str(error)))
        if not able:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.refused}" for c in refused)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        finalists = self._worth_running(able)
        ranked = _ranked(finalists, _run_in_turns(finalists))
        others = [entry.candidate for entry in able if entry not in finalists]
        others.sort(key=lambda candidate: candidate.predicted_s)
        candidates = [entry.candidate for entry in ranked] + others + refused
        _, work, plan = ranked[0]
        self._remember(key, plan, candidates)
        return Choice(work, plan, work.compiled_plan(plan), tuple(candidates))

    def _key(self, work: Workbench) -> str:
        """The choice depends on model, devices with their drivers, and what was asked for."""
        names = {name for names in self._configurations for name in names}
        specs = sorted((n, d.key(e.name)) for n in names for d in [describe(n)] for e in d.engines)
        asked = (self._planners, sorted(work.pins.items()), sorted(work.engine_options.items()),
                 work.waiting, self._finalists)  # fmt: skip
        text = repr((work.digest, self._configurations, specs, asked))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _planned(self, names: tuple[str, ...], first: Workbench) -> list[_Entry]:
        """A configuration with its plans, as simulated; each different one once.

        Raises:
            CoexecError: it cannot run the model.
        """
        work = first if names == self._configurations[0] else self._open(names)
        try:
            cost, system = work.measured
            found: dict[Any, _Entry] = {}
            for planner in self._planners if len(names) > 1 else ["single"]:
                plan = work.plan(planner)
                predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
                entry = _Entry(Candidate(names, planner, predicted_s), work, plan)
                found.setdefault((tuple(plan.order.items()), plan.fused), entry)
            return list(found.values())
        finally:
            work.release()  # some engines compute on one set of cores at a time

    def _worth_running(self, able: Sequence[_Entry]) -> list[_Entry]:
        """The best predictions, and the best single device whatever the prediction."""
        ranked = sorted(able, key=lambda entry: entry.candidate.predicted_s)
        limit = _WORTH_TRYING * ranked[0].candidate.predicted_s
        chosen = [e for e in ranked if e.candidate.predicted_s <= limit][: self._finalists]
        single = next((e for e in ranked if e.is_single), None)
        if single is not None and single not in chosen:
            chosen.append(single)
        return chosen

    def _remember(self, key: str, plan: Plan, candidates: Iterable[Candidate]) -> None:
        data = {"plan": plan.to_json(), "candidates": [asdict(c) for c in candidates]}
        self._cache.add("choices", key, Entry({"choice.json": json.dumps(data).encode()}))

    def _remembered(self, key: str) -> Choice | None:
        entry = self._cache.find("choices", key)
        if entry is None:
            return None
        try:
            data = json.loads(entry.files["choice.json"])
            rows = data["candidates"]
            candidates = tuple(Candidate(**(r | {"devices": tuple(r["devices"])})) for r in rows)
            plan = Plan.from_json(data["plan"])
            work = self._open(candidates[0].devices)
            return Choice(work, plan, work.compiled_plan(plan), candidates)
        except (OSError, ValueError, KeyError, TypeError, IndexError, PlanError, StoreError):
            return None  # damaged: decided anew


def _run_in_turns(finalists: Sequence[_Entry]) -> list[list[float]]:
    """Seconds of each in the rounds until it was clearly beaten; none for one that fails."""
    times: list[list[float]] = [[] for _ in finalists]
    if len(finalists) == 1:
        return times  # nothing needs to be run
    with ExitStack() as stack:
        runs, feeds = _started(finalists, stack)
        end_s = time.perf_counter() + _BUDGET_S
        for number in range(_ROUNDS[1]):
            enough = number >= _ROUNDS[0]
            if not runs or (enough and (len(runs) < 2 or time.perf_counter() > end_s)):
                break
            turns = list(runs)
            for which in turns[number % len(turns) :] + turns[: number % len(turns)]:
                time.sleep(_REST_S)
                runs[which].run(feeds)  # whoever ran before has left caches of its own
                start_s = time.perf_counter()
                runs[which].run(feeds)
                times[which].append(time.perf_counter() - start_s)
            if enough:
                runs = {which: runs[which] for which in _still_in(times, turns)}
    return times


def _started(
    finalists: Sequence[_Entry], stack: ExitStack
) -> tuple[dict[int, Executor], Mapping[str, Array]]:
    """The finalists that run, and the first made-up inputs that suit the model."""
    from coexec.frontend.inputs import candidates

    for feeds in candidates(finalists[0].work.model.graph):
        runs: dict[int, Executor] = {}
        with ExitStack() as attempt:
            for which, (_, work, plan) in enumerate(finalists):
                with suppress(CoexecError):
                    executor = attempt.enter_context(work.start(work.compiled_plan(plan)))
                    for _ in range(2):
                        executor.run(feeds)
                    runs[which] = executor
            if runs:
                stack.push(attempt.pop_all())
                return runs, feeds
    return {}, {}


def _still_in(times: Sequence[Sequence[float]], turns: Sequence[int]) -> list[int]:
    """Who has not been clearly slower than the one with the best median."""
    first = min(turns, key=lambda which: statistics.median(times[which]))
    return [
        which for which in turns
        if not _mostly(ratio > _CLEARLY for ratio in _ratios(times[which], times[first]))
    ]  # fmt: skip


def _ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Round by round, as long as both ran."""
    return [x / y for x, y in zip(a, b, strict=False)]


def _ranked(finalists: Sequence[_Entry], times: Sequence[Sequence[float]]) -> list[_Entry]:
    """The finalists with what was measured, the best first.

    That is the one with the least median ratio to the best single device, or to any other that
    ran; and the single device itself unless that ratio is clearly below one, and below one in
    three of four rounds: few rounds of a large network have medians that are off by a percent.
    Where nothing could be run, nothing is clearly faster than the best single device.
    """
    ran = [which for which, seconds in enumerate(times) if seconds]
    if not ran:
        return sorted(finalists, key=lambda entry: not entry.is_single)
    single = next((which for which in ran if finalists[which].is_single), None)
    unit = ran[0] if single is None else single
    ratio = {which: statistics.median(_ratios(times[which], times[unit])) for which in ran}
    if single is not None:
        for which in ran:
            if not _mostly(ratio < 1 for ratio in _ratios(times[which], times[single])):
                ratio[which] = max(1.0, ratio[which])
        ratio[single] = _GAIN
    order = sorted(range(len(finalists)), key=lambda which: ratio.get(which, float("inf")))
    return [finalists[which].with_measured(times[which]) for which in order]


def _mostly(rounds: Iterable[bool]) -> bool:
    """Whether it is so in three of four rounds."""
    return statistics.fmean(rounds) >= 0.75


def prepared(
    source: Any,
    devices: Sequence[str] | None,
    planner: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Callable[[], tuple[Workbench, CompiledPlan]], bool]:
    """What makes a plan ready with any planner, "auto" or another; and whether devices take part
    for which the CPU can take over.

    ``settings`` are those of `Workbench`. Devices and options are checked at once.
    """
    if planner == "auto":
        auto = Auto(source, devices, options, **settings)

        def choose() -> tuple[Workbench, CompiledPlan]:
            choice = auto.choose()
            return choice.work, choice.compiled

        return choose, auto.may_need_the_cpu
    work = Workbench(source, devices, **settings)
    replaceable = any(may_be_replaced(device.spec) for device in work.devices)
    return lambda: (work, work.compiled_for(planner, options)), replaceable
