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

}  // namespace gnnsparse::cpu
