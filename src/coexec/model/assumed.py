"""Sizes for the dimensions that a model leaves open and the user does not fix.

A batch is 1. Sides of images stand in the metadata of many exports. For these, lengths of sequences
and channels there are usual sizes, and sizes that the model itself contains: a position embedding
of 197 rows, a Reshape to 25200 columns. They are tried in turn on ONNX Runtime, until the model
runs. Dimensions of the same name have the same size in all inputs, and "past + length" is the sum
of the two.
"""

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from coexec.arrays import dtype_of_ort, is_float, numpy_type
from coexec.errors import ModelError, first_line
from coexec.graph.graph import Tensor
from coexec.model.declared import options_of
from coexec.model.fixed import CHANNELS, dims_of, open_tensors
from coexec.model.inputs import to_try
from coexec.model.reference_session import plain_session
from coexec.model.values import has_foreign, run_session

_Role = Literal["batch", "channels", "side", "length"]
_Key = str | tuple[str, int]
"""Key of an open dimension: its name, or the input and the axis of one without a name."""

_ROLES: Mapping[_Role, str] = {
    "batch": r"batch|^bs$",
    "channels": r"channel",
    "side": r"height|width|^h$|^w$|image|pixel",
    "length": r"length|seq|time|token|frame|sample|past|total",
}
"""Role of a dimension by patterns for its name; if none matches, its axis decides."""
_BATCH_LETTERS = frozenset("NnBb")
"""Names of a batch on the first axis. On another one, N is often a length."""
_USUAL: Mapping[_Role, Sequence[int]] = {
    "batch": (1,),
    "channels": (3, 1, 4),
    "side": (224, 640, 320, 256, 512, 384, 416, 299, 336, 448, 128, 96, 64, 48, 32, 28, 1024),
    "length": (128, 64, 256, 16, 512, 77),
}
"""Sizes in the order in which they are tried."""
_LAST: Mapping[_Role, Sequence[int]] = {"length": (1, 2, 1024, 4096, 16000)}
"""Sizes that are tried after those from inside of the model."""
_IMAGE_SIZE = re.compile(r"^(imgsz|(img|image|input)_?(size|shape))$", re.IGNORECASE)
"""Keys of metadata that hold height and width, or a side of a square: Ultralytics' exports have
``imgsz`` with "[320, 320]" (https://docs.ultralytics.com/modes/export)."""
_MOST_INSIDE = 40
"""Number of sizes that are taken from inside of the model."""
_LARGEST = 1 << 16
_LIMIT_S = 30.0
"""Seconds for all attempts with one model."""


def assumed_shapes(model: ir.Model, limit_s: float = _LIMIT_S) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs with open dimensions, by name, with which ONNX Runtime runs ``model``.

    Args:
        model: with all known shapes and values, see `coexec.model.fixed.fix`.

    Raises:
        ModelError: no sizes were found in ``limit_s`` seconds, or ONNX Runtime does not run it.
    """
    unknown = open_tensors(model)
    if not unknown:
        return {}
    session = plain_session(model)
    end_s = time.monotonic() + limit_s
    tried, why = 0, "no time was left"
    for shapes in _proposals(model, unknown):
        if time.monotonic() > end_s:
            break
        tried += 1
        try:
            _run(session, shapes, end_s)
        except Exception as error:  # whatever ONNX Runtime raises
            why = first_line(error)
            continue
        return shapes
    whole = [a.name for a in session.get_inputs() if "int" in a.type and not a.shape]
    decides = f". What {whole[0]!r} has to be, --value {whole[0]}=NUMBER says" if whole else ""
    forms = options_of({value.name or "": _form(value) for value in unknown})
    raise ModelError(
        f"the model leaves dimensions open, and ran with none of {tried} sizes that were tried "
        f"(the last said: {why}). Give the sizes of "
        f"{', '.join(f'{v.name!r} {v.shape}' for v in unknown)} by inputs that suit the model, "
        f"--inputs FILE.npz, or as {forms} with numbers for N{decides}"
    )


def _form(value: ir.Value) -> list[int | str]:
    """The shape of ``value`` with "N" for each open dimension; of two, if the rank is open."""
    dims = dims_of(value)
    return [d if isinstance(d, int) else "N" for d in ([None] * 2 if dims is None else dims)]


def _run(session: Any, shapes: Mapping[str, tuple[int, ...]], end_s: float) -> None:
    """Run the model with made-up inputs of these shapes.

    Raises:
        Exception: the error of ONNX Runtime for the last of several kinds of inputs.
    """
    tensors = [_tensor(arg, shapes) for arg in session.get_inputs()]
    whole = any(not (t.opaque or is_float(numpy_type(t.dtype))) for t in tensors)
    sets = list(itertools.islice(to_try(tensors), None if whole else 1))
    for number, feeds in enumerate(sets, 1):
        options = ort.RunOptions()
        options.log_severity_level = 4
        stop = threading.Timer(max(0.1, end_s - time.monotonic()), _terminate, [options])
        stop.daemon = True
        stop.start()
        try:
            if has_foreign(session):
                run_session(session, [o.name for o in session.get_outputs()], feeds)
            else:
                session.run(None, feeds, options)
            return
        except Exception:
            if number == len(sets):
                raise
        finally:
            stop.cancel()


def _terminate(options: ort.RunOptions) -> None:
    options.terminate = True


def _tensor(arg: Any, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
    """An input of a session of ONNX Runtime as a `Tensor`."""
    kind, _, inner = arg.type.removesuffix(")").partition("(")
    shape = shapes.get(arg.name) or tuple(d if isinstance(d, int) else 1 for d in arg.shape)
    if kind != "tensor" or inner == "string":
        return Tensor(arg.name, shape, arg.type, opaque=True)
    return Tensor(arg.name, shape, dtype_of_ort(inner))


def _proposals(
    model: ir.Model, unknown: Sequence[ir.Value]
) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes to try, the usual ones first."""
    roles = _roles(unknown)
    inside = _inside(model)
    sizes = {role: _sizes(role, inside) for role in dict.fromkeys(roles.values())}
    sides = [key for key, role in roles.items() if role == "side"]
    if sides and (image := _image_size(model)) and (len(sides) > 1 or image[0] == image[1]):
        first = {key: sizes[role][0] for key, role in roles.items()}
        first |= dict(zip(sides, itertools.cycle(image), strict=False))
        with suppress(KeyError):
            yield {value.name or "": _shape(value, first) for value in unknown}
    for chosen in _by_rank([sizes[role] for role in sizes]):
        of_role = dict(zip(sizes, chosen, strict=True))
        key_sizes = {key: of_role[role] for key, role in roles.items()}
        with suppress(KeyError):
            yield {value.name or "": _shape(value, key_sizes) for value in unknown}


def _image_size(model: ir.Model) -> tuple[int, int] | None:
    """Height and width from the metadata of the model; None if it has none."""
    for key, text in model.metadata_props.items():
        if _IMAGE_SIZE.match(key) and re.fullmatch(r"[\d\s,x\[\]()]+", text):
            numbers = [int(number) for number in re.findall(r"\d{1,5}", text)]
            sides = [number for number in numbers if max(CHANNELS) < number <= _LARGEST]
            if len(sides) in (1, 2):
                return sides[0], sides[-1]
    return None


def _sizes(role: _Role, inside: Sequence[int]) -> list[int]:
    sizes = [*_USUAL[role], *(inside if role in ("side", "length") else ()), *_LAST.get(role, ())]
    return list(dict.fromkeys(sizes))


def _by_rank(lists: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """All combinations, those with entries from the front of their lists first."""
    for places in sorted(itertools.product(*(range(len(each)) for each in lists)), key=sum):
        yield tuple(each[at] for each, at in zip(lists, places, strict=True))


def _shape(value: ir.Value, size_by_key: Mapping[_Key, int]) -> tuple[int, ...]:
    """The shape of ``value`` with the sizes ``size_by_key``.

    Raises:
        KeyError: a sum of a dimension that no input has by itself.
    """
    dims = dims_of(value)
    if dims is None:
        return tuple(size_by_key[(value.name or "", axis)] for axis in range(4))
    sizes = []
    for axis, dim in enumerate(dims):
        if isinstance(dim, int):
            sizes.append(dim)
        elif dim is not None and (terms := _terms(dim)):
            sizes.append(sum(int(t) if t.isdigit() else size_by_key[t] for t in terms))
        else:
            sizes.append(size_by_key[dim if dim is not None else (value.name or "", axis)])
    return tuple(sizes)


def _terms(dim: str) -> list[str]:
    """The terms of a sum such as "past_length + 1"; [] for a plain name."""
    terms = [term.strip() for term in dim.split("+")]
    return terms if len(terms) > 1 and all(re.fullmatch(r"\w+", t) for t in terms) else []


def _roles(unknown: Sequence[ir.Value]) -> dict[_Key, _Role]:
    """The role of each open dimension. The first input with a name decides the role of that
    name."""
    roles: dict[_Key, _Role] = {}
    for value in unknown:
        dims = dims_of(value)
        by_axis = _by_axis([None] * 4 if dims is None else dims)
        for axis, dim in enumerate(by_axis if dims is None else dims):
            if dims is None or dim is None:
                roles[(value.name or "", axis)] = by_axis[axis]
            elif isinstance(dim, str):
                for term in _terms(dim) or [dim]:
                    if not term.isdigit():
                        roles.setdefault(term, _by_name(term, axis) or by_axis[axis])
    return roles


def _by_name(name: str, axis: int) -> _Role | None:
    if axis == 0 and name in _BATCH_LETTERS:
        return "batch"
    return next((role for role, text in _ROLES.items() if re.search(text, name.lower())), None)


def _by_axis(dims: Sequence[int | str | None]) -> list[_Role]:
    """Roles of the dimensions of an input, by its rank and by the axis of its channels."""
    rank = len(dims)
    roles: list[_Role] = ["batch" if axis == 0 else "length" for axis in range(rank)]
    last = rank and dims[-1] in CHANNELS
    if rank in (4, 5) and last and dims[1] not in CHANNELS:
        roles[-3:] = ["side", "side", "channels"]
    elif rank in (4, 5):
        roles[1], roles[-2:] = "channels", ["side", "side"]
    elif rank == 3 and dims[2] in (3, 4) and not any(isinstance(d, int) for d in dims[:2]):
        roles = ["side", "side", "channels"]
    elif rank == 3 and dims[0] in (3, 4):
        roles = ["channels", "side", "side"]
    elif rank == 3 and isinstance(dims[0], int) and dims[0] > 1 and isinstance(dims[2], int):
        roles[1] = "batch"  # the state of a recurrent network: layers, batch, features
    return roles


def _inside(model: ir.Model) -> list[int]:
    """Sizes that the model may need, the most frequent first: rows of weights with two or more
    axes, such as embeddings of positions, and numbers in small constants, such as targets of
    Reshape."""
    counts: Counter[int] = Counter()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        shape = tensor.shape.numpy()
        if len(shape) >= 2:
            counts[shape[-2]] += 1
        elif tensor.dtype == ir.DataType.INT64 and tensor.size <= 8:
            counts.update(np.atleast_1d(tensor.numpy()).tolist())
    sizes = [size for size, _ in counts.most_common() if 1 < size <= _LARGEST]
    return sizes[:_MOST_INSIDE]
