// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): random words from a counter and a key alone. Attention's dropout asks it for each edge, so
// that forward and backward, every layout and every device drop the same ones, and store none.
// gnnsparse/ops/philox.py computes the same in torch.
#pragma once

#include <cstdint>

#include "gnnsparse/types.h"

namespace gnnsparse {

// Static for the reason given in rounding.h.

struct PhiloxKey {
  uint32_t low = 0;
  uint32_t high = 0;
};

struct PhiloxWords {
  uint32_t word[4];
};

static GNNSPARSE_HD constexpr PhiloxKey philox_key(int64_t seed) {
  const auto bits = static_cast<uint64_t>(seed);
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxFirst = 0xD2511F53u;
constexpr uint32_t kPhiloxSecond = 0xCD9E8D57u;

static GNNSPARSE_HD constexpr PhiloxKey next_key(PhiloxKey key) {
  return {key.low + 0x9E3779B9u, key.high + 0xBB67AE85u};
}

static GNNSPARSE_HD constexpr PhiloxWords philox4x32(PhiloxWords c, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t first = uint64_t{kPhiloxFirst} * c.word[0];
    const uint64_t second = uint64_t{kPhiloxSecond} * c.word[2];
    c = {{static_cast<uint32_t>(second >> 32) ^ c.word[1] ^ key.low, static_cast<uint32_t>(second),
          static_cast<uint32_t>(first >> 32) ^ c.word[3] ^ key.high, static_cast<uint32_t>(first)}};
    key = next_key(key);
  }
  return c;
}

// Edges whose word is below this are dropped; 0 drops none. p in [0, 1).
static GNNSPARSE_HD constexpr uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(p * 4294967296.0);
}

// Whether dropout keeps the edge (row, column), in the caller's numbering, of a head counted over
// the whole batch.
static GNNSPARSE_HD constexpr bool dropout_keeps(PhiloxKey key, uint32_t row, uint32_t column,
                                                 uint32_t head, uint32_t threshold) {
  return philox4x32({{row, column, head, 0}}, key).word[0] >= threshold;
}

}  // namespace gnnsparse
