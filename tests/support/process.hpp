// Runs a part of the test program in a fresh process: a test case marked as a helper, which is skipped otherwise.
#pragma once

#include <string>
#include <vector>

#include "tests/cache/support.hpp"

namespace flashwright::testing {

struct Fresh {
  std::string helper;           // name of the test case: "helper: ..."
  test::Variables environment;  // changes to this process's
  std::string folder;           // to run in; empty: this one
  std::string program;          // "": this program
};
// The exit status.
int run_fresh(const Fresh& what);

// Runs a program found in PATH; its exit status and what it printed, both streams. 127: there is none.
struct Output {
  int status = 0;
  std::string text;
};
Output run_program(const std::vector<std::string>& command);

}  // namespace flashwright::testing
