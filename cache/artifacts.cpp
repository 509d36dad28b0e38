#include "cache/artifacts.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cache/database.hpp"
#include "cache/lines.hpp"
#include "core/env.hpp"

namespace flashwright {
namespace {

// The day of use is the only column that changes; it is outside the digest.
const Schema& schema() {
  static const Schema instance{
      "kernel store",
      0x46574143,  // "FWAC"
      1,
      16384,  // twice as fast as 4096 for binaries of some 40 KB
      false,
      {"CREATE TABLE artifact(id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, "
       "base BLOB NOT NULL, digest BLOB NOT NULL, used_day INTEGER NOT NULL, about TEXT NOT NULL, "
       "bytes BLOB NOT NULL) STRICT",
       "CREATE INDEX artifact_base ON artifact(base)",
       "CREATE INDEX artifact_age ON artifact(used_day, id)",
       "CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT"}};
  return instance;
}

constexpr const char* kRecords = "kernels";  // what an export holds
constexpr std::int64_t kSmallestStore = 16 << 20, kLargestStore = std::int64_t{4} << 30;
constexpr std::size_t kTouchedAtOnce = 256;
constexpr std::size_t kImportBatchBytes = 8u << 20;

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::int64_t today() { return now_seconds() / 86400; }

// Reads the columns key, base, digest, used_day, about, bytes.
std::optional<ArtifactRow> read_row(const Query& query) {
  ArtifactRow row;
  if (!query.digest(0, row.key) || !query.digest(1, row.base) || !query.digest(2, row.digest))
    return std::nullopt;
  row.used_day = query.integer(3);
  row.about = query.bytes(4);
  row.bytes = query.bytes(5);
  return row;
}

std::int64_t used_bytes(Connection& connection) {
  return (connection.number("PRAGMA page_count") - connection.number("PRAGMA freelist_count")) *
         connection.number("PRAGMA page_size");
}

// Drops up to 64 of the longest unused until `limit` is met; returns how many.
std::int64_t evict_some(Connection& connection, std::int64_t limit) {
  std::int64_t excess = used_bytes(connection) - limit;
  if (excess <= 0) return 0;
  {
    // A clock that was wrong for a while must not make entries immortal.
    Query future = connection.query("UPDATE artifact SET used_day = ?1 WHERE used_day > ?1");
    future.bind(today()).run();
  }
  std::vector<std::int64_t> ids;
  {
    Query oldest =
        connection.query("SELECT id, length(bytes) FROM artifact ORDER BY used_day, id LIMIT 64");
    while (excess > 0 && oldest.step()) {
      ids.push_back(oldest.integer(0));
      excess -= oldest.integer(1);
    }
  }
  for (const std::int64_t id : ids)
    connection.query("DELETE FROM artifact WHERE id = ?").bind(id).run();
  return static_cast<std::int64_t>(ids.size());
}

std::int64_t default_limit(const std::string& path) {
  const std::string text = env::get(env::Variable::max_bytes);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value > 0) return value;
  if (!text.empty())
    log(LogLevel::warn, fmt::format("FLASHWRIGHT_MAX_BYTES is '{}'; it is ignored, since it is not "
                                    "a number of bytes above 0",
                                    text));
  struct statvfs about {};
  if (path.empty() || statvfs(path.c_str(), &about) != 0) return kLargestStore;
  const double total = static_cast<double>(about.f_blocks) * static_cast<double>(about.f_frsize);
  return std::clamp(static_cast<std::int64_t>(total / 20), kSmallestStore, kLargestStore);
}

}  // namespace

ArtifactStore::ArtifactStore(StoreOptions options)
    : options_(std::move(options)),
      database_(std::make_unique<Database>(StoreKind::artifacts, schema(), options_.directory,
                                           options_.journal)) {}

ArtifactStore::~ArtifactStore() {
  if (!touched_.empty()) flush_touched();
}

std::optional<Binary> ArtifactStore::get(const Digest& key) {
  std::optional<ArtifactRow> row = find_row(By::key, key);
  if (row) row->key = key;  // a row found under the wrong key fails its digest
  return take(std::move(row));
}

std::optional<Binary> ArtifactStore::get_any_toolchain(const Digest& base) {
  return take(find_row(By::base, base));
}

std::optional<ArtifactRow> ArtifactStore::find_row(By column, const Digest& digest) {
  std::optional<ArtifactRow> row;
  bool many_touched = false;
  database_->read([&](Connection& connection) {
    Query query = connection.query(
        column == By::key
            ? "SELECT key, base, digest, used_day, about, bytes FROM artifact WHERE key = ?"
            : "SELECT key, base, digest, used_day, about, bytes FROM artifact WHERE base = ? "
              "ORDER BY id DESC LIMIT 1");
    query.bind(digest);
    if (!query.step()) return false;
    row = read_row(query);
    if (row && row->used_day != today()) touched_.insert(row->key);
    many_touched = touched_.size() >= kTouchedAtOnce;
    return true;
  });
  if (many_touched) flush_touched();
  return row;
}

std::optional<Binary> ArtifactStore::take(std::optional<ArtifactRow> row) {
  if (row && !intact(*row)) {
    drop(*row);
    row.reset();
  }
  std::optional<Binary> binary;
  if (row) binary = binary_of(std::move(*row));
  ++(binary ? hits_ : misses_);
  return binary;
}

void ArtifactStore::drop(const ArtifactRow& row) {
  log(bad_++ == 0 ? LogLevel::warn : LogLevel::debug,
      fmt::format("kernel store: entry {:.12} does not match its digest; it is dropped, and made "
                  "again when needed",
                  to_hex(row.key)));
  database_->write_all([&row](Connection& connection) {
    connection.query("DELETE FROM artifact WHERE key = ?").bind(row.key).run();
    return true;
  });
}

bool ArtifactStore::contains(const Digest& key) {
  return database_->read([&key](Connection& connection) {
    Query query = connection.query("SELECT 1 FROM artifact WHERE key = ?");
    return query.bind(key).step();
  });
}

void ArtifactStore::put(const Digest& key, const Digest& base, const Binary& binary,
                        const std::string& label) {
  if (binary.bytes.size() > kMaxBinaryBytes ||
      static_cast<std::int64_t>(binary.bytes.size()) > max_bytes())
    return;
  insert({make_row(key, base, binary, label, now_seconds())}, true);
  ++puts_;
}

void ArtifactStore::insert(const std::vector<ArtifactRow>& rows, bool compiled) {
  const std::int64_t day = today();
  std::int64_t used = 0;
  database_->write([&](Connection& connection) {
    for (const ArtifactRow& row : rows)
      connection
          .query(
              "INSERT OR REPLACE INTO artifact(key, base, digest, used_day, about, bytes) "
              "VALUES(?, ?, ?, ?, ?, ?)")
          .bind(row.key, row.base, row.digest, day, row.about, Blob{row.bytes})
          .run();
    if (compiled)
      connection
          .query(
              "INSERT INTO counter(name, value) VALUES('puts', 1) "
              "ON CONFLICT(name) DO UPDATE SET value = value + 1")
          .run();
    write_touched(connection);
    used = used_bytes(connection);
    return true;
  });
  if (used > max_bytes()) evicted_ += prune(max_bytes() / 10 * 9);
}

void ArtifactStore::flush_touched() {
  database_->write_all([this](Connection& connection) {
    write_touched(connection);
    return true;
  });
}

// At most once for each key and day: a row whose day is today's never gets here.
void ArtifactStore::write_touched(Connection& connection) {
  const std::int64_t day = today();
  for (const Digest& key : touched_)
    connection.query("UPDATE artifact SET used_day = ? WHERE key = ?").bind(day, key).run();
  touched_.clear();
}

std::int64_t ArtifactStore::prune(std::int64_t limit) {
  std::int64_t total = 0;
  for (std::int64_t dropped = 1; dropped > 0;) {
    dropped = 0;
    database_->write_all([&](Connection& connection) {
      const std::int64_t here = evict_some(connection, limit);
      dropped += here;
      return here > 0;
    });
    total += dropped;
  }
  database_->write_all([](Connection& connection) {
    connection.query("PRAGMA incremental_vacuum").run();
    return true;
  });
  return total;
}

std::vector<ArtifactInfo> ArtifactStore::find(std::string_view hex_prefix) {
  std::vector<ArtifactInfo> all;
  database_->read([&](Connection& connection) {
    std::vector<ArtifactInfo> here;
    Query rows = connection.query(
        "SELECT key, used_day, about, length(bytes) FROM artifact ORDER BY used_day DESC, id DESC");
    while (rows.step()) {
      Digest key;
      if (!rows.digest(0, key) || !to_hex(key).starts_with(hex_prefix)) continue;
      std::optional<ArtifactInfo> info = info_of(key, rows.bytes(2));
      if (!info) continue;
      info->used_day = rows.integer(1);
      info->bytes = rows.integer(3);
      here.push_back(std::move(*info));
    }
    all.insert(all.end(), here.begin(), here.end());
    return false;  // the other layer as well
  });
  return all;
}

std::vector<ArtifactInfo> ArtifactStore::list() { return find(""); }

std::vector<Digest> ArtifactStore::keys() {
  std::vector<Digest> all;
  database_->read([&all](Connection& connection) {
    std::vector<Digest> here;
    Query rows = connection.query("SELECT key FROM artifact ORDER BY key");
    for (Digest key; rows.step();)
      if (rows.digest(0, key)) here.push_back(key);
    all.insert(all.end(), here.begin(), here.end());
    return false;
  });
  return all;
}

ArtifactStore::Verdict ArtifactStore::verify() {
  Verdict verdict;
  // Row by row, so that nobody has to wait for the whole.
  for (const Digest& key : keys()) {
    std::optional<ArtifactRow> row = find_row(By::key, key);
    if (!row) continue;
    row->key = key;
    const bool good = intact(*row);
    if (!good) drop(*row);
    ++(good ? verdict.good : verdict.bad);
  }
  database_->read([&verdict](Connection& connection) {
    std::vector<std::string> lines;
    Query check = connection.query("PRAGMA integrity_check(20)");
    while (check.step())
      if (std::string line = check.bytes(0); line != "ok") lines.push_back(std::move(line));
    verdict.file.insert(verdict.file.end(), lines.begin(), lines.end());
    return false;
  });
  return verdict;
}

std::int64_t ArtifactStore::total_bytes() {
  std::int64_t total = 0;
  database_->read([&total](Connection& connection) {
    total += used_bytes(connection);
    return false;
  });
  return total;
}

std::int64_t ArtifactStore::max_bytes() {
  if (options_.max_bytes > 0) return options_.max_bytes;
  if (limit_ == 0) limit_ = default_limit(database_->status().path);
  return limit_;
}

std::int64_t ArtifactStore::compiles() {
  std::int64_t total = 0;
  database_->read([&total](Connection& connection) {
    total += connection.number("SELECT value FROM counter WHERE name = 'puts'");
    return false;
  });
  return total;
}

ArtifactCounters ArtifactStore::counters() const { return {hits_, misses_, puts_, bad_, evicted_}; }

StoreStatus ArtifactStore::status() { return database_->status(); }

std::int64_t ArtifactStore::export_lines(std::ostream& out) {
  std::int64_t count = 0;
  write_header(out, kRecords);
  for (const Digest& key : keys()) {
    const std::optional<ArtifactRow> row = find_row(By::key, key);
    if (!row || !intact(*row)) continue;
    out << to_line(to_record(*row)) << '\n';
    ++count;
  }
  return count;
}

ImportReport ArtifactStore::import_lines(std::istream& in) {
  std::vector<ArtifactRow> batch;
  std::size_t batch_bytes = 0;
  const auto flush = [&] {
    if (!batch.empty()) insert(batch, false);
    batch.clear();
    batch_bytes = 0;
  };
  const auto take_record = [&](const nlohmann::json& record, ImportReport& report) -> std::string {
    ArtifactRow row;
    if (std::string reason = from_record(record, row); !reason.empty()) return reason;
    const bool waits = std::any_of(batch.begin(), batch.end(), [&row](const ArtifactRow& other) {
      return other.key == row.key;
    });
    ++(waits || contains(row.key) ? report.known : report.added);
    batch_bytes += row.bytes.size();
    batch.push_back(std::move(row));
    if (batch_bytes >= kImportBatchBytes) flush();
    return {};
  };
  // In base64 four characters stand for three bytes; the rest of a record is small.
  constexpr std::size_t kLongestLine = kMaxBinaryBytes / 3 * 4 + (1u << 20);
  ImportReport report = read_records(in, kRecords, kLongestLine, take_record);
  flush();
  return report;
}

}  // namespace flashwright
