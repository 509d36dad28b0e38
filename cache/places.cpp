#include "cache/places.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/env.hpp"

namespace flashwright {
namespace {

struct PlaceInfo {
  env::Variable variable;
  const char* name;
  const char* xdg;
  const char* below_home;
  const char* file;
};

// The number in a file name is the major version of its schema.
const PlaceInfo& info(StoreKind kind) {
  static constexpr PlaceInfo kTable[] = {
      {env::Variable::cache_dir, "FLASHWRIGHT_CACHE_DIR", "XDG_CACHE_HOME", "/.cache",
       "/artifacts-1.db"},
      {env::Variable::data_dir, "FLASHWRIGHT_DATA_DIR", "XDG_DATA_HOME", "/.local/share",
       "/tuning-2.db"},
  };
  return kTable[static_cast<int>(kind)];
}

std::string passwd_home() {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr || found->pw_dir == nullptr)
    return {};
  return found->pw_dir;
}

// Makes every missing component; returns "" or what went wrong.
std::string make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0700) == 0) {
      chmod(part.c_str(), 0700);  // whatever the umask took away
    } else if (errno != EEXIST && errno != EISDIR) {
      const int error = errno;
      // A file system may answer "read-only" or "no permission" for a folder that exists.
      struct stat about {};
      if (stat(part.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
        return part == path ? std::strerror(error)
                            : fmt::format("{}: {}", part, std::strerror(error));
    }
    if (end == std::string::npos) return {};
  }
}

// The folder to look for, and the part of it that must exist already.
struct Wanted {
  std::string folder;
  std::string home;
};

Wanted wanted_folder(const PlaceInfo& kind, const std::string& directory) {
  if (!directory.empty()) return {directory, {}};
  if (const std::string set = env::get(kind.variable); !set.empty()) return {set, {}};
  const std::string xdg = env::get_foreign(kind.xdg);
  if (xdg.starts_with('/')) return {xdg + "/flashwright", {}};  // a relative path is to be ignored
  std::string home = env::get_foreign("HOME");
  if (home.empty()) home = passwd_home();
  if (!home.starts_with('/')) return {};
  return {home + kind.below_home + "/flashwright", home};
}

}  // namespace

PrivateFolder private_folder(const std::string& path) {
  PrivateFolder folder;
  folder.trouble = make_folders(path);
  if (!folder.trouble.empty()) return folder;

  struct stat about {};
  if (lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode) && about.st_uid != geteuid()) {
    folder.trouble = fmt::format("it is a symbolic link made by user {}", about.st_uid);
    return folder;
  }
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  if (real == nullptr || stat(real.get(), &about) != 0) {
    folder.trouble = std::strerror(errno);
  } else if (!S_ISDIR(about.st_mode)) {
    folder.trouble = std::strerror(ENOTDIR);
  } else if (about.st_uid != geteuid() && about.st_uid != 0) {
    folder.trouble = fmt::format("it belongs to user {}", about.st_uid);
  } else if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    folder.trouble = fmt::format("others may write to it (mode {:04o}; chmod go-w makes it safe)",
                                 about.st_mode & 07777);
  } else {
    folder.path = real.get();
    // What the administrator owns is read and left alone: a prepared image, for instance.
    folder.writable =
        about.st_uid == geteuid() && faccessat(AT_FDCWD, real.get(), W_OK | X_OK, AT_EACCESS) == 0;
    if (!folder.writable)
      folder.trouble = about.st_uid == geteuid()
                           ? fmt::format("it cannot be written ({})", std::strerror(errno))
                           : "it belongs to root";
  }
  return folder;
}

Place find_place(StoreKind kind, const std::string& directory) {
  const PlaceInfo& about = info(kind);
  const Wanted wanted = wanted_folder(about, directory);
  Place place;
  place.variable = about.name;
  place.wanted = wanted.folder;
  if (wanted.folder == ":memory:") return place;
  if (wanted.folder.empty()) {
    place.wanted = "(no folder)";
    place.trouble = "neither HOME nor the password database names a home";
    return place;
  }
  if (!wanted.home.empty() && access(wanted.home.c_str(), F_OK) != 0) {
    place.trouble = fmt::format("{}: {}", wanted.home, std::strerror(errno));
    return place;
  }
  const PrivateFolder folder = private_folder(wanted.folder);
  place.trouble = folder.trouble;
  if (folder.path.empty()) return place;
  place.path = folder.path + about.file;
  place.writable = folder.writable;
  return place;
}

bool is_local_file_system(const std::string& path) {
  struct statfs about {};
  if (statfs(path.c_str(), &about) != 0) return false;
  // Magic numbers of the kernel and of the vendors: NFS, SMB, SMB2, CIFS, Lustre, GPFS, Ceph, BeeGFS,
  // AFS, OpenAFS, 9p, FUSE, Coda.
  constexpr std::array<std::uint32_t, 13> kRemote = {
      0x6969,     0x517B,     0xFE534D42, 0xFF534D42, 0x0BD00BD0, 0x47504653, 0x00C36400,
      0x19830326, 0x5346414F, 0x6B414653, 0x01021997, 0x65735546, 0x73757245};
  return std::find(kRemote.begin(), kRemote.end(), static_cast<std::uint32_t>(about.f_type)) ==
         kRemote.end();
}

}  // namespace flashwright
