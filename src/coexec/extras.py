"""The packages of each extra, and the command that installs them.

coexec is not on the package index, so pip has to install these packages by their own names.
"""

from importlib.metadata import PackageNotFoundError, distribution

_OPENCL = ("pyopencl",)
_SERVER = ("orjson", "prometheus-client", "starlette", "uvicorn")
EXTRAS = {
    "gpu": _OPENCL,
    "cuda": ("cuda-bindings", "nvidia-cuda-nvrtc"),
    "pocl": (*_OPENCL, "pocl-binary-distribution"),
    "intel-opencl": (*_OPENCL, "intel-opencl-rt", "intel-cmplr-lib-rt"),
    "openvino": ("openvino",),
    "exact": ("highspy", "ortools"),
    "serve": _SERVER,
    "cluster": (*_SERVER, "ray"),
}
"""The packages of each extra, as in pyproject.toml."""
BRINGS = {
    "gpu": "GPUs that have an OpenCL driver",
    "cuda": "NVIDIA's GPUs through CUDA",
    "pocl": "CPU cores as OpenCL devices",
    "intel-opencl": "CPU cores as OpenCL devices, with Intel's runtime",
    "openvino": "CPU cores of all makers, Intel's GPUs and NPUs",
    "exact": "the planners cpsat and hope_ilp",
    "serve": "the server, coexec serve",
    "cluster": "several machines as one pipeline, coexec cluster",
}
"""The purpose of each extra."""


def install(extra: str, upgrade: bool = False) -> str:
    """The command that installs the packages of an extra, such as "pip install openvino"."""
    return " ".join(["pip install", *(["--upgrade"] if upgrade else []), *EXTRAS[extra]])


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    try:
        return all(distribution(package) for package in EXTRAS[extra])
    except PackageNotFoundError:
        return False
