#include "generator/sm90/print_wgmma.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace flashwright::sm90 {
namespace {

constexpr std::size_t kWidth = 100;

// "{%0, %1, %2}"
std::string operands(int first, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += fmt::format("{}%{}", i == 0 ? "" : ", ", first + i);
  return text + "}";
}

// Text broken at spaces: the first line begins with `first`, the others with `next`, all end with
// `end`.
void add_broken(std::vector<Line>& lines, std::string text, const std::string& first,
                const std::string& next, const std::string& end) {
  const std::size_t room = kWidth - next.size() - end.size() - 1;
  std::string before = first;
  while (text.size() > room) {
    const std::size_t space = text.rfind(' ', room);
    lines.push_back({before + text.substr(0, space + 1) + end, {}});
    text.erase(0, space + 1);
    before = next;
  }
  lines.push_back({before + text + end, {}});
}

// `"+f"(d[0]), "+f"(d[1])`
std::string bindings(const char* constraint, const char* array, int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("{}\"{}\"({}[{}])", i == 0 ? "" : ", ", constraint, array, i);
  return text;
}

std::string about(const ProductShape& shape) {
  const auto order = [](bool k_major) { return k_major ? "K-major" : "MN-major"; };
  const std::string sign = shape.first ? "=" : "+=", b = order(shape.b_k_major);
  if (shape.a_in_registers)
    return fmt::format("d {} a * b: 64 x 16, in registers, by 16 x {}, {}.", sign, shape.n, b);
  return fmt::format("d {} a * b: 64 x 16, {}, by 16 x {}, {}.", sign, order(shape.a_k_major),
                     shape.n, b);
}

// The declaration, on as many lines as it needs.
std::vector<std::string> declaration(const ProductShape& shape) {
  const std::string head = fmt::format("__device__ __forceinline__ void {}(", product_name(shape));
  const std::string d = fmt::format("float (&d)[{}], ", shape.n / 2),
                    a = shape.a_in_registers ? "const u32 (&a)[4], " : "u64 a, ", b = "u64 b) {";
  if (head.size() + d.size() + a.size() + b.size() <= kWidth) return {head + d + a + b};
  const std::string indent(head.size(), ' ');
  if (head.size() + d.size() + a.size() <= kWidth + 1) return {head + d + a, indent + b};
  return {head + d, indent + a + b};
}

// The operands after those of d: a, b, whether to accumulate, signs, transposes.
std::string sources(const ProductShape& shape) {
  const int words = shape.n / 2;
  const char* const b_transposed = shape.b_k_major ? "0" : "1";
  if (shape.a_in_registers)
    return fmt::format("{}, %{}, accumulate, 1, 1, {};", operands(words, 4), words + 4,
                       b_transposed);
  return fmt::format("%{}, %{}, accumulate, 1, 1, {}, {};", words, words + 1,
                     shape.a_k_major ? "0" : "1", b_transposed);
}

}  // namespace

std::string product_name(const ProductShape& shape) {
  const auto letter = [](bool k_major) { return k_major ? "k" : "m"; };
  return fmt::format("wgmma_{}s_n{}_{}{}{}", shape.a_in_registers ? "r" : "s", shape.n,
                     shape.a_in_registers ? "" : letter(shape.a_k_major), letter(shape.b_k_major),
                     shape.first ? "_first" : "");
}

std::vector<Line> print_product(const ProductShape& shape, DType dtype) {
  if (shape.n < 8 || shape.n > 256 || shape.n % 8 != 0 || info(dtype).bytes != 2)
    throw Error(Status::internal,
                fmt::format("print_product: no wgmma with n {} and {}", shape.n, to_string(dtype)));
  const int words = shape.n / 2;
  std::vector<Line> lines;
  const auto add = [&lines](const std::string& text) { lines.push_back({text, {}}); };
  add_broken(lines, about(shape), "// ", "// ", "");
  for (const std::string& line : declaration(shape)) add(line);
  add("  asm volatile(");
  add("      \"{\\n\"");
  add("      \".reg .pred accumulate;\\n\"");
  add(fmt::format("      \"setp.{}.u32 accumulate, 0, 0;\\n\"", shape.first ? "ne" : "eq"));
  add(fmt::format("      \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{} \"", shape.n,
                  dtype == DType::bf16 ? "bf16.bf16" : "f16.f16"));
  add_broken(lines, operands(0, words) + ", ", "      \"", "      \"", "\"");
  add(fmt::format("      \"{}\\n\"", sources(shape)));
  add("      \"}\"");
  add_broken(lines, bindings(shape.first ? "=f" : "+f", "d", words), "      : ", "        ", "");
  add(fmt::format("      : {}, \"l\"(b)",
                  shape.a_in_registers ? bindings("r", "a", 4) : std::string("\"l\"(a)")));
  add("      : \"memory\");");
  add("}");
  for (Line& line : lines) line.text.erase(line.text.find_last_not_of(' ') + 1);
  return lines;
}

}  // namespace flashwright::sm90
