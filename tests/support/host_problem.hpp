// Attention problems in host memory for tests: random inputs in several memory layouts, outputs poisoned
// with NaN, and a pattern in every byte that belongs to no element. Backend-neutral.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "core/block_mask.hpp"
#include "core/reference.hpp"

namespace flashwright::testing {

enum class Layout {
  rows_of_heads,  // (batch, seq, heads, dim) as it is written
  heads_of_rows,  // (batch, heads, seq, dim)
  padded_rows,    // a few unused elements behind each row
  page_rows,      // every row starts on a multiple of 4096 bytes
  shifted,        // the first element is not aligned to more than itself
};
constexpr int kLayoutCount = 5;
const char* to_string(Layout layout);

// A tensor whose surroundings are watched.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, std::array<std::int64_t, 4> shape, Layout layout);

  const TensorView& view() const { return view_; }
  std::int64_t offset(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const;
  double at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const;
  void set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, double value);
  void fill(double value);
  void fill_random(std::uint64_t seed, double magnitude);

  // All of it, surroundings included, for tests that copy it to a device and back.
  std::vector<unsigned char>& memory() { return memory_; }

  // Whether some byte outside of the elements changed.
  bool surroundings_changed() const;
  // The elements in logical order, to compare two runs bit by bit.
  std::vector<unsigned char> elements() const;

 private:
  template <typename Visit>
  void each_element(const Visit& visit) const;

  std::vector<unsigned char> memory_;
  std::vector<bool> owned_;  // bytes that belong to an element
  TensorView view_;
};

struct HostProblem {
  Config config;
  Shape shape;
  HostTensor q, k, v, o;
  HostTensor lse;              // as (batch, heads, seq, 1)
  HostTensor slopes;           // with alibi, as (batch, heads, 1, 1)
  HostTensor d_o, dq, dk, dv;  // with the direction "backward"
  HostTensor d_lse;            // as lse
  BlockMask mask;              // with mask "blocks"
  Arguments arguments;         // over the tensors above

  HostProblem(const Config& what, const Shape& sizes, Layout layout, std::uint64_t seed,
              double magnitude = 1);
  HostProblem(const HostProblem&) = delete;
  HostProblem& operator=(const HostProblem&) = delete;

  // Block lists with random elements: blocks are absent, full or partial.
  void use_random_blocks(std::int64_t block_q, std::int64_t block_kv, bool of_each_head,
                         std::uint64_t seed);
  // Backward: random gradients of the outputs, all of dq, dk and dv wanted. Call fill_forward when the inputs stand.
  void make_gradients(Layout layout, std::uint64_t seed);
  void fill_forward();  // o and lse from the reference
  void poison_outputs();
  // Random slopes of either sign: of each batch entry, or of the heads alone.
  void make_slopes(std::uint64_t seed);

  // "" when up to `max_rows` rows agree with the reference and no surroundings changed.
  std::string fault(const Problem& problem, std::int64_t max_rows) const;
};

}  // namespace flashwright::testing
