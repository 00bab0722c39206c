#include "kernels/common/reduce.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void spmm_window(const WindowSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredWholeOperands>(precision, "window",
                                          [&](auto p) { WindowSpmmUnit<p>::run(problem, stream); });
  reduce_cut(problem, problem.a.shape.window, stream);
}

}  // namespace gnnsparse::cuda
