"""OpenCL runtimes from Python wheels that the OpenCL loader does not find by itself.

The loader reads a folder of vendor files, each with the path of a runtime's library. The file in
Intel's wheel contains a path of Intel's own build machine. So when OpenCL is loaded for the first
time, the loader gets a folder that coexec has written: the system's vendor files, and one with the
right path.

If the user has set ``OCL_ICD_VENDORS`` or ``OCL_ICD_FILENAMES``, these environment variables stay
as they are and decide which runtimes exist.
"""

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from coexec.cache import default_cache_folder, substitute, write_whole
from coexec.errors import first_line
from coexec.extras import install
from coexec.keys import digest

_WHEELS = {"intel-opencl-rt": "libintelocl.so"}
"""Library that the loader has to open, by distribution."""
_SYSTEM = "/etc/OpenCL/vendors"
_VARIABLES = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
"""Environment variables with which users select the runtimes."""
_TBB = "libtbb.so.12"


def installed() -> dict[str, Path]:
    """Libraries of the runtimes from wheels, by distribution."""
    libraries = {}
    for name, library in _WHEELS.items():
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        paths = (Path(str(file.locate())).resolve() for file in files if file.name == library)
        if path := next((path for path in paths if path.is_file()), None):
            libraries[name] = path
    return libraries


def installed_runtimes() -> str:
    """Digest of everything that decides which runtimes and drivers exist, computed without loading
    them."""
    facts: list[object] = []
    for name in ("pyopencl", "pocl-binary-distribution", *_WHEELS):
        with suppress(PackageNotFoundError):
            facts.append((name, version(name)))
    facts += [(name, os.environ[name]) for name in _VARIABLES if name in os.environ]
    system = Path(os.environ.get("OPENCL_VENDOR_PATH") or _SYSTEM)
    for file in sorted(system.glob("*.icd")) if system.is_dir() else ():
        with suppress(OSError):
            facts.append((str(file), file.stat().st_mtime_ns))
    return digest(*facts)


def variables(pyopencl_folder: Path) -> Mapping[str, str]:
    """Environment variables with which the OpenCL loader finds these libraries beside all others.

    Args:
        pyopencl_folder: folder of the package. Its wheels contain a loader (ocl-icd) that reads a
            folder of vendor files; other loaders take a list of libraries in addition to it.
    """
    libraries = list(installed().values())
    if not libraries or "OCL_ICD_VENDORS" in os.environ or "OCL_ICD_FILENAMES" in os.environ:
        return {}
    if not any((pyopencl_folder / ".libs").glob("libOpenCL*")):
        return {"OCL_ICD_FILENAMES": os.pathsep.join(map(str, libraries))}
    folder = _folder(Path(os.environ.get("OPENCL_VENDOR_PATH") or _SYSTEM), libraries)
    return {} if folder is None else {"OCL_ICD_VENDORS": str(folder)}


def _folder(system: Path, libraries: list[Path]) -> Path | None:
    """A folder with the vendor files of ``system``, and one for each library.

    None if no disk can be written. The name is a digest of the content, so processes with other
    wheels use another folder.
    """
    texts = {f"coexec-{path.name}.icd": f"{path}\n" for path in libraries}
    for file in system.glob("*.icd") if system.is_dir() else ():
        try:
            texts[file.name] = file.read_text()
        except (OSError, ValueError):
            continue  # the loader could not read it either
    cache = default_cache_folder()
    with suppress(OSError):
        return _written(cache, texts)
    other = substitute(cache)
    with suppress(OSError):
        return None if other is None else _written(other, texts)
    return None


def _written(root: Path, texts: Mapping[str, str]) -> Path:
    folder = root / "opencl-vendors" / digest(sorted(texts.items()))
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            write_whole(path, [text.encode()])
    return folder


def absent(platforms: str) -> list[str]:
    """Why runtimes from wheels are missing among the loaded ``platforms``, with the remedy.

    Args:
        platforms: the names of all platforms of this process.
    """
    return [
        f"Intel's OpenCL runtime is installed ({name}) and was not loaded: {_reason(path)}"
        for name, path in installed().items()
        if "Intel(R) OpenCL" not in platforms
    ]


def _reason(library: Path) -> str:
    other = _mapped(_TBB)
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        if other is not None and other.parent != library.parent:
            return (
                f"it needs a newer {_TBB} than {other}, which this process has loaded before "
                f"(OpenVINO brings one); open the OpenCL device before OpenVINO is imported, "
                f"or use a process of its own"
            )
        return f"{first_line(error)}; {install('intel-opencl')} brings all it needs"
    if "OCL_ICD_VENDORS" in os.environ or "OCL_ICD_FILENAMES" in os.environ:
        return (
            "OCL_ICD_VENDORS or OCL_ICD_FILENAMES is set and does not name it; unset it, or "
            f"add {library}"
        )
    return "OpenCL was in use before coexec; open coexec's device first"


def _mapped(library: str) -> Path | None:
    """Path of the loaded library whose name starts with ``library``; None if there is none."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (Path(line.split(maxsplit=5)[5]) for line in lines if library in line)
    return next((path for path in paths if path.name.startswith(library)), None)
