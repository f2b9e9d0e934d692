// Adapters of an engine: files held against the model once, device copies made once per loaded transformer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/lora/adapter.h"
#include "pipeline/acceleration.h"

namespace h3 {

class AdapterShelf {
 public:
  // Reads the files that are not known yet. Error(data) as lora::Adapter says.
  void read(const std::vector<AdapterChoice>& choices, const DitConfig& config, bool partial);
  // In the order of the choices. A file that is already on the device costs nothing.
  std::vector<AdapterUse> load(Dit& dit, const std::vector<AdapterChoice>& choices, const Control& control);
  // Logs what each file covers; adds what the user should know of it.
  void tell(const std::vector<AdapterChoice>& choices, Log& log, std::vector<std::string>& warnings) const;
  // Drops the device copies that these choices do not use where they hold more than `room` bytes: the plan of a request
  // counts its own adapters.
  void make_room(const std::vector<AdapterChoice>& choices, int64_t room);
  void unload() { on_device_.clear(); }  // with the transformer

 private:
  std::map<std::string, std::unique_ptr<lora::Adapter>> read_;
  std::map<std::string, std::shared_ptr<const DitAdapter>> on_device_;
};

}  // namespace h3
