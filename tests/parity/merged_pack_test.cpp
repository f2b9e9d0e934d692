// An adapter merged by the packer gives the golden velocities of the merged model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "apps/pack/pack.h"
#include "apps/parity/dit_case.h"
#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

float time_of(const GoldenFile& file, const char* rows) {
  const int64_t row = file.i64(rows).back();
  return file.f32("in.timestep").at(static_cast<size_t>(file.i64("in.timestep_indices").at(static_cast<size_t>(row))));
}

double rel_l2(const std::vector<float>& found, const std::vector<float>& wanted) {
  double squares = 0, reference = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double want = wanted[wanted.size() - found.size() + i], d = found[i] - want;
    squares += d * d;
    reference += want * want;
  }
  return std::sqrt(squares / reference);
}

// `base` with the golden adapter merged, packed in f32, against the velocities of the reference.
void expect_golden_velocities(const std::string& folder, const std::string& base) {
  const std::string output =
      (fs::temp_directory_path() / strf("h3_merged_%d.cmf", static_cast<int>(getpid()))).string();
  const GoldenFile merged(folder + "/dit_lora_t2va.safetensors"), inputs(folder + "/dit_t2va.safetensors");
  Log log;
  ThreadPool pool;
  Context context{pool, log};
  const Control control;
  PackOptions options;
  options.inputs.paths = {folder + base};
  options.output = output;
  options.policy = QuantPolicy::parse("f32");
  options.adapters = {{folder + "/toy_comfy/minimax_h3_toy_lora.safetensors",
                       std::strtof(merged.metadata().at("strength").c_str(), nullptr)}};
  pack_model(options, pool, log, control);

  OpenOptions open;
  open.paths = {output};
  const ModelFiles files = open_model_files(open);
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  const std::unique_ptr<Dit> dit = load_dit(*ops, *files.find(Role::dit), {Compute::f32, DType::f32}, control);
  const Velocities got = evaluate(*ops, *dit, read_dit_case(inputs), time_of(inputs, "in.video_indices"),
                                  time_of(inputs, "in.audio_indices"));
  EXPECT_LE(rel_l2(got.video, merged.f32("out.video_velocity")), 5e-6);  // golden/README 12
  EXPECT_LE(rel_l2(got.audio, merged.f32("out.audio_velocity")), 5e-6);
  fs::remove(output);
}

TEST(MergedPack, RendersTheGoldenVelocities) {
  expect_golden_velocities(std::string(H3_SOURCE_DIR) + "/tests/data/golden", "/toy/transformer");
}

TEST(MergedPack, RendersTheGoldenVelocitiesFromTheComfySpelling) {
  const char* const golden = std::getenv("H3_GOLDEN");
  if (golden == nullptr || !fs::exists(fs::path(golden) / "toy_comfy/minimax_h3_toy.safetensors")) {
    GTEST_SKIP() << "H3_GOLDEN names no folder with toy_comfy/minimax_h3_toy.safetensors";
  }
  expect_golden_velocities(golden, "/toy_comfy/minimax_h3_toy.safetensors");
}

}  // namespace
}  // namespace h3
