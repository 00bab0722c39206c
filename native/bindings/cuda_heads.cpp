#include <algorithm>

#include "cuda_args.h"
#include "heads_args.h"

namespace gnnsparse::bindings {
namespace {

// The shape, with heads that begin at whole vectors unless there is one alone.
HeadShape vector_shape(int64_t heads, int64_t width, Precision precision) {
  HeadShape shape = head_shape(heads, width);
  const int64_t elements = 16 / size_of(storage_of(precision));
  const int64_t padded = ceil_div<int64_t>(width, elements) * elements;
  if (padded * heads > INT32_MAX) reject("heads", "and width have a product of 2^31 or more");
  shape.padded = static_cast<int>(padded);
  return shape;
}

// An operand whose heads are padded to whole vectors; the last one's padding need not be there.
DenseView head_vectors(const Dense& dense, int64_t rows, const HeadShape& shape,
                       Precision precision, const char* name) {
  const int64_t width = int64_t{shape.heads - 1} * shape.padded + shape.width;
  const DenseView view = vector_matrix(dense, rows, width, precision, name);
  if (view.stride * size_of(view.dtype) > UINT32_MAX) reject(name, "rows are 4 GiB long or longer");
  return view;
}

const int32_t* winners_of(const Memory& winners, int64_t rows, const HeadShape& shape) {
  return optional_gpu_array<const int32_t>(winners, product("winners", rows, shape.features()),
                                           "winners");
}

// What the kernels over rows are given, into a problem.
template <class Problem>
void set_rows(Problem& p, const CsrHandle& a, const StoredRowsHandle& rows,
              const WorkListHandle& work, const CsrLanesHandle& lanes, Precision precision) {
  p.a = gpu(a);
  p.stored = stored_rows(rows, p.a.rows, 0, precision);
  if (rows.values.given) {
    p.stored.values = stored_array(rows.values, product("values", p.a.nnz, p.shape.heads),
                                   storage_of(precision), Place::kGpu, "values");
  }
  p.work = work_list<RowItem>(work, 0);
  p.lanes = csr_lanes(lanes);
}

int64_t partial_elements(int64_t partials, const HeadShape& shape) {
  return product("partial", partials, cuda::partial_stride(shape.features()));
}

void spmm_heads(const CsrHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                const CsrLanesHandle& lanes, const Dense& x, const Dense& y, int64_t heads,
                int64_t width, const Memory& winners, const Memory& partial, int precision_code,
                Address stream) {
  const Precision precision = precision_of(precision_code);
  HeadsSpmm p;
  p.shape = vector_shape(heads, width, precision);
  set_rows(p, a, rows, work, lanes, precision);
  p.x = head_vectors(x, p.a.cols, p.shape, precision, "x");
  p.y = gpu_matrix<MutableDenseView>(y, p.a.rows, p.shape.features(), "y");
  p.winners.data = winners_of(winners, p.a.cols, p.shape);
  p.partial = gpu_array<float>(partial, partial_elements(p.work.partials, p.shape), "partial");
  cuda::spmm_heads(p, precision, stream_of(stream));
}

void spmm_extreme(const CsrHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                  const CsrLanesHandle& lanes, const Dense& x, const Dense& y, int64_t heads,
                  int64_t width, bool largest, const Memory& winners, const Memory& partial,
                  const Memory& partial_winners, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  ExtremeSpmm p;
  p.shape = vector_shape(heads, width, precision);
  set_rows(p, a, rows, work, lanes, precision);
  p.sign = largest ? 1.0f : -1.0f;
  p.x = head_vectors(x, p.a.cols, p.shape, precision, "x");
  p.y = gpu_matrix<MutableDenseView>(y, p.a.rows, p.shape.features(), "y");
  p.winners =
      gpu_array<int32_t>(winners, product("winners", p.a.rows, p.shape.features()), "winners");
  const int64_t elements = partial_elements(p.work.partials, p.shape);
  p.partial = gpu_array<float>(partial, elements, "partial");
  p.partial_winners = gpu_array<int32_t>(partial_winners, elements, "partial_winners");
  cuda::spmm_extreme(p, precision, stream_of(stream));
}

void sddmm_heads(const CsrHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const CsrLanesHandle& lanes, const Dense& q, const Dense& k, int64_t heads,
                 int64_t width, const Memory& winners, const Memory& out, int precision_code,
                 Address stream) {
  const Precision precision = precision_of(precision_code);
  HeadsSddmm p;
  p.shape = vector_shape(heads, width, precision);
  set_rows(p, a, rows, work, lanes, precision);
  p.q = head_vectors(q, p.a.rows, p.shape, precision, "q");
  p.k = head_vectors(k, p.a.cols, p.shape, precision, "k");
  p.winners.data = winners_of(winners, p.a.rows, p.shape);
  p.out_dtype = storage_dtype(out, "out");
  p.out = stored_array(out, product("out", p.a.nnz, heads), p.out_dtype, Place::kGpu, "out");
  cuda::sddmm_heads(p, precision, stream_of(stream));
}

}  // namespace

void bind_cuda_heads(py::module_& m) {
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_spmm_heads", &spmm_heads, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("x"), py::arg("y"), py::arg("heads"), py::arg("width"),
        py::arg("winners"), py::arg("partial"), py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_extreme", &spmm_extreme, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("x"), py::arg("y"), py::arg("heads"), py::arg("width"),
        py::arg("largest"), py::arg("winners"), py::arg("partial"), py::arg("partial_winners"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_sddmm_heads", &sddmm_heads, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("q"), py::arg("k"), py::arg("heads"), py::arg("width"),
        py::arg("winners"), py::arg("out"), py::arg("precision"), py::arg("stream"));
}

}  // namespace gnnsparse::bindings
