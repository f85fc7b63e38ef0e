"""LSTM, GRU and RNN by their definition, in float64.

ONNX Runtime approximates gates. After an update gate of nearly 0, a state of 1e15 leaves a residue
there that determines all later steps. ``onnx.reference`` supports neither sequence lengths nor the
reverse direction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.helpers.campaign.probe import Array

__all__ = ["recurrent"]


def recurrent(
    kind: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> Sequence[Array]:
    """All outputs of the operator with its default activations.

    Args:
        inputs: the operator's inputs, in layout 0, without peepholes.
    """
    x, w, r, b, lengths, h, c = [*inputs, *[None] * 7][:7]
    assert x is not None and w is not None and r is not None
    steps, batch, _ = x.shape
    directions, _, hidden = r.shape
    zeros = np.zeros((directions, batch, hidden))
    state = np.array([zeros if h is None else h, zeros if c is None else c], np.float64)
    count = np.full(batch, steps) if lengths is None else lengths
    outputs = np.zeros((steps, directions, batch, hidden))
    for direction in range(directions):
        bias = np.zeros(2 * w.shape[1]) if b is None else b[direction].astype(np.float64)
        weights = (
            w[direction].astype(np.float64),
            r[direction].astype(np.float64),
            *np.split(bias, 2),
        )
        back = attributes["direction"] == "reverse" or direction == 1
        for entry in range(batch):
            times = range(count[entry])
            for time in reversed(times) if back else times:
                entry_state = state[:, direction, entry]
                entry_state[...] = _step(
                    kind, x[time, entry].astype(np.float64), entry_state, weights, attributes
                )
                outputs[time, direction, entry] = entry_state[0]
    return [part.astype(x.dtype) for part in (outputs, *state)]


def _step(
    kind: str, x: Array, state: Array, weights: Sequence[Array], attributes: Mapping[str, Any]
) -> tuple[Array, Array]:
    """The next hidden state and cell state of one entry; the latter is unchanged without a cell."""
    h, c = state
    w, r, wb, rb = weights
    gates = len(w) // len(h)
    most = attributes.get("clip", np.inf)

    def limited(value: Array) -> Array:
        return np.minimum(np.maximum(value, -most), most)

    gate_inputs = np.split(w @ x + wb, gates)
    matrices, biases = np.split(r, gates), np.split(rb, gates)

    def read(gate: int, old: Array) -> Array:
        return limited(gate_inputs[gate] + matrices[gate] @ old + biases[gate])

    if kind == "RNN":
        return np.tanh(read(0, h)), c
    if kind == "LSTM":
        enter, out, forget = (_sigmoid(read(gate, h)) for gate in range(3))
        c = forget * c + enter * np.tanh(read(3, h))
        return out * np.tanh(c), c
    update, reset = _sigmoid(read(0, h)), _sigmoid(read(1, h))
    if attributes.get("linear_before_reset", 0):
        inner = limited(gate_inputs[2] + reset * (matrices[2] @ h + biases[2]))
    else:
        inner = read(2, reset * h)
    return (1 - update) * np.tanh(inner) + update * h, c


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
