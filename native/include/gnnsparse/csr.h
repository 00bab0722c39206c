// Building, checking, transposing and permuting CSR matrices on the CPU.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

// An index array of known length.
struct IndexArray : IndexView {
  int64_t count = 0;
};

// First position whose value lies outside [0, limit), or -1.
int64_t first_out_of_range(IndexArray values, int64_t limit, int threads);

// First row whose offsets decrease, or -1. indptr holds rows + 1 offsets.
int64_t first_decreasing(IndexArray indptr, int threads);

// Whether the columns of every row ascend without repeats. Offsets and columns must be in range.
bool is_canonical(const int64_t* indptr, IndexArray indices, int64_t rows, int threads);

// Whether the values are the numbers below their count, each once.
bool is_permutation(IndexArray values, int threads);

// Sorts edges by (row, column) and merges repeats. Writes indptr [rows + 1], indices (room for
// row.count), and for each edge the index of its merged nonzero. Returns the number of nonzeros.
// Row and column indices must be in range, and fewer than 2^32 edges are accepted.
int64_t coo_to_csr(IndexArray row, IndexArray col, int64_t rows, int64_t* indptr, int32_t* indices,
                   MutableIndexView nnz_index, int threads);

// Writes the transpose. `source`, if it has memory, becomes the index that each nonzero of the
// transpose has in `a`.
void transpose(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView source,
               int threads);

// Row i of the result is row order[i] of `a`; `source` becomes the index that each nonzero has in
// `a`.
void permute_rows(const CsrView& a, const int32_t* order, int64_t* indptr, int32_t* indices,
                  MutableIndexView source, int threads);

// Copies the square matrix `a` and adds the diagonal elements that it lacks. Call it with indices
// null to get indptr [rows + 1] only. `places` [nnz of `a`] becomes where each nonzero of `a` is.
void add_self_loops(const CsrView& a, int64_t* indptr, int32_t* indices, MutableIndexView places,
                    int threads);

}  // namespace gnnsparse::cpu
