#include "kernels/common/reduce.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

// The precisions that the papers multiply in.
struct PaperPrecisions {
  template <Precision P>
  static constexpr bool kTakes = P == Precision::kFp16 || P == Precision::kTf32;
};
void spmm_policy(const PolicySpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<PaperPrecisions>(precision, "policy",
                                      [&](auto p) { PolicySpmmUnit<p>::run(problem, stream); });
  reduce_cut(problem, problem.a.shape.window, stream);
}

}  // namespace gnnsparse::cuda
