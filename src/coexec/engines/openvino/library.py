"""The OpenVINO library, loaded when it is first needed.

Its import takes a quarter of a second.

OpenVINO reports its import over the network, from a process that it forks, unless the package that
sends is missing. For the import by coexec that package counts as missing.

TBB loads libtbbbind if this library lies in the same folder. libtbbbind gives every thread that
runs a model the affinity of the whole process during the run. Then a device could not be limited to
some cores. So TBB is loaded through a link in an empty folder, where it finds no libtbbbind and
does not change the affinity of threads.
"""

import ctypes
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coexec.errors import DeviceError, first_line
from coexec.extras import install

_TBB = "libtbb.so.12"
_TELEMETRY = "openvino_telemetry"
_REMEDY = f"{install('openvino')} installs it"


def installed_version() -> str | None:
    """The version of the installed OpenVINO, such as "2026.4.1"; None if none is installed.

    The library is not loaded, so that profiles and caches can be looked up by version quickly.
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
        with _without_telemetry():
            import openvino

        return openvino.Core()
    except ImportError as error:
        raise DeviceError(f"OpenVINO is not available ({first_line(error)}); {_REMEDY}") from error
    except RuntimeError as error:
        raise DeviceError(
            f"OpenVINO does not start ({first_line(error)}); reinstall it: {_REMEDY}"
        ) from error


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Let imports of OpenVINO's telemetry fail in the ``with`` block. OpenVINO then uses an empty
    class of its own in its place, as where that package is not installed."""
    imported = {name: sys.modules[name] for name in (_TELEMETRY,) if name in sys.modules}
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # the documented way
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]
        sys.modules.update(imported)


def load_tbb() -> None:
    """Load TBB without libtbbbind, unless the process has a TBB already.

    If it fails, TBB is loaded as usual, and the check of a device's cores (`cores.check_cores`)
    reports the problem.
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
    """OpenVINO's TBB library."""
    spec = importlib.util.find_spec("openvino")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "libs" / _TBB
    return path if path.is_file() else None
