"""OpenCL C as C++ for NVRTC."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from onnx import helper

from coexec.engines.cuda.dialect import in_cpp
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.building import build
from coexec.engines.kernels.expressions import OPERATORS, VECTOR_SAFE
from coexec.model.load import load
from tests.helpers.gpu_networks import mixed_network, module_of
from tests.helpers.small_models import from_nodes, tensor_info

GPU = Architecture("nvidia", 4, compute_units=16, max_group=1024, local_bytes=49152)
_UNARY = sorted(
    VECTOR_SAFE.intersection(OPERATORS)
    - {"Swish", "Add", "Div", "Max", "Mean", "Min", "Mul", "PRelu", "Pow", "Sub", "Sum", "Where"}
)


def texts() -> list[str]:
    """Kernels with all variants, and element-wise operators of vectors and scalars."""
    models = [mixed_network()]
    for shape in ([1, 8, 3, 3], [2, 7]):
        for name in _UNARY:
            nodes = [helper.make_node(name, ["x"], ["y"])]
            infos = tensor_info("x", shape), tensor_info("y", shape)
            models.append(from_nodes(nodes, [infos[0]], [infos[1]], {}, opset=22))
    sources = {
        launch.source for model in models for launch in build(module_of(load(model)), GPU).launches
    }
    return sorted(sources)


def test_words_of_opencl_become_words_of_cuda() -> None:
    text = in_cpp(
        "__attribute__((reqd_work_group_size(16, 4, 1)))\n"
        "__kernel void k(__global const float* restrict x) {\n"
        "  const float4 v = (float4)(0.0f), w = SELECT((int4)(-1, 0, 0, 0), v, (float4)(x[0]));\n"
        "  x[1] = v.s3 + w.lo.x;\n"
        "}"
    ).split("#define float4 cl_float4\n")[1]
    assert "__kernel void __launch_bounds__(16 * 4 * 1) k(" in text
    assert ") { WAIT_FOR_KERNELS;\n" in text
    assert "v = float4(0.0f), w = SELECT(cl_mask4(-1, 0, 0, 0), v, float4(x[0]))" in text
    assert "v.w + w.lo().x" in text


_BUILTINS = """\
#include <cmath>
#define __global__
#define __shared__
#define __restrict__ __restrict
#define __launch_bounds__(threads)
struct Axes { int x, y, z; };
extern Axes threadIdx, blockIdx, blockDim;
void __syncthreads();
float __int_as_float(int bits);
int __float_as_int(float number);
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
using std::fabs, std::floor, std::ceil, std::exp, std::log, std::log1p, std::sin, std::cos;
using std::sqrt, std::tanh, std::erf, std::rint, std::pow, std::fmax, std::fmin;
"""
"""What CUDA's compilers know without a header, for another compiler."""


def test_a_compiler_of_cpp_takes_every_kernel(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    (prelude,) = {in_cpp("")}
    kernels = [
        f"namespace n{number} {{\n"
        + re.sub(r"(__kernel void .*?)(\w+)\(__global", rf"\1\2_{number}(__global", text)
        + "\n}\n"
        for number, text in enumerate(in_cpp(source)[len(prelude) :] for source in texts())
    ]
    file = tmp_path / "kernels.cpp"
    file.write_text(_BUILTINS + prelude + "".join(kernels))
    options = ["-std=c++17", "-fsyntax-only", "-w", str(file)]
    done = subprocess.run([compiler, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.long
def test_nvrtc_compiles_every_kernel() -> None:
    """Needs no GPU."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVIDIA's bindings are not installed")
    options = [b"--gpu-architecture=sm_90", b"--std=c++17", b"--device-as-default-execution-space"]
    for source in texts():
        try:
            _, program = nvrtc.nvrtcCreateProgram(in_cpp(source).encode(), b"", 0, [], [])
        except RuntimeError as error:
            pytest.skip(f"NVRTC cannot be loaded: {error}")
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        assert int(code) == 0, log.decode()
