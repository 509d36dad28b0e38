#include "tests/cache/faulty_vfs.hpp"

#include <sqlite3.h>

#include <new>
#include <utility>

namespace flashwright::test {
namespace {

struct Plan {
  int countdown = 0;  // 0: nothing is planned
  int code = SQLITE_OK;
  bool lasting = false;
  bool fired = false;
  std::function<void()> hook;
};
Plan plan;
sqlite3_vfs* real = nullptr;

int next_change() {
  if (plan.fired) return plan.lasting ? plan.code : SQLITE_OK;
  if (plan.countdown == 0 || --plan.countdown > 0) return SQLITE_OK;
  plan.fired = true;
  if (plan.hook) plan.hook();
  return plan.code;
}

// The real file lies behind this object.
struct File {
  sqlite3_file base;
  sqlite3_file* inner() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};
sqlite3_file* inner(sqlite3_file* file) { return reinterpret_cast<File*>(file)->inner(); }

const sqlite3_io_methods kMethods = {
    2,
    [](sqlite3_file* f) {
      return inner(f)->pMethods ? inner(f)->pMethods->xClose(inner(f)) : SQLITE_OK;
    },
    [](sqlite3_file* f, void* to, int n, sqlite3_int64 at) {
      return inner(f)->pMethods->xRead(inner(f), to, n, at);
    },
    [](sqlite3_file* f, const void* from, int n, sqlite3_int64 at) {
      const int fault = next_change();
      return fault != SQLITE_OK ? fault : inner(f)->pMethods->xWrite(inner(f), from, n, at);
    },
    [](sqlite3_file* f, sqlite3_int64 size) {
      const int fault = next_change();
      return fault != SQLITE_OK ? fault : inner(f)->pMethods->xTruncate(inner(f), size);
    },
    [](sqlite3_file* f, int flags) {
      const int fault = next_change();
      return fault != SQLITE_OK ? fault : inner(f)->pMethods->xSync(inner(f), flags);
    },
    [](sqlite3_file* f, sqlite3_int64* size) {
      return inner(f)->pMethods->xFileSize(inner(f), size);
    },
    [](sqlite3_file* f, int lock) { return inner(f)->pMethods->xLock(inner(f), lock); },
    [](sqlite3_file* f, int lock) { return inner(f)->pMethods->xUnlock(inner(f), lock); },
    [](sqlite3_file* f, int* out) { return inner(f)->pMethods->xCheckReservedLock(inner(f), out); },
    [](sqlite3_file* f, int op, void* arg) {
      return inner(f)->pMethods->xFileControl(inner(f), op, arg);
    },
    [](sqlite3_file* f) { return inner(f)->pMethods->xSectorSize(inner(f)); },
    [](sqlite3_file* f) { return inner(f)->pMethods->xDeviceCharacteristics(inner(f)); },
    [](sqlite3_file* f, int page, int size, int extend, void volatile** out) {
      return inner(f)->pMethods->xShmMap(inner(f), page, size, extend, out);
    },
    [](sqlite3_file* f, int at, int n, int flags) {
      return inner(f)->pMethods->xShmLock(inner(f), at, n, flags);
    },
    [](sqlite3_file* f) { inner(f)->pMethods->xShmBarrier(inner(f)); },
    [](sqlite3_file* f, int drop) { return inner(f)->pMethods->xShmUnmap(inner(f), drop); },
    nullptr,
    nullptr,
};

int open_file(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
  file->pMethods = nullptr;
  if ((flags & SQLITE_OPEN_MAIN_JOURNAL) != 0 && next_change() != SQLITE_OK) return SQLITE_CANTOPEN;
  const int code = real->xOpen(real, name, inner(file), flags, out);
  if (code == SQLITE_OK) file->pMethods = &kMethods;
  return code;
}

int delete_file(sqlite3_vfs*, const char* name, int sync) {
  const int fault = next_change();
  return fault != SQLITE_OK ? SQLITE_IOERR_DELETE : real->xDelete(real, name, sync);
}

sqlite3_vfs& faulty() {
  static sqlite3_vfs vfs;
  return vfs;
}

}  // namespace

FaultyVfs::FaultyVfs() {
  plan = {};
  real = sqlite3_vfs_find(nullptr);
  faulty() = *real;
  faulty().pNext = nullptr;
  faulty().zName = "faulty";
  faulty().szOsFile = static_cast<int>(sizeof(File)) + real->szOsFile;
  faulty().xOpen = open_file;
  faulty().xDelete = delete_file;
  sqlite3_vfs_register(&faulty(), 1);
}

FaultyVfs::~FaultyVfs() {
  sqlite3_vfs_unregister(&faulty());
  sqlite3_vfs_register(real, 1);
}

void FaultyVfs::fail(int n, int code, bool lasting) { plan = {n, code, lasting, false, {}}; }
void FaultyVfs::before(int n, std::function<void()> hook) {
  plan = {n, SQLITE_OK, false, false, std::move(hook)};
}
void FaultyVfs::relent() { plan = {}; }
bool FaultyVfs::fired() const { return plan.fired; }

}  // namespace flashwright::test
