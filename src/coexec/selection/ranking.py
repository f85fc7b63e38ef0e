"""The race of a shortlist, and the ranking of its plans with the reason for each place."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import NamedTuple

from coexec.arrays import Array
from coexec.errors import CoexecError, DeviceError, ExecutionError
from coexec.model.main_memory import least_bytes, main_memory_bytes
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load
from coexec.selection.candidate_process import RivalProcess
from coexec.selection.contender import Contender
from coexec.selection.prepared import Requests
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Compete, Lap, Outcome, compete, ratios, turn
from coexec.selection.rules import Rules
from coexec.units import format_bytes

__all__ = ["Tell", "race_of", "ranked"]

Tell = Callable[[str, int, int], None]
"""Type of `Settings.progress`, called with the name of a step, the amount done, and the total."""


def race_of(
    shortlist: Sequence[Contender],
    quiet: Quiet | None,
    tell: Tell,
    rules: Rules,
    budget_s: float,
    compete: Compete = compete,
) -> Outcome[int]:
    """Run the race of the shortlist; rivals are its indices. A single plan needs no race."""
    if len(shortlist) == 1:
        return Outcome()
    requests = deciding_figure(rules)
    with ExitStack() as stack:
        started = _started(shortlist, stack, tell, rules)
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
        outcome = compete(
            turns, rules.rounds, drop_by=requests, budget_s=budget_s, watch=watch, rules=rules
        )
        tell(what, 100, 100)
    for entry in shortlist:
        entry.work.release()
    other_share = reduce(Load.plus, loads, Load()).share
    return replace(outcome, failed={**started.failed, **outcome.failed}, others=other_share)


@dataclass
class _Started:
    """The plans of a shortlist that are started, by index."""

    turns: dict[int, Callable[[], Lap]] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    """Ids of the processes of plans that run in a process of their own."""
    failed: dict[int, CoexecError] = field(default_factory=dict)


def _started(
    shortlist: Sequence[Contender], stack: ExitStack, tell: Tell, rules: Rules
) -> _Started:
    """Start the plans of a shortlist, with the first made-up inputs with which any plan runs."""
    model = shortlist[0].work.model
    needed_bytes, memory_bytes = least_bytes(model.graph), main_memory_bytes()
    for feeds in model.candidates():
        started = _Started()
        with ExitStack() as attempt:
            for which, entry in enumerate(shortlist):
                all_bytes = (len(started.turns) + 1) * needed_bytes
                if memory_bytes and started.turns and all_bytes > rules.memory_share * memory_bytes:
                    started.failed[which] = ExecutionError(
                        f"not measured: {len(started.turns) + 1} plans in memory need "
                        f"{format_bytes(all_bytes)}, and planning may use "
                        f"{rules.memory_share:.0%} of {format_bytes(memory_bytes)}"
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
    """Start a plan in this process; if an engine cannot be open beside the others, in another."""
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


def deciding_figure(rules: Rules) -> Requests:
    """The figure by which plans are ranked."""
    return "loop" if rules.requests == "loop" else "paced"


def ranked(shortlist: Sequence[Contender], outcome: Outcome[int], rules: Rules) -> list[Contender]:
    """The shortlist with its measured figures, the best first by the rules."""
    requests = deciding_figure(rules)
    times = [outcome.rounds_s(which, requests) for which in range(len(shortlist))]
    other: Requests = "loop" if requests == "paced" else "paced"
    guard = [outcome.rounds_s(which, other) for which in range(len(shortlist))]
    if rules.requests != "both":
        guard = times
    places = _order(shortlist, times, guard, outcome.stolen, rules)
    return [
        shortlist[which].measured(outcome, which, requests).noted(note) for which, note in places
    ]


class _Standing(NamedTuple):
    """Comparison of a plan with the best single device."""

    ratio: float
    """Ratio of times; below one only if the plan is clearly faster."""
    note: str


class _Rank(NamedTuple):
    """The index of a plan, and the reason for its place in the order."""

    which: int
    note: str


def _order(
    shortlist: Sequence[Contender],
    times: Sequence[Sequence[float]],
    guard: Sequence[Sequence[float]],
    stolen: float,
    rules: Rules,
) -> list[_Rank]:
    """Indices of the shortlist, the best first.

    Each plan is compared with the reference: the first single device that ran, one that uses CPU
    cores with their first engine if there is one; without a single device, the first plan that ran.
    The plan with the smallest median ratio of times is the best if the ratio is clearly below one,
    and below one in three of four rounds: for a large network there are few rounds, and their
    medians may be off by a percent. The plan also may not be slower by the times ``guard``. If the
    host has ``stolen`` a share of the processor time, the ratio has to be lower by a multiple of
    it. Otherwise the reference is the best. If no plan ran, single devices come first.
    """
    ran = [which for which, seconds in enumerate(times) if seconds]
    if not ran:
        order = sorted(
            range(len(shortlist)),
            key=lambda w: (not shortlist[w].is_single, not shortlist[w].is_plain),
        )
        return [_Rank(which, "nothing was measured") for which in order]
    singles = sorted(
        (w for w in ran if shortlist[w].is_single), key=lambda which: not shortlist[which].is_plain
    )
    unit = singles[0] if singles else ran[0]
    standing = {
        which: _standing(
            shortlist[which],
            shortlist[unit],
            ratios(times[which], times[unit]),
            statistics.median(ratios(guard[which], guard[unit])),
            stolen,
            rules,
            has_single=bool(singles),
        )
        for which in ran
    }
    if singles:
        standing[unit] = _Standing(rules.gain, "nothing is clearly faster")
    lost = _Standing(float("inf"), "not measured")
    order = sorted(range(len(shortlist)), key=lambda which: standing.get(which, lost).ratio)
    notes = {which: standing.get(which, lost).note for which in order}
    if order[0] != unit and singles:
        notes[unit] = "the single device that all are compared with"
    return [_Rank(which, notes[which]) for which in order]


def _standing(
    entry: Contender,
    unit: Contender,
    by_round: Sequence[float],
    guard: float,
    stolen: float,
    rules: Rules,
    has_single: bool,
) -> _Standing:
    """Comparison of ``entry`` with the best single device ``unit``, round by round."""
    ratio = statistics.median(by_round)
    base = f"{ratio:.2f} of the time of {', '.join(unit.candidate.devices)}"
    if not has_single:
        return _Standing(ratio, base)
    enough = rules.gain if entry.is_plain else rules.other_gain
    enough -= rules.stolen_factor * stolen
    if guard > rules.not_slower:
        note = f"{base}, but {guard:.2f} of it by the other figure"
    elif ratio >= enough:
        note = f"{base}; it would have to be below {enough:.2f}"
    elif not rules.mostly(share < 1 for share in by_round):
        note = f"{base}, but faster in less than three of four rounds"
    else:
        return _Standing(ratio, base)
    return _Standing(max(1.0, ratio), note)
