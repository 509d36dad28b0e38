#include "core/schedule.hpp"

#include <charconv>

#include "core/error.hpp"

namespace flashwright {

const std::vector<Knob>& knobs() {
  static const std::vector<Knob> table = {
      {"q", &Schedule::tile_q, "tile_q"},
      {"kv", &Schedule::tile_kv, "tile_kv"},
      {"w", &Schedule::warps, "warps"},
      {"st", &Schedule::stages, "stages"},
      {"qr", &Schedule::q_in_registers, "q_in_registers"},
      {"b", &Schedule::blocks_per_sm, "blocks_per_sm"},
      {"lz", &Schedule::lazy_rescale, "lazy_rescale"},
      {"pp", &Schedule::ping_pong, "ping_pong"},
      {"pb", &Schedule::persistent, "persistent"},
      {"lf", &Schedule::longest_first, "longest_first"},
      {"ht", &Schedule::half_tiles, "half_tiles"},
      {"qp", &Schedule::query_prefetch, "query_prefetch"},
      {"ph", &Schedule::pack_heads, "pack_heads"},
      {"cl", &Schedule::cluster, "cluster"},
      {"ex", &Schedule::emulated_exp2, "emulated_exp2"},
      {"ll", &Schedule::late_lse, "late_lse"},
      {"kb", &Schedule::keys_per_block, "keys_per_block"},
      {"qs", &Schedule::query_step, "query_step"},
      {"sk", &Schedule::split_keys, "split_keys"},
      {"aq", &Schedule::add_queries, "add_queries"},
      {"mk", &Schedule::key_block, "key_block"},
      {"md", &Schedule::dim_block, "dim_block"},
      {"u", &Schedule::unroll, "unroll"},
      {"tk", &Schedule::tasks, "tasks"},
      {"qt", &Schedule::query_tiles, "query_tiles"},
  };
  return table;
}

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const Knob& knob : knobs()) {
    if (schedule.*knob.value == 0) continue;
    if (!text.empty()) text += '.';
    text += knob.key + std::to_string(schedule.*knob.value);
  }
  return text;
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const std::size_t digits = part.find_first_of("0123456789");
    const std::string_view key = part.substr(0, digits);
    int value = 0;
    bool known = false;
    if (digits != std::string_view::npos) {
      const char* const end = part.data() + part.size();
      const auto [stop, error] = std::from_chars(part.data() + digits, end, value);
      for (const Knob& knob : knobs()) {
        if (key != knob.key || error != std::errc{} || stop != end) continue;
        schedule.*knob.value = value;
        known = true;
      }
    }
    if (known) continue;
    std::string keys;
    for (const Knob& knob : knobs())
      keys += std::string(keys.empty() ? "" : ", ") + knob.key + " (" + knob.name + ")";
    throw Error(Status::bad_argument, "schedule: cannot read '" + std::string(part) + "' of '" +
                                          std::string(text) +
                                          "'; a part is a key and a number, as in "
                                          "'q128.kv64'; keys: " +
                                          keys);
  }
  return schedule;
}

}  // namespace flashwright
