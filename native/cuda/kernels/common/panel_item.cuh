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

}  // namespace gnnsparse::cuda
