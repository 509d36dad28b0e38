// A store's rows: in a file when a safe folder offers one, else in memory, behind one interface. No
// trouble with the file ever reaches the caller: it costs one warning, and rows stay in memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache/connection.hpp"
#include "cache/places.hpp"
#include "cache/quarantine.hpp"
#include "cache/store.hpp"
#include "core/log.hpp"

namespace flashwright {

class Database {
 public:
  // Work inside one transaction. It may run again, on another file or in memory, so it changes
  // nothing outside but by a last step that cannot fail.
  using Body = std::function<bool(Connection&)>;

  // Reads what it can from a damaged file, and returns the work that writes it into the new one.
  using Salvage = std::function<Body(Connection&)>;

  // Opens nothing yet. `directory` overrides the environment; `journal` is for tests, "" chooses.
  Database(StoreKind kind, const Schema& schema, std::string directory, std::string journal,
           Salvage salvage = {});
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // A read transaction on the rows in memory, then one on those of the file, until the body returns
  // true; tells whether it did.
  bool read(const Body& body);

  // An immediate transaction on the file, or on the memory when the file cannot be written. Commits
  // when the body returns true; tells whether it did.
  bool write(const Body& body);

  // The same on all rows there are, and without complaint where they cannot be written: to delete.
  void write_all(const Body& body);

  StoreStatus status();

 private:
  class Session;
  friend class ForkGate;
  enum class Outcome { yes, no, unavailable };
  using Access = Connection::Access;

  enum class Opening { done, again };  // what a second attempt would be good for

  bool in_memory(Access access, const Body& body);
  Connection* file();
  void open_file();
  Opening open_once();
  Outcome on_file(Access access, const Body& body);
  Outcome transact(Connection& connection, Access access, const Body& body);
  bool recover(const SQLite::Exception& error, Access access);
  Opening quarantine(const std::string& reason);
  void rescue(const std::string& damaged_path);
  void pause();
  void stop_reading(const std::string& reason);
  void stop_writing(const std::string& reason);
  void warn(const std::string& line);
  std::string advice() const;

  const StoreKind kind_;
  const Schema& schema_;
  const std::string directory_;
  const std::string journal_;
  const Salvage salvage_;

  std::mutex mutex_;  // one thread at a time uses the connections and what follows
  Place place_;
  FolderLock names_;  // shared during every call
  std::unique_ptr<Connection> file_;
  std::unique_ptr<Connection> memory_;
  int owner_ = 0;         // the process that opened the file
  bool readable_ = true;  // false: the file has been given up
  bool writable_ = true;  // false: reads go on, new rows stay in memory
  bool warned_ = false;
  std::string trouble_;
  Body rescued_;  // waits for a new file
  std::chrono::steady_clock::time_point busy_until_{};
  std::vector<std::pair<LogLevel, std::string>> messages_;  // logged when the mutex is free again
};

}  // namespace flashwright
