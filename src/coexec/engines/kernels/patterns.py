"""Calls of element-wise operators, and patterns of OpenCL C that become their text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coexec.engines.kernels.base import literal
from coexec.graph.graph import Operator

__all__ = ["Call", "Text", "binary", "filled", "folded", "is_float", "unary"]


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
