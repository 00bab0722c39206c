#include "gnnsparse/edge_program.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace gnnsparse::cpu {
namespace {

constexpr const char* kInputs[] = {
    "gathered",    "row",           "edge",          "gathered_number", "row_number",
    "edge_number", "vector",        "vector_number", "mapped",          "gathered_winner",
    "row_winner",  "gathered_wide", "row_wide"};
constexpr const char* kOutputs[] = {"sum",    "max",         "min",
                                    "edge",   "row_number",  "edge_number",
                                    "vector", "mapped_edge", "mapped_weight"};
constexpr struct {
  const char* name;
  size_t values;
} kOperations[] = {{"const", 0},    {"neg", 1},   {"abs", 1},  {"exp", 1},  {"expm1", 1},
                   {"log", 1},      {"log1p", 1}, {"sqrt", 1}, {"tanh", 1}, {"sigmoid", 1},
                   {"softplus", 1}, {"erf", 1},   {"sin", 1},  {"cos", 1},  {"relu", 1},
                   {"add", 2},      {"sub", 2},   {"mul", 2},  {"div", 2},  {"maximum", 2},
                   {"minimum", 2},  {"gt", 2},    {"ge", 2},   {"eq", 2},   {"where", 3}};

[[noreturn]] void reject(const std::string& name, const std::string& problem) {
  throw std::invalid_argument(name + ": " + problem);
}

template <class Kind, size_t kCount>
Kind kind_of(const char* const (&names)[kCount], const std::string& name, const char* argument) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) reject(argument, "have no kind " + name);
  return static_cast<Kind>(found - std::begin(names));
}

EdgeValue value_of(EdgeInput kind, bool spans_rows) {
  const EdgeLevel row = spans_rows ? EdgeLevel::kEdge : EdgeLevel::kRow;
  switch (kind) {
    case EdgeInput::kRow:
    case EdgeInput::kRowWide:
      return {row, true};
    case EdgeInput::kGatheredNumber:
    case EdgeInput::kEdgeNumber:
      return {EdgeLevel::kEdge, false};
    case EdgeInput::kRowNumber:
      return {row, false};
    case EdgeInput::kVector:
      return {EdgeLevel::kShared, true};
    case EdgeInput::kVectorNumber:
      return {EdgeLevel::kShared, false};
    default:
      return {EdgeLevel::kEdge, true};
  }
}

// Gives values their slots. An edge's slot is free again after the last instruction that reads it.
class Allocator {
 public:
  Allocator(EdgeProgram& program, std::vector<EdgeValue> values, std::vector<int> uses)
      : program_(program), values_(std::move(values)), uses_(std::move(uses)) {}

  void emit_step(EdgeInstruction step, const std::vector<int>& taken, int result) {
    for (const int v : taken) need(v);
    for (const int v : taken) step.operands[step.count++] = values_[v];
    std::vector<int> later;
    for (const int v : taken) {
      if (--uses_[v] > 0) continue;
      // Of the same shape, the result may lie where the operand is.
      if (values_[v].features == values_[result].features) {
        release(v);
      } else {
        later.push_back(v);
      }
    }
    place(result);
    for (const int v : later) release(v);
    step.result = values_[result];
    list(result).push_back(step);
    if (uses_[result] == 0) release(result);
  }

  void emit_output(int output, int value) {
    need(value);
    EdgeInstruction instruction;
    instruction.kind = EdgeInstruction::kOutput;
    instruction.index = output;
    instruction.count = 1;
    instruction.operands[0] = values_[value];
    program_.edge.push_back(instruction);
    if (--uses_[value] == 0) release(value);
  }

 private:
  std::vector<EdgeInstruction>& list(int value) {
    const EdgeLevel level = values_[value].level;
    return level == EdgeLevel::kEdge  ? program_.edge
           : level == EdgeLevel::kRow ? program_.row
                                      : program_.shared;
  }
  // Loads an input where it is read first.
  void need(int value) {
    if (values_[value].slot >= 0) return;
    place(value);
    EdgeInstruction load;
    load.kind = EdgeInstruction::kLoad;
    load.index = value;
    load.result = values_[value];
    list(value).push_back(load);
  }
  void place(int value) {
    if (values_[value].level != EdgeLevel::kEdge) {
      values_[value].slot = program_.fixed_slots++;
    } else if (free_.empty()) {
      values_[value].slot = program_.edge_slots++;
    } else {
      values_[value].slot = free_.back();
      free_.pop_back();
    }
  }
  void release(int value) {
    if (values_[value].level == EdgeLevel::kEdge) free_.push_back(values_[value].slot);
  }

  EdgeProgram& program_;
  std::vector<EdgeValue> values_;
  std::vector<int> uses_;
  std::vector<int> free_;
};

}  // namespace

EdgeProgram::EdgeProgram(const std::vector<std::string>& input_names, const std::vector<int>& sizes,
                         const std::vector<Step>& steps, const std::vector<Output>& output_names,
                         bool spans_rows)
    : spans_rows(spans_rows) {
  if (sizes.size() != input_names.size()) reject("sizes", "must be as many as inputs");
  std::vector<EdgeValue> values;
  for (size_t i = 0; i < input_names.size(); ++i) {
    inputs.push_back(kind_of<EdgeInput>(kInputs, input_names[i], "inputs"));
    values.push_back(value_of(inputs.back(), spans_rows));
    if (inputs.back() != EdgeInput::kMapped) continue;
    if (mapped >= 0) reject("inputs", "have more than one mapped input; accepted: at most one");
    mapped = static_cast<int>(i);
    size = sizes[i];
    if (size < 1 || size > kMostMapped) {
      reject("sizes", "got " + std::to_string(size) + "; accepted: 1 to 16 mapped numbers");
    }
  }
  std::vector<int> uses(inputs.size() + steps.size(), 0);
  std::vector<EdgeInstruction> made;
  for (const auto& [name, taken, constant] : steps) {
    const auto found = std::find_if(std::begin(kOperations), std::end(kOperations),
                                    [&name = name](const auto& o) { return name == o.name; });
    if (found == std::end(kOperations)) reject("steps", "have no operation " + name);
    if (taken.size() != found->values) {
      reject("steps", name + " is made of " + std::to_string(found->values) + " values, got " +
                          std::to_string(taken.size()));
    }
    EdgeInstruction step;
    step.operation = static_cast<EdgeOperation>(found - std::begin(kOperations));
    step.constant = static_cast<float>(constant);
    EdgeValue result;
    for (const int v : taken) {
      if (v < 0 || static_cast<size_t>(v) >= values.size()) {
        reject("steps", "read value " + std::to_string(v) + "; accepted: those before the step");
      }
      result.level = std::max(result.level, values[v].level);
      result.features = result.features || values[v].features;
      ++uses[v];
    }
    values.push_back(result);
    made.push_back(step);
  }
  for (const auto& [name, value] : output_names) {
    outputs.push_back(kind_of<EdgeOutput>(kOutputs, name, "outputs"));
    if (value < 0 || static_cast<size_t>(value) >= values.size()) {
      reject("outputs", "store value " + std::to_string(value) + "; accepted: an input or a step");
    }
    const bool is_mapped =
        outputs.back() == EdgeOutput::kMappedEdge || outputs.back() == EdgeOutput::kMappedWeight;
    if (is_mapped && mapped < 0) reject("outputs", name + " needs a mapped input");
    ++uses[value];
  }
  Allocator allocator(*this, values, uses);
  std::vector<bool> is_stored(outputs.size());
  const auto store = [&](size_t k) {
    allocator.emit_output(static_cast<int>(k), output_names[k].second);
    is_stored[k] = true;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    const int result = static_cast<int>(inputs.size() + i);
    allocator.emit_step(made[i], std::get<1>(steps[i]), result);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (output_names[k].second == result) store(k);
    }
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!is_stored[k]) store(k);
  }
  if (!spans_rows) {
    spanning = std::make_shared<EdgeProgram>(input_names, sizes, steps, output_names, true);
  }
}

}  // namespace gnnsparse::cpu
