// In place of cuda/kernels/edges/edge_kernels.cu: kernels of functions over edges, of messages that
// the tests' build generates (tests/ops/edge_passes.py). A kernel's code is its name there.
#pragma once

#include <map>
#include <string>

#include "device/launch.cuh"
#include "kernels/edges/edge_rows.cuh"

namespace gnnsparse::cuda {

struct LoadedEdgeKernel {
  void (*rows)(EdgeLaunch);
  void (*cuts)(EdgeLaunch);
};

// Those of all units.
std::map<std::string, LoadedEdgeKernel>& emulated_edge_kernels();

template <class Message>
bool add_edge_kernel(const char* name) {
  emulated_edge_kernels()[name] = {&edge_rows_kernel<Message>, &edge_cuts_kernel<Message>};
  return true;
}

}  // namespace gnnsparse::cuda
