"""Steps from a model and device names to a running plan; each result is kept in the cache.

Session and command line both use this module.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.cache import rest
from coexec.engines.base import OpenEngine, OwnSession
from coexec.engines.names import default_names, whole_cpu
from coexec.engines.opened import OpenDevice, engine_at
from coexec.engines.registry import check_options, open_devices
from coexec.errors import InfeasibleError, PlanError, StoreError
from coexec.hardware.hardware import Place, System
from coexec.keys import digest
from coexec.model.main_memory import trim_memory
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.plan.schedule import Schedule
from coexec.precision import FLOAT32
from coexec.runtime.compiled import CompiledPlan, load_compiled, save_compiled, without_modules
from coexec.runtime.executor import Executor
from coexec.runtime.own_session import WholeModel
from coexec.runtime.runner import Runner
from coexec.selection.plan_files import versions_here
from coexec.selection.prepared import Prepared
from coexec.selection.user_model import UserModel, opened_cache
from coexec.settings import AUTO, Settings

if TYPE_CHECKING:  # importing ONNX takes longer than starting from the cache
    from coexec.costs.base import CostModel
    from coexec.costs.table import CostTable
    from coexec.graph.graph import Graph
    from coexec.model.digest import Shapes
    from coexec.model.model import Model
    from coexec.runtime.compiler import Compiler

LEAST_SHARE = 0.5
"""Least share of the tasks that an engine has to compute, or a lower precision: with less, a plan
gains little."""
_MOST_TURNS = 16
"""Largest number of turns of two engines. Each costs a compilation and a launch."""


class PlanningContext:
    """One model on one set of devices. Each property is computed on first use."""

    def __init__(self, source: Any, settings: Settings | None = None) -> None:
        """Describe the devices; nothing is loaded or measured yet.

        Args:
            source: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
            settings: their planner and plan are used by `known` and `make` only; other methods get
                the planner as an argument.

        Raises:
            DeviceError: a device cannot be used.
            UsageError: an engine does not have an option.
        """
        self.settings = settings = settings or Settings()
        self.cache = opened_cache(settings.cache)
        self.user_model = UserModel.of(source, settings, self.cache)
        check_options(settings.engine_options)
        self.devices: tuple[OpenDevice, ...] = open_devices(
            settings.devices or default_names(), settings.engine_options, self.cache.root
        )

    def with_settings(self, **changes: Any) -> "PlanningContext":
        """The same model with some other settings."""
        return PlanningContext(self.user_model.source, replace(self.settings, **changes))

    @cached_property
    def _described(self) -> System:
        """The devices without measured links: plans are verified with it, and cached by it."""
        return System(tuple(d.spec for d in self.devices))

    @property
    def fingerprint(self) -> str:
        """A digest of the devices with their engines and drivers."""
        return self._described.fingerprint

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the processors; devices that share one have one name."""
        return self._described.names

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names by which a user requests the devices, with their engine."""
        return tuple(str(d.spec.place) for d in self.devices)

    @property
    def model(self) -> "Model":
        """The simplified model."""
        return self.user_model.model

    @property
    def graph(self) -> "Graph":
        """The tasks of the model."""
        return self.model.graph

    @property
    def shapes(self) -> "Shapes":
        """Fixed shapes of inputs that are dynamic in the model."""
        return self.user_model.shapes

    @cached_property
    def compiler(self) -> "Compiler":
        from coexec.runtime.compiler import Compiler

        return Compiler(self.model, self.cache)

    @cached_property
    def measured(self) -> "tuple[CostTable, System]":
        """The profile: the cost of each task on each device, and the devices with their links."""
        from coexec.profiling.profiler import Profiler
        from coexec.profiling.store import ProfileStore

        with ProfileStore(self.cache.root) as store:
            profiler = Profiler(
                self.devices,
                store,
                fresh=self.settings.fresh,
                effort=self.settings.effort,
                progress=self.settings.progress,
                waiting=self.settings.waiting,
                quiet=self.settings.quiet,
            )
            if self.settings.pieces:
                profiler.measure_pieces(self.compiler)
            return profiler.cost(self.compiler), profiler.system()

    @property
    def tolerance(self) -> float:
        """Largest allowed difference from ONNX Runtime's outputs, relative to the largest value."""
        from coexec.model.difference import tolerance_in

        precisions = (device.spec.engine.precision for device in self.devices)
        lower = self.settings.tolerance
        return max(tolerance_in(precision, self.graph, lower) for precision in precisions)

    @property
    def has_lower_precision(self) -> bool:
        """Whether a device computes in a lower precision than float32."""
        return any(d.spec.engine.precision != FLOAT32 for d in self.devices)

    @cached_property
    def user_inputs(self) -> str:
        """A digest of the user's example inputs; "" without any."""
        return digest_of_inputs(self.settings.examples)

    @property
    def untrained(self) -> list[str]:
        """A line of text for each device without a latency predictor."""
        from coexec.profiling.store import ProfileStore
        from coexec.profiling.trained import untrained

        with ProfileStore(self.cache.root) as store:
            return untrained([device.engine for device in self.devices], store)

    def plan(self, planner: str, options: Mapping[str, Any] | None = None) -> Plan:
        """A verified plan. One device needs no profile."""
        check_planner(planner, options or {})
        graph = self.model.graph
        if len(self.devices) == 1 and not options and not self.settings.pins:
            self._refuse_partial(self.devices[0].engine)
            pieces = tuple(graph.whole_piece(task) for task in graph.tasks)
            place = self.devices[0].engine.place
            plan = Plan.of_places(graph.fingerprint, {place: pieces}, Provenance("single"))
        else:
            cost, system = self.measured
            if self.settings.progress is not None:
                self.settings.progress(f"planning with {planner}", 0, 0)
            plan = make_plan(planner, options or {}, graph, self.pinned(cost, system), system)
        return self.whole(plan)

    def completed(self) -> "tuple[PlanningContext, Plan]":
        """The plan of the only device, with the context that starts it: this one. If the engine
        does not run a few of the tasks, it is one in which ONNX Runtime computes these on the same
        cores.

        Raises:
            InfeasibleError: the device does not run the model, or too little of it.
        """
        device, refused = self.devices[0].spec, self.devices[0].engine.refused(self.graph)
        further, tasks = Place(device.name, "onnxruntime"), self.graph.task
        is_worth = len(tasks) - len(refused) >= LEAST_SHARE * len(tasks)
        if refused and is_worth and device.cores and not self.settings.pins:
            place_of = {name: further if name in refused else device.place for name in tasks}
            plan = Plan.in_turns(self.graph, place_of, Provenance("single"))
            if len(list(groupby(plan.engine_of.values()))) <= _MOST_TURNS:
                self.release()
                both = self.with_settings(devices=(str(device.place), str(further)))
                return both, both.whole(plan)
        return self, self.plan("single")

    def whole(self, plan: Plan) -> Plan:
        """``plan``, marked to run the model as given if one engine with a session of its own
        computes all of it; with the user's tolerance, if it computes in a lower precision."""
        places = plan.places
        if self.settings.tolerance is not None and plan.lower:
            options = {**plan.provenance.options, "tolerance": self.settings.tolerance}
            plan = replace(plan, provenance=replace(plan.provenance, options=options))
        alone = len(places) == 1 and engine_at(places[0], self.devices).has_own_session
        return replace(plan, as_given=True) if alone else plan

    def pinned(self, cost: "CostModel", system: System) -> "CostModel":
        """``cost`` for planners, in which a pinned task can run only on its pinned devices."""
        from coexec.costs.pinned import Pinned

        pinned = self.pinned_tasks(cost, system)
        return Pinned(cost, pinned) if pinned else cost

    def pinned_tasks(self, cost: "CostModel", system: System) -> dict[str, frozenset[Place]]:
        """Places that the user allows for a pinned task, by task."""
        from coexec.costs.pinned import resolve

        return resolve(self.settings.pins, self.model.graph, cost, system)

    def _refuse_partial(self, engine: OpenEngine) -> None:
        """Raise InfeasibleError unless ``engine`` runs the whole model."""
        if refused := engine.refused(self.graph):
            task, reason = next(iter(refused.items()))
            name = str(engine.place)
            # ONNX Runtime on the same cores; a GPU has none.
            further = engine.device.name if engine.device.cores else whole_cpu()
            raise InfeasibleError(
                f"{name} does not run {len(refused)} of the {len(self.graph.tasks)} tasks, such as "
                f"{task!r}: {reason}; add a CPU device, for example --devices {name},{further}. "
                f"coexec inspect MODEL --device {name} lists all"
            )

    def schedule(self, plan: Plan) -> Schedule:
        """The schedule derived from a plan, after verifying that the plan is for this model."""
        from coexec.plan.derive import derive

        verify_plan(plan, self.model.graph, self._described)
        if plan.as_given and not engine_at(plan.places[0], self.devices).has_own_session:
            raise PlanError(
                f"the plan runs the model as it was given on {plan.places[0]}, whose "
                f"engine only runs what coexec makes of it; make a new plan with "
                f"coexec plan"
            )
        return derive(plan, self.model.graph)

    def compiled(self, plan: Plan) -> CompiledPlan:
        """A compiled plan, ready to start."""
        schedule = self.schedule(plan)
        if plan.as_given:
            return without_modules(schedule)
        return self.compiler.compile(schedule, self.devices)

    is_open = False
    """A planner that is named makes the same plan again."""

    @property
    def known(self) -> Prepared | None:
        """The plan that the settings request, compiled, from the cache; None without a valid
        entry."""
        of = self.settings
        if of.plan is not None:
            return self._found(_text(of.plan.plan))
        key = self._plan_key(of.planner, of.planner_options)
        return None if of.fresh else self._found(key)

    def make(self, again: bool = False) -> Prepared:
        """The plan that the settings request, compiled; from the cache if a valid entry exists.

        Raises:
            PlanError: the plan of the settings was made for another model or other shapes.
        """
        file = self.settings.plan
        if file is None:
            return self.prepared_by(self.settings.planner, self.settings.planner_options)
        if (prepared := self._found(_text(file.plan))) is not None:
            return prepared
        file.require(self.graph, versions_here())
        return self._made(_text(file.plan), file.plan)

    def prepared_by(self, planner: str, options: Mapping[str, Any]) -> Prepared:
        """The plan of a planner, compiled; from the cache if a valid entry exists."""
        plan_key = self._plan_key(planner, options)
        if not self.settings.fresh and (prepared := self._found(plan_key)) is not None:
            return prepared
        return self._made(plan_key, self.plan(planner, options))

    def prepared(self, plan: Plan) -> Prepared:
        """``plan`` compiled; from the cache if a valid entry exists."""
        return self.remembered(_text(plan), lambda: plan)

    def remembered(self, request: str, plan: Callable[[], Plan]) -> Prepared:
        """The plan that ``request`` describes, compiled: from the cache, or the result of
        ``plan``."""
        return self._found(request) or self._made(request, plan())

    def start(self, prepared: Prepared) -> Runner:
        """Start a plan on the devices and return its runner. The caller has to close it."""
        if prepared.plan.as_given:
            engine = engine_at(prepared.plan.places[0], self.devices)
            return WholeModel(engine, partial(_own_session, engine, self.user_model))
        executor = Executor(prepared.compiled, self.devices, waiting=self.settings.waiting)
        # Some engines have packed the weights; others map those that they use again.
        rest(weight for module in prepared.compiled.modules for weight in module.weights.values())
        trim_memory()
        return executor

    def release(self) -> None:
        """Close the engines. They are opened again on their next use."""
        for device in self.devices:
            device.close()
        rest()
        trim_memory()

    def _plan_key(self, planner: str, options: Mapping[str, Any]) -> str:
        return repr((planner, sorted(options.items()), sorted(self.settings.pins.items())))

    def _key(self, request: str) -> str:
        facts = [self.user_model.digest, self._described.fingerprint, request]
        # Comparisons depend on the tolerance.
        if self.has_lower_precision and self.settings.tolerance is not None:
            facts.append(repr(self.settings.tolerance))
        return digest(*facts)

    def _found(self, request: str) -> Prepared | None:
        entry = self.cache.find("plans", self._key(request))
        if entry is None:
            return None
        with suppress(StoreError, PlanError, KeyError):  # a damaged entry: the plan is made again
            compiled, extra = load_compiled(entry, self.cache.weights)
            return Prepared(self, Plan.from_json(extra["plan"]), compiled, key=extra["key"])
        return None

    def _made(self, request: str, plan: Plan) -> Prepared:
        """Compile ``plan`` and add it to the cache."""
        compiled = self.compiled(plan)
        key = self._key(_text(plan))
        if all(m.weights.keys() <= m.stored.keys() for m in compiled.modules):
            # Compute the key only now: it differs if the model changed while it was loaded.
            extra = {"plan": plan.to_json(), "key": key}
            self.cache.add("plans", self._key(request), save_compiled(compiled, extra))
        return Prepared(self, plan, compiled, key=key)


def digest_of_inputs(inputs: Mapping[str, Any]) -> str:
    """A digest of arrays by name; "" if there are none."""
    arrays = [(name, np.asarray(value)) for name, value in sorted(inputs.items())]
    facts = [fact for name, a in arrays for fact in (name, a.dtype.str, a.shape, a.tobytes())]
    return digest(*facts) if facts else ""


def _text(plan: Plan) -> str:
    return repr(plan.to_json())


def _own_session(engine: OpenEngine, user_model: UserModel) -> OwnSession:
    session = engine.own_session(user_model.for_own_session())
    assert session is not None  # the plan is `as_given`, so the engine has one
    return session


def make_plan(
    planner: str, options: Mapping[str, Any], graph: Any, cost: "CostModel", system: System
) -> Plan:
    """Run a planner by name.

    Raises:
        UsageError: the planner or one of the options does not exist.
    """
    from coexec.planners import find_planner

    return find_planner(planner, AUTO)(graph, cost, system, **options)


def check_planner(planner: str, options: Mapping[str, Any]) -> None:
    """Check that a planner and its options exist, before the devices are measured.

    Raises:
        UsageError: the planner or one of the options does not exist.
    """
    from coexec.planners import find_planner

    find_planner(planner, AUTO).check(options)
