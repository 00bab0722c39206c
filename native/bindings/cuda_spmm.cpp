#include "cuda_args.h"
#include "problem_args.h"
#include "spmm_launch.h"

namespace gnnsparse::bindings {

void pack(const Strided<2>& x, const Memory& scale, const Dense& out, Address stream) {
  cuda::Pack p;
  set_strided(p, x);
  p.scale = optional_gpu_array<const float>(scale, p.rows, "scale");
  p.out = gpu_matrix<MutableDenseView>(out, p.rows, p.n, "out");
  require_aligned(out, 16, "out");
  if (p.out.stride * size_of(p.out.dtype) % 16 != 0) reject("out", "rows must be 16-byte aligned");
  cuda::pack(p, stream_of(stream));
}

namespace {

// What the kernel for few features can't do.
void require_narrow(const CsrView& a, const CsrLanes& lanes, int64_t n) {
  if (n > kNarrowWidth) {
    reject("n", "is " + std::to_string(n) + "; with narrow lanes at most " +
                    std::to_string(kNarrowWidth) + " is accepted");
  }
  if (lanes.groups == nullptr && a.rows > 0) reject("groups", "are needed by narrow lanes");
  if (a.nnz > kMostNarrowNnz) {
    reject("lanes", "are narrow; accepted for at most " + std::to_string(kMostNarrowNnz) +
                        " nonzeros, the matrix has " + std::to_string(a.nnz));
  }
}

void spmm_csr(const CsrHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
              const CsrLanesHandle& lanes, const Dense& x, const Dense& y, int64_t n,
              const Memory& partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_aligned(rows.values, 16, "values");
  CsrSpmm p;
  p.a = gpu(a);
  p.stored = stored_rows(rows, p.a.rows, p.a.nnz, precision);
  p.work = work_list<RowItem>(work, 0);
  p.lanes = csr_lanes(lanes);
  const bool narrow = p.lanes.narrow;
  if (narrow) require_narrow(p.a, p.lanes, n);
  const auto element = static_cast<int>(size_of(storage_of(precision)));
  const int whole = narrow ? element : row_unit(p.lanes, n * element);
  p.x = vector_matrix(x, p.a.cols, n, precision, "x", whole);
  if (p.x.stride * size_of(p.x.dtype) > UINT32_MAX) reject("x", "rows are 4 GiB long or longer");
  // Rows that a format keeps out of its windows go to places in a larger result.
  p.y = gpu_matrix<MutableDenseView>(y, p.a.rows, n, "y");
  p.n = n;
  p.partial = partial_sums(partial, p.work.partials, 1, n);
  if (narrow) {
    cuda::spmm_narrow(p, precision, stream_of(stream));
  } else {
    cuda::spmm_csr(p, precision, stream_of(stream));
  }
}

void spmm_window(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const Dense& x, const Dense& y, int64_t n, const Memory& partial,
                 int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_window_shape(a.view);
  require_vectors(x, a.view.cols, n, precision, "x");
  const WindowSpmm p = window_spmm(a, rows, work, x, y, n, partial, precision);
  cuda::spmm_window(p, precision, stream_of(stream));
}

void spmm_policy(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                 const WindowPolicyHandle& policy, const Dense& x, const Dense& y, int64_t n,
                 const Memory& partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_window_shape(a.view);
  require_vectors(x, a.view.cols, n, precision, "x");
  const PolicySpmm p = policy_spmm(a, rows, work, policy, x, y, n, partial, precision);
  cuda::spmm_policy(p, precision, stream_of(stream));
}

void spmm_records(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                  const PackedPolicyHandle& policy, const Dense& x, const Dense& y, int64_t n,
                  const Memory& partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(x, a.view.cols, n, precision, "x");
  const PackedSpmm p = record_spmm(a, rows, work, x, y, n, partial, policy, precision);
  cuda::spmm_records(p, precision, stream_of(stream));
}

void spmm_tiles(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                const PackedPolicyHandle& policy, const Dense& x, const Dense& y, int64_t n,
                const Memory& partial, int precision_code, Address stream) {
  const Precision precision = precision_of(precision_code);
  require_vectors(x, a.view.cols, n, precision, "x");
  const PackedSpmm p = tile_spmm(a, rows, work, x, y, n, partial, policy, precision);
  cuda::spmm_tiles(p, precision, stream_of(stream));
}

void spmm_panel(const BlockedHandle& a, const StoredRowsHandle& rows, const WorkListHandle& work,
                const Dense& x, const Dense& y, int64_t n, int slices, const Memory& partial,
                int precision_code, Address stream, bool add) {
  const Precision precision = precision_of(precision_code);
  const bool bits = a.view.encoding == Encoding::kBitmap;
  if (add && !bits) reject("add", "is true; accepted for panels of bits");
  // Panels of bits copy halves of vectors, of rows that consist of them, where X is as it was
  // given.
  const bool halves = bits && !x.rounded && !add && n * size_of(storage_of(precision)) % 8 == 0;
  vector_matrix(x, a.view.cols, n, precision, "x", halves ? 8 : 16);
  PanelSpmm p = panel_spmm(a, rows, work, x, y, n, slices, partial, precision);
  p.add = add;
  cuda::spmm_panel(p, precision, stream_of(stream));
}

// What a launch keeps of the objects that it is made of: each one, and what it holds.
template <class Handle>
struct Bound {
  py::object object;
  const Handle* handle;

  explicit Bound(const py::object& given) : object(given), handle(given.cast<const Handle*>()) {
    if (handle == nullptr) throw py::type_error("a handle is None");
  }
  const Handle& operator*() const { return *handle; }
};

using Launch = std::shared_ptr<SpmmLaunch>;

Launch launch(SpmmKernels kernels, const SpmmResult& result, const XLayout& layout,
              const LaunchQueue& queue) {
  return std::make_shared<SpmmLaunch>(std::move(kernels), result, layout, queue);
}

Launch launch_csr(const py::object& a, const py::object& rows, const py::object& work,
                  const py::object& lanes, int precision, const SpmmResult& result,
                  const XLayout& layout, const LaunchQueue& queue) {
  const auto run = [a = Bound<CsrHandle>(a), rows = Bound<StoredRowsHandle>(rows),
                    work = Bound<WorkListHandle>(work), lanes = Bound<CsrLanesHandle>(lanes),
                    precision, n = result.width](const Dense& x, const Dense& y,
                                                 const Memory& partial, Address stream) {
    spmm_csr(*a, *rows, *work, *lanes, x, y, n, partial, precision, stream);
  };
  return launch(run, result, layout, queue);
}

Launch launch_window(const py::object& a, const py::object& rows, const py::object& work,
                     int precision, const SpmmResult& result, const XLayout& layout,
                     const LaunchQueue& queue) {
  const auto run = [a = Bound<BlockedHandle>(a), rows = Bound<StoredRowsHandle>(rows),
                    work = Bound<WorkListHandle>(work), precision, n = result.width](
                       const Dense& x, const Dense& y, const Memory& partial, Address stream) {
    spmm_window(*a, *rows, *work, x, y, n, partial, precision, stream);
  };
  return launch(run, result, layout, queue);
}

Launch launch_policy(const py::object& a, const py::object& rows, const py::object& work,
                     const py::object& policy, int precision, const SpmmResult& result,
                     const XLayout& layout, const LaunchQueue& queue) {
  const auto run = [a = Bound<BlockedHandle>(a), rows = Bound<StoredRowsHandle>(rows),
                    work = Bound<WorkListHandle>(work), policy = Bound<WindowPolicyHandle>(policy),
                    precision, n = result.width](const Dense& x, const Dense& y,
                                                 const Memory& partial, Address stream) {
    spmm_policy(*a, *rows, *work, *policy, x, y, n, partial, precision, stream);
  };
  return launch(run, result, layout, queue);
}

Launch launch_panel(const py::object& a, const py::object& rows, const py::object& work, int slices,
                    int precision, const SpmmResult& result, const XLayout& layout,
                    const LaunchQueue& queue) {
  const auto run = [a = Bound<BlockedHandle>(a), rows = Bound<StoredRowsHandle>(rows),
                    work = Bound<WorkListHandle>(work), slices, precision, n = result.width](
                       const Dense& x, const Dense& y, const Memory& partial, Address stream) {
    spmm_panel(*a, *rows, *work, x, y, n, slices, partial, precision, stream, false);
  };
  return launch(run, result, layout, queue);
}

void bind_launches(py::module_& m) {
  bind_spmm_launch(m);
  py::class_<SpmmLaunch, Launch>(m, "SpmmLaunch", py::module_local())
      .def("set_padded", &SpmmLaunch::set_padded, py::arg("launch"))
      .def_static("csr", &launch_csr, py::arg("a"), py::arg("rows"), py::arg("work"),
                  py::arg("lanes"), py::arg("precision"), py::arg("result"), py::arg("layout"),
                  py::arg("queue"))
      .def_static("window", &launch_window, py::arg("a"), py::arg("rows"), py::arg("work"),
                  py::arg("precision"), py::arg("result"), py::arg("layout"), py::arg("queue"))
      .def_static("policy", &launch_policy, py::arg("a"), py::arg("rows"), py::arg("work"),
                  py::arg("policy"), py::arg("precision"), py::arg("result"), py::arg("layout"),
                  py::arg("queue"))
      .def_static("panel", &launch_panel, py::arg("a"), py::arg("rows"), py::arg("work"),
                  py::arg("slices"), py::arg("precision"), py::arg("result"), py::arg("layout"),
                  py::arg("queue"));
}

}  // namespace

void bind_cuda_spmm(py::module_& m) {
  bind_launches(m);
  const auto nogil = py::call_guard<py::gil_scoped_release>();
  m.def("cuda_pack", &pack, nogil, py::arg("x"), py::arg("scale"), py::arg("out"),
        py::arg("stream"));
  m.def("cuda_spmm_csr", &spmm_csr, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("lanes"), py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_window", &spmm_window, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"), py::arg("precision"),
        py::arg("stream"));
  m.def("cuda_spmm_policy", &spmm_policy, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("policy"), py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_records", &spmm_records, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("policy"), py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_tiles", &spmm_tiles, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("policy"), py::arg("x"), py::arg("y"), py::arg("n"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"));
  m.def("cuda_spmm_panel", &spmm_panel, nogil, py::arg("a"), py::arg("rows"), py::arg("work"),
        py::arg("x"), py::arg("y"), py::arg("n"), py::arg("slices"), py::arg("partial"),
        py::arg("precision"), py::arg("stream"), py::arg("add") = false);
}

}  // namespace gnnsparse::bindings
