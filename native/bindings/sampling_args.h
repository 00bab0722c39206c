// Handles of sampling's arguments that its CPU and CUDA bindings share.
#pragma once

#include "gnnsparse/sampling.h"
#include "handles.h"

namespace gnnsparse::bindings {

// A graph that neighbours are drawn from; its weights may be None.
struct SampleGraphHandle {
  CsrHandle a;
  Held weights, running;

  SampleGraph checked(const SampleDraw& draw, Place place) const;
};

// Rows that are drawn from. On a GPU `used` may be None, or have the number of rows that are used;
// and `step` may be None, or have that of the draw, which a CUDA graph reads when it is replayed.
struct SampleRowsHandle {
  Held targets, used, windows, trees, step;

  SampleRows checked(Place place) const;
};

// What is drawn before all counts are known; each may be None where the rule has no use for it.
struct SampleDrawnHandle {
  Held places, copies, keys;

  SampleDrawn checked(const SampleDraw& draw, int64_t rows, Place place) const;
};

// The edges that were drawn.
SampleEdges sampled_edges(const Memory& indptr, int64_t rows, const Memory& nodes,
                          const Memory& edges, const Memory& copies, Place place);

// Raises unless positions in a sequence of so many nodes fit 32 bits.
void require_sequence(int64_t rows, int64_t edges);

}  // namespace gnnsparse::bindings
