// Files and folders written aside and renamed when complete, and bounded reading of user files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace h3 {

// ".mp4" of "a/b.MP4"; empty when the last component has none.
std::string extension_of(const std::string& path);
bool is_frame_name(const std::string& name);  // "frame_0012.png" or .ppm
std::string with_extension(const std::string& path, const char* extension);

// Error(io) when the folder that would hold `path` is missing or not writable, or `path` is an existing folder.
void check_writable(const std::string& path);

// Random-access output under a temporary name in the same folder. commit() renames it to its final name; the destructor
// removes an uncommitted one. put() and get() do not throw, so that C callbacks can use them; the first errno is kept.
class StagedFile {
 public:
  explicit StagedFile(std::string path);  // Error(io)
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  bool put(const void* data, size_t size) noexcept;                     // at the position, which advances
  int64_t get(void* data, size_t size, int64_t offset) const noexcept;  // bytes read, -1 on an error
  void seek(int64_t position) noexcept { position_ = position; }
  int64_t position() const { return position_; }
  int64_t size() const { return size_; }
  int error() const { return error_; }  // errno of the first failed put, else 0
  const std::string& path() const { return path_; }

  void write(const void* data, size_t size);  // put, or Error(io)
  void check() const;                         // Error(io) if a put has failed
  void commit();                              // flush to the disk, close, rename

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  int error_ = 0;
  int64_t position_ = 0, size_ = 0;
};

// A folder under a temporary name beside its final one. An existing folder takes the new files over its own; it must be
// empty or hold a clip written here before, of which frames that the new one does not have are removed.
class StagedFolder {
 public:
  explicit StagedFolder(std::string path);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  void write(const std::string& name, const void* data, size_t size);  // Error(io) on failure
  std::vector<std::string> commit();                                   // final paths of the files
  static void check(const std::string& path);  // Error(usage) when an existing folder holds other things

 private:
  std::string path_, temporary_;
  std::vector<std::string> names_;
  bool committed_ = false;
};

// Opens a regular file for reading; Error(io) naming the path and the reason. The caller closes.
int open_regular(const std::string& path, int64_t* size);

// A whole regular file with `padding` zero bytes behind it; Error(data) above the limit.
std::vector<uint8_t> read_bytes(const std::string& path, int64_t limit, size_t padding);

}  // namespace h3
