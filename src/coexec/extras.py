"""Packages that extras bring, and how to install them.

coexec is not on the package index: pip finds these packages by their own names.
"""

__all__ = ["EXTRAS", "install"]

_OPENCL = ("pyopencl",)
_SERVER = ("starlette", "uvicorn")
EXTRAS = {
    "gpu": _OPENCL,
    "pocl": (*_OPENCL, "pocl-binary-distribution"),
    "intel-opencl": (*_OPENCL, "intel-opencl-rt", "intel-cmplr-lib-rt"),
    "openvino": ("openvino",),
    "exact": ("highspy", "ortools"),
    "serve": _SERVER,
    "cluster": (*_SERVER, "psutil", "ray"),
}
"""By extra, the packages that it brings, as in pyproject.toml."""


def install(extra: str, upgrade: bool = False) -> str:
    """The command that installs what an extra brings: "pip install openvino"."""
    return " ".join(["pip install", *(["--upgrade"] if upgrade else []), *EXTRAS[extra]])
