// Where files of the library live: the folder of compiled kernels, which may be deleted at any time,
// and the folder of tuning results, which cost device hours. A folder is used only when nobody else
// can write to it; otherwise the caller learns why not, and keeps its data in memory.
#pragma once

#include <string>

namespace flashwright {

enum class StoreKind { artifacts, tuning };

struct Place {
  std::string path;           // of the database file, without symbolic links; empty: memory only
  bool writable = false;      // false: rows may be read, and new ones stay in memory
  std::string wanted;         // the folder that was looked for, for messages; ":memory:" on request
  std::string trouble;        // why the folder cannot be used, or only read
  const char* variable = "";  // the environment variable that names another folder
};

// `directory` overrides the environment. The order is: FLASHWRIGHT_CACHE_DIR, then
// $XDG_CACHE_HOME/flashwright, then $HOME/.cache/flashwright, then the same below the home of the
// password database; for tuning FLASHWRIGHT_DATA_DIR, XDG_DATA_HOME and .local/share. Folders that
// are missing are made with mode 0700, but never a home.
Place find_place(StoreKind kind, const std::string& directory);

// Makes and checks one folder.
struct PrivateFolder {
  std::string path;  // without symbolic links; empty when it cannot be used
  bool writable = false;
  std::string trouble;
};
PrivateFolder private_folder(const std::string& path);

// False for network and user-space file systems, whose locks and shared mappings cannot be trusted.
bool is_local_file_system(const std::string& path);

}  // namespace flashwright
