"""The installed packages of ONNX Runtime: the runtime itself, and plug-ins."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

_FOLDER = re.compile(r"(onnxruntime.*)-([^-]+)\.dist-info")


def packages_of_onnx_runtime() -> Mapping[str, str]:
    """Versions of the installed packages of ONNX Runtime and of its plug-ins, by name. The names of
    folders have them, which are read in less than a millisecond."""
    return {name: version for name, version, _ in _found()}


def onnx_runtimes() -> Mapping[str, str]:
    """The packages among them that bring the module ``onnxruntime``. If there are several, the last
    one that was installed has overwritten files of the others."""
    return {
        name: version
        for name, version, folder in _found()
        if _lists(folder / "RECORD", "onnxruntime/__init__.py")
    }


def _found() -> list[tuple[str, str, Path]]:
    folders = [path for at in sys.path for path in Path(at or ".").glob("onnxruntime*.dist-info")]
    named = ((match, path) for path in folders if (match := _FOLDER.fullmatch(path.name)))
    rows = {m[1].replace("_", "-").lower(): (m[2], path) for m, path in reversed([*named])}
    return [(name, *rows[name]) for name in sorted(rows)]


def _lists(record: Path, file: str) -> bool:
    try:
        return any(line.startswith(f"{file},") for line in record.read_text().splitlines())
    except OSError:
        return False
