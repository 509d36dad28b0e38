#include "cache/database.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <thread>

namespace flashwright {
namespace {

constexpr auto kBusyPause = std::chrono::seconds(10);
constexpr int kAttempts = 3;  // with files that replace damaged ones
constexpr const char* kHopeless = "it is damaged or replaced again and again";

bool is_damage(const SQLite::Exception& error) {
  return error.getErrorCode() == SQLITE_CORRUPT || error.getErrorCode() == SQLITE_NOTADB;
}

// Somebody deleted or replaced the file in the middle of the work.
bool is_replacement(const SQLite::Exception& error) {
  return error.getExtendedErrorCode() == SQLITE_READONLY_DBMOVED ||
         error.getExtendedErrorCode() == SQLITE_IOERR_DELETE_NOENT;
}

// What SQLite and the system have to say. SQLite forgets the errno of a full disk.
std::string describe(const SQLite::Exception& error, int system_error) {
  const int code = error.getErrorCode();
  if (code == SQLITE_FULL) system_error = ENOSPC;
  if (system_error == 0 || is_damage(error)) return error.what();
  return fmt::format("{} (errno {}: {})", error.what(), system_error, std::strerror(system_error));
}

// A write beyond RLIMIT_FSIZE raises a signal that would end the host program. Blocked for the
// moment, it is an error like any other.
class FileSizeSignal {
 public:
  FileSizeSignal() {
    rlimit limit{};
    active_ = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    if (active_) pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignal() {
    if (!active_) return;
    const timespec at_once{};
    if (sigismember(&before_, SIGXFSZ) == 0) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignal(const FileSizeSignal&) = delete;
  FileSizeSignal& operator=(const FileSizeSignal&) = delete;

 private:
  bool active_ = false;
  sigset_t signal_{}, before_{};
};

}  // namespace

// Makes fork() safe. An SQLite connection must not cross it: the child would believe in locks that
// only the parent holds. So before a fork every transaction is waited for and every file is closed;
// both sides open again when they next need it.
class ForkGate {
 public:
  static ForkGate& instance() {
    static ForkGate* const gate = new ForkGate;  // never destroyed: stores may end after it
    return *gate;
  }
  void add(Database* database) {
    const std::scoped_lock lock(mutex_);
    databases_.push_back(database);
  }
  void remove(Database* database) {
    const std::scoped_lock lock(mutex_);
    std::erase(databases_, database);
  }

 private:
  ForkGate() {
    pthread_atfork([] { instance().close(); }, [] { instance().open(); },
                   [] { instance().open(); });
  }
  void close() {
    const FileSizeSignal quiet;
    mutex_.lock();
    for (Database* database : databases_) {
      database->mutex_.lock();
      database->file_.reset();
      database->names_.close();
    }
  }
  void open() {
    for (Database* database : databases_) database->mutex_.unlock();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<Database*> databases_;
};

// One public call: holds the mutex, and logs when it has let go of it, since the sink is foreign code.
class Database::Session {
 public:
  explicit Session(Database& database) : database_(database) {
    database_.mutex_.lock();
    database_.names_.share();
  }
  ~Session() {
    database_.names_.release();
    const auto messages = std::move(database_.messages_);
    database_.messages_.clear();
    database_.mutex_.unlock();
    for (const auto& [level, line] : messages) log(level, line);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  Database& database_;
  FileSizeSignal quiet_;
};

Database::Database(StoreKind kind, const Schema& schema, std::string directory, std::string journal,
                   Salvage salvage)
    : kind_(kind),
      schema_(schema),
      directory_(std::move(directory)),
      journal_(std::move(journal)),
      salvage_(std::move(salvage)) {
  ForkGate::instance().add(this);
}

Database::~Database() {
  ForkGate::instance().remove(this);
  const Session session(*this);  // closing may write
  file_.reset();
}

bool Database::read(const Body& body) {
  const Session session(*this);
  if (memory_ != nullptr && in_memory(Access::read, body)) return true;
  return on_file(Access::read, body) == Outcome::yes;
}

bool Database::write(const Body& body) {
  const Session session(*this);
  Outcome outcome = on_file(Access::write, body);
  if (outcome != Outcome::unavailable) return outcome == Outcome::yes;
  if (!trouble_.empty()) warn(fmt::format("{}: {}", place_.wanted, trouble_) + advice());
  return in_memory(Access::write, body);
}

void Database::write_all(const Body& body) {
  const Session session(*this);
  on_file(Access::write, body);
  if (memory_ != nullptr) in_memory(Access::write, body);
}

StoreStatus Database::status() {
  const Session session(*this);
  const bool usable = file() != nullptr;
  return {usable ? place_.path : std::string(), usable && writable_, trouble_, place_.variable};
}

bool Database::in_memory(Access access, const Body& body) {
  try {
    if (memory_ == nullptr)
      memory_ = std::make_unique<Connection>("", Access::write, schema_, "delete");
    return transact(*memory_, access, body) == Outcome::yes;
  } catch (const SQLite::Exception& error) {
    messages_.emplace_back(LogLevel::warn, fmt::format("{}: {}", schema_.name, error.what()));
    return false;
  }
}

Connection* Database::file() {
  if (!readable_ || std::chrono::steady_clock::now() < busy_until_) return nullptr;
  // A child that was made behind the back of the fork handlers leaves the connection alone.
  if (file_ != nullptr && owner_ != getpid()) {
    static_cast<void>(file_.release());
    names_.close();
  }
  if (file_ != nullptr && file_->moved()) file_.reset();
  if (file_ == nullptr) open_file();
  return file_.get();
}

void Database::open_file() {
  place_ = find_place(kind_, directory_);
  if (place_.path.empty()) return stop_reading(place_.trouble);
  if (!place_.writable) {
    writable_ = false;
    trouble_ = place_.trouble;
  }
  names_.open(std::filesystem::path(place_.path).parent_path());
  names_.share();
  for (int attempt = 1; open_once() == Opening::again; ++attempt)
    if (attempt == kAttempts) return stop_reading(kHopeless);
  if (file_ == nullptr || !rescued_) return;
  const Body rescued = std::move(rescued_);
  rescued_ = nullptr;
  try {
    transact(*file_, Access::write, rescued);
  } catch (const SQLite::Exception&) {  // the next call meets the same trouble, and tells
  }
}

Database::Opening Database::open_once() {
  const bool local = is_local_file_system(std::filesystem::path(place_.path).parent_path());
  const std::string journal =
      journal_.empty() ? journal_mode(sqlite3_libversion_number(), local) : journal_;
  errno = 0;
  try {
    file_ = std::make_unique<Connection>(
        place_.path, place_.writable ? Access::write : Access::read, schema_, journal.c_str());
    owner_ = getpid();
  } catch (const NotOurs& other) {
    stop_reading(other.reason + ", and is left alone");
  } catch (const Damaged& damage) {
    return quarantine(damage.reason);
  } catch (const SQLite::Exception& error) {
    if (is_damage(error)) return quarantine(error.what());
    if (is_replacement(error)) return Opening::again;
    if (error.getErrorCode() == SQLITE_BUSY) {
      pause();
    } else {
      stop_reading(trouble_.empty() ? describe(error, errno) : trouble_);
    }
  }
  return Opening::done;
}

Database::Outcome Database::on_file(Access access, const Body& body) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Connection* const connection = file();
    if (connection == nullptr || (access == Access::write && !writable_))
      return Outcome::unavailable;
    try {
      return transact(*connection, access, body);
    } catch (const SQLite::Exception& error) {
      if (!recover(error, access)) return Outcome::unavailable;
    }
  }
  stop_reading(kHopeless);
  return Outcome::unavailable;
}

Database::Outcome Database::transact(Connection& connection, Access access, const Body& body) {
  // Knowledge is worth a longer wait than what can be compiled again.
  const int patience = schema_.durable ? 10 : 3;
  for (int attempt = 1;; ++attempt) {
    errno = 0;
    try {
      connection.query(access == Access::write ? "BEGIN IMMEDIATE" : "BEGIN").run();
      const bool result = body(connection);
      connection.query(result || access == Access::read ? "COMMIT" : "ROLLBACK").run();
      return result ? Outcome::yes : Outcome::no;
    } catch (const SQLite::Exception& error) {
      const int cause = errno;
      connection.raw().tryExec("ROLLBACK");
      errno = cause;
      if (error.getErrorCode() != SQLITE_BUSY || attempt == patience) throw;
    } catch (...) {
      connection.raw().tryExec("ROLLBACK");
      throw;
    }
  }
}

// What to do after an error on the file; true when it is worth trying again.
bool Database::recover(const SQLite::Exception& error, Access access) {
  const int code = error.getErrorCode();
  const int cause = errno;  // as transact left it; of a log file SQLite does not remember more
  const int remembered = file_->system_error();
  const std::string reason = describe(error, remembered != 0 ? remembered : cause);
  if (is_damage(error)) return quarantine(reason) == Opening::again;
  if (is_replacement(error) || file_->moved()) {
    file_.reset();
    return true;
  }
  if (code == SQLITE_BUSY) {
    pause();
  } else if (access == Access::write) {
    stop_writing(reason);
  } else {
    stop_reading(reason);
  }
  return false;
}

// Tells whether opening again may help.
Database::Opening Database::quarantine(const std::string& reason) {
  if (!place_.writable) {
    stop_reading(reason);
    return Opening::done;
  }
  const auto still_bad = [this] {
    if (file_ != nullptr) return !file_->moved();
    try {
      const Connection probe(place_.path, Access::read, schema_, "delete");
      return false;
    } catch (const Damaged&) {
      return true;
    } catch (const SQLite::Exception& error) {
      return is_damage(error);
    } catch (const NotOurs&) {
      return false;
    }
  };
  const std::string moved_to = move_aside(place_.path, names_, still_bad);
  file_.reset();
  if (moved_to.empty()) return Opening::again;
  warn(fmt::format("{} is damaged ({}); it is now {}, and a new one is begun", place_.path, reason,
                   moved_to));
  if (salvage_) rescue(moved_to);
  return Opening::again;
}

void Database::rescue(const std::string& damaged_path) {
  try {
    Connection damaged(damaged_path, Access::write, schema_, "delete");
    rescued_ = salvage_(damaged);
  } catch (...) {  // whatever a damaged file can lead to: nothing of it can be read
  }
}

// Another process has held the lock for longer than a caller should wait; it may have been stopped.
void Database::pause() {
  busy_until_ = std::chrono::steady_clock::now() + kBusyPause;
  messages_.emplace_back(LogLevel::info, fmt::format("{}: {} is locked by another process",
                                                     schema_.name, place_.path));
}

void Database::stop_reading(const std::string& reason) {
  readable_ = false;
  writable_ = false;
  file_.reset();
  if (reason.empty()) return;  // memory was asked for
  trouble_ = reason;
  warn(fmt::format("{}: {}", place_.path.empty() ? place_.wanted : place_.path, reason) + advice());
}

void Database::stop_writing(const std::string& reason) {
  writable_ = false;
  trouble_ = reason;
  warn(fmt::format("{}: {}", place_.path, reason) + advice());
}

std::string Database::advice() const {
  return fmt::format("; new entries stay in memory; set {} to a folder of your own",
                     place_.variable);
}

// One warning is enough for a user to act on; what follows from the same trouble is for developers.
void Database::warn(const std::string& line) {
  messages_.emplace_back(warned_ ? LogLevel::debug : LogLevel::warn,
                         fmt::format("{}: {}", schema_.name, line));
  warned_ = true;
}

}  // namespace flashwright
