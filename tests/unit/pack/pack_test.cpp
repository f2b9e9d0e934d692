// From loose files to one file and back to the same model.
#include "apps/pack/pack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apps/pack/time_curve.h"
#include "base/error.h"
#include "base/file_map.h"
#include "pipeline/plan.h"
#include "pipeline/session.h"
#include "store/cmf.h"
#include "store/cmf_verify.h"
#include "store/values.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_model.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

class Pack : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return root_ / name; }

  PackReport pack(const std::string& quant, const std::string& output,
                  const std::vector<std::string>& inputs = {testing::kToyModel}) {
    PackOptions options;
    options.inputs.paths = inputs;
    options.output = output;
    options.policy = QuantPolicy::parse(quant);
    options.check_velocity = options.check_adaln = check_;
    options.adaln = adaln_;
    return pack_model(options, pool_, log_, control_);
  }

  static std::vector<std::byte> bytes_of(const std::string& path) {
    const FileMap map(path);
    return {map.bytes().begin(), map.bytes().end()};
  }

  // Velocities of two evaluations, and the sound, of a short clip: bytes of every stage of the model.
  static std::vector<std::byte> render(const std::vector<std::string>& models, const std::string& folder) {
    Log log;
    SessionOptions options;
    options.models = models;
    Session session(options, log);
    Request request;
    request.prompt = "a red circle moves right";
    request.width = 64;
    request.height = 64;
    request.frames = 5;
    request.steps = 2;
    request.seed = parse_seed(Json(7));
    request.output = folder + "/clip.y4m";
    request.wav = folder + "/clip.wav";
    fs::create_directories(folder);
    const Control control;
    session.run(session.resolve(request), control, {});
    std::vector<std::byte> all = bytes_of(folder + "/clip.y4m"), sound = bytes_of(folder + "/clip.wav");
    all.insert(all.end(), sound.begin(), sound.end());
    return all;
  }

  bool check_ = false;
  AdalnForm adaln_ = AdalnForm::automatic;
  TempFolder root_;
  ThreadPool pool_{2};
  Log log_;
  Control control_;
};

TEST_F(Pack, AnF32PackRendersTheSameBytes) {
  const PackReport report = pack("f32", path("f32.cmf"));
  for (const auto& [name, family] : report.families) EXPECT_EQ(family.error.squares, 0) << name;
  EXPECT_TRUE(verify_cmf(path("f32.cmf"), pool_).faults.empty());
  EXPECT_EQ(render({path("f32.cmf")}, path("packed")), render({testing::kToyModel}, path("loose")));
}

TEST_F(Pack, EveryFormatReportsItsErrorAndOpens) {
  check_ = true;
  const struct {
    const char* quant;
    double least, most;  // relative L2 of the transformer's MLPs
  } rows[] = {{"f16", 0, 1e-3}, {"q8", 1e-3, 2e-2}, {"q8_2f", 1e-3, 2e-2}, {"q4tp", 2e-2, 0.15}, {"q2tp", 0.15, 0.6}};
  uint64_t last = UINT64_MAX;
  for (const auto& row : rows) {
    const std::string output = path((std::string(row.quant) + ".cmf").c_str());
    const PackReport report = pack(row.quant, output);
    const double error = report.families.at("dit.mlp").error.rel_l2();
    EXPECT_GE(error, row.least) << row.quant;
    EXPECT_LE(error, row.most) << row.quant;
    EXPECT_NE(report.to_text().find("velocities: relative L2"), std::string::npos) << row.quant;
    if (std::string(row.quant) != "q8_2f") {
      EXPECT_LT(report.bytes, last) << row.quant;
      last = report.bytes;
    }
    EXPECT_TRUE(verify_cmf(output, pool_).faults.empty()) << row.quant;
    OpenOptions open;
    open.paths = {output};
    const ModelFiles files = open_model_files(open);
    for (const Role role : {Role::dit, Role::conditioner, Role::video_vae, Role::audio_vae}) {
      ASSERT_NE(files.find(role), nullptr) << name_of(role);
    }
    EXPECT_TRUE(files.tokenizer.has_value());
    EXPECT_EQ(files.defaults.at("width").as_int(), 96);
  }
}

// What --explain prints: the kernel and the stored format of every matmul of what the packer quantises, which gives
// two bits to the first matrices of each MLP alone.
TEST_F(Pack, PlansNameThePackedKernelOfEveryMatmul) {
  for (const char* format : {"q4tp", "q2tp"}) {
    pack(format, path("packed.cmf"));
    SessionOptions options;
    options.models = {path("packed.cmf")};
    options.device = "cpu";
    Session session(options, log_);
    for (const char* precision : {"int8", "bf16", "f32"}) {
      Request request;
      request.prompt = "a red circle moves right";
      request.width = request.height = 64;
      request.frames = 5;
      request.steps = 1;
      request.precision = precision;
      const RunPlan plan = session.plan(session.resolve(request));
      const std::string text = plan.to_text(true);
      int named = 0;
      for (const ShapeUse& use : plan.shapes) {
        const bool block = use.label.find(".blocks.") != std::string::npos && !use.label.ends_with(".adaln");
        if (use.op != "linear" || !block) continue;
        const bool first = use.label.ends_with(".fc1") || use.label.ends_with(".w1");
        const bool two_bits = first && std::string(format) == "q2tp";
        const char* const stored = two_bits ? " on q2tp" : " on q4tp";
        EXPECT_TRUE(use.kernel.ends_with(stored)) << precision << " " << use.label << ": " << use.kernel;
        EXPECT_NE(text.find(use.kernel), std::string::npos) << use.label;
        named += use.kernel.ends_with(std::string(" on ") + format);
      }
      EXPECT_GE(named, 1) << text;
    }
  }
}

TEST_F(Pack, APackOfAPackCopiesEveryByte) {
  pack("q4tp", path("a.cmf"));
  const PackReport report = pack("", path("b.cmf"), {path("a.cmf")});
  for (const auto& [name, family] : report.families) EXPECT_EQ(family.copied, family.tensors) << name;
  const CmfFile a(path("a.cmf")), b(path("b.cmf"));
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    EXPECT_EQ(a.tensors()[i].name, b.tensors()[i].name);
    EXPECT_EQ(a.tensors()[i].dtype, b.tensors()[i].dtype) << a.tensors()[i].name;
    EXPECT_EQ(a.tensors()[i].hash, b.tensors()[i].hash) << a.tensors()[i].name;
  }
  EXPECT_EQ(a.text_of(a.envelope().vocab), b.text_of(b.envelope().vocab));
  EXPECT_EQ(bytes_of(path("b.cmf")), bytes_of(path("a.cmf")));
}

// A header that says more than this program knows goes along when nothing changes, and its configurations too.
TEST_F(Pack, AnUnchangedFileKeepsItsHeader) {
  pack("q4tp", path("a.cmf"));
  const CmfFile a(path("a.cmf"));
  Json header = a.header();
  header.set("note", "from elsewhere");
  const std::string text = header.dump();
  std::vector<CmfEntry> entries;
  for (const CmfTensor& t : a.tensors()) entries.push_back({t.name, t.dtype, t.dims, t.bytes});
  CmfWriter writer(path("noted.cmf"), entries, {.vocab = a.bytes_of(a.envelope().vocab)},
                   {.header_bytes = text.size(), .least_data_offset = 1 << 20});
  for (const CmfTensor& t : a.tensors()) writer.write(a.payload(t));
  writer.commit(text);
  pack("", path("again.cmf"), {path("noted.cmf")});
  EXPECT_EQ(bytes_of(path("again.cmf")), bytes_of(path("noted.cmf")));
}

// What a flag adds to a file whose tensors stay is written into it, and is there the next time.
TEST_F(Pack, APartitionAndATokenizerAreAddedToAnUnchangedFile) {
  pack("q4tp", path("a.cmf"), {testing::kToyModel + "/transformer"});
  const auto own = [&](const char* name, const char* key) {
    const CmfFile file(path(name));
    const Json* const found = file.header().at("h3").find(key);
    return found == nullptr ? std::string() : found->as_string();
  };
  EXPECT_EQ(own("a.cmf", "partition"), "");
  PackOptions options;
  options.inputs.paths = {path("a.cmf")};
  options.inputs.partition = Partition::ref2va;
  options.output = path("b.cmf");
  const PackReport report = pack_model(options, pool_, log_, control_);
  for (const auto& [name, family] : report.families) EXPECT_EQ(family.copied, family.tensors) << name;
  EXPECT_EQ(own("b.cmf", "partition"), "ref2va");
  pack("", path("again.cmf"), {path("b.cmf")});
  EXPECT_EQ(bytes_of(path("again.cmf")), bytes_of(path("b.cmf")));

  pack("q4tp", path("c.cmf"));
  fs::copy(testing::kToyModel + "/tokenizer", path("tokenizer"));
  std::ofstream(path("tokenizer/tokenizer_config.json")) << R"({"model_max_length": 77})";
  options.inputs = {};
  options.inputs.paths = {path("c.cmf")};
  options.inputs.tokenizer = path("tokenizer");
  options.output = path("d.cmf");
  pack_model(options, pool_, log_, control_);
  EXPECT_EQ(CmfFile(path("d.cmf")).header().at("tokenizer_config").at("model_max_length").as_int(), 77);
}

TEST_F(Pack, ATurboAdapterInsideMakesAFourStepModel) {
  const std::string adapter = path("toy_turbo.safetensors"), output = path("turbo.cmf");
  fs::copy_file(testing::kToyModel + "/../toy_comfy/minimax_h3_toy_lora.safetensors", adapter);
  PackOptions options;
  options.inputs.paths = {testing::kToyModel};
  options.output = output;
  options.policy = QuantPolicy::parse("f16");
  options.adapters = {{adapter, 0.5f}};
  pack_model(options, pool_, log_, control_);
  const auto resolved = [&](const std::string& model, const std::string& profile) {
    SessionOptions session;
    session.models = {model};
    Request request;
    request.prompt = "a red circle";
    request.profile = profile;
    return Session(session, log_).resolve(request);
  };
  const Resolved four = resolved(output, "");
  EXPECT_EQ(four.scheduler, "two-clock");
  EXPECT_EQ(four.sampler, "two-clock");
  EXPECT_EQ(four.evaluations, 4);
  EXPECT_EQ(four.video_shift, 12);
  EXPECT_EQ(four.audio_shift, 3);
  EXPECT_NE(resolved(output, "diffusers").sampler, "two-clock");
  EXPECT_NE(resolved(testing::kToyModel, "").sampler, "two-clock");
}

// A matrix of a block is what the encoder of the byte vectors (tests/data/codec/nvfp4.json) makes of it, in the layout
// of C.5; what is outside the blocks keeps its precision, and the file is a transformer again.
TEST_F(Pack, Nvfp4GoesIntoASafetensorsFileOfComfysNames) {
  check_ = true;
  for (const AdalnForm form : {AdalnForm::full, AdalnForm::curve}) {
    if (form == AdalnForm::curve && !curve_fit_available()) continue;
    adaln_ = form;
    const std::string output = path("dit.safetensors");
    const PackReport report = pack("nvfp4", output);
    EXPECT_GT(report.families.at("dit.mlp").error.rel_l2(), 0.05);
    EXPECT_LT(report.families.at("dit.mlp").error.rel_l2(), 0.15);
    EXPECT_NE(report.to_text().find("velocities: relative L2"), std::string::npos);
    const std::unique_ptr<TensorSource> source = open_safetensors(output),
                                        base = open_safetensors(testing::kToyModel + "/transformer");
    const TensorInfo* const fc2 = source->find("blocks.1.mlp.fc2.weight");
    ASSERT_NE(fc2, nullptr);
    EXPECT_EQ(fc2->format, Format::nvfp4);
    const std::vector<float> given = values_of(*base->find("transformer_blocks.1.ff.net.2.weight"));
    const int64_t cols = fc2->dims[1];
    const RowReader reader{fc2->dims[0], cols, [&](int64_t first, int64_t count, float* out) {
                             std::copy_n(&given[static_cast<size_t>(first * cols)], count * cols, out);
                           }};
    const EncodedMatrix wanted = encode_matrix(Format::nvfp4, reader, "fc2", pool_);
    const auto equal = [](std::span<const std::byte> a, std::span<const std::byte> b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    EXPECT_TRUE(equal(fc2->data, wanted.matrix.data));
    EXPECT_TRUE(equal(fc2->scale, wanted.matrix.scale));
    EXPECT_TRUE(equal(fc2->scale2, wanted.matrix.scale2));
    EXPECT_EQ(source->find("token_refiner.blocks.0.mlp.fc1.weight")->format, Format::bf16);
    EXPECT_EQ(source->find("condition_proj.weight")->format, Format::bf16);
    EXPECT_EQ(source->find("video_patch_proj.weight")->format, Format::f32);
    EXPECT_EQ(source->find("adaln_t_table") != nullptr, form == AdalnForm::curve);
  }
  check_ = false;
  adaln_ = AdalnForm::automatic;
  EXPECT_THROW(pack("nvfp4", path("model.cmf")), Error);
  EXPECT_THROW(pack("q4tp", path("dit.safetensors")), Error);
  if (!curve_fit_available()) return;
  pack("q4tp", path("curves.cmf"));
  EXPECT_THROW(pack("f16", path("again.safetensors"), {path("curves.cmf")}), Error);
}

TEST_F(Pack, Nvfp4IsCopiedIntoNvfp4) {
  for (const AdalnForm form : {AdalnForm::full, AdalnForm::curve}) {
    if (form == AdalnForm::curve && !curve_fit_available()) continue;
    adaln_ = form;
    pack("nvfp4", path("first.safetensors"));
    const PackReport report = pack("nvfp4", path("second.safetensors"), {path("first.safetensors")});
    EXPECT_EQ(report.families.at("dit.mlp").copied, report.families.at("dit.mlp").tensors);
    EXPECT_EQ(report.families.at("dit.attn").copied, report.families.at("dit.attn").tensors);
    EXPECT_EQ(bytes_of(path("second.safetensors")), bytes_of(path("first.safetensors")));
  }
}

TEST_F(Pack, AFamilyHasItsOwnFormat) {
  pack("f16,dit.mlp=q2tp,te=q8", path("mixed.cmf"));
  const CmfFile file(path("mixed.cmf"));
  EXPECT_EQ(file.find("dit.blocks.0.mlp.fc1.weight")->dtype, 16);
  EXPECT_EQ(file.find("dit.blocks.0.mlp.fc2.weight")->dtype, 15);  // q2tp is for the first matrix of an MLP
  EXPECT_EQ(file.find("dit.blocks.0.attn.qkv_proj.weight")->dtype, 1);
  EXPECT_EQ(file.find("te.layers.0.mlp.up_proj.weight")->dtype, 3);
  EXPECT_EQ(file.find("dit.blocks.0.norm1.weight")->dtype, 1);
  EXPECT_EQ(file.find("dit.final_layer.video_out.weight")->dtype, 0);
  EXPECT_EQ(file.find("avae.latents_mean")->dtype, 0);
  EXPECT_THROW(QuantPolicy::parse("q5"), Error);
  EXPECT_THROW(QuantPolicy::parse("dit.mpl=q4tp"), Error);
}

TEST_F(Pack, PartsCanBeLeftOutAndReplaced) {
  PackOptions options;
  options.inputs.paths = {testing::kToyModel};
  options.output = path("small.cmf");
  options.policy = QuantPolicy::parse("q4tp");
  options.parts.vision = options.parts.video_encoder = options.parts.audio_encoder = false;
  pack_model(options, pool_, log_, control_);
  const CmfFile small(path("small.cmf"));
  EXPECT_EQ(small.find("vis.pos_embed.weight"), nullptr);
  EXPECT_EQ(small.find("vvae.enc.conv_in.weight"), nullptr);
  EXPECT_EQ(small.find("avae.mean_proj.weight"), nullptr);
  EXPECT_NE(small.find("vvae.x_embedder.weight"), nullptr);

  // The transformer of another file takes the place of the first one's.
  PackOptions only;
  only.inputs.paths = {testing::kToyModel};
  only.output = path("dit.cmf");
  only.policy = QuantPolicy::parse("q8");
  only.parts = {.conditioner = false,
                .vision = false,
                .video_decoder = false,
                .video_encoder = false,
                .audio_decoder = false,
                .audio_encoder = false};
  pack_model(only, pool_, log_, control_);
  pack("", path("joined.cmf"), {path("small.cmf"), path("dit.cmf")});
  const CmfFile joined(path("joined.cmf"));
  EXPECT_EQ(joined.find("dit.blocks.0.mlp.fc2.weight")->dtype, 3);
  EXPECT_EQ(joined.find("te.layers.0.mlp.up_proj.weight")->dtype, 15);
  EXPECT_EQ(joined.tensors().size(), small.tensors().size());
}

}  // namespace
}  // namespace h3
