#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/compose.hpp"
#include "generator/print_cuda.hpp"
#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::string cuda(const char* text) { return print_cuda(*parse_expr(text)); }

// A program that prints what the functions of a mask return over all small sizes.
std::string mask_program(Mask::Kind kind) {
  return "#include <cstdio>\n#define __device__\n#define __forceinline__ inline\n"
         "struct Params { int seq_kv, q_position, window_left, window_right; };\n"
         "int smaller(int a, int b) { return a < b ? a : b; }\nint larger(int a, int b) { return a "
         "> b ? a : b; }\n" +
         join(print_mask(kind)) +
         "int main() {\n"
         "  for (int seq = 0; seq < 5; ++seq) for (int at = -3; at < 5; ++at) for (int l = 0; l < "
         "3; ++l)\n"
         "    for (int r = 0; r < 3; ++r) for (int first = 0; first < 4; ++first) for (int last = "
         "first; last < 5; ++last) {\n"
         "      const Params p = {seq, at, l, r};\n"
         "      const KeyRange k = visible_keys(p, first, last);\n"
         "      std::printf(\"%d %d %d %d\", k.begin, k.end, k.full_begin, k.full_end);\n"
         "      for (int kv = 0; kv < seq; ++kv) std::printf(\" %d\", keep(p, first, kv) ? 1 : "
         "0);\n"
         "      std::printf(\"\\n\");\n    }\n}\n";
}

// The same by the table of masks.
std::string mask_table(Mask::Kind kind) {
  const MaskInfo& mask = info(kind);
  std::ostringstream out;
  for (int seq = 0; seq < 5; ++seq)
    for (int at = -3; at < 5; ++at)
      for (int l = 0; l < 3; ++l)
        for (int r = 0; r < 3; ++r)
          for (int first = 0; first < 4; ++first)
            for (int last = first; last < 5; ++last) {
              const auto value = [&](const ExprPtr& expr, int kv) {
                return static_cast<int>(evaluate(*expr, [&](std::string_view name) -> double {
                  if (name == "kv") return kv;
                  if (name == "seq_kv") return seq;
                  if (name == "window_left") return l;
                  if (name == "window_right") return r;
                  return at + (name == "q_last" ? last : first);
                }));
              };
              out << std::max(0, value(mask.begin, 0)) << ' ' << std::min(seq, value(mask.end, 0))
                  << ' ' << std::max(0, value(mask.full_begin, 0)) << ' '
                  << std::min(seq, value(mask.full_end, 0));
              for (int kv = 0; kv < seq; ++kv) out << ' ' << (value(mask.keep, kv) != 0 ? 1 : 0);
              out << '\n';
            }
  return out.str();
}

// The same for the ranges of queries.
std::string query_program(Mask::Kind kind) {
  return "#include <cstdio>\n#define __device__\n#define __forceinline__ inline\n"
         "struct Params { int seq_q, q_position, window_left, window_right; };\n"
         "int smaller(int a, int b) { return a < b ? a : b; }\nint larger(int a, int b) { return a "
         "> b ? a : b; }\n" +
         join(print_query_ranges(kind)) +
         "int main() {\n"
         "  for (int seq = 0; seq < 5; ++seq) for (int at = -3; at < 5; ++at) for (int l = 0; l < "
         "3; ++l)\n"
         "    for (int r = 0; r < 3; ++r) for (int first = 0; first < 4; ++first) for (int last = "
         "first; last < 5; ++last) {\n"
         "      const RowRange x = visible_rows({seq, at, l, r}, first, last);\n"
         "      std::printf(\"%d %d %d %d\\n\", x.begin, x.end, x.full_begin, x.full_end);\n"
         "    }\n}\n";
}

std::string query_table(Mask::Kind kind) {
  const MaskInfo& mask = info(kind);
  std::ostringstream out;
  for (int seq = 0; seq < 5; ++seq)
    for (int at = -3; at < 5; ++at)
      for (int l = 0; l < 3; ++l)
        for (int r = 0; r < 3; ++r)
          for (int first = 0; first < 4; ++first)
            for (int last = first; last < 5; ++last) {
              const auto row = [&](const ExprPtr& expr) {
                return static_cast<int>(evaluate(*expr,
                                                 [&](std::string_view name) -> double {
                                                   if (name == "q_begin") return at;
                                                   if (name == "q_end") return at + seq;
                                                   if (name == "window_left") return l;
                                                   if (name == "window_right") return r;
                                                   return name == "kv_last" ? last : first;
                                                 })) -
                       at;
              };
              out << std::max(0, row(mask.query_begin)) << ' ' << std::min(seq, row(mask.query_end))
                  << ' ' << std::max(0, row(mask.query_full_begin)) << ' '
                  << std::min(seq, row(mask.query_full_end)) << '\n';
            }
  return out.str();
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("positions are locals, everything else is a parameter of the launch") {
  CHECK(cuda("kv <= q") == "kv <= q");
  CHECK(cuda("q_first - window_left") == "q_first - params.window_left");
  CHECK(cuda("min(seq_kv, q_last + 1)") == "smaller(params.seq_kv, q_last + 1)");
  CHECK(cuda("max(0, q) >= 2 && !kv") == "larger(0, q) >= 2 && !kv");
  CHECK(cuda("q ? 1 : 2") == "q ? 1 : 2");
}

TEST_CASE("division is refused, as integers and numbers divide differently") {
  for (const char* text : {"q / 2", "ceil_div(q, 2)", "floor_div(q, 2)"})
    CHECK(error_of([&] { cuda(text); }).status == Status::internal);
}

TEST_CASE("expressions of scores are floating-point, with names for what is known") {
  const CudaNames names = {{"score", "score"},
                           {"slope / softcap", "slope"},
                           {"kv - q", "distance"},
                           {"bias", "params.bias"}};
  const auto text = [&](const char* expr, DType dtype = DType::bf16) {
    return print_cuda_float(*parse_expr(expr), names, dtype);
  };
  CHECK(text("tanh(score)") == "tanh_approx(score)");
  CHECK(text("tanh(score)", DType::fp32) == "tanh_exact(score)");
  CHECK(text("score + slope / softcap * (kv - q)") == "fused_multiply_add(slope, distance, score)");
  CHECK(text("score - bias * 2") == "fused_multiply_add(-params.bias, 2.0f, score)");
  CHECK(text("bias * score - 0.1") == "fused_multiply_add(params.bias, score, -0.1f)");
  CHECK(text("(score + 1) * (score - 1.5)") == "(score + 1.0f) * (score - 1.5f)");
  CHECK(text("score / (bias * 1e-9)") == "score / (params.bias * 1e-09f)");
  CHECK(text("max(abs(score), bias)") == "larger_float(magnitude(score), params.bias)");
  CHECK(text("score > 0 && !(bias <= score) ? -score : bias") ==
        "score > 0.0f && !(params.bias <= score) ? -score : params.bias");
  for (const char* unknown : {"window", "floor_div(score, 2)", "score + slope"})
    CHECK(error_of([&] { text(unknown); }).status == Status::internal);
}

TEST_CASE("the change of a score is one function, in the units of the kernel") {
  const auto printed = [](const char* config) {
    return join(print_score(normalise(config_from_json(config), parse_target("sm_80"))));
  };
  CHECK(printed(R"({"head_dim":64})").empty());
  CHECK(contains(printed(R"({"head_dim":64,"softcap":5})"),
                 "float modified(const Params& params, float score) {\n"
                 "  return tanh_approx(params.tanh_scale * score);\n}\n"));
  CHECK(contains(printed(R"({"head_dim":64,"alibi":true})"),
                 "  return fused_multiply_add(slope, distance, score);\n}\n"));
  CHECK(contains(
      printed(R"({"head_dim":64,"alibi":true,"softcap":5,"dtype":"fp32"})"),
      "  return fused_multiply_add(slope, distance, tanh_exact(params.tanh_scale * score));\n}\n"));
}

TEST_CASE("the derivative of a cap is a function of the score before it") {
  const auto printed = [](const char* config) {
    return join(print_derivative(normalise(config_from_json(config), parse_target("sm_80"))));
  };
  CHECK(printed(R"({"head_dim":64,"alibi":true})").empty());
  CHECK(contains(printed(R"({"head_dim":64,"softcap":5})"),
                 "float derivative(const Params& params, float score) {\n"
                 "  const float capped = tanh_approx(params.tanh_scale * score);\n"
                 "  return fused_multiply_add(-capped, capped, 1.0f);\n}\n"));
}

TEST_CASE("constants come in groups, with their comments in one column") {
  const std::vector<Constant> constants = {{"constexpr int kA = 1", "one"},
                                           {"constexpr int kLonger = 22", "two"},
                                           {},
                                           {"constexpr int kB = kA", ""}};
  CHECK(join(print_constants(constants)) ==
        "constexpr int kA = 1;        // one\nconstexpr int kLonger = 22;  // two\n\nconstexpr int "
        "kB = kA;\n");
}

TEST_CASE("the parameter struct declares the rows of the layout, in their order") {
  ParamLayout layout;
  for (const Param param :
       {Param::q, Param::o, Param::q_batch_stride, Param::q_row_stride, Param::q_head_stride,
        Param::k_batch_stride, Param::heads_q, Param::group, Param::seq_q, Param::seq_kv,
        Param::dropout_key, Param::aligned})
    layout.add(param);
  const std::string text = join(print_params(layout, DType::fp16));
  CHECK(text.starts_with("using Element = u16;\n"));
  CHECK(join(print_params(layout, DType::fp32)).starts_with("using Element = float;\n"));
  // Each field stands in the text, once, and behind the one before it.
  std::size_t at = 0;
  for (const ParamLayout::Field& field : layout.fields()) {
    const std::string name = info(field.param).name;
    std::size_t found = std::string::npos;
    for (const std::string& around : {" " + name + ";", " " + name + ","})
      found = std::min(found, text.find(around, at));
    INFO(name);
    REQUIRE(found != std::string::npos);
    at = found;
  }
  CHECK(contains(text, "  i64 q_batch_stride, q_row_stride, q_head_stride;"));
  CHECK(contains(text, "  i64 k_batch_stride;"));
  CHECK(contains(text, "const Element* q;"));
  CHECK(contains(text, "Element* o;"));
}

TEST_CASE("the printed functions of a mask compute what its row says") {
  if (run_program({"c++", "--version"}).status != 0)
    return skip("printed masks", "no c++ to compile them with");
  for (const Mask::Kind kind : {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window}) {
    INFO(to_string(kind));
    for (const auto& [program, expected] : {std::pair{mask_program(kind), mask_table(kind)},
                                            {query_program(kind), query_table(kind)}}) {
      const test::Folder folder;
      test::write_file(folder / "mask.cpp", program);
      const Output compiled =
          run_program({"c++", "-std=c++17", "-o", folder / "mask", folder / "mask.cpp"});
      INFO(compiled.text);
      REQUIRE(compiled.status == 0);
      CHECK(run_program({folder / "mask"}).text == expected);
    }
  }
}

TEST_SUITE_END();
