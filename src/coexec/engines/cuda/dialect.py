"""OpenCL C as C++ for NVRTC: a prelude with OpenCL's vectors and functions, and some words.

C++ has neither these vectors nor literals such as ``(float4)(a, b, c, d)``, and its ``?:`` does not
select lane by lane, for which the texts use ``SELECT``. Otherwise the text of a kernel stays as it
is. Only vectors of 2 and 4 floats are known, as blocks have 4 channels on GPUs.
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

_WORDS = (
    (re.compile(r"\(float([24])\)\("), r"float\1("),
    (re.compile(r"\(int([24])\)\("), r"cl_mask\1("),
    (re.compile(r"\.s([0-3])\b"), lambda found: "." + "xyzw"[int(found[1])]),
    (re.compile(r"\.(lo|hi)\b"), r".\1()"),
    (
        re.compile(
            r"__attribute__\(\(reqd_work_group_size\((\d+), (\d+), (\d+)\)\)\)\n__kernel void"
        ),
        r"__kernel void __launch_bounds__(\1 * \2 * \3)",
    ),
)


def in_cpp(source: str) -> str:
    """The text of a kernel in CUDA's C++, for NVRTC with functions of the device as default."""
    for pattern, text in _WORDS:
        source = pattern.sub(text, source)
    return _PRELUDE + source
