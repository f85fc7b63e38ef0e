"""Memory for the tensors between the launches of a program, shared by those not alive at once."""

from typing import Any

import pyopencl as cl

from coexec.engines.kernels.building import Build, Scratch, offsets_of
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.plan.memory import Record, by_size_improved, verify


class ScratchMemory:
    """One buffer in which tensors have offsets, and images, each for whole tensors."""

    def __init__(self, build: Build, queue: DeviceQueue) -> None:
        self._images: dict[str, Any] = {}
        self.image_bytes = 0
        by_extent: dict[tuple[int, int], list[Scratch]] = {}
        for scratch in build.scratch:
            if scratch.name in build.images:
                by_extent.setdefault(build.images[scratch.name], []).append(scratch)
        for (width, height), members in by_extent.items():
            self._make_images(queue, width, height, members)
        buffers = [s for s in build.scratch if s.name not in build.images]
        self._offsets, self.buffer_bytes = offsets_of(buffers)
        flags = cl.mem_flags.READ_WRITE
        size = self.buffer_bytes
        self._arena = cl.Buffer(queue.context, flags, size) if size else None

    @property
    def planned_bytes(self) -> int:
        return self.buffer_bytes + self.image_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocated buffer and images, as OpenCL reports them."""
        allocations = [*({id(i): i for i in self._images.values()}.values()), self._arena]
        return sum(int(memory.size) for memory in allocations if memory is not None)

    def of(self, name: str) -> tuple[Any, int | None]:
        """The buffer of a tensor and its offset in bytes; or its image, and None."""
        if name in self._images:
            return self._images[name], None
        return self._arena, self._offsets[name]

    def _make_images(
        self, queue: DeviceQueue, width: int, height: int, members: list[Scratch]
    ) -> None:
        """Make images that tensors of one extent share. For tensors of other extents they would
        need a view, which OpenCL 1.2 lacks."""
        half = cl.channel_type.HALF_FLOAT if queue.arch.half else cl.channel_type.FLOAT
        form = cl.ImageFormat(cl.channel_order.RGBA, half)
        records = [Record(s.size_bytes, s.first, s.last) for s in members]
        plan = by_size_improved(records)
        verify(records, plan)
        flags = cl.mem_flags.READ_WRITE
        images = [
            cl.create_image(queue.context, flags, form, shape=(width, height)) for _ in plan.sizes
        ]
        self._images |= {s.name: images[i] for s, i in zip(members, plan.object_of, strict=True)}
        self.image_bytes += len(images) * width * height * (8 if queue.arch.half else 16)
