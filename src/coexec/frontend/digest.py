"""What tells one model from another. Imports no ONNX: a start from the cache needs only this."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coexec.errors import ModelError

__all__ = ["digest_of", "unreadable"]


def digest_of(source: Any, shapes: Mapping[str, Sequence[int]]) -> str:
    """A digest of the model's content and of the shapes fixed for it.

    A file is told by its path, size, modification time and inode, as build tools do: reading half
    a gigabyte of weights at each start would cost more than loading the plan.

    Raises:
        ModelError: the file does not exist or cannot be read.
    """
    digest = hashlib.sha256(repr(sorted((k, tuple(v)) for k, v in shapes.items())).encode())
    if isinstance(source, str | os.PathLike):
        path = Path(source).resolve()
        try:
            stat = path.stat()
        except OSError as error:
            raise unreadable(path, error) from None
        digest.update(repr((str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)).encode())
    elif isinstance(source, bytes):
        digest.update(source)
    else:
        digest.update(_serialized(source))
    return digest.hexdigest()[:24]


def _serialized(source: Any) -> bytes:
    if not hasattr(source, "SerializeToString"):
        import onnx_ir as ir

        source = ir.to_proto(source)
    content: bytes = source.SerializeToString(deterministic=True)
    return content


def unreadable(path: Path, error: OSError) -> ModelError:
    """The error for a model file that cannot be opened."""
    reason = "it does not exist" if isinstance(error, FileNotFoundError) else error.strerror
    return ModelError(f"cannot read the model {str(path)!r}: {reason}; give the path of an ONNX "
                      f"file, or zoo:NAME for a built-in model")  # fmt: skip
