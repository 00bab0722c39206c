#include "kernels/common/reduce.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void spmm_window(const WindowSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<false>(precision, "window",
                            [&](auto p) { WindowSpmmUnit<p>::run(problem, stream); });
  reduce_windows(problem, stream);
}

}  // namespace gnnsparse::cuda
