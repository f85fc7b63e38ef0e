"""Wheels for Linux on x86-64 and aarch64, for the Python that runs this: into build/wheels.

    python native/wheels.py

Zig compiles for both processors, with the C library of manylinux_2_28, on either of them. Its
C++ library is linked statically. The tools are installed into build/wheels-tools first.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_BUILD = _ROOT / "build"
_TOOLS = ("wheel>=0.46", "ziglang>=0.17")
_GLIBC = "2.28"
_ARCHITECTURES = ("x86_64", "aarch64")


def main() -> None:
    tools, raw, done = (_BUILD / f"wheels{part}" for part in ("-tools", "-raw", ""))
    venv.create(tools, with_pip=True)
    python = tools / "bin" / "python"
    _run([python, "-m", "pip", "install", "--quiet", *_TOOLS])
    for architecture in _ARCHITECTURES:
        folder = raw / architecture
        for old in folder.glob("*.whl"):
            old.unlink()
        options = ["--quiet", "--no-deps", "--config-settings", f"build-dir={folder}/build"]
        _run(
            [python, "-m", "pip", "wheel", *options, "--wheel-dir", folder, _ROOT],
            _environment(python, architecture),
        )
        (wheel,) = folder.glob("*.whl")
        if wheel.name.endswith("-none-any.whl"):
            sys.exit(f"{wheel.name}: the loop was not built; see the messages of the compiler")
        tag = f"manylinux_{_GLIBC.replace('.', '_')}_{architecture}"
        _run([python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel])
        (wheel,) = folder.glob("*.whl")
        done.mkdir(exist_ok=True)
        print(wheel.rename(done / wheel.name))


def _environment(python: Path, architecture: str) -> dict[str, str]:
    """The variables that let CMake and scikit-build-core build for an architecture."""
    version = "".join(map(str, sys.version_info[:2]))
    flags = [f"-I{_headers(architecture)}"]
    return os.environ | {
        "CXX": f"{python} -I -m ziglang c++ -target {architecture}-linux-gnu.{_GLIBC}",
        "CXXFLAGS": " ".join([*flags, os.environ.get("CXXFLAGS", "")]).strip(),
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-{architecture}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }


def _headers(architecture: str) -> Path:
    """A folder in which Debian's pyconfig.h finds the part for an architecture: it has one for the
    processor of this machine only. All processors with 64 bits have the same."""
    folder = _BUILD / "wheels-headers"
    own = sysconfig.get_config_var("MULTIARCH") or ""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    there, here = Path("/usr/include") / own / version, folder / f"{architecture}-linux-gnu"
    if own and there.is_dir():
        here.mkdir(parents=True, exist_ok=True)
        link = here / version
        link.unlink(missing_ok=True)
        link.symlink_to(there)
    return folder


def _run(command: list[object], environment: dict[str, str] | None = None) -> None:
    subprocess.run([str(word) for word in command], env=environment, check=True, cwd=_ROOT)


if __name__ == "__main__":
    main()
