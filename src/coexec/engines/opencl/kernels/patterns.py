"""Calls of element-wise operators, and patterns of OpenCL C that become their text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coexec.engines.opencl.kernels.base import literal
from coexec.ir.graph import Operator

__all__ = ["Call", "Text", "binary", "filled", "folded", "is_float", "unary"]


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and the text of its operands, which should be plain names."""

    op: Operator
    arguments: Sequence[str]
    """"" where an optional one is absent."""
    dtypes: Sequence[str]
    """Of the operands."""
    dtype: str
    """Of the result, which is assigned to a variable of its type."""

    def number(self, value: float) -> str:
        """A constant of the operands' type."""
        return literal(value, self.dtypes[0])

    def attribute(self, name: str, default: float) -> str:
        """A number of the attributes, as a constant."""
        return self.number(self.op.number(name, default))


Text = Callable[[Call], str]


def is_float(dtype: str) -> bool:
    """Whether functions of real numbers are defined for it."""
    return dtype in ("float32", "float64")


def unary(pattern: str) -> Text:
    """A pattern over the only operand ``a`` and ``zero``, of its type."""
    return lambda call: pattern.format(a=call.arguments[0], zero=call.number(0))


def binary(pattern: str) -> Text:
    """A pattern over the operands ``a`` and ``b``."""
    return lambda call: pattern.format(a=call.arguments[0], b=call.arguments[1])


def folded(pattern: str) -> Text:
    """A pattern over two operands, for any number of them from the left."""

    def text(call: Call) -> str:
        result, *others = call.arguments
        for other in others:
            result = pattern.format(a=result, b=other)
        return result

    return text


def filled(pattern: str, constants: Mapping[str, float] | None = None, **defaults: float) -> Text:
    """A pattern over the input, attributes with these defaults, and further constants."""

    def text(call: Call) -> str:
        values = {k: call.attribute(k, v) for k, v in defaults.items()}
        values |= {k: call.number(v) for k, v in (constants or {}).items()}
        return pattern.format(a=call.arguments[0], **values)

    return text
