"""What a model says of its inputs' shapes, and one spelling for all ways to fix them.

"N=1", and "x=1,3,224,224" of an input [N,3,224,224], are the same: what is measured for one serves
the other. The declarations lie in the cache by the model's content, so that a start from there does
not read the model.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coexec.cache import Cache, Entry
from coexec.frontend.digest import Shapes, digest_of, serialized

__all__ = [
    "UNNAMED",
    "Declared",
    "canonical",
    "declared_inputs",
    "is_open",
    "known_inputs",
    "options_of",
]

Declared = Mapping[str, Sequence[int | str | None] | None]
"""By input its sizes, names of dimensions, and None for those without either; None in the place of
all: not even the rank is known."""

_KIND: Final = "declared"
UNNAMED = frozenset({"?", ""})
"""What exporters write for a dimension that they do not know; equal ones need not be equal."""


def known_inputs(source: Any, cache: Cache) -> Declared | None:
    """The declarations from the cache; None if they are not there."""
    entry = cache.find(_KIND, digest_of(source, {}, {}, cache))
    if entry is None:
        return None
    try:
        found: Declared = json.loads(entry.files["inputs.json"])
        return found
    except (ValueError, KeyError):
        return None


def declared_inputs(source: Any, cache: Cache) -> Declared:
    """The declarations, read from the model if need be.

    Raises:
        ModelError: it cannot be read.
    """
    found = known_inputs(source, cache)
    if found is None:
        found = _read(source)
        entry = Entry({"inputs.json": json.dumps(found).encode()})
        cache.add(_KIND, digest_of(source, {}, {}, cache), entry, quiet=True)
    return found


def _read(source: Any) -> dict[str, list[int | str | None] | None]:
    from coexec.frontend.structure import without_weights

    content = source if isinstance(source, bytes | str | os.PathLike) else serialized(source)
    found: dict[str, list[int | str | None] | None] = {}
    for value in without_weights(content).graph.input:
        tensor = value.type.tensor_type
        known = value.type.HasField("tensor_type") and tensor.HasField("shape")
        found[value.name] = [_size(dim) for dim in tensor.shape.dim] if known else None
    return found


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return None if dim.dim_param in UNNAMED else str(dim.dim_param)


def is_open(dims: Sequence[int | str | None] | None) -> bool:
    """Whether a declared shape leaves a size unknown."""
    return dims is None or not all(isinstance(dim, int) for dim in dims)


def canonical(shapes: Shapes, declared: Declared) -> dict[str, tuple[int, ...] | int]:
    """``shapes`` with the shape of each input, as far as they tell it, and without what the model
    says itself. What does not fit the model stays, so that whoever reads it can say so."""
    sizes = _sizes(shapes, declared)
    found: dict[str, tuple[int, ...] | int] = {}
    for name, dims in declared.items():
        given = shapes.get(
            name, [sizes.get(d) if isinstance(d, str) else d for d in dims or (None,)]
        )
        shape = [given] if isinstance(given, int) else list(given)
        if None not in shape and shape != dims:
            found[name] = tuple(int(size) for size in shape if size is not None)
    names = {d for dims in declared.values() for d in dims or () if isinstance(d, str)}
    unresolved = {d for name, dims in declared.items() if name not in found for d in dims or ()}
    for name, size in shapes.items():
        if name not in declared and (name in unresolved or name not in names):
            found[name] = size if isinstance(size, int) else tuple(size)
    return dict(sorted(found.items()))


def _sizes(shapes: Shapes, declared: Declared) -> dict[str, int]:
    """By name of a dimension its size: as given, or as all shapes of inputs have it."""
    by_shape: dict[str, set[int]] = {}
    for name, dims in declared.items():
        given = shapes.get(name, ())
        shape = (given,) if isinstance(given, int) else given
        for dim, size in zip(dims or (), shape, strict=False):
            if isinstance(dim, str):
                by_shape.setdefault(dim, set()).add(size)
    sizes = {dim: min(found) for dim, found in by_shape.items() if len(found) == 1}
    named = {n: s for n, s in shapes.items() if n not in declared and isinstance(s, int)}
    return sizes | named


def options_of(shapes: Shapes) -> str:
    """As the command line takes them: "--shape x=1,3,224,224 --shape N=1"."""
    sizes = {n: s if isinstance(s, int) else ",".join(map(str, s)) for n, s in shapes.items()}
    return " ".join(f"--shape {n if n.isprintable() else repr(n)}={s}" for n, s in sizes.items())
