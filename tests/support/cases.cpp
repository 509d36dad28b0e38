#include "tests/support/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/dtype.hpp"

namespace flashwright::testing {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The rule that fills inputs: a hash of (seed, tensor, index) to a multiple of 1/8 in [-1, 1].
double unit(std::uint64_t seed, std::uint64_t tag, std::uint64_t index) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + tag * 0xBF58476D1CE4E5B9u + index;
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return (static_cast<double>((z >> 33) % 17) - 8) / 8;
}

// The sizes of a spec with its defaults filled in. Packed sequences count as one batch entry.
struct Sizes {
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v;
  bool packed;
};
Sizes sizes_of(const json& spec) {
  Sizes s{};
  s.packed = spec.contains("cu_q");
  s.batch = spec.value("B", std::int64_t{1});
  s.heads_q = spec.value("Hq", std::int64_t{1});
  s.heads_kv = spec.value("Hk", s.heads_q);
  s.head_dim = spec.at("D");
  s.head_dim_v = spec.value("Dv", s.head_dim);
  if (s.packed) {
    s.seq_q = spec.contains("Tq") ? spec["Tq"].get<std::int64_t>()
                                  : spec["cu_q"].back().get<std::int64_t>();
    s.seq_kv = spec.contains("Tk") ? spec["Tk"].get<std::int64_t>()
                                   : spec["cu_k"].back().get<std::int64_t>();
  } else {
    s.seq_q = spec.at("Sq");
    s.seq_kv = spec.at("Sk");
  }
  return s;
}

// Values of one input in logical order (batch, seq, heads, dim).
std::vector<double> input(const json& spec, const std::string& name, std::int64_t batch,
                          std::int64_t seq, std::int64_t heads, std::int64_t dim) {
  const json inputs = spec.value("inputs", json::object());
  const std::string tags[] = {"", "q", "k", "v", "do", "bias", "dlse"};
  const std::uint64_t seed = inputs.value("seed", 1);
  const auto tag = static_cast<std::uint64_t>(std::find(tags, tags + 7, name) - tags);
  std::vector<double> t(static_cast<std::size_t>(batch * seq * heads * dim));
  for (std::size_t i = 0; i < t.size(); ++i) t[i] = unit(seed, tag, i);
  const auto dims = static_cast<std::size_t>(dim);
  const auto row = [&](std::size_t i) {
    return static_cast<std::int64_t>(i / dims) / heads % std::max<std::int64_t>(seq, 1);
  };
  for (const json& o : inputs.value("overrides", json::array())) {
    if (o.at("t") != name) continue;
    if (o.contains("fill")) std::fill(t.begin(), t.end(), o["fill"].get<double>());
    if (o.contains("mul"))
      for (double& x : t) x *= o["mul"].get<double>();
    if (o.contains("d"))
      for (std::size_t i = o["d"]; i < t.size(); i += dims) t[i] = o["v"];
    if (o.contains("at"))
      for (const json& i : o["at"]) t.at(i.get<std::size_t>()) = o["v"];
    for (std::size_t i = 0; i < t.size(); i += dims) {
      if (o.contains("ramp")) t[i] = static_cast<double>(row(i)) * o["ramp"].get<double>();
      if (o.contains("step"))
        t[i] = static_cast<double>(row(i) / o["step"][0].get<std::int64_t>()) *
               o["step"][1].get<double>();
    }
  }
  return t;
}

std::vector<unsigned char> stored(const std::vector<double>& values, DType dtype) {
  const auto bytes = static_cast<std::size_t>(info(dtype).bytes);
  std::vector<unsigned char> out(values.size() * bytes);
  for (std::size_t i = 0; i < values.size(); ++i)
    from_float(dtype, static_cast<float>(values[i]), out.data() + i * bytes);
  return out;
}

// Whether key j is visible to query i of a sequence with the given lengths.
bool allowed(const json& mask, std::int64_t b, std::int64_t i, std::int64_t j, std::int64_t seq_q,
             std::int64_t seq_kv) {
  const std::int64_t shift = seq_kv - seq_q;
  const std::string causal = mask.value("causal", "");
  if (causal == "br" && j > i + shift) return false;
  if (causal == "tl" && j > i) return false;
  if (mask.contains("window")) {
    const std::int64_t left = mask["window"][0], right = mask["window"][1];
    const std::int64_t p = i + (mask.value("align", "br") == "br" ? shift : 0);
    if ((left >= 0 && j < p - left) || (right >= 0 && j > p + right)) return false;
  }
  if (mask.contains("dense") && mask["dense"][i][j] == 0) return false;
  if (mask.contains("docs_q") && mask["docs_q"][i] != mask["docs_k"][j]) return false;
  if (mask.contains("keep_keys")) {
    const json& keep = mask["keep_keys"];
    const json& range = keep[0].is_array() ? keep[b] : keep;
    if (j < range[0].get<std::int64_t>() || j >= range[1].get<std::int64_t>()) return false;
  }
  if (mask.contains("blocks")) {
    const std::int64_t m = mask["block"][0], n = mask["block"][1];
    if (mask["blocks"][i / m][j / n] == 0) return false;
  }
  if (mask.contains("prefix") && j >= mask["prefix"].get<std::int64_t>() && j > i) return false;
  return true;
}

// Masks that are a row of the library's table, with the position of query 0; the others become blocks.
struct MaskChoice {
  Mask mask;
  bool top_left = false;
};
MaskChoice choose_mask(const json& mask) {
  const std::string causal = mask.value("causal", "");
  const bool window = mask.contains("window");
  if (mask.empty()) return {Mask::none()};
  if (mask.size() == 1 && !causal.empty()) return {Mask::causal(), causal == "tl"};
  const bool align = mask.contains("align");
  if (mask.size() == std::size_t{1} + align && window)
    return {Mask::window(mask["window"][0], mask["window"][1]), mask.value("align", "br") == "tl"};
  return {Mask::blocks()};
}

std::string missing_feature(const json& spec, const Sizes& s) {
  for (const char* name : {"bias", "alibi", "score", "descale"})
    if (spec.contains(name)) return name;
  if (s.head_dim % 8 != 0 || s.head_dim_v % 8 != 0)
    return fmt::format("head dims {}/{} are no multiples of 8", s.head_dim, s.head_dim_v);
  return {};
}

double number(const json& value) {
  if (value.is_number()) return value;
  const std::string text = value;
  return text == "nan" ? std::nan("") : text == "inf" ? kInfinity : -kInfinity;
}

// Compares samples and sums of one tensor. `bound` gives the tolerance for an expected value.
template <typename Bound>
std::string compare(const char* name, const json& golden, const std::vector<double>& values,
                    const Bound& bound) {
  if (golden.at("n") != values.size())
    return fmt::format("{} has {} elements, expected {}", name, values.size(),
                       golden.at("n").dump());
  const auto element = [&](std::size_t i, double expected) -> std::string {
    const double given = values[i];
    const bool same = std::isfinite(expected)
                          ? std::fabs(given - expected) <= bound(expected)
                          : given == expected || (std::isnan(given) && std::isnan(expected));
    return same ? ""
                : fmt::format("{}[{}] is {}, expected {} within {}", name, i, given, expected,
                              bound(expected));
  };
  if (golden.contains("full")) {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::string fault = element(i, number(golden["full"][i])); !fault.empty()) return fault;
    return {};
  }
  for (const json& sample : golden.at("at"))
    if (std::string fault = element(sample[0], number(sample[1])); !fault.empty()) return fault;
  double sum = 0, magnitude = 0, finite = 0;
  for (const double x : values) {
    if (!std::isfinite(x)) continue;
    sum += x;
    magnitude += std::fabs(x);
    ++finite;
  }
  const double slack = finite * bound(number(golden.at("maxabs")));
  if (std::fabs(sum - number(golden.at("sum"))) > slack ||
      std::fabs(magnitude - number(golden.at("abs"))) > slack)
    return fmt::format("{} sums to {} (magnitudes to {}), expected {} and {}", name, sum, magnitude,
                       golden["sum"].dump(), golden["abs"].dump());
  return {};
}

// A call on rows [q0, q1) and [k0, k1) of batch entry `b`, or on all entries when `b` is negative.
struct Segment {
  std::int64_t b, q0, q1, k0, k1;
};

TensorView slice(std::vector<unsigned char>& memory, DType dtype,
                 const std::array<std::int64_t, 4>& shape, std::int64_t b, std::int64_t first,
                 std::int64_t last) {
  TensorView view = dense_view(memory.data(), dtype, shape);
  view.data =
      memory.data() +
      (std::max<std::int64_t>(b, 0) * view.stride[0] + first * view.stride[1]) * info(dtype).bytes;
  if (b >= 0) view.shape[0] = 1;
  view.shape[1] = last - first;
  return view;
}

void add_call(CaseRun& run, const Sizes& s, const json& mask, const Segment& at, int block_q,
              int block_kv) {
  const DType dtype = run.config.dtype;
  Arguments call;
  call.q = slice(run.q, dtype, {s.batch, s.seq_q, s.heads_q, s.head_dim}, at.b, at.q0, at.q1);
  call.o = slice(run.o, dtype, {s.batch, s.seq_q, s.heads_q, s.head_dim_v}, at.b, at.q0, at.q1);
  call.k = slice(run.k, dtype, {s.batch, s.seq_kv, s.heads_kv, s.head_dim}, at.b, at.k0, at.k1);
  call.v = slice(run.v, dtype, {s.batch, s.seq_kv, s.heads_kv, s.head_dim_v}, at.b, at.k0, at.k1);
  TensorView lse;
  lse.dtype = DType::fp32;
  lse.ndim = 3;
  lse.shape = {call.q.shape[0], s.heads_q, at.q1 - at.q0, 1};
  lse.stride = {s.heads_q * s.seq_q, s.seq_q, 1, 1};
  lse.data = run.lse.data() + std::max<std::int64_t>(at.b, 0) * lse.stride[0] + at.q0;
  call.lse = lse;
  const MaskChoice choice = choose_mask(mask);
  if (choice.top_left) call.q_position = 0;
  if (choice.mask.kind == Mask::Kind::blocks) {
    const std::int64_t seq_q = at.q1 - at.q0, seq_kv = at.k1 - at.k0, batch = call.q.shape[0];
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(batch * seq_q * seq_kv));
    std::size_t place = 0;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < seq_q; ++i)
        for (std::int64_t j = 0; j < seq_kv; ++j)
          keep[place++] = allowed(mask, at.b < 0 ? b : at.b, i, j, seq_q, seq_kv);
    run.masks.push_back(
        block_mask_from_dense(keep.data(), batch, 1, seq_q, seq_kv, block_q, block_kv));
    call.blocks = run.masks.back().lists;
  }
  run.calls.push_back(call);
  if (run.d_o.empty() && run.dq.empty()) return;
  call.d_o = slice(run.d_o, dtype, {s.batch, s.seq_q, s.heads_q, s.head_dim_v}, at.b, at.q0, at.q1);
  call.dq = slice(run.dq, dtype, {s.batch, s.seq_q, s.heads_q, s.head_dim}, at.b, at.q0, at.q1);
  call.dk = slice(run.dk, dtype, {s.batch, s.seq_kv, s.heads_kv, s.head_dim}, at.b, at.k0, at.k1);
  call.dv = slice(run.dv, dtype, {s.batch, s.seq_kv, s.heads_kv, s.head_dim_v}, at.b, at.k0, at.k1);
  if (!run.d_lse.empty()) {
    call.d_lse = lse;
    call.d_lse->data = run.d_lse.data() + (static_cast<float*>(lse.data) - run.lse.data());
  }
  run.backward_calls.push_back(call);
}

// Output gradients, and room for those of the inputs: what no call writes has none.
void make_gradients(const json& spec, const Sizes& s, CaseRun& run) {
  const DType dtype = run.config.dtype;
  run.d_o = stored(input(spec, "do", s.batch, s.seq_q, s.heads_q, s.head_dim_v), dtype);
  run.dq.resize(run.q.size());
  run.dk.resize(run.k.size());
  run.dv.resize(run.v.size());
  if (!spec.value("dlse", false)) return;
  for (const double value : input(spec, "dlse", s.batch, s.heads_q, s.seq_q, 1))
    run.d_lse.push_back(static_cast<float>(value));
}

}  // namespace

std::vector<GoldenCase> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<GoldenCase> all;
  const std::pair<const char*, DType> kTypes[] = {
      {"f32", DType::fp32}, {"f16", DType::fp16}, {"bf16", DType::bf16}};
  for (const json& one : json::parse(file)) {
    const json& expect = one.at("expect");
    const json specs = expect.value("golden_of", json::object());
    for (const auto& [name, spec] : specs.items()) {
      for (const auto& [label, dtype] : kTypes) {
        const json& tolerances = expect.at("tol").at(name);
        if (!tolerances.contains(label)) continue;
        GoldenCase golden;
        golden.id =
            fmt::format("{}/{}/{}", one.at("id").get<std::string>(), name, to_string(dtype));
        golden.dtype = dtype;
        golden.skip = missing_feature(spec, sizes_of(spec));
        golden.spec = spec.dump();
        golden.golden = expect.at("golden").at(name).dump();
        golden.tolerance = tolerances[label].at("o");
        golden.gradients = spec.value("grad", false);
        golden.of_dq = tolerances[label].value("dq", 0.0);
        golden.of_dk = tolerances[label].value("dk", 0.0);
        golden.of_dv = tolerances[label].value("dv", 0.0);
        all.push_back(std::move(golden));
      }
    }
  }
  return all;
}

void make_run(const GoldenCase& golden, int block_q, int block_kv, CaseRun& run) {
  const json spec = json::parse(golden.spec);
  const Sizes s = sizes_of(spec);
  const json mask = spec.value("mask", json::object());
  run.config.dtype = golden.dtype;
  run.config.head_dim = static_cast<int>(s.head_dim);
  run.config.head_dim_v = static_cast<int>(s.head_dim_v);
  run.config.mask = choose_mask(mask).mask;
  if (spec.contains("scale")) run.config.softmax_scale = spec["scale"].get<double>();
  if (spec.contains("softcap")) run.config.softcap = spec["softcap"].get<double>();
  run.q = stored(input(spec, "q", s.batch, s.seq_q, s.heads_q, s.head_dim), golden.dtype);
  run.k = stored(input(spec, "k", s.batch, s.seq_kv, s.heads_kv, s.head_dim), golden.dtype);
  run.v = stored(input(spec, "v", s.batch, s.seq_kv, s.heads_kv, s.head_dim_v), golden.dtype);
  const auto rows = static_cast<std::size_t>(s.batch * s.seq_q * s.heads_q);
  run.o = stored(std::vector<double>(rows * static_cast<std::size_t>(s.head_dim_v), std::nan("")),
                 golden.dtype);
  run.lse.assign(rows, std::nanf(""));
  if (golden.gradients) make_gradients(spec, s, run);
  if (s.packed) {
    for (std::size_t i = 0; i + 1 < spec["cu_q"].size(); ++i)
      add_call(run, s, mask,
               {0, spec["cu_q"][i], spec["cu_q"][i + 1], spec["cu_k"][i], spec["cu_k"][i + 1]},
               block_q, block_kv);
  } else if (spec.contains("seqused_k")) {
    for (std::int64_t b = 0; b < s.batch; ++b)
      add_call(run, s, mask, {b, 0, s.seq_q, 0, spec["seqused_k"][b]}, block_q, block_kv);
  } else {
    add_call(run, s, mask, {-1, 0, s.seq_q, 0, s.seq_kv}, block_q, block_kv);
  }
}

std::string check_gradients(const GoldenCase& golden, const CaseRun& run) {
  const json expected = json::parse(golden.golden);
  const auto check = [&](const char* name, const std::vector<unsigned char>& memory,
                         double tolerance) {
    const auto bytes = static_cast<std::size_t>(info(golden.dtype).bytes);
    std::vector<double> values(memory.size() / bytes);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = to_float(golden.dtype, memory.data() + i * bytes);
    return compare(name, expected.at(name), values, [&](double) { return tolerance; });
  };
  std::string fault = check("dq", run.dq, golden.of_dq);
  if (fault.empty()) fault = check("dk", run.dk, golden.of_dk);
  if (fault.empty()) fault = check("dv", run.dv, golden.of_dv);
  return fault.empty() ? "" : golden.id + ": " + fault;
}

std::string check_run(const GoldenCase& golden, const CaseRun& run) {
  const json expected = json::parse(golden.golden);
  const auto bytes = static_cast<std::size_t>(info(golden.dtype).bytes);
  std::vector<double> o(run.o.size() / bytes);
  for (std::size_t i = 0; i < o.size(); ++i)
    o[i] = to_float(golden.dtype, run.o.data() + i * bytes);
  const std::vector<double> lse(run.lse.begin(), run.lse.end());
  std::string fault = compare("o", expected.at("o"), o, [&](double) { return golden.tolerance; });
  // What the tangent of a cap may cost where elements have 16 bits: docs/semantics.md.
  const double of_cap = golden.dtype == DType::fp32 ? 0 : 0x1p-11 * run.config.softcap.value_or(0);
  if (fault.empty())
    fault = compare("lse", expected.at("lse"), lse,
                    [of_cap](double value) { return 1e-5 + 4 * ulp(DType::fp32, value) + of_cap; });
  return fault.empty() ? "" : golden.id + ": " + fault;
}

}  // namespace flashwright::testing
