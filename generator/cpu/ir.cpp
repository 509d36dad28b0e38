#include "generator/cpu/ir.hpp"

#include <llvm/IR/AssemblyAnnotationWriter.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/FormattedStream.h>
#include <llvm/Support/raw_ostream.h>

#include <map>

#include "core/error.hpp"

namespace flashwright::ir {

struct Builder::State {
  explicit State(const std::string& name) : module(name, context), at(context) {}

  llvm::LLVMContext context;
  llvm::Module module;
  llvm::IRBuilder<> at;
  llvm::Function* function = nullptr;
  std::string banner;
  ModuleTarget target;
  std::map<const llvm::BasicBlock*, std::string> comments;

  llvm::Type* type(Type t) {
    llvm::Type* scalar = nullptr;
    switch (t.kind) {
      case Kind::i1:
        scalar = at.getInt1Ty();
        break;
      case Kind::i8:
        scalar = at.getInt8Ty();
        break;
      case Kind::i16:
        scalar = at.getInt16Ty();
        break;
      case Kind::i32:
        scalar = at.getInt32Ty();
        break;
      case Kind::i64:
        scalar = at.getInt64Ty();
        break;
      case Kind::f16:
        scalar = at.getHalfTy();
        break;
      case Kind::f32:
        scalar = at.getFloatTy();
        break;
      case Kind::ptr:
        scalar = llvm::PointerType::get(context, 0);
        break;
    }
    return t.lanes == 1 ? scalar
                        : llvm::FixedVectorType::get(scalar, static_cast<unsigned>(t.lanes));
  }
  // A block joins the function when its code begins, so that the text runs in reading order.
  llvm::BasicBlock* detached(const std::string& name) {
    return llvm::BasicBlock::Create(context, name);
  }
  void enter(llvm::BasicBlock* block) {
    function->insert(function->end(), block);
    at.SetInsertPoint(block);
  }
};

namespace {

llvm::IRBuilder<>& at(V value) { return value.builder->state().at; }
V wrap(V like, llvm::Value* raw) { return {raw, like.builder}; }
bool is_float(V value) { return value.raw->getType()->isFPOrFPVectorTy(); }
// The low `bits` of a number.
llvm::APInt fitted(std::int64_t value, unsigned bits) {
  return llvm::APInt(64, static_cast<std::uint64_t>(value), true).sextOrTrunc(bits);
}
V number_like(V like, std::int64_t value) {
  llvm::Type* const type = like.raw->getType();
  if (type->isFPOrFPVectorTy())
    return wrap(like, llvm::ConstantFP::get(type, static_cast<double>(value)));
  return wrap(like, llvm::ConstantInt::get(type, fitted(value, type->getScalarSizeInBits())));
}

// The type `kind` with the lanes of `value`.
llvm::Type* retyped(V value, Kind kind) {
  return value.builder->state().type({kind, lanes_of(value)});
}

// Prints the comment of a block above its label.
class Commenter : public llvm::AssemblyAnnotationWriter {
 public:
  explicit Commenter(const std::map<const llvm::BasicBlock*, std::string>& comments)
      : comments_(comments) {}
  void emitBasicBlockStartAnnot(const llvm::BasicBlock* block,
                                llvm::formatted_raw_ostream& out) override {
    const auto found = comments_.find(block);
    if (found != comments_.end()) out << "; " << found->second << "\n";
  }

 private:
  const std::map<const llvm::BasicBlock*, std::string>& comments_;
};

}  // namespace

int bytes_of(Kind kind) {
  constexpr int kBytes[] = {1, 1, 2, 4, 8, 2, 4, 8};
  return kBytes[static_cast<int>(kind)];
}

V V::named(std::string_view name) const {
  raw->setName(llvm::StringRef(name.data(), name.size()));
  return *this;
}
V V::named(std::string_view name, int index) const {
  return named(std::string(name) + "." + std::to_string(index));
}

V operator+(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFAdd(a.raw, b.raw, "sum")
                             : at(a).CreateAdd(a.raw, b.raw, "sum"));
}
V operator-(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFSub(a.raw, b.raw, "diff")
                             : at(a).CreateSub(a.raw, b.raw, "diff"));
}
V operator*(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFMul(a.raw, b.raw, "product")
                             : at(a).CreateMul(a.raw, b.raw, "product"));
}
V operator&(V a, V b) { return wrap(a, at(a).CreateAnd(a.raw, b.raw, "both")); }
V operator|(V a, V b) { return wrap(a, at(a).CreateOr(a.raw, b.raw, "either")); }
V operator^(V a, V b) { return wrap(a, at(a).CreateXor(a.raw, b.raw, "xor")); }
V operator+(V a, std::int64_t b) { return a + number_like(a, b); }
V operator-(V a, std::int64_t b) { return a - number_like(a, b); }
V operator*(V a, std::int64_t b) { return a * number_like(a, b); }
V operator&(V a, std::int64_t b) { return a & number_like(a, b); }
V shift_left(V a, int bits) {
  return wrap(a, at(a).CreateShl(a.raw, number_like(a, bits).raw, "shifted"));
}
V shift_right(V a, V bits) { return wrap(a, at(a).CreateLShr(a.raw, bits.raw, "shifted")); }
V shift_right(V a, int bits) { return shift_right(a, number_like(a, bits)); }
V shift_right_signed(V a, int bits) {
  return wrap(a, at(a).CreateAShr(a.raw, number_like(a, bits).raw, "shifted"));
}
V divide(V a, V b) { return wrap(a, at(a).CreateSDiv(a.raw, b.raw, "quotient")); }
V divide_unsigned(V a, V b) { return wrap(a, at(a).CreateUDiv(a.raw, b.raw, "quotient")); }
V remainder_unsigned(V a, V b) { return wrap(a, at(a).CreateURem(a.raw, b.raw, "rest")); }
V divide_float(V a, V b) { return wrap(a, at(a).CreateFDiv(a.raw, b.raw, "ratio")); }
V fma(V a, V b, V c) {
  return wrap(a, at(a).CreateIntrinsic(llvm::Intrinsic::fma, {a.raw->getType()},
                                       {a.raw, b.raw, c.raw}, nullptr, "fma"));
}
V floor(V a) {
  return wrap(a, at(a).CreateUnaryIntrinsic(llvm::Intrinsic::floor, a.raw, nullptr, "floor"));
}
V fraction512(V a) {
  llvm::IRBuilder<>& ir = at(a);
  // Round down, to whole numbers, raise no exception; all lanes; the current rounding mode is unused.
  llvm::Value* const args[] = {a.raw, ir.getInt32(9), a.raw, ir.getInt16(0xffff), ir.getInt32(4)};
  return wrap(a, ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_reduce_ps_512, {}, args,
                                    nullptr, "fraction"));
}
V scale512(V a, V b) {
  llvm::IRBuilder<>& ir = at(a);
  llvm::Value* const args[] = {a.raw, b.raw, a.raw, ir.getInt16(0xffff), ir.getInt32(4)};
  return wrap(a, ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {}, args,
                                    nullptr, "scaled"));
}

V less(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFCmpOLT(a.raw, b.raw, "less")
                             : at(a).CreateICmpSLT(a.raw, b.raw, "less"));
}
V less_equal(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFCmpOLE(a.raw, b.raw, "at.most")
                             : at(a).CreateICmpSLE(a.raw, b.raw, "at.most"));
}
V equal(V a, V b) {
  return wrap(a, is_float(a) ? at(a).CreateFCmpOEQ(a.raw, b.raw, "equal")
                             : at(a).CreateICmpEQ(a.raw, b.raw, "equal"));
}
V equal(V a, std::int64_t b) { return equal(a, number_like(a, b)); }
V less(V a, std::int64_t b) { return less(a, number_like(a, b)); }
V negate_bit(V a) { return wrap(a, at(a).CreateNot(a.raw, "not")); }
V is_nan(V a) { return wrap(a, at(a).CreateFCmpUNO(a.raw, a.raw, "is.nan")); }
V select(V condition, V a, V b) {
  return wrap(a, at(a).CreateSelect(condition.raw, a.raw, b.raw, "chosen"));
}
V smaller(V a, V b) { return select(less(a, b), a, b).named("smaller"); }
V larger(V a, V b) { return select(less(b, a), a, b).named("larger"); }
V larger_float(V a, V b) { return select(less(b, a), a, b).named("larger"); }

V widen(V a, Kind kind) {
  llvm::Type* const type = retyped(a, kind);
  return wrap(a, is_float(a) ? at(a).CreateFPExt(a.raw, type, "wide")
                             : at(a).CreateZExt(a.raw, type, "wide"));
}
V widen_signed(V a, Kind kind) {
  return wrap(a, at(a).CreateSExt(a.raw, retyped(a, kind), "wide"));
}
V narrow(V a, Kind kind) {
  llvm::Type* const type = retyped(a, kind);
  return wrap(a, is_float(a) ? at(a).CreateFPTrunc(a.raw, type, "narrow")
                             : at(a).CreateTrunc(a.raw, type, "narrow"));
}
V bits_as(V a, Kind kind) { return wrap(a, at(a).CreateBitCast(a.raw, retyped(a, kind), "bits")); }
V to_float(V a) { return wrap(a, at(a).CreateSIToFP(a.raw, retyped(a, Kind::f32), "float")); }
int lanes_of(V a) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(a.raw->getType());
  return vector == nullptr ? 1 : static_cast<int>(vector->getNumElements());
}
V splat(V a, int lanes) {
  return lanes == 1 ? a
                    : wrap(a, at(a).CreateVectorSplat(static_cast<unsigned>(lanes), a.raw, "all"));
}
V mix(V a, V b, const std::vector<int>& lanes) {
  return wrap(a, at(a).CreateShuffleVector(a.raw, b.raw, llvm::ArrayRef<int>(lanes), "mixed"));
}

Builder::Builder(const std::string& module_name, const ModuleTarget& target,
                 const std::string& banner)
    : state_(std::make_unique<State>(module_name)) {
  state_->banner = banner;
  state_->target = target;
}
Builder::~Builder() = default;

void Builder::begin_function(const std::string& name) {
  State& s = *state_;
  llvm::Type* const pointer = s.type({Kind::ptr});
  auto* const type =
      llvm::FunctionType::get(s.at.getVoidTy(), {pointer, s.at.getInt64Ty(), pointer}, false);
  s.function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, s.module);
  const char* const names[] = {"params", "task", "scratch"};
  for (unsigned i = 0; i < 3; ++i) s.function->getArg(i)->setName(names[i]);
  s.function->addParamAttr(0, llvm::Attribute::NoAlias);
  s.function->addParamAttr(2, llvm::Attribute::NoAlias);
  s.function->addFnAttr(llvm::Attribute::NoUnwind);
  s.function->addFnAttr("target-features", s.target.features);
  const std::string bits = std::to_string(s.target.vector_bits);
  // Without these two LLVM halves the widest vectors on some processors.
  s.function->addFnAttr("prefer-vector-width", bits);
  s.function->addFnAttr("min-legal-vector-width", bits);
  s.enter(s.detached("entry"));
}

void Builder::end_function() { state_->at.CreateRetVoid(); }
V Builder::params() { return {state_->function->getArg(0), this}; }
V Builder::task() { return {state_->function->getArg(1), this}; }
V Builder::scratch() { return {state_->function->getArg(2), this}; }

V Builder::number(Type type, std::int64_t value) {
  llvm::Type* const to = state_->type(type);
  return {llvm::ConstantInt::get(to, fitted(value, to->getScalarSizeInBits())), this};
}
V Builder::number(Type type, double value) {
  return {llvm::ConstantFP::get(state_->type(type), value), this};
}
V Builder::lane_numbers(Type type) {
  std::vector<llvm::Constant*> lanes;
  for (int i = 0; i < type.lanes; ++i)
    lanes.push_back(
        llvm::ConstantInt::get(state_->type({type.kind}), static_cast<std::uint64_t>(i)));
  return {llvm::ConstantVector::get(lanes), this};
}
V Builder::undefined(Type type) { return {llvm::PoisonValue::get(state_->type(type)), this}; }
V Builder::null() {
  return {llvm::ConstantPointerNull::get(llvm::PointerType::get(state_->context, 0)), this};
}

V Builder::load(Type type, V pointer, int align) {
  return {state_->at.CreateAlignedLoad(state_->type(type), pointer.raw,
                                       llvm::Align(static_cast<std::uint64_t>(align)), "loaded"),
          this};
}
void Builder::store(V value, V pointer, int align) {
  state_->at.CreateAlignedStore(value.raw, pointer.raw,
                                llvm::Align(static_cast<std::uint64_t>(align)));
}
void Builder::prefetch(V pointer, Cache cache) {
  llvm::IRBuilder<>& ir = state_->at;
  constexpr int kRead = 0, kData = 1;
  const unsigned locality = cache == Cache::first ? 3 : 2;
  ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {pointer.raw->getType()},
                     {pointer.raw, ir.getInt32(kRead), ir.getInt32(locality), ir.getInt32(kData)});
}
V Builder::element(V pointer, Kind kind, V index) {
  return {state_->at.CreateGEP(state_->type({kind}), pointer.raw, index.raw, "at"), this};
}
V Builder::offset(V pointer, std::int64_t bytes) {
  if (bytes == 0) return pointer;
  return {state_->at.CreateGEP(state_->at.getInt8Ty(), pointer.raw, i64(bytes).raw, "at"), this};
}

Values Builder::loop(const std::string& name, V begin, V end, std::int64_t step,
                     const std::vector<Carried>& carried, const Body& body) {
  State& s = *state_;
  llvm::BasicBlock* const before = s.at.GetInsertBlock();
  llvm::BasicBlock* const turn = s.detached(name);
  llvm::BasicBlock* const after = s.detached(name + ".end");
  const auto* first = llvm::dyn_cast<llvm::ConstantInt>(begin.raw);
  const auto* last = llvm::dyn_cast<llvm::ConstantInt>(end.raw);
  const bool runs =
      first != nullptr && last != nullptr && first->getSExtValue() < last->getSExtValue();
  if (runs) {
    s.at.CreateBr(turn);
  } else {  // tested once before the first turn, then only behind each turn
    s.at.CreateCondBr(less(begin, end).named(name + ".runs").raw, turn, after);
  }

  s.enter(turn);
  llvm::PHINode* const index = s.at.CreatePHI(begin.raw->getType(), 2, name + ".i");
  index->addIncoming(begin.raw, before);
  std::vector<llvm::PHINode*> phis;
  Values inside;
  for (const Carried& value : carried) {
    phis.push_back(s.at.CreatePHI(value.start.raw->getType(), 2, value.name));
    phis.back()->addIncoming(value.start.raw, before);
    inside.push_back({phis.back(), this});
  }
  const Values next = body({index, this}, inside);
  const V following = (V{index, this} + step).named(name + ".next");
  llvm::BasicBlock* const back = s.at.GetInsertBlock();
  index->addIncoming(following.raw, back);
  for (std::size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(next[i].raw, back);
  s.at.CreateCondBr(less(following, end).named(name + ".more").raw, turn, after);

  s.enter(after);
  Values out;
  for (std::size_t i = 0; i < phis.size(); ++i) {
    llvm::PHINode* const phi = s.at.CreatePHI(phis[i]->getType(), 2, carried[i].name + ".out");
    phi->addIncoming(next[i].raw, back);
    if (!runs) phi->addIncoming(carried[i].start.raw, before);
    out.push_back({phi, this});
  }
  return out;
}

void Builder::loop(const std::string& name, V begin, V end, std::int64_t step,
                   const std::function<void(V)>& body) {
  loop(name, begin, end, step, {}, [&](V i, const Values&) {
    body(i);
    return Values{};
  });
}

void Builder::when(const std::string& name, V condition, const std::function<void()>& body) {
  State& s = *state_;
  llvm::BasicBlock* const inside = s.detached(name);
  llvm::BasicBlock* const after = s.detached(name + ".end");
  s.at.CreateCondBr(condition.raw, inside, after);
  s.enter(inside);
  body();
  s.at.CreateBr(after);
  s.enter(after);
}

void Builder::leave_when(const std::string& name, V condition) {
  State& s = *state_;
  llvm::BasicBlock* const inside = s.detached(name);
  llvm::BasicBlock* const after = s.detached(name + ".end");
  s.at.CreateCondBr(condition.raw, inside, after);
  s.enter(inside);
  s.at.CreateRetVoid();
  s.enter(after);
}

void Builder::read_float_control(V pointer) {
  state_->at.CreateIntrinsic(llvm::Intrinsic::x86_sse_stmxcsr, {}, {pointer.raw});
}
void Builder::write_float_control(V pointer) {
  state_->at.CreateIntrinsic(llvm::Intrinsic::x86_sse_ldmxcsr, {}, {pointer.raw});
}

void Builder::phase(const std::string& name, const std::string& comment) {
  llvm::BasicBlock* const next = state_->detached(name);
  state_->at.CreateBr(next);
  state_->enter(next);
  state_->comments[next] = comment;
}

std::string Builder::print() {
  State& s = *state_;
  std::string text;
  llvm::raw_string_ostream out(text);
  out.SetBufferSize(1 << 16);  // else the printer pays for every word
  if (llvm::verifyModule(s.module, &out))
    throw Error(Status::internal, "the CPU family built a malformed module", out.str());
  s.module.setTargetTriple(s.target.triple);
  out << s.banner;
  Commenter commenter(s.comments);
  s.module.print(out, &commenter);
  out.flush();
  return text;
}

}  // namespace flashwright::ir
