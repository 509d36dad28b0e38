// TMA: boxes and rows between global and shared memory, beside the threads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/dtype.hpp"
#include "emulator/machine.hpp"
#include "emulator/products.hpp"
#include "emulator/tensor_map.hpp"

namespace flashwright::emulator {
namespace {

std::int64_t bytes_of(const std::vector<Piece>& pieces) {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

template <typename Value>
Value add(DType dtype, Value a, Value b) {
  Value sum;
  from_float(dtype, to_float(dtype, &a) + to_float(dtype, &b), &sum);
  return sum;
}

template <typename Value>
void add_all(DType dtype, char* to, const unsigned char* from, int bytes) {
  for (int i = 0; i < bytes; i += static_cast<int>(sizeof(Value))) {
    Value a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a = add(dtype, a, b);
    std::memcpy(to + i, &a, sizeof a);
  }
}

void add_piece(AddType type, char* to, const unsigned char* from, int bytes) {
  switch (type) {
    case AddType::none:
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
      return;
    case AddType::fp32:
      return add_all<float>(DType::fp32, to, from, bytes);
    case AddType::bf16:
      return add_all<std::uint16_t>(DType::bf16, to, from, bytes);
    case AddType::fp16:
      return add_all<std::uint16_t>(DType::fp16, to, from, bytes);
  }
}

}  // namespace

void Machine::fence_async_shared(std::uint32_t site) {
  count_step(site);
  for (const auto& [place, bytes] : self().unfenced)
    for (unsigned i = place; i < place + static_cast<unsigned>(bytes); ++i)
      if (unfenced_[i] == thread_ + 1) unfenced_[i] = 0;
  self().unfenced.clear();
}

// Whether what TMA or wgmma is about to read has been published by its writer.
bool Machine::check_async_read(unsigned place, int bytes, std::uint32_t site) {
  for (unsigned i = place; i < place + static_cast<unsigned>(bytes); ++i) {
    if (unfenced_[i] == 0) continue;
    findings_.add(Kind::async_proxy, site, [&] {
      return fmt::format(
          "{} lets {} be read beside the threads, which {} has written without a "
          "fence_async_shared() since: {}",
          who(thread_), address_text(i), who(unfenced_[i] - 1), at(site));
    });
    return false;
  }
  return true;
}

bool Machine::decode(const void* map, int rank, std::uint32_t site, TensorMapSpec& spec) {
  const bool known = decode_tensor_map(map, spec);
  if (known && spec.rank == rank) return true;
  findings_.add(Kind::tensor_map, site, [&] {
    return known ? fmt::format("{} uses a tensor map of {} dimensions as one of {}: {}",
                               who(thread_), spec.rank, rank, at(site))
                 : fmt::format("{} uses bytes that are no tensor map: {}", who(thread_), at(site));
  });
  return false;
}

// A device takes a box that begins elsewhere in a row for an illegal instruction, even one that lies
// outside of the tensor; measured on an H200.
void Machine::check_box_start(const TensorMapSpec& spec, int x, std::uint32_t site) {
  const std::int64_t byte = std::int64_t{x} * info(spec.dtype).bytes;
  if (byte % 16 == 0) return;
  findings_.add(Kind::global_alignment, site, [&] {
    return fmt::format(
        "{} begins a box at element {} of a row, byte {}; allowed: multiples of 16 bytes, negative "
        "ones too: {}",
        who(thread_), x, byte, at(site));
  });
  stop();
}

// Puts the pieces where the swizzle has them, counted in the block of the running thread.
bool Machine::place_pieces(std::vector<Piece>& pieces, const SharedTile& tile, std::uint32_t site) {
  const auto bytes = static_cast<int>(bytes_of(pieces));
  if (!place_of(tile.address, bytes, tile.alignment, false, site, thread_)) return false;
  if (tile.swizzle != 0 && tile.address % static_cast<unsigned>(8 * tile.swizzle) != 0)
    findings_.add(Kind::tile_alignment, site, [&] {
      return fmt::format(
          "{} puts a tile with a swizzle of {} bytes at shared address {}, no "
          "multiple of {}: {}",
          who(thread_), tile.swizzle, tile.address - shared_begin_, 8 * tile.swizzle, at(site));
    });
  const auto size = static_cast<unsigned>(shape_.smem_bytes);
  const unsigned own = static_cast<unsigned>(block_in_cluster()) * size;
  for (Piece& piece : pieces) {
    const unsigned offset = swizzled(tile.address + piece.place, tile.swizzle) - shared_begin_;
    piece.place = own + std::min(offset, size - 16);
  }
  return true;
}

// What else a device does not forgive a store or a sum, measured on an H200: it takes a start before the
// tensor, in any dimension, for an illegal instruction, and writes behind the end of a row up to a multiple
// of 16 bytes. A load may begin and end anywhere.
void Machine::check_stored_box(const TensorMapSpec& spec, const int* at_element,
                               std::uint32_t site) {
  const int* end = at_element + spec.rank;
  const int* before = std::find_if(at_element, end, [](int x) { return x < 0; });
  const std::int64_t row = spec.shape[0] * info(spec.dtype).bytes;
  if (before == end && row % 16 == 0) return;
  findings_.add(Kind::global_bounds, site, [&] {
    return before == end
               ? fmt::format("{} stores a box into rows of {} bytes; allowed: multiples of 16: {}",
                             who(thread_), row, at(site))
               : fmt::format(
                     "{} begins to store a box at coordinate {} of dimension {}; allowed: "
                     "0 and more: {}",
                     who(thread_), *before, before - at_element, at(site));
  });
  stop();
}

void Machine::load_box(unsigned shared, const void* map, unsigned barrier, const int* at_element,
                       int rank, unsigned blocks, std::uint32_t site) {
  count_step(site);
  TensorMapSpec spec;
  if (!decode(map, rank, site, spec)) return;
  check_box_start(spec, at_element[0], site);
  start_load(box_pieces(spec, at_element), {shared, spec.swizzle}, barrier, blocks, site);
}

void Machine::load_row(unsigned shared, const void* global, int bytes, unsigned barrier,
                       std::uint32_t site) {
  count_step(site);
  if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    findings_.add(Kind::global_alignment, site, [&] {
      return fmt::format("{} loads {} bytes from {}; allowed: multiples of 16: {}", who(thread_),
                         bytes, memory_.place_of(global), at(site));
    });
    return;
  }
  start_load(row_pieces(global, bytes), {shared, 0, 16}, barrier, 0, site);
}

void Machine::start_load(const std::vector<Piece>& pieces, const SharedTile& tile, unsigned barrier,
                         unsigned blocks, std::uint32_t site) {
  std::vector<Piece> placed = pieces;
  if (!place_pieces(placed, tile, site)) return;
  for (const Piece& piece : placed)
    if (piece.valid > 0 && !check_range(piece.global, piece.valid, site, Use::read)) return;
  const std::int64_t bytes = bytes_of(placed);
  const int own = block_in_cluster();
  if (blocks == 0) return start_load_in(own, placed, barrier, bytes, site);
  for (int block = 0; block < 16; ++block) {
    if ((blocks >> block & 1u) == 0) continue;
    if (block >= shape_.cluster) {
      findings_.add(Kind::shared_bounds, site, [&] {
        return fmt::format("{} loads into block {} of a cluster of {}: {}", who(thread_), block,
                           shape_.cluster, at(site));
      });
      continue;
    }
    std::vector<Piece> there = placed;
    for (Piece& piece : there)
      piece.place += static_cast<unsigned>((block - own) * shape_.smem_bytes);
    start_load_in(block, there, barrier, bytes, site);
  }
}

void Machine::start_load_in(int block, const std::vector<Piece>& pieces, unsigned barrier,
                            std::int64_t bytes, std::uint32_t site) {
  const std::optional<unsigned> own = place_of(barrier, 8, 8, false, site, thread_);
  if (!own) return;
  const unsigned place =
      *own + static_cast<unsigned>((block - block_in_cluster()) * shape_.smem_bytes);
  const auto found = barriers_.find(place);
  if (found == barriers_.end() || !found->second.published) {
    misuse(site, fmt::format("lets a copy complete on {}, {}", address_text(place),
                             found == barriers_.end() ? "where nobody has made a barrier"
                                                      : "a barrier that was not published"));
    if (found == barriers_.end()) return;
  }
  if (options_.races)
    report_race(races_.read(thread_, place, 8, site), "uses the barrier at", site, thread_, place);
  BulkLoad load{pieces, place, bytes, block, block_in_cluster(), site, {}};
  for (const Piece& piece : pieces) {
    if (!check_no_barrier(piece.place, piece.bytes, site, thread_)) return;
    if (options_.races)
      report_race(races_.begin_write(thread_, found->second.agent, piece.place, piece.bytes, site),
                  "starts to write", site, thread_, piece.place);
    std::memset(&shared_[piece.place], 0xff, piece.bytes);
    set_bytes(piece.place, piece.bytes, Byte::in_flight);
  }
  if (options_.races) races_.release(thread_, load.issuer);
  loads_.push_back(std::move(load));
  if (options_.mode == Mode::early) complete_load(loads_.size() - 1);
  maybe_yield();
}

void Machine::complete_load(std::size_t index) {
  const BulkLoad load = std::move(loads_[index]);
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(index));
  MemoryBarrier& barrier = barriers_.at(load.barrier);
  const bool own = load.block == load.issuer_block;
  if (own && blocks_[static_cast<std::size_t>(load.block)].exited == shape_.threads)
    findings_.add(Kind::copy_not_waited_for, load.site, [&] {
      return fmt::format("a copy arrives in block {}, whose threads have exited: {}",
                         block_ + load.block, at(load.site));
    });
  for (const Piece& piece : load.pieces) {
    std::memset(&shared_[piece.place], 0, piece.bytes);
    if (piece.valid > 0) std::memcpy(&shared_[piece.place + piece.skip], piece.global, piece.valid);
    set_bytes(piece.place, piece.bytes, Byte::initialised);
    std::fill_n(unfenced_.begin() + piece.place, piece.bytes, std::uint16_t{0});
    if (options_.races) races_.end_write(barrier.agent, piece.place, piece.bytes);
  }
  if (options_.races) {
    Clock& known = barrier.gathering;
    known.resize(std::max(known.size(), load.issuer.size()), 0);
    for (std::size_t i = 0; i < load.issuer.size(); ++i)
      known[i] = std::max(known[i], load.issuer[i]);
    races_.release_agent(barrier.agent, known);
  }
  if (!own) note_peer(load.block, barrier.agent, load.site);
  if (own && options_.races) {
    Access access = races_.now(barrier.agent);
    access.site = load.site;
    blocks_[static_cast<std::size_t>(load.block)].loads.push_back(access);
  }
  barrier.delivered += load.bytes;
  end_phase_if_complete(load.barrier, barrier);
}

// When nobody can go on, the oldest copy arrives.
bool Machine::complete_some_load() {
  if (loads_.empty()) return false;
  complete_load(options_.mode == Mode::random ? random_() % loads_.size() : 0);
  return true;
}

void Machine::store_box(const void* map, unsigned shared, const int* at_element, int rank,
                        bool adds, std::uint32_t site) {
  count_step(site);
  TensorMapSpec spec;
  if (!decode(map, rank, site, spec)) return;
  check_box_start(spec, at_element[0], site);
  check_stored_box(spec, at_element, site);
  const AddType type = !adds                       ? AddType::none
                       : spec.dtype == DType::fp32 ? AddType::fp32
                       : spec.dtype == DType::bf16 ? AddType::bf16
                                                   : AddType::fp16;
  start_store(box_pieces(spec, at_element), {shared, spec.swizzle}, type, site);
}

void Machine::store_row(void* global, unsigned shared, int bytes, bool adds, std::uint32_t site) {
  count_step(site);
  if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0) {
    findings_.add(Kind::global_alignment, site, [&] {
      return fmt::format("{} stores {} bytes to {}; allowed: multiples of 16: {}", who(thread_),
                         bytes, memory_.place_of(global), at(site));
    });
    return;
  }
  start_store(row_pieces(global, bytes), {shared, 0, 16}, adds ? AddType::fp32 : AddType::none,
              site);
}

void Machine::start_store(std::vector<Piece> pieces, const SharedTile& tile, AddType add,
                          std::uint32_t site) {
  if (!place_pieces(pieces, tile, site)) return;
  for (const Piece& piece : pieces) {
    if (piece.valid == 0) continue;
    if (!check_no_barrier(piece.place, piece.bytes, site, thread_)) return;
    check_values(piece.place + piece.skip, piece.valid, site, thread_);
    check_async_read(piece.place + piece.skip, piece.valid, site);
    if (options_.races) {
      const int readers[] = {thread_};
      report_race(races_.begin_read(readers, thread_, piece.place, piece.bytes, site),
                  "starts to read", site, thread_, piece.place);
    }
    if (!check_range(piece.global, piece.valid, site,
                     add == AddType::none ? Use::write : Use::both))
      return;
  }
  self().open_stores.push_back({std::move(pieces), add, false, site});
  if (options_.mode == Mode::early || (options_.mode == Mode::random && chance(2)))
    complete_store(self().open_stores.back());
  maybe_yield();
}

void Machine::complete_store(BulkStore& store) {
  if (store.done) return;
  store.done = true;
  const auto lock = memory_.lock();
  for (const Piece& piece : store.pieces)
    if (piece.valid > 0)
      add_piece(store.add, piece.global, &shared_[piece.place + piece.skip], piece.valid);
}

void Machine::end_store(BulkStore& store, int thread) {
  complete_store(store);
  if (!options_.races) return;
  for (const Piece& piece : store.pieces)
    if (piece.valid > 0) races_.end_read(thread, piece.place, piece.bytes);
}

void Machine::commit_stores(std::uint32_t site) {
  count_step(site);
  self().store_groups.push_back(std::move(self().open_stores));  // even an empty one
  self().open_stores.clear();
}

// Whether a store has read its source or is in memory makes no difference to what a kernel can see of
// its own shared memory; so one wait serves both.
void Machine::wait_stores(int pending, std::uint32_t site) {
  count_step(site);
  auto& groups = self().store_groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (BulkStore& store : groups.front()) end_store(store, thread_);
    groups.pop_front();
  }
}

}  // namespace flashwright::emulator
