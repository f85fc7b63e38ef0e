"""The passes that simplify a model, by name and in their order.

Exact passes give the same results bit by bit. Compared passes may round differently: each use is
compared with the nodes that it replaces, and left out alone if it differs.

A node that a pass makes or changes carries the name of the pass in its metadata.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
import onnx_ir.passes.common as common

from coexec.errors import UsageError, first_line, nearest
from coexec.model.folding import fold_constants
from coexec.model.fusions import FUSIONS, fuse
from coexec.model.identities import remove_identities
from coexec.model.merging import merge_constants, merge_nodes
from coexec.model.rewrites import activate_before_concat, separate_dequantised

__all__ = ["PASSES", "Pass", "PassError", "apply", "check_names", "pass_of"]

_MADE_BY = "coexec.pass"
"""Key of the metadata of nodes."""


@dataclass(frozen=True)
class Pass:
    """A rewrite of a model in place: a valid model in, a valid model out."""

    name: str
    """As on the command line."""
    summary: str
    """One sentence about its work."""
    exact: bool
    """Whether it gives the same results bit by bit; else each of its uses is compared."""
    rewrite: Callable[[ir.Model], object]
    for_engines: bool = False
    """Whether it shapes the model for coexec's engines: not for simulated platforms."""
    before_shapes: bool = False
    """Whether it runs before the shapes are inferred."""


class PassError(Exception):
    """A pass failed, and the model is of no use any more."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        super().__init__(f"the pass {name!r} failed: {first_line(error)}")


def apply(each: Pass, model: ir.Model) -> None:
    """Run one pass on ``model`` in place, and mark the nodes that it makes or changes.

    Raises:
        PassError: the pass failed; the model is of no use any more.
    """
    content = {node: _content(node) for node in model.graph}
    try:
        each.rewrite(model)
    except Exception as error:
        raise PassError(each.name, error) from error
    for node in model.graph:
        if not _are_same(content.get(node), _content(node)):
            node.metadata_props[_MADE_BY] = each.name


def pass_of(node: ir.Node) -> str:
    """The name of the last pass that made or changed ``node``; "" if none did."""
    return node.metadata_props.get(_MADE_BY, "")


def check_names(names: Iterable[str]) -> None:
    """
    Raises:
        UsageError: there is no pass of a name.
    """
    for name in names:
        if name not in PASSES:
            raise UsageError(
                f"there is no pass {name!r}{nearest(name, PASSES)}; the passes are "
                f"{', '.join(PASSES)}"
            )


def _content(node: ir.Node) -> list[object]:
    """Operator and attributes. The inputs do not count: a pass that replaces a node changes the
    inputs of all its readers."""
    return [node.op_identifier(), *node.attributes.values()]


def _are_same(before: Sequence[object] | None, after: Sequence[object]) -> bool:
    if before is None or len(before) != len(after) or before[0] != after[0]:
        return False
    return all(a is b for a, b in zip(before[1:], after[1:], strict=True))


def _inline_functions(model: ir.Model) -> None:
    common.InlinePass()(model)


def _remove_unused(model: ir.Model) -> None:
    for remove in (
        common.RemoveUnusedNodesPass,
        common.RemoveUnusedFunctionsPass,
        common.RemoveUnusedOpsetsPass,
    ):
        remove()(model)


def _fusion(name: str, summary: str, *, for_engines: bool = True) -> Pass:
    return Pass(name, summary, False, partial(fuse, rules=FUSIONS[name]), for_engines)


_IN_ORDER = (
    Pass("inline-functions", "Replaces calls of the model's own functions by their nodes.", True,
         _inline_functions, before_shapes=True),
    Pass("fold-constants", "Computes what depends only on weights and on known shapes.", True,
         fold_constants),
    Pass("remove-identities", "Removes operators that change nothing, and joins views.", True,
         remove_identities),
    _fusion("pad-into-conv", "Makes zeros around an input the padding of the convolution.",
            for_engines=False),
    _fusion("pad-into-pool", "Makes zeros around an input the padding of the AveragePool."),
    _fusion("norm-into-weights", "Scales weights in place of a BatchNormalization behind them.",
            for_engines=False),
    _fusion("product-to-hard-swish", "Writes x * Clip(x + 3, 0, 6) / 6 as HardSwish."),
    _fusion("clip-to-hard-sigmoid", "Writes Clip(x + 3, 0, 6) / 6 as HardSigmoid."),
    _fusion("gate-to-hard-swish", "Writes x * HardSigmoid(x) as HardSwish."),
    Pass("merge-constants", "Merges equal small constants.", True, merge_constants),
    Pass("merge-nodes", "Merges nodes that compute the same.", True, merge_nodes),
    Pass("activate-before-concat", "Moves activations in front of a Concat, where they fuse.", True,
         activate_before_concat, for_engines=True),
    Pass("merge-activations", "Merges the activations that then compute the same.", True,
         merge_nodes, for_engines=True),
    Pass("separate-dequantised", "Gives each reader of a quantised value its own conversion.", True,
         separate_dequantised, for_engines=True),
    Pass("remove-unused", "Removes nodes, functions and operator sets that nothing uses.", True,
         _remove_unused),
)  # fmt: skip
PASSES: Mapping[str, Pass] = {each.name: each for each in _IN_ORDER}
"""Passes by name, in their order."""
