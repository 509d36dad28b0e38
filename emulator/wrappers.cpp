// The functions behind the stand-ins of wrapper_table.cpp.
#include <algorithm>
#include <cmath>

#include "core/dtype.hpp"
#include "emulator/machine.hpp"
#include "emulator/tensor_core.hpp"

namespace flashwright::emulator {
namespace {

Machine& here() { return Machine::current(); }

struct ShuffleOperands {
  std::uint32_t value;
  int lane;  // whose value is wanted
  std::uint32_t result;
};

void shuffle_all(Machine&, const Machine::Operands& lanes) {
  for (void* const lane : lanes) {
    auto& mine = *static_cast<ShuffleOperands*>(lane);
    mine.result =
        static_cast<const ShuffleOperands*>(lanes[static_cast<std::size_t>(mine.lane & 31)])->value;
  }
}

unsigned shuffle(unsigned bits, int lane, unsigned site) {
  ShuffleOperands operands{bits, lane, 0};
  here().meet(site, &operands, &shuffle_all);
  return operands.result;
}

unsigned shuffle_xor(unsigned bits, int lane_bits, unsigned site) {
  return shuffle(bits, here().thread() % 32 ^ lane_bits, site);
}

void vote_all(Machine&, const Machine::Operands& lanes) {
  const bool any = std::any_of(lanes.begin(), lanes.end(), [](const void* lane) {
    return *static_cast<const int*>(lane) != 0;
  });
  for (void* const lane : lanes) *static_cast<int*>(lane) = any ? 1 : 0;
}

int any_lane(int condition, unsigned site) {
  here().meet(site, &condition, &vote_all);
  return condition;
}

void synchronize_block(unsigned site) { here().synchronize_block(site); }

void synchronize_warp(unsigned site) {
  here().meet(site, nullptr,
              [](Machine& machine, const Machine::Operands&) { machine.join_warp(); });
}

void load_shared(void* value, unsigned address, int bytes, unsigned site) {
  here().count_step(site);
  here().load_shared(value, address, bytes, site, here().thread());
  here().count_banks(address, bytes, site);
  here().maybe_yield();
}

void store_shared(unsigned address, const void* value, int bytes, unsigned site) {
  here().count_step(site);
  here().store_shared(address, value, bytes, site, here().thread());
  here().count_banks(address, bytes, site);
  here().maybe_yield();
}

void load_global(void* value, const void* address, int bytes, unsigned site) {
  here().count_step(site);
  here().load_global(value, address, bytes, site);
}

void store_global(void* address, const void* value, int bytes, unsigned site) {
  here().count_step(site);
  here().store_global(address, value, bytes, site);
}

unsigned long long compare_and_swap(unsigned long long* address, unsigned long long expected,
                                    unsigned long long value, unsigned site) {
  here().count_step(site);
  const unsigned long long old = here().compare_and_swap(address, expected, value, site);
  here().maybe_yield();
  return old;
}

unsigned increment_within(unsigned* address, unsigned last, unsigned site) {
  here().count_step(site);
  const unsigned old = here().increment_within(address, last, site);
  here().maybe_yield();
  return old;
}

void copy_async(unsigned shared, const void* global, int valid, unsigned site) {
  here().count_step(site);
  here().copy_async(shared, global, valid != 0, site);
  here().maybe_yield();
}

struct MatrixOperands {
  std::uint32_t* words;
  unsigned address;
  unsigned site;
  bool transposed;
};

void load_matrices_all(Machine& machine, const Machine::Operands& lanes) {
  Matrices matrices{};
  const int first = machine.thread() / 32 * 32;
  const auto operands = [&](std::size_t lane) {
    return static_cast<const MatrixOperands*>(lanes[lane]);
  };
  int passes = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    std::array<unsigned, 8> addresses{};
    for (std::size_t row = 0; row < 8; ++row) {
      const std::size_t lane = 8 * i + row;
      addresses[row] = operands(lane)->address;
      machine.load_shared(matrices[i][row].data(), addresses[row], 16, operands(lane)->site,
                          first + static_cast<int>(lane));
    }
    passes += extra_passes(addresses.data(), 8, 16);
  }
  if (passes > 0) machine.add_conflicts(operands(0)->site, passes);
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      operands(lane)->words[i] =
          matrix_word(matrices, i, static_cast<int>(lane), operands(lane)->transposed);
}

void load_matrices(unsigned* words, unsigned address, int transposed, unsigned site) {
  MatrixOperands operands{words, address, site, transposed != 0};
  here().meet(site, &operands, &load_matrices_all);
}

void store_matrices_all(Machine& machine, const Machine::Operands& lanes) {
  const int first = machine.thread() / 32 * 32;
  const auto operands = [&](std::size_t lane) {
    return static_cast<const MatrixOperands*>(lanes[lane]);
  };
  int passes = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    std::array<unsigned, 8> addresses{};
    for (std::size_t row = 0; row < 8; ++row) {
      const std::size_t lane = 8 * i + row;
      std::array<std::uint16_t, 8> elements{};
      for (std::size_t column = 0; column < 8; ++column) {
        // Transposed, row and column change places.
        const std::size_t r = operands(0)->transposed ? column : row,
                          c = operands(0)->transposed ? row : column;
        const std::uint32_t word = operands(4 * r + c / 2)->words[i];
        elements[column] = static_cast<std::uint16_t>(word >> c % 2 * 16);
      }
      addresses[row] = operands(lane)->address;
      machine.store_shared(addresses[row], elements.data(), 16, operands(lane)->site,
                           first + static_cast<int>(lane));
    }
    passes += extra_passes(addresses.data(), 8, 16);
  }
  if (passes > 0) machine.add_conflicts(operands(0)->site, passes);
}

void store_matrices(unsigned address, const unsigned* words, int transposed, unsigned site) {
  MatrixOperands operands{const_cast<unsigned*>(words), address, site, transposed != 0};
  here().meet(site, &operands, &store_matrices_all);
}

int elect_lane(unsigned site) {
  here().meet(site, nullptr, nullptr);
  return here().thread() % 32 == here().elected_lane() ? 1 : 0;
}

void start_product(float* d, int n, const unsigned* a_words, unsigned long long a,
                   unsigned long long b, int form, unsigned site) {
  Product shape;
  shape.n = n;
  shape.a_in_registers = a_words != nullptr;
  shape.a_k_major = (form & 1) == 0;
  shape.b_k_major = (form & 2) == 0;
  shape.first = (form & 4) != 0;
  shape.bf16 = (form & 8) == 0;
  shape.a = a;
  shape.b = b;
  shape.site = site;
  here().start_product(shape, d, a_words, site);
}

template <void (*kMultiply)(const WarpMultiply&)>
void multiply(float* d, const unsigned* a, const unsigned* b, unsigned site) {
  MultiplyOperands operands{d, a, b};
  here().meet(site, &operands, [](Machine&, const Machine::Operands& lanes) {
    WarpMultiply all;
    for (std::size_t i = 0; i < 32; ++i) all[i] = static_cast<const MultiplyOperands*>(lanes[i]);
    kMultiply(all);
  });
}

// Instructions give one NaN, whatever they got.
float one_nan(float value) { return std::isnan(value) ? kNan : value; }

// Results below the normal numbers become 0, as ftz says.
float exp2_flushed(float x) {
  const float value = std::exp2(x);
  return value < 0x1p-126f ? 0.0f : one_nan(value);
}

float reciprocal_flushed(float x) {
  const auto flushed = [](float v) {
    return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v;
  };
  return one_nan(flushed(1 / flushed(x)));
}

// As coarse as the manual allows: rounded to 10 bits behind the point, a relative error of up to 2^-11.
float tanh_rounded(float x) {
  int exponent = 0;
  const double fraction = std::frexp(std::tanh(static_cast<double>(x)), &exponent);
  return one_nan(static_cast<float>(std::ldexp(std::nearbyint(fraction * 0x1p11), exponent - 11)));
}

constexpr FwEmulator kInterface = {
    4,
    [] { return here().thread_in_block(); },
    [] { return static_cast<long long>(here().block()); },
    [] { return static_cast<long long>(here().blocks_of_grid()); },
    [] { return here().shared_begin(); },
    [] { return 0ull; },
    &synchronize_block,
    &synchronize_warp,
    &shuffle_xor,
    &shuffle,
    &any_lane,
    &load_shared,
    &store_shared,
    &load_global,
    &store_global,
    &compare_and_swap,
    &increment_within,
    &copy_async,
    [](unsigned site) { here().commit_copies(site); },
    [](int pending, unsigned site) { here().wait_copies(pending, site); },
    &load_matrices,
    &multiply<multiply_bf16>,
    &multiply<multiply_fp16>,
    &multiply<multiply_tf32>,
    [](unsigned barrier, int count, unsigned site) { here().init_barrier(barrier, count, site); },
    [](unsigned site) { here().publish_barriers(site); },
    [](unsigned barrier, int bytes, int remote, unsigned site) {
      here().arrive(barrier, bytes, remote != 0, site);
    },
    [](unsigned barrier, unsigned parity, unsigned site) {
      here().wait_barrier(barrier, parity, site);
    },
    [](int barrier, int threads, unsigned site) {
      here().synchronize_named(barrier, threads, site);
    },
    [](int barrier, int threads, unsigned site) { here().arrive_named(barrier, threads, site); },
    [](unsigned site) { here().fence_async_shared(site); },
    [] { return static_cast<unsigned>(here().block_in_cluster()); },
    [](unsigned address, unsigned rank, unsigned site) {
      return here().address_in_block(address, rank, site);
    },
    [](unsigned site) { here().synchronize_cluster(site); },
    &elect_lane,
    [](int registers, int more, unsigned site) {
      here().set_registers(registers, more != 0, site);
    },
    [](unsigned shared, const void* map, unsigned barrier, const int* at, int rank, unsigned blocks,
       unsigned site) { here().load_box(shared, map, barrier, at, rank, blocks, site); },
    [](unsigned shared, const void* global, int bytes, unsigned barrier, unsigned site) {
      here().load_row(shared, global, bytes, barrier, site);
    },
    [](const void* map, unsigned shared, const int* at, int rank, int add, unsigned site) {
      here().store_box(map, shared, at, rank, add != 0, site);
    },
    [](void* global, unsigned shared, int bytes, int add, unsigned site) {
      here().store_row(global, shared, bytes, add != 0, site);
    },
    [](unsigned site) { here().commit_stores(site); },
    [](int pending, unsigned site) { here().wait_stores(pending, site); },
    [](unsigned site) { here().fence_products(site); },
    &start_product,
    [](unsigned site) { here().commit_products(site); },
    [](int pending, unsigned site) { here().wait_products(pending, site); },
    &store_matrices,
    [](unsigned site) { here().touched(site); },
    &Machine::tick,
    [](float a, float b, float c) { return one_nan(std::fma(a, b, c)); },
    &exp2_flushed,
    &tanh_rounded,
    [](float x) { return one_nan(std::log2(x)); },
    &reciprocal_flushed,
    [](float value) {
      constexpr unsigned short kHalfNan = 0x7fff;
      return std::isnan(value) ? kHalfNan : static_cast<unsigned short>(float_to_half(value));
    },
    [](unsigned short bits) { return one_nan(half_to_float(bits)); },
};

}  // namespace

const FwEmulator& interface() { return kInterface; }

}  // namespace flashwright::emulator
