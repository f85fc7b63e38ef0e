"""Tools for kernel files: values, the text of one kernel, and its launch.

A kernel file produces text and numbers and never calls OpenCL. It defines which kernel runs, over
which grid, with which tensors. Compiling, allocating and timing are done elsewhere.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Literal

import numpy as np

from coexec.arrays import Array, aligned, numpy_type
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.parameter import Parameter
from coexec.engines.kernels.touches import Touch
from coexec.engines.kernels.unsupported import ALL
from coexec.engines.kernels.value import (
    CTYPES,
    TensorView,
    Value,
    ceil_div,
    dense_axes,
    literal,
    row_major,
)
from coexec.graph.graph import Operator, Tensor

__all__ = [
    "CTYPES",
    "OPENCL_PRELUDE",
    "Argument",
    "Chooser",
    "Context",
    "ConvTraits",
    "Grid",
    "Kernel",
    "KernelLaunch",
    "Node",
    "Source",
    "Value",
    "ceil_div",
    "in_float32",
    "in_half",
    "indented",
    "literal",
    "row_major",
    "usual_block",
]

OPENCL_PRELUDE = "#define SELECT(mask, a, b) ((mask) ? (a) : (b))\n"
"""The text in front of each source for a compiler of OpenCL C. ``SELECT`` chooses lane by lane
where the mask is a vector, for which C++ has no operator."""

Grid = tuple[int, int, int]

Argument = Value | Array | int
"""Argument of a kernel: a tensor and its offset, a constant array, or a 32-bit integer."""


@dataclass(frozen=True, slots=True)
class ConvTraits:
    """Properties of a convolution for the rules of work groups."""

    kind: Literal["convolution", "depthwise"]
    edge: int
    """Edge of a square kernel; 0 if it is not square."""
    stride: int


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """One kernel with its arguments."""

    name: str
    source: str
    """Complete OpenCL C text. Launches that differ in their arguments only have the same text."""
    arguments: tuple["Argument", ...]
    written: frozenset[str]
    """Names of the tensors that the kernel writes."""
    grid: Grid
    """Work items that are needed."""
    group: Grid | None
    """Work group that the kernel needs; None: any group is right, see `tuner`."""
    convolution: ConvTraits | None = None
    may_be_images: frozenset[str] = frozenset()
    """Tensors that the kernel uses by whole vectors at coordinates only, so they may be images."""
    with_images: Callable[[frozenset[str]], str] = field(default=lambda names: "")
    """The source for these tensors stored as images."""
    touches: tuple[Touch | None, ...] = ()
    """By argument, the part of a tensor that a box of the grid touches; None: all of it."""
    macs: int = 0
    """Multiply-adds, where they are more than a few for each scalar that is read."""
    thread_bytes: int = 0
    """Size of ``thread_memory``, see `Source.thread_memory`."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operator, and the element-wise operators that are fused behind it."""

    operator: Operator
    epilogue: tuple[Operator, ...] = ()
    """Fused operators in order. Each one reads the result of an earlier operator of this node; all
    outputs have the same shape."""

    @property
    def output(self) -> str:
        """Name of the result. Operators with several outputs have no epilogue."""
        return (self.epilogue[-1] if self.epilogue else self.operator).outputs[0]

    @property
    def outputs(self) -> tuple[str, ...]:
        if self.epilogue:
            return (self.output,)
        return tuple(name for name in self.operator.outputs if name)

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (self.operator, *self.epilogue)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that it reads and does not compute, without duplicates."""
        inside = {name for op in self.operators for name in op.outputs}
        names = (n for op in self.operators for n in op.inputs if n and n not in inside)
        return tuple(dict.fromkeys(names))


Chooser = Callable[[str, Mapping[str, Callable[[], list[KernelLaunch]]]], str]
"""Picks one of several named variants of a kernel. Calls with the same first argument, a key, get
the same choice."""


@dataclass(eq=False)
class Context:
    """The data from which a kernel file generates its launches."""

    arch: Architecture
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    blocks: Mapping[str, int] = field(default_factory=dict)
    """Block size by tensor, where the layout is not the usual one."""
    last: Container[str] = ()
    """Tensors in blocks whose blocks lie behind each other at each pixel."""
    views: Mapping[str, TensorView] = field(default_factory=dict)
    """Place of each tensor that is a view, see `views`."""
    of_host: Container[str] = ()
    """Tensors that are arrays of the host, in float32 where others are stored in 16 bits."""
    in_place: dict[str, frozenset[int]] = field(default_factory=dict)
    """Positions of the inputs that are computed in place, by result of a Concat."""
    chooser: "Chooser | None" = None
    """Picks one of several variants by measuring; None: the first variant is used."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """Counter for names of temporaries, shared with contexts that are derived from this one."""

    def value(self, name: str) -> Value:
        """A tensor with its layout on the device."""
        of_halves = self.tensors[name].dtype == "float16"
        tensor = in_float32(self.tensors[name])
        view = self.views.get(name)
        if view is not None:
            half = self.value(view.source).half
            return Value(name, tensor.shape, tensor.dtype, 0, half, axes=view.axes)
        block = self.blocks.get(name, usual_block(tensor, self.arch))
        size = math.prod(tensor.shape)
        half = name not in self.of_host and in_half(self.arch, tensor.dtype, size)
        last = name in self.last
        return Value(name, tensor.shape, tensor.dtype, block, half, last, of_halves=of_halves)

    def constant(self, name: str) -> Array | None:
        """The values of a constant tensor; None for one that is computed."""
        return self.constants.get(name)

    def operand(self, name: str) -> Value | Array:
        """The values of ``name`` if it is constant, else the tensor."""
        array = self.constant(name)
        return self.value(name) if array is None else array

    def has_vectors(self, name: str, axis: int) -> bool:
        """Whether a tensor or constant consists of aligned vectors of four neighbours along
        ``axis``; not on CPU cores, see `Architecture.in_vectors`."""
        shape = self.tensors[name].shape
        array, view = self.constant(name), self.views.get(name)
        if not shape or (array is None and self.value(name).block):
            return False
        axes = (view.axes if view else ()) or dense_axes(shape)
        (size, step), *further = axes[axis][::-1] or [(1, 1)]
        others = [other for a, parts in enumerate(axes) if a != axis % len(axes) for other in parts]
        steps = [size, view.offset if view else 0, *(s for _, s in (*others, *further))]
        return step == 1 and not any(step % 4 for step in steps)

    def choose(
        self, key: str, variants: Mapping[str, Callable[[], list[KernelLaunch]]]
    ) -> list[KernelLaunch]:
        """The launches of one of ``variants``, which are ordered from the most promising one on.

        ``key`` is equal where the same choice is right: it contains shapes and attributes, no
        names.
        """
        name = next(iter(variants))
        if self.chooser is not None and len(variants) > 1:
            name = self.chooser(key, variants)
        return variants[name]()

    def temporary(self, shape: Sequence[int], block: int = 0, half: bool = False) -> Value:
        """Memory for data between two launches of one node."""
        return Value(f"temporary {next(self._numbers)}", tuple(shape), "float32", block, half)


_SMALL = 4096
"""Tensors of at most this many scalars stay in 32 bits when others are stored in 16. Storing them
in 16 bits saves nothing, and errors of biases, gates and scales affect whole channels."""


def in_float32(tensor: Tensor) -> Tensor:
    """The tensor as kernels compute it: float16 becomes float32."""
    return replace(tensor, dtype="float32") if tensor.dtype == "float16" else tensor


def in_half(arch: Architecture, dtype: str, size: int) -> bool:
    """Whether a tensor or constant of ``size`` scalars is stored in 16 bits."""
    return arch.half and dtype == "float32" and size > _SMALL


def usual_block(tensor: Tensor, arch: Architecture) -> int:
    """The usual block of a tensor: images with more than a few channels have blocks, others have 0.

    It depends on shape and type only, so that all segments use the same layout for a tensor.
    """
    image = len(tensor.shape) == 4 and tensor.dtype == "float32"
    return arch.block if image and 2 * tensor.shape[1] > arch.block else 0


def _all_supported(op: Operator, tensors: Mapping[str, Tensor]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernels for operators of one type: a row of the registry."""

    launches: Callable[[Node, Context], list[KernelLaunch]]
    types: frozenset[str] = ALL
    """Types of the first input that they compute."""
    why_not: Callable[[Operator, Mapping[str, Tensor]], str | None] = _all_supported
    """The reason, for users, why an operator of these types is not supported; None if it is."""
    refuses: str = ""
    """In words, the operators for which `why_not` has a reason."""
    takes_views: Literal["none", "inputs", "product"] = "none"
    """Which tensors may be views, see `views`: none; the inputs, without factors; the first two
    inputs and the result of a product of matrices."""
    takes_epilogue: bool = False
    """Whether they apply element-wise operators that are fused behind to their result."""
    joins: Literal["nothing", "scalars", "vectors"] = "nothing"
    """Kernels behind which this operator may be fused, if it is element-wise: none; those that
    compute scalars; those that compute vectors of float32, too."""


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """The lines of a block ``depth`` levels further inside."""
    return [f"{'  ' * depth}{line}" for line in lines]


class Source:
    """Builds the text of one kernel together with its arguments.

    For a tensor declared as ``x``, the text may use:

    * ``x``: a pointer to its stored scalars
    * ``AT_x(i, j, ...)``: the position of an element by its coordinates, in any layout
    * ``GET_x(position)``, ``PUT_x(position, value)``: one scalar
    * ``VEC_x(n, s, y, x)``: the position of a vector of channels of a blocked tensor
    * ``LOAD_x(position)``, ``STORE_x(position, vector)``: one vector

    Sizes are literals, or arguments if the source is ``sized``. Kernels that differ in sizes only
    then have the same text, which is compiled once.
    """

    def __init__(
        self, name: str, arch: Architecture, sized: bool = False, alone: bool = False
    ) -> None:
        """``alone``: groups are single work items, at the position item_0, item_1, item_2."""
        self.name = name
        self.arch = arch
        self._sized = sized
        self._alone = alone
        self._defines: list[str] = []
        self._parameters: list[Parameter] = []
        self._sizes: dict[str, int] = {}
        """Integer arguments by name, in their order behind all other arguments."""
        self._body: list[str] = []
        self._thread_bytes = 0

    def read(self, name: str, operand: Value | Array, at_result: bool = False) -> Value:
        """Declare a tensor that the kernel reads, or a constant in its place; returned as a tensor.

        A constant lies row-major, for ``AT_x`` and ``GET_x``; see `constant` for vectors of one.

        Args:
            at_result: it is read only at the coordinates of the elements that are written to ``y``.
        """
        if not isinstance(operand, Value):
            self.constant(name, operand, vector=1)
            self.define(row_major(name, operand.shape))
            return Value(name, operand.shape, operand.dtype.name)
        sizes = self._sizes_of(name, operand)
        self._parameters.append(Parameter(name, operand, sizes=sizes, at_result=at_result))
        return operand

    def write(self, name: str, value: Value) -> None:
        """Declare a tensor that the kernel writes."""
        sizes = self._sizes_of(name, value)
        self._parameters.append(Parameter(name, value, written=True, sizes=sizes))

    def thread_memory(self, size_bytes: int) -> None:
        """Declare ``thread_memory``, on CPU cores: floats from a cache line on, with any content,
        of the thread that computes a work item."""
        self._thread_bytes = size_bytes

    def size(self, name: str, number: int) -> str:
        """Text of a number: the name of an argument if the source is ``sized``, else a literal.

        The number must not change any other part of the text.

        Args:
            name: must not depend on any size, so that kernels with equal texts have equal names.
        """
        if not self._sized:
            return str(number)
        if self._sizes.setdefault(name, int(number)) != number:
            raise ValueError(f"{self.name}: {name} is both {self._sizes[name]} and {number}")
        return name

    def constant(
        self, name: str, array: Array, vector: int | None = None, half: bool | None = None
    ) -> None:
        """Declare a constant array; ``LOAD_x(i)`` reads its i-th vector (of the block's width).

        ``half``: whether it is stored in 16 bits; None: as others of its size.
        """
        if half is None:
            half = in_half(self.arch, array.dtype.name, array.size)
        stored = aligned(array.astype(numpy_type(self.arch.half_type)) if half else array)
        self._parameters.append(Parameter(name, stored, vector=vector or self.arch.block))

    def sizes(self, **numbers: int) -> None:
        """Declare integers that the text of a ``sized`` source uses by name."""
        for name, number in numbers.items():
            self.size(name, number)

    def _sizes_of(self, name: str, value: Value) -> tuple[int | str, ...]:
        if not value.block:
            sizes = {f"{name}_{axis}": size for axis, size in enumerate(value.shape)}
        else:
            _, _, height, width = value.shape
            sizes = {f"{name}_slices": value.slices, f"{name}_h": height, f"{name}_w": width}
        return tuple(self.size(text, number) for text, number in sizes.items())

    def lines(self, lines: Iterable[str]) -> None:
        """Add lines to the body, indented."""
        self.add("\n".join(indented(lines)))

    def add(self, text: str) -> None:
        """Add text to the body as it is."""
        self._body.append(text)

    def define(self, text: str) -> None:
        """Add a macro or a function in front of the kernel."""
        self._defines.append(text)

    def finish(
        self,
        grid: Sequence[int],
        group: Grid | None = None,
        convolution: ConvTraits | None = None,
        touches: Mapping[str, Touch] = MappingProxyType({}),
        macs: int = 0,
    ) -> KernelLaunch:
        """The launch of the finished kernel over ``grid`` work items. Missing axes have size 1.

        Without a fixed group the grid may be rounded up: work items outside return at once.

        Args:
            touches: the part of a tensor that a box of the grid touches, by its name in the text;
                without one, all of it.
            macs: as of the launch.
        """
        x, y, z = (*grid, 1, 1)[:3]
        sizes = (x, y, z)
        body = "\n".join(self._body)
        limits = (
            ()
            if group
            else tuple(
                self.size(f"grid_{axis}", number) for axis, number in zip("xyz", sizes, strict=True)
            )
        )
        written = (p.argument.name for p in self._parameters if p.written)  # type: ignore[union-attr]
        return KernelLaunch(
            name=self.name,
            source=self._text(limits, group, frozenset()),
            arguments=(*(p.argument for p in self._parameters), *self._numbers()),
            written=frozenset(written),
            grid=sizes,
            group=group,
            convolution=convolution,
            may_be_images=frozenset(p.value_name for p in self._parameters if p.may_be_image(body)),
            with_images=lambda names: self._text(limits, group, names),
            touches=tuple(self._touch(p, touches) for p in self._parameters),
            macs=macs,
            thread_bytes=self._thread_bytes,
        )

    def _touch(self, parameter: Parameter, touches: Mapping[str, Touch]) -> Touch | None:
        """The part of a parameter that a box touches. What is read at the coordinates of the result
        lies at the result's positions, if both have one layout."""
        results = (p.argument for p in self._parameters if p.name == "y")
        value, result = parameter.argument, next(results, None)
        if not (parameter.at_result and isinstance(value, Value) and isinstance(result, Value)):
            return touches.get(parameter.name)
        layouts = [(v.shape, v.block, v.last, v.axes) for v in (value, result)]
        return touches.get("y") if layouts[0] == layouts[1] else None

    def _numbers(self) -> tuple[int | Array, ...]:
        """The sizes as arguments. If each work item is a group, they are one array: drivers need
        0.1 us for each argument of a launch."""
        numbers = tuple(self._sizes.values())
        return (np.array(numbers, np.int32),) if self._alone and numbers else numbers

    def _text(self, grid: Sequence[str], group: Grid | None, images: frozenset[str]) -> str:
        """The text of the kernel over ``grid``; the tensors ``images`` are stored as images."""
        parameters = [p.as_image() if p.value_name in images else p for p in self._parameters]
        declared = [p.declaration for p in parameters]
        macros = "\n".join([*self._defines, *(p.macros for p in parameters)])
        prelude, body = "".join(p.prelude for p in parameters), "\n".join(self._body) + "\n"
        if self._alone:
            form = (self.name, self.arch.vector, declared, tuple(self._sizes))
            in_thread = self._thread_bytes > 0
            return f"{macros}\n{_outlined(*form, prelude + body, in_thread)}"
        declared += [f"int {name}" for name in self._sizes]
        guard = (
            ""
            if group
            else (
                f"  if (get_global_id(0) >= {grid[0]} || get_global_id(1) >= {grid[1]}"
                f" || get_global_id(2) >= {grid[2]}) return;\n"
            )
        )
        fixed = f"{_fixed_group(group)}\n" if group else ""
        return (
            f"{macros}\n{fixed}__kernel void {self.name}({', '.join(declared)})\n"
            f"{{\n{prelude}{guard}{body}}}\n"
        )


def _fixed_group(group: Grid) -> str:
    """The attribute of a kernel that runs in groups of this size only."""
    return f"__attribute__((reqd_work_group_size({', '.join(map(str, group))})))"


def _outlined(
    name: str,
    vector: str,
    declared: Sequence[str],
    sizes: Sequence[str],
    body: str,
    in_thread: bool,
) -> str:
    """A kernel for groups of one work item, and the function that it calls to do all its work.

    A compiler for cores may compile the code of a kernel several times, but the function once. The
    function takes a vector, ``zero``: LLVM would otherwise split vectors of 512 bits in it.

    Args:
        declared: parameters, one or more in each text.
        sizes: names of the integers in the array that is the last parameter, if there are any.
        body: uses ``item_0``, ``item_1``, ``item_2`` as the position of the work item.
        in_thread: it uses ``thread_memory``.
    """
    memory = (", float* thread_memory", ", thread_memory") if in_thread else ("", "")
    parameters = ", ".join([*declared, *(["__global const int* restrict sizes"] if sizes else [])])
    size_lines = "".join(f"  const int {text} = sizes[{i}];\n" for i, text in enumerate(sizes))
    values = [*re.findall(r"(\w+)(?:,|$)", parameters), *(f"get_global_id({i})" for i in range(3))]
    return (
        f"__attribute__((noinline)) static void {name}_item({parameters}, "
        f"int item_0, int item_1, int item_2, {vector} zero{memory[0]})\n{{\n{size_lines}{body}}}\n"
        f"{_fixed_group((1, 1, 1))}\n__kernel void {name}({parameters})\n{{\n"
        f"  {name}_item({', '.join(values)}, ({vector})(0.0f){memory[1]});\n}}\n"
    )
