"""Element-wise ONNX operators as OpenCL C expressions, and the patterns that become their text.

The same text works on scalars and on vectors of floats: comparisons of vectors give masks, and
``SELECT(mask, a, b)`` selects lane by lane. Limits are comparisons and not fmin and fmax: NaN stays
NaN, as in ONNX, and compilers need fewer instructions for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coexec.engines.kernels.base import CTYPES, literal
from coexec.graph.graph import Operator


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and the text of its operands, which should be plain names."""

    op: Operator
    arguments: Sequence[str]
    """Text of the operands; "" where an optional one is absent."""
    dtypes: Sequence[str]
    """Types of the operands."""
    dtype: str
    """Type of the result, which is assigned to a variable of this type."""

    def number(self, value: float) -> str:
        """A constant of the operands' type."""
        return literal(value, self.dtypes[0])

    def attribute(self, name: str, default: float) -> str:
        """A number from the attributes, as a constant."""
        return self.number(self.op.number(name, default))


Text = Callable[[Call], str]


def is_float(dtype: str) -> bool:
    """Whether functions of real numbers are defined for the type."""
    return dtype in ("float32", "float64")


def unary(pattern: str) -> Text:
    """Text from a pattern of the only operand ``a``, and of ``zero`` of its type."""
    return lambda call: pattern.format(a=call.arguments[0], zero=call.number(0))


def binary(pattern: str) -> Text:
    """Text from a pattern of the operands ``a`` and ``b``."""
    return lambda call: pattern.format(a=call.arguments[0], b=call.arguments[1])


def folded(pattern: str) -> Text:
    """Text from a pattern of two operands, applied to any number of operands from the left."""

    def text(call: Call) -> str:
        result, *operands = call.arguments
        for operand in operands:
            result = pattern.format(a=result, b=operand)
        return result

    return text


def filled(pattern: str, constants: Mapping[str, float] | None = None, **defaults: float) -> Text:
    """Text from a pattern of the input, attributes with these defaults, and further constants."""

    def text(call: Call) -> str:
        values = {k: call.attribute(k, v) for k, v in defaults.items()}
        values |= {k: call.number(v) for k, v in (constants or {}).items()}
        return pattern.format(a=call.arguments[0], **values)

    return text


def limited(value: str, low: str, high: str) -> str:
    """``value`` between two limits; NaN stays. If ``low`` is above ``high``, the result is
    ``high``. Both may be absent."""
    raised = f"SELECT({value} < {low}, {low}, {value})" if low else value
    return f"SELECT({raised} > {high}, {high}, {raised})" if high else raised


def _clip(call: Call) -> str:
    """The limits are attributes before opset 11, and inputs since then.

    An absent limit is the lowest or highest finite number, as in ONNX Runtime.
    """
    if call.op.version and call.op.version < 11:
        bounds = [call.op.attributes.get(name) for name in ("min", "max")]
        limits = ["" if v is None else call.number(float(v)) for v in bounds]  # type: ignore[arg-type]
    else:
        limits = [*call.arguments[1:], "", ""]
    if is_float(call.dtypes[0]):
        most = float(np.finfo(call.dtypes[0]).max)
        low, high = (call.number(limit) for limit in (-most, most))
        return limited(call.arguments[0], limits[0] or low, limits[1] or high)
    return limited(call.arguments[0], limits[0], limits[1])


def _gelu(call: Call) -> str:
    x = call.arguments[0]
    if call.op.text("approximate", "none") == "tanh":
        # (1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)), which is 0 for -infinity; tanh may not be -1.
        inner = f"{call.number(1.5957691216057308)} * ({x} + {call.number(0.044715)} * {x}*{x}*{x})"
        return f"({x} / (1.0f + exp(-({inner}))))"
    return f"(0.5f * {x} * (1.0f + erf({x} * {call.number(0.7071067811865476)})))"


def _between(pattern: str) -> str:
    """Text that limits the value of ``pattern`` to 0 ... 1."""
    return limited(f"({pattern})", "{zero}", "{one}")


def _unless_tiny(function: str, series: str) -> str:
    """The function, or for small angles a series, which has all digits there.

    Some functions of vectors return the value for 0.0078 for smaller angles, if these are denormal
    or in a vector with an infinity or a very large number.
    """
    return f"SELECT(fabs({{a}}) < 0.015625f, {series}, {function}({{a}}))"


def _pow(call: Call) -> str:
    """A power; the exponent may be of another type."""
    a, b = call.arguments
    same = call.dtypes[1] == call.dtype
    return f"pow({a}, {b})" if same else f"pow({a}, ({CTYPES[call.dtype]}){b})"


_UNIT = {"zero": 0.0, "one": 1.0}

FLOAT_ONLY: Mapping[str, Text] = {
    "LeakyRelu": filled("SELECT({a} >= 0.0f, {a}, {alpha} * {a})", alpha=0.01),
    "Elu": filled("SELECT({a} >= 0.0f, {a}, {alpha} * (exp({a}) - 1.0f))", alpha=1.0),
    "Celu": filled("SELECT({a} > 0.0f, {a}, {alpha} * (exp({a} / {alpha}) - 1.0f))", alpha=1.0),
    "Selu": filled(
        "({gamma} * SELECT({a} > 0.0f, {a}, {alpha} * (exp({a}) - 1.0f)))",
        alpha=1.67326319217681884765625, gamma=1.05070102214813232421875,
    ),
    "ThresholdedRelu": filled("SELECT({a} > {alpha}, {a}, {zero})", {"zero": 0.0}, alpha=1.0),
    "Shrink": filled(
        "SELECT({a} < -{lambd}, {a} + {bias}, SELECT({a} > {lambd}, {a} - {bias}, {zero}))",
        {"zero": 0.0}, lambd=0.5, bias=0.0,
    ),
    "Sigmoid": unary("(1.0f / (1.0f + exp(-{a})))"),
    "HardSigmoid": filled(_between("{alpha} * {a} + {beta}"), _UNIT, alpha=0.2, beta=0.5),
    "HardSwish": filled(f"({{a}} * {_between('{a} * {sixth} + 0.5f')})", _UNIT | {"sixth": 1 / 6}),
    "Swish": filled("({a} / (1.0f + exp(-{alpha} * {a})))", alpha=1.0),
    "Mish": unary("({a} * tanh(log1p(exp({a}))))"),
    "Gelu": _gelu,
    "Softplus": unary("(SELECT({a} < {zero}, {zero}, {a}) + log1p(exp(-fabs({a}))))"),
    "Softsign": unary("({a} / (1.0f + fabs({a})))"),
    "Tanh": unary("tanh({a})"), "Erf": unary("erf({a})"),
    "Exp": unary("exp({a})"), "Log": unary("log({a})"), "Sqrt": unary("sqrt({a})"),
    "Reciprocal": unary("(1.0f / {a})"),
    "Floor": unary("floor({a})"), "Ceil": unary("ceil({a})"), "Round": unary("rint({a})"),
    "Sin": unary(_unless_tiny("sin", "{a} * (1.0f - {a} * {a} / 6.0f)")),
    "Cos": unary(_unless_tiny("cos", "1.0f - {a} * {a} / 2.0f")),
    "Div": binary("({a} / {b})"), "Pow": _pow,
    "Mean": lambda c: f"(({' + '.join(c.arguments)}) * {c.number(1 / len(c.arguments))})",
}  # fmt: skip
"""Operators that are defined here for floats only."""


def _cast(call: Call) -> str:
    """A cast by the type of the variable to which it is assigned. Booleans are compared with 0.

    Numbers that are too large for 8 or 16 bits are cut off, as ONNX Runtime's are. Without the cast
    to int, the compiler may saturate them, and does on processors without AVX-512.
    """
    if call.dtype == "bool":
        return f"({call.arguments[0]} != 0)"
    narrow = call.dtype in ("int8", "uint8", "int16", "uint16")
    return f"((int)({call.arguments[0]}))" if narrow else call.arguments[0]


OPERATORS: Mapping[str, Text] = {
    **FLOAT_ONLY,
    "Relu": unary("SELECT({a} < {zero}, {zero}, {a})"),
    "Clip": _clip,
    "PRelu": binary("SELECT({a} < 0, {a} * {b}, {a})"),
    "Add": binary("({a} + {b})"), "Sub": binary("({a} - {b})"),
    "Mul": binary("({a} * {b})"), "Sum": folded("({a} + {b})"),
    "Max": folded("SELECT(({a} > {b}) | ({a} != {a}), {a}, {b})"),  # {a} != {a}: NaN
    "Min": folded("SELECT(({a} < {b}) | ({a} != {a}), {a}, {b})"),
    "Neg": unary("(-{a})"),
    "Abs": lambda call: (
        "fabs({a})" if is_float(call.dtype) else "SELECT({a} < 0, -{a}, {a})"
    ).format(a=call.arguments[0]),
    "Sign": lambda call: (
        "SELECT({a} > {zero}, {one}, SELECT({a} < {zero}, {minus}, "
        "SELECT({a} == {zero}, {zero}, {a})))".format(
            a=call.arguments[0], zero=call.number(0), one=call.number(1),
            minus=f"(-{call.number(1)})",
        )
    ),
    "Equal": binary("({a} == {b})"), "Greater": binary("({a} > {b})"),
    "Less": binary("({a} < {b})"), "GreaterOrEqual": binary("({a} >= {b})"),
    "LessOrEqual": binary("({a} <= {b})"),
    "And": binary("({a} && {b})"), "Or": binary("({a} || {b})"),
    "Xor": binary("(({a} != 0) != ({b} != 0))"), "Not": unary("(!{a})"),
    "Where": lambda call: "SELECT({} != 0, {}, {})".format(*call.arguments),
    "Cast": _cast, "Identity": unary("{a}"), "Dropout": unary("{a}"),
}  # fmt: skip
"""All element-wise operators."""

VECTOR_SAFE = frozenset(
    {*FLOAT_ONLY, "Relu", "Clip", "PRelu", "Add", "Sub", "Mul", "Sum", "Max", "Min",
     "Neg", "Abs", "Sign", "Where", "Identity", "Dropout"}
)  # fmt: skip
"""Operators that may run on vectors of floats, if the result is float32."""


def expression(call: Call) -> str:
    """The text that computes a call."""
    return OPERATORS[call.op.op_type](call)
