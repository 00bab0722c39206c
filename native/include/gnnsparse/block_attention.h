// What the attention kernel over dense tiles of a pattern is called with.
#pragma once

#include "gnnsparse/attention_problem.h"
#include "gnnsparse/panel_problem.h"

namespace gnnsparse {

// Rows and columns of a tile, and the 32-bit words of bits that each of its rows has.
inline constexpr int kBlockTile = 128;
inline constexpr int kBlockTileWords = kBlockTile / 32;
inline constexpr int kBlockAttentionFeatures = 128;

// A tile that has edges, in the list of its 128 rows, or of its 128 columns.
struct BlockTileItem {
  int32_t column;  // first column / 128, or row
  int32_t bits;    // index of its bits; -1: an edge at every row and column that there is
};

// One list after the other, by rising columns or rows.
struct BlockTileList {
  const int32_t* starts = nullptr;       // [ceil(L / 128) + 1], of lists of columns S
  const BlockTileItem* tiles = nullptr;  // 8-byte aligned
};

// Rows of all dense arrays are 16-byte aligned, in the storage type of the precision, and those of
// q, k and v are padded with zeros to whole 16 bytes. No bias, dropout or causal mask.
struct BlockAttention {
  AttentionProblem problem;
  const int32_t* row_ids = nullptr;  // [L], the caller's row of each row; null: the same
  BlockTileList tiles;
  const uint32_t* bits = nullptr;  // [partial tiles][128][4]: bit j of word i is column 32 i + j
  int64_t queries = 0;             // L
  int64_t keys = 0;                // S
  HeadsView out;                   // [.., L, dv], dv a multiple of 8
  SoftmaxStats* stats = nullptr;   // [heads][L]
};

// The backward pass: what BlockAttention says of arrays holds for all but the statistics.
struct BlockAttentionGrad {
  AttentionProblem problem;
  const int32_t* row_ids = nullptr;
  BlockTileList rows;
  BlockTileList columns;
  const uint32_t* bits = nullptr;
  int64_t queries = 0;
  int64_t keys = 0;
  HeadsView out;
  HeadsView grad;                       // of out
  const SoftmaxStats* stats = nullptr;  // [heads][L]
  float* row_stats = nullptr;           // [heads][2][L in whole 128], 16-byte aligned: room
  HeadsView dq;                         // each null: not wanted
  HeadsView dk;
  HeadsView dv;
};

}  // namespace gnnsparse
