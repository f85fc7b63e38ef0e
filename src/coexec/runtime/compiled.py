"""A plan that is ready to start: its segments as modules, in memory or as an entry of the cache.

A start from the entry needs neither ONNX nor the optimizer: weights are mapped, not read.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.cache import Entry, Weights
from coexec.codec import decode, encode
from coexec.errors import StoreError
from coexec.graph.graph import Tensor
from coexec.lowering.module import Gather, Module
from coexec.plan.schedule import Schedule, Segment, TaskRegion, Transfer


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """The data that the executor needs."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: Mapping[str, Array]
    """Outputs of the model that no segment computes, because they were folded to constants."""
    parts: Mapping[str, tuple[TaskRegion, ...]]
    """For each output that is computed in pieces: the values that hold them, and their regions."""
    segments: tuple[Segment, ...]
    transfers: tuple[Transfer, ...]
    modules: tuple[Module, ...]
    """One for each segment; without nodes if nothing is left to compute in the segment."""
    gathers: Mapping[str, Gather] = field(default_factory=dict)
    """For each value that modules read and no module makes in this form: the boxes that form it."""


def without_modules(schedule: Schedule) -> CompiledPlan:
    """A plan that runs the given model: no modules are cut out for the engine."""
    graph = schedule.graph
    return CompiledPlan(
        tuple(graph.tensors[n] for n in graph.inputs),
        tuple(graph.tensors[n] for n in graph.outputs),
        {},
        {},
        schedule.segments,
        schedule.transfers,
        (),
    )


@dataclass(frozen=True)
class _StoredPlan:
    """The content of compiled.json."""

    plan: CompiledPlan
    """Without the arrays of its constants and weights."""
    weights: tuple[Mapping[str, tuple[str, tuple[int, ...]]], ...]
    """The types and shapes of the weights of each module, by name."""
    extra: dict[str, Any]
    format: Literal[10] = 10


def save_compiled(compiled: CompiledPlan, extra: Mapping[str, Any]) -> Entry:
    """``compiled`` as an entry of the cache, together with ``extra``.

    Raises:
        StoreError: a weight is not in the cache.
    """
    for module in compiled.modules:
        missing = module.weights.keys() - module.stored.keys()
        if missing:
            raise StoreError(
                f"weight {min(missing)!r} does not lie in the cache; this plan cannot be kept"
            )
    modules = tuple(replace(module, weights={}) for module in compiled.modules)
    stored = _StoredPlan(
        replace(compiled, constants={}, modules=modules),
        tuple({n: (str(w.dtype), w.shape) for n, w in m.weights.items()} for m in compiled.modules),
        dict(extra),
    )
    constants = io.BytesIO()
    packed = {n: a.astype(str) if a.dtype == object else a for n, a in compiled.constants.items()}
    np.savez(constants, allow_pickle=False, **packed)
    files = {
        "compiled.json": json.dumps(encode(stored)).encode(),
        "constants.npz": constants.getvalue(),
    }
    names = dict.fromkeys(name for m in compiled.modules for name, _ in m.stored.values())
    return Entry(files, tuple(names))


def load_compiled(entry: Entry, weights: Weights) -> tuple[CompiledPlan, dict[str, Any]]:
    """Inverse of `save_compiled`: the plan and its ``extra``.

    ``weights`` are those of the cache. Each is compared with its checksum here, before it is used.

    Raises:
        StoreError: the entry has another format, or a weight is missing or damaged.
    """
    arrays = weights.fetch(entry.weights)
    try:
        stored = decode(_StoredPlan, json.loads(entry.files["compiled.json"]))
        with np.load(io.BytesIO(entry.files["constants.npz"])) as constants:
            packed = {name: constants[name] for name in constants.files}
        plan = stored.plan
        outputs = [tensor for tensor in plan.outputs if tensor.name in packed]
        compiled = replace(
            plan,
            constants={t.name: _constant(packed[t.name], t) for t in outputs},
            modules=tuple(
                replace(m, weights={n: _weight(arrays, *m.stored[n], *w) for n, w in kinds.items()})
                for m, kinds in zip(plan.modules, stored.weights, strict=True)
            ),
        )
        return compiled, stored.extra
    except Exception as error:  # a damaged file can lead to any error
        raise StoreError(f"the compiled plan is damaged ({error}); it is made again") from None


def _constant(array: Array, tensor: Tensor) -> Array:
    """An array in its original type: numpy's files hold texts and foreign types as other types."""
    if tensor.dtype == "string":
        return array.astype(object)
    return array.view(numpy_type(tensor.dtype))


def _weight(
    arrays: Mapping[str, Array], stored_as: str, offset: int, dtype: str, shape: Sequence[int]
) -> Array:
    """``shape`` elements of a stored weight, starting at byte ``offset``."""
    kind = numpy_type(dtype)
    stop = offset + math.prod(shape) * kind.itemsize
    flat = arrays[stored_as].reshape(-1).view(np.uint8)[offset:stop]
    return flat.view(kind).reshape(shape)
