// What runs beside the threads of a block: copies of TMA, products of wgmma, and the barriers that wait
// for them. Plain records; the rules are those of Machine.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "emulator/races.hpp"

namespace flashwright::emulator {

// A barrier of 8 bytes in shared memory.
struct MemoryBarrier {
  int count = 0;                             // arrivals that end a phase
  int pending = 0;                           // that the current one still waits for
  std::int64_t expected = 0, delivered = 0;  // bytes of the current phase
  unsigned phase = 0;
  int maker = 0;           // the thread that made it
  bool published = false;  // to the asynchronous proxy
  int agent = 0;           // the slot of the copies that complete on it
  std::uint32_t site = 0;
  Clock gathering, ended;  // what was handed on: in all, and up to the end of the last phase
};

// Up to 16 bytes of a copy between global and shared memory. `valid` of them, from `skip` on, are
// elements of the tensor.
struct Piece {
  char* global = nullptr;
  unsigned place = 0;  // in shared memory
  std::uint8_t bytes = 16, skip = 0, valid = 16;
};

// Where the copy of a box lies in shared memory, or that of a row, which may begin on any multiple of 16.
struct SharedTile {
  unsigned address = 0;
  int swizzle = 0;
  int alignment = 128;
};

// A load on its way to one block.
struct BulkLoad {
  std::vector<Piece> pieces;
  unsigned barrier = 0;  // its place
  std::int64_t bytes = 0;
  int block = 0, issuer_block = 0;  // of the cluster
  std::uint32_t site = 0;
  Clock issuer;  // what the thread knew that started it
};

enum class AddType : std::uint8_t { none, fp32, bf16, fp16 };

struct BulkStore {
  std::vector<Piece> pieces;
  AddType add = AddType::none;
  bool done = false;
  std::uint32_t site = 0;
};

// The accumulator of a warpgroup while products are under way: the registers hold a mark.
struct Accumulator {
  std::array<float*, 128> registers{};
  std::vector<float> values;  // [lane][register]
  int words = 0;
  int products = 0;  // in flight
};

struct Product {
  int n = 0;
  bool a_in_registers = false, a_k_major = true, b_k_major = true, first = false, bf16 = true;
  std::uint64_t a = 0, b = 0;  // descriptors
  std::array<const std::uint32_t*, 128> a_registers{};
  std::vector<std::uint32_t> a_words;  // [lane][4], as they were at the start
  std::vector<unsigned> places;        // of 16 bytes that are read
  Accumulator* d = nullptr;
  std::uint32_t site = 0;
  bool done = false;
};

// Four warps that make products together.
struct Warpgroup {
  bool fenced = false;  // since the last wait
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  std::map<float*, Accumulator> accumulators;  // by the first lane's registers
  int registers = 0;                           // of a thread, by setmaxnreg
};

}  // namespace flashwright::emulator
