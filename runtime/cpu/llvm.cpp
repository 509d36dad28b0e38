#include "runtime/cpu/llvm.hpp"

#include <llvm-c/Core.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/TargetSelect.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "core/error.hpp"
#include "runtime/cpu/llvm_compat.hpp"
#include "runtime/cpu/object_report.hpp"

namespace flashwright::cpu {
namespace {

void initialise_targets() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetDisassembler();
#ifdef FLASHWRIGHT_LLVM_AARCH64
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
    LLVMInitializeAArch64Disassembler();
#endif
  });
}

// What the processor offers under the cap of FLASHWRIGHT_CPU.
CodegenCpu host_cpu() {
  CodegenCpu host;
  host.triple = llvm::sys::getProcessTriple();
  host.cpu = llvm::sys::getHostCPUName().str();
  for (const auto& feature : compat::host_features())
    if (feature.getValue()) host.features.push_back(feature.getKey().str());
  std::sort(host.features.begin(), host.features.end());
  return host;
}

const CodegenCpu& uncapped_host() {
  static const CodegenCpu host = host_cpu();
  return host;
}

bool is_wide(const std::string& feature) {
  return feature.compare(0, 6, "avx512") == 0 || feature == "evex512" ||
         feature.compare(0, 5, "avx10") == 0;
}

bool contains(const std::vector<std::string>& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

// Features as an attribute: those that the host lacks are switched off by name, since a virtual machine
// may hide what the processor's name promises.
std::string feature_attribute(const CodegenCpu& cpu) {
  std::string text;
  for (const std::string& feature : cpu.features) text += (text.empty() ? "+" : ",+") + feature;
  if (cpu.cpu != uncapped_host().cpu) return text;
  std::vector<std::string> missing;
  for (const auto& feature : compat::host_features())
    if (!feature.getValue()) missing.push_back(feature.getKey().str());
  std::sort(missing.begin(), missing.end());
  for (const std::string& feature : missing) text += ",-" + feature;
  return text;
}

struct Messages {
  std::string text;
  bool failed = false;
};

// LLVM's handler takes a reference up to version 18 and a pointer since: the right one is picked by type.
void collect(const llvm::DiagnosticInfo& message, void* to) {
  auto& all = *static_cast<Messages*>(to);
  llvm::raw_string_ostream out(all.text);
  llvm::DiagnosticPrinterRawOStream printer(out);
  message.print(printer);
  out << "\n";
  all.failed = all.failed || message.getSeverity() == llvm::DS_Error;
}
[[maybe_unused]] void collect(const llvm::DiagnosticInfo* message, void* to) {
  collect(*message, to);
}

std::unique_ptr<llvm::TargetMachine> make_machine(const CodegenCpu& cpu) {
  initialise_targets();
  std::string error;
  const llvm::Target* const target = llvm::TargetRegistry::lookupTarget(cpu.triple, error);
  if (target == nullptr)
    throw Error(Status::unavailable, "this build of LLVM has no target " + cpu.triple, error);
  const llvm::TargetOptions options;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      cpu.triple, cpu.cpu, feature_attribute(cpu), options, llvm::Reloc::PIC_,
      llvm::CodeModel::Small, compat::kOptimise, true));
  if (!machine) throw Error(Status::unavailable, "LLVM cannot generate code for " + cpu.triple);
  return machine;
}

std::unique_ptr<llvm::Module> parse(const Source& source, llvm::LLVMContext& context) {
  llvm::SMDiagnostic fault;
  std::unique_ptr<llvm::Module> module =
      llvm::parseAssembly(llvm::MemoryBufferRef(source.text, source.name), fault, context);
  std::string text;
  llvm::raw_string_ostream out(text);
  if (!module) {
    fault.print(nullptr, out, false);
    out.flush();
    throw Error(Status::compile_failed, source.name + " cannot be read", text);
  }
  if (llvm::verifyModule(*module, &out)) {
    out.flush();
    throw Error(Status::compile_failed, source.name + " is malformed", text);
  }
  return module;
}

// Points a module at the processor it will run on and records what that needs.
void retarget(llvm::Module& module, const llvm::TargetMachine& machine, const CodegenCpu& cpu) {
  module.setDataLayout(machine.createDataLayout());
  module.setTargetTriple(cpu.triple);
  const std::string features = feature_attribute(cpu);
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr("target-cpu", cpu.cpu);
    function.addFnAttr("target-features", features);
  }
  llvm::LLVMContext& context = module.getContext();
  module.getOrInsertNamedMetadata("llvm.ident")
      ->addOperand(
          llvm::MDNode::get(context, llvm::MDString::get(context, feature_record(cpu.features))));
}

std::string generate(llvm::Module& module, llvm::TargetMachine& machine, const std::string& name,
                     const Messages& messages) {
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream out(object);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, out, nullptr, compat::kObjectFile))
    throw Error(Status::compile_failed,
                "LLVM cannot write objects for " + module.getTargetTriple());
  passes.run(module);
  if (messages.failed)
    throw Error(Status::compile_failed, name + " was refused by LLVM", messages.text);
  return std::string(object.data(), object.size());
}

// What the linker has to say, on the thread that links; by itself it would print it.
thread_local std::string link_messages;

llvm::orc::LLJIT& jit() {
  // Never destroyed: kernels may be unloaded by static destructors that run later than ours would.
  static llvm::orc::LLJIT* const instance = [] {
    initialise_targets();
    auto made = llvm::orc::LLJITBuilder()
                    .setJITTargetMachineBuilder(llvm::orc::JITTargetMachineBuilder(
                        llvm::Triple(llvm::sys::getProcessTriple())))
                    .setObjectLinkingLayerCreator(
                        [](llvm::orc::ExecutionSession& session, const llvm::Triple&) {
                          return llvm::Expected<std::unique_ptr<llvm::orc::ObjectLayer>>(
                              std::make_unique<llvm::orc::ObjectLinkingLayer>(session));
                        })
                    .create();
    if (!made)
      throw Error(Status::unavailable, "LLVM's linker for code in memory cannot start",
                  llvm::toString(made.takeError()));
    (*made)->getExecutionSession().setErrorReporter(
        [](llvm::Error error) { link_messages += llvm::toString(std::move(error)) + "\n"; });
    return made->release();
  }();
  return *instance;
}

[[noreturn]] void link_failed(llvm::Error error) {
  const std::string detail = std::exchange(link_messages, {}) + llvm::toString(std::move(error));
  throw Error(Status::device_error, "a compiled kernel cannot be loaded into executable memory",
              detail);
}

class JitObject : public LoadedObject {
 public:
  JitObject(llvm::orc::JITDylib& library, std::vector<KernelEntry> entries)
      : library_(library), entries_(std::move(entries)) {}
  ~JitObject() override {
    llvm::consumeError(jit().getExecutionSession().removeJITDylib(library_));
  }
  KernelEntry entry(std::size_t step) const override { return entries_.at(step); }

 private:
  llvm::orc::JITDylib& library_;
  std::vector<KernelEntry> entries_;
};

void check_features(const Binary& binary) {
  const std::vector<std::string> needed = recorded_features(binary.bytes);
  if (needed.empty())
    throw Error(Status::unavailable,
                "an object without a record of its processor features is not loaded");
  const bool narrow = host_cpu_rung() != "avx512";
  std::string missing;
  for (const std::string& feature : needed)
    if (!contains(uncapped_host().features, feature) || (narrow && is_wide(feature)))
      missing += (missing.empty() ? "" : ", ") + feature;
  if (!missing.empty())
    throw Error(Status::unavailable,
                "the kernel was compiled for processor features that this one lacks: " + missing +
                    "; compile it again here");
}

}  // namespace

std::string llvm_version() {
  unsigned major = 0, minor = 0, patch = 0;
  LLVMGetVersion(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

CodegenCpu codegen_cpu(const Target& target) {
  const CodegenCpu& host = uncapped_host();
  const bool arm_host = llvm::Triple(host.triple).isAArch64();
  if (target.arch == "neon")
    return arm_host ? host : CodegenCpu{"aarch64-unknown-linux-gnu", "generic", {"neon"}};
  const bool avx512 = target.arch == "avx512";
  const bool wide_host = contains(host.features, "avx512f");
  if (!arm_host && avx512 == wide_host && contains(host.features, "avx2")) return host;
  CodegenCpu plain{arm_host ? "x86_64-unknown-linux-gnu" : host.triple,
                   "x86-64-v3",
                   {"avx2", "bmi", "bmi2", "f16c", "fma"}};
  if (avx512) {
    plain.cpu = "x86-64-v4";
    plain.features = {"avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl",
                      "bmi",  "bmi2",     "f16c",     "fma"};
  }
  return plain;
}

Binary compile_module(const Source& source) {
  const auto start = std::chrono::steady_clock::now();
  if (source.language != Language::llvm_ir)
    throw Error(Status::internal, source.name + " is not LLVM IR");
  const CodegenCpu cpu = codegen_cpu(source.target);
  const std::unique_ptr<llvm::TargetMachine> machine = make_machine(cpu);
  Messages messages;
  llvm::LLVMContext context;
  context.setDiagnosticHandlerCallBack(&collect, &messages);
  const std::unique_ptr<llvm::Module> module = parse(source, context);
  retarget(*module, *machine, cpu);

  Binary binary;
  binary.kind = Binary::Kind::object;
  binary.target = source.target;
  binary.bytes = generate(*module, *machine, source.name, messages);
  binary.toolchain = "LLVM " + llvm_version() + " " + cpu.cpu;
  binary.log = messages.text;
  const std::vector<std::string> outside = undefined_symbols(binary.bytes);
  if (!outside.empty())
    throw Error(Status::compile_failed,
                source.name + " calls '" + outside.front() + "', which is not part of the kernel");
  binary.resources = measure_resources(binary.bytes, *machine);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  binary.compile_ms = took.count();
  return binary;
}

std::unique_ptr<LoadedObject> load_object(const Binary& binary,
                                          const std::vector<std::string>& entries) {
  check_features(binary);
  static std::atomic<std::uint64_t> counter{0};
  llvm::orc::LLJIT& linker = jit();
  llvm::orc::ExecutionSession& session = linker.getExecutionSession();
  llvm::orc::JITDylib& library =
      session.createBareJITDylib("kernel" + std::to_string(counter.fetch_add(1)));
  try {
    if (llvm::Error error = linker.addObjectFile(
            library, llvm::MemoryBuffer::getMemBufferCopy(binary.bytes, library.getName())))
      link_failed(std::move(error));
    std::vector<KernelEntry> found;
    for (const std::string& name : entries) {
      auto address = linker.lookup(library, name);
      if (!address) link_failed(address.takeError());
      found.push_back(address->toPtr<KernelEntry>());
    }
    return std::make_unique<JitObject>(library, std::move(found));
  } catch (...) {
    llvm::consumeError(session.removeJITDylib(library));
    throw;
  }
}

}  // namespace flashwright::cpu
