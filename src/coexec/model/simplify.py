"""Folds constants and batch norms, removes identities, and infers every shape.

The work is done in passes with names. All but the fusions give the same results bit by bit; each
use of a rule of `coexec.model.fusions` is compared with the nodes that it replaces. A rule that
fails at a node is not used there. A pass that fails can be left out by its name.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import onnx_ir as ir
import onnx_ir.passes.common as passes

from coexec.errors import ModelError, first_line
from coexec.model.folding import fold
from coexec.model.fusions import FUSIONS
from coexec.model.identities import IDENTITIES
from coexec.model.infer import has_open, infer
from coexec.model.merging import merge_constants, merge_nodes
from coexec.model.onnx_logging import quiet
from coexec.model.replacement_check import compute_the_same
from coexec.model.replacing import Replacement, Rule, replace
from coexec.model.rewrites import activate_before_concat, separate_dequantised
from coexec.model.shape_mismatch import UnfitError
from coexec.model.types import without_maps

__all__ = ["PASSES", "PassError", "simplify"]

_ROUNDS = 8


class PassError(Exception):
    """A pass failed, and the model is of no use any more."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        super().__init__(f"the pass {name!r} failed: {first_line(error)}")


def simplify(
    model: ir.Model, rewrites: bool = True, without: Collection[str] = ()
) -> tuple[str, ...]:
    """Simplify ``model`` in place until nothing changes; then rewrite it, if ``rewrites``.

    Args:
        without: names of passes to leave out.

    Returns:
        The declared shapes that were wrong, each as a text.

    Raises:
        PassError: a pass failed; the model is of no use any more.
        ModelError: shape inference refuses the model.
    """
    names, listed = _interface(model), [(v.name or "", v) for v in model.graph.outputs]
    # An Identity would be inserted, and values renamed, where an output is computed by no node or
    # listed twice. An engine computes such an output once or never.
    made = dict.fromkeys(v for _, v in listed if v.producer() is not None)
    with quiet(), without_maps(model):
        model.graph.outputs[:] = list(made)
        _run(model, {"inline functions": _inline}, without)
        wrong = _inferred(model)
        _run(model, PASSES, without if rewrites else {*without, *_REWRITES})
        _encode_texts(model)
        passes.NameFixPass()(model)
        model.graph.sort()
        wrong += _inferred(model)
        _restore_outputs(model, listed)
    if _interface(model) != names:
        raise ModelError(
            f"simplification renamed inputs or outputs, {names} to {_interface(model)}; this is a "
            f"bug, please report it with the model"
        )
    return wrong


def _inferred(model: ir.Model) -> tuple[str, ...]:
    try:
        return infer(model)
    except Exception as error:
        raise UnfitError("the shapes of the model cannot be inferred", error) from error


_Pass = Callable[[ir.Model], object]


def _run(model: ir.Model, steps: Mapping[str, _Pass], without: Collection[str]) -> None:
    for name, step in steps.items():
        if name in without:
            continue
        try:
            step(model)
        except Exception as error:
            raise PassError(name, error) from error


def _inline(model: ir.Model) -> None:
    passes.InlinePass()(model)


def _interface(model: ir.Model) -> list[list[str | None]]:
    return [[v.name for v in values] for values in (model.graph.inputs, model.graph.outputs)]


def _restore_outputs(model: ir.Model, listed: Sequence[tuple[str, ir.Value]]) -> None:
    """List all outputs again, by their first names: results, inputs, and weights."""
    graph = model.graph
    by_name = {v.name: v for v in (*graph.inputs, *graph.outputs)} | dict(graph.initializers)
    for name, value in listed:
        if name not in by_name and value.const_value is not None:  # a weight that nothing reads
            by_name[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
            graph.register_initializer(by_name[name])
    graph.outputs[:] = [by_name.get(name, value) for name, value in listed]


def _keep_attributes(model: ir.Model) -> None:
    """Write CastLike as a Cast that keeps its attributes: folding would drop them."""
    for node in model.graph.all_nodes():
        like = node.inputs[1] if node.op_type == "CastLike" and not node.domain else None
        if like is not None and like.dtype is not None and node.attributes:
            node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
            node.op_type = "Cast"
            node.resize_inputs(1)


def _encode_texts(model: ir.Model) -> None:
    """Write constants of texts as onnx_ir reads them from a file: it cannot save folded ones."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.STRING:
            texts = [t.encode() if isinstance(t, str) else t for t in tensor.numpy().flat]
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.StringTensor(texts, shape=shape, name=value.name)


def _fold(model: ir.Model) -> None:
    _keep_attributes(model)
    fold(model)
    if has_open(model):  # a value that decides a shape may be constant by now
        infer(model)
        fold(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.LiftSubgraphInitializersToMainGraphPass()(model)
    passes.RemoveUnusedNodesPass()(model)


def _use_identities(model: ir.Model) -> None:
    """Apply the exact rules until none applies, and fold the new constants."""
    for _ in range(_ROUNDS):
        changed = False
        for node in list(model.graph):
            rule = _rule_for(node, IDENTITIES)
            new = None if rule is None else _looked_at(rule, node)
            changed |= new is not None and replace(node, new) is not None
        passes.RemoveUnusedNodesPass()(model)
        if not changed:
            return
        fold(model)


def _fuse(model: ir.Model, rules: Mapping[str, Rule]) -> None:
    """Use the rules of one fusion wherever it computes the same as the nodes that it replaces."""
    replacements: list[Replacement] = []
    for node in list(model.graph):
        rule = _rule_for(node, rules)
        new = None if rule is None else _looked_at(rule, node)
        if isinstance(new, Replacement):
            replacements.append(new)
    good = compute_the_same(replacements, model.opset_imports)
    now: dict[ir.Value, ir.Value] = {}
    for new in itertools.compress(replacements, good):
        end = new.covers[-1].outputs[0]
        inputs = [now.get(v, v) if isinstance(v, ir.Value) else v for v in new.inputs]
        now[end] = replace(new.covers[-1], dataclasses.replace(new, inputs=inputs)) or end
    passes.RemoveUnusedNodesPass()(model)


def _rule_for(node: ir.Node, rules: Mapping[str, Rule]) -> Rule | None:
    return None if node.domain or node.graph is None else rules.get(node.op_type)


def _looked_at(rule: Rule, node: ir.Node) -> Replacement | ir.Value | None:
    """The result of ``rule`` for ``node``; None if the rule fails, as it may for unexpected
    nodes."""
    try:
        return rule(node)
    except Exception:
        return None


def _remove_unused(model: ir.Model) -> None:
    for remove in (
        passes.RemoveUnusedNodesPass,
        passes.RemoveUnusedFunctionsPass,
        passes.RemoveUnusedOpsetsPass,
    ):
        remove()(model)


_FUSING = {name: partial(_fuse, rules=rules) for name, rules in FUSIONS.items()}
PASSES: Mapping[str, _Pass] = {
    "fold constants": _fold,
    "remove identities": _use_identities,
    **_FUSING,
    "merge constants": merge_constants,
    "merge equal nodes": merge_nodes,
    "activate before Concat": activate_before_concat,
    "merge activations": merge_nodes,
    "separate dequantised": separate_dequantised,
    "remove what is unused": _remove_unused,
}
"""Passes by name, in their order."""
_REWRITES = frozenset(
    {
        "Pad into pool",
        "HardSwish of a product",
        "HardSigmoid",
        "HardSwish",
        "activate before Concat",
        "merge activations",
        "separate dequantised",
    }
)
"""Passes that shape a model for coexec's engines."""
