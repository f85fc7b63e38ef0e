"""Shares as ONNX models: written where the whole model is, opened where they run.

A share is sent as an ONNX model without its weights. Weights are identified by the digest of their
content: a machine receives only weights that it does not have yet, and no weights of other shares.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import xxhash

from coexec.arrays import Array
from coexec.cache import private_folder
from coexec.errors import ExecutionError
from coexec.graph.graph import Graph, Piece, Tensor
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.lowering.layout import PLAIN
from coexec.lowering.lowered_model import LoweredModel, without_lowering
from coexec.lowering.module import Module
from coexec.lowering.module_writer import ModuleWriter
from coexec.lowering.tensor_parts import part_name
from coexec.model.inputs import random_values
from coexec.model.model import Model
from coexec.pipeline.cluster.jobs import ShareKey
from coexec.pipeline.plan.flow import Computation
from coexec.pipeline.strip import Strip
from coexec.plan.schedule import TaskRegion
from coexec.session import InferenceSession


@dataclass(frozen=True)
class ShareModel:
    """A share as it is sent to a machine."""

    key: str
    """Digest of the model and its weights."""
    proto: bytes
    """A ModelProto whose large weights lie in files named by their digests."""
    weights: Mapping[str, int]
    """Size in bytes, by digest."""
    inputs: tuple[str, ...]
    """Name of the model's input for each read of the strip; "" if the model does not need the
    read."""
    fed: tuple[Tensor, ...]
    """Inputs of the model."""
    macs: int


class ShareModels:
    """Writes the shares of one model as models."""

    def __init__(self, model: Model) -> None:
        self._graph: Graph = model.graph
        self._writer = _ShareWriter(model)
        self._arrays: dict[str, Array] = {}

    def of(self, strip: Strip) -> ShareModel:
        """A strip as a model.

        Raises:
            PlanError: the strip cannot be computed from its reads.
        """
        module = self._writer.write(strip, "share")
        proto = onnx.load_model_from_string(module.proto)
        sizes: dict[str, int] = {}
        for weight in proto.graph.initializer:
            array = module.weights.get(weight.name)
            if array is not None:
                digest = self._digest(array)
                sizes[digest] = array.nbytes
                _put_beside(weight, digest, array.nbytes)
        content = proto.SerializeToString(deterministic=True)
        used = {tensor.name for tensor in module.inputs}
        names = [part_name(name, region, PLAIN, self._graph) for name, region in strip.reads]
        return ShareModel(
            xxhash.xxh3_128_hexdigest(content),
            content,
            sizes,
            tuple(name if name in used else "" for name in names),
            module.inputs,
            strip.macs,
        )

    def weights(self, digests: Iterable[str]) -> Mapping[str, Array]:
        """Weights by digest, as bytes."""
        return {digest: self._arrays[digest] for digest in digests}

    def _digest(self, array: Array) -> str:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = _digest(flat)
        self._arrays.setdefault(digest, flat)
        return digest


def _digest(content: Array) -> str:
    return xxhash.xxh3_128_hexdigest(content.data)


def _put_beside(weight: onnx.TensorProto, name: str, size_bytes: int) -> None:
    del weight.external_data[:]
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", name), ("offset", "0"), ("length", str(size_bytes))):
        weight.external_data.add(key=key, value=value)


class _ShareWriter:
    """Writes strips of one model: its own operators, cut like modules of plans
    (`coexec.lowering.pieces`)."""

    def __init__(self, model: Model) -> None:
        self._graph = model.graph
        borders = [name for task in model.graph.tasks for name in task.outputs]
        self._unlowered: LoweredModel = without_lowering(model.source, borders)

    def write(self, strip: Strip, title: str) -> Module:
        """The strip as a module in standard operators. Its inputs are the strip's reads and its
        outputs the strip's writes, in their order and in the model's layout; `Tensor.name` of each
        is `part_name` of the part. Reads that are not needed are left out.

        Raises:
            PlanError: a piece cannot be computed from the strip's reads.
        """
        graph = self._graph
        writer = ModuleWriter(graph, self._unlowered, self._unlowered)
        for name, region in strip.reads:
            writer.read(name, region, PLAIN, part_name(name, region, PLAIN, graph))
        needed = _needed(strip, graph)
        for whole, pieces in groupby(strip.pieces, lambda piece: _is_whole(piece, graph)):
            if whole:
                writer.add_whole([graph.task[piece.task] for piece in pieces], needed)
            else:
                for piece in pieces:
                    writer.add(piece)
        return writer.module(title, [(name, region, PLAIN) for name, region in strip.writes])


def _is_whole(piece: Piece, graph: Graph) -> bool:
    return piece == graph.whole_piece(graph.task[piece.task])


def _needed(strip: Strip, graph: Graph) -> Sequence[str]:
    """Tensors that a piece reads, or that the strip writes."""
    read = (name for piece in strip.pieces for name in graph.task[piece.task].inputs)
    return list(dict.fromkeys((*read, *(name for name, _ in strip.writes))))


class FrameParts:
    """Parts of the tensors of one frame. Stored parts are never changed. Parts may be added while
    another thread reads."""

    def __init__(self) -> None:
        self._lock = Lock()
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


class OpenShares:
    """The weights that a machine stores, and sessions of the shares that it runs."""

    def __init__(
        self, devices: Sequence[str] | None, planner: str, cache: str | None, cleanup: ExitStack
    ) -> None:
        """``cleanup`` removes all files at its end."""
        # Plans are made in the background: ONNX Runtime's own session answers until there is one.
        self._open = partial(
            InferenceSession, devices=devices, planner=planner, cache=cache, background=True
        )
        self._folder: Path = cleanup.enter_context(private_folder())
        self._kept: set[str] = set()
        self._sessions: dict[str, InferenceSession] = {}
        self._epochs: dict[int, Mapping[ShareKey, ShareModel]] = {}

    def lacks(self, digests: Sequence[str]) -> list[str]:
        """Digests of weights that are not stored yet."""
        return [digest for digest in digests if digest not in self._kept]

    def keep(self, weights: Mapping[str, Array]) -> None:
        """Write weights to files.

        Raises:
            ExecutionError: a weight does not match its digest, or there is no room for it.
        """
        for digest, content in weights.items():
            if _digest(content) != digest:
                raise ExecutionError(f"weight {digest} arrived damaged; send it again")
            try:
                content.tofile(self._folder / digest)
            except OSError as error:
                raise ExecutionError(
                    f"no room for a weight of {content.nbytes} bytes in {self._folder}: {error}; "
                    f"free some, or set TMPDIR to a folder with more"
                ) from None
            self._kept.add(digest)

    def open(self, epoch: int, models: Mapping[ShareKey, ShareModel]) -> None:
        """Open sessions for all shares of an epoch that are not open yet.

        Raises:
            CoexecError: a session cannot be made.
        """
        for model in models.values():
            if model.key not in self._sessions:
                self._sessions[model.key] = self._session(model)
        self._epochs[epoch] = models

    def close(self, epoch: int) -> None:
        """Close the sessions that only this epoch uses. The weights stay stored."""
        self._epochs.pop(epoch, None)
        used = [model for models in self._epochs.values() for model in models.values()]
        for key in self._sessions.keys() - {model.key for model in used}:
            self._sessions.pop(key).close()

    def close_all(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def run(self, epoch: int, what: Computation, parts: FrameParts) -> list[Any]:
        """Compute a share.

        Returns:
            An array for each write of its strip.

        Raises:
            CoexecError: a part that it reads is missing, or a device failed.
        """
        model = self._epochs[epoch][what.stage, what.share]
        session = self._sessions[model.key]
        feeds = {
            input_name: parts.get(name, region)
            for input_name, (name, region) in zip(model.inputs, what.strip.reads, strict=True)
            if input_name
        }
        return session.run(None, feeds)

    def measure(self, model: ShareModel, repeats: int) -> float:
        """Median seconds of several runs with arbitrary weights and inputs."""
        session = self._session(self._with_any_weights(model))
        try:
            feeds = random_values(model.fed)
            session.run(None, feeds)
            seconds = []
            for _ in range(repeats):
                start = perf_counter()
                session.run(None, feeds)
                seconds.append(perf_counter() - start)
            return median(seconds)
        finally:
            session.close()

    def _with_any_weights(self, model: ShareModel) -> ShareModel:
        """The same model with random weights. Weights of the same type and shape share a file."""
        proto = onnx.load_model_from_string(model.proto)
        for weight in proto.graph.initializer:
            if weight.data_location == onnx.TensorProto.EXTERNAL:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
                tensor = Tensor(f"any {dtype} {list(weight.dims)}", tuple(weight.dims), str(dtype))
                path = self._folder / tensor.name
                if not path.exists():
                    random_values([tensor])[tensor.name].tofile(path)
                _put_beside(weight, tensor.name, path.stat().st_size)
        return replace(model, key=f"any-{model.key}", proto=proto.SerializeToString())

    def _session(self, model: ShareModel) -> InferenceSession:
        path = self._folder / f"{model.key}.onnx"
        path.write_bytes(model.proto)
        return self._open(path)
