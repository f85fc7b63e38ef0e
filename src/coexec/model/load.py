"""Loads a model: reads it, fixes shapes, simplifies, checks, and groups operators into tasks.

Every model that ONNX Runtime runs becomes a graph. If a model cannot be simplified, it is grouped
as it was given; if it cannot be grouped either, it is one opaque task.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from coexec.arguments import check_model
from coexec.cache import Cache, Entry
from coexec.errors import ModelError, ModelWarning, StoreError, first_line
from coexec.graph.graph import Graph
from coexec.model.check import check_same, is_reshaped
from coexec.model.declared import options_of
from coexec.model.digest import Shapes, digest_of
from coexec.model.fixed import fix
from coexec.model.fused import mark_fused
from coexec.model.group import build_graph
from coexec.model.inputs import candidates
from coexec.model.main_memory import least_bytes, require_memory
from coexec.model.model import Model, forget_weights
from coexec.model.nondeterministic import random_nodes
from coexec.model.read import ModelSource, read
from coexec.model.reference_session import plain_session
from coexec.model.shape_mismatch import UnfitError
from coexec.model.shapes import contradictions, infer
from coexec.model.simplify import simplified
from coexec.model.stored import Stored, share, stored_tensor, written
from coexec.settings import check_shapes, check_values


def load(
    source: ModelSource,
    *,
    shapes: Shapes | None = None,
    values: Mapping[str, Any] | None = None,
    name: str = "",
    check: bool = False,
    rewrites: bool = True,
    examples: Mapping[str, Any] | None = None,
    digest: str | None = None,
) -> Model:
    """Load, simplify and group a model.

    Args:
        source: path, serialized bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        shapes: of inputs that the model leaves dynamic; or sizes of symbolic dimensions by their
            name, which hold for all inputs. If an input and a dimension have the same name, the
            input is meant.
        values: of inputs that become constants: they are no inputs of the loaded model. They are
            cast to the input's type and broadcast to its shape.
        name: name of the graph; by default the model's own name.
        check: compare the outputs of the simplified model with those of the given one on made-up
            inputs; if they differ, the given one is planned.
        rewrites: also change operators in favour of coexec's engines (`coexec.model.rewrites`).
        examples: inputs that suit the model, tried before made-up ones.
        digest: of ``source`` with these shapes and values, if it is known.

    Raises:
        ModelError: the model is unreadable, unsound, larger than memory, or does not work with
            these sizes; or ONNX Runtime does not run it.
        UsageError: ``shapes`` or ``values`` do not fit the model, or ``source`` is no model.

    Warns:
        ModelWarning: a declared shape is wrong, no made-up inputs suit the check, or the model is
            planned without being simplified.
    """
    shapes, values = check_shapes(shapes), check_values(values)
    source_model = read(check_model(source))
    fix(source_model, shapes, values)
    how = _How(name or source_model.graph.name or "model", check, rewrites, examples)
    try:
        loaded = _simplified(source_model, how)
        if not check and any(task.opaque for task in loaded.graph.tasks):
            plain_session(source_model)  # only ONNX Runtime can check an opaque task
    except MemoryError as error:
        raise ModelError(
            f"there is not enough memory for the model's tensors: {error}; give it smaller shapes"
        ) from None
    except UnfitError as error:
        raise _explained(error, shapes, values) from error
    forget_weights(source_model)
    for text in loaded.doubts:
        warnings.warn(text, ModelWarning, stacklevel=2)
    digest = digest_of(source, shapes, values) if digest is None else digest
    return Model(loaded.source, loaded.graph, digest)


def _vanishes(graph: Graph) -> bool:
    """Whether a task makes an empty tensor from others that are not empty: most often, an image was
    too small for a convolution or pool."""

    def empty(names: Iterable[str]) -> bool:
        tensors = (graph.tensors[name] for name in names)
        return any(not (tensor.size_bytes or tensor.opaque) for tensor in tensors)

    return any(empty(task.outputs) and not empty(task.inputs) for task in graph.tasks)


def _explained(error: UnfitError, shapes: Shapes, values: Mapping[str, Any]) -> ModelError:
    """``error``, or an error that names the shapes and values of the user: the model may work with
    others."""
    if not shapes and not values:
        return error
    options = [options_of(shapes)] if shapes else []
    options += [f"--value {name}={str(value)[:40]}" for name, value in values.items()]
    return ModelError(
        f"the model does not work with {' '.join(options)}: {error.reason}; give it other sizes or "
        f"values, such as those that coexec inspect MODEL finds without these options"
    )


class _Loaded(NamedTuple):
    source: ir.Model
    graph: Graph
    doubts: Sequence[str]
    """Messages for the user, for example about wrong declared shapes."""


class _How(NamedTuple):
    """The options of `load`."""

    name: str
    check: bool
    rewrites: bool
    examples: Mapping[str, Any] | None


def _simplified(original: ir.Model, how: _How) -> _Loaded:
    """The simplified model in tasks; the given one if it cannot be simplified.

    If it differs from the given one, the rewrites are left out.
    """
    try:
        try:
            return _checked(original, how)
        except _DiffersError:
            if not how.rewrites:
                raise
        return _checked(original, how._replace(rewrites=False))
    except (_DiffersError, _NotPlannedError) as error:
        return _as_given(original, how, str(error))


class _DiffersError(Exception):
    """The simplified model computes other results than the given one."""


class _NotPlannedError(Exception):
    """Simplification, shape inference or grouping fails for a model."""


def _checked(original: ir.Model, how: _How) -> _Loaded:
    """The simplified model in tasks.

    Raises:
        _DiffersError: the result differs from the given model, or does not run.
        _NotPlannedError: simplification, shape inference or grouping failed.
        ModelError: ONNX Runtime does not run the given model.
    """
    try:
        model = simplified(original, rewrites=how.rewrites)
        mark_fused(model)
        graph = build_graph(model, how.name)
    except MemoryError:
        raise
    except Exception as error:  # inference can raise any error
        raise _NotPlannedError(first_line(error)) from error
    require_memory(f"the model {how.name!r}", least_bytes(graph))
    tries = candidates(graph, how.examples)
    try:
        if how.check:
            unchecked, reshaped = check_same(original, model, graph, tries)
        else:
            unchecked, reshaped = None, is_reshaped(model, graph, tries)
    except (MemoryError, UnfitError):
        raise
    except Exception as error:  # it differs, or cannot be checked
        raise _DiffersError(first_line(error)) from error
    if reshaped:
        graph = build_graph(model, how.name)
    if unchecked is not None and _vanishes(graph):
        raise UnfitError("ONNX Runtime does not run the model", unchecked)
    if unchecked is not None:
        try:
            plain_session(model)
        except ModelError as error:  # nothing was compared, so this was not noticed
            raise _DiffersError(first_line(error)) from error
    doubts = []
    if wrong := contradictions(original, model):
        doubts.append(
            f"the model {how.name!r} declares {len(wrong)} wrong shapes: {wrong[0]}; "
            f"what the operators compute is used"
        )
    if unchecked is not None and not random_nodes(model):
        doubts.append(
            f"the simplified model {how.name!r} was not compared with the given one: {unchecked}"
        )
    return _Loaded(model, graph, doubts)


def _as_given(original: ir.Model, how: _How, reason: str) -> _Loaded:
    """The unchanged model in tasks; in one opaque task if it cannot be grouped.

    Raises:
        ModelError: ONNX Runtime does not run it.
    """
    plain_session(original)
    model = _copy(original)
    try:
        passes.NameFixPass()(model)
        infer(model)
        graph, what = _grouped(model, how), "is planned as it was given"
    except Exception as error:
        model, reason = _copy(original), first_line(error)
        with suppress(Exception):  # outputs of known shapes can be written where they are wanted
            infer(model)
        graph, what = _grouped(model, how, whole=reason), "is run as a whole"
    return _Loaded(model, graph, [f"the model {how.name!r} {what}: {reason}"])


def _grouped(model: ir.Model, how: _How, whole: str = "") -> Graph:
    """The tasks of the model, whose shapes a run corrects, in place."""
    graph = build_graph(model, how.name, whole)
    require_memory(f"the model {how.name!r}", least_bytes(graph))
    if is_reshaped(model, graph, candidates(graph, how.examples)):
        graph = build_graph(model, how.name, whole)
    return graph


def _copy(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except Exception as error:  # functions with values that nothing computes
        raise ModelError(
            f"the model {model.graph.name!r} contradicts itself: {first_line(error)}; "
            f"check it with onnx.checker.check_model"
        ) from None


def save(model: Model, cache: Cache) -> Model:
    """``model`` as the cache stores it under its digest; unchanged if it cannot be stored."""
    values = {name: v for name, v in model.source.graph.initializers.items() if v.const_value}
    shared = share(cache, {n: v.const_value for n, v in values.items() if v.const_value})
    if shared is None:
        return model
    before = {name: value.const_value for name, value in values.items()}
    for name, tensor in shared.items():
        values[name].const_value = written(tensor)
    content = ir.to_proto(model.source).SerializeToString()
    for name, own in before.items():
        values[name].const_value = own
    names = tuple({t.stored_as: None for t in shared.values() if isinstance(t, Stored)})
    entry = Entry({"model.onnx": content, "whole.txt": _whole(model.graph).encode()}, names)
    cache.add("models", model.digest, entry)
    try:
        return restore(entry, cache, model.digest, model.graph.name)
    except StoreError:  # the new entry is damaged or gone
        return model


def _whole(graph: Graph) -> str:
    """Why all of the model is one opaque task; "" if it is not."""
    return graph.tasks[0].opaque if len(graph.tasks) == 1 else ""


def restore(entry: Entry, cache: Cache, digest: str, name: str) -> Model:
    """Inverse of `save`; weights are mapped, not read. ``name`` is the name of the graph.

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
        whole = entry.files["whole.txt"].decode()
        return Model(model, build_graph(model, name or model.graph.name or "model", whole), digest)
    except Exception as error:
        raise StoreError(
            f"the cached model {digest} is damaged ({error}); it is made again"
        ) from None
