// The functions that `bindings/cuda_spmm.cpp` calls, which queue nothing: a call of this module
// takes what the host takes for a call without its launches. benchmarks/host_path.py builds it.
#include "checks.h"
#include "gnnsparse/cuda_api.h"

namespace gnnsparse::cuda {

void pack(const Pack&, Stream) {}
void spmm_csr(const CsrSpmm&, Precision, Stream) {}
void spmm_narrow(const CsrSpmm&, Precision, Stream) {}
void spmm_window(const WindowSpmm&, Precision, Stream) {}
void spmm_policy(const PolicySpmm&, Precision, Stream) {}
void spmm_records(const PackedSpmm&, Precision, Stream) {}
void spmm_tiles(const PackedSpmm&, Precision, Stream) {}
void spmm_panel(const PanelSpmm&, Precision, Stream) {}

}  // namespace gnnsparse::cuda

PYBIND11_MODULE(_idle, m) { gnnsparse::bindings::bind_cuda_spmm(m); }
