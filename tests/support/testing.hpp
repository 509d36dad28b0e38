// What every test program shares: properties over random values, skips that are counted, seeds that are
// printed, and the error that a call throws.
#pragma once

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.hpp"

namespace flashwright::testing {

// Runs a property as an assertion of the test case around it. Inside, RC_ASSERT and RC_FAIL report.
template <typename Testable>
void property(const std::string& description, Testable&& testable) {
  rc::detail::TestMetadata metadata;
  metadata.id = description;
  const rc::detail::TestResult result =
      rc::detail::checkTestable(std::forward<Testable>(testable), metadata);
  std::ostringstream words;
  rc::detail::printResultMessage(result, words);
  INFO(description << ": " << words.str());
  CHECK(result.is<rc::detail::SuccessResult>());
}

// Says that the test case around it cannot run here. A program whose every test was skipped exits with 77.
void skip(const std::string& name, const std::string& why);

// FW_TEST_SEED, else the number of the day: what is sampled rotates, and a failure can be repeated.
std::uint64_t test_seed();

// Whether the program was started with this argument.
bool has_argument(const std::string& argument);

// The error that `body` throws; fails the test case and returns an empty one when it throws none.
template <typename Body>
Error error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  FAIL_CHECK("no error was thrown");
  return Error(Status::ok, "");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace flashwright::testing
