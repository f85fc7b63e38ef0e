"""The parts of tensors that a machine has of one frame: stitched and cut as they are asked for."""

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.errors import ExecutionError
from coexec.ir.region import Region
from coexec.ir.stitch import missing
from coexec.plans.schedule import Part

__all__ = ["FrameParts"]


class FrameParts:
    """What there is of one frame. Parts are never changed once they are there, and may come while
    another thread asks for some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, dict[Region, Any]] = {}

    def put(self, parts: Iterable[Part], arrays: Iterable[Any]) -> None:
        """Keep parts, without copies.

        Raises:
            ExecutionError: an array has another shape than its part.
        """
        for (name, region), array in zip(parts, arrays, strict=True):
            if isinstance(array, np.ndarray) and region.start and array.shape != region.shape:
                raise ExecutionError(f"{name}{region} arrived with shape {list(array.shape)}")
            with self._lock:
                self._boxes.setdefault(name, {})[region] = array

    def get(self, name: str, region: Region) -> Any:
        """A region of a tensor in memory of one piece: as it came if it came so, else a copy.

        Raises:
            ExecutionError: some of it is not there.
        """
        with self._lock:
            boxes = dict(self._boxes.get(name, {}))
        if region in boxes:
            return boxes[region]
        for box, array in boxes.items():
            if region.size and box.contains(region):
                return np.ascontiguousarray(array[region.relative_to(box).slices])
        gaps = missing(region, boxes)
        if gaps or not boxes:
            raise ExecutionError(f"{name}{gaps[0] if gaps else region} is not there")
        stitched: Array = np.empty(region.shape, next(iter(boxes.values())).dtype)
        for box, array in boxes.items():
            common = box.overlap(region)
            if common.size:
                own = array[common.relative_to(box).slices]
                stitched[common.relative_to(region).slices] = own
        self.put([(name, region)], [stitched])
        return stitched
