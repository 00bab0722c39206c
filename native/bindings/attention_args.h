// Handles of attention's arguments that its CPU and CUDA bindings share.
#pragma once

#include "checks.h"
#include "gnnsparse/attention_problem.h"

namespace gnnsparse::bindings {

// What a pass knows of the query rows beside q.
struct AttentionRowsHandle {
  HeadsView out;      // the result
  Address lse;        // float32 [batches, heads, L]
  Address row_stats;  // float32 [batches, heads, L, 4]; 0 in the forward pass
};

// The gradient of the result, and where the gradients of the arguments go. An array without an
// address is not wanted.
struct AttentionGradsHandle {
  HeadsView out;
  HeadsView dq;
  HeadsView dk;
  HeadsView dv;
  EdgeValuesView dbias;  // float32, added to
};

// Where the fused backward pass puts what column slots add to dK and dV: see DkvPartials.
struct DkvPartialsHandle {
  Address data;
  int64_t heads;
  int64_t count;
  Address place_of_slot;
  Address column_starts;
};

// A bias's gradient is added up in float32.
inline void require_float32(const EdgeValuesView& dbias) {
  if (dbias.data != nullptr && dbias.dtype != DType::kFloat32) reject("dbias", "must be float32");
}

}  // namespace gnnsparse::bindings
