#include "spmm_launch.h"

#include "gnnsparse/cuda_api.h"

namespace gnnsparse::bindings {
namespace {

// Bytes at whose multiples parts of one allocation begin.
constexpr int64_t kScratchAlignment = 256;

// What of torch a call asks besides its tensor. The objects live as long as the process.
struct State {
  PyObject* in_transform;  // of torch.func
  PyObject* forward_ad;    // the dictionary of the module
  PyObject* modes;         // how many dispatch modes are active
  PyObject* grad_enabled;
  // Whether algorithms are deterministic: new memory is filled then, where the dispatcher makes it.
  PyObject* deterministic;
  PyObject* quick_cpu = nullptr;
  PyObject* quick_cuda = nullptr;
  PyObject* level = PyUnicode_InternFromString("_current_level");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* empty = PyUnicode_InternFromString("new_empty");

  State() {
    const py::module_ core = py::module_::import("torch._C");
    in_transform = py::object(core.attr("_are_functorch_transforms_active")).release().ptr();
    modes = py::object(core.attr("_len_torch_dispatch_stack")).release().ptr();
    grad_enabled = py::object(core.attr("is_grad_enabled")).release().ptr();
    deterministic = py::object(core.attr("_get_deterministic_algorithms")).release().ptr();
    find_quick();
    const py::module_ ad = py::module_::import("torch.autograd.forward_ad");
    forward_ad = PyModule_GetDict(ad.ptr());
    Py_INCREF(forward_ad);
  }

 private:
  void find_quick() {
    py::object guards;
    try {
      guards = py::module_::import("torch._C._dynamo.guards");
    } catch (const py::error_already_set&) {
      return;  // a torch without them
    }
    quick_cpu = py::getattr(guards, "_empty_strided_cpu", py::none()).release().ptr();
    quick_cuda = py::getattr(guards, "_empty_strided_cuda", py::none()).release().ptr();
  }
};

const State& state() {
  static const State* found = nullptr;  // the GIL is held
  if (found == nullptr) {
    const auto* made = new State;
    if (found == nullptr) found = made;
  }
  return *found;
}

py::object owned(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

int64_t number(const py::object& object) {
  const int64_t value = PyLong_AsLongLong(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

bool is_true(PyObject* function) { return owned(PyObject_CallNoArgs(function)).ptr() == Py_True; }

// Whether the numbers of a call's tensors are what their memory holds, and nothing watches it.
bool is_eager() {
  if (is_true(state().in_transform)) return false;
  const py::object level = py::reinterpret_borrow<py::object>(
      PyDict_GetItemWithError(state().forward_ad, state().level));
  if (!level || number(level) >= 0) return false;
  return number(owned(PyObject_CallNoArgs(state().modes))) == 0;
}

bool is_recorded(py::handle x) {
  const py::object wants = owned(PyObject_GetAttr(x.ptr(), state().requires_grad));
  return wants.ptr() == Py_True && is_true(state().grad_enabled);
}

bool is_negative(py::handle x) {
  return owned(PyObject_CallMethodNoArgs(x.ptr(), state().is_neg)).ptr() == Py_True;
}

// A matrix whose rows are contiguous, without its owner.
Dense dense_of(const Strided<2>& tensor, bool rounded, const char* name) {
  Dense dense{tensor, DType::kFloat32, rounded, py::object()};
  std::tie(dense.dtype, dense.stride[0]) = row_major(dense, name);
  return dense;
}

Dense new_dense(const py::object& tensor, const char* name) {
  return dense_of(strided_of<2>(tensor, name), false, name);
}

ExchangedTensor shown(const py::object& tensor, const char* name) {
  ExchangedTensor made{};
  if (!show_tensor(tensor, &made)) reject(name, "is not a tensor that torch's exchange shows");
  return made;
}

}  // namespace

NewTensor::NewTensor(const py::object& like, const std::vector<int64_t>& sizes)
    : usual_(owned(PyObject_GetAttr(like.ptr(), state().empty))), sizes_(py::tuple(sizes.size())) {
  py::tuple strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    PyTuple_SET_ITEM(sizes_.ptr(), i, py::int_(sizes[i]).release().ptr());
    PyTuple_SET_ITEM(strides.ptr(), i, py::int_(stride).release().ptr());
    if (i > 0) stride *= std::max<int64_t>(sizes[i], 1);
  }
  const int32_t device = shown(like, "like").device_type;
  PyObject* quick = device == kCpuDevice    ? state().quick_cpu
                    : device == kCudaDevice ? state().quick_cuda
                                            : nullptr;
  if (quick == nullptr || quick == Py_None) return;
  const auto function = py::reinterpret_borrow<py::object>(quick);
  const py::object dtype = like.attr("dtype");
  try {
    function(py::make_tuple(0), py::make_tuple(1), dtype);
  } catch (const py::error_already_set&) {
    return;  // a torch whose function takes something else
  }
  quick_ = function;
  arguments_ = py::make_tuple(sizes_, strides, dtype);
}

py::object NewTensor::operator()() const {
  if (quick_ && !is_true(state().deterministic)) {
    return owned(PyObject_Call(quick_.ptr(), arguments_.ptr(), nullptr));
  }
  return owned(PyObject_CallOneArg(usual_.ptr(), sizes_.ptr()));
}

SpmmLaunch::SpmmLaunch(SpmmKernels kernels, const SpmmResult& result, const XLayout& layout,
                       LaunchQueue queue)
    : kernels_(std::move(kernels)),
      rows_(result.rows),
      cols_(result.cols),
      width_(result.width),
      whole_(result.whole),
      partial_count_(result.partial_count),
      layout_(layout),
      queue_(std::move(queue)),
      like_(shown(result.like, "like")),
      make_result_(result.like, {rows_, width_}) {
  require_size(rows_, "rows");
  require_size(cols_, "cols");
  require_size(partial_count_, "partial_count");
  require_at_least_one(width_, "width");
  require_at_least_one(layout_.aligned, "aligned");
  if (layout_.packed < width_) reject("packed", "must be at least the width");
  Memory storage;
  set_memory(shown(result.packed, "packed"), &storage);
  storage_ = storage_dtype(storage, "packed");
  storage_element_ = storage.element;
  // Twice the size fits 64 bits, so that the sums below do.
  if (whole_ < width_) reject("whole", "must be at least the width");
  if (whole_ > width_) make_whole_ = NewTensor(result.like, {rows_, whole_});
  const int64_t bytes = product("packed", cols_, layout_.packed, bytes_of(storage.element), 2) / 2;
  packed_bytes_ = (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  constexpr int64_t kFloat = sizeof(float);
  product("partial_count", partial_count_, kFloat);
  make_scratch_[0] = NewTensor(result.partials, {packed_bytes_ / kFloat + partial_count_});
  make_scratch_[1] = NewTensor(result.partials, {partial_count_});
}

bool SpmmLaunch::takes(const ExchangedTensor& x) const {
  return x.dims == 2 && x.shape[1] == width_ && x.shape[0] == cols_ &&
         x.type_code == like_.type_code && x.type_bits == like_.type_bits &&
         x.type_lanes == like_.type_lanes && x.device_type == like_.device_type &&
         x.device_index == like_.device_index;
}

bool SpmmLaunch::is_ready(const Strided<2>& x) const {
  const int64_t bytes = bytes_of(x.element);
  return !layout_.scale.given && !layout_.rounds && storage_dtype(x, "x") == storage_ &&
         x.stride[1] == 1 && x.stride[0] * bytes % layout_.aligned == 0 &&
         x.stride[0] >= layout_.padded &&
         reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(layout_.aligned) == 0;
}

Address SpmmLaunch::current_stream() const {
  const py::object stream = owned(PyObject_CallNoArgs(queue_.stream.ptr()));
  const auto address = reinterpret_cast<Address>(PyLong_AsVoidPtr(stream.ptr()));
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (!has_noted_ || noted_ != address) {
    queue_.note(stream);
    noted_ = address;
    has_noted_ = true;
  }
  return address;
}

Dense SpmmLaunch::packed_view(const Memory& scratch) const {
  Strided<2> made;
  static_cast<Memory&>(made) = scratch;
  made.element = storage_element_;
  made.count = cols_ * layout_.packed;
  made.size[0] = cols_;
  made.size[1] = made.stride[0] = layout_.packed;
  made.stride[1] = 1;
  return dense_of(made, layout_.rounds, "packed");
}

Memory SpmmLaunch::partials_view(const Memory& scratch, bool ready) const {
  Memory made = scratch;
  if (!ready) made.data += packed_bytes_;
  made.count = partial_count_;
  return made;
}

bool SpmmLaunch::has_padded_rows(const Strided<2>& x) const {
  return whole_ != width_ && x.stride[1] == 1 && x.stride[0] == whole_;
}

py::object SpmmLaunch::new_result(const Strided<2>& x) const {
  if (!has_padded_rows(x)) return make_result_();
  // Detached, it is no view to autograd, so that it may be changed in place.
  return make_whole_().attr("narrow")(1, 0, width_).attr("detach")();
}

py::object SpmmLaunch::operator()(const ExchangedTensor& shown) const {
  Strided<2> x;
  if (!set_strided(shown, &x)) return py::none();
  if (padded_ != nullptr && has_padded_rows(x)) return (*padded_)(shown);
  if (number(owned(PyObject_CallNoArgs(queue_.device.ptr()))) != queue_.device_index) {
    return py::none();
  }
  const Address stream = current_stream();
  const bool ready = is_ready(x);
  py::object y = new_result(x);
  const Dense y_view = new_dense(y, "y");
  py::object scratch;
  Memory memory, sums;
  if (!ready || partial_count_ > 0) {
    scratch = make_scratch_[ready]();
    if (!read_memory(scratch, &memory)) reject("scratch", "has no memory");
    if (partial_count_ > 0) sums = partials_view(memory, ready);
  }
  const Dense x_view = ready ? dense_of(x, false, "x") : packed_view(memory);
  {
    const py::gil_scoped_release nogil;
    if (!ready) pack(x, layout_.scale, x_view, stream);
    kernels_(x_view, y_view, sums, stream);
  }
  return y;
}

py::object multiply(const SpmmLaunches& launches, py::handle x) {
  ExchangedTensor shown;
  if (!is_eager() || !show_tensor(x, &shown) || shown.data == nullptr) return py::none();
  for (const auto& launch : launches) {
    if (!launch->takes(shown)) continue;
    if (is_negative(x)) return py::none();
    if (is_recorded(x)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
    return (*launch)(shown);
  }
  return py::none();
}

void bind_spmm_launch(py::module_& m) {
  // Local to the module: a build with CUDA and the emulator may be loaded in one process.
  py::class_<LaunchQueue>(m, "LaunchQueue", py::module_local())
      .def(py::init([](const py::object& device, int device_index, const py::object& stream,
                       const py::object& note) {
             return LaunchQueue{device, device_index, stream, note};
           }),
           py::arg("device"), py::arg("device_index"), py::arg("stream"), py::arg("note"));
  py::class_<XLayout>(m, "XLayout", py::module_local())
      .def(py::init([](int64_t padded, int64_t packed, int64_t aligned, const py::object& scale,
                       bool rounds) {
             return XLayout{padded, packed, aligned, hold(scale, "scale"), rounds};
           }),
           py::arg("padded"), py::arg("packed"), py::arg("aligned"), py::arg("scale"),
           py::arg("rounds"));
  py::class_<SpmmResult>(m, "SpmmResult", py::module_local())
      .def(py::init([](int64_t rows, int64_t cols, int64_t width, int64_t whole,
                       const py::object& like, const py::object& packed, const py::object& partials,
                       int64_t partial_count) {
             return SpmmResult{rows, cols, width, whole, like, packed, partials, partial_count};
           }),
           py::arg("rows"), py::arg("cols"), py::arg("width"), py::arg("whole"), py::arg("like"),
           py::arg("packed"), py::arg("partials"), py::arg("partial_count"));
  m.def(
      "spmm_multiplier",
      [](const py::args& given) {
        SpmmLaunches launches;
        for (const py::handle launch : given) {
          launches.push_back(launch.cast<std::shared_ptr<SpmmLaunch>>());
        }
        return py::cpp_function([launches](py::handle x) { return multiply(launches, x); });
      },
      "Returns a function of X that multiplies by the launch that takes it; see spmm_launch.h.");
  m.def("shows_tensors", [](const py::object& tensor) {
    ExchangedTensor made;
    return show_tensor(tensor, &made);
  });
}

}  // namespace gnnsparse::bindings
