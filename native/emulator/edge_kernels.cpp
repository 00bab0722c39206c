#include "edge_kernels.h"

namespace gnnsparse::cuda {

std::map<std::string, LoadedEdgeKernel>& emulated_edge_kernels() {
  static std::map<std::string, LoadedEdgeKernel> kernels;
  return kernels;
}

std::shared_ptr<LoadedEdgeKernel> load_edge_kernel(const std::string& code) {
  const auto found = emulated_edge_kernels().find(code);
  if (found == emulated_edge_kernels().end()) throw CudaError("the emulator has no such message");
  return std::make_shared<LoadedEdgeKernel>(found->second);
}

void edge_rows(LoadedEdgeKernel& kernel, const EdgeLaunch& p, int64_t blocks, int64_t parts,
               int ring_bytes, Stream stream) {
  const char* call = "aggregate_edges";
  launch_shared(call, kernel.rows, grid_of(blocks, 1, parts, call), 32 * kEdgeWarps, ring_bytes,
                stream, p);
  launch(call, kernel.cuts, grid_of(p.cut_count, kEdgeWarps, parts, call), 32 * kEdgeWarps, stream,
         p);
}

}  // namespace gnnsparse::cuda
