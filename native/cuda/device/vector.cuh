// 16-byte vectors of float32, float16 and bfloat16, and their conversions to float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gnnsparse/types.h"
#include "gnnsparse/window_tile.h"

namespace gnnsparse::cuda {

__device__ __forceinline__ Vec16 load_vec16(const void* p) {
  const uint4 v = __ldg(static_cast<const uint4*>(p));
  return {{v.x, v.y, v.z, v.w}};
}

// 8 bytes; the other half is zero.
__device__ __forceinline__ Vec16 load_vec8(const void* p) {
  const uint2 v = __ldg(static_cast<const uint2*>(p));
  return {{v.x, v.y, 0, 0}};
}

// The stored elements of 16 bytes as floats.
template <DType kStorage>
__device__ __forceinline__ void decode(
    const Vec16& v, float (&out)[16 / sizeof(typename StorageTraits<kStorage>::Bits)]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kStorage == DType::kFloat16) {
      __half2 pair;
      memcpy(&pair, &v.word[i], sizeof pair);
      const float2 f = __half22float2(pair);
      out[2 * i] = f.x;
      out[2 * i + 1] = f.y;
    } else if constexpr (kStorage == DType::kBFloat16) {
      out[2 * i] = __uint_as_float(v.word[i] << 16);
      out[2 * i + 1] = __uint_as_float(v.word[i] & 0xffff0000u);
    } else {
      out[i] = __uint_as_float(v.word[i]);
    }
  }
}

// One stored element as a float.
template <DType kStorage>
__device__ __forceinline__ float decode(typename StorageTraits<kStorage>::Bits bits) {
  if constexpr (kStorage == DType::kFloat16) {
    return __half2float(__ushort_as_half(bits));
  } else if constexpr (kStorage == DType::kBFloat16) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  } else {
    return __uint_as_float(bits);
  }
}

// A decoded element as it enters a product of the arithmetic: tf32 alone is stored unrounded.
template <Precision P>
__device__ __forceinline__ float round_decoded(float x) {
  if constexpr (kArithmetic<P> == Arithmetic::kTf32) return bits_float(to_tf32(float_bits(x)));
  return x;
}

__device__ __forceinline__ uint32_t pack(__half2 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ __forceinline__ uint32_t pack(__nv_bfloat162 pair) {
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// Two numbers in a type of 16 bits.
template <DType kStorage>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(kStorage == DType::kFloat16 || kStorage == DType::kBFloat16, "16 bits");
  if constexpr (kStorage == DType::kFloat16) {
    return pack(__floats2half2_rn(low, high));
  } else {
    return pack(__floats2bfloat162_rn(low, high));
  }
}

// Floats as the stored elements of 16 bytes, rounded to nearest.
template <DType kStorage, int kElements>
__device__ __forceinline__ void encode(const float (&v)[kElements], uint32_t (&words)[4]) {
  static_assert(kElements * size_of(kStorage) == 16, "16 bytes");
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kStorage == DType::kFloat32) {
      words[i] = __float_as_uint(v[i]);
    } else {
      words[i] = pack_pair<kStorage>(v[2 * i], v[2 * i + 1]);
    }
  }
}

// The elements of a vector, and one element, as they enter a product.
template <Precision P>
__device__ __forceinline__ void to_floats(const Vec16& v, float (&out)[kPerVector<P>]) {
  decode<PrecisionTraits<P>::kStorage>(v, out);
#pragma unroll
  for (int i = 0; i < kPerVector<P>; ++i) out[i] = round_decoded<P>(out[i]);
}
template <Precision P>
__device__ __forceinline__ float scalar_to_float(StorageOf<P> bits) {
  return round_decoded<P>(decode<PrecisionTraits<P>::kStorage>(bits));
}

__device__ __forceinline__ float load_scalar(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(data)[at]);
    case DType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

__device__ __forceinline__ void store_scalar(void* data, DType dtype, int64_t at, float value) {
  switch (dtype) {
    case DType::kFloat16:
      static_cast<__half*>(data)[at] = __float2half_rn(value);
      break;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
      break;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

// Writes kCount (4, or whole eights) consecutive elements at `at`, of which those before column
// `limit - col` exist; 16- and 8-byte stores where the address allows.
template <int kCount>
__device__ __forceinline__ void store_row(const MutableDenseView& y, int64_t row, int64_t col,
                                          int64_t limit, const float (&v)[kCount]) {
  const int64_t at = row * y.stride + col;
  const bool whole = col + kCount <= limit;
  if (y.dtype == DType::kFloat32) {
    float* p = static_cast<float*>(y.data) + at;
    if (whole && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        *reinterpret_cast<float4*>(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
      }
      return;
    }
  } else {
    uint32_t words[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      words[i] = y.dtype == DType::kFloat16 ? pack(__floats2half2_rn(v[2 * i], v[2 * i + 1]))
                                            : pack(__floats2bfloat162_rn(v[2 * i], v[2 * i + 1]));
    }
    uint16_t* p = static_cast<uint16_t*>(y.data) + at;
    if (whole && reinterpret_cast<uintptr_t>(p) % (kCount == 4 ? 8 : 16) == 0) {
      if constexpr (kCount % 8 == 0) {
#pragma unroll
        for (int i = 0; i < kCount / 2; i += 4) {
          *reinterpret_cast<uint4*>(p + 2 * i) =
              make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
        }
      } else {
        // Results of the panel kernel leave L2 first: the rows of X are still in use.
        __stcs(reinterpret_cast<uint2*>(p), make_uint2(words[0], words[1]));
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (col + i < limit) store_scalar(y.data, y.dtype, at + i, v[i]);
  }
}

// Writes two neighbouring elements, of which those before column `limit - col` exist.
__device__ __forceinline__ void store_pair(const MutableDenseView& y, int64_t row, int64_t col,
                                           int64_t limit, float first, float second) {
  const int64_t at = row * y.stride + col;
  const bool whole = col + 2 <= limit && at % 2 == 0;
  if (whole && y.dtype == DType::kFloat32 && reinterpret_cast<uintptr_t>(y.data) % 8 == 0) {
    *reinterpret_cast<float2*>(static_cast<float*>(y.data) + at) = make_float2(first, second);
  } else if (whole && y.dtype != DType::kFloat32 && reinterpret_cast<uintptr_t>(y.data) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(y.data) + at) =
        y.dtype == DType::kFloat16 ? pack(__floats2half2_rn(first, second))
                                   : pack(__floats2bfloat162_rn(first, second));
  } else {
    store_scalar(y.data, y.dtype, at, first);
    if (col + 1 < limit) store_scalar(y.data, y.dtype, at + 1, second);
  }
}

}  // namespace gnnsparse::cuda
