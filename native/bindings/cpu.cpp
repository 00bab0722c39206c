#include <pybind11/stl.h>

#include <optional>

#include "checks.h"
#include "eight_bit_args.h"
#include "gnnsparse/cpu_kernels.h"
#include "gnnsparse/packed_entries.h"
#include "handles.h"

namespace gnnsparse::bindings {
namespace {

void spmm(const CsrHandle& matrix, const StoredRowsHandle& rows, const Strided<2>& x,
          const Strided<2>& y, int threads) {
  cpu::SpmmArgs args;
  args.a = host(matrix);
  args.row_ids = optional_host_array<const int32_t>(rows.row_ids, args.a.rows, "row_ids");
  args.values = optional_host_array<const float>(rows.values, args.a.nnz, "values");
  args.col_scale = optional_host_array<const float>(rows.col_scale, args.a.cols, "col_scale");
  args.row_scale = optional_host_array<const float>(rows.row_scale, args.a.rows, "row_scale");
  args.n = y.size[1];
  args.x = host_matrix<DenseView>(x, args.a.cols, args.n, "x");
  args.y = host_matrix<MutableDenseView>(y, args.a.rows, args.n, "y");
  cpu::spmm(args, require_threads(threads));
}

void sddmm(const CsrHandle& matrix, const Memory& row_ids, const Strided<2>& q, const Strided<2>& k,
           const Memory& out, int threads) {
  cpu::SddmmArgs args;
  args.a = host(matrix);
  args.row_ids = optional_host_array<const int32_t>(row_ids, args.a.rows, "row_ids");
  args.d = q.size[1];
  args.q = host_matrix<DenseView>(q, args.a.rows, args.d, "q");
  args.k = host_matrix<DenseView>(k, args.a.cols, args.d, "k");
  if (args.q.dtype != args.k.dtype) reject("k", "must have the dtype of q");
  args.out_dtype = storage_dtype(out, "out");
  args.out = stored_array(out, args.a.nnz, args.out_dtype, Place::kHost, "out");
  cpu::sddmm(args, require_threads(threads));
}

void quantize(const Strided<2>& x, const Memory& weights, const Strided<2>& out,
              const Memory& scale, int number_type, const std::optional<int64_t>& seed,
              int threads) {
  cpu::QuantizeArgs args;
  args.rows = x.size[0];
  args.n = x.size[1];
  args.x = host_matrix<DenseView>(x, args.rows, args.n, "x");
  args.weights = optional_host_array<const float>(weights, args.rows, "weights");
  args.type = eight_bit_of(number_type);
  args.stochastic = seed.has_value();
  if (seed) args.key = philox_key(*seed);
  args.stride = padded_stride(out, args.rows, args.n, Place::kHost);
  args.out = reinterpret_cast<uint8_t*>(out.data);
  args.scale = host_array<float>(scale, args.stride, "scale");
  cpu::quantize(args, require_threads(threads));
}

void spmm_quantized(const CsrHandle& matrix, const StoredRowsHandle& rows, const Strided<2>& x,
                    const Memory& scale, int number_type, const Strided<2>& y, int threads) {
  cpu::QuantizedSpmmArgs args;
  args.a = host(matrix);
  args.row_ids = optional_host_array<const int32_t>(rows.row_ids, args.a.rows, "row_ids");
  args.values = optional_host_array<const float>(rows.values, args.a.nnz, "values");
  args.row_scale = optional_host_array<const float>(rows.row_scale, args.a.rows, "row_scale");
  if (rows.col_scale.given) reject("rows", "has weights of columns; accepted: None");
  args.n = y.size[1];
  args.type = eight_bit_of(number_type);
  args.stride = eight_bit_stride(x, args.a.cols, args.n, Place::kHost, "x");
  args.x = reinterpret_cast<const uint8_t*>(x.data);
  args.scale = host_array<const float>(scale, args.stride, "scale");
  args.y = host_matrix<MutableDenseView>(y, args.a.rows, args.n, "y");
  cpu::quantized_spmm(args, require_threads(threads));
}

// The arrays that a product over panels reads, and their lengths.
cpu::BlockedArrays blocked_arrays(const BlockedHandle& a) {
  cpu::BlockedArrays arrays;
  arrays.view = host(a);
  arrays.slots = a.slots;
  arrays.values = a.values.count;
  arrays.zeros = a.zero_cols.count;
  const BlockedShape& shape = arrays.view.shape;
  arrays.bricks = 8 * a.bitmap.count / (int64_t{shape.window} * shape.brick);
  if (a.values.given) arrays.values_dtype = storage_dtype(a.values, "values");
  const bool bits = arrays.view.encoding == Encoding::kBitmap;
  if (a.records.size_ptr != nullptr) {
    arrays.records = a.records;
    arrays.view.values = a.records.packed_blocks;
    arrays.values = a.packed_blocks.count;
    arrays.values_dtype = storage_dtype(a.packed_blocks, "packed_blocks");
    return arrays;
  }
  if (a.slots > 0 && bits && arrays.view.bitmap == nullptr) reject("bitmap", "is None");
  if (a.slots > 0 && !bits && arrays.view.values == nullptr) reject("values", "is None");
  const int entry_bytes = entry_value_bytes(arrays.view.encoding);
  const bool packed = entry_bytes > 0 || (bits && a.values.given);
  if (a.slots > 0 && packed && !a.value_ptr.given) reject("value_ptr", "is None");
  if (entry_bytes > 0 && size_of(arrays.values_dtype) != entry_bytes) {
    reject("values", "of entries have " + std::to_string(8 * entry_bytes) + " bits");
  }
  return arrays;
}

void spmm_blocked(const BlockedHandle& matrix, const StoredRowsHandle& rows, const Strided<2>& x,
                  const Strided<2>& y, int threads) {
  const cpu::BlockedArrays arrays = blocked_arrays(matrix);
  const BlockedView& view = arrays.view;
  cpu::SpmmArgs args;
  args.a.rows = view.rows;
  args.a.cols = view.cols;
  args.a.nnz = matrix.nnz;
  args.row_ids = optional_host_array<const int32_t>(rows.row_ids, view.rows, "row_ids");
  args.values = optional_host_array<const float>(rows.values, matrix.nnz, "values");
  args.col_scale = optional_host_array<const float>(rows.col_scale, view.cols, "col_scale");
  args.row_scale = optional_host_array<const float>(rows.row_scale, view.rows, "row_scale");
  if (args.values != nullptr) {
    args.a.indptr = host_array<const int64_t>(rows.indptr, view.rows + 1, "indptr");
  }
  args.n = y.size[1];
  args.x = host_matrix<DenseView>(x, view.cols, args.n, "x");
  args.y = host_matrix<MutableDenseView>(y, view.rows, args.n, "y");
  cpu::spmm_blocked(arrays, args, require_threads(threads));
}

void sddmm_blocked(const BlockedHandle& matrix, const Memory& row_ids, const Strided<2>& q,
                   const Strided<2>& k, const Memory& out, int threads) {
  const cpu::BlockedArrays arrays = blocked_arrays(matrix);
  if (arrays.view.values == nullptr && arrays.slots > 0) reject("values", "is None");
  cpu::SddmmArgs args;
  args.a.rows = arrays.view.rows;
  args.a.cols = arrays.view.cols;
  args.row_ids = optional_host_array<const int32_t>(row_ids, args.a.rows, "row_ids");
  args.d = q.size[1];
  args.q = host_matrix<DenseView>(q, args.a.rows, args.d, "q");
  args.k = host_matrix<DenseView>(k, args.a.cols, args.d, "k");
  if (args.q.dtype != args.k.dtype) reject("k", "must have the dtype of q");
  args.out_dtype = storage_dtype(out, "out");
  args.out = stored_array(out, arrays.values, args.out_dtype, Place::kHost, "out");
  cpu::sddmm_blocked(arrays, args, require_threads(threads));
}

cpu::SoftmaxArgs softmax_args(const CsrHandle& matrix, const Memory& scores, const Memory& out) {
  cpu::SoftmaxArgs args;
  args.a = host(matrix);
  args.scores = host_array<const float>(scores, args.a.nnz, "scores");
  args.out = host_array<float>(out, args.a.nnz, "out");
  return args;
}

}  // namespace

void bind_cpu(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cpu_spmm", &spmm, nogil, py::arg("a"), py::arg("rows"), py::arg("x"), py::arg("y"),
        py::arg("threads"));
  m.def("cpu_sddmm", &sddmm, nogil, py::arg("a"), py::arg("row_ids"), py::arg("q"), py::arg("k"),
        py::arg("out"), py::arg("threads"));
  m.def("cpu_quantize", &quantize, nogil, py::arg("x"), py::arg("weights"), py::arg("out"),
        py::arg("scale"), py::arg("number_type"), py::arg("seed"), py::arg("threads"));
  m.def("cpu_spmm_quantized", &spmm_quantized, nogil, py::arg("a"), py::arg("rows"), py::arg("x"),
        py::arg("scale"), py::arg("number_type"), py::arg("y"), py::arg("threads"));
  m.def("cpu_spmm_blocked", &spmm_blocked, nogil, py::arg("a"), py::arg("rows"), py::arg("x"),
        py::arg("y"), py::arg("threads"));
  m.def("cpu_sddmm_blocked", &sddmm_blocked, nogil, py::arg("a"), py::arg("row_ids"), py::arg("q"),
        py::arg("k"), py::arg("out"), py::arg("threads"));
  m.def(
      "cpu_softmax",
      [](const CsrHandle& a, const Memory& scores, const Memory& out, int threads) {
        cpu::softmax(softmax_args(a, scores, out), require_threads(threads));
      },
      nogil, py::arg("a"), py::arg("scores"), py::arg("out"), py::arg("threads"));
  m.def(
      "cpu_softmax_grad",
      [](const CsrHandle& a, const Memory& weights, const Memory& grad, const Memory& out,
         int threads) {
        cpu::SoftmaxArgs args = softmax_args(a, weights, out);
        args.grad = host_array<const float>(grad, args.a.nnz, "grad");
        cpu::softmax_grad(args, require_threads(threads));
      },
      nogil, py::arg("a"), py::arg("weights"), py::arg("grad"), py::arg("out"), py::arg("threads"));
  m.def(
      "cpu_round_tf32",
      [](const Memory& source, const Memory& out, int threads) {
        const int64_t count = source.count;
        cpu::round_to_tf32(host_array<const float>(source, count, "source"),
                           host_array<float>(out, count, "out"), count, require_threads(threads));
      },
      nogil, py::arg("source"), py::arg("out"), py::arg("threads"));
  cpu::kernels();  // reads the environment: what is wrong there is an error of the import
  m.def("cpu_isa", [] { return cpu::kernels().name; }, "Name of the instruction set in use.");
  m.def("set_cpu_isa", &cpu::select_kernels,
        "Uses the kernels of `name` (portable, avx2, avx512, auto); False if they can't run here.",
        py::arg("name"));
}

}  // namespace gnnsparse::bindings
