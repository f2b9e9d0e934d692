#include "media/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolderMark = "metadata.json";  // every sequence folder has one

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// Hidden, unique in the process and among processes, short enough for any file system.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  const std::string base = fs::path(path).filename().string().substr(0, 200);
  return parent_of(path) + "/" + strf(".%s.%d-%u.part", base.c_str(), static_cast<int>(::getpid()), counter++);
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

std::string extension_of(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

std::string with_extension(const std::string& path, const char* extension) {
  return fs::path(path).replace_extension(extension).string();
}

bool is_frame_name(const std::string& name) {
  const std::string extension = extension_of(name);
  if (name.rfind("frame_", 0) != 0 || (extension != ".png" && extension != ".ppm")) return false;
  const std::string number = name.substr(6, name.size() - 6 - extension.size());
  return !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
}

void check_writable(const std::string& path) {
  const std::string parent = parent_of(path);
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored)) {
    fail(Code::io, "cannot write %s: the folder %s does not exist; create it or choose another", path.c_str(),
         parent.c_str());
  }
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    fail(Code::io, "cannot write %s: the folder %s is not writable (%s)", path.c_str(), parent.c_str(),
         std::strerror(errno));
  }
  if (fs::is_directory(path, ignored)) fail(Code::io, "cannot write %s: it is a folder", path.c_str());
}

StagedFile::StagedFile(std::string path) : path_(std::move(path)), temporary_(temporary_name(path_)) {
  check_writable(path_);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
}

StagedFile::~StagedFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

bool StagedFile::put(const void* data, size_t size) noexcept {
  const char* next = static_cast<const char*>(data);
  while (size > 0 && error_ == 0) {
    const ssize_t written = ::pwrite(fd_, next, size, position_);
    if (written < 0) {
      if (errno != EINTR) error_ = errno;
      continue;
    }
    next += written;
    size -= static_cast<size_t>(written);
    position_ += written;
    size_ = std::max(size_, position_);
  }
  return error_ == 0;
}

int64_t StagedFile::get(void* data, size_t size, int64_t offset) const noexcept {
  ssize_t count;
  do {
    count = ::pread(fd_, data, size, offset);
  } while (count < 0 && errno == EINTR);
  return count;
}

void StagedFile::check() const {
  if (error_ != 0) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(error_));
}

void StagedFile::write(const void* data, size_t size) {
  put(data, size);
  check();
}

void StagedFile::commit() {
  check();
  // Without the flush a power cut may leave an empty file under the final name.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) error_ = errno;
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 && error_ == 0) error_ = errno;
  if (error_ == 0 && ::rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
  if (error_ != 0) ::unlink(temporary_.c_str());
  check();
}

StagedFolder::StagedFolder(std::string path)
    : path_(without_slash(std::move(path))), temporary_(temporary_name(path_)) {
  check(path_);
  if (::mkdir(temporary_.c_str(), 0777) != 0)
    fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void StagedFolder::check(const std::string& given) {
  const std::string path = without_slash(given);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return check_writable(path);
  if (!fs::is_directory(path, ignored))
    fail(Code::io, "cannot write the folder %s: a file has that name", path.c_str());
  if (::access(path.c_str(), W_OK | X_OK) != 0 || ::access(parent_of(path).c_str(), W_OK | X_OK) != 0) {
    fail(Code::io, "cannot write the folder %s: it is not writable", path.c_str());
  }
  if (fs::is_empty(path, ignored) || fs::exists(fs::path(path) / kFolderMark, ignored)) return;
  fail(Code::usage, "the folder %s is not empty and holds no clip written here; choose an empty or new folder",
       path.c_str());
}

void StagedFolder::write(const std::string& name, const void* data, size_t size) {
  const std::string path = temporary_ + "/" + name;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  int error = fd < 0 ? errno : 0;
  const char* next = static_cast<const char*>(data);
  while (error == 0 && size > 0) {
    const ssize_t written = ::write(fd, next, size);
    if (written < 0 && errno != EINTR) error = errno;
    if (written > 0) next += written, size -= static_cast<size_t>(written);
  }
  if (fd >= 0 && ::close(fd) != 0 && error == 0) error = errno;
  if (error != 0) fail(Code::io, "cannot write %s/%s: %s", path_.c_str(), name.c_str(), std::strerror(error));
  names_.push_back(name);
}

std::vector<std::string> StagedFolder::commit() {
  std::vector<std::string> written;
  for (const std::string& name : names_) written.push_back(path_ + "/" + name);
  // Onto nothing or an empty folder one rename does it; otherwise file by file.
  if (::rename(temporary_.c_str(), path_.c_str()) == 0) {
    committed_ = true;
    return written;
  }
  if (errno != ENOTEMPTY && errno != EEXIST) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
  for (const std::string& name : names_) {
    if (::rename((temporary_ + "/" + name).c_str(), (path_ + "/" + name).c_str()) != 0) {
      fail(Code::io, "cannot write %s/%s: %s", path_.c_str(), name.c_str(), std::strerror(errno));
    }
  }
  std::vector<std::string> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (is_frame_name(name) && std::find(names_.begin(), names_.end(), name) == names_.end()) stale.push_back(name);
  }
  for (const std::string& name : stale) ::unlink((path_ + "/" + name).c_str());
  return written;
}

int open_regular(const std::string& path, int64_t* size) {
  struct stat info {};
  // stat first: opening a pipe for reading would wait for a writer.
  if (::stat(path.c_str(), &info) != 0) fail(Code::io, "cannot open %s: %s", path.c_str(), std::strerror(errno));
  if (S_ISDIR(info.st_mode)) fail(Code::io, "cannot read %s: it is a folder", path.c_str());
  if (!S_ISREG(info.st_mode)) fail(Code::io, "cannot read %s: not a regular file", path.c_str());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(Code::io, "cannot open %s: %s", path.c_str(), std::strerror(errno));
  *size = info.st_size;
  return fd;
}

std::vector<uint8_t> read_bytes(const std::string& path, int64_t limit, size_t padding) {
  int64_t size = 0;
  const int fd = open_regular(path, &size);
  if (size > limit) {
    ::close(fd);
    fail(Code::data, "%s has %lld bytes, at most %lld are allowed here", path.c_str(), static_cast<long long>(size),
         static_cast<long long>(limit));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(size) + padding);
  int64_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(fd, bytes.data() + done, static_cast<size_t>(size - done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += count;
  }
  const int error = errno;
  ::close(fd);
  if (done < size) fail(Code::io, "cannot read %s: %s", path.c_str(), std::strerror(error));
  return bytes;
}

}  // namespace h3
