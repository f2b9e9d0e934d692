// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace h3 {

class FileMap {
 public:
  FileMap() = default;
  // Throws Error(io) naming the path and the reason.
  explicit FileMap(const std::string& path);
  ~FileMap();
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that the pages of this range are not needed soon.
  void drop_pages(size_t offset, size_t size) const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

// Reads a small file whole; Error(io) when missing or larger than limit.
std::string read_file(const std::string& path, size_t limit = size_t{1} << 28);

// Writes to path + ".part" and renames on commit; the destructor removes an uncommitted file.
// So an interrupted run leaves no half file.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t size);  // Error(io) on failure, a full disk included
  // At a place of its own, which later write() calls do not follow. Bytes never written read as zero.
  void write_at(uint64_t offset, const void* data, size_t size);
  const std::string& temporary_path() const { return temporary_; }
  // Bytes that a killed process had left in its place; they are gone.
  std::optional<uint64_t> left_over() const { return left_over_; }
  void commit();

 private:
  std::string path_, temporary_;
  std::optional<uint64_t> left_over_;
  int fd_ = -1;
};

}  // namespace h3
