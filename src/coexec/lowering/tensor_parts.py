"""The parts of tensors inside of a module: cut, joined, and converted from layout to layout.

Regions are those of the model's tensors. A lowered tensor may have more channels, because blocks
are filled up. Only an uncut range of channels includes the channels that fill the last block.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Tensor, tensor_part
from coexec.graph.region import Region
from coexec.graph.stitch import Taken, assemble
from coexec.lowering.cutting import CutError
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.lowered_model import LoweredModel
from coexec.lowering.module_builder import ModuleBuilder

_PartValues = Mapping[str, Mapping[tuple[Region, Layout], str]]


def part_name(tensor: str, region: Region, layout: Layout, graph: Graph) -> str:
    """Name of a part of a tensor in modules: the tensor's name, its region if it is not whole, and
    its layout if it is not the model's."""
    part, phrase = tensor_part(tensor, region, graph), str(layout)
    return f"{part} {phrase}" if phrase else part


class TensorParts:
    """The parts of the model's tensors that a module has so far, and their layouts."""

    def __init__(self, graph: Graph, lowered: LoweredModel, builder: ModuleBuilder) -> None:
        self._graph, self._lowered, self._builder = graph, lowered, builder
        self._values: dict[str, dict[tuple[Region, Layout], str]] = {}
        """By tensor: the values that hold a region of it in a layout."""

    def state(self) -> _PartValues:
        """The current parts, for `restore`."""
        return {name: dict(values) for name, values in self._values.items()}

    def restore(self, state: _PartValues) -> None:
        """Remove the parts that were added after ``state``."""
        self._values = {name: dict(values) for name, values in state.items()}

    def add(self, tensor: str, region: Region, layout: Layout, value: str) -> None:
        """Record that ``value`` is a part of a tensor."""
        self._values.setdefault(tensor, {})[region, layout] = value

    def declare(self, tensor: str, region: Region, layout: Layout, value: str) -> Tensor:
        """Type and shape of the part, declared for ``value``."""
        own = self._graph.tensors[tensor]
        channels = self._channels(tensor, region) if layout.is_blocked else 0
        shape = own.shape if own.opaque else layout.declared_shape(region.shape, channels)
        return self._builder.declare(value, shape, replace(own, dtype=layout.dtype_of(own)))

    def publish(self, tensor: str, region: Region, layout: Layout, used: Set[str]) -> str:
        """The part under its name in other modules; ``used`` are such names of other parts."""
        name = part_name(tensor, region, layout, self._graph)
        made = self.get(tensor, region, layout)
        if made == name:
            return name
        self._rename(name, self._builder.unused_name(name))  # another value may have this name
        if made in used or not self._rename(made, name):
            output = self._builder.add("Identity", made, self._builder.tensor(made).shape)
            self._rename(output, name)
        return name

    def _rename(self, old: str, new: str) -> bool:
        """Rename a value; False if no node makes it."""
        renamed = self._builder.rename(old, new)
        for values in self._values.values() if renamed else ():
            values.update({key: new for key, value in values.items() if value == old})
        return renamed

    def get(self, tensor: str, region: Region, layout: Layout) -> str:
        """A part of a tensor in a layout, made from existing parts if necessary."""
        there = self._values.get(tensor, {})
        if (region, layout) in there:
            return there[region, layout]
        if layout.padded and not self._ends_with_blocks(tensor, region, layout):
            raise CutError(f"{tensor}{region} does not end where blocks end")
        if self._graph.tensors[tensor].opaque:
            raise PlanError(
                f"the segment needs {tensor}, and does not have it; add it to its inputs or pieces"
            )
        have = self._nearest([own for r, own in there if r == region], tensor, layout)
        if have is not None:
            made = there[region, have]
        else:
            made, have = self._assemble(tensor, region, layout)
        made = self._convert(made, tensor, region, have, layout)
        self.add(tensor, region, layout, made)
        return made

    def _ends_with_blocks(self, tensor: str, region: Region, layout: Layout) -> bool:
        """Whether blocks of a layout hold a region and nothing else of the tensor."""
        whole = self._graph.tensors[tensor].whole
        if tensor in self._lowered.channel_positions and _axes_that_differ(whole, region) & {1}:
            return False  # with gaps, channels are not at their position in the tensor
        return layout.has_whole_blocks(region, whole.stop)

    def _nearest(self, layouts: Sequence[Layout], tensor: str, target: Layout) -> Layout | None:
        """The first of ``layouts``, but one of the same type as ``target`` if there is one."""
        own = self._graph.tensors[tensor]
        dtype = target.dtype_of(own)
        return min(layouts, key=lambda layout: layout.dtype_of(own) != dtype, default=None)

    def _assemble(self, tensor: str, region: Region, layout: Layout) -> tuple[str, Layout]:
        """A part that is cut out of another or joined from others, with the layout in which that is
        possible."""
        parts = {r for r, _ in self._values.get(tensor, {})}
        plan = assemble(region, parts) if region.size else None
        if plan is None:
            there = ", ".join(map(str, sorted(parts, key=str))) or "nothing"
            raise PlanError(
                f"the segment needs {tensor_part(tensor, region, self._graph)} of "
                f"{self._graph.tensors[tensor].whole}, and has {there} of that tensor; add the "
                f"missing parts to its inputs or pieces"
            )
        whole = self._graph.tensors[tensor].shape
        if isinstance(plan, Taken):
            axes, regions = _axes_that_differ(plan.source, region), [plan.source]
        else:
            axes, regions = {plan.axis}, [member.region for member in plan.members]
        # Along batch and channels, whole blocks are cut and joined without leaving their layout.
        as_they_lie = layout.is_blocked and axes <= {0, 1}
        as_they_lie = as_they_lie and all(layout.has_whole_blocks(r, whole) for r in regions)
        inside = layout if as_they_lie else layout.unblocked
        values = [self.get(tensor, r, inside) for r in regions]
        if isinstance(plan, Taken):
            return self.crop(values[0], plan.source, region, inside), inside
        return self._builder.concat(values, plan.axis), inside

    def crop(self, value: str, have: Region, want: Region, layout: Layout) -> str:
        """The region ``want`` of a value that holds ``have``, in the layout of the value."""
        ranges = zip(have.start, have.stop, want.start, want.stop, strict=True)
        bounds = [
            (axis, c - a, d - a) for axis, (a, b, c, d) in enumerate(ranges) if (a, b) != (c, d)
        ]
        if layout.order == "NHWC" or (layout.is_blocked and any(axis > 1 for axis, _, _ in bounds)):
            plain = self._to_plain(value, self._builder.tensor(value).shape[1], layout)
            return self._from_plain(self.crop(plain, have, want, PLAIN), want.shape[1], layout)
        return self._builder.slice(value, bounds)

    def _convert(self, value: str, tensor: str, region: Region, have: Layout, want: Layout) -> str:
        """``value``, a region of ``tensor``, in another layout."""
        if have == want:
            return value
        positions = self._lowered.channel_positions.get(tensor)
        padded = self._channels(tensor, region) if have.padded or want.padded else 0
        if have.padded and positions is not None:
            value = self._builder.gather(self._to_plain(value, padded, have), positions)
        elif not have.is_plain:
            value = self._to_plain(value, region.shape[1], have)
        kind = want.dtype_of(self._graph.tensors[tensor])
        if self._builder.tensor(value).dtype != kind:
            value = self._builder.cast(value, kind)
        if want.padded and positions is not None:
            index = [len(positions)] * padded  # of a channel of zeros
            for channel, position in enumerate(positions):
                index[position] = channel
            value = self._builder.gather(self._builder.pad(value, len(positions) + 1), index)
        if want.is_plain:
            return value
        return self._from_plain(value, padded or region.shape[1], want)

    def _channels(self, tensor: str, region: Region) -> int:
        """Number of channels of a part of a tensor, with those that fill the last block."""
        whole = self._graph.tensors[tensor]
        if region.stop[1] < whole.shape[1]:
            return region.shape[1]
        return region.shape[1] + self._lowered.padded_channels(whole) - whole.shape[1]

    def _from_plain(self, value: str, channels: int, layout: Layout) -> str:
        """``value`` converted from the model's layout to ``layout``, padded to ``channels``."""
        dialect = self._lowered.dialect
        if not layout.is_blocked or dialect.inner is None:
            value = self._builder.pad(value, channels)
        if not layout.is_reordered:
            return value
        batch, _, *spatial = self._builder.tensor(value).shape
        if layout.order == "NHWC":
            return self._builder.transpose(value, [0, *range(2, len(spatial) + 2), 1])
        domain, op_type = dialect.enter
        return self._builder.add(op_type, value, (batch, channels, *spatial), domain)

    def _to_plain(self, value: str, channels: int, layout: Layout) -> str:
        """``value`` converted from ``layout`` to the model's layout."""
        shape = self._builder.tensor(value).shape
        if layout.order == "NHWC":
            return self._builder.transpose(value, [0, len(shape) - 1, *range(1, len(shape) - 1)])
        if not layout.is_reordered:
            return self._builder.slice(value, [(1, 0, channels)]) if channels < shape[1] else value
        domain, op_type = self._lowered.dialect.leave
        plain_shape = (shape[0], channels, *shape[2:])
        return self._builder.add(op_type, value, plain_shape, domain, channels=channels)


def _axes_that_differ(one: Region, other: Region) -> set[int]:
    ranges = zip(one.start, one.stop, other.start, other.stop, strict=True)
    return {axis for axis, (a, b, c, d) in enumerate(ranges) if (a, b) != (c, d)}
