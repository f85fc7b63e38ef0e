"""Memory for all values that segments pass to other segments.

In the host's memory, tensors with disjoint lifetimes share buffers. If segments write parts of a
tensor side by side and another segment reads the whole tensor, all parts lie in one buffer. So the
tensor needs no copy that puts it together.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from coexec.arrays import Array, numpy_type
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.graph.stitch import in_sequence
from coexec.hardware.hardware import MAIN, Memory
from coexec.lowering.module import GatheredBox
from coexec.plan.memory import Lifetime, share
from coexec.plan.schedule import ended_before
from coexec.runtime.loaded_plan import LoadedPlan

Reading = tuple[int, str]
"""A segment, and a value that it reads and that is put together from boxes of other values."""


@dataclass(frozen=True)
class Allocation:
    """Device tensors that are the same in every run."""

    static: Mapping[str, Any]
    """Tensors by name of the value, for values that a segment computes."""
    # Tensors of the values that are put together.
    gathers: Mapping[Reading, Any]
    in_place: frozenset[Reading]
    """The gathers whose boxes are written by the segments that compute them: nothing is copied."""
    landed: Mapping[tuple[str, Memory], Any]
    """By value and memory of a device: the tensors that the host writes for segments that are
    launched before their inputs are there."""
    entrances: Mapping[tuple[str, Memory], Array]
    """The arrays of these tensors in the host's memory. Where nothing speaks against it, the value
    is computed there, and `static` has the same array."""


@dataclass
class _Buffer:
    """A tensor in the host's memory, and the values that are regions of it."""

    tensor: Tensor
    # Indices of the segments that write or read it.
    writers: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)
    values: dict[str, Region] = field(default_factory=dict)
    # The readings whose value, put together from boxes, is this tensor.
    gathers: list[Reading] = field(default_factory=list)


def allocated(installed: LoadedPlan) -> Allocation:
    """Memory for all values of a plan, except those written directly to the caller's arrays."""
    returned = {t.name for t in installed.returned}
    maker_by_value = {t.name: (s.index, t) for s, m in installed.parts() for t in m.outputs}
    own_tensors = {
        name: maker_and_tensor
        for name, maker_and_tensor in maker_by_value.items()
        if name not in returned
    }
    readings = {
        (segment.index, tensor.name): (installed.engines[segment.place], tensor)
        for segment, module in installed.parts()
        for tensor in module.inputs
        if tensor.name in installed.compiled.gathers
    }
    landed, entrances = _entrances(installed)
    parts = {box.value for _, name in readings for box in installed.compiled.gathers[name].boxes}
    direct = {
        name: array
        for (name, _), array in entrances.items()
        if name in own_tensors and name not in parts
    }
    at_home = {name for name in own_tensors if installed.home[name].memory.name == MAIN}
    at_home -= direct.keys()
    leaving = _leaving(installed)
    static = direct | {
        name: installed.home[name].allocate(tensor, name in leaving)
        for name, (_, tensor) in own_tensors.items()  # engines with their own memory choose layouts
        if name not in at_home and name not in direct
    }
    gathers = {
        reading: engine.allocate(tensor)
        for reading, (engine, tensor) in readings.items()
        if engine.memory.name != MAIN
    }
    host_readings = {
        r: tensor for r, (engine, tensor) in readings.items() if engine.memory.name == MAIN
    }
    buffers = _buffers(installed, {name: own_tensors[name] for name in at_home}, host_readings)
    in_place = [r for buffer in buffers if buffer.values for r in buffer.gathers]
    for buffer, array in zip(buffers, _arrays(installed, buffers), strict=True):
        whole = buffer.tensor.whole
        static |= {  # indexing an array without axes would return a scalar, not a view
            name: array if region == whole else array[region.slices]
            for name, region in buffer.values.items()
        }
        gathers |= dict.fromkeys(buffer.gathers, array)
    return Allocation(static, gathers, frozenset(in_place), landed, entrances)


def _entrances(
    installed: LoadedPlan,
) -> tuple[dict[tuple[str, Memory], Any], dict[tuple[str, Memory], Array]]:
    """Tensors that the host writes for segments that are launched early, and their arrays in the
    host's memory."""
    landed: dict[tuple[str, Memory], Any] = {}
    entrances: dict[tuple[str, Memory], Array] = {}
    for segment, module in installed.parts():
        engine = installed.engines[segment.place]
        for tensor in module.inputs if segment.index in installed.early else ():
            key, home = (tensor.name, engine.memory), installed.home.get(tensor.name)
            if home is not None and home.memory.name == MAIN and key not in landed:
                landed[key] = engine.allocate(tensor)
                entrances[key] = engine.host_array(landed[key])
    return landed, entrances


def _leaving(installed: LoadedPlan) -> set[str]:
    """Names of the values that are downloaded in each run."""
    compiled = installed.compiled
    downloaded = {value for parts in compiled.parts.values() for value, _ in parts}
    downloaded.update(t.name for t in compiled.outputs)
    home = installed.home
    for segment, module in installed.parts() if installed.tensor_caching else ():
        memory = installed.engines[segment.place].memory
        read = (name for name in installed.sources(module) if name in home)
        downloaded.update(name for name in read if home[name].memory != memory)
    return downloaded | {box.value for g in compiled.gathers.values() for box in g.boxes}


def _buffers(
    installed: LoadedPlan,
    made: Mapping[str, tuple[int, Tensor]],
    readings: Mapping[Reading, Tensor],
) -> list[_Buffer]:
    """The buffers in the host's memory, each with the segments that write and read it.

    Args:
        made: by value, the segment that computes it and its tensor.
        readings: the readings that are put together, each with its tensor.
    """
    joined: dict[tuple[GatheredBox, ...], _Buffer] = {}
    buffers: list[_Buffer] = []
    buffer_by_value: dict[str, _Buffer] = {}
    alignments = _alignments(installed)
    for reading, tensor in readings.items():
        boxes = tuple(sorted(installed.compiled.gathers[reading[1]].boxes))
        buffer = joined.get(boxes)
        if buffer is None:
            buffer = _Buffer(tensor)
            buffers.append(buffer)
            free = buffer_by_value.keys().isdisjoint(box.value for box in boxes)
            if free and _side_by_side(boxes, tensor, made, alignments):
                joined[boxes] = buffer
                buffer.values = {box.value: box.put for box in boxes}
                buffer_by_value |= dict.fromkeys(buffer.values, buffer)
        buffer.gathers.append(reading)
        buffer.readers.add(reading[0])
        if not buffer.values:
            buffer.writers.add(reading[0])
    for name, (_, tensor) in made.items():
        if name not in buffer_by_value:
            buffer_by_value[name] = _Buffer(tensor, values={name: tensor.whole})
            buffers.append(buffer_by_value[name])
    _note_use(installed, made, buffer_by_value)
    return buffers


def _note_use(
    installed: LoadedPlan, made: Mapping[str, tuple[int, Tensor]], of: Mapping[str, _Buffer]
) -> None:
    """Add to each buffer the segments that write and read its values.

    Args:
        of: buffer by value.
    """
    compiled = installed.compiled
    kept = {value for parts in compiled.parts.values() for value, _ in parts}
    kept.update(t.name for t in compiled.outputs)
    for name, buffer in of.items():
        buffer.writers.add(made[name][0])
        # The caller reads after the last segment. So the buffer of an output is never shared with
        # a later value.
        if name in kept:
            buffer.readers.add(len(compiled.segments))
    for segment, module in installed.parts():
        for name in installed.sources(module):
            if name in of:
                of[name].readers.add(segment.index)


def _side_by_side(
    boxes: Sequence[GatheredBox],
    tensor: Tensor,
    made: Mapping[str, tuple[int, Tensor]],
    alignments: Mapping[str, Set[int]],
) -> bool:
    """Whether these values, each as a whole, lie one behind the other in ``tensor``, at addresses
    that are aligned as the engines require that write and read them.

    Args:
        alignments: by value, the numbers of bytes of which its address has to be a multiple.
    """
    if not in_sequence((box.put for box in boxes), tensor.whole):
        return False
    start_bytes = 0
    for box in sorted(boxes, key=lambda box: box.put.start):
        if box.value not in made or box.taken != made[box.value][1].whole:
            return False
        if any(start_bytes % alignment for alignment in alignments[box.value]):
            return False
        start_bytes += box.put.size * tensor.item_bytes
    return True


def _alignments(installed: LoadedPlan) -> Mapping[str, Set[int]]:
    """By value that a segment computes, the alignments of the engines that write and read it."""
    found = {value: {engine.alignment} for value, engine in installed.home.items()}
    for segment, module in installed.parts():
        for tensor in module.inputs:
            if tensor.name in found:
                found[tensor.name].add(installed.engines[segment.place].alignment)
    return found


def _arrays(installed: LoadedPlan, buffers: list[_Buffer]) -> Iterable[Array]:
    """An array for each buffer. Buffers that are never alive at the same time share memory."""
    lives = [
        Lifetime(b.tensor.size_bytes, tuple(sorted(b.writers)), tuple(sorted(b.readers)))
        for b in buffers
    ]
    if not lives:
        return
    array_of, sizes = share(lives, ended_before(installed.compiled.segments))
    engine = next(e for e in installed.engines.values() if e.memory.name == MAIN)
    arrays = [engine.allocate(Tensor("", (size,), "uint8")) for size in sizes]
    for buffer, index in zip(buffers, array_of, strict=True):
        flat = arrays[index][: buffer.tensor.size_bytes]
        yield flat.view(numpy_type(buffer.tensor.dtype)).reshape(buffer.tensor.shape)
