// Memory that ends, or begins, at a page nobody may touch: what reads or writes outside of it dies.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace flashwright::testing {

// Memory with an inaccessible page before and behind it; what it holds touches one of the two.
class Guarded {
 public:
  Guarded(std::size_t bytes, bool at_end) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    if (inner > 0) REQUIRE(mprotect(base_ + page, inner, PROT_READ | PROT_WRITE) == 0);
    data_ = base_ + page + (at_end ? inner - bytes : 0);
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  char* data() const { return data_; }

 private:
  char* base_ = nullptr;
  char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace flashwright::testing
