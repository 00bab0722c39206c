// Checks of what kernels over rows with heads are given, on the CPU and on a GPU.
#pragma once

#include "checks.h"
#include "gnnsparse/heads_problem.h"
#include "handles.h"

namespace gnnsparse::bindings {

inline HeadShape head_shape(int64_t heads, int64_t width) {
  require_at_least_one(heads, "heads");
  require_at_least_one(width, "width");
  if (product("heads", heads, width) > INT32_MAX) {
    reject("heads", "and width have a product of 2^31 or more");
  }
  HeadShape shape;
  shape.heads = static_cast<int>(heads);
  shape.width = static_cast<int>(width);
  shape.padded = shape.width;
  return shape;
}

}  // namespace gnnsparse::bindings
