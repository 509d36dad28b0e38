// wgmma: products of a warpgroup, which run beside its threads until they are waited for.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/machine.hpp"
#include "emulator/products.hpp"
#include "emulator/tensor_core.hpp"

namespace flashwright::emulator {
namespace {

// What the registers of a sum hold while products are under way: a NaN that arithmetic keeps. The
// stand-ins of wrappers know it (emulator/unit/prelude.h).
constexpr std::uint32_t kMark = 0x7fa0deadu;

bool is_mark(float value) { return std::bit_cast<std::uint32_t>(value) == kMark; }

struct ProductOperands {
  const Product* shape;
  float* d;
  const std::uint32_t* a;
};

}  // namespace

int Machine::warpgroup_agent() const {
  return static_cast<int>(threads_.size()) + warpgroup_index();
}

void Machine::fence_products(std::uint32_t site) {
  meet_warpgroup(site, nullptr,
                 [](Machine& machine, const Operands&) { machine.warpgroup().fenced = true; });
}

void Machine::commit_products(std::uint32_t site) {
  meet_warpgroup(site, nullptr, [](Machine& machine, const Operands&) {
    Warpgroup& group = machine.warpgroup();
    group.groups.push_back(std::move(group.open));  // even an empty one
    group.open.clear();
  });
}

void Machine::start_product(const Product& shape, float* d, const std::uint32_t* a_registers,
                            std::uint32_t site) {
  if (warpgroup_size() < kWarpgroup) {
    findings_.add(Kind::divergent_collective, site, [&] {
      return fmt::format("{} starts a product, but its warpgroup has {} threads: {}", who(thread_),
                         warpgroup_size(), at(site));
    });
    return stop();
  }
  ProductOperands operands{&shape, d, a_registers};
  meet_warpgroup(site, &operands, [](Machine& machine, const Operands& lanes) {
    const auto of = [&](std::size_t lane) {
      return static_cast<const ProductOperands*>(lanes[lane]);
    };
    Product product = *of(0)->shape;
    std::array<float*, kWarpgroup> sums{};
    if (product.a_in_registers) product.a_words.resize(4 * kWarpgroup);
    for (std::size_t lane = 0; lane < kWarpgroup; ++lane) {
      sums[lane] = of(lane)->d;
      product.a_registers[lane] = of(lane)->a;
      if (product.a_in_registers) std::copy_n(of(lane)->a, 4, &product.a_words[4 * lane]);
      if (of(lane)->shape->a == product.a && of(lane)->shape->b == product.b) continue;
      machine.findings_.add(Kind::descriptor, product.site, [&] {
        return fmt::format("the threads of {}'s warpgroup name different matrices: {}",
                           machine.who(machine.thread_), machine.at(product.site));
      });
    }
    machine.begin_product(std::move(product), sums.data());
  });
}

// Finds what the product reads, and marks its sums as under way.
void Machine::begin_product(Product product, float* const* d) {
  Warpgroup& group = warpgroup();
  if (!group.fenced)
    findings_.add(Kind::product_fence, product.site, [&] {
      return fmt::format("{} starts a product with no fence_products() since the last wait: {}",
                         who(thread_), at(product.site));
    });
  if (!product.a_in_registers && !find_places(product, product.a, product.a_k_major, 64)) return;
  if (!find_places(product, product.b, product.b_k_major, product.n)) return;
  const int words = product.n / 2;
  Accumulator& sums = group.accumulators[d[0]];
  if (sums.products == 0) {
    sums.words = words;
    sums.values.resize(static_cast<std::size_t>(words * kWarpgroup));
    for (std::size_t lane = 0; lane < kWarpgroup; ++lane) {
      sums.registers[lane] = d[lane];
      std::copy_n(d[lane], words, &sums.values[lane * static_cast<std::size_t>(words)]);
    }
  } else if (sums.words != words) {
    findings_.add(Kind::accumulator_in_flight, product.site, [&] {
      return fmt::format("{} starts a product of another shape into sums that are under way: {}",
                         who(thread_), at(product.site));
    });
    return;
  }
  for (std::size_t lane = 0; lane < kWarpgroup; ++lane)
    std::fill_n(d[lane], words, std::bit_cast<float>(kMark));
  ++sums.products;
  product.d = &sums;
  group.open.push_back(std::move(product));
  const bool now = options_.mode == Mode::early || (options_.mode == Mode::random && chance(2));
  if (!now) return;
  for (std::vector<Product>& earlier : group.groups)
    for (Product& one : earlier) complete_product(one);
  for (Product& one : group.open) complete_product(one);
}

bool Machine::find_places(Product& product, std::uint64_t bits, bool k_major, int rows) {
  const Descriptor descriptor = decode_descriptor(bits);
  if (const std::string fault = descriptor_fault(descriptor, k_major, rows); !fault.empty()) {
    findings_.add(Kind::descriptor, product.site, [&] {
      return fmt::format("{} reads a matrix whose descriptor {}: {}", who(thread_), fault,
                         at(product.site));
    });
    return false;
  }
  const int first = warpgroup_begin();
  const int readers[] = {first, first + 32, first + 64, first + 96};
  for (const Chunk& chunk : chunks_of(descriptor, k_major, rows)) {
    const std::optional<unsigned> place =
        place_of(chunk.address, 16, 16, false, product.site, thread_);
    if (!place || !check_no_barrier(*place, 16, product.site, thread_)) return false;
    check_values(*place, 16, product.site, thread_);
    check_async_read(*place, 16, product.site);
    if (options_.races)
      report_race(races_.begin_read(readers, warpgroup_agent(), *place, 16, product.site), "reads",
                  product.site, thread_, *place);
    product.places.push_back(*place);
  }
  return true;
}

void Machine::read_operand(std::uint64_t bits, bool k_major, int rows, bool bf16, float* to) {
  const auto own = static_cast<unsigned>(block_in_cluster() * shape_.smem_bytes);
  for (const Chunk& chunk : chunks_of(decode_descriptor(bits), k_major, rows)) {
    std::uint16_t elements[8];
    std::memcpy(elements, &shared_[chunk.address - shared_begin_ + own], sizeof elements);
    for (int i = 0; i < 8; ++i)
      to[k_major ? chunk.row * 16 + chunk.k + i : (chunk.row + i) * 16 + chunk.k] =
          element_value(elements[i], bf16);
  }
}

void Machine::complete_product(Product& product) {
  if (product.done) return;
  product.done = true;
  std::vector<float> a(64 * 16), b(static_cast<std::size_t>(product.n) * 16),
      sums(64 * static_cast<std::size_t>(product.n), 0.0f);
  if (product.a_in_registers) {
    for (int lane = 0; lane < kWarpgroup; ++lane)
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t pair = product.a_words[static_cast<std::size_t>(4 * lane + i)];
        const int row = lane / 32 * 16 + lane % 32 / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
        float* const to = &a[static_cast<std::size_t>(row * 16 + k)];
        to[0] = element_value(static_cast<std::uint16_t>(pair), product.bf16);
        to[1] = element_value(static_cast<std::uint16_t>(pair >> 16), product.bf16);
      }
  } else {
    read_operand(product.a, product.a_k_major, 64, product.bf16, a.data());
  }
  read_operand(product.b, product.b_k_major, product.n, product.bf16, b.data());
  const auto each = [&](auto&& visit) {
    for (int lane = 0; lane < kWarpgroup; ++lane)
      for (int i = 0; i < product.d->words; ++i) {
        const Cell64 cell = accumulator_cell(lane, i);
        visit(product.d->values[static_cast<std::size_t>(lane * product.d->words + i)],
              sums[static_cast<std::size_t>(cell.row * product.n + cell.column)]);
      }
  };
  if (!product.first) each([](float& value, float& sum) { sum = value; });
  multiply_warpgroup(a.data(), b.data(), product.n, sums.data());
  each([](float& value, float& sum) { value = std::isnan(sum) ? kNan : sum; });
}

// Gives the sums back to their registers when this was the last product on them.
void Machine::retire_product(Product& product) {
  complete_product(product);
  if (options_.races)
    for (const unsigned place : product.places) races_.end_read(warpgroup_agent(), place, 16);
  if (product.a_in_registers)
    for (std::size_t lane = 0; lane < kWarpgroup; ++lane)
      if (!std::equal(product.a_registers[lane], product.a_registers[lane] + 4,
                      &product.a_words[4 * lane])) {
        findings_.add(Kind::operand_in_flight, product.site, [&] {
          return fmt::format("operands in registers were written before the wait for {}",
                             at(product.site));
        });
        break;
      }
  Accumulator& sums = *product.d;
  if (--sums.products > 0) return;
  const auto words = static_cast<std::size_t>(sums.words);
  for (std::size_t lane = 0; lane < kWarpgroup; ++lane) {
    float* const registers = sums.registers[lane];
    if (!std::all_of(registers, registers + words, is_mark))
      findings_.add(Kind::accumulator_in_flight, product.site, [&] {
        return fmt::format("sums were written before the wait for {}", at(product.site));
      });
    std::copy_n(&sums.values[lane * words], words, registers);
  }
  warpgroup().accumulators.erase(sums.registers[0]);
}

void Machine::complete_products(std::size_t groups_left) {
  Warpgroup& group = warpgroup();
  bool any = false;
  while (group.groups.size() > groups_left) {
    any = any || !group.groups.front().empty();
    for (Product& product : group.groups.front()) retire_product(product);
    group.groups.pop_front();
  }
  if (!any) return;
  group.fenced = false;
  if (!options_.races) return;
  // What still runs may read the same places.
  const int agent = warpgroup_agent();
  Clock done;
  races_.release_agent(agent, done);
  const int first = warpgroup_begin();
  for (int i = 0; i < kWarpgroup; ++i) races_.acquire(first + i, done);
  for (const std::vector<Product>& later : group.groups)
    for (const Product& product : later)
      for (const unsigned place : product.places)
        races_.begin_read(std::span(&first, 1), agent, place, 16, product.site);
}

void Machine::wait_products(int pending, std::uint32_t site) {
  meet_warpgroup(site, nullptr, [](Machine&, const Operands&) {});
  // The first thread to go on retires; the others find nothing left.
  complete_products(static_cast<std::size_t>(pending));
}

}  // namespace flashwright::emulator
