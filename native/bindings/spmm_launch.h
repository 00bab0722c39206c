// A product with all arguments bound that do not depend on a call's tensors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_args.h"
#include "exchange.h"
#include "handles.h"

namespace gnnsparse::bindings {

// Converts X to the dtype and the layout of `out`; `scale` are factors of its rows, or None.
void pack(const Strided<2>& x, const Memory& scale, const Dense& out, Address stream);

// What queues the kernels of a product: (x, y, partial sums, stream).
using SpmmKernels = std::function<void(const Dense&, const Dense&, const Memory&, Address)>;

// How a product asks which GPU is the current one, and for its current stream: functions of Python
// without arguments. `note` is called with a stream before the first launch on it.
struct LaunchQueue {
  py::object device;
  int device_index;
  py::object stream;
  py::object note;
};

// Where X can't be read as it is, how it is converted (gnnsparse/ops/dense.py, CudaLoader).
struct XLayout {
  int64_t padded;   // columns that a row has at least
  int64_t packed;   // columns of the rows of a converted X
  int64_t aligned;  // bytes at whose multiples rows begin
  Held scale;       // factors of the rows, or None; with factors X is always converted
  bool rounds;      // whether X is rounded to TF32 on the way; it is always converted then
};

// The shapes of a product, and functions of Python that allocate what it writes.
struct SpmmResult {
  int64_t rows;
  int64_t cols;
  int64_t width;
  int64_t whole;        // stride of padded rows: where X has it, so has y
  py::object like;      // an empty tensor on the operand's device, of the dtype of X and the result
  py::object packed;    // one in the storage dtype
  py::object partials;  // one in float32
  int64_t partial_count;
};

// Allocates tensors of one shape and dtype on the current device, by torch's function of two sizes
// that goes past the dispatcher, in a third of the time, where torch has one for the device. It is
// the one that torch's own compiler calls.
class NewTensor {
 public:
  NewTensor() = default;
  // `like` has the dtype and the device.
  NewTensor(const py::object& like, const std::vector<int64_t>& sizes);
  py::object operator()() const;

 private:
  py::object usual_, sizes_;      // a function, and its argument
  py::object quick_, arguments_;  // null where there is none
};

class SpmmLaunch {
 public:
  SpmmLaunch(SpmmKernels kernels, const SpmmResult& result, const XLayout& layout,
             LaunchQueue queue);

  // Whether X has the shape, the dtype and the device that the product is bound to.
  bool takes(const ExchangedTensor& x) const;
  // What queues the product of an X with padded rows in place of this.
  void set_padded(std::shared_ptr<SpmmLaunch> launch) { padded_ = std::move(launch); }
  // Queues the product and returns its result; None where another GPU is the current one.
  py::object operator()(const ExchangedTensor& x) const;

 private:
  bool is_ready(const Strided<2>& x) const;
  Dense packed_view(const Memory& scratch) const;
  Memory partials_view(const Memory& scratch, bool ready) const;
  bool has_padded_rows(const Strided<2>& x) const;
  py::object new_result(const Strided<2>& x) const;
  Address current_stream() const;

  SpmmKernels kernels_;
  int64_t rows_, cols_, width_, whole_, partial_count_;
  XLayout layout_;
  LaunchQueue queue_;
  std::shared_ptr<SpmmLaunch> padded_;
  ExchangedTensor like_;
  DType storage_;
  Element storage_element_;
  int64_t packed_bytes_;  // of a converted X, up to where partial sums may begin
  // The memory of a converted X and of partial sums is one allocation; [1]: where X is ready.
  NewTensor make_result_, make_whole_, make_scratch_[2];
  mutable std::atomic<Address> noted_{0};
  mutable std::atomic<bool> has_noted_{false};
};

using SpmmLaunches = std::vector<std::shared_ptr<SpmmLaunch>>;

// Returns A x by the launch that takes x. Returns None where the call has to go the long way: none
// takes it, a transform or a dispatch mode is active, or x is not a tensor with numbers in memory.
// Returns NotImplemented where autograd records the call.
py::object multiply(const SpmmLaunches& launches, py::handle x);

void bind_spmm_launch(py::module_& m);

}  // namespace gnnsparse::bindings
