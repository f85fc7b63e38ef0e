"""Shares as ONNX models: written where the whole model is, opened where they run.

A share is sent as an ONNX model without its weights. Weights are identified by the digest of their
content: a machine receives only weights that it does not have yet, and no weights of other shares.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import xxhash

from coexec.arrays import Array
from coexec.cache import private_folder
from coexec.errors import ExecutionError
from coexec.graph.graph import Graph, Tensor
from coexec.lowering.layout import PLAIN
from coexec.lowering.tensor_parts import part_name
from coexec.model.inputs import random_values
from coexec.model.model import Model
from coexec.pipeline.cluster.jobs import Compute, ShareKey
from coexec.pipeline.cluster.parts import FrameParts
from coexec.pipeline.strip import Strip
from coexec.pipeline.strip_module import ShareWriter
from coexec.session import InferenceSession

__all__ = ["OpenShares", "ShareModel", "ShareModels"]


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
        self._writer = ShareWriter(model)
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

    def run(self, epoch: int, step: Compute, parts: FrameParts) -> list[Any]:
        """Compute a share.

        Returns:
            An array for each write of the step.

        Raises:
            CoexecError: a part that it reads is missing, or a device failed.
        """
        model = self._epochs[epoch][step.share]
        session = self._sessions[model.key]
        feeds = {
            input_name: parts.get(name, region)
            for input_name, (name, region) in zip(model.inputs, step.reads, strict=True)
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
