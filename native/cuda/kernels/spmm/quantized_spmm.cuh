// SpMM of an X of 8 bits on Tensor Cores over panels of 16 or 32 rows. As in panel_spmm.cuh a block
// takes an item of the work list and slices of X: 128 bytes of every row, which are 128 features
// here. byte_tile.h has the maps of addresses and registers. A panel of 16 rows is one warp's. The
// sums of 32 rows and 128 features take too many registers for one: two warps share the rows of X
// in shared memory, and each multiplies half of their features.
//
// Integers times bits are multiplied as bytes, and their sums are exact. e4m3, and integers times
// stored values, become float16 in registers; their sums are float32. The column weights of rank-1
// matrices are in X already (common/quantize.cu).
#pragma once

#include <type_traits>

#include "device/async.cuh"
#include "device/eight_bit.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "gnnsparse/byte_tile.h"
#include "gnnsparse/quantized_problem.h"
#include "kernels/common/byte_pairs.cuh"
#include "kernels/spmm/panel_operand.cuh"
#include "kernels/spmm/panel_ring.cuh"
#include "kernels/spmm/panel_store.cuh"
#include "kernels/spmm/panel_warp.cuh"
#include "kernels/spmm/quantized_store.cuh"

namespace gnnsparse::cuda {

// Bits that become bytes of 0 and 1.
template <int kRows>
struct UnitBytes : UnitPanel<Precision::kFp16, kRows> {
  static constexpr float kScale = 1.0f;
};

// Of a block.
template <class Source>
inline constexpr int kQuantizedWarps = Source::kRows / 16;

// Blocks that must fit on a multiprocessor, in whole warps of its four parts: registers are the
// limit. Two K tiles of a warp are on their way, where operand A comes with them, and three of two
// warps, which wait for each other (notes/log.md).
template <class Source>
constexpr int quantized_blocks() {
  return resident_blocks((Source::kExact ? 16 : 12) / kQuantizedWarps<Source>);
}
template <class Source>
inline constexpr int kQuantizedStages = (Source::kExact ? 3 : 2) + (kQuantizedWarps<Source> - 1);

// The sums of a slice of a panel, and one K tile's part in them.
template <EightBit kType, class Source>
class ByteProduct {
 public:
  static constexpr bool kExactSums = kType == EightBit::kInt8 && Source::kExact;
  static constexpr int kRowTiles = Source::kRows / 16;
  static constexpr int kChunks = kByteChunks / kQuantizedWarps<Source>;  // of this warp
  static constexpr int kMmas = kPanelKTile / FragmentM16N8K16::kK;       // of float16
  using Sum = std::conditional_t<kExactSums, int32_t, float>;
  using Operand = PanelOperand<Source>;

  __device__ ByteProduct(int lane, int warp)
      : first_(byte_matrix_address(byte_matrix_address(lane), kChunks * warp)) {}

  // Feature i of the lane's four in a chunk, in its row `upper` of row tile m.
  __device__ Sum sum(int m, int chunk, int upper, int i) const {
    return sums_[m][chunk][i & 1][2 * upper + (i >> 1)];
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles * kChunks * 8; ++i) {
      sums_[i / 8 / kChunks][i / 8 % kChunks][i / 4 % 2][i % 4] = 0;
    }
  }

  __device__ void add(uint32_t rows, const Operand& operand) {
    if constexpr (kExactSums) {
      add_integers(rows, operand);
    } else {
      add_halves(rows, operand);
    }
  }

 private:
  __device__ void add_integers(uint32_t rows, const Operand& operand) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint32_t stored = operand.bits(Source::brick(m));
      const uint32_t spread = spread_pairs<Source::kBrickRows>(stored, Source::tile(m));
#pragma unroll
      for (int r = 0; r < 4; ++r) a[m][r] = byte_units(spread, r);
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t x[4];
      load_matrices(byte_matrix_address(rows + first_, chunk), x);
      const uint32_t even[2] = {select_bytes<0x6420>(x[0], x[1]), select_bytes<0x6420>(x[2], x[3])};
      const uint32_t odd[2] = {select_bytes<0x7531>(x[0], x[1]), select_bytes<0x7531>(x[2], x[3])};
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(sums_[m][chunk][0], a[m], even);
        mma(sums_[m][chunk][1], a[m], odd);
      }
    }
  }

  __device__ void add_halves(uint32_t rows, const Operand& operand) {
    uint32_t a[kMmas][kRowTiles][4];
#pragma unroll
    for (int q = 0; q < kMmas; ++q) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) operand.registers(m, q, a[q][m]);
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t x[4];
      load_matrices(byte_matrix_address(rows + first_, chunk), x);
#pragma unroll
      for (int q = 0; q < kMmas; ++q) {
        uint32_t b[2][2];  // even features, odd ones
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
          const uint32_t bytes = x[2 * q + upper] ^ (kType == EightBit::kInt8 ? kShiftedInt8 : 0);
          by_parity<kType>(bytes, &b[0][upper], &b[1][upper]);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma<Arithmetic::kFp16>(sums_[m][chunk][0], a[q][m], b[0]);
          mma<Arithmetic::kFp16>(sums_[m][chunk][1], a[q][m], b[1]);
        }
      }
    }
  }

  uint32_t first_;
  Sum sums_[kRowTiles][kChunks][2][4] = {};
};

template <EightBit kType, class Source>
struct QuantizedParts {
  using Problem = QuantizedLaunch;
  static constexpr int kWarps = kQuantizedWarps<Source>;
  using Ring = PanelRing<ByteTile, Source, kChunkBytes, kQuantizedStages<Source>, kWarps>;
  using Operand = PanelOperand<Source>;
  using Product = ByteProduct<kType, Source>;
  using Rows = PanelRows<Source>;
  static constexpr int kFeatures = kByteFeatures;

  static __device__ void expect(const QuantizedLaunch&, const PanelItem&, const Rows&, int) {}
  static __device__ void store(const QuantizedLaunch& p, const PanelItem& item, const Rows& rows,
                               int lane, int warp, int slice, const Product& product,
                               uint32_t own) {
    store_bytes_slice<kWarps>(p, item, rows, lane, warp, slice, product, own);
  }
};

template <EightBit kType, class Source>
__global__ void __launch_bounds__(kWarp* kQuantizedWarps<Source>, quantized_blocks<Source>())
    quantized_spmm_kernel(const __grid_constant__ QuantizedLaunch p) {
  using Parts = QuantizedParts<kType, Source>;
  __shared__ __align__(1024) uint4 shared[PanelPipeline<Parts>::kSharedChunks];
  run_panel<Parts>(p, static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
}

template <EightBit kType, class Source>
void launch_quantized_spmm(const QuantizedSpmm& p, Stream stream) {
  using Parts = QuantizedParts<kType, Source>;
  const auto kernel = quantized_spmm_kernel<kType, Source>;
  const dim3 grid = panel_grid<Parts>(p, "spmm_quantized");
  static std::atomic<uint64_t> prepared{0};
  prefer_shared_memory(kernel, 0, prepared);
  launch("spmm_quantized", kernel, grid, kWarp * Parts::kWarps, stream, QuantizedLaunch(p));
}

}  // namespace gnnsparse::cuda
