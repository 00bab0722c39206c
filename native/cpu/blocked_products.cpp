// Products over the blocked format on the CPU: each panel is read from the format's arrays and
// multiplied row by row with the kernels of CSR rows, so that both round alike.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "blocked_elements.h"
#include "pages.h"
#include "parallel.h"

namespace gnnsparse::cpu {
namespace {

// body(panel) on every panel; each thread has a panel's memory of its own.
template <class Body>
void parallel_panels(const BlockedArrays& a, int threads, Body body) {
  const int64_t chunk = std::clamp<int64_t>(a.view.panels / (16 * int64_t{threads}), 1, 64);
  parallel_chunks(a.view.panels, chunk, threads, [&](int64_t begin, int64_t end) {
    PanelRows panel;
    for (int64_t p = begin; p < end; ++p) {
      panel.read(a, p);
      body(panel);
    }
  });
}

// A view of the rows from `first` on.
template <class View>
View rows_from(View matrix, int64_t first) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(matrix.data)>>,
                                  const char, char>;
  matrix.data = static_cast<Byte*>(matrix.data) + first * matrix.stride * size_of(matrix.dtype);
  return matrix;
}

// The values of the nonzeros of a panel of bits, which lie in row order outside the format.
std::vector<float> row_values(const SpmmArgs& args, const PanelRows& panel) {
  const CsrView rows = panel.csr(args.a.cols);
  std::vector<float> values(static_cast<size_t>(rows.nnz));
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t first = args.a.indptr[panel.first() + r];
    const int64_t count = rows.indptr[r + 1] - rows.indptr[r];
    const int64_t end = args.a.indptr[panel.first() + r + 1];
    require_format(0 <= first && first + count == end && end <= args.a.nnz,
                   "bits are not those of the rows that the values are of");
    std::copy(args.values + first, args.values + first + count, values.data() + rows.indptr[r]);
  }
  return values;
}

}  // namespace

void spmm_blocked(const BlockedArrays& a, const SpmmArgs& args, int threads) {
  advise_huge_pages(args.y.data, args.a.rows * args.y.stride * size_of(args.y.dtype));
  const auto run = kernels().spmm_rows;
  parallel_panels(a, threads, [&](const PanelRows& panel) {
    SpmmArgs local = args;
    local.a = panel.csr(args.a.cols);
    std::vector<float> outside;
    if (a.view.values != nullptr) {
      local.values = panel.values().data();
    } else if (args.values != nullptr) {
      outside = row_values(args, panel);
      local.values = outside.data();
    }
    if (args.row_scale != nullptr) local.row_scale += panel.first();
    if (args.row_ids != nullptr) {
      local.row_ids += panel.first();
    } else {
      local.y = rows_from(args.y, panel.first());
    }
    run(local, 0, panel.rows());
  });
}

void sddmm_blocked(const BlockedArrays& a, const SddmmArgs& args, int threads) {
  const auto size = static_cast<size_t>(size_of(args.out_dtype));
  const auto run = kernels().sddmm_rows;
  parallel_panels(a, threads, [&](const PanelRows& panel) {
    std::vector<char> scores(panel.places().size() * size);
    SddmmArgs local = args;
    local.a = panel.csr(args.a.cols);
    local.out = scores.data();
    if (args.row_ids != nullptr) {
      local.row_ids += panel.first();
    } else {
      local.q = rows_from(args.q, panel.first());
    }
    run(local, 0, panel.rows());
    for (size_t e = 0; e < panel.places().size(); ++e) {
      std::memcpy(static_cast<char*>(args.out) + panel.places()[e] * static_cast<int64_t>(size),
                  scores.data() + e * size, size);
    }
  });
}

}  // namespace gnnsparse::cpu
