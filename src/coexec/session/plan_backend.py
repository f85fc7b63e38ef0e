"""`PlanBackend`: answers requests with the plans of a session."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coexec.arrays import Array, is_finite, is_ordinary
from coexec.runtime.runner import Cancelled
from coexec.selection.background import TRAFFIC
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.plan_states import Running
from coexec.session.request_check import checked_request
from coexec.session.runs import RecordedRuns
from coexec.session.signature import Signature
from coexec.settings import AUTO, Settings
from coexec.timing.trace import Trace

if TYPE_CHECKING:
    from coexec.selection.replan import Replanner

__all__ = ["PlanBackend"]


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
    ) -> tuple[list[Array], Trace] | None:
        """As `run`. Also returns the trace of the run."""
        names, arrays = checked_request(running, output_names, feeds)
        if not all(map(is_ordinary, arrays.values())):
            return None
        outputs, trace = self._run_recorded(running, arrays)
        answer = [outputs[name] for name in names]
        return (answer, trace) if all(map(is_finite, answer)) else None

    def _run_recorded(
        self, running: Running, feeds: Mapping[str, Array], cancelled: Cancelled | None = None
    ) -> tuple[Mapping[str, Array], Trace]:
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
    return running.prepared.work.given.digest
