"""Copies between devices as constraints, for each kind of link.

As in `problem.timeline.Timeline`, a tensor moves to a device once, for the first task that reads it
there. Later readers find it there. In a formulation with fused tasks, the order in which a task
sends its tensors is left open, because the simulator takes the order of segments.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from coexec.hardware.hardware import Busy
from coexec.research.planners.exact.constraints import FALSE, Literal, Sum
from coexec.research.planners.exact.placement import Occupation, Placement

_MOST_QUEUED = 150
"""With more tensors than this on one link, the constraints that queue them are left out."""


class _Route(NamedTuple):
    """A possible transfer of a tensor from one device to another."""

    tensor: int
    maker: int
    source: int
    target: int
    transfer_s: float
    readers: Sequence[int]


def copied_by_target(placement: Placement) -> None:
    """Links that keep the target busy: the first reader on a device copies a tensor."""
    all_of, before = placement.constraints.all_of, placement.before
    for route in _routes(placement, "target"):
        a, b = route.source, route.target
        for reader in route.readers:
            earlier = [
                all_of([placement.on(other, b), before(other, reader)])
                for other in route.readers
                if other != reader
            ]
            copies = all_of([placement.crosses(route.maker, reader, a, b), *(-e for e in earlier)])
            if copies != FALSE:
                placement.copies[reader].append(Occupation(b, route.transfer_s, copies))


def sent_by_source(placement: Placement) -> None:
    """Links that keep the source busy: the source sends a tensor right after it was made."""
    routes = list(_routes(placement, "source"))
    for route in routes:
        if route.maker in placement.sends:
            part = Occupation(route.source, route.transfer_s, _moves(placement, route))
            placement.sends[route.maker].append(part)
    for route in routes:
        ahead = [
            (other.transfer_s, _leaves_first(placement, other, route))
            for other in routes
            if other != route
            and (other.maker, other.source) == (route.maker, route.source)
            and not placement.fused
        ]
        _arrive(placement, route, placement.ends(route.maker).plus(route.transfer_s, ahead))
    _delay_by_late_sends(
        placement, [route for route in routes if route.maker not in placement.sends]
    )


def _delay_by_late_sends(placement: Placement, routes: Sequence[_Route]) -> None:
    """A tensor that was made before these tasks, and that one of them reads, is sent before any of
    these tasks begins on its source device."""
    for device in placement.problem.devices:
        sends = [(r.transfer_s, _moves(placement, r)) for r in routes if r.source == device]
        for task in placement.tasks if sends else ():
            free = Sum(placement.free_s[device]).plus(flags=sends)
            placement.constraints.rule(placement.begins(task), free, [placement.on(task, device)])


def queued(placement: Placement) -> None:
    """Links that keep no device busy: tensors queue for a link in the order of their creation."""
    rule = placement.constraints.rule
    routes = list(_routes(placement, "none"))
    moments = {route: Sum(moment=placement.constraints.moment()) for route in routes}
    for route, leaves in moments.items():
        rule(leaves, placement.ends(route.maker))
        rule(leaves, Sum(placement.timeline.link_free_s.get((route.source, route.target), 0.0)))
        _arrive(placement, route, leaves.plus(route.transfer_s))
    for a, b in permutations(placement.problem.devices, 2):
        queue = [route for route in routes if (route.source, route.target) == (a, b)]
        for one, two in combinations(queue, 2) if len(queue) <= _MOST_QUEUED else ():
            both = [_moves(placement, one), _moves(placement, two)]
            if placement.fused and one.maker == two.maker:
                continue
            first = _leaves_first(placement, one, two)
            rule(moments[two], moments[one].plus(one.transfer_s), [*both, first])
            rule(moments[one], moments[two].plus(two.transfer_s), [*both, -first])


def _routes(placement: Placement, busy: Busy) -> Iterable[_Route]:
    """All transfers over links of one kind that the tasks may need."""
    problem, there = placement.problem, placement.timeline.there
    readers: dict[int, list[int]] = {}
    for task in placement.tasks:
        for tensor in problem.reads[task]:
            readers.setdefault(tensor, []).append(task)
    for tensor, tasks in readers.items():
        maker = problem.maker[tensor]
        for a, b in permutations(problem.devices, 2):
            transfer_s = problem.transfer_s[tensor][a][b]
            if problem.links[a][b].busy == busy and transfer_s and (tensor, b) not in there:
                route = _Route(tensor, maker, a, b, transfer_s, tuple(tasks))
                if _moves(placement, route) != FALSE:
                    yield route


def _moves(placement: Placement, route: _Route) -> Literal:
    """Literal: whether the transfer happens."""
    return placement.constraints.any_of(
        placement.crosses(route.maker, reader, route.source, route.target)
        for reader in route.readers
    )


def _arrive(placement: Placement, route: _Route, copied: Sum) -> None:
    """A reader computes after the tensor was copied and after the latency of the link."""
    a, b = route.source, route.target
    for reader in route.readers:
        wait_s = placement.problem.links[a][b].sync_latency_s + placement.launch_s(reader, b)
        crosses = placement.crosses(route.maker, reader, a, b)
        placement.constraints.rule(placement.computes(reader), copied.plus(wait_s), [crosses])


def _leaves_first(placement: Placement, one: _Route, two: _Route) -> Literal:
    """Literal: whether transfer ``one`` comes before transfer ``two``, if both happen."""
    if one.maker != two.maker:
        return placement.before(one.maker, two.maker)
    crosses, reads = placement.crosses, placement.problem.reads

    def turn(route: _Route, reader: int) -> tuple[int, int]:
        return reader, reads[reader].index(route.tensor)

    return placement.constraints.any_of(
        placement.constraints.all_of(
            [
                crosses(one.maker, k, one.source, one.target),
                *(
                    -crosses(two.maker, other, two.source, two.target)
                    for other in two.readers
                    if turn(two, other) < turn(one, k)
                ),
            ]
        )
        for k in one.readers
    )
