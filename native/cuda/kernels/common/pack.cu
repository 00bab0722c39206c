// Brings a dense matrix into the form the kernels gather from: storage type, rows padded to whole
// 16-byte vectors, each row multiplied by its weight where the matrix's weights are rank-1, and
// rounded to tf32 where that is asked for.
#include "device/launch.cuh"
#include "device/vector.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

// `kBytes` neighbouring bytes of a row of X as words, where kAccess divides the address.
template <int kBytes, int kAccess>
__device__ __forceinline__ void load_words(const char* at, uint32_t (&words)[kBytes / 4]) {
  if constexpr (kAccess == 16) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(at) + i);
      words[4 * i] = four.x;
      words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z;
      words[4 * i + 3] = four.w;
    }
  } else if constexpr (kAccess == 8) {
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i) {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(at) + i);
      words[2 * i] = two.x;
      words[2 * i + 1] = two.y;
    }
  } else if (kAccess == 4 || reinterpret_cast<uintptr_t>(at) % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i)
      words[i] = __ldg(reinterpret_cast<const uint32_t*>(at) + i);
  } else {
    // Between two halves whole words.
    uint32_t before = __ldg(reinterpret_cast<const uint16_t*>(at));
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) {
      const char* next = at + 4 * i + 2;
      const uint32_t word = i + 1 < kBytes / 4
                                ? __ldg(reinterpret_cast<const uint32_t*>(next))
                                : uint32_t{__ldg(reinterpret_cast<const uint16_t*>(next))};
      words[i] = before | word << 16;
      before = word >> 16;
    }
  }
}

// A vector of neighbouring elements.
template <int kElements, int kAccess>
__device__ __forceinline__ void load_elements(const Pack& p, int64_t at, float (&v)[kElements]) {
  if (p.x_dtype == DType::kFloat32) {
    uint32_t words[kElements];
    load_words < 4 * kElements,
        kAccess<4 ? 4 : kAccess>(reinterpret_cast<const char*>(static_cast<const float*>(p.x) + at),
                                 words);
#pragma unroll
    for (int i = 0; i < kElements; ++i) v[i] = __uint_as_float(words[i]);
    return;
  }
  uint32_t words[kElements / 2];
  load_words<2 * kElements, kAccess == 16 && kElements == 4 ? 8 : kAccess>(
      reinterpret_cast<const char*>(static_cast<const uint16_t*>(p.x) + at), words);
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const auto bits = static_cast<uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16);
    v[i] = p.x_dtype == DType::kFloat16 ? __half2float(__ushort_as_half(bits))
                                        : __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
}

// A vector of the result a thread. Elements in the padding become zero. `vectors` of them make a
// row; what neighbouring lanes read lies side by side, so that it passes through L1 once.
template <int kElements, int kAccess>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ Pack p, uint32_t vectors, bool few) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  // A division of 64 bits takes as long as all the rest.
  const int64_t row = few ? static_cast<uint32_t>(item) / vectors : item / vectors;
  const int64_t column = (item - row * vectors) * kElements;
  if (row >= p.rows) return;
  const float scale = p.scale != nullptr ? __ldg(p.scale + row) : 1.0f;
  float v[kElements];
  const int64_t first = row * p.row_stride + column * p.column_stride;
  if (p.column_stride == 1 && column + kElements <= p.n) {
    load_elements<kElements, kAccess>(p, first, v);
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      v[i] = column + i < p.n ? load_scalar(p.x, p.x_dtype, first + i * p.column_stride) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) v[i] *= scale;
  if (p.out.rounded) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) v[i] = bits_float(to_tf32(float_bits(v[i])));
  }
  store_row(p.out, row, column, p.out.stride, v);
}

// The most bytes that a thread may load at once.
template <int kElements>
auto kernel_for(const Pack& p) {
  const auto places =
      reinterpret_cast<uintptr_t>(p.x) | static_cast<uintptr_t>(p.row_stride * size_of(p.x_dtype));
  if (places % 16 == 0) return pack_kernel<kElements, 16>;
  if (places % 8 == 0) return pack_kernel<kElements, 8>;
  return places % 4 == 0 ? pack_kernel<kElements, 4> : pack_kernel<kElements, 2>;
}

}  // namespace

void pack(const Pack& problem, Stream stream) {
  const int elements = problem.out.dtype == DType::kFloat32 ? 4 : 8;
  const auto vectors = static_cast<uint32_t>(problem.out.stride / elements);
  const int64_t items = problem.rows * int64_t{vectors};
  const auto kernel = elements == 4 ? kernel_for<4>(problem) : kernel_for<8>(problem);
  launch("pack", kernel, grid_of(items, kThreads, 1, "pack"), kThreads, stream, problem, vectors,
         items + kThreads <= UINT32_MAX);
}

}  // namespace gnnsparse::cuda
