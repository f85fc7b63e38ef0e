"""Which plan answers a session's requests, by the shapes of its inputs.

`next_actions` in plan_states.py decides; this module carries its actions out, and sends it what
happens as events. Without a plan, the engine's own session, which the caller has (`session`),
answers.
"""

import logging
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coexec.engines.names import whole_cpu
from coexec.errors import (
    CoexecError,
    DegradedWarning,
    DeviceError,
    ExecutionError,
    ForkedError,
    ModelError,
    PlanError,
)
from coexec.profiling.activity import TRAFFIC
from coexec.runtime.process_fork import watch
from coexec.selection import background
from coexec.selection.background import Job
from coexec.selection.kept_requests import ENOUGH, KeptRequests
from coexec.selection.plan_states import (
    Action,
    CacheSearched,
    Cancel,
    EnoughRequests,
    Event,
    Failed,
    Log,
    MakePlan,
    Patience,
    PlanMade,
    PlanState,
    Requested,
    Running,
    SearchCache,
    Start,
    Started,
    Switch,
    TimeSpent,
    Unusable,
    next_actions,
)
from coexec.selection.user_model import UserModel, opened_cache
from coexec.settings import AUTO, Settings
from coexec.units import format_seconds

# ONNX Runtime answers first: the modules that make and start plans are imported later.
if TYPE_CHECKING:
    from coexec.selection.comparison import ReferenceAnswers
    from coexec.selection.prepare import PlanMaker
    from coexec.selection.prepared import Prepared

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes of the inputs that are dynamic in the model, with the input's name."""

_log = logging.getLogger("coexec")


@dataclass(eq=False)
class _ShapesPlan:
    """One set of shapes."""

    shapes: Shapes
    state: PlanState = field(default_factory=PlanState)
    job: Job | None = None
    requests: KeptRequests | None = None
    """Requests to compare a plan with. None while there is no plan to compare."""
    began_s: float = field(default_factory=time.monotonic)
    """When planning in the background has begun."""
    is_dropped: bool = False
    failed: Running | None = None
    """The latest plan of which a device has failed."""


class PlanSelector:
    """The plans of one session. May be used by several threads."""

    most_shapes = 8
    """Number of sets of shapes whose plans stay open: those that were used last."""
    limits = Patience()

    def __init__(self, source: Any, settings: Settings) -> None:
        """
        Args:
            source: a path, "zoo:NAME" or bytes; without planning in the background, also any other
                source that `PlanningContext` takes.
        """
        self.source, self._settings = source, settings
        self._slots: OrderedDict[Shapes, _ShapesPlan] = OrderedDict()
        self._lock = threading.RLock()  # a signal handler may run the session that it interrupts
        self._closed = False
        self.cache = opened_cache(settings.cache)
        self.changed: Callable[[], None] = lambda: None
        """Called by any thread when another plan, or no plan, answers from now on."""
        self.doubt: Callable[[Running], str | None] = lambda running: None
        """Returns why a plan's outputs differ from the own session's; None if they agree."""
        self.watches = False
        """Whether `observe` has to be called with requests."""
        watch(self)

    @property
    def any_running(self) -> bool:
        """Whether a plan answers requests of any shapes."""
        return any(slot.state.running is not None for slot in list(self._slots.values()))

    def running(self, shapes: Shapes) -> Running | None:
        """The plan that answers requests of these shapes; None: the engine's own session does."""
        slot = self._slots.get(shapes)
        if slot is None or slot.state.running is None:
            return None
        if len(self._slots) > 1:
            with suppress(KeyError):  # another thread may have dropped it
                self._slots.move_to_end(shapes)
        return slot.state.running

    def state(self, shapes: Shapes) -> PlanState:
        """The state of these shapes."""
        slot = self._slots.get(shapes)
        return PlanState() if slot is None else slot.state

    @property
    def has_cached_digest(self) -> bool:
        """Whether an earlier plan can be found in the cache without reading the whole model."""
        return UserModel.of(self.source, self._settings, self.cache).has_cached_digest

    def check(self) -> "PlanMaker | None":
        """What makes the plan that the settings request, for the shapes that they fix.

        None in a forked child that cannot use the engines of its parent: then no plan starts.

        Raises:
            DeviceError: a device cannot be used.
            UsageError: an option that does not exist.
        """
        from coexec.selection.prepare import plan_maker

        try:
            return plan_maker(self.source, self._settings)
        except ForkedError:
            return None

    def check_request(self) -> None:
        """Refuse sizes that contradict the model, and a planner that does not exist, before
        anything is planned.

        Raises:
            UsageError: there is no such planner or option, or the user has given the sizes.
            PlanError: the sizes are those of a plan.
        """
        if self._settings.shapes:
            _ = UserModel.of(self.source, self._settings, self.cache).shapes
        if self._settings.planner != AUTO and self._settings.plan is None:
            from coexec.selection.planning_context import check_planner

            check_planner(self._settings.planner, self._settings.planner_options)

    def start_known(self, shapes: Shapes, maker: "PlanMaker") -> bool:
        """Start the earlier choice for these shapes, and return whether there was one.

        Raises:
            PlanError: it is a plan of the settings that does not answer, and they are strict.
        """
        prepared = maker.known
        if prepared is None:
            return False
        slot = self._slot(shapes)
        self._send(slot, CacheSearched(prepared, maker.is_open))
        self._require_answers(slot)
        return True

    def start_now(self, shapes: Shapes) -> None:
        """Make a plan for these shapes and start it, in this thread.

        If a device fails, there is a warning, as for a device that fails later, and the next engine
        of the device is tried, if it was named without an engine. If no plan can be made of the
        model, there is a warning too, because ONNX Runtime can run the model.

        Raises:
            CoexecError: no plan can be made for another reason; or a plan of the settings does not
                answer, and they are strict.
        """
        from coexec.selection.prepare import plan_maker, prepare

        slot = self._slot(shapes)
        while True:
            maker: PlanMaker | None = None
            prepared: Prepared | None = None
            try:
                settings = self._of(shapes)
                maker = plan_maker(self.source, settings)
                prepared = prepare(self.source, settings, maker=maker)
                self._send(slot, self._started(slot, prepared))
            except (DeviceError, ExecutionError, ModelError) as error:
                if (other := self._on_other_engines(error, prepared or maker)) is not None:
                    self._settings, name = other
                    _warn(error, f"{name} computes in its place")
                    continue
                self._send(slot, Unusable(str(error)))
                if self._settings.strict and self._settings.plan is not None:
                    self._require_answers(slot)
                _warn(error, self._carries_on)
            else:
                self._require_answers(slot)
            return

    def start_later(self, shapes: Shapes) -> None:
        """Start the earlier choice for these shapes in the background, or plan there."""
        self._send(self._slot(shapes), Requested())

    def answered(self, shapes: Shapes, seconds: float) -> None:
        """Record that the own session has answered a request of new shapes in ``seconds``."""
        plan = self._settings.plan
        slot = self._slots.get(shapes) or self._slot(shapes)
        self._send(slot, TimeSpent(seconds, None if plan is None else plan.title))

    def observe(
        self, shapes: Shapes, feeds: Any, names: Sequence[str], outputs: Sequence[Any]
    ) -> None:
        """Keep a request that the own session has answered, if a plan is to be compared with it."""
        for key in dict.fromkeys(((), shapes)):
            slot = self._slots.get(key)
            requests = None if slot is None else slot.requests
            if slot is not None and requests is not None:
                requests.add(feeds, names, outputs)
                if slot.state.pending is not None and requests.full:
                    self._send(slot, EnoughRequests())

    def failed(self, shapes: Shapes, running: Running, error: CoexecError) -> None:
        """Stop a plan because a device has failed. The own session answers from now on; until a
        plan on another engine is ready, if one drives the same device."""
        slot = self._slots.get(shapes)
        with self._lock:  # requests of several threads may fail together
            if slot is None or slot.state.running is not running or slot.failed is running:
                return
            slot.failed = running
        other = self._on_other_engines(error, running.prepared)
        before = self._settings
        if other is not None:
            self._settings, name = other
        self._send(slot, Failed(running, str(error), goes_on=other is not None))
        if other is None:
            _warn(error, self._carries_on)
        elif self._settings.devices != before.devices:  # else a plan for other shapes failed before
            _warn(error, f"{self._carries_on} until a plan on {name} is ready")

    def replace(self, old: Running, prepared: "Prepared") -> None:
        """Run another plan on the same devices from now on, in place of ``old``."""
        for slot in list(self._slots.values()):
            if slot.state.running is old:
                self._start(slot, prepared)

    def wait(self) -> None:
        """Wait until all first plans that are made in the background are ready."""
        for slot in list(self._slots.values()):
            while slot.state.is_busy and not slot.is_dropped:
                time.sleep(0.01)

    def close(self) -> None:
        """Close all plans, and make no more. May be called by the garbage collector."""
        self._closed = True
        for slot in list(self._slots.values()):
            self._drop(slot)

    def after_fork(self) -> None:
        """Forget jobs in a forked child: nothing goes on in the background there."""
        self._lock = threading.RLock()
        for slot in list(self._slots.values()):
            slot.job, slot.state = None, replace(slot.state, task=None, is_comparing=False)

    def _on_other_engines(
        self, error: CoexecError, failed: "Prepared | PlanMaker | None"
    ) -> tuple[Settings, str] | None:
        """Settings with another engine on the device that has failed, and the name of the device
        with it. None if there is none, if it is not known which device has failed, or if the
        settings have a plan, which names its engines."""
        from coexec.selection.configurations import with_next_engine
        from coexec.selection.planning_context import PlanningContext
        from coexec.selection.prepared import Prepared

        works = []
        if isinstance(failed, Prepared):
            works = [each.work for each in (failed, *failed.beside)]
        elif isinstance(failed, PlanningContext):
            works = [failed]
        if isinstance(error, ModelError) or self._settings.plan is not None:
            return None
        devices = {
            name: device.spec
            for work in works
            for name, device in zip(work.settings.devices or (), work.devices, strict=False)
        }
        failures = {device for _, device, _ in getattr(error, "reasons", ())} or {error.device}
        for name, spec in devices.items():
            is_it = spec.name in failures or (len(devices) == 1 and failures == {""})
            if is_it and (other := with_next_engine(name, spec)) is not None:
                wanted = self._settings.devices or ()
                if name not in wanted and other not in wanted:  # the planner has chosen the devices
                    wanted = tuple(devices)
                names = tuple(other if each == name else each for each in wanted)
                return replace(self._settings, devices=names), other
        return None

    def _of(self, shapes: Shapes) -> Settings:
        own = self._settings
        return replace(own, shapes={**own.shapes, **dict(shapes)}) if shapes else own

    def _slot(self, shapes: Shapes) -> _ShapesPlan:
        with self._lock:
            slot = self._slots.setdefault(shapes, _ShapesPlan(shapes))
            self._slots.move_to_end(shapes)
            excess = len(self._slots) - self.most_shapes
            stale = [self._slots.popitem(last=False)[1] for _ in range(excess)]
        for old in stale:
            self._drop(old)
        return slot

    def _drop(self, slot: _ShapesPlan) -> None:
        slot.is_dropped = True
        job, running = slot.job, slot.state.running
        slot.job, slot.state, slot.requests = None, PlanState(), None
        if job is not None:
            background.cancel(job)
        if running is not None:
            running.runner.close()

    def _send(self, slot: _ShapesPlan, event: Event) -> None:
        """Let ``slot`` change by an event, and carry the actions out."""
        with self._lock:
            before = slot.state
            after, actions = next_actions(before, event, self.limits)
            slot.state = after
            slot.requests = (slot.requests or KeptRequests()) if after.keeps_requests else None
            self.watches = any(s.requests is not None for s in list(self._slots.values()))
        if slot.is_dropped or self._closed:  # `_drop` takes no lock, and may have missed the state
            self._drop(slot)
            for running in (before.running, after.running):
                if running is not None:
                    running.runner.close()
            return
        for action in actions:
            self._carry_out(slot, action)

    def _carry_out(self, slot: _ShapesPlan, action: Action) -> None:
        match action:
            case SearchCache():
                slot.job = self._job(slot, partial(self._look, slot), after_s=action.after_s)
                background.LOADS.submit(slot.job)
            case MakePlan():
                slot.began_s = time.monotonic() + action.after_s
                plan = partial(self._plan, slot, action.again)
                slot.job = self._job(slot, plan, PlanMade, action.after_s)
                background.PLANS.submit(slot.job)
            case Start(in_background=True):
                start = action.prepared
                background.LOADS.submit(self._job(slot, lambda job: self._start(slot, start)))
            case Start():
                self._start(slot, action.prepared)
            case Cancel():
                if (job := slot.job) is not None:
                    background.cancel(job)
            case Switch():
                if action.old is not None:
                    action.old.runner.close()
                self.changed()
            case Log():
                _log.log(action.level, "%s: %s", self._name(slot.shapes), action.text)

    def _job(
        self,
        slot: _ShapesPlan,
        run: Callable[[Job], None],
        failed: Callable[[str], Event] = Unusable,
        after_s: float = 0.0,
    ) -> Job:
        """A job for these shapes, which does nothing if they were dropped before it begins.

        An error of a driver, or a warning that is raised, ends it with the event ``failed``.
        """

        def guarded(job: Job) -> None:
            if slot.is_dropped or self._closed:  # perhaps before `slot.job` was there to cancel
                return
            try:
                run(job)
            except Exception as error:
                _log.exception("planning in the background failed")
                self._send(slot, failed(f"planning in the background failed: {error}"))

        return Job(guarded, after_s)

    def _look(self, slot: _ShapesPlan, job: Job) -> None:
        """Search the cache for a plan."""
        from coexec.selection.prepare import plan_maker

        was_planned = slot.state.task in ("load", "load again")
        event: Event
        try:
            maker = plan_maker(self.source, replace(self._of(slot.shapes), fresh=False))
            prepared = maker.known
            event = CacheSearched(prepared, prepared is not None and maker.is_open)
            if prepared is None and was_planned:
                text = f"its plan could not be kept in {self.cache.root}"
                event = PlanMade(f"{text}; make the session with background=False")
        except CoexecError as error:
            event = Unusable(str(error))
        if job.cancelled.is_set():
            return
        if was_planned and isinstance(event, CacheSearched):
            took = format_seconds(time.monotonic() - slot.began_s)
            text = f"decided in {took} in the background, kept in {self.cache.root}"
            self._carry_out(slot, Log(text, logging.INFO))
        self._send(slot, event)

    def _plan(self, slot: _ShapesPlan, again: bool, job: Job) -> None:
        """Make a plan in another process."""
        settings = self._of(slot.shapes)
        error = background.error_of_planning(job, self.source, settings, again)
        if not job.cancelled.is_set():
            self._send(slot, PlanMade(None if error is None else str(error)))

    def _start(self, slot: _ShapesPlan, prepared: "Prepared") -> None:
        """Let a plan answer from now on, or record why it cannot."""
        TRAFFIC.begin()  # another session's plans are not measured meanwhile
        try:
            started = self._started(slot, prepared)
        except CoexecError as error:
            other = None
            if slot.state.running is None:
                other = self._on_other_engines(error, prepared)
            if other is None:
                self._send(slot, Unusable(str(error)))
            else:
                self._settings, _ = other
                self._carry_out(slot, Log(f"its plan does not start: {error}"))
                self._send(slot, Requested())
            return
        finally:
            TRAFFIC.end()
        self._send(slot, started)
        # A plan with another answer is refused.
        self._carry_out(slot, Log(slot.state.reason or _in_words(prepared), logging.INFO))

    def _require_answers(self, slot: _ShapesPlan) -> None:
        """Warn that a plan was made but does not answer, with the reason.

        Raises:
            PlanError: the settings have a plan and are strict.
        """
        state = slot.state
        if state.reason is None or not state.is_decided or state.pending is not None:
            return
        if self._settings.strict and self._settings.plan is not None:
            raise PlanError(
                f"{self._settings.plan.title} does not answer: {state.reason}; without strict=True "
                f"ONNX Runtime's own session answers in its place"
            )
        text = f"{state.reason}. ONNX Runtime's own session answers in its place"
        warnings.warn(text, DegradedWarning, stacklevel=5)

    def _name(self, shapes: Shapes) -> str:
        source = self.source if isinstance(self.source, str) else "the model"
        at = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes)
        return f"{source} ({at})" if at else source

    def _started(self, slot: _ShapesPlan, prepared: "Prepared") -> Started:
        """``prepared``, started, if its outputs agree with ONNX Runtime's.

        Raises:
            CoexecError: it does not start.
        """
        from coexec.selection.comparison import ReferenceAnswers, is_exact, known

        alone = prepared.plan.as_given and not prepared.beside and self._settings.devices is None
        if alone and self._is_own_session(prepared):
            return Started(prepared, None)  # the own session is the best plan
        reference = ReferenceAnswers(prepared.work)
        if not is_exact(prepared) and known(prepared) is None:
            _ = reference.answers  # before the plan takes memory beside ONNX Runtime's session
        new = Running(prepared.start(), prepared)
        try:
            _warm_up(new)
            reason, waits = self._why_not(slot, new, reference)
        except BaseException:
            new.runner.close()
            raise
        if reason is None:
            return Started(prepared, new)
        new.runner.close()
        return Started(prepared, None, reason, waits)

    @property
    def _carries_on(self) -> str:
        where = "in the program's own session" if self._settings.reference else "on the CPU"
        return f"The session carries on with ONNX Runtime {where}"

    def _is_own_session(self, prepared: "Prepared") -> bool:
        """Whether ONNX Runtime's session of the whole model there is that of the user."""
        decision = prepared.decision
        if self._settings.reference:
            return decision is not None and decision.reference == str(decision.taken)
        return prepared.work.names == (whole_cpu(),)

    def _why_not(
        self, slot: _ShapesPlan, new: Running, reference: "ReferenceAnswers"
    ) -> tuple[str | None, bool]:
        """Why a plan may not answer: its outputs differ from ONNX Runtime's, or cannot be compared
        yet; and whether requests may still show that it may."""
        from coexec.selection.comparison import accept, compared, is_exact, refuse

        prepared, requests = new.prepared, slot.requests
        if not is_exact(prepared):
            result = compared(prepared, new.runner, reference)
            if result.reason is not None and not result.by_requests:
                return result.reason, False
            count, differs = 0, None
            if requests is not None:
                count, differs = requests.compare(prepared, new.runner, result)
            if differs is not None:
                return refuse(prepared, result, differs).reason, False
            if result.by_requests and count < ENOUGH:
                text = f"{result.reason}. It is compared with the next {ENOUGH} requests"
                return text, True
            if result.by_requests:
                accept(prepared, result, count)
        return self.doubt(new), False


def _warn(error: CoexecError, then: str) -> None:
    """Warn what answers because of an error, at the line of the user's program."""
    warnings.warn(f"{error}. {then}", DegradedWarning, stacklevel=5)


def _warm_up(running: Running) -> None:
    """Run once before the first request, because memory is allocated and bound in that run."""
    from coexec.model.inputs import filled

    feeds = {tensor.name: filled(tensor, 0) for tensor in running.prepared.compiled.inputs}
    with suppress(CoexecError):  # zeros do not suit every model
        running.runner.run(feeds)


def _in_words(prepared: "Prepared") -> str:
    """Description of a choice, for the log."""
    plan = prepared.plan
    if prepared.beside:
        names = [name for each in (prepared, *prepared.beside) for name in each.work.device_names]
        return f"{', '.join(names)} answer requests beside each other from now on"
    if plan.as_given:
        return f"{', '.join(map(str, plan.places))} alone is the fastest"
    return f"{plan.provenance.planner} on {', '.join(map(str, plan.places))} answers from now on"
