#include "kernels/window_spmm.cuh"

namespace gnnsparse::cuda {

void spmm_window(const WindowSpmm& problem, const Cut* cuts, int64_t cut_count, Precision precision,
                 Stream stream) {
  switch (precision) {
    case Precision::kFp16:
      run_window_spmm<Precision::kFp16>(problem, stream);
      break;
    case Precision::kBf16:
      run_window_spmm<Precision::kBf16>(problem, stream);
      break;
    case Precision::kTf32:
      run_window_spmm<Precision::kTf32>(problem, stream);
      break;
    default:
      throw std::invalid_argument("precision: the window kernel has no fp32");
  }
  if (cut_count == 0) return;
  Reduce reduce;
  reduce.cuts = cuts;
  reduce.cut_count = cut_count;
  reduce.partial = problem.partial;
  reduce.window = problem.a.shape.window;
  reduce.first_rows = problem.a.panel_rows;
  reduce.rows = problem.a.rows;
  reduce.row_ids = problem.row_ids;
  reduce.row_scale = problem.row_scale;
  reduce.y = problem.y;
  reduce.n = problem.n;
  reduce_partials(reduce, stream);
}

}  // namespace gnnsparse::cuda
