// The memory that a launch may touch, byte by byte: which bytes belong to an element, which hold a value.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "core/arguments.hpp"

namespace flashwright::emulator {

class GlobalMemory {
 public:
  // `sums` hold values and may be written.
  enum class Use : std::uint8_t { input, output, workspace, sums };

  // The elements of a view alone: what lies between its rows is out of bounds.
  void add(const std::string& name, const TensorView& view, Use use);
  void add(const std::string& name, const void* data, std::size_t bytes, Use use);

  enum class Fault : std::uint8_t { none, bounds, uninitialised };
  // An access that is allowed; a write makes its bytes initialised. Threads may ask at the same time,
  // since no two of them may write the same byte.
  Fault read(const void* address, int bytes);
  Fault write(const void* address, int bytes);

  // For sums of several blocks, which one thread of the host makes at a time.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // "32 bytes behind the end of k"
  std::string place_of(const void* address) const;

 private:
  struct Region {
    std::string name;
    std::uintptr_t begin;
    std::vector<std::uint8_t> state;  // of each byte
  };
  std::uint8_t* find(const void* address, int bytes);

  std::vector<Region> regions_;
  std::mutex mutex_;
};

}  // namespace flashwright::emulator
