// A pass of a kernel of edge functions as it is launched (gnnsparse/ops/edges/program.py). nvcc,
// NVRTC and the host's compiler read this file: it includes nothing but fixed-width integers.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GNNSPARSE_EDGE_HD __host__ __device__
#else
#define GNNSPARSE_EDGE_HD
#endif

namespace gnnsparse {

// The kinds of inputs and outputs, in the order of ops/edges/cuda.py.
enum class EdgeInput : int {
  kGathered,
  kRow,
  kEdge,
  kGatheredNumber,
  kRowNumber,
  kEdgeNumber,
  kVector,
  kVectorNumber,
  kMapped,
  kGatheredWinner,
  kRowWinner,
  kGatheredWide,
  kRowWide,
};
enum class EdgeOutput : int {
  kSum,
  kMax,
  kMin,
  kEdge,
  kRowNumber,
  kEdgeNumber,
  kVector,
  kMappedEdge,
  kMappedWeight,
};

inline constexpr int kMostEdgeInputs = 32;
inline constexpr int kMostEdgeOutputs = 24;
inline constexpr int kEdgeWarps = 4;  // of a block

// An array whose rows are `row` bytes apart. A stride of 32 bits makes an address one instruction.
struct EdgeArray {
  const char* data;
  uint32_t row;
};
// In float32 if `is_float`, or else the storage type; `is_vectors`: lanes write whole vectors of 16
// bytes, which are aligned.
struct EdgeTarget {
  char* data;
  int32_t* winners;  // [rows][width] of a maximum or minimum
  int64_t row;
  int is_vectors;
  int is_float;
};
struct EdgePart {  // as RowItem of csr_problem.h
  int32_t row;
  int32_t first;
  int32_t count;
  int32_t partial;
};
struct EdgeCut {  // as Cut of work_list.h
  int32_t row;
  int32_t first;
  int32_t count;
  int32_t unused;
};

struct EdgeLaunch {
  const int64_t* indptr;
  const int32_t* indices;
  const int32_t* row_ids;   // null: rows are numbered as stored
  const int32_t* edge_ids;  // null: so are edges
  const EdgePart* parts;
  const EdgeCut* cuts;
  float* partial;  // [partials][partial_floats]
  int64_t partial_floats;
  int64_t part_count;
  int64_t cut_count;
  int64_t rows;
  int64_t edges;  // numbers of edges
  int64_t items;  // parts and groups of rows
  int64_t warps;  // along the items
  int row_limit;
  int rows_per_warp;
  int width;      // features
  int chunks;     // vectors of 16 bytes of a row
  EdgeArray map;  // float32 [size][width]
  EdgeArray inputs[kMostEdgeInputs];
  EdgeTarget outputs[kMostEdgeOutputs];
};

}  // namespace gnnsparse
