"""A plan that is ready to start: its segments as modules, in memory or as an entry of the cache.

A start from the entry needs neither ONNX nor the optimizer: weights are mapped, not read.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.cache import Entry, Weights
from coexec.errors import StoreError
from coexec.graph.graph import Piece, Tensor
from coexec.graph.region import Region
from coexec.lowering.layout import Layout
from coexec.lowering.module import Gather, GatheredBox, Module
from coexec.plan.schedule import Schedule, Segment, TaskRegion, Transfer

__all__ = ["CompiledPlan", "load_compiled", "save_compiled", "without_modules"]

_FORMAT = 10


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


def save_compiled(compiled: CompiledPlan, extra: Mapping[str, Any]) -> Entry:
    """``compiled`` as an entry of the cache, together with ``extra``.

    Raises:
        StoreError: a weight is not in the cache.
    """
    rows: list[dict[str, Any]] = []
    offset = 0
    for module in compiled.modules:
        rows.append(_module_row(module, offset))
        offset += len(module.proto)
    constants = io.BytesIO()
    packed = {n: a.astype(str) if a.dtype == object else a for n, a in compiled.constants.items()}
    np.savez(constants, allow_pickle=False, **packed)
    data = {
        "format": _FORMAT,
        "extra": dict(extra),
        "inputs": [asdict(t) for t in compiled.inputs],
        "outputs": [asdict(t) for t in compiled.outputs],
        "parts": {n: list(ps) for n, ps in compiled.parts.items()},
        "segments": [asdict(s) for s in compiled.segments],
        "transfers": [asdict(t) for t in compiled.transfers],
        "modules": rows,
        "gathers": {
            name: asdict(gather) | {"layout": str(gather.layout)}
            for name, gather in compiled.gathers.items()
        },
    }
    files = {
        "compiled.json": json.dumps(data).encode(),
        "modules.bin": b"".join(module.proto for module in compiled.modules),
        "constants.npz": constants.getvalue(),
    }
    names = dict.fromkeys(name for m in compiled.modules for name, _ in m.stored.values())
    return Entry(files, tuple(names))


def _module_row(module: Module, offset: int) -> dict[str, Any]:
    missing = module.weights.keys() - module.stored.keys()
    if missing:
        raise StoreError(
            f"weight {min(missing)!r} does not lie in the cache; this plan cannot be kept"
        )
    return {
        "offset": offset,
        "length": len(module.proto),
        "weights": {
            name: [*module.stored[name], str(w.dtype), list(w.shape)]
            for name, w in module.weights.items()
        },
        "inputs": [asdict(t) for t in module.inputs],
        "outputs": [asdict(t) for t in module.outputs],
        "operators": list(module.operators),
        "results": list(module.results),
        "layouts": {name: str(layout) for name, layout in module.layouts.items()},
    }


def load_compiled(entry: Entry, weights: Weights) -> tuple[CompiledPlan, dict[str, Any]]:
    """Inverse of `save_compiled`: the plan and its ``extra``.

    ``weights`` are those of the cache. Each is compared with its checksum here, before it is used.

    Raises:
        StoreError: the entry has another format, or a weight is missing or damaged.
    """
    stored = weights.fetch(entry.weights)
    try:
        data = json.loads(entry.files["compiled.json"])
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']!r} instead of {_FORMAT}")
        modules = tuple(_module(row, entry.files["modules.bin"], stored) for row in data["modules"])
        with np.load(io.BytesIO(entry.files["constants.npz"])) as constants:
            packed = {name: constants[name] for name in constants.files}
        outputs = _tensors(data["outputs"])
        compiled = CompiledPlan(
            _tensors(data["inputs"]),
            outputs,
            {t.name: _constant(packed[t.name], t) for t in outputs if t.name in packed},
            {n: tuple((v, _region(r)) for v, r in ps) for n, ps in data["parts"].items()},
            tuple(_segment(row) for row in data["segments"]),
            tuple(
                Transfer(**(row | {"region": _region(row["region"])})) for row in data["transfers"]
            ),
            modules,
            {name: _gather(row) for name, row in data["gathers"].items()},
        )
        return compiled, data["extra"]
    except Exception as error:  # a damaged file can lead to any error
        raise StoreError(f"the compiled plan is damaged ({error}); it is made again") from None


def _constant(array: Array, tensor: Tensor) -> Array:
    """An array in its original type: numpy's files hold texts and foreign types as other types."""
    if tensor.dtype == "string":
        return array.astype(object)
    return array.view(numpy_type(tensor.dtype))


def _module(row: Mapping[str, Any], protos: bytes, stored: Mapping[str, Array]) -> Module:
    start, stop = row["offset"], row["offset"] + row["length"]
    if stop > len(protos):
        raise ValueError(f"modules.bin has {len(protos)} bytes, {stop} are needed")
    weights = {
        name: _weight(stored[stored_as], offset, dtype, shape)
        for name, (stored_as, offset, dtype, shape) in row["weights"].items()
    }
    return Module(
        protos[start:stop],
        weights,
        _tensors(row["inputs"]),
        _tensors(row["outputs"]),
        tuple(row["operators"]),
        tuple(row["results"]),
        {name: Layout.parse(text) for name, text in row["layouts"].items()},
        {name: (stored_as, offset) for name, (stored_as, offset, _, _) in row["weights"].items()},
    )


def _weight(array: Array, offset: int, dtype: str, shape: Sequence[int]) -> Array:
    """``shape`` elements of a stored weight, starting at byte ``offset``."""
    kind = numpy_type(dtype)
    stop = offset + math.prod(shape) * kind.itemsize
    flat = array.reshape(-1).view(np.uint8)[offset:stop]
    return flat.view(kind).reshape(shape)


def _tensors(rows: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(**(row | {"shape": tuple(row["shape"])})) for row in rows)


def _segment(row: Mapping[str, Any]) -> Segment:
    return Segment(
        row["index"],
        row["device"],
        row["engine"],
        tuple(Piece(task, _region(r)) for task, r in row["pieces"]),
        tuple((name, _region(r)) for name, r in row["reads"]),
        tuple((name, _region(r)) for name, r in row["writes"]),
        tuple(row["after"]),
    )


def _gather(row: Mapping[str, Any]) -> Gather:
    boxes = ((value, _region(taken), _region(put)) for value, taken, put in row["boxes"])
    return Gather(Layout.parse(row["layout"]), tuple(GatheredBox(*box) for box in boxes))


def _region(row: Sequence[Sequence[int]]) -> Region:
    start, stop = row
    return Region(tuple(start), tuple(stop))
