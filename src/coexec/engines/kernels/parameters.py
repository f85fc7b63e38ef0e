"""Parameters of operators: attributes in old opsets, inputs in new ones."""

from coexec.graph.graph import Operator

__all__ = ["numbers"]

Numbers = tuple[int, ...] | tuple[float, ...]


def numbers(op: Operator, name: str, position: int) -> Numbers | None:
    """The attribute ``name``, or the constant input at ``position``.

    Empty if there is neither, None if the input is computed.
    """
    value = op.attributes.get(name, op.constants.get(position))
    if value is None:
        return None if position < len(op.inputs) and op.inputs[position] else ()
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]
