"""OpenCL C as C++ with GNU vectors."""

import ctypes
import math

import numpy as np
import pytest

from coexec.arrays import numpy_type
from coexec.engines.cpp.compiler import compiler
from coexec.engines.cpp.dialect import _WIDTHS, in_cpp
from coexec.engines.cpp.libraries import Libraries
from coexec.engines.kernels.base import KernelLaunch
from tests.helpers.core_programs import Array, cpp_name

cpp_name()  # skips without a compiler


def test_words_of_opencl_become_words_of_cpp() -> None:
    text = in_cpp(
        "k",
        "__attribute__((reqd_work_group_size(1, 1, 1)))\n"
        "__kernel void k(__global const float* restrict x, int x_at)\n{\n"
        "  if (get_global_id(0) >= 4 || get_global_id(1) >= 1 || get_global_id(2) >= 1) return;\n"
        "  const float4 v = (float4)(0.0f), w = SELECT((int4)(-1, 0, 0, 0), v, (float4)(x[0]));\n"
        "  const float2 low = w.lo;\n"
        "  y[1] = v.s3 + low.x + ((__global const float4*)x)[1].sa;\n"
        "}\n",
    ).split("#define get_global_id")[1]
    body = text[text.index("inline void k(") :]
    assert body.startswith(
        "inline void k(__global const float* restrict x, int x_at, "
        "float* thread_memory, const int item_id_0, const int item_id_1, const int item_id_2)\n{\n"
        "  const float4 v ="
    )
    assert "SELECT(make_int4(-1, 0, 0, 0), v, make_float4(x[0]))" in body
    assert "const float2 low = make_float2(low(w));" in body
    assert "v[3] + low[0] + ((const any_float4*)x)[1][10];" in body
    assert "const auto a0 = (__global const float* restrict)arguments[0];" in body


def launched(name: str, source: str, grid: tuple[int, int, int], *arrays: Array) -> None:
    """Compile a kernel and compute its grid."""
    launch = KernelLaunch(name, source, (), frozenset(), grid, None)
    (address,) = Libraries("cpu", compiler(), None).functions([launch], [name])
    words = np.array([array.ctypes.data for array in arrays], np.int64)
    sides = [side for size in grid for side in (0, size)]
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(address)
    kernel(words.ctypes.data, 0, *sides)


_SIZES = (
    0.0,
    1e-30,
    1e-6,
    0.1,
    0.5,
    0.624,
    0.626,
    0.99,
    1.01,
    1.99,
    2.01,
    3.7,
    6.0,
    20.0,
    87.0,
    88.7,
)
_NUMBERS = np.array([s * v for v in _SIZES for s in (1, -1)], np.float32)
_REST = np.array([np.inf, -np.inf, np.nan, 89.5, -104.0, 1e20, -1e20, -0.0], np.float32)


@pytest.mark.parametrize("width", [1, *_WIDTHS])
@pytest.mark.parametrize("name", ["exp", "tanh", "erf"])
def test_functions_are_right_to_some_units_in_the_last_place(name: str, width: int) -> None:
    """Against the C library in 64 bits; Cephes states errors below two units."""
    x = np.concatenate([_NUMBERS, np.linspace(-9, 9, 952, dtype=np.float32), _REST, _REST])
    x = np.resize(x, 1008)
    y = np.empty_like(x)
    vector = "float" if width == 1 else f"float{width}"
    launched(
        "f",
        f"__kernel void f(__global const {vector}* x, __global {vector}* y)\n"
        f"{{\n  const int i = get_global_id(0);\n  y[i] = {name}(x[i]);\n}}\n",
        (len(x) // width, 1, 1),
        x,
        y,
    )
    with np.errstate(over="ignore"):
        right = np.array([_exact(name, v) for v in x.tolist()]).astype(np.float32)
    units = np.abs(y.view(np.int32).astype(np.int64) - right.view(np.int32))
    whole = np.isfinite(right) & (np.abs(right) >= np.finfo(np.float32).tiny)
    assert units[whole].max() <= 4
    np.testing.assert_array_equal(y[~np.isfinite(right)], right[~np.isfinite(right)])
    np.testing.assert_allclose(
        y[~whole & np.isfinite(right)], right[~whole & np.isfinite(right)], atol=1e-38
    )


_HALVES = [*_NUMBERS, 3.4e38, -3.4e38, 1.2e-38, -1.2e-38, np.inf, -np.inf, np.nan]
_HALVES += [1.00390625, -1.00390625, 1.01171875, -1.01171875]
"""No denormals, which instructions take for zero. The last four are in the middle between two
halves: the even one of them is the result."""


@pytest.mark.parametrize("width", [1, *_WIDTHS])
def test_halves_are_loaded_and_stored_as_bfloat16(width: int) -> None:
    numbers = np.resize(np.array(_HALVES, np.float32), 48)
    kind = "" if width == 1 else str(width)
    source = (
        "__kernel void k(__global const float* x, __global half* h, __global float* y)\n{\n"
        "  const int i = get_global_id(0);\n"
        f"  vstore_half{kind}(((__global const float{kind}*)x)[i], i, h);\n"
        f"  ((__global float{kind}*)y)[i] = vload_half{kind}(i, h);\n}}\n"
    )
    stored, loaded = np.zeros(48, np.uint16), np.zeros(48, np.float32)
    launched("k", source, (48 // width, 1, 1), numbers, stored, loaded)
    expected = numbers.astype(numpy_type("bfloat16"))
    np.testing.assert_array_equal(loaded, expected.astype(np.float32))
    present = ~np.isnan(numbers)
    np.testing.assert_array_equal(stored[present], expected.view(np.uint16)[present])


@pytest.mark.parametrize("width", _WIDTHS)
def test_dot_adds_products_of_pairs(width: int) -> None:
    """At addresses of any even number: halves are not aligned to pairs."""
    rng = np.random.default_rng(0)
    weights, x = (rng.standard_normal(n).astype(numpy_type("bfloat16")) for n in (2 * width, 4))
    sums = rng.standard_normal(width).astype(np.float32)
    expected = sums + weights.astype(np.float64).reshape(width, 2) @ x[1:3].astype(np.float64)
    source = (
        "__kernel void k(__global const half* w, __global const half* x, __global float* y)\n{\n"
        f"  __global float{width}* to = (__global float{width}*)y;\n"
        f"  to[0] = dot(to[0], vload_pairs{width}(0, w), vload_pair(1, x));\n}}\n"
    )
    launched("k", source, (1, 1, 1), weights, x, sums)
    np.testing.assert_allclose(sums, expected, 1e-5, 1e-5)


def _exact(name: str, x: float) -> float:
    try:
        return float(getattr(math, name)(x))
    except OverflowError:
        return math.inf


def test_a_function_computes_a_box_of_the_grid() -> None:
    y = np.zeros((3, 4, 5), np.int32)
    source = (
        "__kernel void box(__global int* y)\n{\n"
        "  y[(get_global_id(2) * 4 + get_global_id(1)) * 5 + get_global_id(0)] += 1;\n}\n"
    )
    launch = KernelLaunch("box", source, (), frozenset(), (5, 4, 3), None)
    (address,) = Libraries("cpu", compiler(), None).functions([launch], ["y"])
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(address)
    words = np.array([y.ctypes.data], np.int64)
    kernel(words.ctypes.data, 0, 1, 3, 0, 4, 2, 3)
    expected = np.zeros_like(y)
    expected[2:3, 0:4, 1:3] = 1
    assert np.array_equal(y, expected)
