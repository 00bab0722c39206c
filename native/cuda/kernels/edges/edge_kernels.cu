// Loads and launches the kernels of functions over edges. What NVRTC has compiled is a library of
// the runtime, which it loads on every GPU where a kernel of it is launched.
#include "device/launch.cuh"
#include "gnnsparse/edge_rows.h"

namespace gnnsparse::cuda {

#if CUDART_VERSION >= 12080

struct LoadedEdgeKernel {
  cudaLibrary_t library = nullptr;
  cudaKernel_t rows = nullptr;
  cudaKernel_t cuts = nullptr;
  std::atomic<uint64_t> prepared{0};  // a bit for each device

  // It is kept until the process ends: at its end the runtime may be gone before.
};

std::shared_ptr<LoadedEdgeKernel> load_edge_kernel(const std::string& code) {
  auto kernel = std::make_shared<LoadedEdgeKernel>();
  check(
      cudaLibraryLoadData(&kernel->library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "cudaLibraryLoadData");
  check(cudaLibraryGetKernel(&kernel->rows, kernel->library, "gnnsparse_edge_rows"), "edge_rows");
  check(cudaLibraryGetKernel(&kernel->cuts, kernel->library, "gnnsparse_edge_cuts"), "edge_cuts");
  return kernel;
}

namespace {

// Once for each device.
void prepare(LoadedEdgeKernel& kernel, int ring_bytes) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (device < 64 && kernel.prepared.load(std::memory_order_relaxed) & bit) return;
  const void* function = kernel.rows;
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, ring_bytes),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
  kernel.prepared.fetch_or(bit, std::memory_order_relaxed);
}

void launch_one(cudaKernel_t kernel, const EdgeLaunch& p, dim3 grid, int bytes, Stream stream) {
  if (grid.x == 0 || grid.y == 0) return;
  void* arguments[] = {const_cast<EdgeLaunch*>(&p)};
  const void* function = kernel;
  check(cudaLaunchKernel(function, grid, dim3(32 * kEdgeWarps), arguments,
                         static_cast<size_t>(bytes), stream),
        "aggregate_edges");
}

}  // namespace

void edge_rows(LoadedEdgeKernel& kernel, const EdgeLaunch& launch, int64_t blocks, int64_t parts,
               int ring_bytes, Stream stream) {
  prepare(kernel, ring_bytes);
  const char* call = "aggregate_edges";
  launch_one(kernel.rows, launch, grid_of(blocks, 1, parts, call), ring_bytes, stream);
  launch_one(kernel.cuts, launch, grid_of(launch.cut_count, kEdgeWarps, parts, call), 0, stream);
}

#else

struct LoadedEdgeKernel {};

std::shared_ptr<LoadedEdgeKernel> load_edge_kernel(const std::string&) {
  throw CudaError("aggregate_edges: gnnsparse was built with CUDA older than 12.8");
}
void edge_rows(LoadedEdgeKernel&, const EdgeLaunch&, int64_t, int64_t, int, Stream) {}

#endif

}  // namespace gnnsparse::cuda
