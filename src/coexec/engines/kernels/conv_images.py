"""Convolution along one or three axes, or to few channels, as a convolution of images in blocks.

It is for CPU cores. A tensor with one spatial axis is an image of one row. With three spatial axes,
each depth of the result is an image. Its input is an image with the channels of as many depths as
the filter has; channels of depths outside are zeros. One kernel copies the input into such images,
with padding around them. Another one copies the result out of its blocks and applies the epilogue.
Both take little time beside the sums.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    in_half,
    indented,
)
from coexec.engines.kernels.epilogue import Output
from coexec.graph.graph import Operator, Scalars, Tensor
from coexec.graph.rules.windows import Window, windows

Launches = Callable[[Node, Context], list[KernelLaunch]]

_RUN = 128
"""Pixels of a row that a work item copies: few enough for their vectors to stay in the cache from
lane to lane."""
_ONE_ROW = Window(1, 1, 1, 1, 0, 0, False)


@dataclass(frozen=True, slots=True)
class _Volumes:
    """Sizes of a convolution over depth, height and width; missing axes have size 1."""

    batch: int
    groups: int
    channels: int
    """Input channels of one group."""
    slides: tuple[Window, ...]
    taps: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def of(op: Operator, tensors: Mapping[str, Tensor]) -> "_Volumes":
        x, w = (tensors[name].shape for name in op.inputs[:2])
        spatial = windows(op, tensors, w[2:])
        if spatial is None:
            raise ValueError(f"the padding of {op.outputs[0]!r} cannot be told")
        ones = (1,) * (3 - len(spatial))
        dilations = op.ints("dilations", (1,) * len(spatial))
        slides = (_ONE_ROW,) * len(ones) + tuple(spatial)
        groups = op.int("group", 1)
        return _Volumes(x[0], groups, w[1], slides, ones + w[2:], ones + dilations)

    @property
    def images(self) -> int:
        return self.batch * self.slides[0].output

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the input's images, with padding around them."""
        rows, columns = (s.begin + s.size + max(_behind(s), 0) for s in self.slides[1:])
        return self.groups * self.taps[0] * self.channels, rows, columns


def _behind(slide: Window) -> int:
    """Padding behind an axis, as far as windows reach."""
    return (slide.output - 1) * slide.stride + slide.extent - slide.size - slide.begin


def fits(op: Operator, tensors: Mapping[str, Tensor]) -> bool:
    """Whether there are one to three spatial axes."""
    x = tensors[op.inputs[0]]
    return 3 <= len(x.shape) <= 5 and not x.constant


def launches(node: Node, context: Context, inner: Launches) -> list[KernelLaunch]:
    """The launches; ``inner`` makes those of a convolution of images with a result in blocks."""
    op, block = node.operator, context.arch.block
    volumes = _Volumes.of(op, context.tensors)
    x, y = context.value(op.inputs[0]), context.value(op.outputs[0])
    size = tuple(s.output for s in volumes.slides[1:])
    result = _blocks(context, (volumes.images, y.shape[1], *size))
    copied = len(x.shape) == 5 or (len(x.shape) == 3 and 2 * x.shape[1] > block)
    kernels: list[KernelLaunch] = []
    if copied:
        images = _blocks(context, (volumes.images, *volumes.image))
        kernels.append(_copy(context, x, images, volumes))
    else:
        height = x.shape[2:-1] or (1,)
        images = replace(x, shape=(*x.shape[:2], *height, x.shape[-1]))
    inside, images_op = _over_images(op, context, images, result, padded=copied)
    return [*kernels, *inner(Node(images_op), inside), _unblock(node, context, result)]


def _blocks(context: Context, shape: Sequence[int]) -> Value:
    """Images in blocks, between two kernels."""
    half = in_half(context.arch, "float32", math.prod(shape))
    return context.temporary(shape, context.arch.block, half)


def transposed(node: Node, context: Context, inner: Launches) -> list[KernelLaunch]:
    """The launches of a transposed convolution of one or two axes; ``inner`` as in `launches`."""
    op = node.operator
    x, y, filters = (context.tensors[n] for n in (op.inputs[0], op.outputs[0], op.inputs[1]))
    flat = len(x.shape) == 3

    def image(shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:2], 1, shape[2]) if flat else tuple(shape)

    out = _blocks(context, image(y.shape))
    tensors = dict(context.tensors)
    for tensor in (x, filters):
        tensors[tensor.name] = replace(tensor, shape=image(tensor.shape))
    tensors[out.name] = Tensor(out.name, out.shape, "float32")
    array = context.constants[filters.name]
    constants = {**context.constants, filters.name: array.reshape(image(array.shape))}
    blocks = {x.name: context.value(x.name).block, out.name: out.block}
    inside = replace(
        context, tensors=tensors, constants=constants, blocks={**context.blocks, **blocks}
    )
    attributes = dict(op.attributes)
    if flat:
        for name, value in (("strides", 1), ("dilations", 1), ("output_padding", 0)):
            attributes[name] = (value, *op.ints(name, (value,)))
        attributes.pop("kernel_shape", None)
        begin, end = op.ints("pads", (0, 0))
        attributes["pads"] = (0, begin, 0, end)
        if "output_shape" in attributes:
            attributes["output_shape"] = (1, *op.ints("output_shape", ()))
    images = replace(op, outputs=(out.name,), attributes=attributes)
    return [*inner(Node(images), inside), _unblock(node, context, out)]


def _over_images(
    op: Operator, context: Context, images: Value, made: Value, padded: bool
) -> tuple[Context, Operator]:
    """The convolution from ``images`` to ``made``, and the context that has these tensors.

    ``padded``: the images include the padding.
    """
    volumes = _Volumes.of(op, context.tensors)
    name = op.inputs[1]
    filters = context.tensors[name]
    outputs, channels = filters.shape[:2]
    depths, *plane = volumes.taps
    tensors = {v.name: Tensor(v.name, v.shape, "float32") for v in (images, made)}
    tensors[name] = replace(filters, shape=(outputs, depths * channels, *plane))
    blocks = {images.name: images.block, made.name: made.block}
    split = context.constants[name].reshape(outputs, channels, depths, -1).swapaxes(1, 2)
    constants = {**context.constants, name: split.reshape(tensors[name].shape)}
    inside = replace(
        context,
        tensors={**context.tensors, **tensors},
        constants=constants,
        blocks={**context.blocks, **blocks},
    )
    slides = volumes.slides[1:]
    pads = (0,) * 4 if padded else (*(s.begin for s in slides), *(s.end for s in slides))
    attributes: dict[str, Scalars] = {
        "group": volumes.groups,
        "strides": tuple(s.stride for s in slides),
        "dilations": volumes.dilations[1:],
        "pads": pads,
    }
    read = (images.name, *op.inputs[1:])
    return inside, Operator("Conv", read, (made.name,), attributes, {}, version=op.version)


def _copy(context: Context, x: Value, images: Value, volumes: _Volumes) -> KernelLaunch:
    """The kernel that copies a row-major tensor into images, with channels for the depths."""
    depth, height, width = volumes.slides
    whole = replace(x, shape=(*x.shape[:2], *(s.size for s in volumes.slides)))
    source = Source("conv_images", context.arch, sized=True, alone=True)
    source.read("x", whole)
    source.write("y", images)
    channels, rows, columns = volumes.image
    runs, b = ceil_div(columns, _RUN), images.block
    source.sizes(
        runs=runs,
        columns=columns,
        channels=channels,
        inner=volumes.channels,
        taps=volumes.taps[0],
        depths=depth.output,
        stride=depth.stride,
        front=depth.begin,
        dilation=volumes.dilations[0],
        top=height.begin,
        left=width.begin,
    )
    source.add(f"""\
  const int oy = item_0 / runs, start = item_0 % runs * {_RUN}, s = item_1;
  const int n = item_2 / depths, row = oy - top, stop = min(start + {_RUN}, columns);
  for (int lane = 0; lane < {b}; lane++) {{
    const int k = s * {b} + lane, group = k / (inner * taps);
    const int d = item_2 % depths * stride - front + k / inner % taps * dilation;
    const int inside = k < channels && d >= 0 && d < x_2 && row >= 0 && row < x_3;
    const int c = inside ? group * inner + k % inner : 0;
    const int from = AT_x(n, c, (inside ? d : 0), (inside ? row : 0), 0) - left;
    const int first = inside ? clamp(left, start, stop) : stop;
    const int last = inside ? clamp(left + x_4, first, stop) : stop;
    for (int px = start; px < first; px++) PUT_y(VEC_y(item_2, s, oy, px) * {b} + lane, 0.0f);
    for (int px = first; px < last; px++)
      PUT_y(VEC_y(item_2, s, oy, px) * {b} + lane, GET_x(from + px));
    for (int px = last; px < stop; px++) PUT_y(VEC_y(item_2, s, oy, px) * {b} + lane, 0.0f);
  }}""")
    return source.finish((runs * rows, images.slices, volumes.images), (1, 1, 1))


def _unblock(node: Node, context: Context, made: Value) -> KernelLaunch:
    """The kernel that copies the result into the layout of the model and applies the epilogue."""
    source = Source("conv_result", context.arch, sized=True, alone=True)
    source.read("x", made)
    output = Output(source, context, node, scalar=True)
    shape, b = output.value.shape, made.block
    images, channels, height, width = made.shape
    depths, runs = images // shape[0], ceil_div(width, _RUN)
    source.sizes(runs=runs, columns=width, channels=channels, depths=depths)
    coordinates = ["n", "c", "item_2 % depths", "oy", "px"]
    place = [*coordinates[:2], *coordinates[7 - len(shape) :]]
    stored = output.store(f"GET_x(VEC_x(item_2, s, oy, px) * {b} + lane)", place)
    source.add(
        "\n".join(
            [
                f"  const int oy = item_0 / runs, start = item_0 % runs * {_RUN}, s = item_1;",
                f"  const int n = item_2 / depths, stop = min(start + {_RUN}, columns);",
                f"  for (int lane = 0; lane < min({b}, channels - s * {b}); lane++) {{",
                f"    const int c = s * {b} + lane;",
                "    for (int px = start; px < stop; px++) {",
                *indented(stored, 3),
                "    }",
                "  }",
            ]
        )
    )
    return source.finish((runs * height, made.slices, images), (1, 1, 1))
