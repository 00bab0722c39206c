#include "kernels/spmm/quantized_spmm.cuh"

namespace gnnsparse::cuda {
namespace {

constexpr int kThreads = 256;

// Four features of one row of a cut panel a thread: its parts are added up, integers exactly, and
// only then become float32.
template <class Part, class Total>
__global__ void __launch_bounds__(kThreads) quantized_reduce_kernel(const QuantizedSpmm p) {
  const Cut cut = p.work.cuts[blockIdx.x];
  const int64_t stride = partial_stride(p.n);
  const int64_t height = p.a.shape.panel;
  const int64_t item = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t column = item % (stride / 4) * 4;
  const int64_t in_panel = item / (stride / 4);
  const int64_t first =
      p.a.panel_rows != nullptr ? p.a.panel_rows[cut.index] : int64_t{cut.index} * height;
  const int64_t row = first + in_panel;
  if (in_panel >= height || row >= p.a.rows || column >= p.n) return;
  Total sum[4] = {};
  const float* part = p.partial + (int64_t{cut.first} * height + in_panel) * stride + column;
  wait_for_previous();
  for (int i = 0; i < cut.count; ++i, part += height * stride) {
    const uint4 words = *reinterpret_cast<const uint4*>(part);
    Part four[4];
    memcpy(four, &words, sizeof four);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] += four[j];
  }
  // Ones are twos in float16 (panel_source.h), and ones in bytes and in stored values.
  const bool twos = p.type != EightBit::kInt8 && p.a.encoding == Encoding::kBitmap;
  const float unit = twos ? kUnitScale<Precision::kFp16> : 1.0f;
  const float factor = p.stored.row_scale != nullptr ? p.stored.row_scale[row] * unit : unit;
  float v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = static_cast<float>(sum[j]) * p.scale[column + j] * factor;
  store_row(p.y, p.stored.row_ids != nullptr ? p.stored.row_ids[row] : row, column, p.n, v);
}

void reduce_quantized(const QuantizedSpmm& p, Stream stream) {
  if (p.work.cut_count == 0) return;
  const int64_t items = p.a.shape.panel * partial_stride(p.n) / 4;
  const dim3 grid =
      grid_of(p.work.cut_count, 1, ceil_div<int64_t>(items, kThreads), "reduce_quantized");
  const auto kernel = p.integer_sums() ? quantized_reduce_kernel<int32_t, int64_t>
                                       : quantized_reduce_kernel<float, float>;
  launch_early("reduce_quantized", kernel, grid, kThreads, stream, p);
}

}  // namespace

void spmm_quantized(const QuantizedSpmm& p, Stream stream) {
  constexpr Precision kHalf = Precision::kFp16;
  const bool integers = p.type == EightBit::kInt8;
  if (p.a.encoding != Encoding::kBitmap) {
    (integers ? launch_quantized_spmm<EightBit::kInt8, ValuePanel<kHalf, 16>>
              : launch_quantized_spmm<EightBit::kE4m3, ValuePanel<kHalf, 16>>)(p, stream);
  } else if (integers) {
    (p.a.shape.panel == 32 ? launch_quantized_spmm<EightBit::kInt8, UnitBytes<32>>
                           : launch_quantized_spmm<EightBit::kInt8, UnitBytes<16>>)(p, stream);
  } else {
    launch_quantized_spmm<EightBit::kE4m3, UnitPanel<kHalf, 16>>(p, stream);
  }
  reduce_quantized(p, stream);
}

}  // namespace gnnsparse::cuda
