"""The declared shapes of a model's inputs, and one spelling for all ways to fix them.

"N=1", and "x=1,3,224,224" of an input [N,3,224,224], are the same: measurements for one serve the
other. The cache holds the declarations under the model's content, so that a start from the cache
does not read the model.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coexec.cache import Cache, Entry
from coexec.codec import decode
from coexec.errors import UsageError
from coexec.model.digest import Shapes, digest_of, serialized

Declared = Mapping[str, Sequence[int | str | None] | None]
"""Dimensions by input: sizes, names, and None for those without either. None instead of a list: not
even the rank is known."""

_KIND: Final = "declared"
_Dims = list[int | str | None] | None
UNNAMED = frozenset({"?", ""})
"""Texts that exporters write for an unknown dimension; two such dimensions need not be equal."""


def known_inputs(source: Any, cache: Cache) -> Declared | None:
    """The declarations from the cache; None if they are not there."""
    entry = cache.find(_KIND, digest_of(source, {}, {}, cache))
    if entry is None:
        return None
    try:
        return decode(dict[str, _Dims], json.loads(entry.files["inputs.json"]))
    except (ValueError, KeyError):
        return None


def declared_inputs(source: Any, cache: Cache) -> Declared:
    """The declarations, read from the model if the cache has none.

    Raises:
        ModelError: it cannot be read.
    """
    declared = known_inputs(source, cache)
    if declared is None:
        declared = _read(source)
        entry = Entry({"inputs.json": json.dumps(declared).encode()})
        cache.add(_KIND, digest_of(source, {}, {}, cache), entry, quiet=True)
    return declared


def _read(source: Any) -> dict[str, _Dims]:
    from coexec.model.structure import without_weights

    content = source if isinstance(source, bytes | str | os.PathLike) else serialized(source)
    dims_by_input: dict[str, _Dims] = {}
    for value in without_weights(content).graph.input:
        tensor = value.type.tensor_type
        has_shape = value.type.HasField("tensor_type") and tensor.HasField("shape")
        dims_by_input[value.name] = [_size(dim) for dim in tensor.shape.dim] if has_shape else None
    return dims_by_input


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return None if dim.dim_param in UNNAMED else str(dim.dim_param)


def is_open(dims: Sequence[int | str | None] | None) -> bool:
    """Whether a declared shape leaves a size unknown."""
    return dims is None or not all(isinstance(dim, int) for dim in dims)


def require_fit(shapes: Shapes, declared: Declared) -> None:
    """Refuse sizes that contradict the declarations.

    Raises:
        UsageError: there is no such input or dimension, or an input has another shape.
    """
    symbols = {d: None for dims in declared.values() for d in dims or () if isinstance(d, str)}
    for name, sizes in shapes.items():
        if name in declared:
            _require_shape(name, (sizes,) if isinstance(sizes, int) else sizes, declared[name])
        elif not (name in symbols and isinstance(sizes, int) and sizes >= 0):
            dims = f" and its dimensions {', '.join(map(repr, symbols))}" if symbols else ""
            what = "the input or dimension" if name not in symbols else "a shape for the dimension"
            raise UsageError(
                f"--shape names {what} {name!r}, but the model's inputs are "
                f"{', '.join(map(repr, declared))}{dims}; a dimension has one size, as in "
                f"--shape N=1"
            )


def _require_shape(
    name: str, shape: Sequence[int], dims: Sequence[int | str | None] | None
) -> None:
    given = f"--shape {name}={','.join(map(str, shape))}"
    if any(size < 0 for size in shape):
        least = min(shape)
        raise UsageError(f"{given} has the size {least}; give a number from 0 on for each axis")
    fits = dims is None or (
        len(dims) == len(shape)
        and all(not isinstance(a, int) or a in (0, b) for a, b in zip(dims, shape, strict=True))
    )
    if not fits:
        own = "any" if dims is None else f"[{','.join('?' if d is None else str(d) for d in dims)}]"
        raise UsageError(f"{given} contradicts the model, whose input {name!r} has the shape {own}")


def canonical(shapes: Shapes, declared: Declared) -> dict[str, tuple[int, ...] | int]:
    """``shapes`` as the shape of each input, as far as they determine it, without shapes that the
    model declares itself. Entries that do not fit the model stay, so that a reader can report them.
    """
    sizes = sizes_by_name(shapes, declared)
    fixed_shapes: dict[str, tuple[int, ...] | int] = {}
    for name, dims in declared.items():
        entry = shapes.get(
            name, [sizes.get(d) if isinstance(d, str) else d for d in dims or (None,)]
        )
        shape = [entry] if isinstance(entry, int) else list(entry)
        if None not in shape and shape != dims:
            fixed_shapes[name] = tuple(int(size) for size in shape if size is not None)
    names = {d for dims in declared.values() for d in dims or () if isinstance(d, str)}
    unresolved = {
        d for name, dims in declared.items() if name not in fixed_shapes for d in dims or ()
    }
    for name, size in shapes.items():
        if name not in declared and (name in unresolved or name not in names):
            fixed_shapes[name] = size if isinstance(size, int) else tuple(size)
    return dict(sorted(fixed_shapes.items()))


def sizes_by_name(shapes: Shapes, declared: Declared) -> dict[str, int]:
    """Size by name of a dimension: the given one, or the one in which all given shapes agree."""
    by_shape: dict[str, set[int]] = {}
    for name, dims in declared.items():
        entry = shapes.get(name, ())
        shape = (entry,) if isinstance(entry, int) else entry
        for dim, size in zip(dims or (), shape, strict=False):
            if isinstance(dim, str):
                by_shape.setdefault(dim, set()).add(size)
    sizes = {dim: min(candidates) for dim, candidates in by_shape.items() if len(candidates) == 1}
    named = {n: s for n, s in shapes.items() if n not in declared and isinstance(s, int)}
    return sizes | named


_Written = Mapping[str, Sequence[int | str] | int]
"""Shapes in which a text stands for a size that the user has to choose."""


def sizes_of(shapes: _Written) -> list[str]:
    """``shapes`` as users write them: ["x=1,3,224,224", "N=1"]."""
    sizes = {n: s if isinstance(s, int) else ",".join(map(str, s)) for n, s in shapes.items()}
    return [f"{n if n.isprintable() else repr(n)}={s}" for n, s in sizes.items()]


def options_of(shapes: _Written) -> str:
    """``shapes`` as options of the command line: "--shape x=1,3,224,224 --shape N=1"."""
    return " ".join(f"--shape {text}" for text in sizes_of(shapes))
