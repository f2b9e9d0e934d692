#include "apps/server/paths.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "apps/server/http.h"
#include "base/error.h"

namespace h3::server {
namespace {

[[noreturn]] void refuse(int status, const std::string& field, const std::string& name, const std::string& reason) {
  throw ApiError{status,
                 status == 403 ? "path_not_allowed" : "invalid_path",
                 field + ": " + name.substr(0, 200) + " " + reason,
                 field,
                 name.substr(0, 200),
                 "a path below the folder the server was started with",
                 0};
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Without openat2 (before Linux 5.6): step by step, following no link at all.
int open_step_by_step(int root, const std::string& name, int flags) {
  int folder = ::dup(root);
  size_t at = 0;
  for (;;) {
    const size_t slash = name.find('/', at);
    const std::string part = name.substr(at, slash == std::string::npos ? slash : slash - at);
    if (part == "..") {
      ::close(folder);
      errno = EXDEV;
      return -1;
    }
    const bool leaf = slash == std::string::npos;
    const int next = ::openat(folder, part.empty() ? "." : part.c_str(),
                              (leaf ? flags : O_PATH | O_DIRECTORY | O_CLOEXEC) | O_NOFOLLOW);
    const int error = errno;
    ::close(folder);
    errno = error;
    if (leaf || next < 0) return next;
    folder = next;
    at = slash + 1;
  }
}

void write_all(int fd, const char* data, size_t bytes, const std::string& what) {
  while (bytes > 0) {
    const ssize_t done = ::write(fd, data, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(Code::io, "cannot write %s: %s", what.c_str(), std::strerror(errno));
    data += done;
    bytes -= static_cast<size_t>(done);
  }
}

}  // namespace

Root::Root(const std::string& path) {
  if (path.empty()) return;
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) == nullptr) {
    fail(Code::usage, "%s: %s, give an existing folder", path.c_str(), std::strerror(errno));
  }
  path_ = resolved;
  fd_ = ::open(resolved, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) fail(Code::usage, "%s: %s, give an existing folder", path.c_str(), std::strerror(errno));
}

Root::~Root() {
  if (fd_ >= 0) ::close(fd_);
}

Root::Root(Root&& other) noexcept : path_(std::move(other.path_)), fd_(other.fd_) { other.fd_ = -1; }

std::string Root::relative(const std::string& name, const std::string& field) const {
  if (!allowed()) refuse(403, field, name, "cannot be used: this server was started without a folder for it");
  if (name.empty() || name.size() >= PATH_MAX || name.find('\0') != std::string::npos) {
    refuse(400, field, name, "is not a path");
  }
  if (name[0] != '/') return name;
  if (name.rfind(path_ + "/", 0) == 0) return name.substr(path_.size() + 1);
  refuse(403, field, name, "lies outside the folder that clients may use");
}

int Root::open_beneath(const std::string& name, int flags) const {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, fd_, name.c_str(), &how, sizeof how);
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(fd);
  return open_step_by_step(fd_, name, flags | O_CLOEXEC);
}

std::string Root::read(const std::string& name, const std::string& field, size_t most_bytes) const {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  Descriptor file{open_beneath(relative(name, field), O_RDONLY | O_NONBLOCK)};
  if (file.fd < 0) {
    if (errno == EXDEV || errno == ELOOP) refuse(403, field, name, "leads outside the folder that clients may use");
    refuse(400, field, name, std::string("cannot be read: ") + std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) refuse(400, field, name, "is not a file");
  if (static_cast<uint64_t>(info.st_size) > most_bytes) {
    refuse(400, field, name,
           strf("has %lld bytes, at most %zu are allowed", static_cast<long long>(info.st_size), most_bytes));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = ::read(file.fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += static_cast<size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

int Root::open_folder(const std::string& name, const std::string& field, std::string& leaf) const {
  const std::string inside = relative(name, field);
  const size_t slash = inside.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : inside.substr(0, slash);
  leaf = slash == std::string::npos ? inside : inside.substr(slash + 1);
  if (leaf.empty() || leaf == "." || leaf == ".." || leaf.size() > 200) refuse(400, field, name, "is not a file name");
  const int fd = open_beneath(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0) {
    if (errno == EXDEV || errno == ELOOP) refuse(403, field, name, "leads outside the folder that clients may use");
    refuse(400, field, name, std::string("cannot be written, its folder: ") + std::strerror(errno));
  }
  return fd;
}

void Root::check_writable(const std::string& name, const std::string& field) const {
  std::string leaf;
  const Descriptor folder{open_folder(name, field, leaf)};
  struct stat info {};
  if (::fstatat(folder.fd, leaf.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode)) {
    refuse(400, field, name, "exists and is not a plain file");
  }
  if (::faccessat(folder.fd, ".", W_OK, AT_EACCESS) != 0)
    refuse(400, field, name, "cannot be written: its folder is read-only");
}

void Root::publish(const std::string& source, const std::string& name, const std::string& field) const {
  std::string leaf;
  const Descriptor folder{open_folder(name, field, leaf)};
  const std::string part = "." + leaf + ".part";
  ::unlinkat(folder.fd, part.c_str(), 0);
  Descriptor to{::openat(folder.fd, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)};
  if (to.fd < 0) fail(Code::io, "cannot write %s: %s", name.c_str(), std::strerror(errno));
  try {
    const OpenFile from(source);
    std::string piece(size_t{1} << 20, '\0');
    for (uint64_t at = 0; at < from.size();) {
      const size_t got = from.read(at, piece.data(), piece.size());
      if (got == 0) fail(Code::io, "cannot read %s", source.c_str());
      write_all(to.fd, piece.data(), got, name);
      at += got;
    }
    if (::fsync(to.fd) != 0) fail(Code::io, "cannot write %s: %s", name.c_str(), std::strerror(errno));
    if (::renameat(folder.fd, part.c_str(), folder.fd, leaf.c_str()) != 0) {
      fail(Code::io, "cannot write %s: %s", name.c_str(), std::strerror(errno));
    }
  } catch (...) {
    ::unlinkat(folder.fd, part.c_str(), 0);
    throw;
  }
  ::fsync(folder.fd);
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(Code::io, "cannot make the folder %s: %s", path.c_str(), error.message().c_str());
}

void sync_file(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0 || ::fsync(file.fd) != 0) fail(Code::io, "cannot write %s: %s", path.c_str(), std::strerror(errno));
}

void sync_folder(const std::string& path) {
  const Descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.fd >= 0) ::fsync(folder.fd);
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

int64_t tree_bytes(const std::string& path) {
  std::error_code error;
  int64_t total = 0;
  for (auto it = std::filesystem::recursive_directory_iterator(path, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) total += static_cast<int64_t>(it->file_size(ignored));
  }
  return total;
}

}  // namespace h3::server
