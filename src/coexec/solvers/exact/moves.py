"""Copies between devices as constraints, for each kind of link.

As in `problem.timeline.Timeline`: a tensor moves to a device once, for the first task that reads it
there. What has been moved before is there. In which order a task sends its tensors is left open
in a formulation with fused tasks: the simulator takes the order of segments.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from coexec.solvers.exact.constraints import FALSE, Literal, Sum
from coexec.solvers.exact.placement import Occupation, Placement
from coexec.system.hardware import Busy

__all__ = ["copied_by_target", "queued", "sent_by_source"]

_MOST_QUEUED = 150
"""Tensors that may queue for one link. With more, that they wait for each other is left out."""


class _Way(NamedTuple):
    """A tensor that may have to move."""

    tensor: int
    maker: int
    source: int
    target: int
    transfer_s: float
    readers: Sequence[int]


def copied_by_target(placement: Placement) -> None:
    """Links that keep the target busy: the first reader on a device copies a tensor."""
    all_of, before = placement.constraints.all_of, placement.before
    for way in _ways(placement, "target"):
        a, b = way.source, way.target
        for reader in way.readers:
            earlier = [
                all_of([placement.on(other, b), before(other, reader)])
                for other in way.readers if other != reader
            ]  # fmt: skip
            copies = all_of([placement.crosses(way.maker, reader, a, b), *(-e for e in earlier)])
            if copies != FALSE:
                placement.copies[reader].append(Occupation(b, way.transfer_s, copies))


def sent_by_source(placement: Placement) -> None:
    """Links that keep the source busy: it sends a tensor right after it was made."""
    ways = list(_ways(placement, "source"))
    for way in ways:
        if way.maker in placement.sends:
            part = Occupation(way.source, way.transfer_s, _moves(placement, way))
            placement.sends[way.maker].append(part)
    for way in ways:
        ahead = [
            (other.transfer_s, _leaves_first(placement, other, way))
            for other in ways
            if other != way
            and (other.maker, other.source) == (way.maker, way.source)
            and not placement.fused
        ]
        _arrive(placement, way, placement.ends(way.maker).plus(way.transfer_s, ahead))
    _delay_by_late_sends(placement, [way for way in ways if way.maker not in placement.sends])


def _delay_by_late_sends(placement: Placement, ways: Sequence[_Way]) -> None:
    """What was made before these tasks and is read only now, is sent before any of them."""
    for device in placement.problem.devices:
        sends = [(w.transfer_s, _moves(placement, w)) for w in ways if w.source == device]
        for task in placement.tasks if sends else ():
            free = Sum(placement.free_s[device]).plus(flags=sends)
            placement.constraints.rule(placement.begins(task), free, [placement.on(task, device)])


def queued(placement: Placement) -> None:
    """Links that keep nobody busy: tensors queue for them in the order in which they are made."""
    rule = placement.constraints.rule
    ways = list(_ways(placement, "none"))
    moments = {way: Sum(moment=placement.constraints.moment()) for way in ways}
    for way, leaves in moments.items():
        rule(leaves, placement.ends(way.maker))
        rule(leaves, Sum(placement.timeline.link_free_s.get((way.source, way.target), 0.0)))
        _arrive(placement, way, leaves.plus(way.transfer_s))
    for a, b in permutations(placement.problem.devices, 2):
        queue = [way for way in ways if (way.source, way.target) == (a, b)]
        for one, two in combinations(queue, 2) if len(queue) <= _MOST_QUEUED else ():
            both = [_moves(placement, one), _moves(placement, two)]
            if placement.fused and one.maker == two.maker:
                continue
            first = _leaves_first(placement, one, two)
            rule(moments[two], moments[one].plus(one.transfer_s), [*both, first])
            rule(moments[one], moments[two].plus(two.transfer_s), [*both, -first])


def _ways(placement: Placement, busy: Busy) -> Iterable[_Way]:
    """The tensors that tasks may have to get over links of one kind."""
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
                way = _Way(tensor, maker, a, b, transfer_s, tuple(tasks))
                if _moves(placement, way) != FALSE:
                    yield way


def _moves(placement: Placement, way: _Way) -> Literal:
    """Whether the tensor takes this way."""
    return placement.constraints.any_of(
        placement.crosses(way.maker, reader, way.source, way.target) for reader in way.readers
    )


def _arrive(placement: Placement, way: _Way, copied: Sum) -> None:
    """No reader computes before the tensor has been copied and its device knows of it."""
    a, b = way.source, way.target
    for reader in way.readers:
        wait_s = placement.problem.links[a][b].sync_latency_s + placement.launch_s(reader, b)
        crosses = placement.crosses(way.maker, reader, a, b)
        placement.constraints.rule(placement.computes(reader), copied.plus(wait_s), [crosses])


def _leaves_first(placement: Placement, one: _Way, two: _Way) -> Literal:
    """Whether, if both move, the tensor of ``one`` does before that of ``two``."""
    if one.maker != two.maker:
        return placement.before(one.maker, two.maker)
    crosses, reads = placement.crosses, placement.problem.reads

    def turn(way: _Way, reader: int) -> tuple[int, int]:
        return reader, reads[reader].index(way.tensor)

    return placement.constraints.any_of(
        placement.constraints.all_of([
            crosses(one.maker, k, one.source, one.target),
            *(
                -crosses(two.maker, other, two.source, two.target)
                for other in two.readers if turn(two, other) < turn(one, k)
            ),
        ])
        for k in one.readers
    )  # fmt: skip
