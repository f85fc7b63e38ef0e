"""planner="auto": which devices, in which configuration, with which plan. Decided by running.

The cores of a machine can be one wide device or several narrow ones, beside a GPU or not, and what
is fastest depends on the model: many branches favour plans, one long chain favours a wide device.
So every configuration is profiled, planned by several planners and simulated; the best predictions,
and always the best single device, then run for real, in turns. The fastest is remembered.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coexec.cache import Cache
from coexec.compiled import CompiledPlan
from coexec.configurations import configurations
from coexec.devices.registry import describe
from coexec.errors import (
    CoexecError,
    DeviceError,
    InfeasibleError,
    PlanError,
    StoreError,
    UsageError,
)
from coexec.execute import Executor
from coexec.pipeline import Pipeline
from coexec.plan import Plan
from coexec.simulate import simulate

__all__ = ["Auto", "Candidate", "Choice", "prepared"]

_FINALISTS = 4
"""Configurations that run for real."""
_WORTH_TRYING = 1.25
"""Predicted makespan over the best prediction: beyond, predictions are not that wrong."""
_REST_S = 0.03
"""Before each run: the threads of a rival that spins for work leave the cores to the next."""
_MOST_KERNELS = 100
_BUDGET_S = 3.0
"""For all runs of the finalists together."""
_OPTIONS = {"planners": "hope_greedy,heft", "finalists": _FINALISTS}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of devices with the best plan for it."""

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

    work: Pipeline
    plan: Plan
    compiled: CompiledPlan
    candidates: tuple[Candidate, ...]
    """All that were considered, the fastest first."""


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
            source: as for `Pipeline`.
            devices: what may be used; by default all that the machine has.
            options: "planners", comma-separated, for configurations of several devices, and
                "finalists", how many configurations run for real.
            cache, fresh, settings: as for `Pipeline`.

        Raises:
            UsageError: an option that does not exist.
            DeviceError: a device that does not.
        """
        for name in options or {}:
            if name not in _OPTIONS:
                raise UsageError(f"planner auto has no option {name!r}; it has "
                                 f"{', '.join(_OPTIONS)}")  # fmt: skip
        chosen: dict[str, Any] = {**_OPTIONS, **(options or {})}
        self._planners = [p.strip() for p in str(chosen["planners"]).split(",")]
        self._finalists = int(chosen["finalists"])
        self._cache = cache if isinstance(cache, Cache) else Cache(cache)
        self._fresh = fresh
        self._configurations = configurations(devices)
        self._named = devices is not None
        self._source, self._settings = source, settings

    @property
    def may_use_gpus(self) -> bool:
        return any(name.startswith("gpu") for names in self._configurations for name in names)

    def _open(self, names: Sequence[str]) -> Pipeline:
        return Pipeline(self._source, names, cache=self._cache, fresh=self._fresh, **self._settings)

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
        tried = [self._planned(names, first) for names in self._configurations]
        able = [(c, w, p) for c, w, p in tried if w is not None and p is not None]
        if not able:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.refused}" for c, _, _ in tried)
            raise InfeasibleError(f"no configuration of devices runs the model: {reasons}")
        finalists = self._worth_running(able)
        measured = _run_in_turns(finalists)
        ranked = sorted(zip(measured, finalists, strict=True), key=lambda pair: pair[0])
        others = [c for c, *_ in tried if c not in [f[0] for f in finalists]]
        candidates = [replace(f[0], measured_s=s) for s, f in ranked] + others
        _, work, plan = ranked[0][1]
        self._remember(key, plan, candidates)
        return Choice(work, plan, work.compiled_plan(plan), tuple(candidates))

    def _key(self, work: Pipeline) -> str:
        """The choice depends on model, devices with their drivers, and what was asked for."""
        specs = {n: describe(n).key for names in self._configurations for n in names}
        asked = (self._planners, sorted(work.pins.items()), sorted(work.gpu.items()))
        text = repr((work.digest, self._configurations, specs, asked))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _planned(
        self, names: tuple[str, ...], first: Pipeline
    ) -> tuple[Candidate, Pipeline | None, Plan | None]:
        """A configuration with the shortest of its plans, as simulated."""
        try:
            work = first if names == first.names else self._open(names)
            self._refuse_long_compilation(work)
            cost, system = work.measured
            planners = self._planners if len(names) > 1 else ["single"]
            plans = {name: work.plan(name) for name in planners}
            spans = {
                name: simulate(work.schedule(plan), cost, system).makespan_s
                for name, plan in plans.items()
            }
        except CoexecError as error:
            return Candidate(names, "", float("inf"), refused=str(error)), None, None
        best = min(spans, key=spans.__getitem__)
        return Candidate(names, best, spans[best]), work, plans[best]

    def _refuse_long_compilation(self, work: Pipeline) -> None:
        """PoCL is only tried unasked where its kernels compile in well under a minute."""
        graph = work.model.graph
        distinct = len({task.signature for task in graph.tasks})
        pocl = [d.name for d in (dev.spec for dev in work.devices) if d.kind == "gpu" and d.cores]
        if pocl and not self._named and distinct > _MOST_KERNELS:
            raise DeviceError(
                f"compiling about {distinct} kernels for {pocl[0]} would take minutes; name it "
                f"among the devices to try it"
            )

    def _worth_running(
        self, able: Sequence[tuple[Candidate, Pipeline | None, Plan | None]]
    ) -> list[tuple[Candidate, Pipeline, Plan]]:
        """The best predictions, and the best single device whatever the prediction."""
        ranked = sorted(able, key=lambda entry: entry[0].predicted_s)
        limit = _WORTH_TRYING * ranked[0][0].predicted_s
        chosen = [e for e in ranked if e[0].predicted_s <= limit][: self._finalists]
        single = next((e for e in ranked if len(e[0].devices) == 1), None)
        if single is not None and single not in chosen:
            chosen.append(single)
        return [(c, w, p) for c, w, p in chosen if w is not None and p is not None]

    def _remember(self, key: str, plan: Plan, candidates: Iterable[Candidate]) -> None:
        data = {"plan": plan.to_json(), "candidates": [asdict(c) for c in candidates]}

        def fill(draft: Path) -> None:
            (draft / "choice.json").write_text(json.dumps(data))

        self._cache.drop("choices", key)
        self._cache.add("choices", key, fill)

    def _remembered(self, key: str) -> Choice | None:
        folder = self._cache.find("choices", key)
        if folder is None:
            return None
        try:
            data = json.loads((folder / "choice.json").read_text())
            rows = data["candidates"]
            candidates = tuple(Candidate(**(r | {"devices": tuple(r["devices"])})) for r in rows)
            plan = Plan.from_json(data["plan"])
            work = self._open(candidates[0].devices)
            return Choice(work, plan, work.compiled_plan(plan), candidates)
        except (OSError, ValueError, KeyError, TypeError, IndexError, PlanError, StoreError):
            return None  # damaged: decided anew


def _run_in_turns(finalists: Sequence[tuple[Candidate, Pipeline, Plan]]) -> list[float]:
    """Median seconds of each; infinite for one that fails. Alone, nothing needs to be run."""
    if len(finalists) == 1:
        return [finalists[0][0].predicted_s]
    from coexec.frontend.load import random_inputs

    feeds = random_inputs(finalists[0][1].model.graph)
    times: list[list[float]] = [[] for _ in finalists]
    with ExitStack() as stack:
        runs: list[Executor | None] = []
        for _, work, plan in finalists:
            try:
                executor = stack.enter_context(Executor(work.compiled_plan(plan), work.devices))
                for _ in range(2):
                    executor.run(feeds)
                runs.append(executor)
            except CoexecError:
                runs.append(None)
        total_s = sum(c.predicted_s + _REST_S for c, *_ in finalists)
        rounds = max(5, min(25, int(_BUDGET_S / total_s)))
        for number in range(rounds):
            for turn in range(len(runs)):
                which = (turn + number) % len(runs)
                if (run := runs[which]) is not None:
                    time.sleep(_REST_S)
                    start_s = time.perf_counter()
                    run.run(feeds)
                    times[which].append(time.perf_counter() - start_s)
    return [statistics.median(t) if t else float("inf") for t in times]


def prepared(
    source: Any,
    devices: Sequence[str] | None,
    planner: str,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Callable[[], tuple[Pipeline, CompiledPlan]], bool]:
    """What makes a plan ready with any planner, "auto" or another; and whether GPUs take part.

    ``settings`` are those of `Pipeline`. Devices and options are checked at once.
    """
    if planner == "auto":
        auto = Auto(source, devices, options, **settings)

        def choose() -> tuple[Pipeline, CompiledPlan]:
            choice = auto.choose()
            return choice.work, choice.compiled

        return choose, auto.may_use_gpus
    work = Pipeline(source, devices, **settings)
    gpus = any(d.spec.kind == "gpu" for d in work.devices)
    return lambda: (work, work.compiled_for(planner, options)), gpus
