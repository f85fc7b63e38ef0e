"""OpenCL C as C++ with GNU vectors, which GCC (from 11) and Clang (from 14) compile.

The text of a kernel stays as it is, behind a prelude with OpenCL's functions; some words change:
vector literals, halves and lanes of vectors. A pointer to a vector becomes one to a vector at any
address of a float, so that callers' arrays need no alignment. ``unknown`` returns an address of
which the compiler does not know that it is the same: loads from there stay where they are.
``held`` returns a vector that stays in its register, where x86 compilers would load it again for
each use. The functions that activations need for whole vectors (exp, tanh, erf) are polynomials of
Cephes here, the others call the C library lane by lane.

The compiled function of a kernel computes the work items of a box of its grid. It is a ``void
(const intptr_t* arguments, void* memory, int64_t begin0, int64_t end0, int64_t begin1, int64_t
end1, int64_t begin2, int64_t end2)``. An argument is an address or an integer. The memory is that
of the thread, ``thread_memory`` in the text. Work items do not wait for each other.
"""

import re

from coexec.engines.cpp.halves import INTRINSICS
from coexec.engines.cpp.halves import PRELUDE as HALVES
from coexec.keys import digest

_WIDTHS = (2, 4, 8, 16)
_OF_LIBRARY = ("cos", "log", "log1p", "sin", "ceil", "floor", "rint", "sqrt", "fabs")

_SCALARS = """\
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#define __global
#define restrict __restrict__
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define get_global_id(axis) item_id_##axis
template <class A, class B> inline auto max(A a, B b) { return a < b ? b : a; }
template <class A, class B> inline auto min(A a, B b) { return b < a ? b : a; }
template <class T> inline T clamp(T value, T low, T high) { return min(max(value, low), high); }
template <class A, class B> inline auto SELECT(bool mask, A a, B b) { return mask ? a : b; }
inline float make_float(float v) { return v; }
inline float as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline int as_int(float v) { return __builtin_bit_cast(int, v); }
inline int to_int(float v) { return (int)v; }
inline float fmax(float a, float b) { return (a > b) | (b != b) ? a : b; }
inline float fmin(float a, float b) { return (a < b) | (b != b) ? a : b; }
inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline double pow(double a, double b) { return __builtin_pow(a, b); }
inline double exp(double a) { return __builtin_exp(a); }
inline double tanh(double a) { return __builtin_tanh(a); }
inline double erf(double a) { return __builtin_erf(a); }
template <class T> inline T* unknown(T* p) { asm("" : "+r"(p)); return p; }
template <class T> inline T held(T v) {
#ifdef __SSE2__
  if constexpr (sizeof(T) <= __BIGGEST_ALIGNMENT__) asm("" : "+x"(v));  // that of a register
#endif
  return v;
}
"""


_FUNCTIONS = """\
inline FLOAT exp(FLOAT x) {
  x = SELECT(x < -106.0f, make_FLOAT(-106.0f), x);
  x = SELECT(x > 89.0f, make_FLOAT(89.0f), x);
  const FLOAT n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const FLOAT r = x - n * 0.693359375f - n * -2.12194440e-4f;
  FLOAT p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const INT whole = to_INT(n), half = whole >> 1;  // twice, as 2^128 is no float
  return p * as_FLOAT((half + 127) << 23) * as_FLOAT((whole - half + 127) << 23);
}
inline FLOAT tanh(FLOAT x) {
  const FLOAT size = fabs(x), z = x * x;
  FLOAT p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const FLOAT large = 1.0f - 2.0f / (exp(size + size) + 1.0f);
  return SELECT(size < 0.625f, p * z * x + x, SELECT(x < 0.0f, -large, large));
}
inline FLOAT erf(FLOAT x) {
  const FLOAT size = fabs(x), z = x * x;
  FLOAT p = z * 7.853861353153693e-5f - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710f;
  const FLOAT q = 1.0f / size, y = q * q;
  FLOAT near = y * 2.326819970068386e-2f - 1.387039388740657e-1f;
  near = near * y + 3.687424674597105e-1f;
  near = near * y - 5.824733027278666e-1f;
  near = near * y + 6.210004621745983e-1f;
  near = near * y - 4.944515323274145e-1f;
  near = near * y + 3.404879937665872e-1f;
  near = near * y - 2.741127028184656e-1f;
  near = near * y + 5.638259427386472e-1f;
  FLOAT far = y * -1.047766399936249e+1f + 1.297719955372516e+1f;
  far = far * y - 7.495518717768503f;
  far = far * y + 2.921019019210786f;
  far = far * y - 1.015265279202700f;
  far = far * y + 4.218463358204948e-1f;
  far = far * y - 2.820767439740514e-1f;
  far = far * y + 5.641895067754075e-1f;
  const FLOAT large = 1.0f - exp(-z) * q * SELECT(size < 2.0f, near, far);
  return SELECT(size < 1.0f, p * x, SELECT(x < 0.0f, -large, large));
}
"""
"""Functions of Cephes (S. Moshier), for a scalar or a vector; errors of some units in the last
place."""


def _scalar_functions() -> str:
    return "".join(
        f"inline {kind} {name}({kind} a) {{ return __builtin_{name}{suffix}(a); }}\n"
        for kind, suffix in (("float", "f"), ("double", ""))
        for name in _OF_LIBRARY
    ) + _of_type("float", "int")


def _of_type(real: str, whole: str) -> str:
    return _FUNCTIONS.replace("FLOAT", real).replace("INT", whole)


def _vector(width: int) -> str:
    """The types of ``width`` floats and integers, and what OpenCL does with them."""
    real, whole, half = f"float{width}", f"int{width}", "float"
    if width > 2:
        half = f"float{width // 2}"
    lanes = range(width)
    size = f"vector_size({4 * width})"
    lines = [
        f"typedef float {real} __attribute__(({size}));",
        f"typedef int {whole} __attribute__(({size}));",
        f"typedef float any_{real} __attribute__(({size}, aligned(4), may_alias));",
        f"inline {real} make_{real}({real} v) {{ return v; }}",
    ]
    for scalar, vector in (("float", real), ("int", whole)):
        names = ", ".join(f"v{lane}" for lane in lanes)
        declared = ", ".join(f"{scalar} v{lane}" for lane in lanes)
        lines += [
            f"inline {vector} make_{vector}({scalar} v) {{ return {vector}{{{'v, ' * width}}}; }}",
            f"inline {vector} make_{vector}({declared}) {{ return {vector}{{{names}}}; }}",
        ]
    lines += [
        f"inline {half} low({real} v) {{ {half} h[2]; __builtin_memcpy(h, &v, sizeof v); "
        "return h[0]; }",
        f"inline {half} high({real} v) {{ {half} h[2]; __builtin_memcpy(h, &v, sizeof v); "
        "return h[1]; }",
        f"inline {real} as_{real}({whole} v) {{ return ({real})v; }}",
        f"inline {whole} as_{whole}({real} v) {{ return ({whole})v; }}",
        f"inline {whole} to_{whole}({real} v) {{ return __builtin_convertvector(v, {whole}); }}",
        f"template <class A, class B> inline {real} SELECT({whole} mask, A a, B b) "
        f"{{ return mask ? make_{real}(a) : make_{real}(b); }}",
        f"inline {real} fmax({real} a, {real} b) {{ return SELECT((a > b) | (b != b), a, b); }}",
        f"inline {real} fmin({real} a, {real} b) {{ return SELECT((a < b) | (b != b), a, b); }}",
        f"inline {real} max({real} a, {real} b) {{ return SELECT(a < b, b, a); }}",
        f"inline {real} min({real} a, {real} b) {{ return SELECT(b < a, b, a); }}",
    ]
    for name in _OF_LIBRARY:
        lines.append(
            f"inline {real} {name}({real} v) {{ float a[{width}]; "
            f"__builtin_memcpy(a, &v, sizeof v); for (float& x : a) x = __builtin_{name}f(x); "
            "__builtin_memcpy(&v, a, sizeof v); return v; }"
        )
    lines.append(
        f"inline {real} pow({real} v, {real} w) {{ "
        f"for (int i = 0; i < {width}; i++) v[i] = __builtin_powf(v[i], w[i]); return v; }}"
    )
    return "\n".join([*lines, _of_type(real, whole)])


_PRELUDE = "".join([_SCALARS, _scalar_functions(), *map(_vector, _WIDTHS)])

_WIDTH = "(?:2|4|8|16)"
_KERNEL = re.compile(r"__kernel void (\w+)\(([^)]*)\)")
_WORDS = (
    # Compilers do not make a vector of the loads or stores of single halves.
    (
        re.compile(rf"\(float({_WIDTH})\)\((?:vload_half\(\d+, p\)(?:, )?)+\)"),
        r"vload_half\1(0, p)",
    ),
    (
        re.compile(rf"(float({_WIDTH}) v\) \{{ )(?:vstore_half\(v\.s[0-9a-f], \d+, p\); ?)+"),
        r"\1vstore_half\2(v, 0, p); ",
    ),
    (re.compile(rf"\(((?:float|int){_WIDTH})\)\("), r"make_\1("),
    (re.compile(rf"\b(float{_WIDTH}) (\w+) = ([^;]+);"), r"\1 \2 = make_\1(\3);"),
    (re.compile(rf"__global (const )?(float{_WIDTH})\*"), r"\1any_\2*"),
    (re.compile(r"\b(\w+)\.lo\b"), r"low(\1)"),
    (re.compile(r"\b(\w+)\.hi\b"), r"high(\1)"),
    (re.compile(r"\.s([0-9a-f])\b"), lambda found: f"[{int(found[1], 16)}]"),
    (re.compile(r"\b(\w+)\.([xyzw])\b"), lambda f: f"{f[1]}[{'xyzw'.index(f[2])}]"),
    (re.compile(r"#pragma unroll\b"), "#pragma GCC unroll 16"),
    (re.compile(r"__attribute__\(\(reqd_work_group_size\([^)]*\)\)\)\n"), ""),
    # A box never reaches outside of the grid.
    (re.compile(r"  if \(get_global_id\(0\) >= [^;]* return;\n"), ""),
)


def symbol(name: str, source: str) -> str:
    """The name of the compiled function of the kernel ``name``."""
    return f"{name}_{digest(_PRELUDE, INTRINSICS, HALVES, source, digits=16)}"


def in_cpp(name: str, source: str) -> str:
    """The text of the kernel ``name`` in C++."""
    text = source
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    before, behind = ([INTRINSICS], [HALVES]) if "half" in text else ([], [])
    found = _KERNEL.search(text)
    assert found is not None, source
    parameters = found[2].split(", ")
    items = ", ".join(f"const int item_id_{axis}" for axis in range(3))
    own = f"{found[2]}, float* thread_memory, {items}"
    inlined = f"__attribute__((always_inline)) inline void {name}({own})"
    text = f"{text[: found.start()]}{inlined}{text[found.end() :]}"
    return "\n".join(
        [
            *before,
            "namespace {",
            _PRELUDE,
            *behind,
            text,
            "}",
            *_entry(name, symbol(name, source), parameters),
            "",
        ]
    )


def _entry(name: str, entry: str, parameters: list[str]) -> list[str]:
    """The lines of the function that calls the kernel for each work item of a box."""
    types = [parameter.rpartition(" ")[0] for parameter in parameters]
    box = ", ".join(f"__INT64_TYPE__ begin{axis}, __INT64_TYPE__ end{axis}" for axis in range(3))
    arguments = ", ".join(f"a{number}" for number in range(len(types)))
    return [
        'extern "C" __attribute__((visibility("default")))',
        f"void {entry}(const __INTPTR_TYPE__* arguments, void* memory, {box}) {{",
        "  const auto m = (float*)__builtin_assume_aligned(memory, 64);",
        *(f"  const auto a{n} = ({kind})arguments[{n}];" for n, kind in enumerate(types)),
        "  for (int z = begin2; z < end2; z++)",
        "    for (int y = begin1; y < end1; y++)",
        "#pragma GCC ivdep",
        f"      for (int x = begin0; x < end0; x++) {name}({arguments}, m, x, y, z);",
        "}",
    ]
