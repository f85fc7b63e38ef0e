"""Find the fastest plan for a model within a time limit, and give a verdict.

Planner "auto" (`selection.chooser`) chooses the plan. It then runs in turns with ONNX Runtime's own
session with default options, which a program would use otherwise. The verdict depends on these
figures alone.

Everything runs in a process of its own, which is ended when the time is over: compiling kernels and
creating a session cannot be interrupted in another way.

    python -m coexec.selection.optimize       # reads from its standard input what to optimize
"""

import contextlib
import math
import os
import queue
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from coexec.engines.detect import is_whole_machine, usable_cores
from coexec.engines.names import whole_cpu, without_engine
from coexec.errors import CoexecError, UsageError
from coexec.processes import Child, EndedError, Parent
from coexec.profiling.processors import Load, load_from_now
from coexec.progress import ReportProgress
from coexec.rules import RULES, Rules
from coexec.selection.chooser import Chooser
from coexec.selection.decision import Candidate, Decision, Requests
from coexec.selection.plan_files import text_of
from coexec.selection.planning_context import opened_cache
from coexec.selection.prepared import Prepared
from coexec.selection.quiet_moment import REAL
from coexec.selection.race import REQUESTS, Lap, Outcome, race, ratios
from coexec.settings import AUTO, Settings
from coexec.units import format_seconds

__all__ = ["Verdict", "optimize"]

_FIRST = 0.3
"""Share of the time for a first choice, among single devices: they need no profile."""
_CHOOSING = 0.7
"""Share of the remaining time for a second choice, among all plans; then comes the race."""
_GRACE = 1.05
"""The process is ended after this factor times the limit, and its last verdict counts."""
_LEAST_S = 0.1
_LEAST_RACE_S = 0.5
_STARTS = 3
"""Number of starts of both rivals for the last race. On some machines a session that is made again
takes a tenth more or less, as long as it lives."""
_OURS, _ORT = "plan", "ONNX Runtime"


@dataclass(frozen=True)
class Verdict:
    """Result of optimizing a model.

    A quick choice is made first, so that there is a verdict when the time is over.
    """

    ort_s: float | None = None
    """Median seconds of a request with ONNX Runtime's own session; None if nothing was measured."""
    plan_s: float | None = None
    """The same with the plan."""
    ratio: float | None = None
    """``ort_s`` over ``plan_s``."""
    requests: Requests = "paced"
    """The pacing of requests to which the figures belong."""
    is_faster: bool = False
    """Whether the plan is clearly faster by one figure and not slower by the other."""
    plan_file: str | None = None
    """The text of a plan file; None if no plan was found in the time."""
    decision: Decision | None = None
    """How the plan was chosen among the candidates."""
    reason: str = ""
    """Why the plan is clearly faster, or not."""
    others: float = 0.0
    """Share of the processor time that other programs used in the last race, or until the time was
    over."""
    doubt: str | None = None
    """Why the choice will be made again; None if it will not."""
    is_earlier: bool = False
    """Whether the choice is of an earlier call; only the last race was run now."""
    unfinished: str | None = None
    """The step that was running when the time was over; None if none was. The figures are those of
    an earlier step, or there are none."""
    has_last_race: bool = True
    """Whether the figures are of the last race. Those of the race of all candidates stand until it
    has ended: a model that starts slowly may have no time for it."""

    @property
    def is_busy(self) -> bool:
        return self.others > RULES.busy

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
        rows = self.candidates
        ort_s = min((c.measured_s for c in rows if c.is_ort_session and c.measured_s), default=None)
        for row in rows:
            if ort_s and row.measured_s and row.status == "refused" and row.comparison:
                share = row.measured_s / ort_s
                if share < RULES.clear_gain:
                    return f"{row} takes {share:.2f} of its time, but {row.comparison}"
        return None

    def __str__(self) -> str:
        if self.decision is None or self.plan_s is None or self.ort_s is None:
            return (
                f"keep ONNX Runtime, or give more time: the time was over during this step: "
                f"{self.unfinished}"
            )
        text = f"{'use the plan' if self.is_faster else 'keep ONNX Runtime'}"
        text += " (in doubt)" if self._is_doubtful else ""
        text += f": {self._why}"
        text += f", for {self.decision.shapes}" if self.decision.shapes else ""
        if self.untried:
            text += f"; more time would try {' and '.join(self.untried)}"
        if self.unfinished is not None:
            what = "a second choice, among all devices," if self.has_last_race else "a last race"
            text += f"; {what} was not finished in the time ({self.unfinished})"
        return text

    @property
    def _is_doubtful(self) -> bool:
        return self.is_busy or self.doubt is not None or not self.has_last_race

    @property
    def _why(self) -> str:
        assert self.decision is not None and self.plan_s is not None and self.ort_s is not None
        plan = self.decision.taken
        if plan.is_ort_session and not self.is_faster:
            others = self.candidates[1:]
            if others and all(c.status == "untried" for c in others):
                return "there was no time to try anything else"
            why = "no candidate that may answer is clearly faster than its own session"
            return f"{why} ({self.refused})" if self.refused else why
        where = (
            "in a last race against ONNX Runtime's session with default options"
            if self.has_last_race
            else "in the race of all candidates"
        )
        return (
            f"{where}, {plan} took "
            f"{format_seconds(self.plan_s)} and that session {format_seconds(self.ort_s)} "
            f"{REQUESTS[self.requests]}: {self.reason}"
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
    child = Child("coexec.selection.optimize", "optimizes the model", errors=None)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(child, messages), daemon=True)
    reader.start()
    try:
        with contextlib.suppress(EndedError):  # the next message is this error
            child.send((source, child_settings, seconds))
        return _followed(messages, end_s, report)
    finally:
        child.kill()
        reader.join()  # the thread ends at the end of the pipe
        child.close()


def _followed(
    messages: "queue.SimpleQueue[Any]", end_s: float, report: ReportProgress | None
) -> Verdict:
    """The last verdict of the process, or a verdict with the step that was unfinished.

    Warnings of the process are issued again in this process.
    """
    verdict: Verdict | None = None
    step, others = "loading of the model", 0.0
    while True:
        try:
            message = messages.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            return replace(verdict or Verdict(others=others), unfinished=step)
        if isinstance(message, EndedError) and verdict is not None:
            return verdict
        if isinstance(message, CoexecError):
            raise message
        if isinstance(message, Verdict):
            verdict = message
            continue
        if isinstance(message, Warning):
            warnings.warn(message, stacklevel=3)
            continue
        what, done, total, others = message
        step = f"{what}, {done} of {total}" if total > 1 else what
        if report is not None:
            report(what, done, total)


def _read(child: Child, messages: "queue.SimpleQueue[Any]") -> None:
    """Put the messages of the process into a queue. The last one is an error: the process has
    ended, or another error."""
    try:
        while True:
            messages.put(child.receive())
    except CoexecError as error:
        messages.put(error)


def _verdicts(
    source: Any, settings: Settings, seconds: float, report: ReportProgress
) -> Iterator[Verdict]:
    """Choose and race in this process: first among single devices, then among all plans. An earlier
    choice among all plans is raced first; then it is reconsidered, if it is in doubt."""
    end_s = time.monotonic() + seconds
    chooser = _chooser(source, settings, _FIRST * seconds, report, alone=True)
    known, in_doubt = chooser.known, chooser.doubt is not None
    is_earlier = known is not None and known.decision is not None and not known.decision.alone
    chosen = known if is_earlier else None
    if chosen is None:
        chosen = chooser.reconsider() if in_doubt else chooser.choose()
        in_doubt = False
    race_s = (end_s - time.monotonic()) * (1 - _CHOOSING)
    if (first := _until_raced(chosen, chooser)) is not None:
        yield replace(first, is_earlier=is_earlier)
    yield replace(_verdict(chosen, chooser, race_s, report), is_earlier=is_earlier)
    more_s = _CHOOSING * (end_s - time.monotonic())
    is_open = in_doubt or any(c.status == "untried" for c in chosen.candidates)
    if more_s < _LEAST_RACE_S or not is_open:
        return
    chooser = _chooser(source, replace(settings, fresh=False), more_s, report)
    if chooser.known is None:
        chosen = chooser.choose()
    elif in_doubt:
        chosen = chooser.reconsider()
    else:
        return
    yield _verdict(chosen, chooser, end_s - time.monotonic(), report)


def _chooser(
    source: Any, settings: Settings, seconds: float, report: ReportProgress, alone: bool = False
) -> Chooser:
    options = {**settings.planner_options, "seconds": seconds}
    chooser_settings = replace(settings, mode="latency", planner_options=options, progress=report)
    return Chooser(source, chooser_settings, alone=alone)


def _verdict(chosen: Prepared, chooser: Chooser, left_s: float, report: ReportProgress) -> Verdict:
    report("race with ONNX Runtime", 0, 1)
    outcome, other_share = _raced(chosen, max(_LEAST_RACE_S, 0.8 * left_s))
    report("race with ONNX Runtime", 1, 1)
    return _judged(chosen, outcome, other_share, chooser, chosen.work.settings.rules)


def _until_raced(chosen: Prepared, chooser: Chooser) -> Verdict | None:
    """The verdict by the race of all candidates; None if that race was not with ONNX Runtime's
    session with default options, or had too few rounds for a plan that is faster."""
    decision = chosen.decision
    assert decision is not None  # planner "auto" has chosen
    rules, plan = chosen.work.settings.rules, decision.taken
    ort = next((c for c in decision.candidates if _is_default_session(c)), None)
    if ort is None or ort.measured_s is None or plan.measured_s is None:
        return None
    if decision.reference != str(ort):
        return None
    share = plan.measured_s / ort.measured_s
    is_faster = plan is not ort and share < rules.clear_gain
    if is_faster and plan.rounds_won < rules.enough_rounds(max(1, plan.rounds)):
        return None
    against = None if is_faster else f"{share:.2f} of its time"
    found = _found(chosen, chooser, ort.measured_s, plan.measured_s, against)
    return replace(found, others=decision.others, has_last_race=False)


def _raced(chosen: Prepared, budget_s: float) -> tuple[Outcome[str], float]:
    """Race of the plan with ONNX Runtime's session, and the load share of other programs.

    Both are started several times if there is time for it.

    Raises:
        InputError: no made-up inputs suit the model.
    """
    rounds, end_s = chosen.work.settings.rules.rounds, time.monotonic() + budget_s
    laps: dict[str, list[Lap]] = {_OURS: [], _ORT: []}
    whole = Load()
    for starts in range(_STARTS, 0, -1):
        begin_s = time.monotonic()
        with _rivals(chosen) as rivals:
            start_s, left_s = time.monotonic() - begin_s, end_s - time.monotonic()
            is_last = starts == 1 or left_s < start_s + 2 * _LEAST_RACE_S
            share_s = left_s if is_last else (left_s - (starts - 1) * start_s) / starts
            limits = rounds if is_last and starts == _STARTS else _parts_of(rounds)
            race_both = partial(race, rivals, limits, budget_s=max(_LEAST_RACE_S, share_s))
            outcome, load = REAL.with_load(race_both)
        for rival, own in outcome.complete().laps.items():
            laps[rival] += own
        whole = whole.plus(load)
        if is_last:
            break
    return Outcome(laps), whole.share


def _parts_of(rounds: tuple[int, int]) -> tuple[int, int]:
    """Numbers of rounds for one of several starts."""
    least, most = rounds
    return -(-least // _STARTS), -(-most // _STARTS)


@contextlib.contextmanager
def _rivals(chosen: Prepared) -> Iterator[Mapping[str, Callable[[], Any]]]:
    """The plan and ONNX Runtime's session, newly started and warm.

    Raises:
        InputError: no made-up inputs suit the model.
    """
    work = chosen.work
    session = work.given.onnx_runtime(threads=0)

    def both(feeds: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        rivals: dict[str, Callable[[], Any]] = {
            _OURS: partial(runner.run, feeds),
            _ORT: partial(session.run, None, dict(feeds)),
        }
        for run in (*rivals.values(),) * 2:  # once to warm up, once to run warm
            run()
        return rivals

    try:
        with work.start(chosen) as runner:
            yield work.model.accepted(both)[1]
    finally:
        work.release()  # some engines compute on one set of cores at a time


def _judged(
    chosen: Prepared, outcome: Outcome[str], others_share: float, chooser: Chooser, rules: Rules
) -> Verdict:
    decision = chosen.decision
    assert decision is not None  # planner "auto" has chosen
    requests = decision.taken.requests
    shares = {
        figure: ratios(outcome.rounds_s(_OURS, figure), outcome.rounds_s(_ORT, figure))
        for figure in REQUESTS
    }
    ort_s, plan_s = (outcome.median_s(who, requests) for who in (_ORT, _OURS))
    assert ort_s is not None and plan_s is not None  # both ran, or the race would have raised
    if _is_default_session(decision.taken):
        against: str | None = "both are ONNX Runtime's own session with a thread for each core"
    else:
        against = _why_not_faster(plan_s / ort_s, requests, shares, rules)
    return replace(_found(chosen, chooser, ort_s, plan_s, against), others=others_share)


def _found(
    chosen: Prepared, chooser: Chooser, ort_s: float, plan_s: float, against: str | None
) -> Verdict:
    """The verdict by these figures.

    Args:
        against: the rule by which the plan is not clearly faster; None if it is.
    """
    decision = chosen.decision
    assert decision is not None  # planner "auto" has chosen
    return Verdict(
        ort_s=ort_s,
        plan_s=plan_s,
        ratio=ort_s / plan_s,
        requests=decision.taken.requests,
        is_faster=against is None,
        plan_file=text_of(chosen.plan, chosen.graph, chosen.origin.shapes),
        decision=decision,
        reason=against or f"{ort_s / plan_s:.2f} times as fast",
        doubt=chooser.doubt,
    )


def _is_default_session(candidate: Candidate) -> bool:
    """Whether it is the session that ONNX Runtime makes by default; a race is then chance."""
    if not candidate.is_ort_session or not is_whole_machine(usable_cores()):
        return False
    return without_engine(candidate.devices[0]) == whole_cpu()


def _why_not_faster(
    share: float,
    requests: Requests,
    shares: Mapping[Requests, Sequence[float]],
    rules: Rules,
) -> str | None:
    """The rule by which a plan is not clearly faster than ONNX Runtime; None if it is.

    Args:
        share: the plan's median time over ONNX Runtime's.
        shares: the same of each round, by figure. A disturbance that lasts a round drops out of
            their median.
    """
    by_round = shares[requests]
    median, won = statistics.median(by_round), sum(each < 1 for each in by_round)
    needed = rules.enough_rounds(len(by_round))
    slower = {
        figure: middle
        for figure in REQUESTS
        if (middle := statistics.median(shares[figure])) > 1 / rules.clear_gain
    }
    worst = max(share, median)
    text = f"{worst:.2f} of its time"
    if worst >= rules.clear_gain:
        return f"{text}, and only below {rules.clear_gain:g} a plan is clearly faster"
    if won < needed:
        return f"{text}, but faster in {won} of {len(by_round)} rounds; {needed} are needed"
    if slower:
        figure, middle = next(iter(slower.items()))
        return f"{text}, but {middle:.2f} of its time {REQUESTS[figure]}"
    return None


def _serve() -> None:
    """Optimize what the standard input names; send progress and verdicts."""
    parent = Parent()
    source, settings, seconds = parent.receive()
    parent.end_with_it()

    # Compilers that are processes of their own are counted when they have ended.
    load = load_from_now(used_s=lambda: math.fsum(os.times()[:4]))

    def report(what: str, done: int, total: int) -> None:
        parent.send((what, done, total, load().share))

    warnings.showwarning = lambda message, *_: parent.send(
        message if isinstance(message, Warning) else UserWarning(message)
    )
    try:
        for verdict in _verdicts(source, settings, seconds, report):
            parent.send(verdict)
    except CoexecError as error:
        parent.send(error)
    os._exit(0)  # does not wait for threads of engines


if __name__ == "__main__":
    # Classes of the module "__main__" cannot be sent to another program.
    from coexec.selection import optimize as module

    module._serve()
