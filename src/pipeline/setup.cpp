#include "pipeline/setup.h"

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "media/media.h"
#include "pipeline/inspect.h"
#include "pipeline/model_facts.h"

namespace h3 {
OpenOptions open_options(const SessionOptions& options) {
  OpenOptions open;
  open.paths = options.models;
  open.tokenizer = options.tokenizer;
  if (options.partition == "ref2va") {
    open.partition = Partition::ref2va;
  } else if (options.partition == "fl2va") {
    open.partition = Partition::fl2va;
  } else if (!options.partition.empty()) {
    fail(Code::usage, "partition: \"%s\" is not known, give fl2va or ref2va", options.partition.c_str());
  }
  if (options.qkv_order == "interleaved") {
    open.qkv_order = QkvOrder::interleaved;
  } else if (options.qkv_order == "contiguous") {
    open.qkv_order = QkvOrder::contiguous;
  } else if (!options.qkv_order.empty()) {
    fail(Code::usage, "qkv_order: \"%s\" is not known, give contiguous or interleaved", options.qkv_order.c_str());
  }
  return open;
}

std::vector<DeviceInfo> list_devices(Log& log) {
  ThreadPool pool(1);
  Context context{pool, log};
  std::vector<DeviceInfo> devices;
  for (const BackendInfo& backend : list_backends(context)) {
    devices.push_back({backend.name, backend.detail, backend.refused});
  }
  return devices;
}

std::string describe_models(const SessionOptions& options, bool json) {
  OpenOptions open = open_options(options);
  open.inspect = true;
  const ModelInfo info = inspect_models(open_model_files(open));
  return json ? info.to_json().dump(1) + "\n" : info.to_text();
}

ModelFacts read_facts(const SessionOptions& options) {
  ModelFacts facts = model_facts(open_model_files(open_options(options)));
  facts.turbo_files = options.turbo_files;
  facts.lora_partial = options.lora_partial;
  return facts;
}

std::string default_clip_name() { return clip_extensions().find(".mp4") != std::string::npos ? "h3.mp4" : "h3.y4m"; }

Recipe read_recipe(const std::string& clip) {
  const std::string text = read_clip_metadata(clip);
  if (text.empty()) fail(Code::data, "%s: no settings inside; only clips written by h3 have them", clip.c_str());
  return Recipe::parse(text, clip);
}

}  // namespace h3
