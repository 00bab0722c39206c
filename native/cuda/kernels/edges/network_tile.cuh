// What the kernels of an edge network share: tiles of 128 edges in shared memory, products of a
// tile with weights that stream through a ring, and the sums of a tile's rows at their targets.
// A warp holds 32 edges x a part of the features as mma.m16n8k16 has them (fragment.h).
#pragma once

#include "device/approximate.cuh"
#include "device/async.cuh"
#include "device/launch.cuh"
#include "device/mma.cuh"
#include "device/vector.cuh"
#include "gnnsparse/edge_network.h"

namespace gnnsparse::cuda {

// Special functions bind where activations are computed: bfloat16 has no room for what one less
// loses, 2^-12.
template <Precision P>
__device__ __forceinline__ float network_sigmoid(float x) {
  if constexpr (P == Precision::kBf16) return 0.5f * tanh_fast(0.5f * x) + 0.5f;
  return reciprocal_fast(1.0f + exp2_fast(-1.44269504f * x));
}

template <Precision P, EdgeActivation kAct>
__device__ __forceinline__ float activated(float x) {
  if constexpr (kAct == EdgeActivation::kRelu) return fmaxf(x, 0.0f);
  if constexpr (kAct == EdgeActivation::kSilu) return x * network_sigmoid<P>(x);
  return 0.5f * x * (1.0f + erff(0.70710678f * x));
}

// The derivative.
template <Precision P, EdgeActivation kAct>
__device__ __forceinline__ float activation_slope(float x) {
  if constexpr (kAct == EdgeActivation::kRelu) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (kAct == EdgeActivation::kSilu) {
    const float s = network_sigmoid<P>(x);
    return s * (1.0f + x * (1.0f - s));
  }
  const float density = 0.39894228f * exp2_fast(-0.72134752f * x * x);
  return 0.5f * (1.0f + erff(0.70710678f * x)) + x * density;
}

template <class Run>
__device__ __forceinline__ void with_activation(EdgeActivation act, const Run& run) {
  switch (act) {
    case EdgeActivation::kSilu:
      return run(std::integral_constant<EdgeActivation, EdgeActivation::kSilu>{});
    case EdgeActivation::kRelu:
      return run(std::integral_constant<EdgeActivation, EdgeActivation::kRelu>{});
    case EdgeActivation::kGelu:
      return run(std::integral_constant<EdgeActivation, EdgeActivation::kGelu>{});
  }
}

struct FloatPair {
  float low, high;
};
template <Precision P>
__device__ __forceinline__ FloatPair unpack_pair(uint32_t word) {
  constexpr DType kStorage = PrecisionTraits<P>::kStorage;
  return {decode<kStorage>(static_cast<uint16_t>(word)),
          decode<kStorage>(static_cast<uint16_t>(word >> 16))};
}

template <Precision Stored, int kPadded>
class NetworkTile {
 public:
  using Shared = NetworkShared<kPadded>;
  static constexpr Precision P = Stored;
  static constexpr int kWidth = kPadded;
  static constexpr int kThreads = Shared::kThreads;
  static constexpr int kPart = kWidth / Shared::kParts;  // features of a warp
  static constexpr int kFragments = kPart / 8;
  // What network_width gives on the GPU that is compiled for; on others there is no code.
  static constexpr bool kRuns =
      kArchitecture.async_copies && Shared::kBytes <= kArchitecture.block_shared_bytes;
  // [16 edges][8 features][register]
  using Sums = float[2][kFragments][4];

  __device__ NetworkTile(const EdgeNetwork& p, int products)
      : p_(p),
        products_(products),
        lane_(static_cast<int>(threadIdx.x % 32)),
        warp_(static_cast<int>(threadIdx.x / 32)) {
    char* memory = dynamic_shared();
    shared_ = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    tiles_[0] = shared_;
    tiles_[1] = shared_ + Shared::kTileBytes;
    for (int i = static_cast<int>(threadIdx.x); i < 3 * kWidth; i += kThreads) {
      store_shared(shared_ + Shared::kVectors + 4 * i, __float_as_uint(p.vectors[i]));
    }
    issue_weights();
    issue_weights();
  }

  // The tile that edges are copied to, and the other one.
  __device__ uint32_t own() const { return tiles_[0]; }
  __device__ uint32_t other() const { return tiles_[1]; }
  __device__ int count() const { return count_; }

  // Asks for the features of a tile's edges.
  __device__ void prefetch_edges(uint32_t to, int64_t tile) {
    if (tile < p_.tiles()) copy_edges(to, p_.e, tile);
    commit_copies();
  }
  __device__ void copy_edges(uint32_t to, const uint16_t* x, int64_t tile) {
    const int64_t first = tile * kNetworkRows;
    copy_rows(to, x, p_.edge_dim, edges_of(tile),
              [&](int r) { return p_.edge_ids == nullptr ? first + r : p_.edge_ids[first + r]; });
  }
  __device__ void copy_sources(uint32_t to) {
    copy_rows(to, p_.q, p_.hidden, count_,
              [&](int r) { return p_.sources[tile_ * kNetworkRows + r]; });
  }

  // A tile whose edges have been asked for.
  __device__ void begin(int64_t tile) {
    tile_ = tile;
    count_ = edges_of(tile);
    wait_copies();
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x);
    if (r >= kNetworkRows) return;
    const int64_t at = tile * kNetworkRows + r;
    const bool real = r < count_;
    const int target = real ? p_.targets[at] : 0;
    const bool starts = real && (r == 0 || p_.targets[at - 1] != target);
    store_shared(shared_ + Shared::kTargets + 4 * r, static_cast<uint32_t>(target));
    const int64_t edge = real && p_.edge_ids != nullptr ? p_.edge_ids[at] : at;
    store_shared(shared_ + Shared::kEdges + 4 * r, static_cast<uint32_t>(edge));
    const uint32_t bits = __ballot_sync(~0u, starts);
    if (lane_ == 0) store_shared(shared_ + Shared::kStarts + 4 * warp_, bits);
  }
  // Ends it. What was `other` has the next tile's edges.
  __device__ void swap() {
    const uint32_t tile = tiles_[0];
    tiles_[0] = tiles_[1];
    tiles_[1] = tile;
  }

  // The product of a tile with the next weights. `first` is called when all warps are here.
  template <class First>
  __device__ void multiply(uint32_t tile, Sums& sums, const First& first) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][j][i] = 0.0f;
      }
    }
#pragma unroll 1
    for (int slice = 0; slice < Shared::kSlices; ++slice) {
      wait_copies_but<1>();
      __syncthreads();
      const uint32_t weights = stage(read_);
      read_ = read_ == Shared::kStages - 1 ? 0 : read_ + 1;
      if (slice == 0) first();
      issue_weights();
#pragma unroll
      for (int k = 0; k < Shared::kDepth / 16; ++k) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const int chunk = slice * Shared::kSliceChunks + 2 * k + lane_ / 16;
          load_matrices_plain(tile + Shared::tile_at(first_row() + 16 * m + lane_ % 16, chunk),
                              a[m]);
        }
#pragma unroll
        for (int j = 0; j < kFragments; j += 2) {
          const int feature = first_feature() + 8 * j + lane_ / 16 * 8 + lane_ % 8;
          uint32_t b[4];
          load_matrices_plain(weights + Shared::slice_at(feature, 2 * k + lane_ / 8 % 2), b);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            mma<kArithmetic<P>>(sums[m][j], a[m], {b[0], b[1]});
            mma<kArithmetic<P>>(sums[m][j + 1], a[m], {b[2], b[3]});
          }
        }
      }
    }
  }
  __device__ void end() { wait_copies(); }

  // Where the registers of a lane lie: four rows, and pairs of features.
  __device__ int first_row() const { return warp_ / Shared::kParts * 32; }
  __device__ int first_feature() const { return warp_ % Shared::kParts * kPart; }
  __device__ int row(int i) const { return first_row() + lane_ / 4 + 8 * i; }
  __device__ int feature(int j) const { return first_feature() + 8 * j + 2 * (lane_ % 4); }
  __device__ uint32_t pair_at(uint32_t tile, int i, int j) const {
    return tile + Shared::tile_at(row(i), first_feature() / 8 + j) + 4 * (lane_ % 4);
  }
  __device__ int lane() const { return lane_; }
  __device__ int warp() const { return warp_; }
  __device__ int target(int r) const {
    return static_cast<int>(load_shared_word(shared_ + Shared::kTargets + 4 * r));
  }
  __device__ float vector(int which, int feature) const {
    const uint32_t at = shared_ + Shared::kVectors + 4 * (which * kWidth + feature);
    return __uint_as_float(load_shared_word(at));
  }
  // The lane's pairs of features of the target of its row i; 0 where there is no such edge or
  // feature.
  __device__ void of_target(const uint16_t* x, int features, int i,
                            uint32_t (&words)[kFragments]) const {
    const bool real = row(i) < count_;
    const uint16_t* from =
        x + (real ? static_cast<int64_t>(target(row(i))) * features + feature(0) : 0);
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const bool here = real && feature(j) < features;
      words[j] = here ? __ldg(reinterpret_cast<const uint32_t*>(from + 8 * j)) : 0;
    }
  }

  // Calls add(i, part, pair) with what each part of the lane's four rows has stored, in the order
  // of parts. All warps meet; `which` of two places.
  template <class Add>
  __device__ void exchange(int which, const FloatPair (&pairs)[4], const Add& add) {
    const auto place = [&](int part, int i) {
      return shared_ + Shared::kStats +
             8 * ((Shared::kParts * which + part) * kNetworkRows + row(i));
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane_ % 4 != 0) continue;
      store_shared(place(warp_ % Shared::kParts, i),
                   make_uint2(__float_as_uint(pairs[i].low), __float_as_uint(pairs[i].high)));
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int part = 0; part < Shared::kParts; ++part) {
        const uint32_t at = place(part, i);
        add(i, part,
            FloatPair{__uint_as_float(load_shared_word(at)),
                      __uint_as_float(load_shared_word(at + 4))});
      }
    }
  }
  __device__ static float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  // The mean, and 1 / the standard deviation, of each row of `z`; all warps meet. Sums of squared
  // differences from the means of parts are joined by Chan's rule.
  __device__ void row_stats(const Sums& z, FloatPair (&stats)[4]) {
    const auto features_of = [&](int part) {
      return max(0, min(kPart, p_.edge_dim - part * kPart));
    };
    const int mine = features_of(warp_ % Shared::kParts);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        sum += z[i / 2][j][i % 2 * 2] + z[i / 2][j][i % 2 * 2 + 1];
      }
      const float mean = quad_sum(sum) / static_cast<float>(max(mine, 1));
      float squares = 0.0f;
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        if (feature(j) >= p_.edge_dim) continue;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float d = z[i / 2][j][i % 2 * 2 + c] - mean;
          squares += d * d;
        }
      }
      stats[i] = {mean, quad_sum(squares)};
    }
    FloatPair found[4];
    int count = 0;
    exchange(0, stats, [&](int i, int part, FloatPair other) {
      const int more = features_of(part);
      if (part == 0) {
        found[i] = other;
        count = more;
        return;
      }
      const float d = other.low - found[i].low;
      const float share = static_cast<float>(more) / static_cast<float>(count + more);
      found[i].low += d * share;
      found[i].high += other.high + d * d * share * static_cast<float>(count);
      count += more;
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float variance = found[i].high / static_cast<float>(p_.edge_dim);
      stats[i] = {found[i].low, 1.0f / sqrtf(variance + p_.eps)};
    }
  }

  // Writes a tile to rows of x, those of edges or of the tile itself.
  __device__ void store_rows(uint32_t tile, uint16_t* x, int features, bool by_edge) const {
    constexpr int kStep = kThreads / Shared::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % Shared::kChunks;
    if (8 * chunk >= features) return;
#pragma unroll 4
    for (int r = static_cast<int>(threadIdx.x) / Shared::kChunks; r < count_; r += kStep) {
      uint32_t words[4];
      load_shared(tile + Shared::tile_at(r, chunk), words);
      const int64_t to =
          by_edge ? load_shared_word(shared_ + Shared::kEdges + 4 * r) : static_cast<uint32_t>(r);
      *reinterpret_cast<uint4*>(x + to * features + 8 * chunk) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  // Adds up the rows of each target. Warps take them in turn; targets that go on in other tiles get
  // partial sums.
  __device__ void add_rows(uint32_t tile, uint16_t* out, int features) const {
    const int64_t first = tile_ * kNetworkRows;
    int number = 0;
    for (int begin = 0; begin < count_; ++number) {
      const int end = next_start(begin + 1);
      if (number % Shared::kWarps == warp_ && 8 * lane_ < features) {
        const int target = this->target(begin);
        const bool is_cut =
            (begin == 0 && first > 0 && p_.targets[first - 1] == target) ||
            (end == count_ && first + end < p_.edges && p_.targets[first + end] == target);
        add_row(tile, begin, end, is_cut, out + static_cast<int64_t>(target) * features);
      }
      begin = end;
    }
  }

 private:
  __device__ int edges_of(int64_t tile) const {
    const int64_t left = p_.edges - tile * kNetworkRows;
    return left < kNetworkRows ? static_cast<int>(left) : kNetworkRows;
  }
  __device__ uint32_t stage(int number) const {
    return shared_ + Shared::kRing + number * Shared::kSliceBytes;
  }
  // A slice of the weights that follow. All tiles take the same ones, so that it never ends.
  __device__ void issue_weights() {
    const uint32_t to = stage(write_);
    write_ = write_ == Shared::kStages - 1 ? 0 : write_ + 1;
    const uint16_t* from = p_.weights + product_ * kWidth * kWidth + slice_ * Shared::kDepth;
#pragma unroll
    for (int i = 0; i < kWidth * Shared::kSliceChunks; i += kThreads) {
      const int at = i + static_cast<int>(threadIdx.x);
      const int feature = at / Shared::kSliceChunks;
      const int chunk = at % Shared::kSliceChunks;
      if (kWidth * Shared::kSliceChunks < kThreads && feature >= kWidth) break;
      copy_async(to + Shared::slice_at(feature, chunk), from + feature * kWidth + 8 * chunk);
    }
    commit_copies();
    if (++slice_ < Shared::kSlices) return;
    slice_ = 0;
    product_ = product_ + 1 < products_ ? product_ + 1 : 0;
  }
  // Rows and features that are not there become zeros.
  template <class RowOf>
  __device__ void copy_rows(uint32_t to, const uint16_t* x, int features, int rows,
                            const RowOf& row_of) {
    constexpr int kStep = kThreads / Shared::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % Shared::kChunks;
#pragma unroll 8
    for (int i = 0; i < kNetworkRows; i += kStep) {
      const int r = i + static_cast<int>(threadIdx.x) / Shared::kChunks;
      const bool real = r < rows && 8 * chunk < features;
      const int64_t at = real ? static_cast<int64_t>(row_of(r)) * features + 8 * chunk : 0;
      copy_async_or_zero(to + Shared::tile_at(r, chunk), x + at, real);
    }
  }
  __device__ int next_start(int from) const {
    for (; from < count_; from = (from / 32 + 1) * 32) {
      const uint32_t word = load_shared_word(shared_ + Shared::kStarts + 4 * (from / 32));
      const uint32_t bits = word & ~0u << from % 32;
      if (bits != 0) return from / 32 * 32 + __ffs(static_cast<int>(bits)) - 1;
    }
    return count_;
  }
  __device__ void add_row(uint32_t tile, int begin, int end, bool is_cut, uint16_t* out) const {
    constexpr DType kStorage = PrecisionTraits<P>::kStorage;
    float sums[8] = {};
#pragma unroll 4
    for (int r = begin; r < end; ++r) {
      Vec16 v;
      load_shared(tile + Shared::tile_at(r, lane_), v.word);
      float x[8];
      decode<kStorage>(v, x);
#pragma unroll
      for (int c = 0; c < 8; ++c) sums[c] += x[c];
    }
    if (is_cut) {
      float* to = p_.partial + (2 * tile_ + (begin == 0 ? 0 : 1)) * kWidth + 8 * lane_;
#pragma unroll
      for (int c = 0; c < 8; ++c) to[c] = sums[c];
      return;
    }
    uint32_t words[4];
    encode<kStorage>(sums, words);
    *reinterpret_cast<uint4*>(out + 8 * lane_) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  const EdgeNetwork& p_;
  const int products_;
  const int lane_;
  const int warp_;
  uint32_t shared_;
  uint32_t tiles_[2];
  int64_t tile_ = 0;
  int count_ = 0;
  int product_ = 0;  // of the weights that are asked for next
  int slice_ = 0;
  int write_ = 0;  // stages of the ring
  int read_ = 0;
};

// Of blocks that add up rows.
inline constexpr int kSumWarps = 8;
inline constexpr int kSumThreads = 32 * kSumWarps;

// Adds up the partial sums of targets whose edges are in several tiles, in the order of tiles: a
// warp takes the end of a tile, and a target that first crosses one there.
template <Precision P>
__global__ void __launch_bounds__(kSumThreads)
    network_cut_rows(const EdgeNetwork p, uint16_t* out, int features) {
  const int64_t tile =
      static_cast<int64_t>(blockIdx.x) * kSumWarps + static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (tile + 1 >= p.tiles() || 8 * lane >= features) return;
  const int32_t* targets = p.targets + tile * kNetworkRows;
  const int32_t target = targets[kNetworkRows];
  if (targets[kNetworkRows - 1] != target) return;
  if (tile > 0 && targets[-1] == target) return;
  float sums[8] = {};
  const auto add = [&](int64_t t, int slot) {
    const float* from = p.partial + (2 * t + slot) * p.width + 8 * lane;
#pragma unroll
    for (int c = 0; c < 8; ++c) sums[c] += from[c];
  };
  add(tile, targets[0] == target ? 0 : 1);
  for (int64_t t = tile + 1; t < p.tiles() && p.targets[t * kNetworkRows] == target; ++t) add(t, 0);
  uint32_t words[4];
  encode<PrecisionTraits<P>::kStorage>(sums, words);
  *reinterpret_cast<uint4*>(out + static_cast<int64_t>(target) * features + 8 * lane) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// Calls run(width) for the width that a network is padded to.
template <class Run>
void with_network_width(const EdgeNetwork& p, const Run& run) {
  if (p.width == 64) return run(std::integral_constant<int, 64>{});
  if (p.width == 128) return run(std::integral_constant<int, 128>{});
  run(std::integral_constant<int, 256>{});
}

template <Precision P>
void add_cut_rows(const EdgeNetwork& p, uint16_t* out, int features, Stream stream) {
  if (p.tiles() < 2) return;
  launch("edge_network", network_cut_rows<P>, grid_of(p.tiles() - 1, kSumWarps, 1, "edge_network"),
         kSumThreads, stream, p, out, features);
}

}  // namespace gnnsparse::cuda
