// What one run of a kernel of edge functions computes (`Pass` in gnnsparse/ops/edges/program.py),
// as instructions that the CPU executes for some edges of a row at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gnnsparse/edge_rows.h"
#include "gnnsparse/types.h"

namespace gnnsparse::cpu {

enum class EdgeOperation {
  kConst,
  kNeg,
  kAbs,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kSqrt,
  kTanh,
  kSigmoid,
  kSoftplus,
  kErf,
  kSin,
  kCos,
  kRelu,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kGt,
  kGe,
  kEq,
  kWhere
};

inline constexpr int kMostMapped = 16;  // numbers of an edge behind a map

// How often a value is computed: once for all rows, once a row, for each edge.
enum class EdgeLevel { kShared, kRow, kEdge };

// Where a value is: a slot of those that edges have, or of those of rows and of all.
struct EdgeValue {
  EdgeLevel level = EdgeLevel::kShared;
  bool features = false;  // or one number for all features
  int slot = -1;
};

struct EdgeInstruction {
  enum Kind { kLoad, kStep, kOutput };
  Kind kind = kStep;
  int index = 0;  // of the input that is loaded, or of the output that takes operands[0]
  EdgeOperation operation = EdgeOperation::kConst;
  float constant = 0.0f;
  int count = 0;
  EdgeValue operands[3];
  EdgeValue result;
};

struct EdgeProgram {
  using Step = std::tuple<std::string, std::vector<int>, double>;
  using Output = std::pair<std::string, int>;

  // The fields of a Pass. Throws std::invalid_argument where these are no program.
  EdgeProgram(const std::vector<std::string>& input_names, const std::vector<int>& sizes,
              const std::vector<Step>& steps, const std::vector<Output>& output_names,
              bool spans_rows = false);

  std::vector<EdgeInput> inputs;
  std::vector<EdgeOutput> outputs;
  int mapped = -1;  // the input that is mapped
  int size = 0;     // its numbers of an edge
  // In the order in which they run: before all rows, before the edges of a row, for edges.
  std::vector<EdgeInstruction> shared, row, edge;
  int fixed_slots = 0;
  int edge_slots = 0;
  // Whether edges that are executed together may be of several rows: nothing is computed once a
  // row.
  bool spans_rows;
  std::shared_ptr<const EdgeProgram> spanning;  // the same program so, of one that does not
};

// Features [.., width] are matrices, numbers and winners arrays without gaps.
struct EdgeArgs {
  const EdgeProgram* program = nullptr;
  CsrView a;
  const int32_t* row_ids = nullptr;   // null: i
  const int32_t* edge_ids = nullptr;  // [nnz], null: e
  int64_t width = 0;
  std::vector<DenseView> inputs;
  const float* map = nullptr;  // [size, width]
  std::vector<MutableDenseView> outputs;
  std::vector<int32_t*> winners;  // of each output, [rows, width], or null

  // Elements in which a feature's own sums over all edges lie, of one output after another.
  int64_t padded() const { return ceil_div<int64_t>(width, 16) * 16; }
  int64_t partials_before(size_t output) const {
    int64_t count = 0;
    for (size_t k = 0; k < output; ++k) {
      if (program->outputs[k] == EdgeOutput::kVector) count += padded();
      if (program->outputs[k] == EdgeOutput::kMappedWeight) count += program->size * padded();
    }
    return count;
  }
};

}  // namespace gnnsparse::cpu
