// One open SQLite database, on disk or in memory, with its prepared statements. The only place that
// opens such a file: the settings, the check that the file is ours and its creation are all here.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/sha256.hpp"

namespace flashwright {

// What a database holds. Statements are the exact texts that SQLite keeps, each beginning with CREATE.
struct Schema {
  const char* name;              // "kernel store", for messages
  std::uint32_t application_id;  // says in the file's header whose it is
  int version;                   // of the tables
  int page_bytes;
  bool durable;  // a commit survives the loss of power
  std::vector<std::string> statements;
};

// A file that belongs to somebody else: another program, or a later version of this library.
struct NotOurs {
  std::string reason;
};

// A file with our mark whose tables are not those that we make.
struct Damaged {
  std::string reason;
};

// Bytes for a BLOB column; other text goes to TEXT columns.
struct Blob {
  std::string_view bytes;
};

// A statement in use. Resets it at the end, so that no lock outlives the query.
class Query {
 public:
  explicit Query(SQLite::Statement& statement) : statement_(statement) {}
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  // Values for the question marks, in order. They are not copied: they must outlive the query.
  template <class... Values>
  Query& bind(const Values&... values) {
    int index = 0;
    (bind_one(++index, values), ...);
    return *this;
  }

  bool step() { return statement_.executeStep(); }  // true: on a row
  void run() {
    while (step()) {
    }
  }  // for a statement that gives no row of interest

  std::int64_t integer(int column) const { return statement_.getColumn(column).getInt64(); }
  std::string bytes(int column) const;
  bool digest(int column, Digest& out) const;  // false when the size is wrong

 private:
  void bind_one(int index, std::int64_t value) { statement_.bind(index, value); }
  void bind_one(int index, const std::string& text) { statement_.bindNoCopy(index, text); }
  void bind_one(int index, const Digest& digest);
  void bind_one(int index, Blob blob);

  SQLite::Statement& statement_;
};

class Connection {
 public:
  enum class Access { read, write };

  // An empty path is a database in memory. Throws SQLite::Exception, NotOurs or Damaged.
  // `journal` is "wal" or "delete".
  Connection(const std::string& path, Access access, const Schema& schema, const char* journal);

  // `sql` must be a literal; the statement is prepared once.
  Query query(const char* sql);
  std::int64_t number(const char* sql);
  int changes() const { return database_.getChanges(); }

  // The path leads to another file by now, or to none.
  bool moved() const;
  int system_error() const;  // errno of the last failure, or 0
  SQLite::Database& raw() { return database_; }

 private:
  void configure(const Schema& schema);
  void verify(const Schema& schema, Access access);
  void create(const Schema& schema);

  bool in_memory_;
  SQLite::Database database_;
  // Behind the database: statements must go before the connection does.
  std::unordered_map<std::string_view, std::unique_ptr<SQLite::Statement>> statements_;
};

// WAL where it is safe: on a local file system, with an SQLite that has the repair of the WAL-reset
// race (sqlite.org/wal.html).
const char* journal_mode(int sqlite_version, bool local_file_system);

}  // namespace flashwright
