// In place of cuda/device/launch.cuh: a grid is run block by block.
#pragma once

#include "cuda_language.h"
#include "gnnsparse/architecture.h"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

inline Architecture current_architecture() {
  return architecture_of(emulator::Block::capability());
}

inline dim3 grid_of(int64_t items, int64_t per_block, int64_t tiles, const char*) {
  return dim3(static_cast<unsigned>(ceil_div(items, per_block)), static_cast<unsigned>(tiles));
}
template <class Kernel>
void prefer_shared_memory(Kernel, int, std::atomic<uint64_t>&) {}

inline char* dynamic_shared() { return emulator::Block::current().dynamic_shared(); }

template <class... Parameters, class... Arguments>
void launch_shared(const char*, void (*kernel)(Parameters...), dim3 grid, int threads,
                   uint32_t bytes, Stream, const Arguments&... arguments) {
  emulator::Block::run_grid(grid.x, grid.y, threads, bytes, [&] { kernel(arguments...); });
}

template <class... Parameters, class... Arguments>
void launch(const char* call, void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            const Arguments&... arguments) {
  launch_shared(call, kernel, grid, threads, 0, stream, arguments...);
}

template <class... Parameters, class... Arguments>
void launch_early(const char* call, void (*kernel)(Parameters...), dim3 grid, int threads,
                  Stream stream, const Arguments&... arguments) {
  launch(call, kernel, grid, threads, stream, arguments...);
}
inline void wait_for_previous() {}

}  // namespace gnnsparse::cuda
