// The table of cases: every wrapper and every printed product is in it, names are unique, and the ways in
// which outputs are compared can fail.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "tests/conformance/golden.hpp"
#include "tests/conformance/tiles.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::conformance;
using flashwright::testing::contains;

namespace {

std::set<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// The functions that the templates define.
std::set<std::string> functions_of_templates() {
  std::set<std::string> names;
  const std::regex definition(R"(__device__ __forceinline__ [\w\s*]*?(\w+)\()");
  for (const auto& entry : std::filesystem::directory_iterator(FW_SOURCE_DIR "/templates/ptx")) {
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    const std::string all = text.str();
    for (std::sregex_iterator at(all.begin(), all.end(), definition), end; at != end; ++at)
      names.insert((*at)[1]);
  }
  return names;
}

Case some_case() {
  Case c;
  c.group = "math";
  c.name = "some";
  c.body = "body";
  c.expected = bytes_of(std::vector<float>{1, 2, 3});
  c.output = untouched(12);
  return c;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("every wrapper is covered by a case that calls it") {
  std::set<std::string> covered;
  for (const Case& c : all_cases())
    for (const std::string& name : words_of(c.covers)) {
      CAPTURE(c.name);
      CAPTURE(name);
      CHECK(std::regex_search(kernel_text(c), std::regex("[^\\w]" + name + "(<[^>]*>)?\\(")));
      covered.insert(name);
    }
  const std::set<std::string> wrappers = functions_of_templates();
  CHECK(wrappers.size() > 80);
  CHECK(wrappers.count("load_box_5d") == 1);
  for (const std::string& name : wrappers) {
    CAPTURE(name);
    CHECK(covered.count(name) == 1);
  }
}

TEST_CASE("every form of a product is covered, with each dtype, width and swizzle") {
  std::set<std::string> seen;
  for (const Case& c : all_cases())
    for (const sm90::ProductShape& shape : c.products) {
      const std::string name = product_name(shape);
      CHECK(contains(c.body, name + "("));
      const std::string form = std::regex_replace(name, std::regex("_n\\d+"), "");
      seen.insert(form + " " + info(c.dtype).name);
      seen.insert("n" + std::to_string(shape.n));
    }
  for (const char* form : {"ss_kk", "ss_km", "ss_mk", "ss_mm", "rs_k", "rs_m"})
    for (const char* first : {"", "_first"})
      for (const char* dtype : {" bf16", " fp16"}) {
        const std::string name = std::string("wgmma_") + form + first + dtype;
        CAPTURE(name);
        CHECK(seen.count(name) == 1);
      }
  for (const int n : {8, 64, 80, 128, 176, 256}) CHECK(seen.count("n" + std::to_string(n)) == 1);
}

TEST_CASE("cases are well formed") {
  std::set<std::string> names;
  for (const Case& c : all_cases()) {
    CAPTURE(c.name);
    CHECK(names.insert(c.group + "/" + c.name).second);
    CHECK(!c.input.empty());
    CHECK(!c.output.empty());
    CHECK(c.input.size() % 4 == 0);
    if (!c.expected.empty()) CHECK(c.expected.size() == c.output.size());
    if (!c.bound.empty()) CHECK(4 * c.bound.size() == c.output.size());
    CHECK(c.smem_bytes <= 227 * 1024);
    if (c.map) {
      TensorMapSpec spec = c.map->spec;
      spec.base = reinterpret_cast<void*>(std::uintptr_t{0x1000} + c.map->offset);
      CHECK(tensor_map_fault(spec) == "");
    }
  }
}

TEST_CASE("an output that differs is seen") {
  Case c = some_case();
  Bytes got = c.expected;
  CHECK(difference(c, c.expected, got) == "");
  put(got, 4, 2.0001f);
  CHECK(contains(difference(c, c.expected, got), "byte 4: expected 40000000 (2), got"));
  CHECK(contains(difference(c, c.expected, got), "1 of 3 words differ"));
  c.bound = {0, 0.001, 0};
  CHECK(difference(c, c.expected, got) == "");
  c.bound = {0.001, 0, 0.001};
  CHECK(difference(c, c.expected, got) != "");
  c.bound = {1, 1, 1};
  put(got, 4, kNan);
  CHECK(difference(c, c.expected, got) != "");
  got.resize(8);
  CHECK(difference(c, c.expected, got) == "8 bytes, expected 12");
  // Bytes that are no whole word.
  c = some_case();
  c.expected = {1, 2, 3, 4, 5};
  CHECK(difference(c, c.expected, {1, 2, 3, 4, 6}) != "");
}

TEST_CASE("any NaN will do for the manual, but not for a device") {
  Case c = some_case();
  c.nan_bytes = 4;
  put(c.expected, 4, kNan);
  Bytes got = c.expected;
  put(got, 4, 0xffc00000u);
  CHECK(difference_from_manual(c, got) == "");
  CHECK(difference(c, c.expected, got) != "");
  put(got, 4, 2.0f);
  CHECK(difference_from_manual(c, got) != "");
  put(got, 4, kNan);
  put(got, 8, kNan);
  CHECK(difference_from_manual(c, got) != "");
  c.nan_bytes = 2;
  c.expected = {0xff, 0x7f, 0x80, 0x3f};  // of bf16
  CHECK(difference_from_manual(c, {0xc1, 0xff, 0x80, 0x3f}) == "");
  CHECK(difference_from_manual(c, {0x80, 0x7f, 0x80, 0x3f}) != "");  // an infinity
}

TEST_CASE("golden files come back as they were written, and show differences") {
  Case c = some_case();
  GoldenFile file{"math", "A \"GPU\"", "sm_90a", "CUDA 13.0", "NVRTC 13.0", {}};
  file.cases[c.name] = golden_case(c, c.expected);
  const GoldenFile back = golden_from_json(to_json(file), "math.json");
  CHECK(to_json(back) == to_json(file));
  CHECK(difference(c, back, c.expected) == "");
  CHECK(difference(c, back, bytes_of(std::vector<float>{1, 2, 4})) != "");
  c.body = "another body";
  CHECK(contains(difference(c, back, c.expected), "another kernel"));
  c.name = "other";
  CHECK(contains(difference(c, back, c.expected), "not in the golden file"));
  CHECK(testing::error_of([] { golden_from_json("{}", "x.json"); }).status == Status::bad_argument);
}

TEST_CASE("long outputs are kept as a digest and their beginning") {
  Case c = some_case();
  c.expected = bytes_of(random_words(1, 2000));
  GoldenFile file{"math", "", "", "", "", {{c.name, golden_case(c, c.expected)}}};
  CHECK(to_json(file).size() < 1000);
  CHECK(difference(c, file, c.expected) == "");
  Bytes other = c.expected;
  other[7999] ^= 1;
  CHECK(contains(difference(c, file, other), "the golden output is what the manual says"));
  c.bound.assign(2000, 0.5);
  CHECK(golden_case(c, c.expected).data.size() == 8000);
}

TEST_CASE("our own conversions agree with known codes") {
  CHECK(encode(DType::bf16, 1) == 0x3f80);
  CHECK(encode(DType::bf16, 1 + 0x1p-8) == 0x3f80);
  CHECK(encode(DType::bf16, 1 + 3 * 0x1p-8) == 0x3f82);
  CHECK(encode(DType::bf16, -0.0) == 0x8000);
  CHECK(encode(DType::bf16, 0x1p-133) == 0x0001);
  CHECK(encode(DType::bf16, 0x1.ffp127) == 0x7f80);
  CHECK(encode(DType::fp16, 65504) == 0x7bff);
  CHECK(encode(DType::fp16, 65519.9) == 0x7bff);
  CHECK(encode(DType::fp16, 65520) == 0x7c00);
  CHECK(encode(DType::fp16, 0x1p-24) == 0x0001);
  CHECK(encode(DType::fp16, 0x1p-25) == 0x0000);
  CHECK(encode(DType::fp16, 0x1.ff8p-15) == 0x03ff);
  CHECK(encode(DType::fp16, 0x1.ffcp-15) == 0x0400);
  for (std::uint32_t code = 0; code < 65536; ++code)
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      const double value = decode(dtype, static_cast<std::uint16_t>(code));
      if (value == value) REQUIRE(encode(dtype, value) == code);
    }
}

TEST_CASE("a swizzle moves whole chunks within its pattern, and each to another place") {
  for (const int swizzle : {0, 32, 64, 128}) {
    std::set<std::size_t> places;
    for (std::size_t offset = 0; offset < 2048; offset += 16) {
      const std::size_t place = swizzled(offset, swizzle);
      places.insert(place);
      CHECK(place / 128 == offset / 128);
      CHECK(swizzled(offset + 5, swizzle) == place + 5);
    }
    CHECK(places.size() == 128);
  }
  CHECK(swizzled(128, 128) == 144);
  CHECK(swizzled(128, 64) == 144);
  CHECK(swizzled(256, 64) == 288);
  CHECK(swizzled(256, 32) == 256);
}
