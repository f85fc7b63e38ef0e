"""OpenCL C as C++ for NVRTC: a prelude with OpenCL's vectors and functions, and some words.

C++ has neither these vectors nor literals such as ``(float4)(a, b, c, d)``, and its ``?:`` does not
select lane by lane, for which the texts use ``SELECT``. Otherwise the text of a kernel stays as it
is. Only vectors of 2 and 4 floats are known, as blocks have 4 channels on GPUs.

From compute capability 9.0 on, a kernel begins by waiting for the kernels before it, so that a
graph may start it before their results are visible, see `driver.CudaGraph`.
"""

import re

_FUNCTIONS = (
    "ceil", "cos", "erf", "exp", "fabs", "floor", "log", "log1p", "rint", "sin", "sqrt", "tanh",
)  # fmt: skip
_OF_TWO = ("fmax", "fmin", "max", "min", "pow")


def _vector(width: int) -> str:
    """The type of ``width`` floats, its masks, and what can be done with them. Where a scalar meets
    a vector, it becomes one."""
    lanes = "xyzw"[:width]
    vector, mask = f"cl_float{width}", f"cl_mask{width}"
    a, b = f"const {vector}& a", f"const {vector}& b"

    def each(pattern: str) -> str:
        """``pattern`` for each lane; "@" stands for the lane's name."""
        return ", ".join(pattern.replace("@", lane) for lane in lanes)

    half = "float" if width == 2 else f"cl_float{width // 2}"
    low, high = (", ".join(part) for part in (lanes[: width // 2], lanes[width // 2 :]))
    lines = [
        f"struct {mask} {{",
        f"  bool {', '.join(lanes)};",
        f"  inline {mask}({each('bool @')}) : {each('@(@)')} {{}}",
        "};",
        f"struct alignas({4 * width}) {vector} {{",
        f"  float {', '.join(lanes)};",
        f"  {vector}() = default;",
        f"  inline {vector}(float v) : {each('@(v)')} {{}}",
        f"  inline {vector}({each('float @')}) : {each('@(@)')} {{}}",
        f"  inline {half} lo() const {{ return {half}({low}); }}",
        f"  inline {half} hi() const {{ return {half}({high}); }}",
        "};",
        f"inline {vector} operator-({a}) {{ return {vector}({each('-a.@')}); }}",
        f"inline {vector} SELECT(const {mask}& m, {a}, {b}) "
        f"{{ return {vector}({each('m.@ ? a.@ : b.@')}); }}",
    ]
    for op in "+-*/":
        value = each(f"a.@ {op} b.@")
        lines += [
            f"inline {vector} operator{op}({a}, {b}) {{ return {vector}({value}); }}",
            f"inline {vector}& operator{op}=({vector}& a, {b}) {{ return a = a {op} b; }}",
        ]
    for op in ("<", ">", "<=", ">=", "==", "!="):
        lines.append(
            f"inline {mask} operator{op}({a}, {b}) {{ return {mask}({each(f'a.@ {op} b.@')}); }}"
        )
    for op in "|&":
        pair = f"const {mask}& a, const {mask}& b"
        lines.append(
            f"inline {mask} operator{op}({pair}) {{ return {mask}({each(f'a.@ {op} b.@')}); }}"
        )
    for name in _FUNCTIONS:
        lines.append(f"inline {vector} {name}({a}) {{ return {vector}({each(f'{name}(a.@)')}); }}")
    for name in _OF_TWO:
        value = each(f"{name}(a.@, b.@)")
        lines.append(f"inline {vector} {name}({a}, {b}) {{ return {vector}({value}); }}")
    return "\n".join(lines)


_PRELUDE = f"""\
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long cl_ulong;
typedef long long cl_long;
#define ulong cl_ulong
#define long cl_long
#define __kernel extern "C" __global__
#define __global
#define __constant const
#define __local __shared__
#define restrict __restrict__
#define CLK_LOCAL_MEM_FENCE
#define barrier(fence) __syncthreads()
#if __CUDA_ARCH__ >= 900
#define WAIT_FOR_KERNELS asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define WAIT_FOR_KERNELS
#endif
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
inline int get_local_id(int axis) {{
  return axis == 0 ? threadIdx.x : axis == 1 ? threadIdx.y : threadIdx.z;
}}
inline int get_group_id(int axis) {{
  return axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : blockIdx.z;
}}
inline int get_global_id(int axis) {{
  return axis == 0   ? blockIdx.x * blockDim.x + threadIdx.x
         : axis == 1 ? blockIdx.y * blockDim.y + threadIdx.y
                     : blockIdx.z * blockDim.z + threadIdx.z;
}}
inline float as_float(int bits) {{ return __int_as_float(bits); }}
inline int as_int(float number) {{ return __float_as_int(number); }}
template <class T> inline T clamp(T value, T low, T high) {{ return min(max(value, low), high); }}
template <class A, class B> inline auto SELECT(bool mask, A a, B b) -> decltype(mask ? A() : B()) {{
  return mask ? a : b;
}}
{_vector(2)}
{_vector(4)}
#define float2 cl_float2
#define float4 cl_float4
"""

_HALVES = """\
struct half { ushort bits; };
inline float from_half(ushort bits) {
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
  return number;
}
inline ushort to_half(float number) {
  ushort bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(number));
  return bits;
}
struct alignas(8) cl_ushort4 {
  ushort x, y, z, w;
  cl_ushort4() = default;
  inline cl_ushort4(ushort v) : x(v), y(v), z(v), w(v) {}
  inline cl_ushort4(ushort x, ushort y, ushort z, ushort w) : x(x), y(y), z(z), w(w) {}
};
#define ushort4 cl_ushort4
inline float vload_half(int i, const half* p) { return from_half(p[i].bits); }
inline cl_float4 vload_half4(int i, const half* p) {
  const ushort4 v = ((const ushort4*)p)[i];
  return cl_float4(from_half(v.x), from_half(v.y), from_half(v.z), from_half(v.w));
}
inline void vstore_half(float v, int i, half* p) { p[i].bits = to_half(v); }
inline void vstore_half4(const cl_float4& v, int i, half* p) {
  ((ushort4*)p)[i] = ushort4(to_half(v.x), to_half(v.y), to_half(v.z), to_half(v.w));
}
"""
"""16-bit floats, which are stored and not computed with."""


def _matrix_unit(unit: str, ctype: str, instruction: str) -> str:
    """The functions of `kernels.matrix_units` for one precision."""
    return f"""\
struct alignas(16) bits_{unit} {{ uint v[4]; }};
struct left_{unit} {{ bits_{unit} top, bottom; }};
struct right_{unit} {{ bits_{unit} first, second; }};
inline bits_{unit} read_{unit}(const {ctype}* p, int row, int lane) {{
  return ((const bits_{unit}*)p)[row * 4 + (lane % 4 ^ row / 2 % 4)];
}}
inline left_{unit} left_of_{unit}(const {ctype}* p, int lane) {{
  return {{read_{unit}(p, lane / 4, lane), read_{unit}(p, lane / 4 + 8, lane)}};
}}
inline right_{unit} right_of_{unit}(const {ctype}* p, int lane) {{
  const int column = lane / 8 * 4 + lane / 4 % 2;
  return {{read_{unit}(p, column, lane), read_{unit}(p, column + 2, lane)}};
}}
inline void step_{unit}(float& a, float& b, float& c, float& d, const left_{unit}& x,
                        const bits_{unit}& w, int i) {{
  asm("mma.sync.aligned.{instruction} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, "
      "{{%0, %1, %2, %3}};"
      : "+f"(a), "+f"(b), "+f"(c), "+f"(d)
      : "r"(x.top.v[i]), "r"(x.bottom.v[i]), "r"(x.top.v[i + 1]), "r"(x.bottom.v[i + 1]),
        "r"(w.v[i]), "r"(w.v[i + 1]));
}}
inline void multiply_{unit}(cl_float4* top, cl_float4* bottom, const left_{unit}& x,
                            const right_{unit}& w, int lane) {{
  for (int i = 0; i < 4; i += 2) {{
    step_{unit}(top->x, top->y, bottom->x, bottom->y, x, w.first, i);
    step_{unit}(top->z, top->w, bottom->z, bottom->w, x, w.second, i);
  }}
}}
"""


_TF32 = """\
inline float in_tf32(float number) {
  uint bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(number));
  return __uint_as_float(bits);
}
inline void keep_one_tf32(float v, int i, float* p) { p[i] = in_tf32(v); }
inline void keep_tf32(const cl_float4& v, int i, float* p) {
  *(cl_float4*)(p + i) = cl_float4(in_tf32(v.x), in_tf32(v.y), in_tf32(v.z), in_tf32(v.w));
}
"""
_FP16 = """\
inline void copy_raw(ushort* to, const ushort4* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :: "r"((uint)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 8 : 0)
               : "memory");
}
#define commit_copies() asm volatile("cp.async.commit_group;" ::: "memory")
#define wait_copies(n) asm volatile("cp.async.wait_group " #n ";" ::: "memory")
#define keep_one_fp16(v, i, p) vstore_half(v, i, (half*)(p))
#define keep_raw(v, i, p) *(ushort4*)((p) + (i)) = (v)
#define keep_fp16(v, i, p) vstore_half4(v, 0, (half*)((p) + (i)))
"""
_MMA = "row.col.f32"

FURTHER = (
    (r"half|_fp16", _HALVES),
    ("_tf32", _TF32 + _matrix_unit("tf32", "float", f"m16n8k8.{_MMA}.tf32.tf32.f32")),
    ("_fp16", _FP16 + _matrix_unit("fp16", "ushort", f"m16n8k16.{_MMA}.f16.f16.f32")),
)
"""Preludes for texts in which a pattern occurs: older GPUs do not have all instructions."""

_WORDS = (
    (re.compile(r"\((float2|float4|ushort4)\)\("), r"\1("),
    (re.compile(r"\(int([24])\)\("), r"cl_mask\1("),
    (re.compile(r"\.s([0-3])\b"), lambda found: "." + "xyzw"[int(found[1])]),
    (re.compile(r"\.(lo|hi)\b"), r".\1()"),
    (
        re.compile(
            r"__attribute__\(\(reqd_work_group_size\((\d+), (\d+), (\d+)\)\)\)\n__kernel void"
        ),
        r"__kernel void __launch_bounds__(\1 * \2 * \3)",
    ),
    (re.compile(r"(__kernel void [^{]*\{)"), r"\1 WAIT_FOR_KERNELS;"),
)


def in_cpp(source: str) -> str:
    """The text of a kernel in CUDA's C++, for NVRTC with functions of the device as default."""
    for pattern, text in _WORDS:
        source = pattern.sub(text, source)
    return "".join(
        [_PRELUDE, *(text for words, text in FURTHER if re.search(words, source)), source]
    )
