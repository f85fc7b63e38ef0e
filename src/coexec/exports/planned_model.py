"""A model with its plan, as one ONNX file.

The nodes, the weights and the answers of the model stay as they are. Added are:

* the plan: its text, in the metadata of the model, from which it is read back;
* the devices: a device configuration of the model (ONNX IR version 11);
* for each node: its task, its place and the predicted time in its metadata; its segment as the
  pipeline stage, and the devices that hold its results as sharding specs.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from coexec.errors import UsageError
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.model.folders import ModelFolders
from coexec.model.moved_weights import (
    WeightPart,
    content_of,
    external_tensors,
    move_external,
    move_large,
    named_file,
)
from coexec.model.structure import decoded
from coexec.model.tasks_of_nodes import tasks_of_nodes
from coexec.plan.plan_file import PLAN_KEY
from coexec.selection.plan_files import text_of
from coexec.selection.prepared import Prepared
from coexec.timing.placed_pieces import PlacedPiece, placed_pieces

__all__ = ["PlannedModel", "planned_model", "proto_of"]

_CONFIGURATION = "coexec"
"""Name of the device configuration."""
_TASK, _PLACE, _PREDICTED_MS = "coexec.task", "coexec.place", "coexec.predicted_ms"
_NODE_KEYS = (_TASK, _PLACE, _PREDICTED_MS)
_DEVICES_SINCE = 11
"""IR version that has device configurations."""
_MOST_BYTES = (1 << 31) - (1 << 16)
"""Protobuf encodes less than 2 GiB; the difference is for rounding and the file's own fields."""


@dataclass(frozen=True)
class PlannedModel:
    """The content of an ONNX file with a plan, and of the file with weights beside it."""

    content: bytes
    weights_name: str
    """Name of the file with weights; "" if there is none."""
    weights: Sequence[WeightPart] = ()

    def weight_chunks(self) -> Iterator[bytes]:
        """The content of the file with weights."""
        return content_of(list(self.weights))


def planned_model(
    source: Any, prepared: Prepared, file: Path, most_bytes: int = _MOST_BYTES
) -> PlannedModel:
    """The model of ``source`` with the plan of ``prepared``, to be written to ``file``.

    Weights in other files stay there if ``file`` can name them; else they are copied.

    Args:
        source: path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        most_bytes: of the ONNX file; a larger one has its weights in a file beside it.

    Raises:
        UsageError: the file with weights would replace one of the model.
        ModelError: the model cannot be read.
    """
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    model = proto_of(source)
    _annotate(model, prepared)
    folders = None if path is None else ModelFolders(path)
    weights_name = f"{file.name}.data"
    parts: list[WeightPart] = []
    if folders is not None and not _are_beside(model, folders, file.parent):
        parts = move_external(model, folders, weights_name)
    if model.ByteSize() > most_bytes:
        if folders is not None and not parts:
            parts = move_external(model, folders, weights_name)
        move_large(model, parts, weights_name)
    _require_new(file.with_name(weights_name), parts)
    return PlannedModel(model.SerializeToString(), weights_name if parts else "", parts)


def proto_of(source: Any) -> onnx.ModelProto:
    """A message of one's own with the model in ``source``; weights in other files stay there.

    Raises:
        ModelError: it cannot be read.
    """
    if isinstance(source, str | os.PathLike):
        return decoded(Path(source).read_bytes(), repr(os.fspath(source)))
    if isinstance(source, bytes):
        return decoded(source, "the model given as bytes")
    if isinstance(source, ir.Model):
        return ir.to_proto(source)
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    return copy


def _are_beside(model: onnx.ModelProto, folders: ModelFolders, folder: Path) -> bool:
    """Whether all files with weights have the same names in ``folder``."""
    for tensor in external_tensors(model):
        location = next(e.value for e in tensor.external_data if e.key == "location")
        there = folder / location
        if not there.exists() or not there.samefile(named_file(tensor, folders)):
            return False
    return True


def _require_new(file: Path, parts: Sequence[WeightPart]) -> None:
    """Refuse to replace a file by weights that are read from it."""
    sources = {part.source for part in parts if isinstance(part.source, Path)}
    if file.exists() and any(file.samefile(source) for source in sources):
        raise UsageError(
            f"the weights would be written to {str(file)!r}, which has weights of the model "
            f"itself; give --output another name"
        )


def _annotate(model: onnx.ModelProto, prepared: Prepared) -> None:
    """Add the plan, the devices, and the place of each node."""
    graph, plan = prepared.graph, prepared.plan
    model.ir_version = max(model.ir_version, _DEVICES_SINCE)
    _set(model, {PLAN_KEY: text_of(plan, graph, prepared.origin.shapes)})
    devices = {name: index for index, name in enumerate(plan.used)}
    _replace_configuration(model, list(devices))
    pieces_of = placed_pieces(prepared.schedule, prepared.cost)
    for node, name in zip(model.graph.node, tasks_of_nodes(model, graph), strict=True):
        pieces = () if name is None else pieces_of[name]
        if name is None or not pieces:
            continue
        output = graph.output_of(graph.task[name])
        _set(node, _texts(name, pieces, output.whole))
        _configure(node, pieces, devices, output)


def _replace_configuration(model: onnx.ModelProto, devices: list[str]) -> None:
    """Name the devices of the plan, in place of those of an earlier plan."""
    kept = [c for c in model.configuration if c.name != _CONFIGURATION]
    del model.configuration[:]
    model.configuration.extend(kept)
    model.configuration.add(name=_CONFIGURATION, num_devices=len(devices), device=devices)
    for node in model.graph.node:
        _remove(node, _NODE_KEYS)
        others = [c for c in node.device_configurations if c.configuration_id != _CONFIGURATION]
        del node.device_configurations[:]
        node.device_configurations.extend(others)


def _texts(task: str, pieces: Sequence[PlacedPiece], whole: Region) -> Mapping[str, str]:
    """The properties of a node by which a viewer shows its place."""
    times = (f"{1e3 * piece.predicted_s:.6g}" for piece in pieces)
    places = (str(p.place) if p.region == whole else f"{p.place} {p.region}" for p in pieces)
    return {
        _TASK: task,
        _PLACE: "; ".join(places),
        _PREDICTED_MS: "; ".join(times),
    }


def _configure(
    node: onnx.NodeProto,
    pieces: Sequence[PlacedPiece],
    devices: Mapping[str, int],
    output: Tensor,
) -> None:
    """Add the segment of a node, and the devices that hold its results.

    Args:
        output: the main output of the task.
    """
    configuration = node.device_configurations.add(configuration_id=_CONFIGURATION)
    if len({piece.segment for piece in pieces}) == 1:
        configuration.pipeline_stage = pieces[0].segment
    on = [devices[piece.place.device] for piece in pieces]
    if len(pieces) == 1 and pieces[0].region == output.whole:
        for name in filter(None, node.output):
            configuration.sharding_spec.add(tensor_name=name, device=on)
        return
    axis = _equal_shares(pieces, output.whole)
    if axis is not None and output.name in node.output:
        spec = configuration.sharding_spec.add(tensor_name=output.name, device=on)
        shares = spec.sharded_dim.add(axis=axis).simple_sharding
        shares.add(dim_value=output.shape[axis], num_shards=len(pieces))


def _equal_shares(pieces: Sequence[PlacedPiece], whole: Region) -> int | None:
    """The axis that the pieces divide into equal shares; None if they divide it otherwise."""
    for axis, size in enumerate(whole.shape):
        if size % len(pieces):
            continue
        share = size // len(pieces)
        expected = [_share(whole, axis, n * share, share) for n in range(len(pieces))]
        if [piece.region for piece in pieces] == expected:
            return axis
    return None


def _share(whole: Region, axis: int, start: int, size: int) -> Region:
    begin, end = list(whole.start), list(whole.stop)
    begin[axis], end[axis] = start, start + size
    return Region(tuple(begin), tuple(end))


def _remove(message: Any, keys: Collection[str]) -> None:
    """Remove metadata of a model or node."""
    kept = [entry for entry in message.metadata_props if entry.key not in keys]
    del message.metadata_props[:]
    message.metadata_props.extend(kept)


def _set(message: Any, texts: Mapping[str, str]) -> None:
    """Set metadata of a model or node, in place of values that its keys have."""
    _remove(message, texts)
    for key, value in texts.items():
        message.metadata_props.add(key=key, value=value)
