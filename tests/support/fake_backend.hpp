// A backend and a family without a compiler and a device. The backend computes attention by its definition, in host
// memory, and its clock runs by a table of how long each schedule takes; schedules can be told to fail in any way.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "generator/family.hpp"
#include "runtime/backend.hpp"

namespace flashwright::testing {

// What becomes of one schedule.
struct Outcome {
  double time_us = 100;
  int registers = 128, spill_bytes = 0, smem_bytes = 40000;
  bool compiles = true, loads = true, launches = true, right = true;
  float lse_error = 0;  // added to every LSE
};
using Landscape = std::map<std::string, Outcome>;  // by the text of the schedule

class FakeFamily final : public Family {
 public:
  // The first schedule is the default. The model's times are those of the landscape times a factor drawn from `seed`.
  FakeFamily(std::vector<std::string> schedules, const Landscape& landscape,
             std::uint64_t seed = 1);

  std::string name() const override { return "fake"; }
  std::vector<std::string> reasons_against(const Problem& problem) const override;
  std::vector<Candidate> space(const Problem&, const DeviceInfo&, const Shape&) const override;
  Candidate consider(const Problem&, const DeviceInfo&, const Shape&,
                     const Schedule& schedule) const override;
  Schedule default_schedule(const Problem&, const DeviceInfo&, const Shape&) const override;
  Source emit(const Problem& problem, const Schedule& schedule) const override;

 private:
  std::vector<Candidate> candidates_;
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(BackendKind kind, Landscape landscape = {});

  // How the clock misbehaves: noise as a share of each time, drift as a share that comes and goes with a
  // period of simulated time, and how often a time is an outlier of several times its length.
  double noise = 0, drift = 0, outliers = 0;
  double drift_period_us = 1e6;
  std::string compiler_lacks, device_lacks;
  std::vector<DeviceInfo> devices;
  std::string toolchain_name = "fake 1";
  double compile_seconds = 0;  // that a compilation takes in real time

  std::atomic<int> compilations{0}, loads{0}, launches{0}, memory_blocks{0};
  const std::shared_ptr<std::atomic<int>> alive_count = std::make_shared<std::atomic<int>>(0);
  std::atomic<int>& alive = *alive_count;  // modules

  BackendKind kind() const override { return kind_; }
  std::string compiler_missing() override { return compiler_lacks; }
  std::string device_missing() override { return device_lacks; }
  std::vector<DeviceInfo> describe() override { return devices; }
  std::string toolchain(const Target&) override { return toolchain_name; }
  Binary::Kind binary_kind(const Target&) const override { return Binary::Kind::cubin; }
  Binary compile(const Source& source) override;
  std::unique_ptr<Module> load(const Binary& binary, const LaunchPlan& plan,
                               int device_index) override;
  void launch(const Module& module, std::span<const StepLaunch> steps, const void* params,
              int device_index, void* stream) override;
  double time(int device_index, void* stream, const std::function<void()>& run) override;
  void synchronize(int, void*) override {}
  void* allocate(int device_index, std::size_t bytes) override;
  void deallocate(int device_index, void* memory) override;
  void copy_in(int device_index, void* memory, const void* host, std::size_t bytes) override;
  void copy_out(int device_index, void* host, const void* memory, std::size_t bytes) override;

 private:
  Outcome outcome_of(const std::string& schedule) const;

  const BackendKind kind_;
  const Landscape landscape_;
  std::mutex mutex_;
  double clock_us_ = 0;
  std::mt19937_64 random_{42};
  std::map<void*, std::vector<unsigned char>> computed_;  // outputs, by their address
};

// A present device of a target that the fakes run on.
DeviceInfo fake_device(const Target& target = {BackendKind::cuda, "sm_80"});

}  // namespace flashwright::testing
