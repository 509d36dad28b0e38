#include "tuner/space.hpp"

#include <set>

#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::vector<std::string> names(const SearchSpace& space) {
  std::vector<std::string> out;
  for (const Candidate& candidate : space.order) out.push_back(to_string(candidate.schedule));
  return out;
}

}  // namespace

TEST_CASE("the default comes first, then what won before, then the rest, each once") {
  Rig rig;
  const std::vector<Schedule> before = {parse_schedule(schedule_names()[7]),
                                        parse_schedule("q8.kv8"),
                                        parse_schedule(schedule_names()[0])};
  const SearchSpace space = search_space(rig.family, rig.problem, rig.device, rig.shape, before, 1);
  const std::vector<std::string> order = names(space);
  CHECK(order[0] == schedule_names()[0]);
  CHECK(order[1] == schedule_names()[7]);
  CHECK(std::set<std::string>(order.begin(), order.end()) ==
        std::set<std::string>(schedule_names().begin(), schedule_names().end()));
  CHECK(order.size() == schedule_names().size());
  CHECK(space.legal == static_cast<int>(order.size()));
}

TEST_CASE("three of four go by the model, the fourth is drawn") {
  Rig rig;
  const std::vector<std::string> order =
      names(search_space(rig.family, rig.problem, rig.device, rig.shape, {}, 5));
  CHECK(order == names(search_space(rig.family, rig.problem, rig.device, rig.shape, {}, 5)));
  CHECK(order != names(search_space(rig.family, rig.problem, rig.device, rig.shape, {}, 6)));
  // The model's favourites are all among the first.
  std::vector<Candidate> by_model = rig.family.space(rig.problem, rig.device, rig.shape);
  std::sort(by_model.begin(), by_model.end(), [](const Candidate& a, const Candidate& b) {
    return a.estimate.time_us < b.estimate.time_us;
  });
  for (std::size_t i = 0; i < 6; ++i) {
    const auto place =
        std::find(order.begin(), order.end(), to_string(by_model[i].schedule)) - order.begin();
    CHECK(place <= static_cast<std::ptrdiff_t>(1 + (i + 1) * 4 / 3));
  }
}

TEST_CASE("rejections are counted by kind, whatever their numbers") {
  Landscape landscape = usual_landscape();
  for (std::size_t i = 0; i < 5; ++i)
    landscape[schedule_names()[i + 3]].smem_bytes = 200000 + static_cast<int>(i) * 1024;
  Rig rig(landscape);
  const SearchSpace space = search_space(rig.family, rig.problem, rig.device, rig.shape, {}, 1);
  REQUIRE(space.rejected.size() == 1);
  CHECK(space.rejected.begin()->second == 5);
  CHECK(contains(space.rejected.begin()->first, "bytes of shared memory"));
  CHECK(space.legal == static_cast<int>(schedule_names().size()) - 5);
}

TEST_CASE("lengths of one class share a bucket") {  // C104
  const DeviceInfo device = fake_device();
  std::set<std::string> buckets;
  for (std::int64_t length = 1000; length <= 1100; ++length)
    for (std::int64_t batch = 1; batch <= 8; ++batch)
      buckets.insert(bucket({batch, 16, 16, length, length}, device));
  CHECK(buckets.size() <= 2);
  CHECK(bucket({1, 8, 8, 4096, 4096}, device) == bucket({1, 8, 8, 4097, 5000}, device));
  CHECK(bucket({1, 8, 8, 1, 4096}, device) != bucket({1, 8, 8, 4096, 4096}, device));
  CHECK(bucket({1, 2, 2, 4096, 4096}, device) != bucket({64, 8, 8, 4096, 4096}, device));
}

TEST_CASE("every shape has a bucket with a number and a name of its own") {
  std::set<int> numbers;
  std::set<std::string> texts;
  DeviceInfo device = fake_device();
  for (const std::int64_t q : {0, 1, 16, 17, 192, 193, 768, 769, 3072, 3073, 12288, 12289, 1 << 29})
    for (const std::int64_t kv :
         {0, 1, 16, 17, 192, 193, 768, 769, 3072, 3073, 12288, 12289, 1 << 29})
      for (const std::int64_t batch : {std::int64_t{1}, std::int64_t{1} << 31}) {
        const Shape shape{batch, 1, 1, q, kv};
        const int index = bucket_index(shape, device.sm_count);
        CHECK(index >= 0);
        CHECK(index < kBuckets);
        numbers.insert(index);
        texts.insert(bucket(shape, device));
      }
  CHECK(numbers.size() == texts.size());
  CHECK(numbers.size() > 60);
}

TEST_CASE("the distance of buckets counts steps of length") {
  const DeviceInfo device = fake_device();
  const auto at = [&](std::int64_t q, std::int64_t kv) {
    return bucket({64, 16, 16, q, kv}, device);
  };
  CHECK(bucket_distance(at(1000, 1000), at(1000, 1000)) == 0);
  CHECK(bucket_distance(at(1000, 1000), at(4096, 1000)) == 1);
  CHECK(bucket_distance(at(4096, 1000), at(1000, 1000)) == 1);
  CHECK(bucket_distance(at(1000, 1000), at(4096, 4096)) == 2);
  CHECK(bucket_distance(at(1000, 1000), bucket({1, 1, 1, 1000, 1000}, device)) > 50);
  CHECK(bucket_distance("unknown", at(1, 1)) > 50);
}
