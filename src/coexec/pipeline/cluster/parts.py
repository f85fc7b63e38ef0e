"""Parts of tensors of one frame on a machine. Regions are stitched and cut when they are read."""

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.errors import ExecutionError
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.plan.schedule import TaskRegion

__all__ = ["FrameParts"]


class FrameParts:
    """Parts of the tensors of one frame. Stored parts are never changed. Parts may be added while
    another thread reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, dict[Region, Any]] = {}

    def put(self, parts: Iterable[TaskRegion], arrays: Iterable[Any]) -> None:
        """Store parts, without copies.

        Raises:
            ExecutionError: an array has another shape than its part.
        """
        for (name, region), array in zip(parts, arrays, strict=True):
            if isinstance(array, np.ndarray) and region.start and array.shape != region.shape:
                raise ExecutionError(f"{name}{region} arrived with shape {list(array.shape)}")
            with self._lock:
                self._boxes.setdefault(name, {})[region] = array

    def get(self, name: str, region: Region) -> Any:
        """A region of a tensor in contiguous memory: the stored array if it has this region, else a
        copy.

        Raises:
            ExecutionError: a part of the region is missing.
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
                overlap_values = array[common.relative_to(box).slices]
                stitched[common.relative_to(region).slices] = overlap_values
        self.put([(name, region)], [stitched])
        return stitched
