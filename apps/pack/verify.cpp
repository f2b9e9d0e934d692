#include "apps/pack/verify.h"

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "store/cmf_verify.h"
#include "store/model_files.h"

namespace h3 {
namespace {

std::string fault_line(const std::string& path, const CmfFault& fault) {
  return strf("%s: %s, bytes %llu to %llu: %s", path.c_str(), fault.what.c_str(),
              static_cast<unsigned long long>(fault.offset),
              static_cast<unsigned long long>(fault.offset + fault.bytes), fault.problem.c_str());
}

bool is_cmf(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && CmfFile::is_cmf(FileMap(path).bytes());
}

VerifyReport verify_other(const std::string& path) {
  VerifyReport report;
  OpenOptions options;
  options.paths = {path};
  options.inspect = true;
  const ModelFiles files = open_model_files(options);
  int64_t tensors = 0;
  for (const Component& component : files.components) {
    tensors += static_cast<int64_t>(component.source->tensors().size());
  }
  report.lines.push_back(strf("%s: offsets and shapes of %lld tensors are sound; this format records no hashes",
                              path.c_str(), static_cast<long long>(tensors)));
  return report;
}

}  // namespace

VerifyReport verify_file(const std::string& path, ThreadPool& pool) {
  if (!is_cmf(path)) return verify_other(path);
  VerifyReport report;
  const auto start = std::chrono::steady_clock::now();
  const CmfVerdict verdict = verify_cmf(path, pool);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.hashed_bytes = verdict.hashed_bytes;
  report.good = verdict.faults.empty();
  for (const CmfFault& fault : verdict.faults) report.lines.push_back(fault_line(path, fault));
  const double megabytes = static_cast<double>(verdict.hashed_bytes) / 1e6;
  const std::string summary =
      strf("%lld tensors, %.1f MB at %.1f GB/s; XXH3-128 of %lld", static_cast<long long>(verdict.tensors), megabytes,
           report.seconds > 0 ? megabytes / 1e3 / report.seconds : 0, static_cast<long long>(verdict.strong));
  report.lines.push_back(path + (report.good ? ": sound: " : ": damaged: ") + summary);
  return report;
}

VerifyReport repair_file(const std::string& path, const std::string& source, ThreadPool& pool) {
  VerifyReport report;
  const CmfRepair repair = repair_cmf(path, source, pool);
  for (const CmfFault& fault : repair.mended) report.lines.push_back("mended " + fault_line(path, fault));
  const bool nothing = repair.mended.empty() && !repair.truncated;
  report.lines.push_back(path + (nothing ? ": nothing to mend" : ": mended from " + source));
  return report;
}

}  // namespace h3
