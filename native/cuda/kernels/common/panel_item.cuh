// What a block of a panel kernel reads first.
#pragma once

#include "device/async.cuh"
#include "gnnsparse/panel_source.h"

namespace gnnsparse::cuda {

// An item of a work list, in one load.
__device__ __forceinline__ PanelItem load_item(const PanelItem* at) {
  const auto words = __ldg(reinterpret_cast<const int4*>(at));
  return {words.x, words.y, words.z, words.w};
}

// All lanes of a block of kWarps warps.
template <int kWarps>
__device__ __forceinline__ void meet() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

}  // namespace gnnsparse::cuda
