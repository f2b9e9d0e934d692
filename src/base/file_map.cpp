#include "base/file_map.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace h3 {

FileMap::FileMap(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(Code::io, "cannot open %s: %s", path.c_str(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(Code::io, "cannot read %s: not a regular file", path.c_str());
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      const int error = errno;
      ::close(fd);
      fail(Code::io, "cannot map %s: %s", path.c_str(), std::strerror(error));
    }
  }
  ::close(fd);
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

FileMap::FileMap(FileMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    path_ = std::move(other.path_);
  }
  return *this;
}

void FileMap::drop_pages(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = (offset + size) / page * page;
  if (data_ != nullptr && last > first) ::madvise(static_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

std::string read_file(const std::string& path, size_t limit) {
  const FileMap map(path);
  const std::span<const std::byte> bytes = map.bytes();
  if (bytes.size() > limit) {
    fail(Code::data, "%s has %zu bytes, at most %zu are allowed here", path.c_str(), bytes.size(), limit);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

namespace {

// False when another writer has the file, or gave it its final name since it was opened. File systems without locks
// pass.
bool lock_own(int fd, const std::string& temporary) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(temporary.c_str(), &named) == 0 && opened.st_ino == named.st_ino;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".part") {
  // What a killed process left behind is emptied; what a running one writes is not touched.
  struct stat info {};
  const bool there = ::stat(temporary_.c_str(), &info) == 0;
  const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fail(Code::io, "cannot write %s: %s", path.c_str(), std::strerror(errno));
  if (!lock_own(fd, temporary_)) {
    ::close(fd);
    fail(Code::io, "cannot write %s: another process is writing it; wait for it or choose another name", path.c_str());
  }
  if (there) left_over_ = static_cast<uint64_t>(info.st_size);
  if (::ftruncate(fd, 0) != 0) {
    const int error = errno;
    ::close(fd);
    fail(Code::io, "cannot write %s: %s", path.c_str(), std::strerror(error));
  }
  fd_ = fd;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());  // before the lock goes with the descriptor
  ::close(fd_);
}

void AtomicFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, next, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
    }
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::pwrite(fd_, next, size, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
    }
    next += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  const int fd = std::exchange(fd_, -1);
  const int lock = ::dup(fd);  // keeps the lock until the file has its name: closing may still report a failed write
  const bool closed = ::close(fd) == 0;
  const bool named = closed && ::rename(temporary_.c_str(), path_.c_str()) == 0;
  const int error = errno;
  if (!named) ::unlink(temporary_.c_str());
  if (lock >= 0) ::close(lock);
  if (!named) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(error));
}

}  // namespace h3
