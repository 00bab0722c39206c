// Where the sums of a panel times an X of 8 bits go. A lane has four neighbouring features of each
// chunk, which it writes as they are where y has them at multiples of their size; otherwise they
// pass through shared memory. Sums of a cut panel go to the workspace, integers or floats.
#pragma once

#include "device/async.cuh"
#include "device/vector.cuh"
#include "gnnsparse/byte_tile.h"
#include "gnnsparse/quantized_problem.h"
#include "kernels/common/panel_item.cuh"
#include "kernels/spmm/panel_store.cuh"

namespace gnnsparse::cuda {

// A product as its kernel is launched.
struct QuantizedLaunch : QuantizedSpmm {
  bool aligned;  // four neighbouring results of a row are whole and begin at a multiple of their
                 // size

  explicit QuantizedLaunch(const QuantizedSpmm& p) : QuantizedSpmm(p) {
    const int64_t size = size_of(p.y.dtype);
    const int64_t stride = p.y.stride * size;
    aligned = p.n % 4 == 0 && (reinterpret_cast<uintptr_t>(p.y.data) | stride) % (4 * size) == 0;
  }
};

// Four results of a lane. They leave L2 first: gathered rows are still in use.
template <DType kDType>
__device__ __forceinline__ void store_four(char* to, const float (&v)[4]) {
  if constexpr (kDType == DType::kFloat32) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(v[0], v[1], v[2], v[3]));
  } else {
    __stcs(reinterpret_cast<uint2*>(to),
           make_uint2(pack_pair<kDType>(v[0], v[1]), pack_pair<kDType>(v[2], v[3])));
  }
}

// One warp's part of a slice of a panel's results, for a lane.
template <class Source, class Product>
class ByteResults {
 public:
  using Sum = typename Product::Sum;
  static constexpr int kChunks = Product::kChunks;
  static constexpr int kFeatures = 16 * kChunks;
  static constexpr uint32_t kOwnBytes = 8 * kFeatures * sizeof(float);  // of shared memory

  __device__ ByteResults(const QuantizedLaunch& p, const PanelRows<Source>& rows, int lane,
                         int warp, int slice, const Product& product)
      : p_(p),
        rows_(rows),
        lane_(lane),
        first_(slice * kByteFeatures + warp * kFeatures),
        product_(product) {}

  // Row g of each eight, g = lane / 4, to the workspace.
  __device__ void store_partial(int partial) const {
    const int64_t stride = partial_stride(p_.n);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int64_t row = int64_t{partial} * Source::kRows + 8 * group + (lane_ >> 2);
      float* to = p_.partial + row * stride + first_ + byte_feature(lane_, 0);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (first_ + byte_feature(lane_, chunk) >= p_.n) continue;
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Sum value = sum(group, chunk, i);
          memcpy(&words[i], &value, sizeof value);
        }
        *reinterpret_cast<uint4*>(to + 16 * chunk) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }

  template <DType kDType>
  __device__ void store_aligned() const {
    constexpr int kSize = kDType == DType::kFloat32 ? 4 : 2;
    const int feature = first_ + byte_feature(lane_, 0);
    char* to[kGroups];  // null behind the last row
    float factor[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int row = rows_.id(8 * group + (lane_ >> 2));
      factor[group] = rows_.scale(8 * group + (lane_ >> 2));
      to[group] =
          row < 0 ? nullptr : static_cast<char*>(p_.y.data) + (row * p_.y.stride + feature) * kSize;
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (feature + 16 * chunk >= p_.n) break;
      const float4 scale = load_scale(feature + 16 * chunk);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float v[4];
        results(group, chunk, scale, factor[group], v);
        if (to[group] != nullptr) store_four<kDType>(to[group] + 16 * chunk * kSize, v);
      }
    }
  }

  // Eight rows at a time by way of `own`, from where the warp writes row by row.
  __device__ void store_any(uint32_t own) const {
    const int g = lane_ >> 2;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float factor = rows_.scale(8 * group + g);
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int feature = byte_feature(lane_, chunk);
        float v[4] = {};
        if (first_ + feature < p_.n) {
          results(group, chunk, load_scale(first_ + feature), factor, v);
        }
        store_shared(own + place(g, feature / 4), make_uint4(float_bits(v[0]), float_bits(v[1]),
                                                             float_bits(v[2]), float_bits(v[3])));
      }
      __syncwarp();
#pragma unroll 1
      for (int first = 0; first < 8; first += kWarp / kRowLanes) {
        // The compiler does not know that a lane is below 32.
        const int i = kRowLanes == kWarp ? first : first + lane_ / kRowLanes;
        const int four = kRowLanes == kWarp ? lane_ : lane_ % kRowLanes;
        const int row = rows_.id(8 * group + i);
        const int64_t feature = first_ + 4 * four;
        uint32_t words[4];
        load_shared(own + place(i, four), words);
        const float v[4] = {bits_float(words[0]), bits_float(words[1]), bits_float(words[2]),
                            bits_float(words[3])};
        if (row >= 0 && feature < p_.n) store_row(p_.y, row, feature, p_.n, v);
      }
      __syncwarp();  // all have read
    }
  }

 private:
  static constexpr int kGroups = Source::kRows / 8;
  static constexpr int kRowLanes = kFeatures / 4;  // that write a row

  // Where `own` has four features of a row: rows that one instruction reaches lie in other banks.
  static __device__ uint32_t place(int row, int four) {
    return 16 * (kRowLanes * row + (four ^ 4 * (row & 1)));
  }

  __device__ float4 load_scale(int feature) const {
    return __ldg(reinterpret_cast<const float4*>(p_.scale + feature));
  }
  __device__ Sum sum(int group, int chunk, int i) const {
    return product_.sum(group / 2, chunk, group & 1, i);
  }
  __device__ void results(int group, int chunk, const float4& scale, float factor,
                          float (&v)[4]) const {
    const float scales[4] = {scale.x, scale.y, scale.z, scale.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = static_cast<float>(sum(group, chunk, i)) * scales[i] * factor;
    }
  }

  const QuantizedLaunch& p_;
  const PanelRows<Source>& rows_;
  int lane_;
  int first_;  // feature of the slice
  const Product& product_;
};

// Writes the sums of slice `slice` of a panel. `shared` is a stage of the block's kWarps warps that
// no copy is on its way to.
template <int kWarps, class Source, class Product>
__device__ __forceinline__ void store_bytes_slice(const QuantizedLaunch& p, const PanelItem& item,
                                                  const PanelRows<Source>& rows, int lane, int warp,
                                                  int slice, const Product& product,
                                                  uint32_t shared) {
  lane = pin_register(lane);  // otherwise registers hold all places while K tiles are multiplied
  using Results = ByteResults<Source, Product>;
  const Results results(p, rows, lane, warp, slice, product);
  if (item.partial >= 0) return results.store_partial(item.partial);
  if (!p.aligned) {
    meet<kWarps>();  // all have read what was multiplied last
    static_assert(kWarps * Results::kOwnBytes <= kTileSliceBytes, "a stage has room");
    return results.store_any(shared + Results::kOwnBytes * warp);
  }
  switch (p.y.dtype) {
    case DType::kFloat16:
      return results.template store_aligned<DType::kFloat16>();
    case DType::kBFloat16:
      return results.template store_aligned<DType::kBFloat16>();
    case DType::kFloat32:
      return results.template store_aligned<DType::kFloat32>();
  }
}

}  // namespace gnnsparse::cuda
