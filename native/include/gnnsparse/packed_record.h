// HRPB's packed blocks (cuTeSpMM, section 3.2, figures 4 and 5). A block is TM rows x 16 column
// slots of a panel, in bricks of 16 x 4. All that it stores lies together, so that one copy brings
// it to shared memory. With b bricks that have a nonzero and n nonzeros a record is
//   colPtr     uint32 [5]   first brick of each of the 4 brick columns, and b
//   rows       uint32 [b]   which 16 rows of the panel each brick has
//                           (4 bytes of zeros here if b is even)
//   patterns   uint64 [b]   bit 4 r + c: element (r, c) of the brick is a nonzero
//   nnz_array  [n]          values in the storage type, brick after brick, row by row
//                           (zeros up to a multiple of 16 bytes)
// The paper leaves the order of the four and their alignment open.
#pragma once

#include <cstdint>
#include <cstring>

#include "gnnsparse/types.h"

namespace gnnsparse {

inline constexpr int kRecordColumns = 4;      // brick columns of a block
inline constexpr int kRecordBrickWidth = 4;   // column slots of a brick
inline constexpr int kRecordBrickRows = 16;   // rows of a brick
inline constexpr int kRecordSlots = 16;       // column slots of a block
inline constexpr int kRecordAlignment = 16;   // bytes
inline constexpr int kRecordPanelBricks = 2;  // most bricks of a brick column: panels of 32 rows

// The 32-bit words in front of the patterns.
GNNSPARSE_HD constexpr int64_t record_header_words(int64_t bricks) {
  return (kRecordColumns + 2 + bricks) / 2 * 2;
}
GNNSPARSE_HD constexpr int64_t record_bytes(int64_t bricks, int64_t nnz, int64_t value_bytes) {
  const int64_t bytes = 4 * record_header_words(bricks) + 8 * bricks + value_bytes * nnz;
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

template <class T>
GNNSPARSE_HD inline T load_part(const uint8_t* from) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(from);
#else
  T part;
  memcpy(&part, from, sizeof part);  // cached arrays need not be aligned on the host
  return part;
#endif
}

// A record by its parts. On a GPU its memory is aligned to 8 bytes.
class PackedRecord {
 public:
  GNNSPARSE_HD explicit PackedRecord(const void* record)
      : words_(static_cast<const uint8_t*>(record)),
        patterns_(words_ + 4 * record_header_words(bricks())) {}

  GNNSPARSE_HD uint32_t col_ptr(int column) const { return word(column); }
  GNNSPARSE_HD uint32_t bricks() const { return word(kRecordColumns); }
  GNNSPARSE_HD uint32_t row(uint32_t brick) const { return word(kRecordColumns + 1 + brick); }
  GNNSPARSE_HD uint64_t pattern(uint32_t brick) const {
    return load_part<uint64_t>(patterns_ + 8 * brick);
  }
  GNNSPARSE_HD const uint8_t* values() const { return patterns_ + 8 * bricks(); }

 private:
  GNNSPARSE_HD uint32_t word(uint32_t i) const { return load_part<uint32_t>(words_ + 4 * i); }

  const uint8_t* words_;
  const uint8_t* patterns_;
};

// The records of a matrix; both null: the format has none.
struct RecordsView {
  const int64_t* size_ptr = nullptr;  // [blocks + 1] bytes in front of each record
  const uint8_t* packed_blocks = nullptr;
};

// The rows that a format keeps out of its windows (RSH-SpMM, section 3.2): every row has room for
// `width` nonzeros, and no row pointer is needed. A place behind a row's last nonzero has column
// -1.
struct ResidualView {
  const int32_t* rows = nullptr;     // [count]
  const int32_t* columns = nullptr;  // [count][width]
  const void* values = nullptr;      // [count][width] in the storage type of the product
  int64_t count = 0;
  int64_t width = 0;
};

}  // namespace gnnsparse
