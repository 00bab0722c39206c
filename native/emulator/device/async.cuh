// In place of cuda/device/async.cuh: the same functions on the emulator's shared memory.
#pragma once

#include "cuda_language.h"

namespace gnnsparse::cuda {

inline char* shared_memory(uint32_t address) { return emulator::Block::current().shared(address); }

template <class T>
T pin_register(T value) {
  return value;
}
inline void copy_async_or_zero(uint32_t shared, const void* global, bool real) {
  emulator::Block::current().copy(shared, global, real);
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

// Four 8 x 8 matrices of 16-bit elements: lane 8 i + r names row r of matrix i. A lane gets two
// neighbours of a row, or, transposed, of a column.
inline void load_four(uint32_t shared, uint32_t (&m)[4], bool transposed) {
  auto& block = emulator::Block::current();
  block.publish(&shared, sizeof shared);
  block.sync_warp();
  const int slow = block.lane() / 4;
  const int fast = 2 * (block.lane() % 4);
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int half = 0; half < 2; ++half) {
      const int row = transposed ? fast + half : slow;
      const int column = transposed ? slow : fast + half;
      uint32_t address;
      std::memcpy(&address, block.published(8 * i + row), sizeof address);
      std::memcpy(&pair[half], shared_memory(address) + 2 * column, sizeof pair[half]);
    }
    std::memcpy(&m[i], pair, sizeof m[i]);
  }
  block.sync_warp();
}
inline void load_matrices_plain(uint32_t shared, uint32_t (&m)[4]) { load_four(shared, m, false); }
inline void load_matrices(uint32_t shared, uint32_t (&m)[4]) { load_four(shared, m, true); }

inline uint32_t load_shared_word(uint32_t shared) {
  uint32_t word;
  std::memcpy(&word, shared_memory(shared), sizeof word);
  return word;
}
inline uint32_t load_shared_half(uint32_t shared) {
  uint16_t half;
  std::memcpy(&half, shared_memory(shared), sizeof half);
  return half;
}
inline void load_shared(uint32_t shared, uint32_t (&words)[4]) {
  std::memcpy(words, shared_memory(shared), sizeof words);
}
template <int kWords>
void load_shared_words(uint32_t shared, uint32_t (&words)[kWords]) {
  std::memcpy(words, shared_memory(shared), sizeof words);
}
inline void store_shared(uint32_t shared, uint32_t word) {
  std::memcpy(shared_memory(shared), &word, sizeof word);
}
inline void store_shared(uint32_t shared, uint16_t value) {
  std::memcpy(shared_memory(shared), &value, sizeof value);
}
inline void store_shared(uint32_t shared, uint4 words) {
  std::memcpy(shared_memory(shared), &words, sizeof words);
}

inline void prefetch(const void*) {}

}  // namespace gnnsparse::cuda
