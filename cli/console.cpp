#include "cli/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kLabelWidth = 10;
constexpr std::size_t kLineWidth = 100;
constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr auto kLineEvery = std::chrono::seconds(5);

bool output_failed = false;
int output_error = 0;

// Splits at spaces so that no line is longer than `width`, unless one word is.
std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    if (line.size() > width) {
      const std::size_t space = line.rfind(' ', width);
      if (space != std::string_view::npos && space > 0) line = line.substr(0, space);
    }
    lines.emplace_back(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return lines;
}

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void to_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool live_terminal() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

}  // namespace

void print(std::string_view text) {
  if (output_failed || text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return;
  output_failed = true;
  output_error = errno;
}

void print_json(const Json& value) {
  print(value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void flush_output() {
  if (!output_failed && std::fflush(stdout) != 0) {
    output_failed = true;
    output_error = errno;
  }
  if (output_failed)
    throw Error(Exit::io_error,
                fmt::format("standard output: cannot write: {}", std::strerror(output_error)));
}

void note(const Context& context, const std::string& text) {
  if (context.json) return;
  std::fflush(stdout);  // notes and output appear in the order in which they were made
  to_stderr("note: " + text + "\n");
}

void print_field(std::string_view label, std::string_view value) {
  std::string head(label);
  head.resize(std::max(kLabelWidth, head.size() + 1), ' ');
  for (const std::string& line : wrapped(value, kLineWidth - head.size())) {
    print(head + line + "\n");
    head.assign(head.size(), ' ');
  }
}

std::string Table::text(int indent) const {
  std::vector<std::size_t> widths;
  for (const std::string& heading : headings_)
    widths.push_back(heading.size() - (heading.starts_with('>') ? 1 : 0));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells, bool is_heading) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool right = headings_[i].starts_with('>');
      const std::string cell = is_heading && right ? cells[i].substr(1) : cells[i];
      const std::string padding(widths[i] - cell.size(), ' ');
      line += right ? padding + cell : cell + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  };
  add_line(headings_, true);
  for (const auto& row : rows_) add_line(row, false);
  return out;
}

Progress::Progress(bool quiet)
    : mode_(quiet             ? Mode::quiet
            : live_terminal() ? Mode::live
                              : Mode::lines) {
  if (mode_ != Mode::live) return;
  ticker_ = std::jthread([this](const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      draw();
      changed_.wait_for(lock, stop, kRedraw, [] { return false; });
    }
  });
}

Progress::~Progress() { finish(); }

void Progress::set(std::string text) {
  const std::scoped_lock lock(mutex_);
  text_ = std::move(text);
  if (mode_ != Mode::lines || Clock::now() - last_line_ < kLineEvery) return;
  last_line_ = Clock::now();
  draw();
}

void Progress::say(const std::string& text) {
  if (mode_ == Mode::quiet) return;
  const std::scoped_lock lock(mutex_);
  clear();
  to_stderr(text + "\n");
}

void Progress::draw() {
  if (text_.empty() || mode_ == Mode::quiet) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  std::string line = fmt::format("{:5.1f} s  {}", seconds, text_);
  if (mode_ == Mode::lines) {
    to_stderr(line + "\n");
    return;
  }
  const std::size_t width = terminal_width();
  if (line.size() >= width) line.resize(width - 1);
  to_stderr("\r\033[K" + line);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  to_stderr("\r\033[K");
  drawn_ = false;
}

void Progress::finish() {
  if (ticker_.joinable()) {
    ticker_.request_stop();
    ticker_.join();
  }
  const std::scoped_lock lock(mutex_);
  clear();
}

}  // namespace cli
