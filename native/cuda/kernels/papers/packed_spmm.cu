#include "kernels/common/reduce.cuh"
#include "kernels/units.cuh"

namespace gnnsparse::cuda {

void spmm_records(const PackedSpmm& problem, Precision precision, Stream stream) {
  if (precision != Precision::kTf32) {
    throw std::invalid_argument("precision: the record kernel has tf32 alone");
  }
  RecordSpmmUnit<Precision::kTf32>::run(problem, stream);
  reduce_cut(problem, problem.a.shape.panel, stream);
}

void spmm_tiles(const PackedSpmm& problem, Precision precision, Stream stream) {
  dispatch_precision<StoredWholeOperands>(precision, "tile",
                                          [&](auto p) { TileSpmmUnit<p>::run(problem, stream); });
  reduce_cut(problem, problem.a.shape.window, stream);
}

}  // namespace gnnsparse::cuda
