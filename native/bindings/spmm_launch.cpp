#include "spmm_launch.h"

#include "gnnsparse/cuda_api.h"

namespace gnnsparse::bindings {
namespace {

// What of torch a call asks besides its tensor. The objects live as long as the process.
struct State {
  PyObject* in_transform;  // of torch.func
  PyObject* forward_ad;    // the dictionary of the module
  PyObject* modes;         // how many dispatch modes are active
  PyObject* grad_enabled;
  PyObject* level = PyUnicode_InternFromString("_current_level");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* empty = PyUnicode_InternFromString("new_empty");

  State() {
    const py::module_ core = py::module_::import("torch._C");
    in_transform = py::object(core.attr("_are_functorch_transforms_active")).release().ptr();
    modes = py::object(core.attr("_len_torch_dispatch_stack")).release().ptr();
    grad_enabled = py::object(core.attr("is_grad_enabled")).release().ptr();
    const py::module_ ad = py::module_::import("torch.autograd.forward_ad");
    forward_ad = PyModule_GetDict(ad.ptr());
    Py_INCREF(forward_ad);
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
bool is_direct() {
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

Dense new_dense(const py::object& tensor, bool rounded, const char* name) {
  return dense_of(strided_of<2>(tensor, name), rounded, name);
}

py::object new_matrix(const py::object& function, const py::object (&sizes)[2]) {
  PyObject* arguments[] = {sizes[0].ptr(), sizes[1].ptr()};
  return owned(PyObject_Vectorcall(function.ptr(), arguments, 2, nullptr));
}

ExchangedTensor shown(const py::object& tensor, const char* name) {
  ExchangedTensor made{};
  if (!show_tensor(tensor, &made)) reject(name, "is not a tensor that torch's exchange shows");
  return made;
}

}  // namespace

SpmmLaunch::SpmmLaunch(SpmmKernels kernels, const SpmmResult& result, const XLayout& layout,
                       LaunchQueue queue)
    : kernels_(std::move(kernels)),
      rows_(result.rows),
      cols_(result.cols),
      width_(result.width),
      partial_count_(result.partial_count),
      layout_(layout),
      queue_(std::move(queue)),
      like_(shown(result.like, "like")) {
  require_size(rows_, "rows");
  require_size(cols_, "cols");
  require_size(partial_count_, "partial_count");
  require_at_least_one(width_, "width");
  require_at_least_one(layout_.aligned, "aligned");
  if (layout_.packed < width_) reject("packed", "must be at least the width");
  Memory storage;
  set_memory(shown(result.packed, "packed"), &storage);
  storage_ = storage_dtype(storage, "packed");
  make_result_ = owned(PyObject_GetAttr(result.like.ptr(), state().empty));
  make_packed_ = owned(PyObject_GetAttr(result.packed.ptr(), state().empty));
  make_partials_ = owned(PyObject_GetAttr(result.partials.ptr(), state().empty));
  result_sizes_[0] = py::int_(rows_);
  result_sizes_[1] = py::int_(width_);
  packed_sizes_[0] = py::int_(cols_);
  packed_sizes_[1] = py::int_(layout_.packed);
  partial_size_ = py::int_(partial_count_);
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

py::object SpmmLaunch::packed(const Strided<2>& x, Address stream) const {
  py::object made = new_matrix(make_packed_, packed_sizes_);
  const Dense out = new_dense(made, layout_.rounds, "packed");
  const py::gil_scoped_release nogil;
  pack(x, layout_.scale, out, stream);
  return made;
}

py::object SpmmLaunch::operator()(const ExchangedTensor& shown) const {
  if (number(owned(PyObject_CallNoArgs(queue_.device.ptr()))) != queue_.device_index) {
    return py::none();
  }
  const Address stream = current_stream();
  Strided<2> x;
  if (!set_strided(shown, &x)) return py::none();
  const bool ready = is_ready(x);
  py::object converted;
  if (!ready) converted = packed(x, stream);
  const Dense x_view = ready ? dense_of(x, false, "x") : new_dense(converted, layout_.rounds, "x");
  py::object y = new_matrix(make_result_, result_sizes_);
  const Dense y_view = new_dense(y, false, "y");
  py::object partials;
  Memory sums;
  if (partial_count_ > 0) {
    partials = owned(PyObject_CallOneArg(make_partials_.ptr(), partial_size_.ptr()));
    if (!read_memory(partials, &sums)) reject("partials", "have no memory");
  }
  {
    const py::gil_scoped_release nogil;
    kernels_(x_view, y_view, sums, stream);
  }
  return y;
}

py::object multiply(const SpmmLaunches& launches, py::handle x) {
  ExchangedTensor shown;
  if (!is_direct() || !show_tensor(x, &shown) || shown.data == nullptr) return py::none();
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
      .def(
          py::init([](int64_t rows, int64_t cols, int64_t width, const py::object& like,
                      const py::object& packed, const py::object& partials, int64_t partial_count) {
            return SpmmResult{rows, cols, width, like, packed, partials, partial_count};
          }),
          py::arg("rows"), py::arg("cols"), py::arg("width"), py::arg("like"), py::arg("packed"),
          py::arg("partials"), py::arg("partial_count"));
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
