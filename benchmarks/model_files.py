"""Models as files, and inputs for them, for benchmarks of whole programs.

Some exported models are distributed without weights: large float initializers are empty, and
``metadata_props`` have the mean and standard deviation of each under "weight:<name>". They are
filled with random numbers of that distribution, so that the activations stay in range.
"""

import zlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from coexec.errors import ModelError
from coexec.research import zoo

__all__ = ["PACKAGES", "expanded", "feeds_for", "model_file", "packaged"]

Feeds = dict[str, Any]
Array = Any

PACKAGES = {"rapidocr_onnxruntime": "models", "silero_vad": "data"}
"""Python packages that contain models, with the folder of the models."""

_STAT = "weight:"

_SPEECH = {"input": (1, 64 + 512), "state": (2, 1, 128), "sr": 16000}
"""Feeds of Silero, as in its wrapper: a chunk of 512 samples at 16 kHz after the last 64 samples of
the previous chunk."""

_FEEDS: Mapping[str, Mapping[str, Any]] = {
    "*PP-OCR*_det_*.onnx": {"x": (1, 3, 736, 736)},
    "*PP-OCR*_rec_*.onnx": {"x": (1, 3, 48, 320)},
    "*ppocr*_cls_*.onnx": {"x": (1, 3, 48, 192)},
    "silero_vad*_sequence.onnx": {"input": (32, 64 + 512)},
    "silero_vad*.onnx": _SPEECH,
}
"""By file name, the shapes of dynamic inputs in the packages' programs; a number is a value."""


def expanded(words: Sequence[str]) -> list[str]:
    """A word for each model: files, names of the zoo, and all .onnx files of folders.

    Raises:
        ModelError: a folder has none.
    """
    words_of_models: list[str] = []
    for word in words:
        if Path(word).is_dir():
            files = sorted(map(str, Path(word).glob("*.onnx")))
            if not files:
                raise ModelError(f"{word} has no .onnx files")
            words_of_models += files
        else:
            words_of_models.append(word)
    return words_of_models


def packaged(package: str) -> list[str]:
    """The model files of an installed package, which is not imported.

    Raises:
        ModelError: the package is not installed.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{package} is not installed (see benchmarks/README.md)")
    (place,) = spec.submodule_search_locations
    return sorted(map(str, (Path(place) / PACKAGES[package]).glob("*.onnx")))


def model_file(word: str, folder: Path) -> Path:
    """The file of a model: the file itself, or a new one in ``folder`` if it has to be built or
    filled.

    Raises:
        ModelError: ``word`` is neither a file nor a name of the zoo.
    """
    if word in zoo.MODELS:
        ir.save(zoo.build(word), folder / f"{word}.onnx")
        return folder / f"{word}.onnx"
    path = Path(word)
    if not path.is_file():
        raise ModelError(f"{word} is neither a file nor a model of the zoo")
    # ONNX Runtime gets the original file if it can run it.
    model = onnx.load(path, load_external_data=False)
    if not any(entry.key.startswith(_STAT) for entry in model.metadata_props):
        return path
    _fill(model)
    onnx.save(model, folder / path.name)
    return folder / path.name


def _fill(model: onnx.ModelProto) -> None:
    """Fill the empty initializers with weights. Equal names get equal numbers."""
    stats = {entry.key: entry.value for entry in model.metadata_props}
    for tensor in model.graph.initializer:
        stat = stats.get(_STAT + tensor.name)
        if stat is not None:
            mean, deviation = (np.float32(number) for number in stat.split(","))
            rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
            numbers = rng.standard_normal(tuple(tensor.dims), dtype=np.float32)
            tensor.raw_data = (numbers * deviation + mean).astype("<f4").tobytes()
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(_STAT)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def feeds_for(path: Path, seed: int = 0) -> Feeds:
    """Feeds with standard normal numbers for float inputs, and zeros and ones for others.

    Dynamic inputs get the shapes that this module lists for the model's name. For other models, the
    first axis may be dynamic and gets the size 1.

    Raises:
        ModelError: another axis is dynamic.
    """
    model = onnx.load(path, load_external_data=False)
    rng = np.random.default_rng(seed)
    input_shapes = next(
        (entry for pattern, entry in _FEEDS.items() if fnmatch(path.name, pattern)), {}
    )
    weights = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: _feed(value, input_shapes.get(value.name), rng)
        for value in model.graph.input
        if value.name not in weights
    }


def _feed(value: onnx.ValueInfoProto, known: Any, rng: np.random.Generator) -> Array:
    """The array for one input.

    Args:
        known: the value of a scalar, the shape, or None: the model has the shape.
    """
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if isinstance(known, int):
        return np.array(known, dtype)
    shape = _fixed_shape(value) if known is None else known
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
    return rng.integers(0, 2, shape).astype(dtype)


def _fixed_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    sizes = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    if any(size < 1 for size in sizes[1:]):
        raise ModelError(
            f"input {value.name!r} has dynamic axes besides the first; add the "
            f"shapes of this model to benchmarks/model_files.py"
        )
    return tuple(max(size, 1) for size in sizes)
