"""Ways to run one model, compared by running them in turns.

A request that follows a pause and a request in a loop are two figures, and they rank engines
differently: threads that have slept have to be woken, and an engine whose threads spin for work
after a run is ready sooner. So each turn measures both: *paced*, requests as a camera sends them,
and *loop*, one request after the other. A request after a longer rest is a third, where asked for.

All rivals run in the same rounds, and the order rotates with the rounds. A turn begins when the
processors are idle: the threads of some engines go on spinning for 10 to 50 ms after a run, and
would take that time from the next rival. The first requests of a turn are discarded, because the
rivals before have left caches of their own. Figures are compared as ratios by round: what disturbs
the machine for a second then disturbs all alike.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from coexec.choosing.idle import REAL, Rest, Stopwatch
from coexec.errors import CoexecError
from coexec.profiling.processors import ProcessorTime
from coexec.workbench.prepared import Requests

__all__ = [
    "PACING", "REQUESTS", "Lap", "Outcome", "Pacing", "Requests", "compete", "mostly", "race",
    "ratio", "ratios", "turn",
]  # fmt: skip

Key = TypeVar("Key", bound=Hashable)
Run = Callable[[], Any]
REQUESTS: Mapping[Requests, str] = {"paced": "at up to 30 requests a second", "loop": "in a loop"}
"""The two figures that every race measures, in words."""

_PERIOD_S = 1 / 30
_CLEARLY = 1.02
"""A rival that takes this factor longer than the first in three of four rounds leaves the race."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """What a rival runs in one turn."""

    discard: int = 1
    """Requests before any that count."""
    paced: int = 1
    loop: int = 2
    rest_s: float = 0.0
    """Before a request that counts as "rested"; 0 for none."""
    period_s: float = _PERIOD_S
    """Between the starts of paced requests. A request that takes longer delays the next one."""


PACING = Pacing()


class Lap(NamedTuple):
    """Seconds of the requests of one turn, by how they came."""

    paced: tuple[float, ...] = ()
    loop: tuple[float, ...] = ()
    rested: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outcome(Generic[Key]):
    """What a race measured."""

    laps: Mapping[Key, Sequence[Lap]] = field(default_factory=dict)
    """By round. A rival that left early has fewer, one that failed has none."""
    failed: Mapping[Key, CoexecError] = field(default_factory=dict)
    disturbed: int = 0
    """Turns that began after the limit of a rest, while something was still computing."""
    stolen: float = 0.0
    """The share of this machine's processors' time that its host gave to others meanwhile."""
    repeated: int = 0
    """Rounds that were run again because of that, and do not count."""
    others: float = 0.0
    """The share of all processors' time that other programs used in the turns."""

    def rounds_s(self, key: Key, requests: Requests) -> list[float]:
        """The median of each round."""
        laps: list[tuple[float, ...]] = [getattr(lap, requests) for lap in self.laps.get(key, ())]
        return [statistics.median(seconds) for seconds in laps if seconds]

    def samples_s(self, key: Key, requests: Requests) -> list[float]:
        """All requests that counted."""
        laps = self.laps.get(key, ())
        return [seconds for lap in laps for seconds in getattr(lap, requests)]

    def median_s(self, key: Key, requests: Requests) -> float | None:
        """Of the rounds; None if there were none."""
        rounds_s = self.rounds_s(key, requests)
        return statistics.median(rounds_s) if rounds_s else None

    def ratio(self, a: Key, b: Key, requests: Requests) -> float:
        """Median over the rounds of the time of ``a`` over that of ``b``."""
        return ratio(self.rounds_s(a, requests), self.rounds_s(b, requests))

    def complete(self) -> "Outcome[Key]":
        """This outcome.

        Raises:
            CoexecError: the first failure of a rival.
        """
        for error in self.failed.values():
            raise error
        return self


def race(
    rivals: Mapping[Key, Run],
    rounds: tuple[int, int],
    *,
    drop_by: Requests | None = None,
    budget_s: float = math.inf,
    repeats: int = 0,
    pacing: Pacing = PACING,
    watch: Stopwatch = REAL,
) -> Outcome[Key]:
    """Let rivals that run in this process take turns.

    Args:
        rivals: each runs one inference, and has run before.
        rounds: at least and at most. A race ends between them when the budget is spent.
        drop_by: the figure by which a rival that is clearly slower leaves the race after the least
            number of rounds, and the race ends when one is left; by default none leaves.
        budget_s: seconds for the whole race.
        repeats: rounds that may be run again because the host of a virtual machine took processors'
            time in them; what was measured in them is not looked at.
    """
    turns = {key: partial(turn, run, pacing, watch) for key, run in rivals.items()}
    return compete(turns, rounds, drop_by=drop_by, budget_s=budget_s, repeats=repeats, watch=watch)


def compete(
    turns: Mapping[Key, Callable[[], Lap]],
    rounds: tuple[int, int],
    *,
    drop_by: Requests | None = None,
    budget_s: float = math.inf,
    repeats: int = 0,
    watch: Stopwatch = REAL,
) -> Outcome[Key]:
    """As `race`, for rivals in processes of their own: each calls `turn` there and returns the lap.

    ``watch.used_s`` has to count these processes as well.
    """
    laps: dict[Key, list[Lap]] = {key: [] for key in turns}
    failed: dict[Key, CoexecError] = {}
    runners, disturbed, rest = list(turns), 0, Rest(watch)
    repeated, spent = 0, ProcessorTime()
    end_s = watch.now_s() + budget_s
    for number in range(rounds[1] + repeats):
        counted = number - repeated
        enough = counted >= rounds[0]
        decided = drop_by is not None and len(runners) < 2
        if not runners or counted == rounds[1] or (enough and (decided or watch.now_s() > end_s)):
            break
        before = watch.processor_time()
        for key in _rotated(runners, counted):
            disturbed += not rest.until_idle()
            try:
                laps[key].append(turns[key]())
            except CoexecError as error:
                failed[key], laps[key] = error, []
        runners = [key for key in runners if key not in failed]
        taken = watch.processor_time().since(before)
        if repeated < repeats and taken.doubtful:
            repeated += 1
            for key in runners:
                laps[key].pop()
            continue
        spent = spent.plus(taken)
        if drop_by is not None and enough:
            sofar = Outcome(laps)
            runners = _still_in({key: sofar.rounds_s(key, drop_by) for key in runners})
    return Outcome(laps, failed, disturbed, spent.stolen, repeated)


def turn(run: Run, pacing: Pacing = PACING, watch: Stopwatch = REAL) -> Lap:
    """One turn of a rival on idle processors."""
    due_s = watch.now_s()
    for _ in range(pacing.discard):
        due_s = watch.now_s() + pacing.period_s
        run()
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
    """Seconds of the paced requests, and whether one of them had to wait for its moment.

    A request that begins late because the one before took longer than a period, and then takes less
    itself, does not count: the one before was slow for once, and this one was not paced.
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


def _rotated(runners: Sequence[Key], number: int) -> list[Key]:
    shift = number % len(runners)
    return [*runners[shift:], *runners[:shift]]


def _still_in(rounds_s: Mapping[Key, Sequence[float]]) -> list[Key]:
    """Rivals that are not clearly slower than the one with the best median."""
    if not rounds_s:
        return []
    first = min(rounds_s.values(), key=statistics.median)
    return [
        key for key, own in rounds_s.items()
        if not mostly(share > _CLEARLY for share in ratios(own, first))
    ]  # fmt: skip


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """``a`` over ``b`` round by round, as long as both ran."""
    return [x / y for x, y in zip(a, b, strict=False)]


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median of ``a`` over ``b`` by round: a disturbance that lasts a round drops out."""
    return statistics.median(ratios(a, b))


def mostly(rounds: Iterable[bool]) -> bool:
    """Whether it is so in three of four rounds."""
    return statistics.fmean(rounds) >= 0.75
