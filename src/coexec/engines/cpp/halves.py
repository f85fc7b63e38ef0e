"""What OpenCL does with ``half``, in C++, where a half is a bfloat16: loads, stores, and products.

``dot`` adds the products of pairs of halves to a float. A pair is an ``int`` (`kernels.pairs`). One
instruction of AVX512-BF16 or Armv8.6 computes it; elsewhere it is two multiply-adds.
"""

INTRINSICS = """\
#ifdef __AVX512BF16__
#include <immintrin.h>
#elif defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#include <arm_neon.h>
#endif
"""
"""Comes before anything else. It takes a compiler 0.2 s."""

_SCALARS = """\
struct half { ushort bits; };
inline float vload_half(long i, const half* p) { return as_float(p[i].bits << 16); }
inline void vstore_half(float v, long i, half* p) {
  const int b = as_int(v);
  p[i].bits = v != v ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
inline int vload_pair(long i, const half* p) {
  int pair;
  __builtin_memcpy(&pair, p + i, sizeof pair);
  return pair;
}
"""

_VECTORS = """\
typedef ushort ushortN __attribute__((vector_size(2 * N)));
typedef ushort any_ushortN __attribute__((vector_size(2 * N), aligned(2), may_alias));
typedef int any_intN __attribute__((vector_size(4 * N), aligned(2), may_alias));
inline floatN vload_halfN(long i, const half* p) {
  return (floatN)(__builtin_convertvector(((const any_ushortN*)p)[i], intN) << 16);
}
inline void vstore_halfN(floatN v, long i, half* p) {STORE
  const intN b = (intN)v, nan = intN{} + 0x7fc0;
  const intN rounded = v != v ? nan : (b + 0x7fff + (b >> 16 & 1)) >> 16;
  ((any_ushortN*)p)[i] = __builtin_convertvector(rounded, ushortN);
}
inline intN vload_pairsN(long i, const half* p) { return ((const any_intN*)p)[i]; }
inline floatN dot(floatN sum, intN w, int f) {DOT
  sum += (floatN)(w << 16) * as_float(f << 16);
  return sum + (floatN)(w & ~0xffff) * as_float(f & ~0xffff);
}
"""

_INSTRUCTIONS = {
    16: {
        "STORE": """
#ifdef __AVX512BF16__
  ((any_ushort16*)p)[i] = (ushort16)_mm512_cvtneps_pbh((__m512)v);
  return;
#endif""",
        "DOT": """
#ifdef __AVX512BF16__
  return (float16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)(int16{} + f));
#endif""",
    },
    4: {
        "DOT": """
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return (float4)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)(int4{} + f));
#endif"""
    },
}
"""By width, the instructions that a processor may have. The one for stores also leaves registers to
the sums of a loop, as it needs no constants."""


def _of_width(width: int) -> str:
    text = _VECTORS.replace("N", str(width))
    for place in ("STORE", "DOT"):
        text = text.replace(place, _INSTRUCTIONS.get(width, {}).get(place, ""))
    return text


PRELUDE = "".join([_SCALARS, *map(_of_width, (2, 4, 8, 16))])
"""Comes behind the prelude of `dialect`."""
