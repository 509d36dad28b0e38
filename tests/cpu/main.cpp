#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Each property compiles a kernel for every example: fewer of them than rapidcheck's hundred.
  setenv("RC_PARAMS", "max_success=60", 0);
  return doctest::Context(argc, argv).run();
}
