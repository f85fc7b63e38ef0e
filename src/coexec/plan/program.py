"""Device programs: the steps that each device carries out for a plan, in order.

A plan fixes the order on each device, so nothing is scheduled while it runs. The event of a segment
is signalled when its results are complete, and is never taken back. Devices meet only at events.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from coexec.errors import PlanError
from coexec.plan.schedule import Schedule, Segment, Transfer, by_device, ended_before
from coexec.units import format_bytes

_REMEDY = "make the programs again with device_programs"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the event of a segment of another device."""

    segment: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring a box of a tensor to the place that reads it.

    Nothing is copied if both places have the same memory.
    """

    transfer: int
    """Index in `Schedule.transfers`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Compute a segment."""

    segment: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the event of a segment: its results are complete."""

    segment: int


Step = Wait | Copy | Run | Signal


@dataclass(frozen=True)
class DeviceProgram:
    """All steps of one processor for one request. Devices that share it take turns in them."""

    device: str
    steps: tuple[Step, ...]


def device_programs(
    segments: Sequence[Segment], transfers: Sequence[Transfer]
) -> tuple[DeviceProgram, ...]:
    """A program for each device that has segments.

    The steps of a segment are: a wait for each segment of another device that it follows, a copy
    for each tensor that moves to it, its run, and a signal if another device waits for it. There is
    no wait for a segment that must have ended by then because of other waits. This is the
    transitive reduction of the order of segments (Aho, Garey and Ullman, 1972), so no wait can be
    left out.
    """
    ended = ended_before(segments)
    incoming: dict[int, list[int]] = {segment.index: [] for segment in segments}
    for number, transfer in enumerate(transfers):
        incoming[transfer.target].append(number)
    waits: list[list[int]] = []
    for segment in segments:
        implied = _union(ended[before] for before in segment.after)
        foreign = (i for i in segment.after if segments[i].device != segment.device)
        waits.append(sorted(i for i in foreign if not implied >> i & 1))
    awaited = {index for row in waits for index in row}

    def steps(index: int) -> Iterator[Step]:
        yield from map(Wait, waits[index])
        yield from map(Copy, incoming[index])
        yield Run(index)
        if index in awaited:
            yield Signal(index)

    return tuple(
        DeviceProgram(device, tuple(step for index in order for step in steps(index)))
        for device, order in by_device(segments).items()
    )


def verify_programs(programs: Sequence[DeviceProgram], schedule: Schedule) -> None:
    """Refuse programs that do not carry out a schedule, however fast each device is.

    A step happens before the later steps of its program, and a signal before the steps that follow
    a wait for its event. Before a segment runs, everything that it follows or reads must have
    happened in this sense; before a copy, the segment that it reads.

    Raises:
        PlanError: a step is missing, repeated or out of order; devices wait for ever; or a step may
            begin before what it needs. The message names device, segment and event.
    """
    for program in programs:
        _verify_steps(program, schedule)
    devices = [program.device for program in programs]
    if sorted(devices) != sorted(schedule.by_device):
        raise PlanError(
            f"there are programs for {', '.join(devices) or 'no device'}, and segments on "
            f"{', '.join(schedule.by_device)}; {_REMEDY}"
        )
    needed = _needed(schedule)
    ended = dict.fromkeys(devices, 0)  # segments that ended before a device's next step, as bits
    at_signal: dict[int, int] = {}
    copied: set[int] = set()
    for device, step in _in_one_order(programs, schedule):
        match step:
            case Wait(index):
                ended[device] |= at_signal[index]
            case Copy(number):
                transfer = schedule.transfers[number]
                unsafe = (1 << transfer.source) & ~ended[device]
                _refuse_unsafe(unsafe, f"{device} copies {transfer.tensor!r}", schedule)
                copied.add(number)
            case Run(index):
                segment = _name(index, schedule)
                _refuse_unsafe(needed[index] & ~ended[device], f"{device} runs {segment}", schedule)
                for number in schedule.incoming[index]:
                    if number not in copied:
                        raise PlanError(
                            f"{device} runs {segment} before it has copied "
                            f"{schedule.transfers[number].tensor!r}; {_REMEDY}"
                        )
                ended[device] |= 1 << index
            case Signal(index):
                own = index in schedule.by_device[device] and ended[device] >> index & 1
                if not own or index in at_signal:
                    raise PlanError(
                        f"{device} signals segment {index}, which it has not run, or has signalled "
                        f"before; {_REMEDY}"
                    )
                at_signal[index] = ended[device]


def text(programs: Iterable[DeviceProgram], schedule: Schedule) -> str:
    """Programs for people: a line for each device, and below it a line for each step."""
    lines = []
    for program in programs:
        lines.append(program.device)
        lines += (f"  {_line(step, schedule)}" for step in program.steps)
    return "\n".join(lines)


def step_facts(
    programs: Iterable[DeviceProgram], schedule: Schedule
) -> dict[str, list[dict[str, Any]]]:
    """By device, its steps in order, as objects of JSON: the kind of the step, and the number of
    the segment that is awaited, computed or signalled, or from which a tensor is copied."""
    return {p.device: [_facts(step, schedule) for step in p.steps] for p in programs}


def _facts(step: Step, schedule: Schedule) -> dict[str, Any]:
    if isinstance(step, Copy):
        transfer = schedule.transfers[step.transfer]
        return {
            "step": "copy",
            "segment": transfer.source,
            "tensor": transfer.tensor,
            "start": transfer.region.start,
            "stop": transfer.region.stop,
            "size_bytes": transfer.size_bytes,
        }
    facts: dict[str, Any] = {"step": type(step).__name__.lower(), "segment": step.segment}
    if isinstance(step, Run):
        segment = schedule.segments[step.segment]
        tasks = [piece.task for piece in segment.pieces]
        return {**facts, "engine": segment.engine, "tasks": tasks}
    return facts


def _line(step: Step, schedule: Schedule) -> str:
    match step:
        case Wait(index):
            return f"wait for {_name(index, schedule)} of {schedule.segments[index].device}"
        case Copy(number):
            transfer = schedule.transfers[number]
            whole = schedule.graph.tensors[transfer.tensor].whole
            part = "" if transfer.region == whole else str(transfer.region)
            source = schedule.segments[transfer.source].place
            size = format_bytes(transfer.size_bytes)
            return f"copy {transfer.tensor}{part} from {source}, {size}"
        case Run(index):
            return f"run {_name(index, schedule)} with {schedule.segments[index].engine}"
        case Signal(index):
            return f"signal segment {index}"


def _name(index: int, schedule: Schedule) -> str:
    return f"segment {index} ({schedule.segments[index].name})"


def _union(sets: Iterable[int]) -> int:
    """The union of sets that are bits of integers."""
    bits = 0
    for each in sets:
        bits |= each
    return bits


def _needed(schedule: Schedule) -> list[int]:
    """By segment, the segments that must have ended before it starts, as bits: those that it
    follows, and those that it reads."""
    needed = [_union(1 << before for before in s.after) for s in schedule.segments]
    for (reader, _), supplies in schedule.supplies.items():
        needed[reader] |= _union(1 << supply.segment for supply in supplies)
    return needed


def _verify_steps(program: DeviceProgram, schedule: Schedule) -> None:
    """Refuse a program that has other segments, in another order, or other transfers than the
    schedule."""
    order = schedule.by_device.get(program.device, ())
    runs = [step.segment for step in program.steps if isinstance(step, Run)]
    copies = [step.transfer for step in program.steps if isinstance(step, Copy)]
    incoming = [number for index in order for number in schedule.incoming[index]]
    for what, found, expected in (
        ("segment", runs, list(order)),
        ("transfer", sorted(copies), sorted(incoming)),
    ):
        for one, other in zip_longest(found, expected, fillvalue="none"):
            if one != other:
                raise PlanError(
                    f"the program of {program.device} has {what} {one} where the schedule has "
                    f"{other}; {_REMEDY}"
                )


def _in_one_order(
    programs: Sequence[DeviceProgram], schedule: Schedule
) -> Iterator[tuple[str, Step]]:
    """All steps with their devices, in one of the orders in which they can be carried out.

    If one order reaches the end of all programs, every order does, because no step takes an event
    back.

    Raises:
        PlanError: some device waits for an event that does not come.
    """
    ready = [(program.device, iter(program.steps)) for program in programs]
    waiting: dict[int, list[tuple[str, Iterator[Step]]]] = {}
    signalled: set[int] = set()
    while ready:
        device, steps = ready.pop()
        for step in steps:
            if isinstance(step, Wait) and step.segment not in signalled:
                waiting.setdefault(step.segment, []).append((device, steps))
                break
            yield device, step
            if isinstance(step, Signal):
                signalled.add(step.segment)
                for other in waiting.pop(step.segment, ()):
                    yield other[0], Wait(step.segment)
                    ready.append(other)
    if waiting:
        raise _deadlock(waiting, programs, schedule)


def _deadlock(
    waiting: Mapping[int, Sequence[tuple[str, Iterator[Step]]]],
    programs: Iterable[DeviceProgram],
    schedule: Schedule,
) -> PlanError:
    """The error that names each waiting device, the segment that it cannot start, and the event.

    Args:
        waiting: by segment whose event does not come, the waiting devices with their further steps.
    """
    signaller = {
        step.segment: program.device
        for program in programs
        for step in program.steps
        if isinstance(step, Signal)
    }
    stuck = []
    for index, devices in waiting.items():
        event = f"segment {index}, which no device signals"
        if index in signaller:
            event = f"{_name(index, schedule)} of {signaller[index]}"
        for device, steps in devices:
            following = next((step.segment for step in steps if isinstance(step, Run)), None)
            place = "at its end" if following is None else f"before {_name(following, schedule)}"
            stuck.append(f"{device} waits {place} for the event of {event}")
    return PlanError(f"the programs have a deadlock: {'; '.join(stuck)}; {_REMEDY}")


def _refuse_unsafe(unsafe: int, step: str, schedule: Schedule) -> None:
    """Refuse a step that may begin before the segments ``unsafe``, as bits, have ended."""
    if unsafe:
        first = (unsafe & -unsafe).bit_length() - 1
        raise PlanError(
            f"{step}, and no wait makes sure that {_name(first, schedule)} of "
            f"{schedule.segments[first].device} has ended before; {_REMEDY}"
        )
