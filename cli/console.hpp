// Output for people: aligned tables and labelled lines on stdout, a progress line on stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/context.hpp"

namespace cli {

// Everything for stdout goes through these, so that a full disk or a closed pipe is noticed.
void print(std::string_view text);
void print_json(const Json& value);
void flush_output();  // throws Error(io_error) if anything could not be written

// A note beside the output; silent with --json.
void note(const Context& context, const std::string& text);

// "label     value", with further lines of the value indented under the first and long ones wrapped.
void print_field(std::string_view label, std::string_view value);

// Columns wide enough for their cells; headings that begin with '>' align to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string text(int indent = 0) const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

// One line on stderr that is drawn again several times a second on a terminal; elsewhere a line every
// few seconds. Nothing at all when `quiet`.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(std::string text);         // what is going on; the time so far is put in front
  void say(const std::string& text);  // a line that stays
  void finish();

 private:
  void draw();
  void clear();

  enum class Mode { quiet, lines, live };
  const Mode mode_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_line_ = start_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string text_;
  bool drawn_ = false;
  std::jthread ticker_;
};

}  // namespace cli
