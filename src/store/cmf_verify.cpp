#include "store/cmf_verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"

namespace h3 {
namespace {

constexpr uint64_t kPiece = 1 << 18;           // stays in a core's cache between the two hashes
constexpr uint64_t kTask = uint64_t{8} << 20;  // of one tensor, where only hash64 is computed

// One payload to check: bytes of a file against what the directory and the header say.
struct Check {
  const CmfTensor* tensor;
  std::span<const std::byte> bytes;
  std::string strong;  // expected; empty = not recorded, or this build cannot tell
  std::atomic<uint64_t> parts{0};
  std::string found_strong;
};

struct Task {
  size_t check;
  uint64_t begin, end;
};

void run_task(Check& check, const Task& task) {
  StrongHash strong;
  uint64_t parts = 0;
  for (uint64_t at = task.begin; at < task.end; at += kPiece) {
    const std::span<const std::byte> piece = check.bytes.subspan(at, std::min(kPiece, task.end - at));
    parts ^= hash64_part(piece, at);
    if (!check.strong.empty()) strong.update(piece);
  }
  check.parts ^= parts;
  if (!check.strong.empty()) check.found_strong = strong.hex();
}

// What is wrong with each payload; empty = nothing.
std::vector<std::string> check_payloads(std::vector<Check>& checks, ThreadPool& pool) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < checks.size(); ++i) {
    // XXH3 runs through a payload from its start; hash64 alone is shared out in parts.
    const uint64_t size = checks[i].bytes.size(), step = checks[i].strong.empty() ? kTask : std::max<uint64_t>(size, 1);
    for (uint64_t at = 0; at == 0 || at < size; at += step) tasks.push_back({i, at, std::min(size, at + step)});
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.end - a.begin > b.end - b.begin; });
  pool.parallel(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    run_task(checks[tasks[static_cast<size_t>(i)].check], tasks[static_cast<size_t>(i)]);
  });
  std::vector<std::string> problems;
  for (const Check& check : checks) {
    const uint64_t found = hash64_finish(check.parts, check.bytes.size());
    if (found != check.tensor->hash) {
      problems.push_back(strf("hash64 is %016llx instead of %016llx", static_cast<unsigned long long>(found),
                              static_cast<unsigned long long>(check.tensor->hash)));
    } else if (!check.strong.empty() && check.found_strong != check.strong) {
      problems.push_back("XXH3-128 is " + check.found_strong + " instead of " + check.strong +
                         ": words changed places");
    } else {
      problems.emplace_back();
    }
  }
  return problems;
}

std::vector<Check> checks_of(const CmfFile& file, const std::vector<const CmfTensor*>& tensors,
                             std::span<const std::byte> whole) {
  std::vector<Check> checks(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    checks[i].tensor = tensors[i];
    checks[i].bytes = whole.subspan(tensors[i]->offset, tensors[i]->bytes);
    if (StrongHash::available()) checks[i].strong = file.strong_hash_of(tensors[i]->name);
  }
  return checks;
}

std::vector<const CmfSection*> hashed_sections(const CmfEnvelope& e) {
  std::vector<const CmfSection*> sections;
  for (const CmfSection* section : {&e.header, &e.directory, &e.masks, &e.vocab, &e.index}) {
    if (section->bytes > 0 && section->hash != 0) sections.push_back(section);
  }
  return sections;
}

void sort_by_offset(std::vector<CmfFault>& faults) {
  std::stable_sort(faults.begin(), faults.end(),
                   [](const CmfFault& a, const CmfFault& b) { return a.offset < b.offset; });
}

// The bytes of `path` held against a sound copy's directory.
class Repair {
 public:
  Repair(const std::string& path, const std::string& source, ThreadPool& pool)
      : path_(path), target_(path), source_(source), pool_(pool) {}

  CmfRepair run() {
    require_same_file();
    find_head_faults();
    find_payload_faults();
    check_source();
    sort_by_offset(result_.mended);
    result_.truncated = target_.bytes().size() < source_.size();
    if (result_.truncated || !result_.mended.empty()) write();
    return std::move(result_);
  }

 private:
  std::span<const std::byte> of_source(uint64_t offset, uint64_t bytes) const {
    return source_.whole().subspan(offset, bytes);
  }

  bool differs(uint64_t offset, std::span<const std::byte> good) const {
    const std::span<const std::byte> bytes = target_.bytes();
    if (offset > bytes.size() || good.size() > bytes.size() - offset) return true;
    return !std::equal(good.begin(), good.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  // Two copies of one file share the hash of the directory; when that part of the envelope is gone, the header's.
  void require_same_file() const {
    const std::span<const std::byte> bytes = target_.bytes();
    if (bytes.size() > source_.size()) {
      fail(Code::data, "%s has %zu bytes and %s %llu: they are not copies of one file", path_.c_str(), bytes.size(),
           source_.path().c_str(), static_cast<unsigned long long>(source_.size()));
    }
    const CmfEnvelope& envelope = source_.envelope();
    const bool same = !differs(0x78, of_source(0x78, 8)) || !differs(0x70, of_source(0x70, 8)) ||
                      !differs(envelope.directory.offset, source_.bytes_of(envelope.directory));
    if (!same) {
      fail(Code::data, "%s and %s are not copies of one file: the hashes in their envelopes differ", path_.c_str(),
           source_.path().c_str());
    }
  }

  void find_head_faults() {
    if (differs(0, of_source(0, CmfEnvelope::kBytes))) {
      result_.mended.push_back({"envelope", 0, CmfEnvelope::kBytes, "differs"});
    }
    const CmfEnvelope& e = source_.envelope();
    for (const CmfSection* section : {&e.header, &e.directory, &e.masks, &e.vocab, &e.index}) {
      if (section->bytes == 0 || !differs(section->offset, source_.bytes_of(*section))) continue;
      result_.mended.push_back({section->name, section->offset, section->bytes, "differs"});
    }
  }

  void find_payload_faults() {
    std::vector<const CmfTensor*> present;
    const std::span<const std::byte> bytes = target_.bytes();
    for (const CmfTensor& tensor : source_.tensors()) {
      if (tensor.offset + tensor.bytes <= bytes.size()) {
        present.push_back(&tensor);
      } else {
        add(tensor, "its end is missing");
      }
    }
    std::vector<Check> checks = checks_of(source_, present, bytes);
    const std::vector<std::string> problems = check_payloads(checks, pool_);
    for (size_t i = 0; i < present.size(); ++i) {
      if (!problems[i].empty()) add(*present[i], problems[i]);
    }
  }

  void add(const CmfTensor& tensor, const std::string& problem) {
    result_.mended.push_back({"tensor '" + tensor.name + "'", tensor.offset, tensor.bytes, problem});
    needed_.push_back(&tensor);
  }

  void check_source() {
    for (const CmfSection* section : hashed_sections(source_.envelope())) {
      if (hash64(source_.bytes_of(*section)) == section->hash) continue;
      fail(Code::data, "%s: its %s is damaged too; nothing was changed", source_.path().c_str(), section->name);
    }
    std::vector<Check> checks = checks_of(source_, needed_, source_.whole());
    const std::vector<std::string> problems = check_payloads(checks, pool_);
    for (size_t i = 0; i < needed_.size(); ++i) {
      if (problems[i].empty()) continue;
      fail(Code::data, "%s: tensor '%s' at offset %llu is damaged too (%s); nothing was changed",
           source_.path().c_str(), needed_[i]->name.c_str(), static_cast<unsigned long long>(needed_[i]->offset),
           problems[i].c_str());
    }
  }

  void write() const {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(errno));
    bool good = ::ftruncate(fd, static_cast<off_t>(source_.size())) == 0;
    for (const CmfFault& fault : result_.mended) {
      const std::span<const std::byte> bytes = of_source(fault.offset, fault.bytes);
      for (size_t done = 0; good && done < bytes.size();) {
        const ssize_t n =
            ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(fault.offset + done));
        if (n < 0 && errno == EINTR) continue;
        good = n > 0;
        done += good ? static_cast<size_t>(n) : 0;
      }
    }
    good = good && ::fsync(fd) == 0;
    const int error = errno;
    ::close(fd);
    if (!good) fail(Code::io, "cannot write %s: %s", path_.c_str(), std::strerror(error));
  }

  const std::string& path_;
  FileMap target_;
  CmfFile source_;
  ThreadPool& pool_;
  CmfRepair result_;
  std::vector<const CmfTensor*> needed_;  // whose bytes are to be copied
};

}  // namespace

CmfVerdict verify_cmf(const std::string& path, ThreadPool& pool) {
  const CmfFile file(path, true);
  CmfVerdict verdict;
  std::vector<const CmfTensor*> present;
  std::vector<CmfFault> missing;
  for (const CmfTensor& tensor : file.tensors()) {
    if (tensor.offset + tensor.bytes <= file.size()) {
      present.push_back(&tensor);
    } else {
      missing.push_back({"tensor '" + tensor.name + "'", tensor.offset, tensor.bytes, "lies past the end of the file"});
    }
  }
  std::vector<Check> checks = checks_of(file, present, file.whole());
  const std::vector<std::string> problems = check_payloads(checks, pool);
  for (size_t i = 0; i < present.size(); ++i) {
    ++verdict.tensors;
    verdict.strong += checks[i].strong.empty() ? 0 : 1;
    verdict.hashed_bytes += present[i]->bytes;
    if (problems[i].empty()) continue;
    verdict.faults.push_back({"tensor '" + present[i]->name + "'", present[i]->offset, present[i]->bytes, problems[i]});
  }
  for (const CmfSection* section : hashed_sections(file.envelope())) {
    if (section->offset + section->bytes > file.size()) {
      missing.push_back({section->name, section->offset, section->bytes, "lies past the end of the file"});
      continue;
    }
    verdict.hashed_bytes += section->bytes;
    if (hash64(file.bytes_of(*section)) == section->hash) continue;
    verdict.faults.push_back({section->name, section->offset, section->bytes, "hash64 differs from the recorded one"});
  }
  sort_by_offset(verdict.faults);
  sort_by_offset(missing);
  if (file.size() < file.declared_size()) {
    missing.insert(missing.begin(), {"end of the file", file.size(), file.declared_size() - file.size(),
                                     strf("truncated: %llu of %llu bytes", static_cast<unsigned long long>(file.size()),
                                          static_cast<unsigned long long>(file.declared_size()))});
  }
  verdict.faults.insert(verdict.faults.begin(), missing.begin(), missing.end());
  return verdict;
}

CmfRepair repair_cmf(const std::string& path, const std::string& source, ThreadPool& pool) {
  return Repair(path, source, pool).run();
}

}  // namespace h3
