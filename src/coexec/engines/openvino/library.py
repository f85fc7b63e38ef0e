"""The OpenVINO library, loaded when it is first needed.

It takes a quarter of a second to import. It brings a TBB library of its own; Intel's OpenCL runtime
needs a newer one, and a process has one only.

TBB in turn loads libtbbbind, if it lies beside it, and that gives every thread that runs a model
the affinity of the whole process while it does. A device of some cores could not be had. So TBB is
loaded through a link in an empty folder, where it finds no libtbbbind and leaves threads alone.
"""

import ctypes
import importlib.util
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from coexec.errors import DeviceError, first_line
from coexec.extras import install

__all__ = ["core", "installed_version", "load_tbb"]

_TBB = "libtbb.so.12"
_REMEDY = f"{install('openvino')} installs it"


def installed_version() -> str | None:
    """The version of the installed OpenVINO, as in "2026.4.1"; None without one.

    It does not load the library, so that profiles and caches can be looked up by it cheaply.
    """
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


@cache
def core() -> Any:
    """The `openvino.Core` of this process.

    Raises:
        DeviceError: OpenVINO is not installed, or cannot be loaded.
    """
    if "openvino" not in sys.modules:
        load_tbb()
    try:
        import openvino

        return openvino.Core()
    except ImportError as error:
        raise DeviceError(f"OpenVINO is not available ({first_line(error)}); {_REMEDY}") from error
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO does not start ({first_line(error)}); "
                          f"reinstall it: {_REMEDY}") from error  # fmt: skip


def load_tbb() -> None:
    """Load TBB without libtbbbind, unless the process has a TBB already.

    It is the one that Intel's OpenCL runtime came with, if that is installed. It is newer than
    OpenVINO's, and both work with it. Then it does not matter which of them is opened first, as
    long as this is called before. Where it fails, TBB is loaded as usual, and devices find out
    that they cannot have their cores.
    """
    with suppress(OSError, ImportError, ValueError):
        library = _tbb()
        if library is None or _TBB in Path("/proc/self/maps").read_text():
            return
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / _TBB
            link.symlink_to(library)
            ctypes.CDLL(str(link))


def _tbb() -> Path | None:
    """TBB of the wheel that Intel's OpenCL runtime needs, else of OpenVINO's."""
    with suppress(PackageNotFoundError):
        for file in distribution("tbb").files or ():
            path = Path(str(file.locate())).resolve()
            if file.name == _TBB and path.is_file():
                return path
    spec = importlib.util.find_spec("openvino")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "libs" / _TBB
    return path if path.is_file() else None
