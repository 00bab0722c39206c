// Rows of features that are gathered for a batch, as bytes: what they hold is known to Python
// alone.
#pragma once

#include <cstdint>

namespace gnnsparse {

struct GatherRows {
  const char* rows =
      nullptr;  // [total][row_bytes]; a GPU may read them from the host's pinned memory
  int64_t total = 0;
  int64_t row_bytes = 0;
  const char* kept = nullptr;      // [kept rows][row_bytes] copies of some rows in the GPU's memory
  const int32_t* place = nullptr;  // [total] each row's place in `kept`, or -1; null: none is kept
  const int64_t* wanted = nullptr;  // [count] numbers of rows; one out of range gives bytes of 255
  int64_t count = 0;
  char* out = nullptr;  // [count][row_bytes]
};

}  // namespace gnnsparse
