// What the denoiser says about who reads its rows (Ops::feeds) is true: with adapters, under a probe, in recorded
// blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "model/dit/dit.h"
#include "tests/unit/lora/adapter_files.h"

namespace h3 {
namespace {

// Takes every hint at its word: rows that are their reader's alone are NaN to anybody else.
class HintedOps final : public RefOps {
 public:
  using RefOps::RefOps;
  bool follows = false;
  int beside = 0, alone = 0;  // rows read by the reader that was named
  std::set<std::string> readers;

  void feeds(const Linear& reader, bool only) override { hint_ = {&reader, only}; }
  void swiglu(const View& gate, const View& value, const View& out) override {
    RefOps::swiglu(gate, value, out);
    keep(waiting_[0], out);
  }
  void norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) override {
    RefOps::norm_modulate(x, w, eps, mod, h);
    keep(waiting_[1], h);
  }
  void linear(const Linear& weight, const View& x, const View& y) override {
    read(weight, x, [&](const View& rows) { RefOps::linear(weight, rows, y); });
  }
  void linear_onto(const Linear& weight, const View& x, const View& y) override {
    read(weight, x, [&](const View& rows) { RefOps::linear_onto(weight, rows, y); });
  }

 private:
  struct Hint {
    const Linear* reader = nullptr;
    bool only = false;
  };
  struct Waiting {
    Hint hint;
    View rows;
    Tensor values;
  };
  void keep(std::optional<Waiting>& waiting, const View& rows) {
    const Hint hint = std::exchange(hint_, {});
    EXPECT_FALSE(follows && waiting) << "rows that " << waiting->hint.reader->label << " was to read were not read";
    waiting.reset();
    if (!follows || hint.reader == nullptr) return;
    Waiting& kept = waiting.emplace();
    kept.hint = hint;
    kept.rows = rows;
    kept.values = Tensor(device(), rows.type, {rows.dim[0], rows.dim[1]}, "rows");
    copy(rows, kept.values);
    if (hint.only) fill(rows, std::nanf(""));
  }
  template <typename Call>
  void read(const Linear& weight, const View& x, Call call) {
    for (std::optional<Waiting>& waiting : waiting_) {
      if (!waiting || waiting->hint.reader != &weight) continue;
      EXPECT_EQ(x.data, waiting->rows.data) << weight.label;
      EXPECT_EQ(x.dim[0], waiting->rows.dim[0]) << weight.label;
      waiting->hint.only ? ++alone : ++beside;
      readers.insert(weight.label.substr(weight.label.rfind('.', weight.label.size()) + 1));
      const Tensor values = std::move(waiting->values);
      waiting.reset();
      return call(values);
    }
    call(x);
  }

  Hint hint_;
  std::optional<Waiting> waiting_[2];
};

class Feeds : public ::testing::Test {
 protected:
  Feeds() : dit_(load_dit(ops_, testing::component_of(testing::toy_source()), {}, control_)) {
    LayoutSpec spec;
    spec.text_tags.assign(5, 1);
    spec.latent_frames = 2;
    spec.latent_height = spec.latent_width = 4;
    spec.audio_latents = 3;
    layout_ = build_layout(spec);
  }
  // One evaluation as a whole, one cut behind its first block.
  std::vector<float> evaluate(const std::vector<AdapterUse>& adapters, bool probed) {
    const DitConfig& config = dit_->config();
    TorchGenerator generator(3);
    DitRequest request;
    request.layout = &layout_;
    request.text = generator.randn(layout_.text_count() * config.text_dim);
    request.video_times = {0.0f, 0.3f};
    request.audio_times = {0.0f, 0.4f};
    request.adapters = adapters;
    if (probed) request.probe = [](const std::string&, const View&) {};
    const std::unique_ptr<DitSession> session = dit_->start(std::move(request), control_);
    const auto stream = [&](int64_t rows, int64_t width) {
      return upload_f32(ops_.device(), generator.randn(rows * width).data(), {rows, width}, DType::f32, "test");
    };
    const Tensor video = stream(layout_.target_video_rows(), config.video_row);
    const Tensor audio = stream(layout_.target_audio_rows(), config.audio_row);
    const Tensor video_out = stream(layout_.target_video_rows(), config.video_row);
    const Tensor audio_out = stream(layout_.target_audio_rows(), config.audio_row);
    std::vector<float> all;
    for (int evaluation = 0; evaluation < 2; ++evaluation) {
      session->embed(evaluation, video, audio);
      if (evaluation == 1) session->blocks(0, 1);
      session->blocks(evaluation, session->layers());
      session->head(video_out, audio_out);
      for (const Tensor* out : {&video_out, &audio_out}) {
        for (const float v : download_f32(*out)) all.push_back(v);
      }
    }
    return all;
  }
  std::vector<float> hinted(const std::vector<AdapterUse>& adapters, bool probed) {
    ops_.follows = true;
    ops_.alone = ops_.beside = 0;
    const std::vector<float> values = evaluate(adapters, probed);
    ops_.follows = false;
    return values;
  }

  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};
  HintedOps ops_{context_};
  const Control control_;
  std::unique_ptr<Dit> dit_;
  PackedLayout layout_;
};

TEST_F(Feeds, RowsAreReadByTheirReaderAlone) {
  const std::vector<float> expected = evaluate({}, false);
  EXPECT_EQ(hinted({}, false), expected);
  EXPECT_EQ(ops_.beside, 0);
  EXPECT_EQ(ops_.readers, (std::set<std::string>{"qkv_proj", "fc1", "fc2"}));
  const int layers = static_cast<int>(dit_->config().layers), refiner = 2;
  EXPECT_EQ(ops_.alone, 2 * 3 * layers + refiner);
}

TEST_F(Feeds, AProbeSeesTheValues) {
  const std::vector<float> expected = evaluate({}, true);
  EXPECT_EQ(hinted({}, true), expected);
  EXPECT_EQ(ops_.alone, 0);
  EXPECT_GT(ops_.beside, 0);
}

TEST_F(Feeds, AdaptersReadTheRowsToo) {
  testing::AdapterShape shape;
  shape.config = testing::config_of(testing::ToySize());
  const lora::Adapter adapter(lora::adapter_of(adapter_source(shape, testing::AdapterSpelling::comfy), "a.safetensors"),
                              lora::TargetTable(shape.config), {});
  const std::vector<AdapterUse> uses = {{dit_->load_adapter(adapter, control_), 0.5f}};
  const std::vector<float> expected = evaluate(uses, false);
  EXPECT_EQ(hinted(uses, false), expected);
  EXPECT_GT(ops_.beside, 0);
  for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
}

}  // namespace
}  // namespace h3
