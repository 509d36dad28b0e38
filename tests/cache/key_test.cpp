#include "cache/key.hpp"

#include <doctest/doctest.h>

#include <set>

#include "cache/lines.hpp"
#include "tests/cache/support.hpp"

using namespace flashwright;

TEST_CASE("a key changes with every part of the compiler's input and with nothing else") {
  const Target sm90{BackendKind::cuda, "sm_90a"}, sm80{BackendKind::cuda, "sm_80"};
  const auto cubin = Binary::Kind::cubin, ptx = Binary::Kind::ptx;
  const std::set<Digest> keys = {
      artifact_key("text", sm90, cubin, "-O3", "NVRTC 13.0 build 1"),
      artifact_key("text ", sm90, cubin, "-O3", "NVRTC 13.0 build 1"),
      artifact_key("text", sm80, cubin, "-O3", "NVRTC 13.0 build 1"),
      artifact_key("text", sm90, ptx, "-O3", "NVRTC 13.0 build 1"),
      artifact_key("text", sm90, cubin, "-O2", "NVRTC 13.0 build 1"),
      artifact_key("text", sm90, cubin, "-O3", "NVRTC 13.0 build 2"),
      artifact_key("text-", sm90, cubin, "O3",
                   "NVRTC 13.0 build 1"),  // the same characters in a row
      artifact_key("text", sm90, cubin, "-O3", "")};
  CHECK(keys.size() == 8);

  const Digest before = artifact_key("text", sm90, cubin, "-O3", "NVRTC");
  const test::Environment other(
      test::Variables{{"PATH", "/nowhere"}, {"HOME", "/elsewhere"}, {"LC_ALL", "de_DE"}});
  CHECK(artifact_key("text", sm90, cubin, "-O3", "NVRTC") == before);
  // Stored keys must keep their meaning: a change of this value makes every stored kernel stale.
  CHECK(to_hex(before) == "58585a3990a2baabdaec339628808dc46ede79e7a644685c40504e0bbe4b76e8");
}

TEST_CASE("two processors with different features have keys of their own") {
  const Target avx2{BackendKind::cpu, "avx2"}, avx512{BackendKind::cpu, "avx512"};
  const auto object = Binary::Kind::object;
  const std::string llvm = "LLVM 19.1.7 x86_64-pc-linux-gnu ";
  CHECK(artifact_key("ir", avx2, object, "O2", llvm + "+avx2") !=
        artifact_key("ir", avx512, object, "O2", llvm + "+avx2"));
  CHECK(artifact_key("ir", avx512, object, "O2", llvm + "+avx512f") !=
        artifact_key("ir", avx512, object, "O2", llvm + "+avx512f,+avx512bf16"));
}

TEST_CASE("hexadecimal digests are read strictly") {
  const Digest digest = sha256("x");
  CHECK(digest_from_hex(to_hex(digest)) == digest);
  CHECK(!digest_from_hex(""));
  CHECK(!digest_from_hex(to_hex(digest) + "00"));
  CHECK(!digest_from_hex(std::string(63, '0') + "g"));
}

TEST_CASE("base64 gives back what it was given, and refuses the rest") {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    CHECK(from_base64(to_base64(bytes)) == bytes);
    bytes += static_cast<char>(i * 7);
  }
  CHECK(to_base64("any carnal pleas") == "YW55IGNhcm5hbCBwbGVhcw==");
  for (const char* wrong : {"a", "ab=c", "====", "YW5=YW55", "YW\n5", "YW5-"})
    CHECK(!from_base64(wrong));
}
