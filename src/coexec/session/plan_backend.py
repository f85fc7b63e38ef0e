"""`PlanBackend`: answers requests with the plans of a session."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.arrays import Array, is_finite, is_ordinary
from coexec.engines.names import whole_cpu
from coexec.profiling.activity import TRAFFIC
from coexec.runtime.runner import Cancelled
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.plan_states import Running
from coexec.session.options import may_give_weights
from coexec.session.ort_backend import OrtBackend
from coexec.session.request_check import checked_request
from coexec.session.signature import Signature
from coexec.settings import AUTO, Settings

if TYPE_CHECKING:
    from coexec.selection.replan import Replanner
    from coexec.session.runs import RecordedRuns
    from coexec.timing.trace import Trace


_SHARE = 1e-2
"""Allowed difference relative to the largest value. Other weights cause larger differences, other
kernels smaller ones."""


class PlanBackend:
    """The plans of a session: one for the shapes that model and settings fix, others for shapes
    that come with requests."""

    def __init__(self, source: str | bytes, settings: Settings) -> None:
        self._source = source
        self._settings = settings
        self.selector = PlanSelector(source, settings)
        self.recorded: RecordedRuns | None = None
        """The runs for a profile; None: profiling is off."""
        self._replanner: tuple[Running, Replanner] | None = None

    def subscribe(self, changed: Callable[[], None], ort: "weakref.ref[OrtBackend]") -> None:
        """Set the callbacks of the planning.

        Args:
            changed: called when another plan, or none, answers from now on.
            ort: its options may give other weights than the model has.
        """
        self.selector.changed = changed
        own = ort()
        if own is not None and may_give_weights(own.arguments.options):
            self.selector.doubt = partial(why_other_weights, ort)

    def record(self) -> None:
        """Record the runs from now on."""
        from coexec.session.runs import RecordedRuns

        self.recorded = RecordedRuns()

    def use(self, settings: Settings) -> None:
        """Plan with these settings from now on."""
        self._settings = settings
        self.selector = PlanSelector(self._source, settings)

    def run(
        self,
        running: Running,
        output_names: Sequence[str] | None,
        feeds: Any,
        cancelled: Cancelled | None,
    ) -> list[Array] | None:
        """The outputs of a request, by the plan ``running``.

        None: the request or the answer has unusual numbers, so that ONNX Runtime has to answer:
        engines compute NaN, infinities and very large numbers in ways of their own.

        Raises:
            InputError: the plan does not take the request.
            CoexecError: the run has failed, as in `Runner.run`.
        """
        names, arrays = checked_request(running, output_names, feeds)
        if not all(map(is_ordinary, arrays.values())):
            return None
        TRAFFIC.begin()
        try:
            if self._settings.replan is None and self.recorded is None:
                outputs: Mapping[str, Array] = running.runner.run(arrays, cancelled=cancelled)
            else:
                outputs, _ = self._run_recorded(running, arrays, cancelled)
        finally:
            TRAFFIC.end()
        answer = [outputs[name] for name in names]
        return answer if all(map(is_finite, answer)) else None

    def run_with_trace(
        self, running: Running, output_names: Sequence[str] | None, feeds: Any
    ) -> "tuple[list[Array], Trace] | None":
        """As `run`. Also returns the trace of the run."""
        names, arrays = checked_request(running, output_names, feeds)
        if not all(map(is_ordinary, arrays.values())):
            return None
        outputs, trace = self._run_recorded(running, arrays)
        answer = [outputs[name] for name in names]
        return (answer, trace) if all(map(is_finite, answer)) else None

    def _run_recorded(
        self, running: Running, feeds: Mapping[str, Array], cancelled: Cancelled | None = None
    ) -> "tuple[Mapping[str, Array], Trace]":
        """The outputs and the trace of a run. The trace is passed to the replanner and to the
        profile."""
        from coexec.runtime.recorder import RealRecorder

        plan = running.prepared
        recorder = RealRecorder(plan.compiled, plan.work.names)
        outputs = running.runner.run(feeds, recorder, cancelled)
        trace = recorder.trace()
        if self.recorded is not None:
            self.recorded.add(trace)
        if self._settings.replan is not None:
            better = self._replanner_of(running, self._settings.replan).observe(trace, plan)
            if better is not None:
                self.selector.replace(running, better)
        return outputs, trace

    def _replanner_of(self, running: Running, threshold: float) -> "Replanner":
        """The replanner that observes the plan in use. Devices that "auto" has chosen stay; heft
        plans for them."""
        observed = self._replanner
        if observed is None or observed[0].prepared.work is not running.prepared.work:
            planner, options = self._settings.planner, self._settings.planner_options
            if planner == AUTO:
                planner, options = "heft", {}
            from coexec.selection.replan import Replanner

            replanner = Replanner(running.prepared, planner, options, threshold)
            self._replanner = observed = running, replanner
        return observed[1]

    def stored_signature(self) -> Signature | None:
        """ONNX Runtime's report about the model, which an earlier session has stored; None if there
        is none."""
        running = self.selector.running(())
        return None if running is None else Signature.find(self.selector.cache, _digest(running))

    def store_signature(self, signature: Signature) -> None:
        """Store ONNX Runtime's report about the model for later sessions."""
        if (running := self.selector.running(())) is not None:
            signature.keep(self.selector.cache, _digest(running))


def _digest(running: Running) -> str:
    return running.prepared.work.user_model.digest


def why_different(
    running: Running, own: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> str | None:
    """The reason why a plan may not take over.

    None if plan and session have equal answers to made-up inputs, or if one of them fails.

    Args:
        own: returns the outputs of ONNX Runtime's own session for feeds, in the model's order.
    """
    from coexec.model.inputs import to_try

    compiled = running.prepared.compiled
    for feeds in to_try(compiled.inputs):
        with suppress(Exception):  # some of them do not suit the model
            expected, again, answers = own(feeds), own(feeds), running.runner.run(feeds)
            break
    else:
        return None
    if not all(map(_alike, again, expected)):
        return (
            "the model draws random numbers, so that no plan can be compared with ONNX "
            "Runtime's session and its options"
        )
    if all(map(_alike, (answers[t.name] for t in compiled.outputs), expected)):
        return None
    return (
        "ONNX Runtime's session answers otherwise than the model says, as if its options gave "
        "other weights; take coexec.SessionOptions, which remember what was set"
    )


def _alike(actual: Any, expected: Any) -> bool:
    """Whether an output is close to the expected one. Only floating-point outputs are compared:
    others are equal for most weights."""
    from coexec.model.difference import unlike

    fractions = isinstance(expected, np.ndarray) and expected.dtype.kind == "f"
    return not fractions or unlike(actual, expected, _SHARE) is None


def why_other_weights(ort: "weakref.ref[OrtBackend]", running: Running) -> str | None:
    """`why_different` for a session that may be collected already; None if it is."""
    alive = ort()
    return None if alive is None else why_different(running, partial(alive.open().run, None))


def whole_run(seconds: float) -> "Trace":
    """The trace of a run of ONNX Runtime's own session."""
    from coexec.timing.trace import Span, Trace

    whole = Span("the whole model", whole_cpu(), 0.0, seconds, engine="onnxruntime")
    return Trace((whole.device,), (whole,))
