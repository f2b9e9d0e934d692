// AdaLN in packs: the curve over time, and adapters on the time side inside it (spec dit 9, formats A.12).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "apps/pack/pack.h"
#include "apps/pack/time_curve.h"
#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "model/dit/weights.h"
#include "store/cmf.h"
#include "store/values.h"
#include "tests/support/put_file.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;
using testing::component_of;
using testing::copy_without;
using testing::MemorySource;
using testing::put_file;
using testing::toy_source;
using testing::ToySize;

constexpr int64_t kLoraRank = 16;
constexpr double kHalf = 0x1p-11;  // relative rounding of f16

// As wide in time as a curve is: the fit then loses nothing but the last bits.
ToySize toy_size() {
  ToySize n;
  n.time = kCurveRank;
  return n;
}

class PackAdaln : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!curve_fit_available()) GTEST_SKIP() << "built without Eigen";
  }
  std::string path(const std::string& name) const { return root_ / name; }

  PackReport pack(const std::shared_ptr<MemorySource>& base, const std::string& adapter, float strength,
                  bool check = false) {
    ModelFiles files;
    files.components.push_back(component_of(base));
    PackOptions options;
    options.output = path("out.cmf");
    options.policy = QuantPolicy::parse("f16");
    options.adaln = AdalnForm::automatic;
    options.check_adaln = check;
    if (!adapter.empty()) options.adapters.emplace_back(adapter, strength);
    return pack_files(files, options, pool_, log_, Control());
  }
  std::string refusal(const std::shared_ptr<MemorySource>& base, const std::string& adapter) {
    try {
      pack(base, adapter, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::data) << error.what();
      EXPECT_FALSE(fs::exists(path("out.cmf")));
      EXPECT_FALSE(fs::exists(path("out.cmf.part")));
      return error.what();
    }
    return "";
  }

  // silu(temb(t)) of the toy, [points, time].
  std::vector<float> grid(const std::shared_ptr<MemorySource>& base, int64_t points) {
    Context context{pool_, log_};
    const std::unique_ptr<Ops> ops = make_backend("cpu", context);
    return silu_grid(*ops, dit::read_source(component_of(base), log_), points);
  }

  struct Packed {
    std::vector<int64_t> dims, table_dims;
    std::vector<float> weight, bias, table;
  };
  Packed packed(const std::string& prefix) const {
    const CmfFile file(path("out.cmf"));
    const auto values = [&](const std::string& name, std::vector<int64_t>* dims) {
      const CmfTensor* tensor = file.find("dit." + prefix + name);
      EXPECT_NE(tensor, nullptr) << prefix << name;
      if (tensor == nullptr) return std::vector<float>();
      TensorInfo info;
      info.name = tensor->name;
      info.format = *cmf_dtypes()[tensor->dtype].format;
      info.dims = tensor->dims;
      info.data = file.payload(*tensor);
      if (dims != nullptr) *dims = tensor->dims;
      return values_of(info);
    };
    Packed out;
    out.weight = values("weight", &out.dims);
    out.bias = values("bias", nullptr);
    out.table = values("table", &out.table_dims);
    return out;
  }

  TempFolder root_;
  ThreadPool pool_{2};
  Log log_;
};

// Pairs on the projections named, read from `width` values.
std::shared_ptr<MemorySource> time_adapter(const ToySize& n, const std::vector<std::string>& modules, int64_t rank,
                                           int64_t width, const std::vector<float>& silu = {}) {
  TorchGenerator generator(21);
  auto source = std::make_shared<MemorySource>();
  for (const std::string& module : modules) {
    const int64_t rows = module.starts_with("final") ? 2 * n.hidden : 18 * n.hidden;
    source->add(module + ".lora_A.weight", {rank, width}, generator.randn(rank * width));
    source->add(module + ".lora_B.weight", {rows, rank}, generator.randn(rows * rank));
  }
  if (!silu.empty()) source->add("silu_t_emb_grid", {static_cast<int64_t>(silu.size()) / width, width}, silu);
  source->done();
  return source;
}

const std::vector<std::string> kEveryProjection = {"blocks.0.adaln_proj.linear", "blocks.1.adaln_proj.linear",
                                                   "blocks.2.adaln_proj.linear", "final_layer.adaln_proj.linear"};

// The base with a curve of four coordinates instead of its time embedder.
std::shared_ptr<MemorySource> pruned_base(int64_t points) {
  const ToySize n = toy_size();
  const auto base = toy_source(n);
  std::vector<std::string> drop;
  for (const TensorInfo& info : base->tensors()) {
    if (info.name.starts_with("time_embedder.") || info.name.find("adaln_proj.linear.weight") != std::string::npos) {
      drop.push_back(info.name);
    }
  }
  const auto out = copy_without(*base, drop);
  TorchGenerator generator(4);
  out->add("adaln_t_table", {points, 4}, generator.randn(points * 4));
  for (const std::string& module : kEveryProjection) {
    const int64_t rows = module.starts_with("final") ? 2 * n.hidden : 18 * n.hidden;
    out->add(module + ".weight", {rows, 4}, generator.randn(rows * 4));
  }
  out->done();
  return out;
}

TEST_F(PackAdaln, AFullBaseWithTimeBranchesBecomesACurveOfRank24) {
  const ToySize n = toy_size();
  const auto base = toy_source(n);
  const auto adapter = time_adapter(n, kEveryProjection, kLoraRank, n.time);
  constexpr float kStrength = 0.7f;
  pack(base, put_file(*adapter, path("larry.safetensors")), kStrength);
  const std::vector<float> silu = grid(base, kCurvePoints);
  for (const std::string& module : kEveryProjection) {
    const bool head = module.starts_with("final");
    const Packed found = packed(head ? "final_layer.adaln." : module.substr(0, 9) + "adaln.");
    const int64_t rows = head ? 2 * n.hidden : 18 * n.hidden, width = kCurveRank + kLoraRank;
    ASSERT_EQ(found.dims, (std::vector<int64_t>{rows, width}));
    ASSERT_EQ(found.table_dims, (std::vector<int64_t>{kCurvePoints, width}));
    const std::vector<float> w = base->values(module + ".weight"), b = base->values(module + ".bias");
    const std::vector<float> down = adapter->values(module + ".lora_A.weight");
    const std::vector<float> up = adapter->values(module + ".lora_B.weight");
    for (int64_t row = 0; row < rows; row += 7) {
      for (int64_t k = 0; k < kLoraRank; ++k) {  // the branch stands beside the curve as it is
        const float expected = kStrength * up[row * kLoraRank + k];
        EXPECT_NEAR(found.weight[row * width + kCurveRank + k], expected, kHalf * std::fabs(expected) + 1e-7);
      }
      for (int64_t g = 0; g < kCurvePoints; g += 31) {
        double exact = b[row], sum = found.bias[row], size = std::fabs(sum);
        for (int64_t c = 0; c < n.time; ++c) {
          double weight = w[row * n.time + c];
          for (int64_t k = 0; k < kLoraRank; ++k) {
            weight += double{kStrength} * up[row * kLoraRank + k] * down[k * n.time + c];
          }
          exact += weight * silu[g * n.time + c];
        }
        for (int64_t r = 0; r < width; ++r) {
          const double term = double{found.weight[row * width + r]} * found.table[g * width + r];
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(sum, exact, 1.1 * kHalf * size + 1e-5) << module << " row " << row << " point " << g;
      }
    }
  }
}

TEST_F(PackAdaln, APrunedBaseTakesTimeBranchesThroughTheirGrid) {
  constexpr int64_t kPoints = 33, kWidth = 12;
  const ToySize n = toy_size();
  const auto base = pruned_base(kPoints);
  TorchGenerator generator(9);
  const std::vector<float> silu = generator.randn(kPoints * kWidth);
  // Only two of the projections: all get one width, the others zeros.
  const std::vector<std::string> modules = {"blocks.1.adaln_proj.linear", "final_layer.adaln_proj.linear"};
  const auto adapter = time_adapter(n, modules, kLoraRank, kWidth, silu);
  pack(base, put_file(*adapter, path("larry.safetensors")), 0.5f);
  for (const std::string& module : kEveryProjection) {
    const bool head = module.starts_with("final"), touched = head || module.starts_with("blocks.1");
    const Packed found = packed(head ? "final_layer.adaln." : module.substr(0, 9) + "adaln.");
    ASSERT_EQ(found.dims, (std::vector<int64_t>{head ? 2 * n.hidden : 18 * n.hidden, 4 + kLoraRank}));
    ASSERT_EQ(found.table_dims, (std::vector<int64_t>{kPoints, 4 + kLoraRank}));
    const std::vector<float> w = base->values(module + ".weight"), curve = base->values("adaln_t_table");
    for (int64_t row = 0; row < found.dims[0]; ++row) {
      for (int64_t r = 0; r < found.dims[1]; ++r) {
        const float expected = r < 4     ? w[row * 4 + r]
                               : touched ? 0.5f * adapter->values(module + ".lora_B.weight")[row * kLoraRank + r - 4]
                                         : 0;
        ASSERT_NEAR(found.weight[row * found.dims[1] + r], expected, kHalf * std::fabs(expected) + 1e-7);
      }
      row += 16;
    }
    for (int64_t g = 0; g < kPoints; ++g) {
      for (int64_t r = 0; r < found.dims[1]; ++r) {
        double expected = r < 4 ? curve[g * 4 + r] : 0;
        for (int64_t c = 0; touched && r >= 4 && c < kWidth; ++c) {
          expected += double{adapter->values(module + ".lora_A.weight")[(r - 4) * kWidth + c]} * silu[g * kWidth + c];
        }
        ASSERT_NEAR(found.table[g * found.dims[1] + r], expected, 1e-5) << module << " " << g << " " << r;
      }
    }
  }
}

// Pairs that were converted for a pruned base read its curve: they change the weights and need no grid.
TEST_F(PackAdaln, PairsOfThePrunedWidthAreMerged) {
  const ToySize n = toy_size();
  const auto base = pruned_base(33);
  const auto adapter = time_adapter(n, kEveryProjection, 2, 4);
  pack(base, put_file(*adapter, path("pruned.safetensors")), 0.5f);
  for (const std::string& module : kEveryProjection) {
    const Packed found = packed(module.starts_with("final") ? "final_layer.adaln." : module.substr(0, 9) + "adaln.");
    ASSERT_EQ(found.dims[1], 4);
    EXPECT_EQ(found.table, base->values("adaln_t_table"));
    const std::vector<float> w = base->values(module + ".weight");
    const std::vector<float> down = adapter->values(module + ".lora_A.weight");
    const std::vector<float> up = adapter->values(module + ".lora_B.weight");
    for (int64_t i = 0; i < static_cast<int64_t>(w.size()); i += 13) {
      const int64_t row = i / 4, c = i % 4;
      const double expected = w[i] + 0.5 * (double{up[row * 2]} * down[c] + double{up[row * 2 + 1]} * down[4 + c]);
      ASSERT_NEAR(found.weight[i], expected, kHalf * std::fabs(expected) + 1e-6);
    }
  }
}

TEST_F(PackAdaln, AFullWidthAdapterOnAPrunedBaseNeedsItsGrid) {
  const ToySize n = toy_size();
  const auto adapter = time_adapter(n, kEveryProjection, kLoraRank, 12);
  const std::string file = put_file(*adapter, path("larry.safetensors"));
  const std::string message = refusal(pruned_base(33), file);
  for (const char* part : {"larry.safetensors", "adaln_proj.linear.lora_B.weight'", "offset ", "12-wide",
                           "h3_silu_temb_grid.safetensors with 33 points"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // A grid of other points is no grid for this curve.
  const auto wrong = time_adapter(n, kEveryProjection, kLoraRank, 12, std::vector<float>(32 * 12));
  EXPECT_NE(refusal(pruned_base(33), put_file(*wrong, path("wrong.safetensors"))).find("33 points"), std::string::npos);
}

TEST_F(PackAdaln, TheCheckPrintsSpectrumAndError) {
  ToySize n;
  n.time = 14;  // wider than a curve: something is left
  const auto base = toy_source(n);
  const PackReport report = pack(base, "", 1, true);
  ASSERT_GE(report.notes.size(), 2u);
  std::vector<double> spectrum;
  const std::string head = "AdaLN: centred spectrum";
  std::string error;
  for (const std::string& note : report.notes) {
    if (note.starts_with(head)) {
      const char* at = note.c_str() + head.size();
      for (char* end = nullptr; *at != '\0'; at = end) spectrum.push_back(std::strtod(at, &end));
    }
    if (note.starts_with("AdaLN: rank 8, worst projection")) error = note;
  }
  // The squares of the singular values add up to those of the centred curve.
  const std::vector<float> silu = grid(base, kCurvePoints);
  double squares = 0;
  for (int64_t c = 0; c < n.time; ++c) {
    double mean = 0;
    for (int64_t g = 0; g < kCurvePoints; ++g) mean += silu[g * n.time + c];
    mean /= static_cast<double>(kCurvePoints);
    for (int64_t g = 0; g < kCurvePoints; ++g) squares += std::pow(silu[g * n.time + c] - mean, 2);
  }
  ASSERT_EQ(spectrum.size(), 12u);
  double found = 0;
  for (size_t i = 0; i < spectrum.size(); ++i) {
    found += spectrum[i] * spectrum[i];
    if (i > 0) EXPECT_LE(spectrum[i], spectrum[i - 1]);
  }
  EXPECT_NEAR(found, squares, 2e-3 * squares);
  // The worst of the projections, from the stored tensors: rows 0 and 256, as the check takes them.
  double worst_rms = -1, worst_max = 0;
  for (const std::string& module : kEveryProjection) {
    const bool final = module.starts_with("final");
    const Packed stored = packed(final ? "final_layer.adaln." : module.substr(0, 9) + "adaln.");
    const std::vector<float> w = base->values(module + ".weight"), b = base->values(module + ".bias");
    double sum = 0, most = 0;
    int64_t count = 0;
    for (int64_t row = 0; row < stored.dims[0]; row += 256) {
      for (int64_t g = 0; g < kCurvePoints; ++g, ++count) {
        double exact = b[row], got = stored.bias[row];
        for (int64_t c = 0; c < n.time; ++c) exact += double{w[row * n.time + c]} * silu[g * n.time + c];
        for (int64_t r = 0; r < 8; ++r) got += double{stored.weight[row * 8 + r]} * stored.table[g * 8 + r];
        sum += (got - exact) * (got - exact);
        most = std::max(most, std::fabs(got - exact));
      }
    }
    const double rms = std::sqrt(sum / static_cast<double>(count));
    if (rms > worst_rms) worst_rms = rms, worst_max = most;
  }
  ASSERT_NE(error, "");
  const double max_error = std::strtod(error.c_str() + error.find("max error ") + 10, nullptr);
  const double rms_error = std::strtod(error.c_str() + error.find("rms ") + 4, nullptr);
  EXPECT_NEAR(max_error, worst_max, 2e-3) << error;  // the stored weights are f16
  EXPECT_NEAR(rms_error, worst_rms, 1e-3) << error;
  EXPECT_LT(rms_error, 0.05) << error;
}

}  // namespace
}  // namespace h3
