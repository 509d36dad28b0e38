#include "tests/support/random.hpp"

#include <ostream>

namespace flashwright {

void showValue(const Config& config, std::ostream& out) { out << to_json(config); }
void showValue(const Problem& problem, std::ostream& out) { out << to_string(problem); }
void showValue(const Shape& shape, std::ostream& out) { out << to_string(shape); }
void showValue(const Schedule& schedule, std::ostream& out) { out << to_string(schedule); }

namespace testing {

namespace gen = rc::gen;

rc::Gen<int> head_dims() {
  return gen::map(gen::inRange(1, 33), [](int eighths) { return 8 * eighths; });
}

rc::Gen<Mask> masks() {
  return gen::exec([] {
    switch (*gen::inRange(0, 4)) {
      case 0:
        return Mask::none();
      case 1:
        return Mask::causal();
      case 2:
        return Mask::window(*gen::inRange(-1, 80), *gen::inRange(-1, 80));
      default:
        return Mask::blocks();
    }
  });
}

rc::Gen<Config> configs() {
  return gen::exec([] {
    Config config;
    config.dtype = *gen::element(DType::fp16, DType::bf16, DType::fp32);
    config.head_dim = *head_dims();
    config.head_dim_v = *gen::oneOf(gen::just(0), head_dims());
    config.mask = *masks();
    config.dropout = *gen::element(0.0, 0.0, 0.1, 0.5, 0.999);
    if (*gen::inRange(0, 3) == 0) config.softmax_scale = *gen::inRange(-8, 9) / 16.0;
    config.softcap = *gen::element<std::optional<double>>(std::nullopt, std::nullopt, 0.7, 30.0);
    config.alibi = *gen::inRange(0, 3) == 0;
    config.deterministic = *gen::arbitrary<bool>();
    return config;
  });
}

rc::Gen<Problem> problems(const std::vector<Target>& targets, Direction direction) {
  return gen::exec([targets, direction] {
    Config config = *configs();
    config.direction = to_string(direction);
    return normalise(config, *gen::elementOf(targets));
  });
}

rc::Gen<Shape> shapes() {
  return gen::exec([] {
    Shape shape;
    shape.batch = *gen::inRange(1, 4);
    shape.heads_kv = *gen::inRange(1, 4);
    shape.heads_q = shape.heads_kv * *gen::inRange(1, 4);
    shape.seq_q = *gen::element(0, 1, 2, 15, 16, 17, 31, 33, 65);
    shape.seq_kv = *gen::element(0, 1, 2, 15, 16, 17, 31, 33, 65);
    return shape;
  });
}

rc::Gen<Schedule> schedules() {
  return gen::exec([] {
    Schedule schedule;
    for (const Knob& knob : knobs())
      schedule.*knob.value = *gen::oneOf(gen::just(0), gen::inRange(0, 100000));
    return schedule;
  });
}

std::vector<Schedule> legal_schedules(const Family& family, const Problem& problem,
                                      const DeviceInfo& device, const Shape& shape) {
  std::vector<Schedule> legal;
  for (const Candidate& candidate : family.space(problem, device, shape))
    if (candidate.rejected.empty()) legal.push_back(candidate.schedule);
  return legal;
}

}  // namespace testing
}  // namespace flashwright
