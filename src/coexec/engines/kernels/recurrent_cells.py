"""The equations of LSTM, GRU and RNN for one hidden unit at one time, as lines of OpenCL C.

The lines work on scalars and on vectors of units, of type ``{kind}``. For gate 0, ``x0`` is the
input's part and ``d0`` the recurrent part, both with their biases, and so on. The old states of the
unit are variables with their names. The lines declare new states as ``NAME_new``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coexec.engines.kernels.base import literal
from coexec.engines.kernels.expressions import limited
from coexec.graph.graph import Operator

__all__ = ["GATES", "Phase", "activations", "phases"]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Number of gates. LSTM: input, output, forget, cell; GRU: update, reset, hidden."""

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

_TEXTS = {
    "relu": "fmax({x}, 0.0f)",
    "sigmoid": "(1.0f / (1.0f + exp(-({x}))))",
    "tanh": "tanh({x})",
}

_Activation = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Phase:
    """The part of one launch; all units must have finished it before the next part starts."""

    gates: tuple[int, ...]
    reads: str
    """The state of all units that is multiplied with the recurrent weights."""
    old: tuple[str, ...]
    """The unit's own states that are read."""
    new: tuple[str, ...]
    """The unit's states that are computed."""
    lines: tuple[str, ...]


def activations(op: Operator) -> tuple[str, ...] | None:
    """The activations of a direction, in lower case; None if some are not supported."""
    count = len(_DEFAULTS[op.op_type])
    attribute = op.attributes.get("activations", _DEFAULTS[op.op_type])
    names = tuple(str(name).lower() for name in attribute)  # type: ignore[union-attr]
    alike = all(names[i : i + count] == names[:count] for i in range(0, len(names), count))
    return names[:count] if alike and all(name in _TEXTS for name in names) else None


def phases(op: Operator, peepholes: bool) -> list[Phase]:
    """The phases: two of a GRU with the reset gate before the recurrent weights, else one."""
    names = activations(op)
    assert names is not None
    f, *further = (_activation(op, name) for name in names)
    if op.op_type == "LSTM":
        return [_lstm(f, further[0], names[2], bool(op.int("input_forget", 0)), peepholes)]
    if op.op_type == "GRU":
        return _gru(f, further[0], bool(op.int("linear_before_reset", 0)))
    return [Phase((0,), "h", (), ("h",), (_let("h_new", f("x0 + d0")),))]


def _activation(op: Operator, name: str) -> _Activation:
    """The activation of an expression, which is limited first if the operator has ``clip``."""
    limit = op.number("clip", 0.0)
    if not limit:
        return lambda x: _TEXTS[name].format(x=x)
    return lambda x: _TEXTS[name].format(x=limited(f"({x})", literal(-limit), literal(limit)))


def _let(name: str, value: str) -> str:
    return f"const {{kind}} {name} = {value};"


def _lstm(f: _Activation, g: _Activation, last: str, coupled: bool, peepholes: bool) -> Phase:
    """The phase of an LSTM. With peepholes, gates read the cell's state: the output gate the new
    one, the others the old one."""
    see_in, see_out, see_forget = (
        (" + peep0 * c", " + peep1 * c_new", " + peep2 * c") if peepholes else ("", "", "")
    )
    lines = (
        _let("in", f("x0 + d0" + see_in)),
        _let("forget", "1.0f - in" if coupled else f("x2 + d2" + see_forget)),
        _let("c_new", f"forget * c + in * {g('x3 + d3')}"),
        _let("out", f("x1 + d1" + see_out)),
        _let("h_new", f"out * {_TEXTS[last].format(x='c_new')}"),
    )
    return Phase((0, 1, 2, 3), "h", ("c",), ("c", "h"), lines)


def _gru(f: _Activation, g: _Activation, linear_before_reset: bool) -> list[Phase]:
    mixed = _let("h_new", "(1.0f - z) * hidden + z * h")
    update, reset = f("x0 + d0"), f("x1 + d1")
    if linear_before_reset:
        lines = (_let("z", update), _let("hidden", g(f"x2 + {reset} * d2")), mixed)
        return [Phase((0, 1, 2), "h", ("h",), ("h",), lines)]
    gates = (_let("z_new", update), _let("rh_new", f"{reset} * h"))
    return [
        Phase((0, 1), "h", ("h",), ("z", "rh"), gates),
        Phase((2,), "rh", ("h", "z"), ("h",), (_let("hidden", g("x2 + d2")), mixed)),
    ]
