"""A race: compare several rivals, each of which runs the same model, by running them in turns.

The latency after a pause and the latency in a loop are two figures, and they rank engines
differently: threads that have slept have to be woken, and an engine whose threads spin for work
after a run is ready sooner. So each turn measures both: *paced*, requests as a camera sends them,
and *loop*, one request after the other. A request after a longer rest is an optional third figure.

All rivals run in the same rounds, and the order rotates with the rounds. A turn begins when the
processors are idle: the threads of some engines go on spinning for 10 to 50 ms after a run, and
would take that time from the next rival. The first requests of a turn are discarded, because the
rivals before have filled the caches with their own data. Figures are compared as ratios by round: a
disturbance of a second then affects all rivals equally.

In mode "throughput", a turn measures requests per second instead: more threads than the machine has
cores send requests in a loop. Devices that each run whole requests are often better then than a
plan for all of them, because no device waits for another.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from coexec.arrays import Array
from coexec.engines import detect
from coexec.errors import CoexecError
from coexec.profiling.processors import ProcessorTime
from coexec.rules import Rules
from coexec.runtime.runner import Runner
from coexec.selection.decision import FIGURES, Requests
from coexec.selection.quiet_moment import REAL, Rest, Stopwatch
from coexec.settings import Mode

_K = TypeVar("_K", bound=Hashable)
Run = Callable[[], Any]
Compete = Callable[..., "Outcome[int]"]
"""Type of `compete`, with indices as keys. Tests pass a function that returns made-up figures."""
_BOTH: Sequence[Requests] = ("paced", "loop")
REQUESTS: Mapping[Requests, str] = {figure: FIGURES[figure] for figure in _BOTH}
"""The two figures that `turn` measures, in words."""

_PERIOD_S = 1 / 30
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Pacing:
    """The requests that a rival runs in one turn."""

    discard: int = 1
    """Number of first requests that do not count."""
    paced: int = 1
    loop: int = 2
    rest_s: float = 0.0
    """Seconds of rest before a request that counts as "rested"; 0: no such request."""
    period_s: float = _PERIOD_S
    """Seconds between the starts of paced requests. A longer request delays the next one."""
    long_s: float = math.inf
    """A first request that takes this long counts, and is the only one of its turn: filling the
    caches is a small part of it."""


PACING = Pacing(long_s=0.5)


class Lap(NamedTuple):
    """Seconds of the requests of one turn, by their pacing."""

    paced: tuple[float, ...] = ()
    loop: tuple[float, ...] = ()
    rested: tuple[float, ...] = ()
    parallel: tuple[float, ...] = ()
    """Seconds of the turn over the number of its requests, which came from many threads."""


@dataclass(frozen=True)
class Outcome(Generic[_K]):
    """Result of a race."""

    laps: Mapping[_K, Sequence[Lap]] = field(default_factory=dict)
    """Laps of each rival, by round. A rival that left early has fewer, one that failed has none."""
    failed: Mapping[_K, CoexecError] = field(default_factory=dict)
    disturbed: int = 0
    """Turns that began while the processors were still busy, because the limit of a rest was
    reached."""
    stolen: float = 0.0
    """Share of this machine's processor time that its host took during the race."""
    repeated: int = 0
    """Rounds that do not count and were run again, because the host took processor time."""
    others: float = 0.0
    """Share of all processor time that other programs used meanwhile; whoever runs the race
    measures it."""

    def rounds_s(self, key: _K, requests: Requests) -> list[float]:
        """Median seconds in each round."""
        laps: list[tuple[float, ...]] = [getattr(lap, requests) for lap in self.laps.get(key, ())]
        return [statistics.median(seconds) for seconds in laps if seconds]

    def samples_s(self, key: _K, requests: Requests) -> list[float]:
        """Seconds of all requests that count."""
        laps = self.laps.get(key, ())
        return [seconds for lap in laps for seconds in getattr(lap, requests)]

    def median_s(self, key: _K, requests: Requests) -> float | None:
        """Median seconds over the rounds; None without rounds."""
        rounds_s = self.rounds_s(key, requests)
        return statistics.median(rounds_s) if rounds_s else None

    def ratio(self, a: _K, b: _K, requests: Requests) -> float:
        """Median over the rounds of the time of ``a`` divided by the time of ``b``."""
        return ratio(self.rounds_s(a, requests), self.rounds_s(b, requests))

    def complete(self) -> "Outcome[_K]":
        """This outcome.

        Raises:
            CoexecError: the first failure of a rival.
        """
        for error in self.failed.values():
            raise error
        return self


def race(
    rivals: Mapping[_K, Run],
    rounds: tuple[int, int],
    *,
    budget_s: float = math.inf,
    repeats: int = 0,
    pacing: Pacing = PACING,
    watch: Stopwatch = REAL,
) -> Outcome[_K]:
    """Run a race of rivals in this process.

    Args:
        rivals: functions that run one inference; each has run before.
        rounds: least and largest number. A race ends between them when the budget is spent.
        budget_s: seconds for the whole race, if the least number of rounds takes no longer.
        repeats: largest number of rounds that are run again because the host of a virtual machine
            took processor time in them; their figures are discarded.
    """
    turns = {key: partial(turn, run, pacing, watch) for key, run in rivals.items()}
    return compete(turns, rounds, budget_s=budget_s, repeats=repeats, watch=watch)


def compete(
    turns: Mapping[_K, Callable[[], Lap]],
    rounds: tuple[int, int],
    *,
    budget_s: float = math.inf,
    is_decided: Callable[["Outcome[_K]", float], bool] = lambda outcome, took_s: False,
    repeats: int = 0,
    watch: Stopwatch = REAL,
) -> Outcome[_K]:
    """Run a race of rivals that may run in other processes: each calls `turn` and returns the lap.

    The arguments are those of `race`. ``watch.used_s`` has to count the other processes as well.

    Args:
        is_decided: called after each round with the rounds so far and the seconds since the start;
            if it returns True, the race ends.
    """
    laps: dict[_K, list[Lap]] = {key: [] for key in turns}
    failed: dict[_K, CoexecError] = {}
    runners, disturbed, pause = list(turns), 0, Rest(watch)
    repeated, spent = 0, ProcessorTime()
    start_s = watch.now_s()
    for number in range(rounds[1] + repeats):
        counted = number - repeated
        took_s = watch.now_s() - start_s
        if not runners or counted == rounds[1] or (counted >= rounds[0] and took_s > budget_s):
            break
        if counted and is_decided(Outcome(laps), took_s):
            break
        before = watch.processor_time()
        for key in _rotated(runners, counted):
            disturbed += not pause.until_idle()
            try:
                laps[key].append(turns[key]())
            except CoexecError as error:
                failed[key], laps[key] = error, []
        runners = [key for key in runners if key not in failed]
        processor_time = watch.processor_time().since(before)
        if repeated < repeats and processor_time.doubtful:
            repeated += 1
            for key in runners:
                laps[key].pop()
            continue
        spent = spent.plus(processor_time)
    return Outcome(laps, failed, disturbed, spent.stolen, repeated)


def turn(run: Run, pacing: Pacing = PACING, watch: Stopwatch = REAL) -> Lap:
    """Run one turn of a rival; the processors are idle when it begins."""
    due_s = watch.now_s()
    for _ in range(pacing.discard):
        due_s = watch.now_s() + pacing.period_s
        took_s = watch.timed(run)
        if took_s >= pacing.long_s:
            return Lap((took_s,), (took_s,))
    rested: tuple[float, ...] = ()
    if pacing.rest_s:
        Rest(watch).until_idle(pacing.rest_s)
        due_s = watch.now_s() + pacing.period_s
        rested = (watch.timed(run),)
    paced, waited = _paced(run, pacing, watch, due_s)
    if paced and not waited:  # the requests came back to back: they are a loop
        return Lap(paced, paced, rested)
    return Lap(paced, tuple(watch.timed(run) for _ in range(pacing.loop)), rested)


def _paced(
    run: Run, pacing: Pacing, watch: Stopwatch, due_s: float
) -> tuple[tuple[float, ...], bool]:
    """Seconds of the paced requests, and whether there was a pause before at least one of them.

    If a request takes longer than a period, the next one begins late, without a pause. When that
    next request then takes less than a period, it does not count: the slow request before it was an
    exception, and this one was not paced.
    """
    seconds: list[float] = []
    waited = False
    while len(seconds) < pacing.paced:
        wait_s = due_s - watch.now_s()
        if wait_s > 0:
            watch.sleep(wait_s)
        due_s = watch.now_s() + pacing.period_s
        took_s = watch.timed(run)
        if wait_s > 0 or took_s >= pacing.period_s:
            seconds.append(took_s)
            waited |= wait_s > 0
    return tuple(seconds), waited


def warm_turn(
    runner: Runner, feeds: Mapping[str, Array], mode: Mode, rules: Rules
) -> Callable[[], Lap]:
    """Run a plan until it is warm, and return a function that runs a turn of it.

    Raises:
        CoexecError: a request failed.
    """
    if mode == "throughput":
        requests_per_s(runner, feeds, 0.0)
        return partial(_parallel_turn, runner, feeds, rules.parallel_turn_s)
    for _ in range(_WARM_UP):
        runner.run(feeds)
    return partial(turn, partial(runner.run, feeds))


def _parallel_turn(runner: Runner, feeds: Mapping[str, Array], seconds: float) -> Lap:
    return Lap(parallel=(1 / requests_per_s(runner, feeds, seconds),))


def requests_per_s(runner: Runner, feeds: Mapping[str, Array], seconds: float) -> float:
    """Requests per second that a runner answers if requests always wait for it.

    Args:
        seconds: how long threads, two more than the machine has cores, send requests. Each thread
            sends at least one.

    Raises:
        CoexecError: a request failed.
    """
    done: list[float] = []
    failed: list[CoexecError] = []
    start_s = time.perf_counter()

    def send() -> None:
        try:
            while not failed:
                runner.run(feeds)
                done.append(time.perf_counter() - start_s)
                if done[-1] >= seconds:
                    return
        except CoexecError as error:
            failed.append(error)

    clients = range(len(detect.usable_cores()) + 2)
    threads = [threading.Thread(target=send, daemon=True) for _ in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return len(done) / max(done)


def _rotated(runners: Sequence[_K], number: int) -> list[_K]:
    shift = number % len(runners)
    return [*runners[shift:], *runners[:shift]]


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """``a`` over ``b``, round by round, for the rounds in which both ran."""
    return [x / y for x, y in zip(a, b, strict=False)]


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median of ``a`` over ``b`` by round: a disturbance that lasts a round drops out."""
    return statistics.median(ratios(a, b))
