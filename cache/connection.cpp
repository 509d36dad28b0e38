#include "cache/connection.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

namespace flashwright {
namespace {

constexpr int kBusyPolls = 450;  // of 1 to 8 ms: two seconds
constexpr int kOpenAttempts = 5;
constexpr off_t kSmallestFile = 512;      // SQLite takes a shorter file for an empty database
constexpr int kLongestValue = 256 << 20;  // bytes of a text or blob
constexpr int kWalRepaired = 3051003;     // SQLite 3.51.3

// Made here and not by SQLite, whose mode depends on the umask; the journals copy the mode. Touching
// only files that did not exist matters: closing a descriptor of a live database drops its locks.
void make_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  fchmod(file, 0600);
  close(file);
}

int open_flags(bool in_memory, Connection::Access access) {
  // The owner of a connection lets one thread at a time in, so SQLite's own mutex would be idle.
  constexpr int kAlways = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
  if (in_memory) return kAlways | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  return kAlways | SQLITE_OPEN_NOFOLLOW |
         (access == Connection::Access::read ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE);
}

std::string prepare_path(const std::string& path, Connection::Access access) {
  if (path.empty()) return ":memory:";
  if (access == Connection::Access::write) make_file(path);
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0)
    throw SQLite::Exception("cannot open the file", SQLITE_CANTOPEN);
  if (!S_ISREG(about.st_mode)) throw NotOurs{"it is not a regular file"};
  if (about.st_uid != geteuid() && about.st_uid != 0)
    throw NotOurs{fmt::format("it belongs to user {}", about.st_uid)};
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    throw NotOurs{fmt::format("others may write to it (mode {:04o})", about.st_mode & 07777)};
  if (about.st_size > 0 && about.st_size < kSmallestFile) throw Damaged{"file is not a database"};
  return path;
}

// A file may vanish between the checks and the opening, when another process moves it aside. SQLite then
// tries once more with fewer rights, and may find the file that has replaced it: read-only, but only
// by accident.
SQLite::Database open_database(const std::string& path, Connection::Access access) {
  for (int attempt = 1;; ++attempt) {
    try {
      SQLite::Database database(prepare_path(path, access), open_flags(path.empty(), access));
      const bool by_accident = access == Connection::Access::write &&
                               sqlite3_db_readonly(database.getHandle(), "main") == 1 &&
                               faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
      if (!by_accident || attempt == kOpenAttempts) return database;
    } catch (const SQLite::Exception& error) {
      if (errno != ENOENT || access == Connection::Access::read || attempt == kOpenAttempts) throw;
    }
  }
}

// SQLite's own waiting backs off to a tenth of a second, and so loses against a process that writes
// without a break.
int wait_for_lock(void*, int polls) {
  thread_local std::minstd_rand random(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(1000 + random() % 7000));
  return polls < kBusyPolls ? 1 : 0;
}

std::string immutable_uri(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path)
    uri += c == '%' || c == '?' || c == '#' ? fmt::format("%{:02X}", c) : std::string(1, c);
  return uri + "?immutable=1";
}

}  // namespace

Query::~Query() {
  statement_.tryReset();
  statement_.clearBindings();
}

void Query::bind_one(int index, Blob blob) {
  statement_.bindNoCopy(index, static_cast<const void*>(blob.bytes.data()),
                        static_cast<int>(blob.bytes.size()));
}

void Query::bind_one(int index, const Digest& digest) {
  statement_.bindNoCopy(index, digest.data(), static_cast<int>(digest.size()));
}

std::string Query::bytes(int column) const {
  const SQLite::Column value = statement_.getColumn(column);
  const void* const data = value.getBlob();
  return {static_cast<const char*>(data), static_cast<std::size_t>(value.getBytes())};
}

bool Query::digest(int column, Digest& out) const {
  const SQLite::Column value = statement_.getColumn(column);
  const void* const data = value.getBlob();
  if (data == nullptr || static_cast<std::size_t>(value.getBytes()) != out.size()) return false;
  std::memcpy(out.data(), data, out.size());
  return true;
}

const char* journal_mode(int sqlite_version, bool local_file_system) {
  return sqlite_version >= kWalRepaired && local_file_system ? "wal" : "delete";
}

Connection::Connection(const std::string& path, Access access, const Schema& schema,
                       const char* journal)
    : in_memory_(path.empty()), database_(open_database(path, access)) {
  try {
    configure(schema);
    verify(schema, access);
  } catch (const SQLite::Exception& error) {
    if (access == Access::write || error.getErrorCode() != SQLITE_CANTOPEN) throw;
    // A file in WAL mode wants helper files beside it. Where they cannot be made, the file opens only
    // under the promise that it does not change; a broken promise shows as a wrong digest.
    statements_.clear();
    database_ = SQLite::Database(immutable_uri(path), open_flags(false, access) | SQLITE_OPEN_URI);
    configure(schema);
    verify(schema, access);
  }
  if (in_memory_ || access == Access::read) return;
  // Only a wish: another process may be using the file in the other mode, which works as well.
  database_.tryExec(fmt::format("PRAGMA journal_mode={}", journal));
}

void Connection::configure(const Schema& schema) {
  sqlite3* const handle = database_.getHandle();
  sqlite3_busy_handler(handle, wait_for_lock, nullptr);
  for (const auto& [option, value] :
       {std::pair(SQLITE_DBCONFIG_DEFENSIVE, 1), std::pair(SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
        std::pair(SQLITE_DBCONFIG_ENABLE_TRIGGER, 0), std::pair(SQLITE_DBCONFIG_ENABLE_VIEW, 0)})
    sqlite3_db_config(handle, option, value, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, kLongestValue);
  sqlite3_limit(handle, SQLITE_LIMIT_ATTACHED, 0);
  database_.exec(
      "PRAGMA cell_size_check=ON; PRAGMA foreign_keys=ON; PRAGMA secure_delete=OFF;"
      "PRAGMA temp_store=MEMORY; PRAGMA mmap_size=0");
  database_.exec(schema.durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
}

// A new file is filled by whoever comes first; the others see it complete or empty, never in between.
void Connection::verify(const Schema& schema, Access access) {
  for (bool created = false;; created = true) {
    query("BEGIN").run();
    const std::int64_t id = number("PRAGMA application_id");
    const std::int64_t version = number("PRAGMA user_version");
    std::vector<std::string> statements;
    {
      Query rows = query("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL");
      while (rows.step()) statements.push_back(rows.bytes(0));
    }
    query("COMMIT").run();

    if (id == 0 && version == 0 && statements.empty() && !created) {
      if (access == Access::read) throw NotOurs{"it is empty"};
      create(schema);
      continue;
    }
    if (id != schema.application_id)
      throw NotOurs{fmt::format("it belongs to another program (application_id {:#010x})", id)};
    if (version > schema.version)
      throw NotOurs{fmt::format("a later version of flashwright made it (schema {}, known is {})",
                                version, schema.version)};
    std::vector<std::string> expected = schema.statements;
    std::sort(expected.begin(), expected.end());
    std::sort(statements.begin(), statements.end());
    if (version != schema.version || statements != expected)
      throw Damaged{"its tables are not those of a " + std::string(schema.name)};
    return;
  }
}

void Connection::create(const Schema& schema) {
  database_.exec(
      fmt::format("PRAGMA page_size={}; PRAGMA auto_vacuum=INCREMENTAL", schema.page_bytes));
  SQLite::Transaction transaction(database_, SQLite::TransactionBehavior::IMMEDIATE);
  if (number("SELECT count(*) FROM sqlite_schema") != 0) return;  // another process was faster
  for (const std::string& statement : schema.statements) database_.exec(statement);
  database_.exec(fmt::format("PRAGMA application_id={}; PRAGMA user_version={}",
                             schema.application_id, schema.version));
  transaction.commit();
}

Query Connection::query(const char* sql) {
  std::unique_ptr<SQLite::Statement>& statement = statements_[sql];
  if (statement == nullptr) statement = std::make_unique<SQLite::Statement>(database_, sql);
  return Query(*statement);
}

std::int64_t Connection::number(const char* sql) {
  Query row = query(sql);
  return row.step() ? row.integer(0) : 0;
}

bool Connection::moved() const {
  int moved = 0;
  if (in_memory_) return false;
  sqlite3_file_control(database_.getHandle(), "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  return moved != 0;
}

int Connection::system_error() const {
  int error = sqlite3_system_errno(database_.getHandle());
  // Undoing what had been done may have cleared it; the file remembers.
  if (error == 0)
    sqlite3_file_control(database_.getHandle(), "main", SQLITE_FCNTL_LAST_ERRNO, &error);
  return error;
}

}  // namespace flashwright
