"""Load a model: read, fix shapes, simplify, check, group into tasks."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from coexec.cache import Cache, Entry
from coexec.errors import ModelError, StoreError
from coexec.frontend.check import check_same
from coexec.frontend.digest import digest_of
from coexec.frontend.group import build_graph
from coexec.frontend.model import Model
from coexec.frontend.module import Array
from coexec.frontend.read import ModelSource, read
from coexec.frontend.simplify import fix_shapes, simplify
from coexec.frontend.stored import Stored, detached, share, stored_tensor, written
from coexec.ir.graph import Graph

__all__ = ["load", "random_inputs", "restore", "save"]


def load(
    source: ModelSource,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str = "",
    check: bool = False,
    rewrites: bool = True,
    digest: str | None = None,
) -> Model:
    """Load, simplify and group a model.

    Args:
        source: path, serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        shapes: fixed shapes of inputs that the model leaves dynamic.
        name: how the graph is called; by default the model's own name.
        check: compare the simplified model's outputs with the given one's on random inputs.
        rewrites: also move and fold operators as our engines like it (`frontend.rewrites`).
        digest: of ``source`` with these shapes, where it is known.

    Raises:
        ModelError: unreadable, unknown operators, shapes that are not known, or a failed check.
        UsageError: ``shapes`` does not fit the model.
    """
    shapes = shapes or {}
    model = read(source)
    fix_shapes(model, shapes)
    given = model.clone() if check else None
    try:
        simplify(model, rewrites)
        graph = build_graph(model, name or model.graph.name or "model")
        if given is not None:
            check_same(given, model, random_inputs(graph))
    except MemoryError as error:
        raise ModelError(f"there is not enough memory for the model's tensors: {error}; give it "
                         f"smaller shapes") from None  # fmt: skip
    return Model(model, graph, digest_of(source, shapes) if digest is None else digest)


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Standard normal numbers for float inputs, zeros and ones for others."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        if np.issubdtype(np.dtype(tensor.dtype), np.floating):
            numbers = rng.standard_normal(tensor.shape, dtype=np.float32)
            found[name] = numbers.astype(tensor.dtype, copy=False)
        else:
            found[name] = rng.integers(0, 2, tensor.shape).astype(tensor.dtype)
    return found


def save(model: Model, cache: Cache) -> Model:
    """``model`` stored under its digest, as it lies in the cache; unchanged if that cannot be."""
    values = {name: v for name, v in model.source.graph.initializers.items() if v.const_value}
    shared = share(cache, {n: v.const_value for n, v in values.items() if v.const_value})
    if shared is None:
        return model
    before = {name: value.const_value for name, value in values.items()}
    for name, tensor in shared.items():
        values[name].const_value = written(tensor)
    _embed_attributes(model.source)
    content = ir.to_proto(model.source).SerializeToString()
    for name, own in before.items():
        values[name].const_value = own
    names = tuple({t.stored_as: None for t in shared.values() if isinstance(t, Stored)})
    entry = Entry({"model.onnx": content}, names)
    cache.add("models", model.digest, entry)
    try:
        return restore(entry, cache, model.digest, model.graph.name)
    except StoreError:  # what was just written is damaged or gone
        return model


def _embed_attributes(model: ir.Model) -> None:
    """Bring what nodes and nested graphs hold in files into memory."""
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, detached(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                tensors = [detached(tensor) for tensor in attribute.value]
                node.attributes[name] = ir.AttrTensors(name, tensors)
            elif attribute.type == ir.AttributeType.GRAPH:
                for value in attribute.value.initializers.values():
                    if value.const_value is not None:
                        value.const_value = detached(value.const_value)


def restore(entry: Entry, cache: Cache, digest: str, name: str) -> Model:
    """Inverse of `save`; weights are mapped, not read. ``name`` is the graph's.

    Raises:
        StoreError: a weight is missing, or the entry is damaged.
    """
    weights = cache.weights.fetch(entry.weights)
    try:
        proto = onnx.load_model_from_string(entry.files["model.onnx"])
        large = {t.name: stored_tensor(t, weights) for t in proto.graph.initializer}
        model = ir.from_proto(proto)
        for value_name, tensor in large.items():
            model.graph.initializers[value_name].const_value = tensor
        if not model.graph.outputs:
            raise ValueError("it has no outputs")
        return Model(model, build_graph(model, name or model.graph.name or "model"), digest)
    except Exception as error:
        raise StoreError(f"the cached model {digest} is damaged ({error}); it is made "
                         f"again") from None  # fmt: skip
