#include "core/problem.hpp"

#include <clocale>
#include <set>

#include "tests/support/random.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

const Target kTarget = {BackendKind::cuda, "sm_80"};

struct BadField {
  std::string json;
  std::vector<std::string> named;  // field, value, what is allowed
};

}  // namespace

TEST_CASE("a Config survives its JSON text") {
  property("round trip", [] {
    Config config = *configs();
    config.target = *rc::gen::element(std::string(), std::string("cpu"), std::string("a\"b\\c"));
    config.schedule = *rc::gen::element(std::string(), std::string("q128.kv64"));
    RC_ASSERT(config_from_json(to_json(config)) == config);
  });
}

TEST_CASE("equal Configs have equal and short texts") {
  Config config;
  config.head_dim = 64;
  CHECK(to_json(config) == R"({"dtype":"bf16","head_dim":64})");
  Config same =
      config_from_json(R"({"mask":"none","dropout":0.0,"head_dim":64,"deterministic":false})");
  CHECK(to_json(same) == to_json(config));
}

TEST_CASE("the JSON text does not follow the locale of the host program") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  bool comma = false;  // whether this machine has a locale that writes 0,5
  for (const char* name : {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR", "es_ES.UTF-8"})
    comma = comma || std::setlocale(LC_ALL, name) != nullptr;
  if (comma) {
    Config config;
    config.head_dim = 64;
    config.dropout = 0.5;
    CHECK(to_json(config) == R"({"dtype":"bf16","head_dim":64,"dropout":0.5})");
    CHECK(config_from_json(to_json(config)) == config);
  } else {
    skip("locale of the host program", "no locale with a decimal comma is installed");
  }
  std::setlocale(LC_ALL, before.c_str());
}

TEST_CASE("an unknown field is an error that lists the known ones") {
  const Error error = error_of([] { config_from_json(R"({"head_dim":64,"headdim_v":64})"); });
  CHECK(error.status == Status::bad_argument);
  for (const char* part :
       {"headdim_v", "unknown field", "head_dim_v", "dtype", "mask", "dropout", "softmax_scale",
        "softcap", "alibi", "deterministic", "target", "schedule", "direction"})
    CHECK(contains(error.message, part));
}

TEST_CASE("a field of the wrong kind is refused with its name, its value and what is allowed") {
  const std::vector<BadField> table = {
      {R"({"dtype":"fp64"})", {"dtype", "fp64", "fp16, bf16, fp32"}},
      {R"({"dtype":16})", {"dtype", "16", "a text"}},
      {R"({"head_dim":"64"})", {"head_dim", "64", "whole number"}},
      {R"({"head_dim":64.5})", {"head_dim", "64.5", "whole number"}},
      {R"({"head_dim":-8})", {"head_dim", "-8", "not negative"}},
      {R"({"head_dim":99999999999999999999})", {"head_dim", "1e+20", "whole number"}},
      {R"({"head_dim":18446744073709551615})",
       {"head_dim", "18446744073709551615", "whole number"}},
      {R"({"head_dim_v":null})", {"head_dim_v", "null", "whole number"}},
      {R"({"mask":"tree"})", {"mask", "tree", "none, causal"}},
      {R"({"mask":"window:-5,0"})", {"mask", "-5", "a side is -1"}},
      {R"({"mask":["causal"]})", {"mask", "[\"causal\"]", "a text"}},
      {R"({"dropout":"0.1"})", {"dropout", "0.1", "a number"}},
      {R"({"softmax_scale":true})", {"softmax_scale", "true", "a number"}},
      {R"({"deterministic":1})", {"deterministic", "1", "true, false"}},
      {R"({"softcap":true})", {"softcap", "true", "a number"}},
      {R"({"alibi":0.5})", {"alibi", "0.5", "true, false"}},
      {R"({"target":80})", {"target", "80", "a text"}},
      {R"({"schedule":{"q":1}})", {"schedule", "{\"q\":1}", "a text"}},
      {R"({"direction":1})", {"direction", "1", "a text"}},
      {R"([1])", {"config", "[1]", "JSON object"}},
      {R"("bf16")", {"config", "bf16", "JSON object"}},
      {R"({"head_dim":)", {"config", "not JSON"}},
      {"", {"config", "not JSON"}}};
  for (const BadField& row : table) {
    INFO(row.json);
    const Error error = error_of([&] { config_from_json(row.json); });
    CHECK(error.status == Status::bad_argument);
    for (const std::string& part : row.named) {
      INFO(error.message);
      CHECK(contains(error.message, part));
    }
  }
}

TEST_CASE("a value out of range is refused with its name, its value and what is allowed") {
  const std::vector<BadField> table = {
      {R"({})", {"head_dim", "0", "8..256 in steps of 8"}},
      {R"({"head_dim":4})", {"head_dim", "4", "8..256 in steps of 8", "nearest: 8"}},
      {R"({"head_dim":65})", {"head_dim", "65", "8..256 in steps of 8", "nearest: 72"}},
      {R"({"head_dim":264})", {"head_dim", "264", "8..256 in steps of 8", "nearest: 256"}},
      {R"({"head_dim":64,"head_dim_v":100})", {"head_dim_v", "100", "8..256 in steps of 8"}},
      {R"({"head_dim":64,"dropout":1.0})", {"dropout", "1", "from 0 to below 1"}},
      {R"({"head_dim":64,"dropout":-0.1})", {"dropout", "-0.1", "from 0 to below 1"}},
      {R"({"head_dim":64,"dropout":"nan"})", {"dropout", "nan", "from 0 to below 1"}},
      {R"({"head_dim":64,"softmax_scale":"nan"})", {"softmax_scale", "nan", "finite"}},
      {R"({"head_dim":64,"softmax_scale":"-inf"})", {"softmax_scale", "-inf", "finite"}},
      {R"({"head_dim":64,"softcap":0})", {"softcap", "0", "from 1e-18", "left out"}},
      {R"({"head_dim":64,"softcap":-30})", {"softcap", "-30", "from 1e-18"}},
      {R"({"head_dim":64,"softcap":1e20})", {"softcap", "1e+20", "to 1e+18"}},
      {R"({"head_dim":64,"softcap":"nan"})", {"softcap", "nan", "from 1e-18"}},
      {R"({"head_dim":64,"softcap":"inf"})", {"softcap", "inf", "to 1e+18"}},
      {R"({"head_dim":64,"direction":"back"})", {"direction", "back", "forward, backward"}}};
  for (const BadField& row : table) {
    INFO(row.json);
    const Config config = config_from_json(row.json);
    const Error error = error_of([&] { normalise(config, kTarget); });
    CHECK(error.status == Status::bad_argument);
    for (const std::string& part : row.named) CHECK(contains(error.message, part));
  }
}

TEST_CASE("all faults are told at once") {
  Config config;
  config.head_dim = 3;
  config.head_dim_v = 300;
  config.dropout = 2;
  config.softmax_scale = NAN;
  config.direction = "sideways";
  config.softcap = 0;
  CHECK(config_faults(config).size() == 6);
  const std::string message = error_of([&] { normalise(config, kTarget); }).message;
  for (const char* field : {"head_dim is", "head_dim_v is", "dropout is", "softmax_scale is",
                            "direction is", "softcap is"})
    CHECK(contains(message, field));
}

TEST_CASE("normalising makes defaults explicit and takes run-time values out") {
  Config config;
  config.head_dim = 64;
  config.mask = Mask::window(10, 20);
  config.dropout = 0.25;
  config.softmax_scale = 0.5;
  config.softcap = 30;
  config.alibi = true;
  const Problem problem = normalise(config, kTarget);
  CHECK(problem.head_dim_v == 64);
  CHECK(problem.dropout);
  config.mask = Mask::window(-1, 3);
  config.dropout = 0.75;
  config.softmax_scale.reset();
  config.softcap = 50;
  CHECK(normalise(config, kTarget) == problem);
  CHECK(to_string(problem) == "forward bf16 d64 window dropout softcap alibi sm_80");
}

TEST_CASE("a backward Problem says so, and on a GPU whether sums keep an order") {
  Config config;
  config.head_dim = 64;
  config.direction = "backward";
  config.softmax_scale = -1;
  config.deterministic = true;
  CHECK(to_string(normalise(config, kTarget)) == "backward bf16 d64 none deterministic sm_80");
  CHECK(to_string(normalise(config, {BackendKind::cpu, "avx2"})) ==
        "backward bf16 d64 none cpu:avx2");
  config.direction = "forward";  // always deterministic: the same kernel
  CHECK(to_string(normalise(config, kTarget)) == "forward bf16 d64 none negative scale sm_80");
}

TEST_CASE("the canonical text tells Problems apart, and nothing else does") {
  std::vector<Problem> all;
  std::set<std::string> texts;
  for (const Algorithm algorithm : {Algorithm::tiled, Algorithm::unfused})
    for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32})
      for (const int head_dim : {8, 64, 128})
        for (const int head_dim_v : {8, 64, 128})
          for (const auto kind :
               {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window, Mask::Kind::blocks})
            for (int options = 0; options < 32; ++options)
              for (const Target& target :
                   {kTarget, Target{BackendKind::cuda, "sm_90a"}, Target{BackendKind::cpu, "avx2"}})
                all.push_back({options % 2 == 1 ? Direction::backward : Direction::forward,
                               algorithm, dtype, head_dim, head_dim_v, kind, options / 2 % 2 == 1,
                               options / 4 % 2 == 1, options / 4 % 2 == 1, target,
                               options / 8 % 2 == 1, options >= 16});
  for (const Problem& problem : all) texts.insert(to_string(problem));
  CHECK(texts.size() == all.size());
  CHECK(std::set<Problem>(all.begin(), all.end()).size() == all.size());
  property("equal texts, equal Problems", [] {
    const auto any = problems({kTarget, {BackendKind::cuda, "sm_90a"}});
    const Problem a = *any, b = *any;
    RC_ASSERT((a == b) == (to_string(a) == to_string(b)));
  });
}
