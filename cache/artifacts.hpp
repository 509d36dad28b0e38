// The store of compiled kernels. Everything in it can be made again, so it may be deleted at any time,
// it holds itself to a size, and no trouble with it ever fails a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cache/artifact_row.hpp"
#include "cache/store.hpp"

namespace flashwright {

class Connection;
class Database;

// Of one store object; `compiles` is kept in the file.
struct ArtifactCounters {
  std::int64_t hits = 0, misses = 0, puts = 0, bad = 0, evicted = 0;
};

// Safe to use from many threads.
class ArtifactStore {
 public:
  explicit ArtifactStore(StoreOptions options = {});
  ~ArtifactStore();

  // The binary under a key, checked against its digest. A damaged row is dropped and is a miss.
  std::optional<Binary> get(const Digest& key);

  // The newest binary under a key without toolchain (see artifact_key).
  std::optional<Binary> get_any_toolchain(const Digest& base);

  bool contains(const Digest& key);  // counts neither as hit nor as miss

  // `base` is the key without toolchain.
  void put(const Digest& key, const Digest& base, const Binary& binary, const std::string& label);

  std::vector<ArtifactInfo> list();                             // latest used first
  std::vector<ArtifactInfo> find(std::string_view hex_prefix);  // those whose key begins so

  struct Verdict {
    std::int64_t good = 0, bad = 0;  // bad rows have been dropped
    std::vector<std::string> file;   // complaints of SQLite's own check
  };
  Verdict verify();

  std::int64_t prune(std::int64_t max_bytes);  // drops the longest unused; returns how many
  std::int64_t total_bytes();
  std::int64_t max_bytes();
  std::int64_t compiles();  // puts into this file by all processes, ever
  ArtifactCounters counters() const;
  StoreStatus status();

  // One JSON line for each artifact, after a line that says what the file is. Importing executes
  // nothing and trusts nothing that its digest does not cover.
  std::int64_t export_lines(std::ostream& out);
  ImportReport import_lines(std::istream& in);

 private:
  enum class By { key, base };
  std::optional<ArtifactRow> find_row(By column, const Digest& digest);
  std::optional<Binary> take(std::optional<ArtifactRow> row);
  void insert(const std::vector<ArtifactRow>& rows, bool compiled);
  void drop(const ArtifactRow& row);
  void flush_touched();
  void write_touched(Connection& connection);
  std::vector<Digest> keys();

  const StoreOptions options_;
  std::unique_ptr<Database> database_;
  std::set<Digest> touched_;  // whose day of use is to be written; only inside transactions
  std::atomic<std::int64_t> limit_{0};
  std::atomic<std::int64_t> hits_{0}, misses_{0}, puts_{0}, bad_{0}, evicted_{0};
};

}  // namespace flashwright
