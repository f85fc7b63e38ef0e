"""A seed of its own for each node that draws random numbers and has none.

ONNX Runtime derives such a seed from one of the process and the node's place in its session. In a
plan, nodes of several sessions have the same place, and would draw the same numbers.
"""

import random
from collections.abc import Collection
from typing import Any

__all__ = ["with_seeds"]

_SEEDS = 1 << 24
"""The attribute is a float32, which has all whole numbers below."""
_given: set[int] = set()
"""In this process: no two nodes have one."""
_DRAWING = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike",
                      "RandomUniform", "RandomUniformLike"})  # fmt: skip
_DROPPING = frozenset({"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout",
                       "Sampling"})  # fmt: skip
"""Their seed is an integer."""
_DROPOUT_DRAWS = 12
"""The first version of Dropout that has a seed, as it may train."""
_NAMES = tuple(kind.encode() for kind in ("Bernoulli", "Dropout", "Multinomial", "Random",
                                          "Sampling"))  # fmt: skip


def with_seeds(proto: bytes) -> bytes:
    """A serialized model in which every node that can draw numbers has a seed; others keep theirs.

    Each call gives other seeds, so that two sessions of one file differ as in ONNX Runtime.
    """
    if not any(name in proto for name in _NAMES):
        return proto
    import onnx  # only for such models: it takes a while

    model = onnx.load_model_from_string(proto)
    version = {imported.domain: imported.version for imported in model.opset_import}.get("", 0)
    drawing = _DRAWING | _DROPPING - ({"Dropout"} if version < _DROPOUT_DRAWS else set())
    for body in (model.graph, *model.functions):
        _give_seeds(body, drawing)
    seeded: bytes = model.SerializeToString()
    return seeded


def _give_seeds(body: Any, drawing: Collection[str]) -> None:
    import onnx

    for node in body.node:
        names = {attribute.name for attribute in node.attribute}
        if node.op_type in drawing and "seed" not in names:
            number = _new_seed()
            seed = float(number) if node.op_type in _DRAWING else number
            node.attribute.append(onnx.helper.make_attribute("seed", seed))
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _give_seeds(inner, drawing)


def _new_seed() -> int:
    """Far from others: ONNX Runtime's generator begins alike for seeds that are neighbours."""
    while True:
        number = random.SystemRandom().randrange(_SEEDS)
        if number not in _given:
            _given.add(number)
            return number
