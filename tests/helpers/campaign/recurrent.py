"""LSTM, GRU and RNN by their definition, in float64.

ONNX Runtime approximates gates. Behind an update gate of nearly 0, a state of 1e15 leaves a rest
there that decides all later steps. ``onnx.reference`` has neither lengths nor the way back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from campaign.probe import Array

__all__ = ["recurrent"]


def recurrent(
    kind: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> Sequence[Array]:
    """All outputs of the operator with its default activations.

    Args:
        inputs: as the operator has them, of layout 0, without peepholes.
    """
    x, w, r, b, lengths, h, c = [*inputs, *[None] * 7][:7]
    assert x is not None and w is not None and r is not None
    steps, batch, _ = x.shape
    ways, _, hidden = r.shape
    zeros = np.zeros((ways, batch, hidden))
    state = np.array([zeros if h is None else h, zeros if c is None else c], np.float64)
    count = np.full(batch, steps) if lengths is None else lengths
    found = np.zeros((steps, ways, batch, hidden))
    for way in range(ways):
        bias = np.zeros(2 * w.shape[1]) if b is None else b[way].astype(np.float64)
        weights = w[way].astype(np.float64), r[way].astype(np.float64), *np.split(bias, 2)
        back = attributes["direction"] == "reverse" or way == 1
        for entry in range(batch):
            times = range(count[entry])
            for time in reversed(times) if back else times:
                own = state[:, way, entry]
                own[...] = _step(kind, x[time, entry].astype(np.float64), own, weights, attributes)
                found[time, way, entry] = own[0]
    return [part.astype(x.dtype) for part in (found, *state)]


def _step(
    kind: str, x: Array, state: Array, weights: Sequence[Array], attributes: Mapping[str, Any]
) -> tuple[Array, Array]:
    """The next two states of one entry; those of the cell stay as they are without one."""
    h, c = state
    w, r, wb, rb = weights
    gates = len(w) // len(h)
    most = attributes.get("clip", np.inf)

    def limited(value: Array) -> Array:
        return np.minimum(np.maximum(value, -most), most)

    given = np.split(w @ x + wb, gates)
    matrices, biases = np.split(r, gates), np.split(rb, gates)

    def read(gate: int, old: Array) -> Array:
        return limited(given[gate] + matrices[gate] @ old + biases[gate])

    if kind == "RNN":
        return np.tanh(read(0, h)), c
    if kind == "LSTM":
        enter, out, forget = (_sigmoid(read(gate, h)) for gate in range(3))
        c = forget * c + enter * np.tanh(read(3, h))
        return out * np.tanh(c), c
    update, reset = _sigmoid(read(0, h)), _sigmoid(read(1, h))
    if attributes.get("linear_before_reset", 0):
        inner = limited(given[2] + reset * (matrices[2] @ h + biases[2]))
    else:
        inner = read(2, reset * h)
    return (1 - update) * np.tanh(inner) + update * h, c


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
