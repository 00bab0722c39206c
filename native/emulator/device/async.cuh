// In place of cuda/device/async.cuh: the same functions on the emulator's shared memory.
#pragma once

#include "cuda_language.h"

namespace gnnsparse::cuda {

// `bytes` of shared memory.
inline char* shared_memory(uint32_t address, uint32_t bytes) {
  return emulator::Block::current().shared(address, bytes);
}

template <class T>
T pin_register(T value) {
  return value;
}
inline void copy_async(uint32_t shared, const void* global, int bytes = 16) {
  emulator::Block::current().copy(shared, global, static_cast<uint32_t>(bytes));
}
inline void copy_async_or_zero(uint32_t shared, const void* global, bool real) {
  copy_async(shared, global, real ? 16 : 0);
}
template <int kBytes>
void copy_number_async(uint32_t shared, const void* global, bool real) {
  emulator::Block::current().copy(shared, global, real ? kBytes : 0, kBytes);
}
inline void commit_copies() { emulator::Block::current().commit(); }
template <int kGroups>
void wait_copies_but() {
  emulator::Block::current().wait_for_all_but(kGroups);
}

inline void wait_copies() {
  commit_copies();
  wait_copies_but<0>();
}

inline void make_barrier(uint32_t shared, uint32_t arrivals) {
  emulator::Block::current().make_barrier(shared, arrivals);
}
inline void arrive_at(uint32_t barrier) { emulator::Block::current().arrive_at(barrier); }
inline void wait_at(uint32_t barrier, uint32_t parity) {
  emulator::Block::current().wait_at(barrier, parity);
}

// Four 8 x 8 matrices of 16-bit elements: lane 8 i + r names row r of matrix i. A lane gets two
// neighbours of a row, or, transposed, of a column.
struct FourWords {
  uint32_t word[4];
};
template <bool kTransposed>
void load_four(const uint32_t (&rows)[emulator::kLanes], FourWords (&taken)[emulator::kLanes]) {
  for (int i = 0; i < 4; ++i) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      std::memcpy(matrix[row], shared_memory(rows[8 * i + row], 16), sizeof matrix[row]);
    }
    for (unsigned lane = 0; lane < emulator::kLanes; ++lane) {
      const int slow = lane / 4;
      const int fast = 2 * (lane % 4);
      const uint16_t low = kTransposed ? matrix[fast][slow] : matrix[slow][fast];
      const uint16_t high = kTransposed ? matrix[fast + 1][slow] : matrix[slow][fast + 1];
      taken[lane].word[i] = low | static_cast<uint32_t>(high) << 16;
    }
  }
}
template <bool kTransposed>
void load_matrices_of(uint32_t shared, uint32_t (&m)[4]) {
  const auto words = emulator::Block::current().meet(shared, &load_four<kTransposed>);
  std::memcpy(m, words.word, sizeof m);
}
inline void load_matrices_plain(uint32_t shared, uint32_t (&m)[4]) {
  load_matrices_of<false>(shared, m);
}
inline void load_matrices(uint32_t shared, uint32_t (&m)[4]) { load_matrices_of<true>(shared, m); }

inline uint32_t load_shared_word(uint32_t shared) {
  uint32_t word;
  std::memcpy(&word, shared_memory(shared, sizeof word), sizeof word);
  return word;
}
inline uint32_t load_shared_half(uint32_t shared) {
  uint16_t half;
  std::memcpy(&half, shared_memory(shared, sizeof half), sizeof half);
  return half;
}
inline void load_shared(uint32_t shared, uint32_t (&words)[4]) {
  std::memcpy(words, shared_memory(shared, sizeof words), sizeof words);
}
inline void load_shared_pair(uint32_t shared, uint32_t (&words)[4]) {
  std::memcpy(words, shared_memory(shared, 8), 8);
}
template <int kWords>
void load_shared_words(uint32_t shared, uint32_t (&words)[kWords]) {
  for (int i = 0; i < kWords; i += 4) {
    std::memcpy(words + i, shared_memory(shared + 4 * i, 16), 16);
  }
}
template <class T>
void store_shared(uint32_t shared, T value) {
  std::memcpy(shared_memory(shared, sizeof value), &value, sizeof value);
}

inline void prefetch(const void*) {}

}  // namespace gnnsparse::cuda
