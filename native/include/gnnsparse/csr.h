// Building, checking, transposing and permuting CSR matrices on the CPU.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

// An index array as the caller holds it: 32 or 64 bits wide.
struct IndexArray {
  const void* data = nullptr;
  bool wide = false;
  int64_t count = 0;

  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

// An array that holds positions: 32 bits where every position fits, else 64.
struct NnzIndexArray {
  void* data = nullptr;
  bool wide = false;

  void set(int64_t i, int64_t value) const {
    if (wide) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

// First position whose value lies outside [0, limit), or -1.
int64_t first_out_of_range(IndexArray values, int64_t limit, int threads);

// First row whose offsets decrease, or -1. indptr holds rows + 1 offsets.
int64_t first_decreasing(IndexArray indptr, int threads);

// Whether the columns of every row ascend without repeats. Offsets and columns must be in range.
bool is_canonical(const int64_t* indptr, IndexArray indices, int64_t rows, int threads);

// Sorts edges by (row, column) and merges repeats. Writes indptr [rows + 1], indices (room for
// row.count), and for each edge the slot of its merged nonzero. Returns the number of nonzeros.
// Indices must be in range, and fewer than 2^32 edges are accepted.
int64_t coo_to_csr(IndexArray row, IndexArray col, int64_t rows, int64_t* indptr, int32_t* indices,
                   NnzIndexArray slot, int threads);

// Writes the transpose, and for each of its slots the slot of the same nonzero in `a` (if `source`
// has memory).
void transpose(const CsrView& a, int64_t* indptr, int32_t* indices, NnzIndexArray source,
               int threads);

// Row i of the result is row order[i] of `a`; `source` is the slot each nonzero came from.
void permute_rows(const CsrView& a, const int32_t* order, int64_t* indptr, int32_t* indices,
                  NnzIndexArray source, int threads);

// Copies the square matrix `a` and adds the diagonal elements it lacks. Call it with indices null
// to get indptr [rows + 1] only. `source` is the slot each nonzero came from, -1 for a new one.
void add_self_loops(const CsrView& a, int64_t* indptr, int32_t* indices, NnzIndexArray source,
                    int threads);

}  // namespace gnnsparse::cpu
