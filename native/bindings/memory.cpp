#include "memory.h"

#include <array>

#include "exchange.h"

namespace gnnsparse::bindings {
namespace {

struct Traits {
  const char* name;
  int64_t bytes;
};
// In the order of Element.
constexpr Traits kTraits[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int32", 4},
                              {"int64", 8},   {"uint8", 1},   {"float64", 8}};
constexpr int kElements = static_cast<int>(Element::kOther);

// What of torch is read: its tensor type, the objects of dtypes, and names of attributes. They live
// as long as the process.
struct Torch {
  PyTypeObject* tensor;
  PyTypeObject* parameter;
  const ExchangeTable* exchange;
  std::array<PyObject*, kElements> dtypes;
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");

  Torch() {
    const py::module_ torch = py::module_::import("torch");
    tensor = reinterpret_cast<PyTypeObject*>(py::object(torch.attr("Tensor")).release().ptr());
    parameter = reinterpret_cast<PyTypeObject*>(
        py::object(torch.attr("nn").attr("Parameter")).release().ptr());
    exchange = find_exchange(reinterpret_cast<PyObject*>(tensor));
    for (int i = 0; i < kElements; ++i) {
      dtypes[i] = py::object(torch.attr(kTraits[i].name)).release().ptr();
    }
  }
};

const Torch& torch() {
  // Not imported with this module, which loads without torch. The GIL is held.
  static const Torch* found = nullptr;
  if (found == nullptr) {
    const auto* made = new Torch;
    if (found == nullptr) found = made;
  }
  return *found;
}

// An attribute or the result of a method; an object that raises there is no tensor with memory.
py::object attribute(py::handle source, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(source.ptr(), name));
}
py::object result_of(py::handle source, PyObject* method) {
  return py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(source.ptr(), method));
}

bool read_place(py::handle source, Memory* memory) {
  const py::object data = result_of(source, torch().data_ptr);
  const py::object dtype = attribute(source, torch().dtype);
  const py::object is_cpu = attribute(source, torch().is_cpu);
  if (!data || !dtype || !is_cpu) return false;
  memory->given = true;
  memory->data = static_cast<char*>(PyLong_AsVoidPtr(data.ptr()));
  memory->on_host = is_cpu.ptr() == Py_True;
  for (int i = 0; i < kElements; ++i) {
    if (dtype.ptr() == torch().dtypes[i]) memory->element = static_cast<Element>(i);
  }
  return true;
}

bool is_tensor(py::handle source) { return PyObject_TypeCheck(source.ptr(), torch().tensor); }

bool read_array(py::handle source, Memory* memory) {
  ExchangedTensor shown;
  if (show_tensor(source, &shown)) {
    set_memory(shown, memory);
    return true;
  }
  const py::object count = result_of(source, torch().numel);
  const py::object contiguous = count ? result_of(source, torch().is_contiguous) : py::object();
  if (!contiguous || !read_place(source, memory)) return false;
  memory->count = PyLong_AsLongLong(count.ptr());
  memory->contiguous = contiguous.ptr() == Py_True;
  return true;
}

// An attribute that is a tuple of integers.
bool read_sizes(const py::object& tuple, int dims, int64_t* out) {
  if (!tuple || !PyTuple_Check(tuple.ptr()) || PyTuple_GET_SIZE(tuple.ptr()) != dims) return false;
  for (int i = 0; i < dims; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple.ptr(), i));
  }
  return true;
}

[[noreturn]] void refuse(const py::object& tensor, const char* name, const std::string& with) {
  throw py::type_error(std::string(name) + ": got " + Py_TYPE(tensor.ptr())->tp_name +
                       "; accepted: a torch.Tensor with memory" + with + ", or None");
}

}  // namespace

int64_t bytes_of(Element element) {
  return element == Element::kOther ? 0 : kTraits[static_cast<int>(element)].bytes;
}

const char* name_of(Element element) {
  return element == Element::kOther ? "another dtype" : kTraits[static_cast<int>(element)].name;
}

bool show_tensor(py::handle source, ExchangedTensor* out) {
  const Torch& known = torch();
  const PyTypeObject* type = Py_TYPE(source.ptr());
  if (known.exchange == nullptr || (type != known.tensor && type != known.parameter)) return false;
  if (known.exchange->show(source.ptr(), out) != 0) {
    PyErr_Clear();
    return false;
  }
  for (int i = 0; i < out->dims; ++i) {
    if (out->shape[i] == 0) return true;
  }
  return out->data != nullptr;  // a zero tensor, for example, has none
}

void set_memory(const ExchangedTensor& shown, Memory* memory) {
  memory->data = static_cast<char*>(shown.data) + shown.byte_offset;
  memory->given = true;
  memory->element = element_of(shown);
  memory->on_host = shown.device_type == kCpuDevice || shown.device_type == kPinnedDevice;
  memory->count = 1;
  for (int i = 0; i < shown.dims; ++i) memory->count *= shown.shape[i];
  int64_t stride = 1;
  memory->contiguous = true;
  for (int i = shown.dims - 1; i >= 0 && memory->count > 0; --i) {
    if (shown.shape[i] != 1 && shown.strides[i] != stride) memory->contiguous = false;
    stride *= shown.shape[i];
  }
}

template <int kDims>
bool set_strided(const ExchangedTensor& shown, Strided<kDims>* tensor) {
  if (shown.dims != kDims) return false;
  set_memory(shown, tensor);
  tensor->contiguous = true;  // its strides say what it is
  for (int i = 0; i < kDims; ++i) {
    tensor->size[i] = shown.shape[i];
    tensor->stride[i] = shown.strides[i];
  }
  return true;
}

bool read_memory(py::handle source, Memory* memory) {
  *memory = Memory();
  if (source.is_none()) return true;
  if (!is_tensor(source)) return false;
  if (read_array(source, memory) && !PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

Held hold(const py::object& tensor, const char* name) {
  Held held;
  if (!read_memory(tensor, &held)) refuse(tensor, name, "");
  held.owner = tensor;
  return held;
}

template <int kDims>
bool read_strided(py::handle source, Strided<kDims>* tensor) {
  *tensor = Strided<kDims>();
  if (source.is_none()) return true;
  if (!is_tensor(source)) return false;
  ExchangedTensor shown;
  if (show_tensor(source, &shown)) return set_strided(shown, tensor);
  const bool read = read_sizes(attribute(source, torch().shape), kDims, tensor->size) &&
                    read_sizes(result_of(source, torch().stride), kDims, tensor->stride) &&
                    read_place(source, tensor);
  if (!read || PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  tensor->count = 1;
  for (const int64_t size : tensor->size) tensor->count *= size;
  return true;
}

template <int kDims>
Strided<kDims> strided_of(const py::object& tensor, const char* name) {
  Strided<kDims> made;
  if (!read_strided(tensor, &made)) {
    refuse(tensor, name, " and " + std::to_string(kDims) + " dimensions");
  }
  return made;
}

template bool set_strided<2>(const ExchangedTensor&, Strided<2>*);
template bool read_strided<2>(py::handle, Strided<2>*);
template bool read_strided<3>(py::handle, Strided<3>*);
template bool read_strided<4>(py::handle, Strided<4>*);
template Strided<2> strided_of<2>(const py::object&, const char*);
template Strided<3> strided_of<3>(const py::object&, const char*);
template Strided<4> strided_of<4>(const py::object&, const char*);

void require_place(const Memory& memory, Place place, const char* name) {
  const bool wants_host = place == Place::kHost || kGpuIsHost;
  if (!memory.given || memory.on_host == wants_host) return;
  reject(name, wants_host ? "is not on the CPU" : "is not on a GPU");
}

void require_aligned(const Memory& memory, uintptr_t bytes, const char* name) {
  if (reinterpret_cast<uintptr_t>(memory.data) % bytes != 0) {
    reject(name, "must be aligned to " + std::to_string(bytes) + " bytes");
  }
}

char* checked_array(const Memory& memory, int64_t count, int64_t bytes, uintptr_t alignment,
                    bool dtype_fits, const char* wanted, Place place, const char* name) {
  require_size(count, name);
  if (!memory.given) {
    if (count > 0) reject(name, "is None but has " + std::to_string(count) + " elements");
    return nullptr;
  }
  if (!dtype_fits) {
    reject(name, std::string("has ") + name_of(memory.element) + "; accepted: " + wanted);
  }
  require_place(memory, place, name);
  if (!memory.contiguous) reject(name, "is not contiguous");
  const int64_t there = memory.count * bytes_of(memory.element);
  if (count > there / bytes) {
    reject(name, "has " + std::to_string(there) + " bytes; accepted: at least " +
                     std::to_string(count) + " times " + std::to_string(bytes));
  }
  if (memory.data == nullptr && count > 0) reject(name, "has no memory");
  require_aligned(memory, alignment, name);
  return memory.data;
}

DType storage_dtype(const Memory& memory, const char* name) {
  switch (memory.element) {
    case Element::kFloat32:
      return DType::kFloat32;
    case Element::kFloat16:
      return DType::kFloat16;
    case Element::kBFloat16:
      return DType::kBFloat16;
    default:
      reject(name, std::string("has ") + name_of(memory.element) +
                       "; accepted: float32, float16, bfloat16");
  }
}

void* stored_array(const Memory& memory, int64_t count, DType dtype, Place place,
                   const char* name) {
  const bool dtype_fits = !memory.given || storage_dtype(memory, name) == dtype;
  return checked_array(memory, count, size_of(dtype), size_of(dtype), dtype_fits,
                       "the storage dtype of the precision", place, name);
}

MutableIndexView index_array(const Memory& memory, int64_t count, Place place, const char* name) {
  const bool wide = memory.element == Element::kInt64;
  if (wide) return {array<int64_t>(memory, count, place, name), true};
  const bool narrow = memory.element == Element::kInt32;
  return {checked_array(memory, count, sizeof(int32_t), alignof(int32_t), narrow, "int32 or int64",
                        place, name),
          false};
}

}  // namespace gnnsparse::bindings
