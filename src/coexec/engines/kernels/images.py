"""Selects tensors that are stored as images, on processors that read images faster than buffers.

A tensor may be an image if all kernels access it by whole vectors at coordinates, if it is written
and read inside of one program only, and if no other tensor shares its memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coexec.engines.kernels.aliasing import Aliases
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import KernelLaunch, Value

Extent = tuple[int, int]
"""Width and height of an image, in texels of four channels."""


def extent(value: Value) -> Extent:
    n, _, h, w = value.shape
    return w * n, h * value.slices


def stored_as_images(
    launches: Sequence[KernelLaunch], aliases: Aliases, external: set[str], arch: Architecture
) -> tuple[list[KernelLaunch], Mapping[str, Extent]]:
    """The launches, with sources that use images, and the extent of each image by tensor.

    There are no images on most processors.
    """
    if not arch.image_edge:
        return list(launches), {}
    extents: dict[str, Extent] = {}
    refused: set[str] = set(external)
    for launch in launches:
        for value in launch.arguments:
            if not isinstance(value, Value):
                continue
            if (
                value.name in launch.may_be_images
                and aliases.alone(value.name)
                and max(extent(value)) <= arch.image_edge
            ):
                extents[value.name] = extent(value)
            else:
                refused.add(value.name)
    images = {name: size for name, size in extents.items() if name not in refused}
    return [_rewritten(launch, frozenset(images)) for launch in launches], images


def _rewritten(launch: KernelLaunch, images: frozenset[str]) -> KernelLaunch:
    names = launch.may_be_images & images
    return replace(launch, source=launch.with_images(names)) if names else launch
