"""LoweredModel models as entries of the cache."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import external_data_helper

from coexec.cache import Cache, Entry
from coexec.lowering.dialect import Dialect
from coexec.lowering.lowered_model import LoweredModel, read_lowered
from coexec.model.model import require_whole
from coexec.model.stored import Stored, detached, is_large, share, stored_tensor, written

Tables = Mapping[str, ir.TensorProtocol]
"""Large weights that are only read by Gather, by name. An optimizer cannot improve them."""

_FILE = "lowered.onnx"
_TABLE_BYTES = 64 << 20
"""Smaller tables are lowered as other weights are."""


def without_tables(model: ir.Model) -> tuple[ir.Model, Tables]:
    """The model with its `Tables` as inputs, so that no optimizer copies them, and the tables."""
    tables = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
        and value.const_value.dtype != ir.DataType.STRING
        and value.const_value.nbytes >= _TABLE_BYTES
        and not value.is_graph_output()
        and all((n.op_type, n.domain, i) == ("Gather", "", 0) for n, i in value.uses())
        and all(node.graph is model.graph for node, _ in value.uses())
    }
    if not tables:
        return model, {}
    copy = model.clone()
    for name, tensor in tables.items():
        value = copy.graph.initializers.pop(name)
        value.const_value = None
        value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())
        copy.graph.inputs.append(value)
    return copy, tables


def import_lowered(
    path: Path, cache: Cache, borders: Iterable[str], dialect: Dialect, tables: Tables
) -> tuple[LoweredModel, Entry | None]:
    """The model in the files that `OpenEngine.lower` wrote, and its entry for the cache.

    The weights are in the cache. If that is impossible, the entry is None and they are in memory.
    The files may be removed afterwards.

    Args:
        tables: weights that are inputs of the model in the files.

    Raises:
        ValueError, OSError: a file is missing or cut off.
    """
    proto = onnx.load(str(path), load_external_data=False)
    _embed_in_bodies(proto.graph.node, path.parent)
    read = {t.name: ir.serde.deserialize_tensor(t, path.parent) for t in proto.graph.initializer}
    for number in reversed(range(len(proto.graph.input))):
        if proto.graph.input[number].name in tables:
            del proto.graph.input[number]
    require_whole(read.values())
    shared = share(cache, read) or read
    weights = {name: detached(tensor) for name, tensor in shared.items()} | dict(tables)
    lowered = read_lowered(proto, weights, borders, dialect)
    if any(is_large(t) and not isinstance(t, Stored) for t in weights.values()):
        return lowered, None
    del proto.graph.initializer[:]
    for name, tensor in weights.items():
        serialized = ir.serde.serialize_tensor(written(tensor))
        serialized.name = name
        proto.graph.initializer.append(serialized)
    stored = dict.fromkeys(t.stored_as for t in weights.values() if isinstance(t, Stored))
    return lowered, Entry({_FILE: proto.SerializeToString()}, tuple(stored))


def _embed_in_bodies(nodes: Iterable[onnx.NodeProto], folder: Path) -> None:
    """Read external weights of the bodies of ``nodes`` from ``folder``, whose files coexec wrote.

    When ONNX Runtime saves a model, it moves large constants of bodies there, too.
    """
    for node in nodes:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                for tensor in body.initializer:
                    if external_data_helper.uses_external_data(tensor):
                        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                        tensor.data_location = onnx.TensorProto.DEFAULT
                        del tensor.external_data[:]
                _embed_in_bodies(body.node, folder)


def load_lowered(
    entry: Entry, cache: Cache, borders: Iterable[str], dialect: Dialect
) -> LoweredModel:
    """The model in an entry that `import_lowered` has made.

    Raises:
        StoreError: a weight is missing or damaged.
        ValueError: a border is missing.
    """
    proto = onnx.load_model_from_string(entry.files[_FILE])
    arrays = cache.weights.fetch(entry.weights)
    weights = {t.name: stored_tensor(t, arrays) for t in proto.graph.initializer}
    return read_lowered(proto, weights, borders, dialect)
