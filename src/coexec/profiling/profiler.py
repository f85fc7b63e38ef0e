"""Measure a model's tasks on each device, and the transfer of tensors between devices.

Tasks are timed in place (`sweep`). A task that is not in the store, but was measured at other
sizes, is predicted. It is measured only if an error of the prediction may change a decision.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from coexec.costs.base import Predictor, TrainedPredictor
from coexec.costs.estimated import estimated_s
from coexec.costs.scaled import scaled, surest
from coexec.costs.table import Basis, CostTable
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice, engine_at
from coexec.errors import (
    ExecutionError,
    InfeasibleError,
    ModelWarning,
    UncompiledError,
    first_line,
)
from coexec.graph.graph import Graph, Task
from coexec.hardware.hardware import Place, System
from coexec.plan.derive import stepwise
from coexec.profiling.activity import Quiet
from coexec.profiling.coverage import Outlook, Step, only_operators, outlook, steps_of
from coexec.profiling.engines import EngineTimes
from coexec.profiling.pieces import cuttings, known_pieces, measure_pieces, signature_of_piece
from coexec.profiling.processors import others_now
from coexec.profiling.store import Measurement, ProfileStore
from coexec.profiling.sweep import (
    SweepItem,
    feeds_of,
    others_share,
    part_of,
    sweep,
)
from coexec.profiling.trained import trained_predictor
from coexec.progress import ReportProgress
from coexec.rules import BUSY
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort, Waiting


class _Time(NamedTuple):
    """Seconds of a task, and their basis."""

    seconds: float
    basis: Basis
    is_disturbed: bool = False


_Times = Mapping[str, _Time]
"""Time of a task, by its name."""


class Profiler:
    """Measures the tasks of models that are not in the store yet.

    A stored measurement may have been disturbed by other programs (`Measurement.is_disturbed`). It
    counts as long as other programs use the processors. When these are idle, it does not count: the
    task is measured again, and the new measurement replaces it."""

    def __init__(
        self,
        devices: Sequence[OpenDevice],
        store: ProfileStore,
        *,
        fresh: bool = False,
        effort: Effort | None = None,
        progress: ReportProgress | None = None,
        waiting: Waiting = "passive",
        quiet: Quiet | None = None,
        predictor: Predictor | None = None,
        purpose: str = "",
        launches_apart: bool = False,
        share_now: Callable[[], float] = others_now,
    ) -> None:
        """
        Args:
            fresh: measure everything again and replace the stored measurements.
            waiting: how devices will wait for each other.
            quiet: measure only while another process runs no request.
            predictor: predicts tasks that are not in the store. None: the more certain prediction
                of `scaled` and of the place's own predictor, if that was trained.
            purpose: added to the key in the store. Measurements for a purpose do not count as a
                profile of the place.
            launches_apart: if a device has a clock of its own, store the time of the kernels of a
                task, and as `launch_in` the additional time that each task of the model needs.
            share_now: share of the processor time that other programs use at present.
        """
        self._share_now = share_now
        self._purpose = purpose
        self._launches_apart = launches_apart
        self._predictor = predictor
        self._trained: dict[str, TrainedPredictor | None] = {}
        self._quiet = quiet
        self._devices = devices
        self._store = store
        self._fresh = fresh
        self._effort = effort or Effort()
        self._progress = progress or (lambda what, done, total: None)
        self._engine_times = EngineTimes(devices, store, waiting, self._key, fresh, self._progress)

    def cost(self, compiler: Compiler) -> CostTable:
        """Seconds of each task of the model on each device.

        A task that an engine turns out not to compile counts as one that it does not run.

        Raises:
            InfeasibleError: no device can run a task.
        """
        while True:
            try:
                return self._cost(compiler)
            except UncompiledError as error:
                if not self._leave_out(error, compiler.model.graph):
                    raise

    def _leave_out(self, error: UncompiledError, graph: Graph) -> bool:
        """Note in the engines, and in equal ones, what they could not compile. Whether something is
        new."""
        is_new = False
        for (name, device, engine_name), reason in error.reasons.items():
            key = self._key(engine_at(Place(device, engine_name), self._devices))
            if name not in graph.task:  # of a model with which a link was measured
                continue
            signature = graph.task[name].signature
            for engine in self._engines:
                if self._key(engine) == key and signature not in engine.uncompiled:
                    engine.uncompiled = {**engine.uncompiled, signature: reason}
                    is_new = True
        return is_new

    def _cost(self, compiler: Compiler) -> CostTable:
        graph = compiler.model.graph
        home = {task.name: self._first_that_runs(task, graph) for task in graph.tasks}
        times: dict[Place, _Times] = {}
        by_key: dict[str, _Times] = {}
        for engine in self._engines:
            key = self._key(engine)
            if key not in by_key:
                by_key[key] = self._times(_Tasks(compiler, self._devices, engine, home))
            times[engine.place] = by_key[key]
        names = [task.name for task in graph.tasks]
        infinite: dict[str, float] = dict.fromkeys(names, math.inf)
        return CostTable(
            {at: infinite | {n: t.seconds for n, t in own.items()} for at, own in times.items()},
            {e.place: self._engine_times.launch_s(e) for e in self._engines},
            {at: {n: t.basis for n, t in own.items()} for at, own in times.items()},
            {e.place: self._engine_times.stitching_s(e) for e in self._engines},
            self._engine_times.joining_s(),
            {e.place: known_pieces(graph, self._valid(self._key(e))) for e in self._engines},
            predictors={
                e.place: estimator
                for e in self._engines
                if (estimator := self._trained_on(e)) is not None
            },
            layout_changes=self._engine_times.layout_changes(compiler),
            readings=self._engine_times.readings(),
            disturbed={
                at: frozenset(n for n, t in own.items() if t.is_disturbed)
                for at, own in times.items()
            },
        )

    def measure_pieces(self, compiler: Compiler) -> None:
        """Measure the parts of all tasks that are not in the store; `cost` uses them.

        Raises:
            InfeasibleError: no device can run a task.
            ExecutionError: a part does not run with made-up inputs.
        """
        graph = compiler.model.graph
        home = {task.name: self._first_that_runs(task, graph) for task in graph.tasks}
        all_cuttings = list(cuttings(graph))
        engines = {self._key(engine): engine for engine in self._engines}
        for key, engine in engines.items():
            runs = graph.task.keys() - engine.refused(graph)
            place_of = home | dict.fromkeys(runs, engine.place)
            for number, cutting in enumerate(all_cuttings, start=1):
                stored = {} if self._fresh else self._valid(key)
                parts = (
                    signature_of_piece(graph.task[name], region)
                    for name in runs
                    if len(cutting[name]) > 1
                    for region in cutting[name]
                )
                if not stored.keys() >= set(parts):
                    measured = measure_pieces(
                        compiler, self._devices, place_of, cutting, engine.place, self._quiet
                    )
                    self._store.write(key, measured)
                self._progress(f"{engine.place}: parts of tasks", number, len(all_cuttings))

    @property
    def _engines(self) -> list[OpenEngine]:
        """The engine of each device."""
        return [device.engine for device in self._devices]

    def _first_that_runs(self, task: Task, graph: Graph) -> Place:
        reasons = []
        for engine in self._engines:
            reason = engine.refusal(task, graph.tensors)
            if reason is None:
                return engine.place
            reasons.append(f"{engine.place}: {reason}")
        raise InfeasibleError(
            f"no device runs task {task.name!r} ({task.kind}): "
            f"{'; '.join(reasons)}; add a CPU device"
        )

    def _times(self, tasks: "_Tasks") -> _Times:
        """Times of the tasks that the engine runs: measured, or predicted if that is enough."""
        key = self._key(tasks.engine)
        stored = {} if self._fresh else self._valid(key)
        operators = only_operators(tasks.graph, tasks.own, stored)
        view = None if operators is None else self._view(tasks, operators, stored)
        if view is None or view.deciding:  # measuring needs a compiled model: use its operators
            view = self._view(tasks, tasks.operators, stored)
        new: Mapping[str, Measurement] = {}
        if view.deciding:
            measured = self._measured(tasks, view)
            if measured is None:
                return _estimated(tasks, self._engine_times.launch_s(tasks.engine))
            new = {s: m for s, m in measured.items() if s not in stored}
            self._store.write(key, new)
            view = self._view(tasks, tasks.operators, {**stored, **new})
        disturbed = {s for s, m in {**stored, **new}.items() if m.is_disturbed}
        return {
            step.task.name: _Time(
                view.seconds(step), _basis(step.signature, stored, new), step.signature in disturbed
            )
            for step in view.steps
        }

    def _valid(self, key: str) -> Mapping[str, Measurement]:
        """The stored measurements that count at present, by signature."""
        stored = self._store.read(key)
        if not any(m.is_disturbed for m in stored.values()) or self._is_busy:
            return stored
        return {s: m for s, m in stored.items() if not m.is_disturbed}

    @cached_property
    def _is_busy(self) -> bool:
        """Whether other programs used the processors when this was first needed."""
        return self._share_now() > BUSY

    def _view(
        self, tasks: "_Tasks", operators: Mapping[str, str], stored: Mapping[str, Measurement]
    ) -> Outlook:
        steps = steps_of(tasks.graph, tasks.own, operators)
        launch_s = self._engine_times.launch_s(tasks.engine)
        predictor = self._predictor
        if predictor is None:
            trained = self._trained_on(tasks.engine)
            predictor = scaled if trained is None else surest(scaled, trained)
        return outlook(tasks.graph, steps, stored, predictor, self._key(tasks.engine), launch_s)

    def _key(self, engine: OpenEngine) -> str:
        return f"{engine.device.key}{self._purpose}"

    def _trained_on(self, engine: OpenEngine) -> TrainedPredictor | None:
        key = self._key(engine)
        if key not in self._trained:
            self._trained[key] = trained_predictor(engine, self._store)
        return self._trained[key]

    def _measured(self, tasks: "_Tasks", view: Outlook) -> dict[str, Measurement] | None:
        """Measurements of at least the tasks in `Outlook.deciding`; None if no made-up inputs suit.

        All tasks run if these are more than half of them, or if the inputs of some cannot be made
        up.
        """
        to_measure = view.deciding
        step_of = {step.task.name: step for step in view.steps}
        names = [task.name for task in tasks.graph.tasks]
        chosen = [
            i for i, n in enumerate(names) if n in step_of and step_of[n].signature in to_measure
        ]
        part = part_of(tasks.part, chosen) if 2 * len(chosen) <= len(names) else None
        measurements = None if part is None else self._swept(part, tasks, step_of, warn=False)
        return measurements or self._swept(tasks.part, tasks, step_of, warn=True)

    def _swept(
        self, part: SweepItem, tasks: "_Tasks", step_of: Mapping[str, Step], warn: bool
    ) -> dict[str, Measurement] | None:
        """Measurements by signature; None if no made-up inputs suit, with a warning if ``warn``."""
        graph, place = tasks.graph, tasks.engine.place
        own = [(i, step_of[t.name]) for i, t in enumerate(part.tasks) if t.name in step_of]
        what = f"{place}: {len({step.signature for _, step in own})} distinct tasks"
        reason = ""
        for feeds in feeds_of(part, tasks.model):
            try:
                runs = sweep(
                    part,
                    self._devices,
                    feeds,
                    self._effort,
                    partial(self._progress, what),
                    self._quiet,
                    installing=partial(self._progress, f"{what}, compiled"),
                )
                other_share = others_share(runs)
                if not self._launches_apart:
                    return _medians([run.seconds for run in runs], own, other_share)
                launches_s = [max(run.launches_s) for run in runs]
                launch = replace(Measurement.of(launches_s), others=other_share)
                kernels = _medians([run.kernels_s for run in runs], own, other_share)
                return kernels | {launch_in(graph.name): launch}
            except ExecutionError as error:
                reason = reason or first_line(error)
        if warn:
            warnings.warn(
                f"{graph.name!r} does not run with made-up inputs ({reason}); its tasks cannot be "
                f"measured, and plans for {place} rest on estimates",
                ModelWarning,
                stacklevel=2,
            )
        return None

    def system(self) -> System:
        """The devices, with a measured link for every ordered pair of them."""
        links = tuple(
            self._engine_times.link(a, b)
            for a in self._engines
            for b in self._engines
            if a is not b
        )
        return System(tuple(d.spec for d in self._devices), links)


def launch_in(name: str) -> str:
    """Signature of the time that a task needs besides its kernels, in the model of this name. It is
    longer in models whose earlier tasks displace the program from the caches."""
    return f"launch in {name}"


class _Tasks:
    """The tasks of a model on one place; compiled on first use."""

    def __init__(
        self,
        compiler: Compiler,
        devices: Sequence[OpenDevice],
        engine: OpenEngine,
        home: Mapping[str, Place],
    ) -> None:
        """``home``: place of a task if the engine does not run it, by task."""
        self.engine = engine
        self.model, self.graph = compiler.model, compiler.model.graph
        self._compiler, self._devices, self._home = compiler, devices, home
        tensors = self.graph.tensors
        self.own = [t for t in self.graph.tasks if engine.refusal(t, tensors) is None]
        """The tasks that the engine runs."""

    @cached_property
    def part(self) -> SweepItem:
        """All tasks of the model; those that the engine does not run are at their ``home``."""
        place_of = {**self._home, **{t.name: self.engine.place for t in self.own}}
        schedule = stepwise(self.graph, place_of)
        return SweepItem(self.graph.tasks, self._compiler.compile(schedule, self._devices))

    @property
    def operators(self) -> Mapping[str, str]:
        """Types of the engine's operators for a task, by task."""
        modules = zip(self.graph.tasks, self.part.compiled.modules, strict=True)
        return {task.name: " ".join(module.operators) for task, module in modules}


def _medians(
    rows: Sequence[Sequence[float]], own: Sequence[tuple[int, Step]], others_share: float
) -> dict[str, Measurement]:
    """Measurements by signature. ``own``: steps, each with its column; ``others_share``: see
    `Measurement`."""
    samples: dict[str, list[float]] = {}
    for column, step in own:
        samples.setdefault(step.signature, []).extend(row[column] for row in rows)
    step_of = {step.signature: step for _, step in own}
    return {
        s: replace(
            Measurement.of(seconds),
            family=step_of[s].family,
            work=step_of[s].work,
            others=others_share,
        )
        for s, seconds in samples.items()
    }


def _estimated(tasks: _Tasks, launch_s: float) -> _Times:
    """Times of tasks, estimated from operations and bytes. They are not stored."""
    graph, cores = tasks.graph, len(tasks.engine.device.cores)
    return {t.name: _Time(launch_s + estimated_s(graph, t, cores), "estimated") for t in tasks.own}


def _basis(
    signature: str, stored: Mapping[str, Measurement], new: Mapping[str, Measurement]
) -> Basis:
    if signature in stored:
        return "known"
    return "measured" if signature in new else "predicted"
