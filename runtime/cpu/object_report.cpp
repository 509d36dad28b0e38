#include "runtime/cpu/object_report.hpp"

#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstrAnalysis.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>

#include "core/error.hpp"

namespace flashwright::cpu {
namespace {

constexpr llvm::StringRef kRecord = "flashwright features:";

std::unique_ptr<llvm::object::ObjectFile> open(const std::string& bytes) {
  auto object = llvm::object::ObjectFile::createObjectFile(llvm::MemoryBufferRef(bytes, "kernel"));
  if (!object)
    throw Error(Status::compile_failed, "a kernel's object cannot be read",
                llvm::toString(object.takeError()));
  return std::move(*object);
}

llvm::StringRef section_bytes(const llvm::object::ObjectFile& object, llvm::StringRef name) {
  for (const llvm::object::SectionRef& section : object.sections()) {
    llvm::Expected<llvm::StringRef> found = section.getName();
    if (!found || *found != name) {
      llvm::consumeError(found.takeError());
      continue;
    }
    llvm::Expected<llvm::StringRef> contents = section.getContents();
    if (contents) return *contents;
    llvm::consumeError(contents.takeError());
  }
  return {};
}

// Bytes of a vector register that an operand names, 0 for any other.
int vector_bytes(llvm::StringRef name) {
  if (name.starts_with("ZMM")) return 64;
  if (name.starts_with("YMM")) return 32;
  if (name.starts_with("XMM")) return 16;
  return name.size() > 1 && name[0] == 'Q' && name[1] >= '0' && name[1] <= '9' ? 16 : 0;
}

struct Loop {
  std::uint64_t begin, end;  // addresses of the first and the last instruction
};
struct Store {
  std::uint64_t address;
  int bytes;
};

// Walks over the machine code and notes loops and vector registers stored to the stack. Reloads alone are
// no spills: constants that found no register are as near on the stack as anywhere.
class Walk {
 public:
  explicit Walk(const llvm::TargetMachine& machine)
      : registers_(*machine.getMCRegisterInfo()),
        instructions_(*machine.getMCInstrInfo()),
        context_(machine.getTargetTriple(), machine.getMCAsmInfo(), &registers_,
                 machine.getMCSubtargetInfo()),
        decoder_(machine.getTarget().createMCDisassembler(*machine.getMCSubtargetInfo(), context_)),
        analysis_(machine.getTarget().createMCInstrAnalysis(&instructions_)) {}

  void run(llvm::StringRef code) {
    if (!decoder_ || !analysis_) return;
    const llvm::ArrayRef<std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(code.data()),
                                             code.size());
    for (std::uint64_t address = 0; address < bytes.size();) {
      llvm::MCInst instruction;
      std::uint64_t size = 0;
      const auto status =
          decoder_->getInstruction(instruction, size, bytes.slice(address), address, llvm::nulls());
      if (status == llvm::MCDisassembler::Success) note(instruction, address, size);
      address += std::max<std::uint64_t>(size, 1);
    }
  }

  int largest_frame() const { return frame_; }

  // Bytes of vector registers stored to the stack in one turn of every innermost loop.
  int spilled_in_loops() const {
    int total = 0;
    for (const Loop& loop : loops_) {
      const bool innermost = std::none_of(loops_.begin(), loops_.end(), [&](const Loop& other) {
        return (other.begin > loop.begin && other.end <= loop.end) ||
               (other.begin >= loop.begin && other.end < loop.end);
      });
      if (!innermost) continue;
      for (const Store& store : stores_)
        if (store.address >= loop.begin && store.address <= loop.end) total += store.bytes;
    }
    return total;
  }

 private:
  void note(const llvm::MCInst& instruction, std::uint64_t address, std::uint64_t size) {
    const llvm::MCInstrDesc& kind = instructions_.get(instruction.getOpcode());
    std::uint64_t target = 0;
    if (kind.isBranch() && analysis_->evaluateBranch(instruction, address, size, target) &&
        target <= address)
      loops_.push_back({target, address});
    note_frame(instruction);
    if (!kind.mayStore()) return;
    bool stack = false;
    int bytes = 0;
    for (unsigned i = 0; i < instruction.getNumOperands(); ++i) {
      if (!instruction.getOperand(i).isReg()) continue;
      const llvm::StringRef name = registers_.getName(instruction.getOperand(i).getReg());
      stack = stack || name == "RSP" || name == "SP";
      bytes = std::max(bytes, vector_bytes(name));
    }
    if (stack && bytes > 0) stores_.push_back({address, bytes});
  }

  // A function makes its frame by subtracting a number from the stack pointer.
  void note_frame(const llvm::MCInst& instruction) {
    if (!instructions_.getName(instruction.getOpcode()).starts_with("SUB")) return;
    if (instruction.getNumOperands() < 3 || !instruction.getOperand(0).isReg()) return;
    const llvm::StringRef target = registers_.getName(instruction.getOperand(0).getReg());
    const llvm::MCOperand& size = instruction.getOperand(2);
    if (size.isImm() && (target == "RSP" || target == "SP"))
      frame_ = std::max(frame_, static_cast<int>(size.getImm()));
  }

  const llvm::MCRegisterInfo& registers_;
  const llvm::MCInstrInfo& instructions_;
  llvm::MCContext context_;
  std::unique_ptr<llvm::MCDisassembler> decoder_;
  std::unique_ptr<llvm::MCInstrAnalysis> analysis_;
  std::vector<Loop> loops_;
  std::vector<Store> stores_;
  int frame_ = 0;
};

}  // namespace

std::vector<std::string> undefined_symbols(const std::string& bytes) {
  const auto object = open(bytes);
  std::vector<std::string> names;
  for (const llvm::object::SymbolRef& symbol : object->symbols()) {
    llvm::Expected<std::uint32_t> flags = symbol.getFlags();
    llvm::Expected<llvm::StringRef> name = symbol.getName();
    if (flags && name && (*flags & llvm::object::SymbolRef::SF_Undefined) != 0 && !name->empty())
      names.push_back(name->str());
    if (!flags) llvm::consumeError(flags.takeError());
    if (!name) llvm::consumeError(name.takeError());
  }
  return names;
}

std::string feature_record(const std::vector<std::string>& features) {
  std::string text = kRecord.str();
  for (const std::string& feature : features) text += " " + feature;
  return text;
}

std::vector<std::string> recorded_features(const std::string& bytes) {
  const auto object = open(bytes);
  const llvm::StringRef comment = section_bytes(*object, ".comment");
  const std::size_t start = comment.find(kRecord);
  std::vector<std::string> features;
  if (start == llvm::StringRef::npos) return features;
  llvm::SmallVector<llvm::StringRef, 64> words;
  comment.substr(start + kRecord.size()).split('\0').first.split(words, ' ', -1, false);
  for (const llvm::StringRef word : words) features.push_back(word.str());
  return features;
}

Resources measure_resources(const std::string& bytes, const llvm::TargetMachine& machine) {
  const auto object = open(bytes);
  Resources resources;
  Walk walk(machine);
  walk.run(section_bytes(*object, ".text"));
  resources.stack_bytes = walk.largest_frame();
  resources.spill_bytes = walk.spilled_in_loops();
  return resources;
}

}  // namespace flashwright::cpu
