#include "pipeline/inspect.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "store/embedded.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

ModelInfo info_of(const std::vector<std::string>& paths) {
  OpenOptions options;
  options.paths = paths;
  options.inspect = true;
  return inspect_models(open_model_files(options));
}

const ComponentInfo& part(const ModelInfo& info, Role role) {
  for (const ComponentInfo& component : info.components) {
    if (component.role == role) return component;
  }
  ADD_FAILURE() << "no " << name_of(role);
  return info.components.at(0);
}

TEST(Inspect, TheEmbeddedDemoIsReady) {
  if (embedded_demo().empty()) GTEST_SKIP() << "built without the demo model";
  const ModelInfo info = info_of({});
  ASSERT_EQ(info.components.size(), 4u);
  const ComponentInfo& dit = part(info, Role::dit);
  for (const ComponentInfo& component : info.components) {
    EXPECT_TRUE(component.problems.empty()) << component.problems.at(0);
    ASSERT_FALSE(component.dims.empty()) << component.origin;
  }
  EXPECT_EQ(dit.dims.front(), (std::pair<std::string, int64_t>("hidden", 256)));
  EXPECT_EQ(dit.provenance.at(0).second.substr(0, 16), "fl2va and ref2va");
  EXPECT_GT(dit.formats.at("q4tp").tensors, 0);
  int64_t bytes = 0;
  for (const auto& [name, use] : dit.formats) bytes += use.bytes;
  EXPECT_EQ(bytes, dit.bytes);
  for (const TaskInfo& task : info.tasks) EXPECT_TRUE(task.needs.empty()) << task.name << ": " << task.needs.at(0);
  const Json json = Json::parse(info.to_json().dump(), "info");
  EXPECT_EQ(json.at("components").size(), 4u);
  EXPECT_EQ(json.at("needs").at("t2va").size(), 0u);
  EXPECT_NE(info.to_text().find("declared by embedded demo"), std::string::npos);
}

TEST(Inspect, SaysWhatIsMissingAndWhatIsWrong) {
  const TempFolder root;
  const float zero[4] = {};
  const auto bytes = [&](size_t n) { return std::as_bytes(std::span(zero, n)); };
  const std::string dit = root / "dit.safetensors";
  write_safetensors(dit,
                    {{"video_patch_proj.weight", Format::f32, {1, 4}, bytes(4)},
                     {"audio_patch_proj.weight", Format::f32, {1, 2}, bytes(2)}},
                    {});
  const std::string other = root / "other.safetensors";
  write_safetensors(other, {{"foo", Format::f32, {1}, bytes(1)}}, {});
  const ModelInfo info = info_of({dit, other});
  ASSERT_EQ(info.components.size(), 2u);
  EXPECT_EQ(part(info, Role::dit).problems.size(), 1u);  // the rest of its tensors
  EXPECT_EQ(part(info, Role::unknown).tensors, 1);
  ASSERT_EQ(info.tasks.size(), 3u);
  EXPECT_EQ(info.tasks[0].needs.size(), 3u);  // conditioner and both autoencoders
  EXPECT_EQ(info.tasks[2].needs.size(), 4u);  // and a transformer of the other partition
  EXPECT_NE(info.to_text().find("assumed: the file does not say"), std::string::npos);
}

TEST(Inspect, GoldenToys) {
  const char* golden = std::getenv("H3_GOLDEN");
  if (golden == nullptr || !fs::exists(golden)) GTEST_SKIP() << "H3_GOLDEN is not set";
  const std::string base = golden;
  const ModelInfo whole = info_of({base + "/toy"});
  for (const ComponentInfo& component : whole.components) EXPECT_TRUE(component.problems.empty()) << component.origin;
  const ModelInfo comfy = info_of({base + "/toy_comfy/minimax_h3_toy.safetensors", base + "/toy_original/video_vae"});
  EXPECT_EQ(part(comfy, Role::dit).dims, part(whole, Role::dit).dims);
  EXPECT_EQ(part(comfy, Role::video_vae).dims, part(whole, Role::video_vae).dims);
  EXPECT_EQ(part(comfy, Role::dit).config, "shapes");
}

}  // namespace
}  // namespace h3
