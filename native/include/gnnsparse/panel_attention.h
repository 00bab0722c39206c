// What the attention kernels over panels are called with.
#pragma once

#include "gnnsparse/attention_problem.h"
#include "gnnsparse/panel_problem.h"
#include "gnnsparse/quantize.h"

namespace gnnsparse {

// A panel of this height belongs to four warps, which share the rows that they gather.
inline constexpr int kTallPanelRows = 4 * kQueryRows;
// Slices of a row that the registers have room for: two of words in two parts would not fit.
template <Precision P>
inline constexpr int kAttentionSlices = kSplit<P> ? 1 : 2;
template <Precision P>
inline constexpr int kAttentionFeatures = kAttentionSlices<P> * PanelTile<P>::kFeatures;
// Numbers that are kept of a row beside its sums: of one that was cut, and for the backward pass.
inline constexpr int kPartialRowStats = 2;
inline constexpr int kRowStatsFloats = 4;

// For dK and dV by warpgroups: tiles of 32 stored rows and 192 columns. Two tiles of neighbouring
// rows share operands of 64 rows, those of 128 bytes that products take.
struct DkvTiles {
  static constexpr int kRows = 32;
  static constexpr int kColumns = 192;
  static constexpr int kStages = 6;                        // tiles that shared memory has room for
  static constexpr uint32_t kRowsBytes = 128 * 2 * kRows;  // of two tiles' rows of an array
  static constexpr uint32_t kWeightsBytes = 128 * kColumns;  // the same of weights
  static constexpr uint32_t kPairBytes = 2 * (kRowsBytes + kWeightsBytes);
  static constexpr uint32_t kOperandBytes = kStages / 2 * kPairBytes;
  static constexpr uint32_t kSharedBytes = kOperandBytes + 16 * kStages;  // with barriers

  // [.., 2], of each tile: which half of a slot (2 slot, or 1 more for the upper eight rows), and
  // where in the operand its 16 bytes go; or -1, and where the tile before in the same stage had
  // some.
  const int32_t* entries = nullptr;
  const int32_t* starts = nullptr;  // [ranges * tiles of a range + 1]; null: sums by steps
};

// For the backward pass in one: of every column slot of a panel of 16 rows the weights of its lower
// eight rows, the gradients of their scores, and the same of the upper eight, in the storage type,
// where these eight have an edge; and in which order dK and dV are summed
// from them. Columns are taken in ranges, the panels of a range in steps of at most 32 of their
// slots, whose even and odd columns in turn lie in different banks of shared memory.
struct DkvWeights {
  static constexpr int kSlotBytes = 64;
  static constexpr int kStepSlots = 32;
  static constexpr int kStageSteps = 2;  // that are copied, and then added, together
  static constexpr int kStages = 4;      // whose operands have room in shared memory
  static constexpr int kPairWords = kStepSlots == 32 ? 2 : 4;  // of pairs of columns
  // A multiple of 128: addresses of rows are by exclusive or.
  static constexpr uint32_t kStageBytes =
      (kStageSteps * (2 * kQueryBytes + kStepSlots * kSlotBytes + 32 * kPairWords) + 127) / 128 *
      128;
  static constexpr int kColumnBytes = 512;  // the sums of a column

  void* weights = nullptr;  // [heads at a time][slots][kSlotBytes]
  int64_t heads = 0;        // at a time
  int64_t slots = 0;        // of a head
  // [steps][kStepSlots]: 4 slot + 1 (the lower rows have an edge) + 2 (the upper), each K tile's in
  // the order 8 j + g of column_slot(g, j); 0: none
  const int32_t* slot_of_entry = nullptr;
  // [steps][8][kPairWords]: columns in the range, of 16 bits; -1: none. Word j of row g has those
  // of entries g and, above it, g + 8 of the j-th 16 entries.
  const int32_t* columns = nullptr;
  const int32_t* panels = nullptr;        // [steps]
  const int32_t* range_starts = nullptr;  // [ranges + 1] steps
  int32_t range = 0;                      // columns of a range
  DkvTiles tiles;                         // in place of steps

  static constexpr uint32_t shared_bytes(int32_t columns) {
    return kStages * (kStageBytes + 16) + static_cast<uint32_t>(columns) * kColumnBytes;
  }
};

// Rows of all dense arrays but results are 16-byte aligned, in the storage type of the precision,
// and padded with zeros to whole 16 bytes. Heads are counted over the whole batch.
struct PanelAttention {
  AttentionProblem problem;
  BlockedView a;             // bits of panels in lane order, of A or of A^T: 16 rows,
                             // or 64 in windows of 16
  StoredRows stored;         // of a
  WorkList<PanelItem> work;  // with row_offsets; of one head, as are its partial sums
  float* partial = nullptr;  // [heads][partials][panel][width rounded up to 64], twice in the pass
                             // over columns, then [heads][partials][2][panel]
  int64_t first_head = 0;    // heads [first_head, first_head + head_count) are done
  int64_t head_count = 0;
  int64_t queries = 0;  // L

  HeadsView out;                  // [.., L, dv], written by the forward pass
  SoftmaxStats* stats = nullptr;  // [heads][L], the same

  HeadsView grad;  // backward: of out
  // [heads][L][4]: the stats of a query; what the gradients of its weights are lowered by, the sum
  // of grad * out over the row; unused. The pass over rows writes those of queries with an edge,
  // that over columns reads them.
  float* row_stats = nullptr;
  HeadsView dq;          // pass over rows; null: not wanted
  EdgeValuesView dbias;  // float32, added to; null: not wanted
  HeadsView dk;          // pass over columns, or both passes in one
  HeadsView dv;
  IndexView nnz_index_map;  // pass over columns with a bias: index in A of each nonzero of A^T
  DkvWeights dkv;           // both passes in one
};

// 8-bit numbers [batches, heads, rows, width] whose rows are contiguous; strides in bytes. Integers
// have 128 added to them.
struct ByteHeads {
  const void* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

// Factors of the features [batches, heads, width], 16-byte aligned; strides in floats.
struct FeatureFactors {
  const float* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
};

// The forward pass over panels of 16 rows, of a K and a V of 8 bits and up to 64 features. Q and
// problem.scale have the scales of K in them. problem.k and problem.v are not read. Rows of numbers
// are 16-byte aligned, and padded to whole 16 bytes.
struct QuantizedAttention : PanelAttention {
  EightBit type = EightBit::kInt8;
  ByteHeads keys;
  ByteHeads values;
  FeatureFactors value_scale;  // [dv, padded to kEightBitPadding]
};

}  // namespace gnnsparse
