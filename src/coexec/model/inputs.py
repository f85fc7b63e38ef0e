"""Made-up inputs for checking a model and for measuring its tasks.

No values suit every model: a fed shape, axis or size decides what an operator may do. Divisors and
indices follow from the graph. For other inputs there are several candidates, and the caller tries
one after the other.

Numbers around 1 hide faults, such as a guard against log(0) that is gone. So `probes` gives the
same inputs with other float values.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coexec.arrays import (
    MOST_ORDINARY,
    Array,
    dtype_of_ort,
    is_float,
    limits_of,
    numpy_type,
)
from coexec.graph.graph import Graph, Operator, Tensor
from coexec.model.probe_names import ProbeName

_DIVIDING = frozenset({"Div", "Mod"})
_SIZED = frozenset({"OneHot"})
"""Operators whose second input is a size."""
_BY_AXIS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0}
"""Operators whose second input contains indices along one axis of the first, with its default."""
_BY_LEADING_AXES = frozenset({"GatherND", "ScatterND"})
"""Operators whose second input contains an index for each of the leading axes of the first."""
_ALL, _FIRST, _NONE = slice(None), slice(1), slice(0)
_SAME_VALUES = {
    "Cast": _FIRST, "Concat": _ALL, "Expand": _FIRST, "Flatten": _FIRST, "Gather": _FIRST,
    "Identity": _FIRST, "Reshape": _FIRST, "Slice": _FIRST, "Split": _FIRST, "Squeeze": _FIRST,
    "Tile": _FIRST, "Transpose": _FIRST, "Unsqueeze": _FIRST, "Where": slice(1, None),
}  # fmt: skip
"""Operators whose results have no other values than these of their inputs."""
_SAMPLE_RATE = re.compile(r"^(sr|fs|sampl(e|ing)_?(rate|freq|frequency))$", re.IGNORECASE)
"""Names of a number that selects the rate of sound, as in Silero's models."""
_SAMPLES_PER_S = 16000
"""The rate of most speech models."""


def candidates(graph: Graph, examples: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Inputs to try one after the other: the given examples, then those of `to_try`."""
    if examples:
        yield dict(examples)
    yield from to_try([graph.tensors[name] for name in graph.inputs], _bounds(graph))


def to_try(
    tensors: Sequence[Tensor], bounds: Mapping[str, tuple[int, int]] | None = None
) -> Iterator[dict[str, Any]]:
    """Made-up inputs to try one after the other: random ones, the same with zeros for integers, all
    ones, all zeros.

    Zero is an index of every axis, also where `random_inputs` finds no use as an index, as in a
    body.

    Args:
        bounds: as for `random_values`.
    """
    random = random_values(tensors, bounds=bounds)
    yield random
    whole = {t.name: filled(t, 0) for t in tensors if not (t.opaque or _is_float(t))}
    if whole:
        yield random | whole
    for filling in (1, 0):
        yield {t.name: filled(t, filling) for t in tensors}


class Probe(NamedTuple):
    """A variant of ordinary inputs."""

    name: ProbeName
    """Its name on the command line."""
    what: str
    """Its float values in words."""
    feeds: dict[str, Any]


def probes(
    tensors: Iterable[Tensor], ordinary: Mapping[str, Any], seed: int = 0
) -> Iterator[Probe]:
    """Variants of ``ordinary`` inputs with other float values; none if there is no float input.

    The most revealing ones come first, for callers without time for all of them.

    Args:
        tensors: the model's inputs.
        ordinary: inputs that the model accepts. Integers, texts and opaque values stay as they are,
            because they decide shapes and indices.
    """
    floats = [t for t in tensors if not t.opaque and _is_float(t)]
    for name, (what, values) in _FLOATS.items() if floats else ():
        rng = np.random.default_rng(seed)
        feeds = {}
        for tensor in floats:
            kind = numpy_type(tensor.dtype)
            normal = rng.standard_normal(tensor.shape, dtype=np.float32).astype(kind)
            feeds[tensor.name] = np.asarray(values(normal, rng, limits_of(kind))).astype(kind)
        yield Probe(name, what, {**ordinary, **feeds})


def _some(normal: Array, rng: "np.random.Generator", value: float) -> Array:
    """``normal`` with ``value`` in one of a hundred positions, and in at least one."""
    flat = normal.reshape(-1).copy()
    if flat.size:
        flat[rng.integers(0, flat.size, max(1, flat.size // 100))] = value
    return flat.reshape(normal.shape)


def _is_narrow(limits: Any) -> bool:
    return bool(limits.bits < 32)


_FLOATS: "Mapping[ProbeName, tuple[str, Callable[[Array, np.random.Generator, Any], Array]]]" = {
    "zeros": ("zeros", lambda normal, rng, limits: np.zeros_like(normal)),
    "large": (
        "large numbers",
        lambda normal, rng, limits: normal * (1e2 if _is_narrow(limits) else MOST_ORDINARY / 8),
    ),
    "negative": ("negative numbers", lambda normal, rng, limits: -abs(normal)),
    "small": (
        "very small numbers",
        lambda normal, rng, limits: _some(
            normal * (1e-3 if _is_narrow(limits) else 1e-20), rng, float(limits.tiny) / 4
        ),
    ),
    "unit": (
        "numbers from 0 to 1",
        lambda normal, rng, limits: rng.random(normal.shape, np.float32),
    ),
}
"""By name, the values in words and the function that gives them. Its arguments are standard normal
numbers of the tensor's type, a generator, and the type's `limits_of`. Among the small numbers are
some below the normal ones."""


def filled(tensor: Tensor, filling: int) -> Any:
    """An input that contains only this number; one of an opaque type is as small as possible.

    A single integer that is called a sample rate is 16000 all the same.
    """
    if tensor.opaque:
        return _made_up(tensor.dtype, tensor.shape)
    number = _SAMPLES_PER_S if _is_sample_rate(tensor) else filling
    return np.full(tensor.shape, number, numpy_type(tensor.dtype))


def _is_float(tensor: Tensor) -> bool:
    return is_float(numpy_type(tensor.dtype))


def _is_sample_rate(tensor: Tensor) -> bool:
    single = math.prod(tensor.shape) == 1
    return single and tensor.item_bytes >= 4 and _SAMPLE_RATE.match(tensor.name) is not None


def _made_up(kind: str, shape: Sequence[int]) -> Any:
    """A value of an opaque type, such as "seq(tensor(float))", in the form that ONNX Runtime takes.

    Texts are empty, sequences and maps have one member, and an optional value is present.
    """
    outer, _, inner = kind.removesuffix(")").partition("(")
    if outer == "seq":
        return [_made_up(inner, shape)]
    if outer == "optional":
        return _made_up(inner, shape)
    if outer == "map":
        key, _, value = inner.partition(",")
        return {"" if key == "string" else 0: "" if value == "tensor(string)" else 0}
    if inner == "string":
        return np.full(shape, "", object)
    return np.zeros(shape, numpy_type(dtype_of_ort(inner)))


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Standard normal numbers for float inputs, small integers for others.

    The integers are zeros and ones, but for divisors and sizes, which are one, and for indices,
    which lie anywhere on their axis.
    """
    return random_values([graph.tensors[name] for name in graph.inputs], seed, _bounds(graph))


def random_values(
    tensors: Iterable[Tensor], seed: int = 0, bounds: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Any]:
    """Standard normal numbers for float tensors by name, small integers for others.

    A single integer that is called a sample rate is 16000.

    Args:
        bounds: least and greatest integer by tensor, where they are not 0 and 1.
    """
    rng = np.random.default_rng(seed)
    bounds = bounds or {}
    values: dict[str, Any] = {}
    for tensor in tensors:
        if tensor.opaque:
            values[tensor.name] = _made_up(tensor.dtype, tensor.shape)
        elif _is_float(tensor):
            numbers = rng.standard_normal(tensor.shape, dtype=np.float32)
            values[tensor.name] = numbers.astype(numpy_type(tensor.dtype), copy=False)
        elif tensor.name not in bounds and _is_sample_rate(tensor):
            values[tensor.name] = filled(tensor, 1)
        else:
            least, most = bounds.get(tensor.name, (0, 1))
            values[tensor.name] = rng.integers(least, most + 1, tensor.shape).astype(tensor.dtype)
    return values


def _bounds(graph: Graph) -> Mapping[str, tuple[int, int]]:
    """Least and greatest integer by input, if an operator that reads the input limits them."""
    origins = {name: {name} for name in graph.inputs}
    bounds: dict[str, tuple[int, int]] = {}
    operators = itertools.chain.from_iterable(task.operators for task in graph.tasks)
    for operator in operators:
        same = operator.inputs[_SAME_VALUES.get(operator.op_type, _NONE)]
        sources = set().union(*(origins.get(name, ()) for name in same))
        origins |= dict.fromkeys(operator.outputs, sources)
        if (limits := _limits(operator, graph.tensors)) is None:
            continue
        for source in origins.get(operator.inputs[1], ()):
            least, most = bounds.get(source, limits)
            bounds[source] = max(least, limits[0]), max(least, limits[0], min(most, limits[1]))
    return bounds


def _limits(operator: Operator, tensors: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Least and greatest integer that ``operator`` takes as its second input; None: any."""
    kind = operator.op_type
    if operator.domain or len(operator.inputs) < 2:
        return None
    if kind in _DIVIDING or kind in _SIZED:
        return 1, 1
    if kind not in _BY_LEADING_AXES and kind not in _BY_AXIS:
        return None
    read, indices = (tensors[name] for name in operator.inputs[:2])
    if read.opaque or indices.opaque:
        return 0, 0
    shape = read.shape
    if kind in _BY_AXIS:
        axis = operator.int("axis", _BY_AXIS[kind])
        shape = shape[axis : axis + 1] if axis >= 0 else shape[axis:][:1]
    else:
        first = operator.int("batch_dims", 0)
        shape = shape[first : first + indices.shape[-1]]
    return 0, min((size - 1 for size in shape if size), default=0)
