#include "pipeline/adapters.h"

#include <algorithm>

namespace h3 {

void AdapterShelf::read(const std::vector<AdapterChoice>& choices, const DitConfig& config, bool partial) {
  for (const AdapterChoice& choice : choices) {
    std::unique_ptr<lora::Adapter>& slot = read_[choice.id];
    if (slot) continue;
    try {
      slot = std::make_unique<lora::Adapter>(lora::open_adapter(choice.path), lora::TargetTable(config),
                                             lora::BindOptions{.partial = partial});
    } catch (...) {
      read_.erase(choice.id);
      throw;
    }
  }
}

std::vector<AdapterUse> AdapterShelf::load(Dit& dit, const std::vector<AdapterChoice>& choices,
                                           const Control& control) {
  std::vector<AdapterUse> uses;
  for (const AdapterChoice& choice : choices) {
    auto found = on_device_.find(choice.id);
    if (found == on_device_.end()) {  // nothing is kept of one that fails to load
      found = on_device_.emplace(choice.id, dit.load_adapter(*read_.at(choice.id), control)).first;
    }
    uses.push_back({found->second, static_cast<float>(choice.strength)});
  }
  return uses;
}

void AdapterShelf::make_room(const std::vector<AdapterChoice>& choices, int64_t room) {
  const auto used = [&](const std::string& id) {
    return std::any_of(choices.begin(), choices.end(), [&](const AdapterChoice& choice) { return choice.id == id; });
  };
  int64_t others = 0;
  for (const auto& [id, adapter] : on_device_) {
    if (!used(id)) others += adapter->bytes();
  }
  if (others <= room) return;
  std::erase_if(on_device_, [&](const auto& entry) { return !used(entry.first); });
}

void AdapterShelf::tell(const std::vector<AdapterChoice>& choices, Log& log, std::vector<std::string>& warnings) const {
  for (const AdapterChoice& choice : choices) {
    const lora::Adapter& adapter = *read_.at(choice.id);
    log.write(LogLevel::info, "%s: %s", choice.path.c_str(), adapter.coverage().to_text().c_str());
    warnings.insert(warnings.end(), adapter.notes().begin(), adapter.notes().end());
  }
}

}  // namespace h3
