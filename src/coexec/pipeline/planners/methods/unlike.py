"""Unlike machines for stages that were planned for equal machines (PICO's Algorithm 3), and moves
of pieces and machines between stages.

Algorithm 3 keeps the pieces of each stage and the number of its machines. That fails if capacities
differ much, which the paper names as an open problem. For this case, `moved` decides again which
pieces and which machines form a stage.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, combinations
from math import inf

from coexec.pipeline.planners.methods.network import StageKey, StageLoad, TimeModel
from coexec.pipeline.planners.methods.problem import Group, PipelineProblem
from coexec.pipeline.planners.methods.rows import bits_of
from coexec.pipeline.planners.methods.table import StageTable

_Cut = tuple[int, int, int, int]
"""A stage: first and last piece, then the positions of its first machine and of the machine behind
its last one in an order of machines."""
_SWEEPS = 4
"""How many times all exchanges of two machines in an order are tried."""


def assigned(
    problem: PipelineProblem, table: StageTable, pieces: Sequence[int], stages: Sequence[StageKey]
) -> list[Group]:
    """The groups of Algorithm 3: machines are taken by falling capacity, and each goes to the stage
    with the largest required work per missing machine.

    The required work of a stage is the work of its equal machines, halos included, minus the work
    that its machines so far do within the same period. (The paper's pseudo-code has a minimum where
    its text has a maximum, and it does not say whether the machines so far are subtracted.)
    """
    work = [table.total_macs[key] for key in stages]
    period_s = max(w / (key[2] / problem.mean_mac_s) for w, key in zip(work, stages, strict=True))
    missing = [key[2] for key in stages]
    chosen: list[list[str]] = [[] for _ in stages]
    required = [float(w) for w in work]
    for machine in problem.machines:
        open_stages = [k for k, count in enumerate(missing) if count]
        if not open_stages:
            break
        best = max(open_stages, key=lambda k: (required[k] / missing[k], -k))
        chosen[best].append(machine)
        missing[best] -= 1
        required[best] -= problem.rate[machine] * period_s
    return [
        Group(_union(pieces[first : last + 1]), tuple(machines))
        for (first, last, _), machines in zip(stages, chosen, strict=True)
    ]


def moved(
    problem: PipelineProblem,
    table: StageTable,
    pieces: Sequence[int],
    start: Sequence[Group],
    model: TimeModel,
) -> list[Group]:
    """Groups whose period is not longer than the period of ``start``.

    The machines of each stage are consecutive in an order of machines; for a given order, a dynamic
    program finds the best stages. The search starts from three orders (falling capacity, rising
    capacity, and the order of ``start``) and exchanges two machines as long as that shortens the
    period. Then single pieces and machines move between stages, with newly balanced rows, as long
    as that shortens the period.
    """
    falling = problem.machines
    named = [machine for group in start for machine in group.machines]
    unused = [machine for machine in falling if machine not in named]
    starts = {tuple(falling), tuple(reversed(falling)), (*named, *unused)}
    candidates, orders = [list(start)], _MachineOrders(problem, table, model)
    for order in sorted(starts):
        candidates.append(_climbed(problem, orders, pieces, order))
    best = min(candidates, key=lambda groups: problem.period_s(groups, model))
    return _polished(problem, pieces, best, model)


class _MachineOrders:
    """The best stages for orders of machines, as if a number of rows could be any real number."""

    def __init__(self, problem: PipelineProblem, table: StageTable, model: TimeModel) -> None:
        self._problem, self._table, self._model = problem, table, model
        self._rest_s = {
            key: problem.wires.stage_time(StageLoad(0.0, *load[1:]), model).period_s
            for key, load in table.loads.items()
        }
        self._known: dict[tuple[float, ...], tuple[float, list[_Cut]]] = {}

    def best(self, order: Sequence[str]) -> tuple[float, list[_Cut]]:
        """The least period of stages on consecutive machines of ``order``, and these stages."""
        rates = tuple(self._problem.rate[machine] for machine in order)
        if rates not in self._known:
            self._known[rates] = self._cut(rates)
        return self._known[rates]

    def _cut(self, rates: Sequence[float]) -> tuple[float, list[_Cut]]:
        reached = [0.0, *accumulate(rates)]
        macs, rest_s, overlap = self._table.total_macs, self._rest_s, self._model == "overlap"

        def stage_s(first: int, last: int, start: int, stop: int) -> float:
            key = first, last, stop - start
            if key not in rest_s:
                return inf
            compute_s = macs[key] / (reached[stop] - reached[start])
            return max(compute_s, rest_s[key]) if overlap else compute_s + rest_s[key]

        return _cut_in_order(self._table.count, len(rates), stage_s)


def _climbed(
    problem: PipelineProblem, orders: _MachineOrders, pieces: Sequence[int], order: Sequence[str]
) -> list[Group]:
    """The best groups for an order of machines and for orders that exchanges make of it."""
    best_s, stages = orders.best(order)
    current = list(order)
    for _ in range(_SWEEPS):
        improved = False
        for a, b in combinations(range(len(current)), 2):
            if problem.rate[current[a]] == problem.rate[current[b]]:
                continue
            other = current[:]
            other[a], other[b] = other[b], other[a]
            other_s, other_stages = orders.best(other)
            if other_s < best_s * (1 - 1e-9):
                best_s, stages, current, improved = other_s, other_stages, other, True
        if not improved:
            break
    return [
        Group(_union(pieces[first : last + 1]), _strongest_first(problem, current[start:stop]))
        for first, last, start, stop in stages
    ]


def _cut_in_order(
    pieces: int, machines: int, stage_s: Callable[[int, int, int, int], float]
) -> tuple[float, list[_Cut]]:
    """The least period of a chain of stages on consecutive machines, and these stages.

    The period of a chain is the maximum of its stages' ``stage_s``. Machines may be left out.

    Args:
        stage_s: seconds of a stage from the four numbers of `_Cut`.
    """
    period = [[0.0] * (machines + 1), *([inf] * (machines + 1) for _ in range(pieces))]
    came: dict[tuple[int, int], tuple[int, int] | None] = {}
    for last in range(pieces):
        for stop in range(1, machines + 1):
            best_s, came[last + 1, stop] = period[last + 1][stop - 1], None
            for start in range(stop):
                for first in range(last + 1):
                    before = period[first][start]
                    if before < best_s:
                        value_s = max(before, stage_s(first, last, start, stop))
                        if value_s < best_s:
                            best_s, came[last + 1, stop] = value_s, (first, start)
            period[last + 1][stop] = best_s
    stages, piece, stop = list[_Cut](), pieces, machines
    while piece:
        previous = came[piece, stop]
        if previous is None:
            stop -= 1
        else:
            stages.append((previous[0], piece - 1, previous[1], stop))
            piece, stop = previous
    return period[pieces][machines], stages[::-1]


def _polished(
    problem: PipelineProblem, pieces: Sequence[int], start: Sequence[Group], model: TimeModel
) -> list[Group]:
    """Groups from ``start`` by moves of single pieces and machines, as long as the period falls."""
    best, best_s = list(start), problem.period_s(start, model)
    improved = True
    while improved:
        improved = False
        for other in _neighbours(problem, pieces, best):
            other_s = problem.period_s(other, model)
            if other_s < best_s * (1 - 1e-6):
                best, best_s, improved = other, other_s, True
                break
    return best


def _neighbours(
    problem: PipelineProblem, pieces: Sequence[int], groups: Sequence[Group]
) -> Iterable[list[Group]]:
    """All groups that one move leads to: one piece or one machine goes to another stage, two
    machines are exchanged, or a stage gets an unused machine."""
    idle = [m for m in problem.machines if all(m not in group.machines for group in groups)]
    for k, group in enumerate(groups):
        for machine in idle:
            yield _replaced(problem, groups, {k: (group.tasks, (*group.machines, machine))})
    for k in range(len(groups) - 1):
        for source, target, inner in ((k, k + 1, -1), (k + 1, k, 0)):
            own = [p for p in pieces if p & groups[source].tasks]
            if len(own) > 1:
                piece = own[inner]
                change = {
                    source: (groups[source].tasks & ~piece, groups[source].machines),
                    target: (groups[target].tasks | piece, groups[target].machines),
                }
                yield _replaced(problem, groups, change)
    for a, b in combinations(range(len(groups)), 2):
        yield from _exchanged(problem, groups, a, b)


def _exchanged(
    problem: PipelineProblem, groups: Sequence[Group], a: int, b: int
) -> Iterable[list[Group]]:
    """All groups after one machine moves between stages ``a`` and ``b``, or two are exchanged."""
    for source, target in ((a, b), (b, a)):
        if len(groups[source].machines) > 1:
            for machine in groups[source].machines:
                left = tuple(m for m in groups[source].machines if m != machine)
                more = (*groups[target].machines, machine)
                change = {
                    source: (groups[source].tasks, left),
                    target: (groups[target].tasks, more),
                }
                yield _replaced(problem, groups, change)
    for one in groups[a].machines:
        for two in groups[b].machines:
            if problem.rate[one] != problem.rate[two]:
                first = (*(m for m in groups[a].machines if m != one), two)
                second = (*(m for m in groups[b].machines if m != two), one)
                change = {a: (groups[a].tasks, first), b: (groups[b].tasks, second)}
                yield _replaced(problem, groups, change)


def _replaced(
    problem: PipelineProblem,
    groups: Sequence[Group],
    changes: dict[int, tuple[int, tuple[str, ...]]],
) -> list[Group]:
    new_groups = list(groups)
    for k, (tasks, machines) in changes.items():
        new_groups[k] = Group(tasks, _strongest_first(problem, machines))
    return new_groups


def _strongest_first(problem: PipelineProblem, machines: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(machines, key=problem.machines.index))


def _union(pieces: Iterable[int]) -> int:
    return sum(1 << task for piece in pieces for task in bits_of(piece))
