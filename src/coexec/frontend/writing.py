"""Write one module of pieces: nodes of a lowered model, cut, joined and brought from layout to
layout.

Regions are those of the model's tensors. A lowered tensor may have more channels: blocks are
filled up. Only an uncut range of channels reaches into what fills the last block.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from coexec.errors import PlanError
from coexec.frontend.cutting import Uncut, node_region, nodes_of
from coexec.frontend.dialect import LAST, PLAIN, Layout, declared_shape
from coexec.frontend.lowered import Lowered, declared, kind_of, placeholder, reads
from coexec.frontend.module import Array, Module
from coexec.frontend.stored import Stored, is_large
from coexec.ir.graph import Graph, Piece, Task, Tensor, tensor_part
from coexec.ir.region import Region
from coexec.ir.rules import OperatorRegion
from coexec.ir.stitch import Taken, assemble

__all__ = ["Writer", "part_name"]


def part_name(tensor: str, region: Region, layout: Layout, graph: Graph) -> str:
    """What a part of a tensor is called in modules: the tensor's name, its region if it is not
    whole, and its layout if that is not the model's."""
    name = tensor_part(tensor, region, graph)
    if layout == PLAIN:
        return name
    return f"{name}, channels last" if layout == LAST else f"{name} in blocks of {layout}"


class Writer:
    """The nodes of one module, in the order in which they are added."""

    def __init__(self, graph: Graph, low: Lowered, plain: Lowered) -> None:
        """
        Args:
            low: the model as the engine lowers it, with all tasks apart.
            plain: the model as it was given.
        """
        self._graph, self._low, self._plain = graph, low, plain
        self._inputs: list[Tensor] = []
        self._nodes: list[onnx.NodeProto] = []
        self._parts: list[str] = []
        """By node, the part that it computes; "" if that is a step on the way to one."""
        self._tensors: dict[str, Tensor] = {}
        self._there: dict[str, dict[tuple[Region, Layout], str]] = {}
        """By tensor: the values that hold a region of it in a layout."""
        self._weights: dict[str, tuple[ir.TensorProtocol, Array | None, int]] = {}
        """By name: the tensor, the part of it if not all is read, and where in it that starts, in
        bytes; -1 if it had to be copied."""
        self._count = 0

    def read(self, tensor: str, region: Region, layout: Layout) -> None:
        """Take a part from outside."""
        name = part_name(tensor, region, layout, self._graph)
        self._inputs.append(self._keep(tensor, region, layout, name))

    def add(self, piece: Piece) -> None:
        """Compute a part of a task from what is there.

        Raises:
            PlanError: it needs what is not there.
        """
        task = self._graph.task[piece.task]
        own = task.outputs[:1]
        self._try(own, frozenset(own), piece.region)

    def add_whole(self, tasks: Sequence[Task], wanted: Collection[str]) -> None:
        """Compute ``wanted``, which others need of the whole ``tasks``.

        Raises:
            PlanError: they need what is not there.
        """
        own = [name for task in tasks for name in task.outputs]
        self._try([name for name in own if name in wanted], frozenset(own), None)

    def _try(self, wanted: Sequence[str], own: frozenset[str], region: Region | None) -> None:
        """In the engine's own operators; else in the model's.

        Else: if a node cannot be cut, or if the engine's optimizer has made something depend on
        what no task of the plan reads.
        """
        nodes, there = len(self._nodes), {n: dict(v) for n, v in self._there.items()}
        try:
            self._add(self._low, wanted, own, region)
        except (Uncut, PlanError):
            del self._nodes[nodes:], self._parts[nodes:]
            self._there = there
            self._add(self._plain, wanted, own, region)

    def _add(
        self, low: Lowered, wanted: Sequence[str], own: frozenset[str], region: Region | None
    ) -> None:
        """``region``: of the only tensor that is wanted; None: all of all."""
        indices = nodes_of(low, wanted, own)
        cuts = {} if region is None else self._cuts(low, wanted[0], indices, region)
        values: dict[str, tuple[str, Region | None]] = {}
        for index in indices:
            self._write(low, low.nodes[index], cuts.get(index), values, region)
        for name in wanted:
            native = low.native(name)
            made = self._graph.tensors[name].whole if region is None else region
            if native not in values and region is not None:
                raise Uncut(f"{name} is computed no more")
            # It may be a weight, or something else that is there, if the engine has found that out.
            self._keep(name, made, low.layout(native), self._value(low, native, None, values))

    def _cuts(
        self, low: Lowered, tensor: str, indices: Sequence[int], region: Region
    ) -> dict[int, OperatorRegion]:
        """By node, what it does for ``region`` of a tensor.

        Raises:
            Uncut: not known of one.
        """
        native = low.native(tensor)
        need = {native: self._inner(low, native, tensor, region)}
        cuts: dict[int, OperatorRegion] = {}
        for index in reversed(indices):
            node = low.nodes[index]
            wanted = need.get(node.output[0])
            if wanted is None or any(node.output[1:]):
                raise Uncut(node.op_type)
            cuts[index] = part = node_region(low, node, wanted)
            for name, read in zip(node.input, part.inputs, strict=True):
                if read is not None and name not in low.weights:
                    need[name] = read if name not in need else need[name].hull(read)
        return cuts

    def _write(
        self, low: Lowered, node: onnx.NodeProto, cut: OperatorRegion | None,
        values: dict[str, tuple[str, Region | None]], made: Region | None,
    ) -> None:  # fmt: skip
        """Add ``node``, all of it or cut.

        Args:
            values: those that were made so far, with their regions where they are cut.
            made: of the tensor that it works for; None: all.
        """
        taken: list[str] = []
        for position, name in enumerate(node.input):
            region = None if cut is None else cut.inputs[position]
            if cut is not None and position in cut.constants:
                taken.append(self._numbers(cut.constants[position]))
            elif not name or (cut is not None and region is None):
                taken.append("")
            elif region is None or region.size:
                taken.append(self._value(low, name, region, values))
        outputs = [self._named(name, cut) if name else "" for name in node.output]
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:], copy.metadata_props[:]
        copy.input.extend(taken)
        copy.output.extend(outputs)
        if cut is None:
            self._rename_captured(low, copy, values)
        else:
            _change(copy, cut)
            copy.name = f"{node.name}{cut.output}"  # names of nodes are unique in a model
        for name, new in zip(node.output, outputs, strict=True):
            if name in low.tensors:
                shape = low.tensors[name].shape if cut is None else cut.computes.shape
                self._declare(new, shape, low.tensors[name])
        self._append(copy, self._part_of(low, node, made))
        for name, new in zip(node.output, outputs, strict=True):
            values[name] = (new, None if cut is None else cut.output)
        if cut is not None and cut.computes != cut.output:
            values[node.output[0]] = (
                self._cropped(outputs[0], cut.computes, cut.output, low.layout(node.output[0])),
                cut.output,
            )

    def _value(
        self, low: Lowered, name: str, region: Region | None,
        values: Mapping[str, tuple[str, Region | None]],
    ) -> str:  # fmt: skip
        """What a node reads as ``name``: a weight, a value of its task, or one that is there."""
        if name in low.weights:
            return self._weight(low, name, region)
        if name in values:
            made, have = values[name]
            if region is None or have is None or have == region:
                return made
            return self._cropped(made, have, region, low.layout(name))
        tensor = low.stands_for.get(name, name)
        if tensor not in self._graph.tensors:
            raise Uncut(f"{name} is of no task")
        wanted = self._graph.tensors[tensor].whole
        if region is not None:
            wanted = _outer(region, wanted)
        return self._get(tensor, wanted, low.layout(name))

    def _rename_captured(
        self, low: Lowered, node: onnx.NodeProto, values: Mapping[str, tuple[str, Region | None]],
        own: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Of a node with bodies: what they read from outside is called otherwise here.

        ``own``: what the bodies around have made, which stays."""
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                inside = own.union(
                    (t.name for t in body.initializer), (v.name for v in body.input),
                    (name for inner in body.node for name in inner.output),
                )  # fmt: skip
                for inner in body.node:
                    for position, name in enumerate(inner.input):
                        if name and name not in inside:
                            inner.input[position] = self._value(low, name, None, values)
                    self._rename_captured(low, inner, values, inside)
                for output in body.output:
                    if output.name not in inside:
                        output.name = self._value(low, output.name, None, values)

    # Regions and layouts

    def _inner(self, low: Lowered, value: str, tensor: str, region: Region) -> Region:
        """A region of ``tensor`` in the lowered ``value``, which may have more channels."""
        shape, whole = low.tensors[value].shape, self._graph.tensors[tensor].shape
        layout = low.layout(value)
        if layout == LAST:
            raise Uncut(f"{tensor} has its channels last")
        if shape == whole:
            inside = layout == PLAIN or _aligned(region, whole, layout)
            if not inside:
                raise Uncut(f"{tensor}{region} does not end where blocks end")
            return region
        if len(shape) != len(whole) or region.start[1] or region.stop[1] != whole[1]:
            raise Uncut(f"{tensor}{region} is cut in its channels, which are filled up")
        return region.with_axis(1, 0, shape[1])

    def _get(self, tensor: str, region: Region, layout: Layout) -> str:
        """A part of a tensor in a layout, made of what is there if need be."""
        there = self._there.get(tensor, {})
        if (region, layout) in there:
            return there[region, layout]
        if layout > 0 and not _aligned(region, self._graph.tensors[tensor].shape, layout):
            raise Uncut(f"{tensor}{region} does not end where blocks end")
        if self._graph.tensors[tensor].opaque:
            raise PlanError(f"the segment needs {tensor}, and does not have it; add it to its "
                            f"inputs or pieces")  # fmt: skip
        have = next((own for r, own in there if r == region), None)
        if have is not None:
            made = there[region, have]
        else:
            made, have = self._assembled(tensor, region, layout)
        made = self._converted(made, tensor, region, have, layout)
        self._keep(tensor, region, layout, made)
        return made

    def _assembled(self, tensor: str, region: Region, layout: Layout) -> tuple[str, Layout]:
        """A part that is cut out of another or joined, in a layout in which that can be done."""
        parts = {r for r, _ in self._there.get(tensor, {})}
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
            axes, regions = _differing(plan.source, region), [plan.source]
        else:
            axes, regions = {plan.axis}, [member.region for member in plan.members]
        # Blocks lie beside each other along the channels: these are cut and joined as they lie.
        as_they_lie = layout > 0 and axes <= {0, 1}
        as_they_lie = as_they_lie and all(_aligned(r, whole, layout) for r in regions)
        inside = layout if as_they_lie else PLAIN
        values = [self._get(tensor, r, inside) for r in regions]
        if isinstance(plan, Taken):
            return self._cropped(values[0], plan.source, region, inside), inside
        return self._joined(values, plan.axis), inside

    def _joined(self, values: Sequence[str], axis: int) -> str:
        like = self._tensors[values[0]]
        shape = list(like.shape)
        shape[axis] = sum(self._tensors[name].shape[axis] for name in values)
        output = self._fresh(values[0])
        self._declare(output, shape, like)
        self._append(onnx.helper.make_node("Concat", values, [output], axis=axis))
        return output

    def _cropped(self, value: str, have: Region, want: Region, layout: Layout) -> str:
        """The region ``want`` of a value that holds ``have``."""
        like = self._tensors[value]
        axes = sorted(_differing(have, want))
        if layout == LAST or (layout > 0 and not set(axes) <= {0, 1}):
            plain = self._left(value, like.shape[1], layout)
            return self._entered(self._cropped(plain, have, want, PLAIN), want.shape[1], layout)
        inside = want.relative_to(have)
        shape = [want.shape[a] if a in axes else size for a, size in enumerate(like.shape)]
        output = self._fresh(value)
        self._declare(output, shape, like)
        bounds = {"starts": [inside.start[a] for a in axes],
                  "ends": [inside.stop[a] for a in axes], "axes": axes}  # fmt: skip
        opset = next((o.version for o in self._plain.header.opset_import if not o.domain), 18)
        if opset < _SLICE_BY_INPUTS:
            node = onnx.helper.make_node("Slice", [value], [output])
            node.attribute.extend(onnx.helper.make_attribute(k, v) for k, v in bounds.items())
            self._append(node)
        else:
            taken = [value, *(self._numbers(n) for n in bounds.values())]
            self._append(onnx.helper.make_node("Slice", taken, [output]))
        return output

    def _converted(
        self, value: str, tensor: str, region: Region, have: Layout, want: Layout
    ) -> str:
        """``value``, a region of ``tensor``, in another layout."""
        if have == want:
            return value
        places, filled = self._low.places.get(tensor), self._filled(tensor, region)
        if have > 0 and places is not None:
            value = self._chosen(self._left(value, filled, have), places)
        elif have != PLAIN:
            value = self._left(value, region.shape[1], have)
        if want > 0 and places is not None:
            index = [len(places)] * filled
            for channel, place in enumerate(places):
                index[place] = channel
            value = self._chosen(self._filled_up(value, len(places) + 1), index)
        return value if want == PLAIN else self._entered(value, filled, want)

    def _chosen(self, value: str, channels: Sequence[int]) -> str:
        like = self._tensors[value]
        output = self._fresh(value)
        self._declare(output, (like.shape[0], len(channels), *like.shape[2:]), like)
        read = [value, self._numbers(channels)]
        self._append(onnx.helper.make_node("Gather", read, [output], axis=1))
        return output

    def _filled(self, tensor: str, region: Region) -> int:
        """The channels of a part of a tensor with those that fill the last block."""
        low, whole = self._low, self._graph.tensors[tensor].shape
        native = low.native(tensor)
        if low.layout(native) <= 0 or region.stop[1] < whole[1]:
            return region.shape[1]
        return region.shape[1] + low.tensors[native].shape[1] - whole[1]

    def _entered(self, value: str, channels: int, layout: Layout) -> str:
        """In a layout, from the model's; filled up to so many channels."""
        value = self._filled_up(value, channels)
        like = self._tensors[value]
        if layout == LAST:
            return self._turned(value, [0, *range(2, len(like.shape)), 1])
        domain, op_type = self._low.dialect.enter
        output = self._fresh(value)
        self._declare(output, like.shape, like)
        self._append(onnx.helper.make_node(op_type, [value], [output], domain=domain))
        return output

    def _filled_up(self, value: str, channels: int) -> str:
        like = self._tensors[value]
        if like.shape[1] == channels:
            return value
        output, rank = self._fresh(value), len(like.shape)
        pads = [0] * (2 * rank)
        pads[rank + 1] = channels - like.shape[1]
        self._declare(output, (like.shape[0], channels, *like.shape[2:]), like)
        self._append(onnx.helper.make_node("Pad", [value, self._numbers(pads)], [output]))
        return output

    def _left(self, value: str, channels: int, layout: Layout) -> str:
        """In the model's layout, from another."""
        like = self._tensors[value]
        if layout == LAST:
            return self._turned(value, [0, len(like.shape) - 1, *range(1, len(like.shape) - 1)])
        domain, op_type = self._low.dialect.leave
        output = self._fresh(value)
        self._declare(output, (like.shape[0], channels, *like.shape[2:]), like)
        self._append(
            onnx.helper.make_node(op_type, [value], [output], domain=domain, channels=channels)
        )
        return output

    def _turned(self, value: str, order: Sequence[int]) -> str:
        like = self._tensors[value]
        output = self._fresh(value)
        self._declare(output, [like.shape[axis] for axis in order], like)
        self._append(onnx.helper.make_node("Transpose", [value], [output], perm=order))
        return output

    # Values

    def _keep(self, tensor: str, region: Region, layout: Layout, name: str) -> Tensor:
        """Note that ``name`` is a part of a tensor."""
        self._there.setdefault(tensor, {})[region, layout] = name
        if name not in self._tensors:
            own = self._graph.tensors[tensor]
            if own.opaque:
                shape = own.shape
            else:
                filled = self._filled(tensor, region) if layout > 0 else 0
                shape = declared_shape(region.shape, layout, filled)
            self._tensors[name] = Tensor(name, shape, own.dtype, opaque=own.opaque)
        return self._tensors[name]

    def _declare(self, name: str, shape: Sequence[int], like: Tensor) -> None:
        self._tensors[name] = Tensor(name, tuple(shape), like.dtype, opaque=like.opaque)

    def _named(self, value: str, cut: OperatorRegion | None) -> str:
        """What the result of a lowered node is called: as there, if nothing else is."""
        name = value if cut is None else f"{value}{cut.computes}"
        return self._fresh(name) if name in self._tensors else name

    def _fresh(self, like: str) -> str:
        self._count += 1
        return f"{like} #{self._count}"

    def _append(self, node: onnx.NodeProto, part: str = "") -> None:
        self._nodes.append(node)
        self._parts.append(part)

    def _part_of(self, low: Lowered, node: onnx.NodeProto, region: Region | None) -> str:
        """The part of a tensor that a node computes; "" if nobody else knows its result."""
        tensor = next((t for n in node.output if (t := low.stands_for.get(n))), "")
        if not tensor:
            return ""
        whole = self._graph.tensors[tensor].whole
        return tensor_part(tensor, whole if region is None else region, self._graph)

    def _numbers(self, values: Iterable[int]) -> str:
        """A new vector of int64."""
        name = self._fresh("numbers")
        self._weights[name] = (ir.Tensor(np.array([*values], np.int64), name=name), None, 0)
        return name

    def _weight(self, low: Lowered, name: str, region: Region | None) -> str:
        """A weight, or the part of it that a cut node reads."""
        tensor = low.weights[name]
        label = name if low is self._low else f"{name} as given"
        if region is None or region.covers(tuple(tensor.shape.numpy())):
            self._weights[label] = (tensor, None, 0)
            return label
        label = f"{label}{region}"
        if label not in self._weights:
            array = tensor.numpy()
            part = array[region.slices]
            together = part.flags.c_contiguous
            offset = part.__array_interface__["data"][0] - array.__array_interface__["data"][0]
            self._weights[label] = (
                tensor, part if together else np.ascontiguousarray(part),
                offset if together else -1,
            )  # fmt: skip
        return label

    # The module

    def module(self, title: str, outputs: Sequence[tuple[str, Region, Layout]]) -> Module:
        """What was added, as a model that yields ``outputs``: tensor, region and layout of each."""
        results = [self._output(*output) for output in outputs]
        nodes, order = self._live({t.name for t in results})
        model = onnx.ModelProto()
        model.CopyFrom(self._low.header)
        domains = {o.domain for o in model.opset_import}
        model.opset_import.extend(
            o for o in self._plain.header.opset_import if o.domain not in domains
        )
        if not model.functions:
            model.functions.extend(self._plain.header.functions)
        model.graph.name = title
        model.graph.node.extend(nodes)
        read = {name for node in nodes for name in reads(node)}
        inputs = [t for t in self._inputs if t.name in read or t.name in
                  {r.name for r in results}]  # fmt: skip
        model.graph.input.extend(declared(t) for t in inputs)
        model.graph.output.extend(declared(t) for t in results)
        if self._low.annotated:
            made = {name for node in nodes for name in node.output} - {t.name for t in results}
            model.graph.value_info.extend(
                declared(self._tensors[n]) for n in sorted(made)
                if n in self._tensors and not self._tensors[n].opaque
            )  # fmt: skip
        external, stored = self._initializers(model, read | {t.name for t in results})
        return Module(
            model.SerializeToString(), external, tuple(inputs), tuple(results),
            tuple(kind_of(node) for node in nodes), tuple(order), stored,
        )  # fmt: skip

    def _output(self, tensor: str, region: Region, layout: Layout) -> Tensor:
        """The part under the name that others read it by."""
        name = part_name(tensor, region, layout, self._graph)
        made = self._get(tensor, region, layout)
        if made != name:
            for node in self._nodes:
                if made in node.output:
                    _rename(self._nodes, made, name)
                    break
            else:
                self._append(onnx.helper.make_node("Identity", [made], [name]))
            self._declare(name, self._tensors[made].shape, self._tensors[made])
            self._there[tensor][region, layout] = name
        return self._tensors[name]

    def _live(self, wanted: set[str]) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes that ``wanted`` needs, with the part that each works for: its own, or that of
        a node which reads it."""
        kept: list[tuple[onnx.NodeProto, str]] = []
        works_for: dict[str, str] = {}
        for node, part in zip(reversed(self._nodes), reversed(self._parts), strict=True):
            if wanted.isdisjoint(node.output):
                continue
            readers = (works_for[name] for name in node.output if name in works_for)
            part = part or next(readers, node.output[0])
            kept.append((node, part))
            wanted = wanted.union(reads(node))
            works_for.update(dict.fromkeys(reads(node), part))
        return [node for node, _ in reversed(kept)], [part for _, part in reversed(kept)]

    def _initializers(
        self, model: onnx.ModelProto, read: set[str]
    ) -> tuple[dict[str, Array], dict[str, tuple[str, int]]]:
        """Write the weights that are read into ``model``, the large ones as placeholders."""
        external: dict[str, Array] = {}
        stored: dict[str, tuple[str, int]] = {}
        for name, (tensor, part, offset) in self._weights.items():
            if name not in read:
                continue
            if not is_large(tensor):
                own = tensor if part is None else ir.Tensor(part, dtype=tensor.dtype, name=name)
                proto = ir.serde.serialize_tensor(own)
                proto.name = name
                model.graph.initializer.append(proto)
                continue
            external[name] = array = tensor.numpy() if part is None else part
            if isinstance(tensor, Stored) and offset >= 0:
                stored[name] = (tensor.stored_as, offset)
            model.graph.initializer.append(placeholder(name, tensor.dtype, array))
        return external, stored


_SLICE_BY_INPUTS = 10
"""The opset from which Slice takes its bounds as inputs."""


def _change(node: onnx.NodeProto, cut: OperatorRegion) -> None:
    """Give ``node`` the attributes that its part of the work has."""
    kept = [a for a in node.attribute if a.name not in cut.attributes]
    changed = [
        onnx.helper.make_attribute(key, value)
        for key, value in cut.attributes.items()
        if value is not None
    ]
    del node.attribute[:]
    node.attribute.extend([*kept, *changed])


def _rename(nodes: Sequence[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == old:
                    names[position] = new


def _aligned(region: Region, shape: Sequence[int], block: int) -> bool:
    """Whether a region of a tensor of ``shape`` begins and ends with whole blocks of channels."""
    start, stop = region.start[1], region.stop[1]
    return start % block == 0 and (stop % block == 0 or stop == shape[1])


def _differing(one: Region, other: Region) -> set[int]:
    ranges = zip(one.start, one.stop, other.start, other.stop, strict=True)
    return {axis for axis, (a, b, c, d) in enumerate(ranges) if (a, b) != (c, d)}


def _outer(region: Region, whole: Region) -> Region:
    """A region of a lowered tensor in the model's, which may have fewer channels."""
    start = tuple(min(a, b) for a, b in zip(region.start, whole.stop, strict=True))
    stop = tuple(min(a, b) for a, b in zip(region.stop, whole.stop, strict=True))
    return Region(start, stop)
