// X to 8 bits, in two kernels: the largest magnitude of each feature, then the numbers. Magnitudes
// are compared by their bits, as integers, so that the order in which blocks come changes nothing.
#include "device/launch.cuh"
#include "device/vector.cuh"
#include "gnnsparse/quantized_problem.h"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFour = 4;  // features of a thread

// Four elements of a row, times its weight; zeros behind the last feature.
__device__ __forceinline__ void load_four(const Quantize& p, int64_t row, int64_t column,
                                          float (&v)[kFour]) {
  const int64_t first = row * p.row_stride + column * p.column_stride;
  const bool whole = p.column_stride == 1 && column + kFour <= p.n;
  if (whole && p.x_dtype == DType::kFloat32 &&
      (reinterpret_cast<uintptr_t>(p.x) + 4 * first) % 16 == 0) {
    const float4 four =
        __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(p.x) + first));
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  } else if (whole && p.x_dtype != DType::kFloat32 &&
             (reinterpret_cast<uintptr_t>(p.x) + 2 * first) % 8 == 0) {
    const uint2 two =
        __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(p.x) + first));
    const uint32_t words[2] = {two.x, two.y};
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const auto bits = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
      v[i] = p.x_dtype == DType::kFloat16 ? decode<DType::kFloat16>(bits)
                                          : decode<DType::kBFloat16>(bits);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      v[i] = column + i < p.n ? load_scalar(p.x, p.x_dtype, first + i * p.column_stride) : 0.0f;
    }
  }
  if (p.weights == nullptr) return;
  const float weight = __ldg(p.weights + row);
#pragma unroll
  for (int i = 0; i < kFour; ++i) v[i] *= weight;
}

// Four features of every parts-th row a thread.
struct Place {
  int64_t row;
  int64_t column;
};
__device__ __forceinline__ Place place_of(const Quantize& p) {
  const int64_t fours = p.stride / kFour;
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  return {item / fours, item % fours * kFour};
}

__global__ void __launch_bounds__(kThreads) peaks_kernel(const Quantize p) {
  const Place place = place_of(p);
  if (place.row >= p.parts) return;
  int32_t peak[kFour] = {};
#pragma unroll 4
  for (int64_t row = place.row; row < p.rows; row += p.parts) {
    float v[kFour];
    load_four(p, row, place.column, v);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      peak[i] = max(peak[i], static_cast<int32_t>(float_bits(v[i]) & 0x7fffffffu));
    }
  }
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    // Most threads see that another one has found more.
    int32_t* best = p.peaks + place.column + i;
    if (peak[i] > *best) atomicMax(best, peak[i]);
  }
}

template <EightBit kType, bool kStochastic>
__global__ void __launch_bounds__(kThreads) numbers_kernel(const Quantize p) {
  const Place place = place_of(p);
  if (place.row >= p.parts) return;
  float inverse[kFour];
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    const int64_t feature = place.column + i;
    const FeatureScale found = feature_scale(static_cast<uint32_t>(p.peaks[feature]), kType);
    inverse[i] = feature < p.n ? found.inverse : 0.0f;
    if (place.row == 0) p.scale[feature] = feature < p.n ? found.scale : 0.0f;
  }
#pragma unroll 4
  for (int64_t row = place.row; row < p.rows; row += p.parts) {
    float v[kFour];
    load_four(p, row, place.column, v);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      const float uniform = kStochastic ? rounding_uniform(p.key, row, place.column + i) : 0.0f;
      word |= eight_bit_code<kType, kStochastic>(v[i] * inverse[i], uniform) << 8 * i;
    }
    *reinterpret_cast<uint32_t*>(p.out + row * p.stride + place.column) = word;
  }
}

}  // namespace

void quantize(const Quantize& p, Stream stream) {
  const auto run = [&](const char* call, auto kernel) {
    const int64_t items = p.parts * (p.stride / kFour);
    launch(call, kernel, grid_of(items, kThreads, 1, call), kThreads, stream, p);
  };
  run("quantize_peaks", peaks_kernel);
  const bool integers = p.type == EightBit::kInt8;
  if (integers && p.stochastic) return run("quantize", numbers_kernel<EightBit::kInt8, true>);
  if (integers) return run("quantize", numbers_kernel<EightBit::kInt8, false>);
  if (p.stochastic) return run("quantize", numbers_kernel<EightBit::kE4m3, true>);
  run("quantize", numbers_kernel<EightBit::kE4m3, false>);
}

}  // namespace gnnsparse::cuda
