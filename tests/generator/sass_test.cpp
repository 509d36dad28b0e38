// The reader of machine code that the compile tests use.
#include "tests/generator/sass.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright::testing;

namespace {

// A product with a left operand in R4 to R7 and sums in R24 to R55, then what a test puts behind it.
std::string behind_a_product(const std::string& lines) {
  return R"(
                Function : fw_attention
        /*0010*/                   WARPGROUP.ARRIVE ;                                   /* 0x00 */
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR4].tnspB, R24, gsb0 ;  /* 0x00 */
)" + lines;
}

constexpr const char* kWait =
    "        /*0040*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;      /* 0x00 */\n";

std::string line(const std::string& instruction) {
  return "        /*0030*/                   " + instruction + " ;      /* 0x00 */\n";
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("a register of a product under way that is written is seen") {
  for (const char* early : {"MOV R6, R9", "FADD R24, R1, R2", "@!P0 IMAD R55, R1, R2, R3",
                            "LDS.128 R0, [R9+0x10]", "LDS.128 R4, [R9+0x10]"}) {
    CAPTURE(early);
    const bool touches = std::string(early).find("R0,") == std::string::npos;
    CHECK(early_write(behind_a_product(line(early) + kWait)).empty() == !touches);
    CHECK(early_write(behind_a_product(kWait + line(early))).empty());
  }
  for (const char* harmless :
       {"MOV R56, R6", "STS.128 [R9], R4", "ISETP.NE.AND P0, PT, R4, RZ, PT"})
    CHECK(early_write(behind_a_product(line(harmless) + kWait)).empty());
}

TEST_CASE("a wait for all groups but one leaves the last one under way") {
  const std::string second = line("HGMMA.64x64x16.F32.BF16 R56, R8, gdesc[UR4].tnspB, R56, gsb0") +
                             line("WARPGROUP.DEPBAR.LE gsb0, 0x1");
  CHECK(early_write(behind_a_product(second + line("MOV R4, R1") + line("MOV R24, R1"))).empty());
  CHECK(early_write(behind_a_product(second + line("MOV R8, R1"))) == "MOV R8, R1");
}

TEST_SUITE_END();
