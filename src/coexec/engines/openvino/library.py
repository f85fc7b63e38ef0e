"""The OpenVINO library, loaded when it is first needed.

It takes a quarter of a second to import. It also brings a TBB library of its own: Intel's OpenCL
runtime needs a newer one and has to be loaded before (`engines/opencl/vendors.py`).

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coexec.errors import DeviceError, first_line

__all__ = ["core", "installed_version"]

_TBB = "libtbb.so.12"
_REMEDY = "pip install 'coexec[openvino]' installs it"


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
        _load_tbb()
    try:
        import openvino

        return openvino.Core()
    except ImportError as error:
        raise DeviceError(f"OpenVINO is not available ({first_line(error)}); {_REMEDY}") from error
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO does not start ({first_line(error)}); "
                          f"reinstall it: {_REMEDY}") from error  # fmt: skip


def _load_tbb() -> None:
    """Load OpenVINO's TBB without libtbbbind, unless the process has a TBB already.

    Where that fails, OpenVINO loads it as usual, and devices find out that they cannot have their
    cores.
    """
    with suppress(OSError, ImportError, ValueError):
        spec = importlib.util.find_spec("openvino")
        if spec is None or spec.origin is None:
            return
        library = Path(spec.origin).parent / "libs" / _TBB
        if not library.is_file() or _TBB in Path("/proc/self/maps").read_text():
            return
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / _TBB
            link.symlink_to(library)
            ctypes.CDLL(str(link))
