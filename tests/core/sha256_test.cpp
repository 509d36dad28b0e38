#include "core/sha256.hpp"

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

TEST_CASE("the vectors of FIPS 180-4 and of its example papers") {
  const std::vector<std::pair<std::string, const char*>> table = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmn"
       "opqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, digest] : table) CHECK(to_hex(sha256(text)) == digest);
}

TEST_CASE("lengths around the end of a block") {
  // Of n letters 'x', as sha256sum prints them.
  const std::vector<std::pair<std::size_t, const char*>> table = {
      {1, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},
      {55, "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072"},
      {56, "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e"},
      {57, "ae14a2563ccf969d99aca69ce6bb74981f734bbf9f655f73b8f06db68cab5217"},
      {63, "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2"},
      {64, "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c"},
      {65, "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9"},
      {119, "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c"},
      {120, "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98"},
      {127, "70156a14adbabf98cff3a71c7084b417abf057a8efd27329ca36b7202c87d81f"},
      {128, "24da1b81d0b16df6428eee73c69fcb2a93c76bc6df706f0c6670fe6bfe800464"},
      {129, "0ec9eb33e74510bcdd1f2ea55206e82f21649c5c2becbf2b433eb475b34c01bd"}};
  for (const auto& [length, digest] : table) {
    INFO(length);
    CHECK(to_hex(sha256(std::string(length, 'x'))) == digest);
  }
}

TEST_CASE("lists of texts that join to the same bytes have different digests") {
  CHECK(sha256_of({"ab", "c"}) != sha256_of({"a", "bc"}));
  CHECK(sha256_of({"abc"}) != sha256_of({"abc", ""}));
  CHECK(sha256_of({"", "abc"}) != sha256_of({"abc", ""}));
  CHECK(sha256_of({"1:a", "b"}) != sha256_of({"1:a1:b"}));
  CHECK(sha256_of({"ab", "c"}) == sha256_of({"ab", "c"}));
}

TEST_CASE("a text in pieces, and texts with a common beginning") {
  const std::string text(300, 'x');
  const std::vector<std::size_t> cuts = {0, 1, 55, 63, 64, 65, 128, 200, 300};
  for (const std::size_t first : cuts)
    for (const std::size_t second : cuts) {
      if (second < first) continue;
      Sha256 common;
      common.update(text.substr(0, first)).update(text.substr(first, second - first));
      CHECK(Sha256(common).update(text.substr(second)).finish() == sha256(text));
      CHECK(Sha256(common).update("y").finish() == sha256(text.substr(0, second) + "y"));
    }
  CHECK(Sha256().part("ab").part("").finish() == sha256_of({"ab", ""}));
}
