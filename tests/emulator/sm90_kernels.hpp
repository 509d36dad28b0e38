// Kernels written by hand over the wrappers of sm_90a (tests/emulator/sm90/), with tensors for them in
// host memory: what the emulator has to run without a word, and what seeded bugs are edits of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/run.hpp"
#include "generator/sm90/print_wgmma.hpp"

namespace flashwright::testing {

struct Sm90Kernel {
  const char* name;
  const char* file;  // in tests/emulator/sm90/, without its ending; its entry is "fw_" and this
  DType dtype;
  const char* constants;  // lines in front of the file: what the variant sets
  std::vector<sm90::ProductShape> products;
  int threads, smem_bytes;
};

const std::vector<Sm90Kernel>& sm90_kernels();
const Sm90Kernel& sm90_kernel(const std::string& name);
std::string entry_of(const Sm90Kernel& kernel);
// The file with the lines in front of it; and all text, with the wrappers that a body names.
std::string body_of(const Sm90Kernel& kernel);
std::string text_of(const Sm90Kernel& kernel, const std::string& body);

// What a kernel runs on.
struct Sm90Size {
  int rows;     // of the output; attention: queries of each head
  int columns;  // of the output; attention: query heads, two for each head of keys if even
  int depth;    // K of a product; attention: keys; reduce: matrices to be added
  int blocks;   // of kernels whose blocks take one tile after another
};
std::string to_string(const Sm90Size& size);

// A launch on random tensors.
struct Sm90Problem {
  emulator::EntryLaunch launch;
  std::function<void(emulator::GlobalMemory&)> register_tensors;
  std::function<void()> reset_outputs;
  std::function<std::string()> fault;  // "" when the outputs are those of float64
};
Sm90Problem make_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed);

// Outputs as before any launch, then one launch.
emulator::RunReport run(const emulator::HostUnit& unit, const Sm90Problem& problem,
                        const emulator::RunOptions& options);

}  // namespace flashwright::testing
