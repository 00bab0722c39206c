// Adds the partial sums of cut rows or windows.
#pragma once

#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

struct Reduce {
  CutList work;
  const float* partial = nullptr;       // [partial sums][window][partial_stride(n)]
  int window = 1;                       // rows of a partial sum
  const int32_t* first_rows = nullptr;  // first row of each item; null: item * window
  int64_t rows = 0;
  StoredRows stored;
  MutableDenseView y;
  int64_t n = 0;
  bool add = false;  // to what y has
};

void reduce_partials(const Reduce& problem, Stream stream);

// The partial sums of what a window or panel kernel cut, if there are any; `height` is the rows of
// a window or a panel. With `add` they are added to what y has.
template <class Problem>
void reduce_cut(const Problem& problem, int64_t height, Stream stream, bool add = false) {
  if (problem.work.cut_count == 0) return;
  Reduce reduce;
  reduce.work = problem.work;
  reduce.partial = problem.partial;
  reduce.window = static_cast<int>(height);
  reduce.first_rows = problem.a.panel_rows;
  reduce.rows = problem.a.rows;
  reduce.stored = problem.stored;
  reduce.y = problem.y;
  reduce.n = problem.n;
  reduce.add = add;
  reduce_partials(reduce, stream);
}

// Adds the partial sums of the rows that a csr kernel cut, if there are any.
inline void reduce_cut_rows(const CsrSpmm& problem, Stream stream) {
  if (problem.work.cut_count == 0) return;
  Reduce reduce;
  reduce.work = problem.work;
  reduce.partial = problem.partial;
  reduce.rows = problem.a.rows;
  reduce.stored = problem.stored;
  reduce.y = problem.y;
  reduce.n = problem.n;
  reduce_partials(reduce, stream);
}

}  // namespace gnnsparse::cuda
