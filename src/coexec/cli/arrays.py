"""Inputs and outputs of a model as .npz files."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.errors import InputError, UsageError


def packed(outputs: Mapping[str, Any]) -> bytes:
    """The outputs as an .npz file; the arrays of a sequence as NAME[0], NAME[1] and so on.

    Raises:
        UsageError: an output is neither an array nor a sequence of arrays.
    """
    arrays: dict[str, Array] = {}
    for name, value in outputs.items():
        values = (
            {f"{name}[{i}]": v for i, v in enumerate(value)}
            if isinstance(value, list)
            else {name: value}
        )
        unlike = [v for v in values.values() if not isinstance(v, np.ndarray | np.generic)]
        if unlike:
            raise UsageError(
                f"output {name!r} holds a {type(unlike[0]).__name__}, and .npz files "
                f"hold arrays only; run without --output"
            )
        arrays |= {n: np.asarray(v) for n, v in values.items()}
    buffer = io.BytesIO()
    texts = {n: a.astype(str) if a.dtype == object else a for n, a in arrays.items()}
    np.savez(buffer, allow_pickle=False, **texts)
    return buffer.getvalue()


def read_inputs(path: Path) -> Mapping[str, Array]:
    """The arrays of an .npz file by their names.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise InputError(
            f"cannot read the inputs {str(path)!r}: {error}; write them with "
            f"numpy.savez(path, INPUT=array)"
        ) from None
