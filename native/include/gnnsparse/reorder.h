// Row orders that bring rows with common columns together.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

struct CommunityOptions {
  int rounds = 10;          // sweeps over the nodes of each level at most
  double resolution = 1.0;  // of the modularity; larger: smaller communities
};

// Writes the rows of a square matrix in the order of their communities in the graph of A + A^T:
// the same order for any number of threads, and never a worse one than the given order by the
// distinct columns in groups of 32 rows. Scratch: 8 bytes for each pair of communities with an edge
// between them, 4 for each nonzero where the structure is not symmetric, about 100 for each row,
// and 4 for each row and thread.
void community_order(const CsrView& a, const CommunityOptions& options, int32_t* order,
                     int threads);

struct ShuffleOptions {
  int64_t height = 8;      // rows of a tile
  int64_t width = 16;      // columns of a tile: what rows that complement each other may have
  double threshold = 0.5;  // of similar matching
  int64_t bin = 64;        // rows that may be passed over for one tile
  bool fill = true;        // whether tiles that are short of rows get the best ones passed over
};

struct ShuffleCounts {
  int64_t similar = 0, complementary = 0, filled = 0;  // rows by how they came into their tiles
  int64_t tiles = 0, short_tiles = 0;                  // tiles, and those that are short of rows
};

// Writes the rows in the order of Tiled-CSR's row shuffle (Xue et al., algorithms 1 to 3), in one
// thread. Full tiles come first, so that none straddles a border, and empty rows last. Scratch:
// about 40 bytes for each row and 8 for each column.
ShuffleCounts shuffle_rows(const CsrView& a, const ShuffleOptions& options, int32_t* order);

struct JaccardOptions {
  int64_t k = 8;          // nearest neighbours of a row
  double alpha = 0.5;     // columns weigh their number of nonzeros to the power of -alpha
  bool tree = true;       // whether rows follow a spanning tree of the most similar rows
  bool two_opt = true;    // whether windows are improved by reversing parts of them
  int64_t window = 32;    // rows of such a window
  bool isolation = true;  // whether isolated rows are moved to their most similar rows
  double isolated = 0.1;  // a row is isolated if it is less similar than this to both neighbours
};

// The sums of the distances of neighbouring rows, in the given order and after each stage; a stage
// that is switched off leaves what it got.
struct JaccardStages {
  double given = 0, tree = 0, two_opt = 0, isolation = 0;
  int64_t moved = 0;  // isolated rows that were moved
};

// Writes the rows in the order of RSH-SpMM's locality-aware reordering (section 3.4, algorithm 3):
// the same order for any number of threads. No stage makes the sum of distances larger. Scratch: 4
// bytes for each nonzero, about 32 k + 60 for each row, and 16 and 4 for each thread for a column.
JaccardStages jaccard_order(const CsrView& a, const JaccardOptions& options, int32_t* order,
                            int threads);

struct ClusterOptions {
  int64_t height = 8;   // rows of a cluster at most, a window of the format
  int64_t group = 128;  // clusters of a group at most: windows that share a cache
  int64_t k = 8;        // nearest neighbours of a row, and of a cluster
};

// Writes the rows in clusters of similar rows, and the clusters in groups of similar clusters, as
// the TCU-cache-aware reordering of DTC-SpMM does (Fan et al., ASPLOS 2024): the same order for any
// number of threads. Full clusters come first. Scratch as `jaccard_order`, twice.
void cluster_order(const CsrView& a, const ClusterOptions& options, int32_t* order, int threads);

}  // namespace gnnsparse::cpu
