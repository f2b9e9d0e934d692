// Files that clients may name: only below a folder the operator chose, whatever links and dots the name has.
#pragma once

#include <string>

namespace h3::server {

// A folder that names are confined to; empty = nothing is allowed.
class Root {
 public:
  explicit Root(const std::string& path = "");  // Error(usage) when it is not a folder
  ~Root();
  Root(Root&& other) noexcept;
  Root& operator=(Root&&) = delete;
  bool allowed() const { return fd_ >= 0; }
  const std::string& path() const { return path_; }

  // The bytes of a regular file. Throws ApiError 400 or 403 naming `field`.
  std::string read(const std::string& name, const std::string& field, size_t most_bytes) const;
  // Checks that a file of this name could be written; ApiError otherwise.
  void check_writable(const std::string& name, const std::string& field) const;
  // Copies `source` there: written aside, synced, renamed. ApiError or Error(io).
  void publish(const std::string& source, const std::string& name, const std::string& field) const;

 private:
  std::string relative(const std::string& name, const std::string& field) const;
  int open_beneath(const std::string& name, int flags) const;  // -1 with errno
  int open_folder(const std::string& name, const std::string& field, std::string& leaf) const;

  std::string path_;
  int fd_ = -1;
};

// Makes a folder and those above it. Error(io).
void make_folders(const std::string& path);
void sync_file(const std::string& path);    // Error(io)
void sync_folder(const std::string& path);  // best effort
void remove_tree(const std::string& path);  // best effort
int64_t tree_bytes(const std::string& path);

}  // namespace h3::server
