#include "backends/cuda/plan_store.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file_map.h"
#include "base/json.h"

namespace h3::cuda {
namespace {

constexpr const char* kKind = "h3 matmul plans";

std::string hex(const cublasLtMatmulAlgo_t& algorithm) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&algorithm);
  std::string text;
  for (size_t i = 0; i < sizeof algorithm; ++i) text += strf("%02x", bytes[i]);
  return text;
}

cublasLtMatmulAlgo_t from_hex(const std::string& text, const std::string& path) {
  cublasLtMatmulAlgo_t algorithm{};
  auto* bytes = reinterpret_cast<unsigned char*>(&algorithm);
  if (text.size() != 2 * sizeof algorithm || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fail(Code::data, "%s: \"%s\" is not a stored algorithm; delete the file to measure again", path.c_str(),
         text.c_str());
  }
  for (size_t i = 0; i < sizeof algorithm; ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return algorithm;
}

}  // namespace

PlanStore::PlanStore(std::string path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {
  if (!std::filesystem::exists(path_)) return;
  const Json json = Json::parse(read_file(path_), path_);
  const Json* const kind = json.find("kind");
  if (kind == nullptr || !kind->is_string() || kind->as_string() != kKind) {
    fail(Code::data, "%s: no file of matmul plans; name another one or delete it", path_.c_str());
  }
  for (const auto& [name, shapes] : json.at("machines").members()) {
    for (const auto& [shape, row] : shapes.members()) {
      Entry& entry = machines_[name][shape];
      entry.algorithm = from_hex(row.at("algorithm").as_string(), path_);
      entry.microseconds = row.at("microseconds").as_double();
      entry.first = row.at("first_proposal").as_double();
    }
  }
}

const cublasLtMatmulAlgo_t* PlanStore::find(const std::string& shape) const {
  const auto machine = machines_.find(machine_);
  if (machine == machines_.end()) return nullptr;
  const auto found = machine->second.find(shape);
  return found == machine->second.end() ? nullptr : &found->second.algorithm;
}

void PlanStore::add(const std::string& shape, const cublasLtMatmulAlgo_t& algorithm, double microseconds,
                    double first) {
  machines_[machine_][shape] = {algorithm, microseconds, first};
  write();
}

void PlanStore::write() const {
  Json machines = Json::object();
  for (const auto& [name, shapes] : machines_) {
    Json rows = Json::object();
    for (const auto& [shape, entry] : shapes) {
      rows.set(shape, Json::object({{"algorithm", hex(entry.algorithm)},
                                    {"microseconds", entry.microseconds},
                                    {"first_proposal", entry.first}}));
    }
    machines.set(name, std::move(rows));
  }
  const std::string text = Json::object({{"kind", kKind}, {"machines", std::move(machines)}}).dump(1) + "\n";
  AtomicFile file(path_);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace h3::cuda
