"""Whether the launches of a program run side by side or one after the other: measured once.

Branches that run side by side fill a GPU that one branch leaves idle. They can also take caches and
memory bandwidth from each other, and they need more memory.
"""

import statistics
from typing import NamedTuple

import numpy as np

from coexec.engines.cuda.driver import CudaError
from coexec.engines.cuda.program import CudaProgram
from coexec.engines.cuda.tensors import GpuMemory, GpuTensor
from coexec.engines.cuda.timing import seconds_of
from coexec.engines.kernels.base import Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.dependencies import Dependencies
from coexec.engines.tuning_cache import Choices
from coexec.keys import digest

_ROUNDS = 9
_GAIN = 0.98
"""A program runs its branches side by side if that takes less than this part of the time."""


class Order(NamedTuple):
    """An order of the launches of a program."""

    dependencies: Dependencies
    reason: str = ""
    """Why this one; "" if there is no other."""


def faster_order(name: str, build: Build, memory: GpuMemory, choices: Choices) -> Order:
    """The order of launches that takes less time on this GPU.

    Args:
        name: the device, for messages.
        build: with `program.resident` constants.
        choices: has the results of earlier measurements, and gets the new one.
    """
    side_by_side = Dependencies.of(build)
    chain = Dependencies.chain(len(build.launches))
    if side_by_side == chain:
        return Order(chain)
    launches = build.launches
    key = digest("branches", [(one.source, one.grid) for one in launches], side_by_side.waits)
    try:
        gain = float(choices.get(key) or "")
    except ValueError:  # not measured yet
        try:
            gain = _gain(name, build, memory, side_by_side, chain)
        except CudaError as error:
            if not error.is_out_of_memory:
                raise
            # What does not fit twice may fit once.
            return Order(chain, "one after the other: both orders do not fit into its memory")
        choices.set(key, f"{gain:.3f}")
    if gain < _GAIN:
        reason = f"side by side: that takes {gain:.2f} of the time one after the other"
        return Order(side_by_side, reason)
    return Order(chain, f"one after the other: side by side takes {gain:.2f} of that time")


def _gain(
    name: str, build: Build, memory: GpuMemory, side_by_side: Dependencies, chain: Dependencies
) -> float:
    """The time side by side over the time one after the other, measured in turns with zeros as
    input."""
    tensors = _outside(build, memory)
    programs = [CudaProgram(name, build, memory, order) for order in (side_by_side, chain)]
    context = memory.context.beside()  # a plan that runs meanwhile may wait in the engine's stream
    graphs = [context.graph(program.nodes(tensors)) for program in programs]
    rounds = [[seconds_of(context, graph) for graph in graphs] for _ in range(_ROUNDS)]
    first_s, second_s = (statistics.median(times) for times in zip(*rounds[2:], strict=True))
    return float(first_s / second_s)


def _outside(build: Build, memory: GpuMemory) -> dict[str, GpuTensor]:
    """Tensors of zeros in place of those that enter and leave a program. Their shapes do not count:
    they are as large as its launches need."""
    inside = {one.name for one in build.scratch}
    needed: dict[str, int] = {}
    for launch in build.launches:
        for value in launch.arguments:
            if not isinstance(value, Value):
                continue
            place = build.aliases.of(value.name)
            if place.root not in inside:
                item_bytes = value.size_bytes // max(value.items, 1)
                size = (place.offset + value.items) * item_bytes
                needed[place.root] = max(needed.get(place.root, 0), size)
    return {
        root: GpuTensor(Value(root, (size,), "uint8"), memory.constant(np.zeros(size, np.uint8)))
        for root, size in needed.items()
    }
