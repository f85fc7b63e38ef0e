"""The race of a shortlist: what runs of it, and in which order it is taken for what reasons."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

from coexec.arrays import Array
from coexec.choosing.contender import Contender
from coexec.choosing.idle import Stopwatch, cpu_clock
from coexec.choosing.race import Lap, Outcome, compete, mostly, ratios, turn
from coexec.choosing.rival import RivalProcess
from coexec.errors import CoexecError, DeviceError, ExecutionError
from coexec.frontend.memory import least_bytes, main_memory_bytes
from coexec.profiling.processors import Load
from coexec.profiling.traffic import Quiet, undisturbed
from coexec.units import format_bytes
from coexec.workbench import Requests

__all__ = ["BUDGET_S", "Tell", "race_of", "ranked"]

BUDGET_S = 6.0
"""For all runs of the shortlist together."""
_ROUNDS = (5, 40)
"""At least and at most."""
_MEMORY = 0.5
"""The share of main memory that all plans of a race together may need for weights and tensors."""
_GAIN = 0.99
"""A plan for several devices has to take less than this share of what one device takes."""
_OTHER_GAIN = 0.95
"""The same for GPUs and for further engines of CPU cores: they start more slowly, and their results
differ in the last digits."""
_STOLEN = 2.0
"""A plan has to gain as many times the share of the processors' time that the host of a virtual
machine took, in addition: its devices wait for each other, and for the one that the host has
stopped, whereas threads without a processor of their own go where there is time. What a race of
seconds has seen of that tells little of the next minute: a plan that it found to take 0.9 of the
single device's time then took 1.3, where the host took 15 %."""
_NOT_SLOWER = 1.01
"""What may count as equally fast by the figure that does not decide."""

Tell = Callable[[str, int, int], None]
"""`Settings.progress`: told what is done, how much of it, and how much there is."""


def race_of(
    shortlist: Sequence[Contender], requests: Requests, quiet: Quiet | None, tell: Tell,
    budget_s: float = BUDGET_S,
) -> Outcome[int]:  # fmt: skip
    """The figures of the shortlist, by index; nothing needs to run if it is one plan."""
    if len(shortlist) == 1:
        return Outcome()
    with ExitStack() as stack:
        started = _started(shortlist, stack, tell)
        watch = Stopwatch(used_s=cpu_clock(started.processes))
        what, start_s = f"race of {len(started.turns)} plans", watch.now_s()
        loads: list[Load] = []

        def told(run: Callable[[], Lap]) -> Lap:
            share = (watch.now_s() - start_s) / max(budget_s, 1e-9)
            tell(what, round(100 * min(1.0, share)), 100)
            lap, load = undisturbed(partial(watch.with_load, run), quiet)
            loads.append(load)
            return lap

        turns = {which: partial(told, run) for which, run in started.turns.items()}
        outcome = compete(turns, _ROUNDS, drop_by=requests, budget_s=budget_s, watch=watch)
        tell(what, 100, 100)
    for entry in shortlist:
        entry.work.release()
    others = reduce(Load.plus, loads, Load()).share
    return replace(outcome, failed={**started.failed, **outcome.failed}, others=others)


@dataclass
class _Started:
    """The plans of a shortlist that run, by index."""

    turns: dict[int, Callable[[], Lap]] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    """Those of plans that run in a process of their own."""
    failed: dict[int, CoexecError] = field(default_factory=dict)


def _started(shortlist: Sequence[Contender], stack: ExitStack, tell: Tell) -> _Started:
    """The plans that run with the first made-up inputs that suit the model."""
    model = shortlist[0].work.model
    needed_bytes, memory_bytes = least_bytes(model.graph), main_memory_bytes()
    for feeds in model.candidates():
        started = _Started()
        with ExitStack() as attempt:
            for which, entry in enumerate(shortlist):
                all_bytes = (len(started.turns) + 1) * needed_bytes
                if memory_bytes and started.turns and all_bytes > _MEMORY * memory_bytes:
                    started.failed[which] = ExecutionError(
                        f"not measured: {len(started.turns) + 1} plans in memory need "
                        f"{format_bytes(all_bytes)}, and planning may use {_MEMORY:.0%} of "
                        f"{format_bytes(memory_bytes)}"
                    )
                    continue
                tell("plans compiled for the race", which, len(shortlist))
                try:
                    _start(entry, which, feeds, started, attempt)
                except CoexecError as error:
                    started.failed[which] = error
                tell("plans compiled for the race", which + 1, len(shortlist))
            if started.turns:
                stack.push(attempt.pop_all())
                return started
    return _Started()


def _start(
    entry: Contender, which: int, feeds: Mapping[str, Array], started: _Started, stack: ExitStack
) -> None:
    """Start a plan here; or, if an engine cannot be open beside those that are, elsewhere."""
    work, plan = entry.work, entry.plan
    try:
        executor = stack.enter_context(work.start(work.prepared(plan)))
        for _ in range(2):
            executor.run(feeds)
        started.turns[which] = partial(turn, partial(executor.run, feeds))
    except DeviceError:
        rival = stack.enter_context(RivalProcess(work, plan, feeds))
        started.turns[which] = rival.turn
        started.processes.append(rival.pid)


def ranked(
    shortlist: Sequence[Contender], outcome: Outcome[int], requests: Requests, both: bool
) -> list[Contender]:
    """The shortlist with its figures, the best first by the figure ``requests``.

    ``both``: a plan that is slower by the other figure than the best single device is not better.
    """
    times = [outcome.rounds_s(which, requests) for which in range(len(shortlist))]
    other: Requests = "loop" if requests == "paced" else "paced"
    guard = [outcome.rounds_s(which, other) for which in range(len(shortlist))] if both else times
    places = _order(shortlist, times, guard, outcome.stolen)
    return [
        shortlist[which].measured(outcome, which, requests).noted(note) for which, note in places
    ]


class _Standing(NamedTuple):
    """How a plan compares with the best single device."""

    ratio: float
    """Below one only where the plan is clearly faster."""
    note: str


class _Rank(NamedTuple):
    """The index of a plan, and the reason for its place in the order."""

    which: int
    note: str


def _order(
    shortlist: Sequence[Contender], times: Sequence[Sequence[float]],
    guard: Sequence[Sequence[float]], stolen: float,
) -> list[_Rank]:  # fmt: skip
    """Indices of the shortlist, the best first.

    That is the one with the least median ratio to the best single device, with the first engine of
    its cores if that ran, or to any other that ran; and the single device itself unless that ratio
    is clearly below one, and below one in three of four rounds: few rounds of a large network have
    medians that are off by a percent. Nor may it be slower by the times ``guard``. Where the host
    has ``stolen`` a share of the processors' time, the ratio has to be that much clearer.
    Where nothing could be run, nothing is clearly faster than the best single device.
    """
    ran = [which for which, seconds in enumerate(times) if seconds]
    if not ran:
        order = sorted(
            range(len(shortlist)),
            key=lambda w: (not shortlist[w].is_single, not shortlist[w].is_plain),
        )
        return [_Rank(which, "nothing was measured") for which in order]
    singles = sorted((w for w in ran if shortlist[w].is_single),
                     key=lambda which: not shortlist[which].is_plain)  # fmt: skip
    unit = singles[0] if singles else ran[0]
    standing = {
        which: _standing(shortlist[which], shortlist[unit], ratios(times[which], times[unit]),
                         statistics.median(ratios(guard[which], guard[unit])), stolen,
                         has_single=bool(singles))
        for which in ran
    }  # fmt: skip
    if singles:
        standing[unit] = _Standing(_GAIN, "nothing is clearly faster")
    lost = _Standing(float("inf"), "not measured")
    order = sorted(range(len(shortlist)), key=lambda which: standing.get(which, lost).ratio)
    notes = {which: standing.get(which, lost).note for which in order}
    if order[0] != unit and singles:
        notes[unit] = "the single device that all are compared with"
    return [_Rank(which, notes[which]) for which in order]


def _standing(
    entry: Contender, unit: Contender, by_round: Sequence[float], guard: float, stolen: float,
    has_single: bool,
) -> _Standing:  # fmt: skip
    """How ``entry`` compares with the best single device ``unit``, round by round."""
    ratio = statistics.median(by_round)
    base = f"{ratio:.2f} of the time of {', '.join(unit.candidate.devices)}"
    if not has_single:
        return _Standing(ratio, base)
    enough = (_GAIN if entry.is_plain else _OTHER_GAIN) - _STOLEN * stolen
    if guard > _NOT_SLOWER:
        note = f"{base}, but {guard:.2f} of it by the other figure"
    elif ratio >= enough:
        note = f"{base}; it would have to be below {enough:.2f}"
    elif not mostly(share < 1 for share in by_round):
        note = f"{base}, but faster in less than three of four rounds"
    else:
        return _Standing(ratio, base)
    return _Standing(max(1.0, ratio), note)
