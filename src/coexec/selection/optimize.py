"""Find the fastest plan for a model within a time limit, and give a verdict.

Planner "auto" (`selection.chooser`) chooses the plan, in as many passes as there is time for. The
verdict is its decision: the plan is used only if it is proven to be faster than ONNX Runtime's own
session on all cores, which a program would use otherwise.

Everything runs in a process of its own, which is ended when the time is over: compiling kernels and
creating a session cannot be interrupted in another way.
"""

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coexec.errors import CoexecError, UsageError
from coexec.model.main_memory import bounded_memory, peak_bytes, too_little_memory
from coexec.processes import Child, EndedError, Parent
from coexec.profiling.processors import load_from_now
from coexec.progress import ReportProgress
from coexec.rules import current_rules
from coexec.selection.chooser import Chooser
from coexec.selection.decision import FIGURES, Candidate, Decision
from coexec.selection.plan_files import text_of
from coexec.selection.prepared import Prepared
from coexec.selection.ranking import is_clearly_faster
from coexec.selection.user_model import opened_cache
from coexec.settings import AUTO, Settings
from coexec.units import format_seconds

_FIRST = 0.3
"""Share of the time for a first pass, among single devices: they need no profile."""
_GRACE = 1.05
"""The process is ended after this factor times the limit, and its last verdict counts."""
_OFFER = 0.15
"""Share of the time in which a lower precision is measured at the end."""
_LEAST_S = 0.1
_LEAST_PASS_S = 1.0
"""A further pass begins only if this time is left."""


@dataclass(frozen=True)
class Verdict:
    """Result of optimizing a model. The figures are those of its decision."""

    decision: Decision | None = None
    """How the plan was chosen among the candidates; None if the time was over before a race."""
    plan_file: str | None = None
    """The text of a plan file; None if ONNX Runtime's own session is kept."""
    others: float = 0.0
    """Share of the processor time that other programs used until the time was over."""
    is_earlier: bool = False
    """Whether the choice is of an earlier call, and nothing was measured now."""
    unfinished: str | None = None
    """The step that was running when the time was over or the process crashed; None if none was."""
    crash: str | None = None
    """How the process has crashed; None if it has not."""
    peak_bytes: int | None = None
    """The largest memory of the process that chose and raced."""

    @property
    def is_faster(self) -> bool:
        """Whether the plan is proven to be faster than ONNX Runtime's own session."""
        if self.decision is None:
            return False
        taken = self.decision.taken
        return not taken.is_ort_session or self.decision.reference not in (None, str(taken))

    @property
    def plan(self) -> Candidate | None:
        """The plan that was taken; if ONNX Runtime is kept, the fastest other one that ran."""
        if self.is_faster and self.decision is not None:
            return self.decision.taken
        reference = None if self.decision is None else self.decision.reference_row
        ran = [c for c in self.candidates if c.is_able and c.rounds and c is not reference]
        return min(ran, key=lambda c: c.ratio or math.inf, default=None)

    @property
    def ratio(self) -> float | None:
        """ONNX Runtime's time over the plan's, in the same rounds; None if no plan ran."""
        return None if self.plan is None or not self.plan.ratio else 1 / self.plan.ratio

    @property
    def doubt(self) -> str | None:
        """What more time may change; None if nothing."""
        return None if self.decision is None else self.decision.doubt

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return () if self.decision is None else self.decision.candidates

    @property
    def untried(self) -> Sequence[str]:
        """Configurations of devices for which there was no time."""
        untried = ("+".join(c.devices) for c in self.candidates if c.status == "untried")
        return list(dict.fromkeys(untried))

    @property
    def refused(self) -> str | None:
        """A candidate that was clearly faster than ONNX Runtime's session, and may not answer."""
        for row in self.candidates:
            is_faster = is_clearly_faster(row.rounds_s, current_rules())
            if is_faster and row.status == "refused" and row.comparison:
                assert row.ratio is not None
                return f"{row} takes {row.ratio:.2f} of its time, but {row.comparison}"
        return None

    def __str__(self) -> str:
        ended = f"{self.crash or 'the time was over'} during this step: {self.unfinished}"
        if self.decision is None:
            return f"keep ONNX Runtime, or give more time: {ended}"
        text = "use the plan" if self.is_faster else "keep ONNX Runtime"
        text += " (in doubt)" if self.doubt is not None and not self.is_faster else ""
        text += f": {self._why(self.decision)}"
        text += f", for {self.decision.shapes}" if self.decision.shapes else ""
        if self.untried:
            text += f"; more time would try {' and '.join(self.untried)}"
        if self.unfinished is not None:
            text += f"; {ended}"
        return text

    def _why(self, decision: Decision) -> str:
        plan = decision.taken
        if not self.is_faster:
            others = self.candidates[1:]
            if others and all(c.status == "untried" for c in others):
                return "there was no time to try anything else"
            why = "no candidate that may answer is proven to be faster than its own session"
            return f"{why} ({self.refused})" if self.refused else why
        if plan.measured_s is None or plan.reference_s is None or self.ratio is None:
            return f"{plan} is taken: {plan.reason}"
        return (
            f"{plan} took {format_seconds(plan.measured_s)} and ONNX Runtime's own session "
            f"{format_seconds(plan.reference_s)} {FIGURES[plan.requests]}: {self.ratio:.2f} times "
            f"as fast, in {plan.rounds_won} of {plan.rounds} rounds"
        )


def optimize(
    source: Any, settings: Settings, seconds: float, report: ReportProgress | None = None
) -> Verdict:
    """Find the fastest plan for a model within ``seconds``, and compare it with ONNX Runtime.

    Args:
        source: a path, "zoo:NAME", or the model's bytes.
        settings: settings of planner "auto".
        seconds: time limit. A step that cannot be interrupted may take a twentieth longer.
        report: receives the progress, as `Settings.progress` does.

    Raises:
        UsageError: the time limit is too short, or the settings name another planner.
        CoexecError: the model cannot be loaded, or nothing runs it.
    """
    if not _LEAST_S <= seconds < float("inf"):
        raise UsageError(f"the time is {seconds:g} s; give it some seconds, such as --time 30")
    if settings.planner != AUTO:
        raise UsageError(f"only planner {AUTO!r} is optimized, not {settings.planner!r}")
    root = opened_cache(settings.cache).root
    child_settings = replace(settings, cache=root, progress=None, quiet=None)
    end_s = time.monotonic() + _GRACE * seconds
    child = Child("coexec.selection.optimize:serve", "optimizes the model", errors=None)
    try:
        with contextlib.suppress(EndedError):  # the next message is this error
            child.send((source, child_settings, seconds))
        return _followed(child, end_s, report)
    except EndedError:
        if settings.memory_limit is None:
            raise
        raise too_little_memory(settings.memory_limit) from None
    finally:
        child.close()


def _followed(child: Child, end_s: float, report: ReportProgress | None) -> Verdict:
    """The last verdict of the process, with the step that was unfinished if the time was over or
    the process has crashed.

    Warnings of the process are issued again in this process.

    Raises:
        CoexecError: the process has found this error, or has crashed before a verdict.
    """
    verdict: Verdict | None = None
    step, others = "loading of the model", 0.0
    while True:
        try:
            message = child.receive(max(0.0, end_s - time.monotonic()))
        except TimeoutError:
            verdict = replace(verdict or Verdict(others=others), unfinished=step)
            return replace(verdict, peak_bytes=peak_bytes(child.pid))
        except EndedError as error:
            if verdict is None:
                raise
            return replace(verdict, unfinished=step, crash=str(error))
        if message is None:
            assert verdict is not None  # the process ends after it
            return verdict
        if isinstance(message, Verdict):
            verdict = message
        elif isinstance(message, Warning):
            warnings.warn(message, stacklevel=3)
        else:
            what, done, total, others = message
            step = f"{what}, {done} of {total}" if total > 1 else what
            if report is not None:
                report(what, done, total)


def _verdicts(
    source: Any,
    settings: Settings,
    seconds: float,
    report: ReportProgress,
    send: Callable[[Verdict], None],
) -> None:
    """Choose in this process, and send a verdict after each race: first among single devices, then
    among all plans. An earlier choice that is open goes on from its figures."""
    start_s, plan_file = time.monotonic(), None

    def so_far(decision: Decision) -> None:
        send(Verdict(decision, plan_file))

    chooser = Chooser(
        source,
        replace(settings, mode="latency", progress=report),
        beside_ort=settings.devices is not None,
        found=so_far,
    )
    known = chooser.known
    is_earlier = known is not None
    if known is not None:
        plan_file = _plan_file(known)
        send(Verdict(known.decision, plan_file, is_earlier=True))
    else:
        plan_file = _plan_file(chooser.go_on(_FIRST * seconds, alone=True))
        send(Verdict(chooser.decision, plan_file))
    end_s = start_s + (1 - _OFFER * chooser.can_offer) * seconds
    while chooser.is_open and (left_s := end_s - time.monotonic()) > _LEAST_PASS_S:
        plan_file, is_earlier = _plan_file(chooser.go_on(left_s)), False
        send(Verdict(chooser.decision, plan_file))
    if chooser.can_offer:
        report("a lower precision measured", 0, 1)
        if (decision := chooser.make_offer()) is not None:
            send(Verdict(decision, plan_file, is_earlier=is_earlier))


def _plan_file(chosen: Prepared) -> str | None:
    """The text of a plan file; None for ONNX Runtime's own session on all cores."""
    if not Verdict(chosen.decision).is_faster:
        return None
    return text_of(chosen.plan, chosen.graph, chosen.origin.shapes)


def serve(parent: Parent) -> None:
    """Optimize what the parent names; send progress and verdicts."""
    source, settings, seconds = parent.receive()

    # Compilers that are processes of their own are counted when they have ended.
    load = load_from_now(used_s=lambda: math.fsum(os.times()[:4]))

    def report(what: str, done: int, total: int) -> None:
        parent.send((what, done, total, load().share))

    def send(verdict: Verdict) -> None:
        parent.send(replace(verdict, peak_bytes=peak_bytes()))

    warnings.showwarning = lambda message, *_: parent.send(
        message if isinstance(message, Warning) else UserWarning(message)
    )
    try:
        with bounded_memory(settings.memory_limit):
            _verdicts(source, settings, seconds, report, send)
        parent.send(None)
    except CoexecError as error:
        parent.send(error)
    os._exit(0)  # does not wait for threads of engines
