#include "core/sha256.hpp"

#include <algorithm>
#include <bit>

namespace flashwright {
namespace {

constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void compress(std::array<std::uint32_t, 8>& state, const std::uint8_t* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i)
    w[i] = std::uint32_t{block[4 * i]} << 24 | std::uint32_t{block[4 * i + 1]} << 16 |
           std::uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t early = w[i - 15], late = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(early, 7) ^ std::rotr(early, 18) ^ early >> 3) + w[i - 7] +
           (std::rotr(late, 17) ^ std::rotr(late, 19) ^ late >> 10);
  }
  // Names go round instead of values: eight rounds bring them back to where they were.
  auto [a, b, c, d, e, f, g, h] = state;
  const auto round = [&w](std::uint32_t ra, std::uint32_t rb, std::uint32_t rc, std::uint32_t& rd,
                          std::uint32_t re, std::uint32_t rf, std::uint32_t rg, std::uint32_t& rh,
                          std::size_t i) {
    const std::uint32_t big1 = std::rotr(re, 6) ^ std::rotr(re, 11) ^ std::rotr(re, 25);
    const std::uint32_t t1 = rh + big1 + ((re & rf) ^ (~re & rg)) + kRound[i] + w[i];
    const std::uint32_t big0 = std::rotr(ra, 2) ^ std::rotr(ra, 13) ^ std::rotr(ra, 22);
    rd += t1;
    rh = t1 + big0 + ((ra & rb) ^ (ra & rc) ^ (rb & rc));
  };
  for (std::size_t i = 0; i < 64; i += 8) {
    round(a, b, c, d, e, f, g, h, i);
    round(h, a, b, c, d, e, f, g, i + 1);
    round(g, h, a, b, c, d, e, f, i + 2);
    round(f, g, h, a, b, c, d, e, i + 3);
    round(e, f, g, h, a, b, c, d, i + 4);
    round(d, e, f, g, h, a, b, c, i + 5);
    round(c, d, e, f, g, h, a, b, i + 6);
    round(b, c, d, e, f, g, h, a, i + 7);
  }
  const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state[i] += added[i];
}

}  // namespace

Sha256& Sha256::update(std::string_view bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::size_t left = bytes.size();
  const std::size_t held = bytes_ % 64;
  bytes_ += left;
  if (held > 0) {
    const std::size_t taken = std::min(left, 64 - held);
    std::copy_n(data, taken, block_.data() + held);
    if (held + taken < 64) return *this;
    compress(state_, block_.data());
    data += taken;
    left -= taken;
  }
  for (; left >= 64; data += 64, left -= 64) compress(state_, data);
  std::copy_n(data, left, block_.data());
  return *this;
}

Sha256& Sha256::part(std::string_view bytes) {
  return update(std::to_string(bytes.size()) + ":").update(bytes);
}

Digest Sha256::finish() const {
  const std::size_t held = bytes_ % 64;
  std::array<std::uint8_t, 128> tail{};  // the rest, a 1 bit, zeros, and the length in bits
  std::copy_n(block_.data(), held, tail.data());
  tail[held] = 0x80;
  const std::size_t size = held < 56 ? 64 : 128;
  for (std::size_t i = 0; i < 8; ++i)
    tail[size - 1 - i] = static_cast<std::uint8_t>(bytes_ * 8 >> (8 * i));
  std::array<std::uint32_t, 8> state = state_;
  for (std::size_t at = 0; at < size; at += 64) compress(state, tail.data() + at);
  Digest digest;
  for (std::size_t i = 0; i < 32; ++i)
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest sha256(std::string_view bytes) { return Sha256().update(bytes).finish(); }

std::string to_hex(const Digest& digest) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : digest) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Digest sha256_of(std::initializer_list<std::string_view> parts) {
  Sha256 hash;
  for (const std::string_view part : parts) hash.part(part);
  return hash.finish();
}

}  // namespace flashwright
