"""A parameter of a kernel: its declaration, and the macros by which the text of the kernel uses it.

A tensor is stored in a buffer or in an image. In an image, the texel at (x * batch + n, y * slices
+ s) has four channels, and a single element has no address.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

from coexec.arrays import Array
from coexec.engines.kernels.value import CTYPES, Value, row_major, strided


@dataclass(frozen=True, eq=False)
class Parameter:
    """A tensor or a constant array, with its name in the kernel."""

    name: str
    argument: Value | Array
    written: bool = False
    vector: int = 1
    """Width of ``LOAD_x`` for a constant. For a tensor, the width is its block."""
    image: bool = False
    sizes: tuple[int | str, ...] = ()
    """Sizes of a tensor, as numbers or as names of arguments. Blocked: slices, height and width;
    row-major: all axes."""
    at_result: bool = False
    """Whether it is read only at the coordinates of the elements that are written to ``y``."""

    @property
    def value_name(self) -> str:
        """Name of the tensor; "" for constants."""
        return self.argument.name if isinstance(self.argument, Value) else ""

    def as_image(self) -> Self:
        return replace(self, image=True)

    def may_be_image(self, body: str) -> bool:
        """Whether ``body`` uses it only as LOAD_x(VEC_x(...)) or STORE_x(VEC_x(...), ...)."""
        value = self.argument
        if not isinstance(value, Value) or value.block != 4:
            return False
        access = "STORE" if self.written else "LOAD"
        name = re.escape(self.name)
        other_text = re.sub(rf"\b{access}_{name}\(VEC_{name}\(", "", body)
        return not re.search(rf"(?<![.\w])(\w+_)?{name}\b", other_text)

    @property
    def declaration(self) -> str:
        name, value = self.name, self.argument
        if self.image:
            return f"{'__write_only' if self.written else '__read_only'} image2d_t {name}"
        if isinstance(value, Value):
            return f"__global {self._const}{value.ctype}* restrict {name}_, int {name}_at"
        return f"__global const {self._ctype}* restrict {name}"

    @property
    def prelude(self) -> str:
        """First line of the kernel's body: the pointer to the start of the tensor."""
        name, value = self.name, self.argument
        if self.image or not isinstance(value, Value):
            return ""
        return f"  __global {self._const}{value.ctype}* restrict {name} = {name}_ + {name}_at;\n"

    @property
    def macros(self) -> str:
        name, value = self.name, self.argument
        if self.image:
            return self._image_macros()
        text = self._access_macros()
        if not isinstance(value, Value):
            return text
        if value.axes:
            return f"{text}\n{strided(name, value.axes)}"
        if not value.block:
            return f"{text}\n{row_major(name, self.sizes)}"
        slices, h, w = self.sizes
        place = f"(((n) * {slices} + (s)) * {h} + (y)) * {w} + (x)"
        if value.last:
            place = f"(((n) * {h} + (y)) * {w} + (x)) * {slices} + (s)"
        return (
            f"{text}\n#define VEC_{name}(n, s, y, x) ({place})\n"
            f"#define AT_{name}(n, c, y, x) (VEC_{name}(n, (c) / {value.block}, y, x) "
            f"* {value.block} + (c) % {value.block})"
        )

    @property
    def _const(self) -> str:
        return "" if self.written else "const "

    @property
    def _half(self) -> bool:
        value = self.argument
        if isinstance(value, Value):
            return value.half
        return value.dtype.name in ("float16", "bfloat16")

    @property
    def _ctype(self) -> str:
        value = self.argument
        if isinstance(value, Value):
            return value.ctype
        return "half" if self._half else CTYPES[value.dtype.name]

    @property
    def _width(self) -> str:
        value = self.argument
        vector = (value.block or 1) if isinstance(value, Value) else self.vector
        return "" if vector == 1 else str(vector)

    def _access_macros(self) -> str:
        name, width, ctype = self.name, self._width, self._ctype
        if self._half:
            return (
                f"#define GET_{name}(i) vload_half(i, {name})\n"
                f"#define PUT_{name}(i, v) vstore_half(v, i, {name})\n"
                f"#define LOAD_{name}(i) vload_half{width}(i, {name})\n"
                f"#define STORE_{name}(i, v) vstore_half{width}(v, i, {name})"
            )
        # A cast, as some compilers call a function for vload and spill all registers.
        return (
            f"#define GET_{name}(i) {name}[i]\n"
            f"#define PUT_{name}(i, v) {name}[i] = (v)\n"
            f"#define LOAD_{name}(i) ((__global const {ctype}{width}*){name})[i]\n"
            f"#define STORE_{name}(i, v) ((__global {ctype}{width}*){name})[i] = (v)"
        )

    def _image_macros(self) -> str:
        name, value = self.name, self.argument
        assert isinstance(value, Value)
        at = f"(int2)((x) * {value.shape[0]} + (n), (y) * {value.slices} + (s))"
        access = (
            f"#define STORE_{name}(i, v) write_imagef({name}, i, v)"
            if self.written
            else f"#define LOAD_{name}(i) read_imagef({name}, CLK_NORMALIZED_COORDS_FALSE | "
            f"CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST, i)"
        )
        return f"#define VEC_{name}(n, s, y, x) {at}\n{access}"
