"""A plan made ready to start: its segments as modules, in memory or in a folder of the cache.

Starting from the folder needs neither ONNX nor the optimizer: weights are mapped, not read.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coexec.errors import StoreError
from coexec.frontend.module import Array, Module
from coexec.ir.graph import Piece, Tensor
from coexec.ir.region import Region
from coexec.schedule import Part, Segment, Transfer

__all__ = ["CompiledPlan", "load_compiled", "save_compiled"]

_FORMAT = 2


@dataclass(frozen=True, eq=False)
class CompiledPlan:
    """What the executor needs to know, and nothing else."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: Mapping[str, Array]
    """Outputs of the model that no segment computes, because they folded to constants."""
    parts: Mapping[str, tuple[Part, ...]]
    """Of outputs that are computed in pieces: the values that hold them, and where they belong."""
    segments: tuple[Segment, ...]
    transfers: tuple[Transfer, ...]
    modules: tuple[Module, ...]
    """One for each segment; without nodes where a segment has nothing left to compute."""


def save_compiled(compiled: CompiledPlan, folder: Path, extra: Mapping[str, Any]) -> None:
    """Write ``compiled`` into the empty ``folder``, with ``extra`` beside it.

    Raises:
        StoreError: a weight is not stored in a file that can be referred to.
    """
    with open(folder / "modules.bin", "wb") as blob:
        rows = []
        for module in compiled.modules:
            rows.append(_module_row(module, blob.tell()))
            blob.write(module.proto)
    np.savez(folder / "constants.npz", allow_pickle=False, **compiled.constants)
    data = {
        "format": _FORMAT,
        "extra": dict(extra),
        "inputs": [asdict(t) for t in compiled.inputs],
        "outputs": [asdict(t) for t in compiled.outputs],
        "parts": {n: [[v, asdict(r)] for v, r in ps] for n, ps in compiled.parts.items()},
        "segments": [asdict(s) for s in compiled.segments],
        "transfers": [asdict(t) for t in compiled.transfers],
        "modules": rows,
    }
    (folder / "compiled.json").write_text(json.dumps(data))
    (folder / "digest").write_text(_digest(folder, compiled.modules))


def _digest(folder: Path, modules: Sequence[Module]) -> str:
    """Of the small files' content, and of the size and time of the large ones they refer to."""
    digest = hashlib.sha256()
    for name in ("compiled.json", "modules.bin", "constants.npz"):
        digest.update((folder / name).read_bytes())
    for file in sorted({file for m in modules for file, _ in m.stored.values()}):
        stat = Path(file).stat()
        digest.update(repr((file, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()


def _module_row(module: Module, offset: int) -> dict[str, Any]:
    missing = module.weights.keys() - module.stored.keys()
    if missing:
        raise StoreError(f"weight {min(missing)!r} lies in no file; this plan cannot be cached")
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
    }


def load_compiled(folder: Path) -> tuple[CompiledPlan, dict[str, Any]]:
    """Inverse of `save_compiled`: the plan and what was stored beside it.

    Raises:
        StoreError: damaged, of another version, or a weight file is gone.
    """
    try:
        data = json.loads((folder / "compiled.json").read_text())
        if data["format"] != _FORMAT:
            raise StoreError(f"format {data['format']!r} instead of {_FORMAT}")
        blob = (folder / "modules.bin").read_bytes()
        files: dict[str, Array] = {}
        modules = tuple(_module(row, blob, files) for row in data["modules"])
        with np.load(folder / "constants.npz") as constants:
            arrays = {name: constants[name] for name in constants.files}
        compiled = CompiledPlan(
            _tensors(data["inputs"]),
            _tensors(data["outputs"]),
            arrays,
            {n: tuple((v, _region(r)) for v, r in ps) for n, ps in data["parts"].items()},
            tuple(_segment(row) for row in data["segments"]),
            tuple(Transfer(**(row | {"region": _region(row["region"])}))
                  for row in data["transfers"]),
            modules,
        )  # fmt: skip
        if (folder / "digest").read_text() != _digest(folder, modules):
            raise ValueError("it, or a weight file, was changed")
        return compiled, data["extra"]
    except Exception as error:  # whatever a damaged file leads to
        raise StoreError(f"the compiled plan in {folder} is damaged ({error}); delete the folder, "
                         f"it is made again") from None  # fmt: skip


def _module(row: Mapping[str, Any], blob: bytes, files: dict[str, Array]) -> Module:
    start, stop = row["offset"], row["offset"] + row["length"]
    if stop > len(blob):
        raise ValueError(f"modules.bin has {len(blob)} bytes, {stop} are needed")
    weights: dict[str, Array] = {}
    for name, (file, offset, dtype, shape) in row["weights"].items():
        if file not in files:
            files[file] = np.memmap(file, np.uint8, "r")
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        weights[name] = files[file][offset : offset + size].view(kind).reshape(shape)
    stored = {name: (w[0], w[1]) for name, w in row["weights"].items()}
    return Module(
        blob[start:stop],
        weights,
        _tensors(row["inputs"]),
        _tensors(row["outputs"]),
        tuple(row["operators"]),
        stored,
    )


def _tensors(rows: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(**(row | {"shape": tuple(row["shape"])})) for row in rows)


def _segment(row: Mapping[str, Any]) -> Segment:
    return Segment(
        row["index"],
        row["device"],
        tuple(Piece(p["task"], _region(p["region"])) for p in row["pieces"]),
        tuple((name, _region(r)) for name, r in row["reads"]),
        tuple((name, _region(r)) for name, r in row["writes"]),
        tuple(row["after"]),
    )


def _region(row: Mapping[str, Any]) -> Region:
    return Region(tuple(row["start"]), tuple(row["stop"]))
