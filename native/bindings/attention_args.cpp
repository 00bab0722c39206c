#include "attention_args.h"

namespace gnnsparse::bindings {
namespace {

void require_memory(const Memory& memory, DType dtype, Place place, const char* name) {
  require_place(memory, place, name);
  if (memory.data == nullptr && memory.count > 0) reject(name, "has no memory");
  require_aligned(memory, static_cast<uintptr_t>(size_of(dtype)), name);
}

}  // namespace

const HeadsView& HeadsHandle::checked(int64_t batches, int64_t heads, int64_t rows, int64_t width,
                                      Place place, const char* name) const {
  if (!given) reject(name, "is None");
  if (size[0] != batches || size[1] != heads || size[2] != rows || size[3] != width) {
    const auto text = [](int64_t b, int64_t h, int64_t n, int64_t d) {
      return "(" + std::to_string(b) + ", " + std::to_string(h) + ", " + std::to_string(n) + ", " +
             std::to_string(d) + ")";
    };
    reject(name, "has shape " + text(size[0], size[1], size[2], size[3]) +
                     "; accepted: " + text(batches, heads, rows, width));
  }
  require_memory(*this, view.dtype, place, name);
  return view;
}

const EdgeValuesView& EdgeValuesHandle::checked(int64_t of_batches, int64_t of_heads,
                                                int64_t of_nnz, Place place,
                                                const char* name) const {
  if (!given) reject(name, "is None");
  if (nnz != of_nnz || (batches != 1 && batches != of_batches) ||
      (heads != 1 && heads != of_heads)) {
    reject(name, "has values for " + std::to_string(batches) + " x " + std::to_string(heads) +
                     " heads and " + std::to_string(nnz) + " edges; accepted: 1 or " +
                     std::to_string(of_batches) + " x 1 or " + std::to_string(of_heads) +
                     " heads and " + std::to_string(of_nnz) + " edges");
  }
  require_memory(*this, view.dtype, place, name);
  return view;
}

const AttentionProblem& AttentionHandle::checked(int64_t rows, int64_t cols, int64_t nnz,
                                                 Place place) const {
  if (rows != queries || cols != keys) {
    reject("a", "is " + std::to_string(rows) + " x " + std::to_string(cols) + "; accepted: " +
                    std::to_string(queries) + " x " + std::to_string(keys) + ", as q and k");
  }
  of_queries(q, problem.d, place, "q");
  of_keys(k, problem.d, place, "k");
  of_keys(v, problem.dv, place, "v");
  if (bias.given) bias.checked(problem.batches, problem.heads, nnz, place, "bias");
  if (seed.given) array<const int64_t>(seed, 1, place, "seed");
  return problem;
}

const HeadsView& AttentionGradsHandle::checked_out(const AttentionHandle& call, Place place) const {
  const AttentionProblem& problem = call.problem;
  const HeadsView& view =
      out.checked(problem.batches, problem.heads, call.queries, problem.dv, place, "grad");
  if (view.dtype != problem.q.dtype) reject("grad", "must have the dtype of q");
  return view;
}

EdgeValuesView AttentionGradsHandle::checked_dbias(const AttentionHandle& call, int64_t nnz,
                                                   Place place) const {
  if (!dbias.given) return EdgeValuesView();
  const AttentionProblem& problem = call.problem;
  const EdgeValuesView& view = dbias.checked(problem.batches, problem.heads, nnz, place, "dbias");
  if (view.dtype != DType::kFloat32) reject("dbias", "must be float32");
  return view;
}

}  // namespace gnnsparse::bindings
