// Checked launches.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "gnnsparse/architecture.h"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw CudaError(std::string(call) + ": " + cudaGetErrorName(status) + ", " +
                  cudaGetErrorString(status));
}

// Grid for `items` pieces of work, `per_block` to a block, times `tiles`.
inline dim3 grid_of(int64_t items, int64_t per_block, int64_t tiles, const char* call) {
  const int64_t blocks = ceil_div(items, per_block);
  if (blocks > std::numeric_limits<int32_t>::max() || tiles > 65535) {
    throw CudaError(std::string(call) + ": the problem is larger than a grid");
  }
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles));
}

// Gives a kernel all the shared memory it may have, once for each device. Left alone the driver may
// give it less than the blocks that fit by registers need.
template <class... Parameters>
void prefer_shared_memory(void (*kernel)(Parameters...), int dynamic_bytes,
                          std::atomic<uint64_t>& done) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic_bytes),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
  done.fetch_or(bit, std::memory_order_relaxed);
}

// With `bytes` of dynamic shared memory.
template <class... Parameters, class... Arguments>
void launch_shared(const char* call, void (*kernel)(Parameters...), dim3 grid, int threads,
                   uint32_t bytes, Stream stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  kernel<<<grid, threads, bytes, stream>>>(arguments...);
  check(cudaGetLastError(), call);
}

template <class... Parameters, class... Arguments>
void launch(const char* call, void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            const Arguments&... arguments) {
  launch_shared(call, kernel, grid, threads, 0, stream, arguments...);
}

// What launch_shared was asked for, to the kernel.
__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(1024) char dynamic_memory[];
  return dynamic_memory;
}

// The current device's.
inline Architecture current_architecture() {
  int device = 0;
  int major = 0;
  int minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  return architecture_of(100 * major + 10 * minor);
}

// Starts as soon as multiprocessors are free, which hides the launch. The kernel has to call
// wait_for_previous before it reads what the kernel before it has written.
template <class... Parameters, class... Arguments>
void launch_early(const char* call, void (*kernel)(Parameters...), dim3 grid, int threads,
                  Stream stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = current_architecture().early_launch ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), call);
}

__device__ __forceinline__ void wait_for_previous() {
  if constexpr (kArchitecture.early_launch) asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace gnnsparse::cuda
