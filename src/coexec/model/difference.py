"""Differences between outputs and their expected values. Imports no ONNX, because a start from the
cache needs this module."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.arrays import Array, is_float, numpy_type
from coexec.graph.graph import Graph, Operator, Tensor
from coexec.precision import FLOAT32

TOLERANCE = 1e-4
"""Allowed difference, relative to the largest value of an output."""

HALF_TOLERANCE = 1e-2
"""The same where tensors are stored in 16 bits."""
_LEAST = {"tf32": 5e-3, "bf16": 2e-2, "fp16": HALF_TOLERANCE}
"""The same by the precision of an engine, if the model has no wider limit itself: 5 to 20 times
half a unit in the last place."""
_QUANTISED = 5e-2
"""Largest difference of ONNX Runtime's own answers that is rounding in a quantized model: six steps
of 8 bits with a sign."""
_AMPLIFIED = 2.0
"""Factor by which a result may differ more than ONNX Runtime's own answers, where a model amplifies
rounding."""
_STEP = 1 / 255
"""A step of 8 bits, relative to their range."""
_LAST_DIGITS = 1e-6
_QUANTISING = ("Quantize", "QLinear", "QGemm")
"""Parts of the types of operators that round to whole numbers; `DequantizeLinear` does not."""


@dataclass(frozen=True)
class Difference:
    """How a tensor differs from the expected one."""

    relative: float
    """`worst_difference`."""
    where: tuple[int, ...] = ()
    """Index of the element that differs most; the first one that has no number, if there is one."""
    actual: Any = None
    expected: Any = None
    """The values there; None, both, if types or shapes differ."""
    elements: int = 0
    """Number of elements that are not equal."""
    numbers_lost: int = 0
    """Number of elements that are NaN or infinite and should be something else, or vice versa."""
    text: str = ""
    """Types and shapes that differ; "" if they are the same."""


def difference_of(actual: Array, expected: Array) -> Difference:
    """The difference between two tensors; its ``relative`` is 0.0 if there is none."""
    relative = worst_difference(actual, expected)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return Difference(relative, text=_others(actual, expected))
    if not expected.size:
        return Difference(relative)
    if is_float(expected.dtype):
        a, b = actual.astype(np.float64), expected.astype(np.float64)
        unlike_b = (a != b) & ~(np.isnan(a) & np.isnan(b))
        lost = unlike_b & ~(np.isfinite(a) & np.isfinite(b))
        with np.errstate(invalid="ignore"):  # infinite numbers are lost, not distant
            distance = np.where(unlike_b & ~lost, np.abs(a - b), 0.0)
    else:
        unlike_b, lost = actual != expected, np.zeros(expected.shape, bool)
        distance = unlike_b.astype(np.float64)
        if expected.dtype.kind in "iu":
            distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    place = np.unravel_index(np.argmax(lost if lost.any() else distance), expected.shape)
    where = tuple(int(i) for i in place)
    return Difference(
        relative,
        where,
        actual[where].item(),
        expected[where].item(),
        int(unlike_b.sum()),
        int(lost.sum()),
    )


def is_half(tensor: Tensor) -> bool:
    """Whether it has at most 16 bits a number: rounding the other way is more than `TOLERANCE`."""
    plain = not tensor.opaque and tensor.dtype != "string"  # weights may be texts
    return plain and is_narrow(numpy_type(tensor.dtype))


def tolerance_of(graph: Graph) -> float:
    """Allowed difference of outputs on devices that compute in the model's own precision, relative
    to the largest value."""
    half = any(is_half(tensor) for tensor in graph.tensors.values())
    return HALF_TOLERANCE if half else TOLERANCE


def tolerance_in(precision: str, graph: Graph, lower: float | None = None) -> float:
    """Allowed difference of outputs on an engine that computes in ``precision``.

    Args:
        lower: of precisions lower than float32; None: the default of each.
    """
    usual = tolerance_of(graph)
    if precision == FLOAT32:
        return usual
    return max(_LEAST.get(precision, HALF_TOLERANCE) if lower is None else lower, usual)


def quantises(operators: Iterable[Operator]) -> bool:
    """Whether one of them rounds to whole numbers: a difference in the last digits of its input can
    become a step of the quantizer."""
    return any(part in operator.op_type for operator in operators for part in _QUANTISING)


def moved(feeds: Mapping[str, Any], *, quantised: bool) -> dict[str, Any]:
    """``feeds`` changed in the last digits.

    Args:
        quantised: whether floats change by `TOLERANCE`, as results of an engine may, and one of a
            hundred integers of 8 bits by 1; else floats change by a millionth, integers not.
    """
    rng = np.random.default_rng(0)
    return {name: _moved(value, rng, quantised) for name, value in feeds.items()}


def _moved(value: Any, rng: "np.random.Generator", quantised: bool) -> Any:
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    if quantised and _has_8_bits(value):
        steps = rng.choice((-1, 0, 1), value.shape, p=(0.005, 0.99, 0.005))
        steps.reshape(-1)[rng.integers(value.size)] = 1
        limits = np.iinfo(value.dtype)
        return (value.astype(np.int32) + steps).clip(limits.min, limits.max).astype(value.dtype)
    if value.dtype.kind != "f":
        return value
    scale = float(abs(value[np.isfinite(value)]).max(initial=1.0))
    least = TOLERANCE if quantised else _LAST_DIGITS
    digits = max(least, float(np.finfo(value.dtype).eps))
    change = np.asarray(rng.standard_normal(value.shape) * digits * scale)
    return value + change.astype(value.dtype)


def _has_8_bits(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in (np.int8, np.uint8)


def is_rounding(worst: float, own: float, *, quantised: bool = False) -> bool:
    """Whether a difference beyond the tolerance comes from rounding that the model amplifies.

    Args:
        worst: the difference, relative to the largest value.
        own: the largest difference between ONNX Runtime's answers: with and without its
            optimisations, and, of a quantized model, to inputs that are `moved`. More than
            `HALF_TOLERANCE`, or some steps of the quantizer, is no rounding any more: random
            operators, for example.
    """
    limit = _QUANTISED if quantised else HALF_TOLERANCE
    return own <= limit and worst <= _AMPLIFIED * own


def own_difference(answers: Iterable[Any], expected: Any, *, quantised: bool = False) -> float:
    """Largest difference between ONNX Runtime's own answers, for `is_rounding`.

    Args:
        answers: its other answers; none for a result that is rounded once.
        quantised: as for `worst_difference`. Integers of 8 bits may always be one step apart.
    """
    least = _STEP / _AMPLIFIED if quantised and _has_8_bits(expected) else 0.0
    differences = (worst_difference(answer, expected, quantised=quantised) for answer in answers)
    return max(differences, default=0.0) or least


def unlike(actual: Any, expected: Any, allowed: float, *, usual: float = 0.0) -> str | None:
    """How an output differs from the expected one, infinity and NaN included; None: it does not.

    Differences up to the smallest normal number do not count, because some engines round smaller
    numbers to zero.

    Args:
        allowed: difference of finite numbers, relative to the largest expected one or to ``usual``.
        usual: `largest` of this output for ordinary inputs. An output that is 0 or nearly 0 for the
            compared inputs, such as the probability of something absent, is judged on this scale.
    """
    if not isinstance(expected, np.ndarray):
        same = worst_difference(actual, expected) <= allowed
        return None if same else "has other members than ONNX Runtime's sequence or map"
    if not is_float(expected.dtype):
        return None if worst_difference(actual, expected) == 0.0 else _others(actual, expected)
    if not isinstance(actual, np.ndarray) or actual.dtype != expected.dtype:
        return (
            f"has the type {getattr(actual, 'dtype', type(actual).__name__)}, not {expected.dtype}"
        )
    if actual.shape != expected.shape:
        return f"has the shape {list(actual.shape)}, not {list(expected.shape)}"
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    comparable = np.isfinite(a) & np.isfinite(b)
    alike = np.where(np.isnan(b), np.isnan(a), a == b)
    lost: Array = ~(comparable | alike)
    if lost.any():
        where = tuple(int(i) for i in np.argwhere(lost)[0])
        return f"has {a[where]:g} at {list(where)}, not {b[where]:g}"
    if not comparable.any():
        return None
    least = float(np.finfo(np.float32).tiny)
    finite = b[np.isfinite(b)]
    difference = float(np.abs(a[comparable] - b[comparable]).max())
    scale = max(largest(finite), usual)
    if difference <= allowed * scale + least:
        return None
    value = "largest value" if scale > usual else "largest value for ordinary inputs"
    return (
        f"differs by {difference / max(scale, least):.2g} of its {value}, {allowed:.0e} is allowed"
    )


@dataclass(frozen=True)
class Errors:
    """How far outputs of a plan are from the expected ones, over several inputs."""

    largest: float = 0.0
    """Largest difference, relative to the largest expected value."""
    mean: float = 0.0
    """Mean difference, relative to the same; of the input and output for which it is largest."""
    rows: int = 0
    """Number of rows of outputs of the form (rows, classes)."""
    same_class: int = 0
    """Number of these rows in which the largest class is the expected one."""

    def plus(self, other: "Errors") -> "Errors":
        """The errors of both."""
        return Errors(
            max(self.largest, other.largest),
            max(self.mean, other.mean),
            self.rows + other.rows,
            self.same_class + other.same_class,
        )

    def __str__(self) -> str:
        text = f"error {self.largest:.2g} of the largest value, {self.mean:.2g} in the mean"
        if not self.rows:
            return text
        return f"{text}; the first class stays in {self.same_class} of {self.rows} rows"


def errors_of(actual: Any, expected: Any, usual: float = 0.0) -> Errors:
    """The errors of an output; none if it has no floats, infinite if its shape is another one.

    Args:
        usual: as for `unlike`.
    """
    if not isinstance(expected, np.ndarray) or not is_float(expected.dtype):
        return Errors()
    if np.shape(actual) != expected.shape:
        return Errors(math.inf, math.inf)
    if not expected.size:
        return Errors()
    a, b = np.asarray(actual).astype(np.float64), expected.astype(np.float64)
    comparable = np.isfinite(a) & np.isfinite(b)
    scale = max(largest(b), usual) or 1.0
    distances = np.abs(a[comparable] - b[comparable]) / scale
    rows = same_class = 0
    if expected.ndim == 2 and expected.shape[1] > 1:
        rows, same = len(b), a.argmax(axis=1) == b.argmax(axis=1)
        same_class = int(same.sum())
    mean = float(distances.mean()) if distances.size else 0.0
    return Errors(float(distances.max(initial=0.0)), mean, rows, same_class)


def largest(value: Any) -> float:
    """Largest absolute value of the finite numbers in an array of floats; 0.0 if there is none, and
    for everything else."""
    if not isinstance(value, np.ndarray) or not is_float(value.dtype):
        return 0.0
    numbers = value.astype(np.float64)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _others(actual: Any, expected: Array) -> str:
    """How a tensor without fractions differs."""
    actual = np.asarray(actual)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return (
            f"is {actual.dtype} of shape {list(actual.shape)}, not {expected.dtype} of shape "
            f"{list(expected.shape)}"
        )
    return f"has {int((actual != expected).sum())} other values among {expected.size}"


def is_narrow(kind: np.dtype[Any]) -> bool:
    """Whether it is a type of floats with 16 bits or fewer."""
    return is_float(kind) and kind.itemsize < np.dtype(np.float32).itemsize


def worst_difference(actual: Any, expected: Any, *, quantised: bool = False) -> float:
    """Largest absolute difference, relative to the largest expected value; infinite if the shapes
    differ or one has a number where the other has none, and for integers that are not equal.

    For sequences and maps it is the worst of their members; infinite if the members are others.

    Args:
        quantised: whether integers of 8 bits are rounded numbers, whose difference is relative to
            their range.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        if actual.keys() != expected.keys():
            return float("inf")
        return worst_difference(list(actual.values()), [expected[key] for key in actual])
    if isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return float("inf")
        return max(map(worst_difference, actual, expected), default=0.0)
    if expected is None or actual is None:
        return 0.0 if actual is expected else float("inf")
    return _array_difference(np.asarray(actual), np.asarray(expected), quantised)


def _array_difference(actual: Array, expected: Array, quantised: bool) -> float:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return float("inf")
    if quantised and _has_8_bits(expected):
        steps = np.abs(actual.astype(np.int32) - expected.astype(np.int32))
        return float(steps.max(initial=0)) * _STEP
    # `np.array_equal` would swallow what a signal handler raises in it, and return False.
    if not is_float(expected.dtype):
        return 0.0 if (actual == expected).all() else float("inf")
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if (finite != np.isfinite(a)).any() or not finite.any():
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        return 0.0 if alike.all() else float("inf")
    scale = float(np.abs(b[finite]).max()) or 1.0
    return float(np.abs(a[finite] - b[finite]).max()) / scale
