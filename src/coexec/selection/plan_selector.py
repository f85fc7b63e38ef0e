"""Which plan answers a session's requests, by the shapes of its inputs.

Without a plan, the engine's own session, which the caller has (`session`), answers: until a plan is
ready, if no plan is faster, and for good after a device of a plan has failed.
"""

import logging
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coexec.errors import (
    CoexecError,
    DegradedWarning,
    DeviceError,
    ExecutionError,
    ForkedError,
    ModelError,
    PlanError,
)
from coexec.runtime.runner import Runner
from coexec.selection import background
from coexec.selection.background import Job
from coexec.selection.decision import Decision
from coexec.selection.kept_requests import ENOUGH, KeptRequests
from coexec.selection.opened_model import OpenedModel, opened_cache
from coexec.settings import AUTO, Settings
from coexec.units import format_seconds

if TYPE_CHECKING:  # ONNX Runtime answers first: what makes and starts plans is imported later
    from coexec.selection.comparison import ReferenceAnswers
    from coexec.selection.prepare import PlanMaker
    from coexec.selection.prepared import Prepared

__all__ = ["PlanSelector", "Running", "Shapes"]

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Shapes of the inputs that are dynamic in the model, with the input's name."""

_LOOK_S = 0.5
"""Seconds spent on requests of new shapes before the cache is searched for a plan: the first search
takes a tenth of a second of a core."""

_log = logging.getLogger("coexec")


@dataclass(frozen=True, eq=False)
class Running:
    """A plan with its runner."""

    runner: Runner
    prepared: "Prepared"


@dataclass(eq=False)
class _State:
    """State of one set of shapes."""

    running: Running | None = None
    reason: str | None = None
    """Why the engine's own session answers in place of the requested plan."""
    job: Job | None = None
    looked: bool = False
    """Whether the cache has been searched for a plan."""
    spent_s: float = 0.0
    """Seconds of the requests that the engine's own session has answered."""
    decision: Decision | None = None
    """How planner "auto" made the choice in use; None for other planners."""
    decided: bool = False
    """Whether nothing more is tried: a plan was made or found, or no plan is possible."""
    is_open: bool = False
    """Whether one more pass of planner "auto" may find a better plan."""
    requests: KeptRequests | None = None
    """Requests to compare a plan with. None while there is no plan to compare."""
    pending: "Prepared | None" = None
    """A plan to compare when there are enough requests, because made-up inputs do not run."""


class PlanSelector:
    """The plans of one session. May be used by several threads."""

    most_shapes = 8
    """Number of sets of shapes whose plans stay open: those that were used last."""
    worth_s = 15.0
    """Seconds spent on requests of new shapes before planning begins: planning takes as long, and
    only then are more requests of these shapes likely."""
    head_start_s = 1.0
    """Seconds before planning in the background begins, in which the program goes on
    undisturbed."""
    look_s = 0.5
    """Seconds before an earlier choice is loaded beside the session that answers meanwhile: a
    program of one request has ended then."""
    again_s = 60.0
    """Seconds before a choice that is open goes on in the background."""

    def __init__(self, source: Any, settings: Settings) -> None:
        """
        Args:
            source: a path, "zoo:NAME" or bytes; without planning in the background, also any other
                source that `PlanningContext` takes.
        """
        self.source, self._settings = source, settings
        self._states: OrderedDict[Shapes, _State] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        self.cache = opened_cache(settings.cache)
        self.changed: Callable[[], None] = lambda: None
        """Called by any thread when another plan, or no plan, answers from now on."""
        self.doubt: Callable[[Running], str | None] = lambda running: None
        """Returns why a plan's outputs differ from the own session's; None if they agree."""
        self.watches = False
        """Whether `observe` has to be called with requests."""

    @property
    def any_running(self) -> bool:
        """Whether a plan answers requests of any shapes."""
        return any(state.running is not None for state in list(self._states.values()))

    def running(self, shapes: Shapes) -> Running | None:
        """The plan that answers requests of these shapes; None: the engine's own session does."""
        state = self._states.get(shapes)
        if state is None or state.running is None:
            return None
        if len(self._states) > 1:
            with suppress(KeyError):  # another thread may have dropped it
                self._states.move_to_end(shapes)
        return state.running

    def reason(self, shapes: Shapes) -> str | None:
        """Why the engine's own session answers in place of the plan; None if the plan answers."""
        state = self._states.get(shapes)
        return None if state is None else state.reason

    def decision(self, shapes: Shapes) -> Decision | None:
        """How planner "auto" chose for these shapes; None while nothing is decided."""
        state = self._states.get(shapes)
        return None if state is None else state.decision

    @property
    def has_cached_digest(self) -> bool:
        """Whether an earlier plan can be found in the cache without reading the whole model."""
        return OpenedModel.of(self.source, self._settings, self.cache).has_cached_digest

    def check(self) -> "PlanMaker | None":
        """The plan that the settings request, for the shapes that the settings fix.

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

    def check_shapes(self) -> None:
        """Refuse sizes that contradict the model, before anything is planned.

        Raises:
            UsageError: the user has given them.
            PlanError: they are those of a plan.
        """
        if self._settings.shapes:
            _ = OpenedModel.of(self.source, self._settings, self.cache).shapes

    def check_planner(self) -> None:
        """Refuse a planner that does not exist, if the first plan is made only after a request.

        Raises:
            UsageError: there is no such planner, or it has no such option.
        """
        if self._settings.planner != AUTO:
            from coexec.selection.planning_context import check_planner

            check_planner(self._settings.planner, self._settings.planner_options)

    def start_known(self, shapes: Shapes, request: "PlanMaker") -> bool:
        """Start the earlier choice for these shapes, and return whether there was one.

        Raises:
            PlanError: it is a plan of the settings that does not answer, and they are strict.
        """
        prepared = request.known
        if prepared is None:
            return False
        state = self._state(shapes)
        self._try(shapes, state, prepared)
        self._require_answers(state)
        if request.is_open:
            self._submit(shapes, state, after_s=self.again_s, again=True)
        return True

    def start_now(self, shapes: Shapes) -> None:
        """Make a plan for these shapes and start it, in this thread.

        If a device fails, there is a warning, as for a device that fails later. If no plan can be
        made of the model, there is a warning too, because ONNX Runtime can run the model.

        Raises:
            CoexecError: no plan can be made for another reason; or a plan of the settings does not
                answer, and they are strict.
        """
        from coexec.selection.prepare import prepare

        state = self._state(shapes)
        try:
            self._take(state, prepare(self.source, self._of(shapes)))
        except (DeviceError, ExecutionError, ModelError) as error:
            if self._settings.strict and self._settings.plan is not None:
                state.reason, state.decided = str(error), True
                self._require_answers(state)
            self._give_up(state, error)
        else:
            self._require_answers(state)

    def start_later(self, shapes: Shapes) -> None:
        """Start the earlier choice for these shapes in the background, or plan there."""
        state = self._state(shapes)
        state.reason = "its plan is still being made"
        _log.info("%s: planning in the background begins", self._name(shapes))
        is_quick = self.has_cached_digest
        self._submit(shapes, state, after_s=self.look_s if is_quick else self.head_start_s)

    def answered(self, shapes: Shapes, seconds: float) -> None:
        """Record that the own session has answered a request of new shapes in ``seconds``."""
        state = self._states.get(shapes)
        if state is None:
            state = self._state(shapes)
            state.reason = "no plan is made before more requests of these shapes have come"
            if self._settings.plan is not None:
                state.reason = f"{self._settings.plan.title} was made for other shapes"
                state.decided = True
        state.spent_s += seconds
        if state.running is not None or state.job is not None or state.decided:
            return
        if state.spent_s >= self.worth_s:
            self.start_later(shapes)
        elif state.spent_s >= _LOOK_S and not state.looked:
            state.looked = True
            self._submit(shapes, state, after_s=0.0, only_look=True)

    def observe(
        self, shapes: Shapes, feeds: Any, names: Sequence[str], outputs: Sequence[Any]
    ) -> None:
        """Keep a request that the own session has answered, if a plan is to be compared with it."""
        for key in dict.fromkeys(((), shapes)):
            state = self._states.get(key)
            if state is None or state.requests is None:
                continue
            state.requests.add(feeds, names, outputs)
            if state.pending is not None and state.job is None and state.requests.full:
                self._submit_pending(key, state, state.pending)

    def failed(self, shapes: Shapes, running: Running, error: CoexecError) -> None:
        """Stop a plan because a device has failed; the own session answers from now on."""
        state = self._states.get(shapes)
        if state is None or state.running is not running:
            return
        job, state.job, state.running = state.job, None, None
        if job is not None:  # it would start the plan again
            background.cancel(job)
        running.runner.close()
        self._give_up(state, error)
        self.changed()

    def _give_up(self, state: _State, error: CoexecError) -> None:
        state.reason, state.decided = str(error), True
        text = f"{error}. The session carries on with ONNX Runtime on the CPU"
        warnings.warn(text, DegradedWarning, stacklevel=5)

    def replace(self, old: Running, prepared: "Prepared") -> None:
        """Run another plan on the same devices from now on, in place of ``old``."""
        for state in list(self._states.values()):
            if state.running is old:
                self._take(state, prepared)

    def wait(self) -> None:
        """Wait until all first plans that are made in the background are ready."""
        for state in list(self._states.values()):
            while _plans(state):
                time.sleep(0.01)

    def close(self) -> None:
        """Close all plans, and make no more. May be called by the garbage collector."""
        self._closed = True
        for state in list(self._states.values()):
            self._drop(state)

    def after_fork(self) -> None:
        """Forget jobs in a forked child: no plans are made in the background any more."""
        self._lock = threading.Lock()
        for state in list(self._states.values()):
            state.job = None

    def _of(self, shapes: Shapes) -> Settings:
        own = self._settings
        return replace(own, shapes={**own.shapes, **dict(shapes)}) if shapes else own

    def _state(self, shapes: Shapes) -> _State:
        with self._lock:
            state = self._states.setdefault(shapes, _State())
            self._states.move_to_end(shapes)
            excess = len(self._states) - self.most_shapes
            stale = [self._states.popitem(last=False)[1] for _ in range(excess)]
        for old in stale:
            self._drop(old)
        return state

    def _drop(self, state: _State) -> None:
        job, running = state.job, state.running
        state.job = state.running = state.requests = state.pending = None
        if job is not None:
            background.cancel(job)
        if running is not None:
            running.runner.close()

    def _submit(
        self,
        shapes: Shapes,
        state: _State,
        after_s: float,
        *,
        again: bool = False,
        only_look: bool = False,
    ) -> None:
        """Make a plan in the background, unless it is in the cache.

        ``only_look``: only search the cache. ``again``: make one more pass for an open choice.
        """

        def needed() -> bool:
            if self._closed:
                return False
            if only_look or not again:
                found = self._found(shapes, state)
                if found or only_look:
                    self._end_job(shapes, state)
                    return False
                return not job.cancelled.wait(max(0.0, self.head_start_s - after_s))
            return True

        if state.running is None and not only_look:
            self._watch(state)
        done = partial(self._prepared, shapes, state, time.monotonic() + after_s)
        job = state.job = Job(self.source, self._of(shapes), needed, done, after_s, again)
        background.submit(job)

    def _watch(self, state: _State) -> None:
        """Keep requests of these shapes from now on."""
        state.requests = state.requests or KeptRequests()
        self.watches = True

    def _unwatch(self, state: _State) -> None:
        """Keep no more requests of these shapes, unless a plan needs some for a comparison."""
        if state.pending is None:
            state.requests = None
            self.watches = any(s.requests is not None for s in list(self._states.values()))

    def _submit_pending(self, shapes: Shapes, state: _State, prepared: "Prepared") -> None:
        """Compare a plan in the background with the requests that were kept for it."""

        def needed() -> bool:
            state.pending = None
            self._try(shapes, state, prepared)
            state.job = None
            return False

        state.job = Job(self.source, self._of(shapes), needed, lambda error: None)
        background.submit(state.job)

    def _found(self, shapes: Shapes, state: _State) -> bool:
        """Use the plan in the cache, and return whether there was a plan or an error."""
        from coexec.selection.prepare import plan_maker

        try:
            request = plan_maker(self.source, replace(self._of(shapes), fresh=False))
            known = request.known
            state.is_open = known is not None and request.is_open
        except CoexecError as error:
            self._cannot(shapes, state, error)
            return True
        if known is None:
            return False
        running = state.running
        if running is not None and running.prepared.plan == known.plan:
            state.decision = known.decision or state.decision
        else:
            self._try(shapes, state, known)
        return True

    def _end_job(self, shapes: Shapes, state: _State) -> None:
        """Forget the job of these shapes. If their choice is open, one more pass follows later."""
        state.job, is_open, state.is_open = None, state.is_open, False
        if is_open and not self._closed:
            self._submit(shapes, state, after_s=self.again_s, again=True)

    def _require_answers(self, state: _State) -> None:
        """Warn that a plan was made but does not answer, with the reason.

        Raises:
            PlanError: the settings have a plan and are strict.
        """
        if state.reason is None or not state.decided or state.pending is not None:
            return
        if self._settings.strict and self._settings.plan is not None:
            raise PlanError(
                f"{self._settings.plan.title} does not answer: {state.reason}; without strict=True "
                f"ONNX Runtime's own session answers in its place"
            )
        text = f"{state.reason}. ONNX Runtime's own session answers in its place"
        warnings.warn(text, DegradedWarning, stacklevel=5)

    def _try(self, shapes: Shapes, state: _State, prepared: "Prepared") -> None:
        """Let a plan answer from now on, or record why it cannot."""
        try:
            self._take(state, prepared)
        except CoexecError as error:
            self._cannot(shapes, state, error)
            return
        text = state.reason or _told(prepared)  # a plan with another answer is refused
        _log.info("%s: %s", self._name(shapes), text)

    def _cannot(self, shapes: Shapes, state: _State, error: CoexecError) -> None:
        state.reason, state.decided = str(error), True
        self._unwatch(state)
        _log.warning("%s: its plan does not start: %s", self._name(shapes), error)

    def _prepared(
        self, shapes: Shapes, state: _State, began_s: float, error: CoexecError | None
    ) -> None:
        """Use the result of a job in the background; ``error`` if it failed."""
        took_s = time.monotonic() - began_s
        name, root = self._name(shapes), self.cache.root
        if error is not None and state.job is not None and state.job.again:
            _log.warning("%s: its choice stays as it is: %s", name, error)
        elif error is not None:
            state.reason, state.decided = str(error), True
            self._unwatch(state)
            _log.warning("%s: nothing was planned in the background: %s", name, error)
        elif self._found(shapes, state):
            _log.info(
                "%s: decided in %s in the background, kept in %s",
                name,
                format_seconds(took_s),
                root,
            )
        else:
            state.reason, state.decided = f"its plan could not be kept in {root}", True
            self._unwatch(state)
            _log.warning("%s: %s; make the session with background=False", name, state.reason)
        self._end_job(shapes, state)

    def _name(self, shapes: Shapes) -> str:
        source = self.source if isinstance(self.source, str) else "the model"
        at = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes)
        return f"{source} ({at})" if at else source

    def _take(self, state: _State, prepared: "Prepared") -> None:
        """Let a plan answer from now on, if its outputs agree with ONNX Runtime's."""
        from coexec.selection.comparison import ReferenceAnswers, is_exact, known

        alone = prepared.plan.as_given and not prepared.beside
        own_is_best = alone and self._settings.devices is None
        reference = ReferenceAnswers(prepared.work)
        if not own_is_best and not is_exact(prepared) and known(prepared) is None:
            _ = reference.answers  # before the plan takes memory beside ONNX Runtime's session
        new = None if own_is_best else Running(prepared.start(), prepared)
        reason = None
        if new is not None:
            _warm_up(new)
            try:
                reason = self._why_not(state, new, reference)
            except BaseException:
                new.runner.close()
                raise
            if reason is not None:
                new.runner.close()
                new = None
        if reason is not None and state.running is not None:
            _log.warning("the plan in use stays, another one is out: %s", reason)
            return
        with self._lock:
            old, state.running, state.reason = state.running, new, reason
            state.decided = True
            state.decision = prepared.decision or state.decision
        self._unwatch(state)
        if old is not None:
            old.runner.close()
        if self._closed:
            self._drop(state)
        else:
            self.changed()

    def _why_not(self, state: _State, new: Running, reference: "ReferenceAnswers") -> str | None:
        """Why a plan may not answer: its outputs differ from ONNX Runtime's, or cannot be compared
        yet."""
        from coexec.selection.comparison import accept, compared, is_exact, refuse

        prepared = new.prepared
        if not is_exact(prepared):
            result = compared(prepared, new.runner, reference)
            if result.reason is not None and not result.by_requests:
                return result.reason
            count, differs = 0, None
            if state.requests is not None:
                count, differs = state.requests.compare(prepared, new.runner, result)
            if differs is not None:
                return refuse(prepared, result, differs).reason
            if result.by_requests and count < ENOUGH:
                state.pending = prepared
                self._watch(state)
                return f"{result.reason}. It is compared with the next {ENOUGH} requests"
            if result.by_requests:
                accept(prepared, result, count)
        return self.doubt(new)


def _plans(state: _State) -> bool:
    """Whether a first plan is being made, not a choice that is made again."""
    return state.job is not None and not state.job.again


def _warm_up(running: Running) -> None:
    """Run once before the first request, because memory is allocated and bound in that run."""
    from coexec.model.inputs import filled

    feeds = {tensor.name: filled(tensor, 0) for tensor in running.prepared.compiled.inputs}
    with suppress(CoexecError):  # zeros do not suit every model
        running.runner.run(feeds)


def _told(prepared: "Prepared") -> str:
    """Description of a choice, for the log."""
    plan = prepared.plan
    if prepared.beside:
        names = [name for each in (prepared, *prepared.beside) for name in each.work.device_names]
        return f"{', '.join(names)} answer requests beside each other from now on"
    if plan.as_given:
        return f"{', '.join(map(str, plan.places))} alone is the fastest"
    return f"{plan.provenance.planner} on {', '.join(map(str, plan.places))} answers from now on"
