"""Compilers of kernels: text in OpenCL C becomes machine code that CUDA loads.

Two compilers know NVIDIA's GPUs. NVRTC, a library of 90 MB in a wheel, gets the text behind a
prelude in C++ (`dialect`). The one in NVIDIA's OpenCL driver, which is often missing in containers,
returns PTX, which CUDA's driver turns into machine code. NVRTC comes first: it compiles in a third
of the time, and its code takes 0.93 to 1.0 of the time of the other (H200, five networks).

Machine code is kept in the cache, for one GPU, driver and compiler. Several threads compile
kernels: both compilers let Python's other threads run.

OpenCL's PTX reads the offsets of a launch from registers (``%envreg0`` and others) that CUDA leaves
undefined. A launch without offsets has zeros there.
"""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coexec.cache import Cache, Entry
from coexec.cache.source import source_digest
from coexec.engines import detect
from coexec.engines.cuda.dialect import in_cpp
from coexec.engines.cuda.driver import CudaContext, CudaError
from coexec.engines.cuda.failures import CompileError
from coexec.engines.cuda.options import Compiler
from coexec.engines.kernels.base import OPENCL_PRELUDE
from coexec.errors import DeviceError, first_line
from coexec.extras import install
from coexec.keys import digest

_ENVIRONMENT = re.compile(r"%envreg\d+")


class Images:
    """The machine code of kernels for one GPU, in the cache ``folder``; None: nothing is stored."""

    def __init__(self, context: CudaContext, compiler: Compiler, folder: Path | None) -> None:
        """
        Raises:
            DeviceError: there is no compiler.
        """
        self._context = context
        self._cache = None if folder is None else Cache(folder)
        self._compile, self.compiler = _chosen(context, compiler)
        """The function, and the name and version of the compiler, for keys and messages."""
        self.wait = isinstance(self._compile, _Nvrtc)
        """Whether kernels begin by waiting for those before them, see `dialect`."""
        self.compiled = 0
        """Number of kernels that were compiled and not read from the cache."""

    def of(self, sources: Sequence[str]) -> Mapping[str, bytes]:
        """The machine code of each source.

        Raises:
            CompileError: a source does not compile.
        """
        unique = list(dict.fromkeys(sources))
        images = {source: image for source in unique if (image := self._stored(source))}
        missing = [source for source in unique if source not in images]
        if missing:
            threads = min(len(missing), len(detect.usable_cores()))
            with ThreadPoolExecutor(threads, "coexec compiles kernels") as pool:
                images |= zip(missing, pool.map(self._made, missing), strict=True)
        return images

    def _key(self, source: str) -> str:
        gpu = self._context.gpu
        return digest(source, "cuda", gpu.name, gpu.capability, self.compiler)

    def _stored(self, source: str) -> bytes | None:
        entry = None if self._cache is None else self._cache.find("kernels", self._key(source))
        return None if entry is None else bytes(entry.files["kernel.bin"])

    def _made(self, source: str) -> bytes:
        try:
            image = self._compile(source)
        except CompileError as error:
            raise CompileError(str(error), source) from error
        self.compiled += 1
        if self._cache is not None:
            self._cache.add("kernels", self._key(source), Entry({"kernel.bin": image}))
        return image


def _chosen(context: CudaContext, wanted: Compiler) -> tuple[Callable[[str], bytes], str]:
    """The first compiler that is there, of those that are wanted, and its name and version."""
    reasons = []
    for name, make in (("nvrtc", _Nvrtc), ("opencl", _OpenClCompiler)):
        if wanted in ("auto", name):
            try:
                compiler = make(context)
            except DeviceError as error:
                reasons.append(str(error))
            else:
                return compiler, f"{name} {compiler.version} {compiler.form}"
    raise DeviceError(f"there is no compiler for CUDA's kernels: {'; '.join(reasons)}")


class _OpenClCompiler:
    """The compiler in NVIDIA's OpenCL driver."""

    def __init__(self, context: CudaContext) -> None:
        from coexec.engines.opencl.binaries import OPTIONS
        from coexec.engines.opencl.platforms import devices

        found = (gpu for gpu in devices() if gpu.identity == context.gpu.identity)
        device = next(found, None)
        if device is None:
            raise DeviceError(
                "NVIDIA's OpenCL driver does not report this GPU (its library libnvidia-opencl is "
                "missing in many containers)"
            )
        self._context = context
        self._device = device.context()
        self._options = OPTIONS
        self.version = device.driver
        self.form = digest(OPENCL_PRELUDE, OPTIONS)

    def __call__(self, source: str) -> bytes:
        import pyopencl as cl

        try:
            program = cl.Program(self._device, OPENCL_PRELUDE + source).build(self._options)
        except cl.Error as error:
            raise CompileError(first_line(error)) from error
        (binary,) = program.get_info(cl.program_info.BINARIES)
        ptx = _ENVIRONMENT.sub("0", bytes(binary).rstrip(b"\0").decode())
        return self._assembled(ptx.encode() + b"\0")

    def _assembled(self, ptx: bytes) -> bytes:
        """The machine code of PTX, made by CUDA's driver."""
        from cuda.bindings import driver

        kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
        call = self._context.call
        state = call("cuLinkCreate", 0, [], [])
        try:
            call("cuLinkAddData", state, kind, ptx, len(ptx), b"kernel", 0, [], [])
            address, size = call("cuLinkComplete", state)
            return ctypes.string_at(address, size)
        except CudaError as error:
            raise CompileError(str(error)) from error
        finally:
            self._context.release("cuLinkDestroy", state)


class _Nvrtc:
    """NVIDIA's library for compilation at run time."""

    def __init__(self, context: CudaContext) -> None:
        try:
            from cuda.bindings import nvrtc

            self._nvrtc: Any = nvrtc
            major, minor = self._checked(nvrtc.nvrtcVersion())
        except (ImportError, RuntimeError, CompileError) as error:
            raise DeviceError(
                f"NVRTC cannot be loaded ({first_line(error)}): {install('cuda')}"
            ) from error
        self.version = f"{major}.{minor}"
        units = "".join(map(str, context.gpu.capability))
        if int(units) not in self._checked(nvrtc.nvrtcGetSupportedArchs()):
            raise DeviceError(f"NVRTC {self.version} knows no GPU of compute capability {units}")
        self._options = [
            f"--gpu-architecture=sm_{units}".encode(),
            b"--std=c++17",
            b"--device-as-default-execution-space",
        ]
        self.form = digest(source_digest(Path(__file__).parent), self._options)

    def _checked(self, result: tuple[Any, ...]) -> Any:
        code, *values = result
        if int(code) != 0:
            raise CompileError(str(code))
        return values[0] if len(values) == 1 else tuple(values) or None

    def __call__(self, source: str) -> bytes:
        nvrtc, checked = self._nvrtc, self._checked
        program = checked(nvrtc.nvrtcCreateProgram(in_cpp(source).encode(), b"", 0, [], []))
        try:
            options = self._options
            (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            if int(code) != 0:
                log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
                checked(nvrtc.nvrtcGetProgramLog(program, log))
                raise CompileError(_first_error(log.decode()))
            image: bytes = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
            checked(nvrtc.nvrtcGetCUBIN(program, image))
            return image
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def _first_error(log: str) -> str:
    """The first error in a compiler's log, else its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip(" \0")]
    return next((line for line in lines if "error" in line), next(iter(lines), "no reason given"))
