// The network of an interaction block, over tiles of edges: e' = e + norm(W2 act(W1 e + p_i + q_j)
// + b2) and the sums of e' at targets, and the gradients of both. Edges are taken in the order of
// rows, 128 at a time.
#pragma once

#include "gnnsparse/architecture.h"
#include "gnnsparse/precision.h"

namespace gnnsparse {

enum class EdgeActivation : int { kSilu, kRelu, kGelu };

inline constexpr int kNetworkRows = 128;                     // edges of a tile
inline constexpr int kNetworkRowGroups = kNetworkRows / 32;  // of edges that warps share
// Sums over edges that the gradient's kernel makes for each feature: of the gradients of b2, of the
// norm's bias and of its weight.
inline constexpr int kNetworkColumnSums = 3;

// Where things lie in the shared memory of a block, for networks padded to kWidth features: two
// tiles of edges, a ring of slices of weights, numbers of features and of edges.
template <int kPadded>
struct NetworkShared {
  static constexpr int kWidth = kPadded;
  static constexpr int kBlocks = kWidth == 256 ? 1 : 2;  // of a multiprocessor
  static constexpr int kWarps = 16 / kBlocks;
  static constexpr int kThreads = 32 * kWarps;
  // Warps that share 32 edges, each with a part of the features.
  static constexpr int kParts = kWarps / kNetworkRowGroups;
  static constexpr int kRowBytes = 2 * kWidth;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kTileBytes = kNetworkRows * kRowBytes;
  static constexpr int kDepth = kWidth < 128 ? 16 : 32;  // features of a slice of weights
  static constexpr int kSlices = kWidth / kDepth;
  static constexpr int kSliceChunks = kDepth / 8;
  static constexpr int kSliceBytes = 2 * kWidth * kDepth;
  static constexpr int kStages = 3;
  static constexpr int kRing = 2 * kTileBytes;
  static constexpr int kVectors = kRing + kStages * kSliceBytes;  // b2, weight and bias of the norm
  static constexpr int kStats = kVectors + 3 * 4 * kWidth;  // two pairs for each part of a row
  static constexpr int kTargets = kStats + 2 * kParts * 8 * kNetworkRows;
  static constexpr int kEdges = kTargets + 4 * kNetworkRows;
  static constexpr int kStarts = kEdges + 4 * kNetworkRows;  // a bit where a row begins
  static constexpr int kBytes = kStarts + 4 * kNetworkRows / 32;

  // Eight rows of the same 16 bytes lie in different banks.
  GNNSPARSE_HD static constexpr uint32_t tile_at(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
  }
  GNNSPARSE_HD static constexpr uint32_t slice_at(int row, int chunk) {
    constexpr int kRowsOfBanks = 8 / kSliceChunks;
    const int turned = chunk ^ (row / kRowsOfBanks % kSliceChunks);
    return static_cast<uint32_t>((row * kSliceChunks + turned) * 16);
  }
};

// The width to which a network of so many features is padded, or 0: there is no kernel.
constexpr int network_width(int64_t features, int capability) {
  const Architecture gpu = architecture_of(capability);
  const auto fits = [&](int width, int bytes) {
    return features <= width && gpu.async_copies && bytes <= gpu.block_shared_bytes;
  };
  if (features < 8 || features % 8 != 0) return 0;
  if (fits(64, NetworkShared<64>::kBytes)) return 64;
  if (fits(128, NetworkShared<128>::kBytes)) return 128;
  return fits(256, NetworkShared<256>::kBytes) ? 256 : 0;
}

struct EdgeNetwork {
  const int32_t* targets = nullptr;   // [edges], those of a target follow one another
  const int32_t* sources = nullptr;   // [edges]
  const int32_t* edge_ids = nullptr;  // [edges] rows of e; null: they are equal
  int64_t edges = 0;
  int edge_dim = 0;  // multiples of 8
  int hidden = 0;
  int width = 0;   // that of network_width
  int blocks = 0;  // at most
  EdgeActivation act = EdgeActivation::kSilu;
  bool has_norm = false;
  float eps = 0.0f;
  const uint16_t* e = nullptr;        // [edges][edge_dim]
  const uint16_t* p = nullptr;        // [targets][hidden]
  const uint16_t* q = nullptr;        // [sources][hidden]
  const uint16_t* weights = nullptr;  // [products][width][width], outputs by inputs, padded by 0
  const float* vectors = nullptr;     // [3][width]: b2, weight and bias of the norm, padded by 0
  float* partial = nullptr;           // [tiles][2][width] sums of rows that cross tiles
  uint16_t* new_edges = nullptr;      // [edges][edge_dim]
  uint16_t* sums = nullptr;           // [targets][edge_dim], 0 where there are no edges

  GNNSPARSE_HD int64_t tiles() const { return ceil_div<int64_t>(edges, kNetworkRows); }
};

// Of some tiles. `weights` are W1, W2, W2^T, W1^T.
struct EdgeNetworkGrad {
  EdgeNetwork network;
  int64_t first_tile = 0;
  int64_t tile_count = 0;
  const uint16_t* grad_edges = nullptr;  // [edges][edge_dim], or null
  const uint16_t* grad_sums = nullptr;   // [targets][edge_dim], or null
  uint16_t* hidden_rows = nullptr;       // [rows of the tiles][hidden], as are the next two
  uint16_t* grad_out = nullptr;          // [..][edge_dim], before the norm
  uint16_t* grad_hidden = nullptr;       // [..][hidden], before the activation
  uint16_t* grad_e = nullptr;            // [edges][edge_dim]
  uint16_t* grad_p = nullptr;            // [targets][hidden], 0 where there are no edges
  uint32_t* scratch = nullptr;           // [blocks][width / 16][threads]
  float* columns = nullptr;              // [blocks][row groups][3][width]
};

// out[column] += sum of the rows [order[i]] of each segment, float32.
struct NetworkColumnSums {
  const int32_t* order = nullptr;
  const int32_t* starts = nullptr;   // [segments + 1]
  const int32_t* columns = nullptr;  // [segments]
  int64_t segments = 0;
  const uint16_t* rows = nullptr;  // [..][features]
  float* out = nullptr;            // [..][features]
  int features = 0;
};

}  // namespace gnnsparse
