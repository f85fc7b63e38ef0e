"""Different seeds for the nodes that draw random numbers and have no seed.

ONNX Runtime derives the seed of such a node from a seed of the process and the node's position in
its session. In a plan, nodes of several sessions have the same position and would draw the same
numbers.
"""

import random
from collections.abc import Collection
from typing import Any

_SEEDS = 1 << 24
"""Upper bound of seeds. The attribute is a float32, which represents all smaller integers."""
_used_seeds: set[int] = set()
"""Seeds that were used in this process. No two nodes get the same seed."""
_DRAWING = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
_DROPPING = frozenset(
    {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Dropout", "Sampling"}
)
"""Operators whose seed is an integer."""
_DROPOUT_DRAWS = 12
"""First opset in which Dropout has a seed, because it has a training mode."""
_NAMES = tuple(
    kind.encode() for kind in ("Bernoulli", "Dropout", "Multinomial", "Random", "Sampling")
)


def with_seeds(proto: bytes) -> bytes:
    """The serialized model with a seed for every node that can draw numbers. Existing seeds stay.

    Each call sets other seeds, so that two sessions of one file draw different numbers, as in ONNX
    Runtime.
    """
    if not any(name in proto for name in _NAMES):
        return proto
    import onnx  # imported only for such models, because the import is slow

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
    """A random unused seed. It is not near other seeds: ONNX Runtime's generator begins with
    similar numbers for neighbouring seeds."""
    while True:
        number = random.SystemRandom().randrange(_SEEDS)
        if number not in _used_seeds:
            _used_seeds.add(number)
            return number
