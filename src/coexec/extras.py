"""The packages of each extra, and the command that installs them.

coexec is not on the package index, so pip has to install these packages by their own names.
"""

from importlib.util import find_spec

_SERVER = ("orjson", "prometheus-client", "starlette", "uvicorn")
EXTRAS = {
    "cpu": ("onnxruntime",),
    "cuda": ("onnxruntime-gpu", "cuda-bindings", "nvidia-cuda-nvrtc"),
    "gpu": ("pyopencl",),
    "openvino": ("openvino",),
    "cpp": ("ziglang",),
    "exact": ("highspy", "ortools"),
    "serve": _SERVER,
    "cluster": (*_SERVER, "ray"),
}
"""The packages of each extra, as in pyproject.toml."""
BRINGS = {
    "cpu": "ONNX Runtime, for CPU cores",
    "cuda": "NVIDIA's GPUs, and ONNX Runtime with its provider for them",
    "gpu": "GPUs that have an OpenCL driver",
    "openvino": "CPU cores of all makers, Intel's GPUs and NPUs",
    "cpp": "a C++ compiler for the engine cpp, where the machine has none",
    "exact": "the planners cpsat and hope_ilp",
    "serve": "the server, coexec serve",
    "cluster": "several machines as one pipeline, coexec cluster",
}
"""The purpose of each extra."""


_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def has_onnx_runtime() -> bool:
    """Whether the module onnxruntime is here. A folder of its name without the module's files,
    which pip leaves behind if it has other files, is none."""
    spec = find_spec("onnxruntime")
    return spec is not None and spec.origin is not None


def lacks_onnx_runtime(error: Exception) -> bool:
    """Whether an import has failed because the module onnxruntime is not here, or is empty."""
    return "onnxruntime" in str(error) and not has_onnx_runtime()


def needed(extra: str) -> tuple[str, ...]:
    """The packages of an extra that have a place here: a second ONNX Runtime has none."""
    packages = EXTRAS[extra]
    if not has_onnx_runtime():
        return packages
    return tuple(name for name in packages if name not in _RUNTIMES)


def install(extra: str, upgrade: bool = False) -> str:
    """The command that installs the packages of an extra, such as "pip install openvino"."""
    return " ".join(["pip install", *(["--upgrade"] if upgrade else []), *needed(extra)])


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow: the e-mail parser

    try:
        return all(distribution(package) for package in needed(extra))
    except PackageNotFoundError:
        return False
