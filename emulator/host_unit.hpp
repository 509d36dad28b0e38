// A translated kernel compiled by the host's compiler and loaded into this process.
#pragma once

#include <memory>
#include <string>

#include "emulator/translate.hpp"
#include "emulator/unit/interface.h"

namespace flashwright::emulator {

class HostUnit {
 public:
  // Throws Error(unavailable) without a compiler, Error(compile_failed) with its messages.
  explicit HostUnit(Translation translation);
  ~HostUnit();
  HostUnit(const HostUnit&) = delete;
  HostUnit& operator=(const HostUnit&) = delete;

  const Translation& translation() const { return translation_; }
  const std::string& compiler() const { return compiler_; }
  double compile_ms() const { return compile_ms_; }

  using Entry = void (*)(const void* params);
  Entry entry(const std::string& name) const;  // throws Error(internal) when there is none
  // The variables of the unit, of all runs.
  struct Variable {
    std::string name;
    void* data;
    std::size_t bytes;
  };
  std::vector<Variable> variables() const;
  // From __launch_bounds__ and __cluster_dims__; 1 where they do not say.
  int blocks_per_sm(const std::string& name) const { return number("fw_blocks_" + name); }
  int cluster_blocks(const std::string& name) const { return number("fw_cluster_" + name); }

 private:
  void load(const std::string& library);
  int number(const std::string& function) const;

  Translation translation_;
  std::string compiler_;
  double compile_ms_ = 0;
  void* library_ = nullptr;
};

// The first of g++, clang++ and c++ that is found; empty when there is none.
std::string host_compiler();

}  // namespace flashwright::emulator
