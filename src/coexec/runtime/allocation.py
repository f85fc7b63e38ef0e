"""Memory for all values that segments hand on.

In the host's memory, tensors with disjoint lifetimes share buffers, and what segments write side by
side and others read as one lies in one buffer: nobody has to put it together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coexec.arrays import Array, numpy_type
from coexec.engines.base import BoxCopy
from coexec.frontend.dialect import as_it_lies, where_it_lies
from coexec.frontend.module import Gather, GatheredBox
from coexec.ir.graph import Tensor
from coexec.ir.region import Region
from coexec.ir.stitch import in_sequence
from coexec.memory.reuse import Lifetime, share
from coexec.plans.schedule import ended_before
from coexec.runtime.installation import Installation
from coexec.system.hardware import MAIN

__all__ = ["Allocation", "allocated"]

Reading = tuple[int, str]
"""A segment and a value that it reads put together."""


@dataclass(frozen=True)
class Allocation:
    """Device tensors that are the same in every run."""

    static: Mapping[str, Any]
    """By value that a segment makes."""
    gathers: Mapping[Reading, Any]
    in_place: frozenset[Reading]
    """Those of the gathers that their makers write: there is nothing to copy."""
    copies: Mapping[Reading, Sequence[BoxCopy]]
    """What puts the others together, where all that it takes lies in these tensors in the host's
    memory. The views are made once, as making them takes longer than to copy a small box."""
    copiers: Mapping[Reading, Callable[[], None]]
    """Of those, the ones that their device does by itself."""


@dataclass
class _Buffer:
    """A tensor, and the parts of it that are values of their own."""

    tensor: Tensor
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)
    values: dict[str, Region] = field(default_factory=dict)
    gathers: list[Reading] = field(default_factory=list)


def allocated(installed: Installation) -> Allocation:
    """Memory for what a plan hands on, but for what goes straight into the caller's arrays."""
    returned = {t.name for t in installed.returned}
    made = {t.name: (s.index, t) for s, m in installed.parts() for t in m.outputs}
    own = {name: found for name, found in made.items() if name not in returned}
    at_home = {name for name in own if installed.home[name].memory.name == MAIN}
    leaving = _leaving(installed)
    static = {
        name: installed.home[name].allocate(tensor, name in leaving)
        for name, (_, tensor) in own.items()
        if name not in at_home  # such engines lay their tensors out themselves
    }
    readings = {
        (segment.index, tensor.name): (installed.engines[segment.place], tensor)
        for segment, module in installed.parts()
        for tensor in module.inputs
        if tensor.name in installed.compiled.gathers
    }
    gathers = {
        reading: engine.allocate(tensor)
        for reading, (engine, tensor) in readings.items()
        if engine.memory.name != MAIN
    }
    here = {r: tensor for r, (engine, tensor) in readings.items() if engine.memory.name == MAIN}
    buffers = _buffers(installed, {name: own[name] for name in at_home}, here)
    in_place = [r for buffer in buffers if buffer.values for r in buffer.gathers]
    for buffer, array in zip(buffers, _arrays(installed, buffers), strict=True):
        whole = buffer.tensor.whole
        static |= {  # what has no axes is no array any more once it is indexed
            name: array if region == whole else array[region.slices]
            for name, region in buffer.values.items()
        }
        gathers |= dict.fromkeys(buffer.gathers, array)
    copied = {r: installed.compiled.gathers[r[1]] for r in here if r not in in_place}
    copies = {
        reading: _copies(gather, gathers[reading], static)
        for reading, gather in copied.items()
        if all(box.value in at_home for box in gather.boxes)
    }
    copiers = {
        reading: copier
        for reading, boxes in copies.items()
        if reading[0] in installed.ahead
        and (copier := readings[reading][0].copier(boxes)) is not None
    }
    return Allocation(static, gathers, frozenset(in_place), copies, copiers)


def _copies(gather: Gather, target: Array, static: Mapping[str, Any]) -> list[BoxCopy]:
    """Views of the boxes of ``target``, each with that of the value that goes there."""
    found = []
    for value, taken, put in gather.boxes:
        into = as_it_lies(target, gather.layout)[where_it_lies(put, gather.layout).slices]
        part = as_it_lies(static[value], gather.layout)[where_it_lies(taken, gather.layout).slices]
        found.append(BoxCopy(target, into, static[value], part))
    return found


def _leaving(installed: Installation) -> set[str]:
    """The values that are downloaded in each run."""
    compiled = installed.compiled
    found = {value for parts in compiled.parts.values() for value, _ in parts}
    found.update(t.name for t in compiled.outputs)
    home = installed.home
    for segment, module in installed.parts() if installed.tensor_caching else ():
        memory = installed.engines[segment.place].memory
        read = (name for name in installed.sources(module) if name in home)
        found.update(name for name in read if home[name].memory != memory)
    return found | {box.value for g in compiled.gathers.values() for box in g.boxes}


def _buffers(
    installed: Installation,
    made: Mapping[str, tuple[int, Tensor]],
    readings: Mapping[Reading, Tensor],
) -> list[_Buffer]:
    """Of the host's memory: who writes and reads each when."""
    joined: dict[tuple[GatheredBox, ...], _Buffer] = {}
    found: list[_Buffer] = []
    of: dict[str, _Buffer] = {}
    for reading, tensor in readings.items():
        boxes = tuple(sorted(installed.compiled.gathers[reading[1]].boxes))
        buffer = joined.get(boxes)
        if buffer is None:
            buffer = _Buffer(tensor)
            found.append(buffer)
            free = of.keys().isdisjoint(box.value for box in boxes)
            if free and _side_by_side(boxes, tensor, made, installed):
                joined[boxes] = buffer
                buffer.values = {box.value: box.put for box in boxes}
                of |= dict.fromkeys(buffer.values, buffer)
        buffer.gathers.append(reading)
        buffer.readers.add(reading[0])
        if not buffer.values:
            buffer.writers.add(reading[0])
    for name, (_, tensor) in made.items():
        if name not in of:
            of[name] = _Buffer(tensor, values={name: tensor.whole})
            found.append(of[name])
    _note_use(installed, made, of)
    return found


def _note_use(
    installed: Installation, made: Mapping[str, tuple[int, Tensor]], of: Mapping[str, _Buffer]
) -> None:
    """Which segments write and read the buffers of values."""
    compiled = installed.compiled
    kept = {value for parts in compiled.parts.values() for value, _ in parts}
    kept.update(t.name for t in compiled.outputs)
    for name, buffer in of.items():
        buffer.writers.add(made[name][0])
        if name in kept:  # the caller reads behind the last segment: nothing has ended before it
            buffer.readers.add(len(compiled.segments))
    for segment, module in installed.parts():
        for name in installed.sources(module):
            if name in of:
                of[name].readers.add(segment.index)


def _side_by_side(
    boxes: Sequence[GatheredBox], tensor: Tensor, made: Mapping[str, tuple[int, Tensor]],
    installed: Installation,
) -> bool:  # fmt: skip
    """Whether these values, each as a whole, lie one behind the other in ``tensor``, where their
    engines can write them."""
    if not in_sequence((box.put for box in boxes), tensor.whole):
        return False
    start_bytes = 0
    for box in sorted(boxes, key=lambda box: box.put.start):
        if box.value not in made or box.taken != made[box.value][1].whole:
            return False
        if start_bytes % installed.home[box.value].alignment:
            return False
        start_bytes += box.put.size * tensor.item_bytes
    return True


def _arrays(installed: Installation, buffers: list[_Buffer]) -> Iterable[Array]:
    """An array for each buffer; those that are never alive together share memory."""
    lives = [
        Lifetime(b.tensor.size_bytes, tuple(sorted(b.writers)), tuple(sorted(b.readers)))
        for b in buffers
    ]
    if not lives:
        return
    place_of, sizes = share(lives, ended_before(installed.compiled.segments))
    engine = next(e for e in installed.engines.values() if e.memory.name == MAIN)
    places = [engine.allocate(Tensor("", (size,), "uint8")) for size in sizes]
    for buffer, place in zip(buffers, place_of, strict=True):
        flat = places[place][: buffer.tensor.size_bytes]
        yield flat.view(numpy_type(buffer.tensor.dtype)).reshape(buffer.tensor.shape)
