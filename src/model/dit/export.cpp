#include "model/dit/export.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace h3::dit {
namespace {

const char* cmf_name(const std::array<const char*, 3>& names) {
  const char* name = names[static_cast<size_t>(Names::cmf)];
  return name == kAsComfy ? names[0] : name;
}

// What a block's matrices and vectors are called, by the tables.
struct BlockSlot {
  const TensorInfo* BlockW::*field;
  MatrixSource BlockSource::*matrix;
  std::vector<float> BlockSource::*values;
  const char* family;
};
constexpr BlockSlot kBlockSlots[] = {
    {&BlockW::norm1, nullptr, &BlockSource::norm1, ""},      {&BlockW::norm2, nullptr, &BlockSource::norm2, ""},
    {&BlockW::q_norm, nullptr, &BlockSource::q_norm, ""},    {&BlockW::k_norm, nullptr, &BlockSource::k_norm, ""},
    {&BlockW::qkv, &BlockSource::qkv, nullptr, ".attn.qkv"}, {&BlockW::out, &BlockSource::out, nullptr, ".attn.out"},
    {&BlockW::fc1, &BlockSource::fc1, nullptr, ".mlp.fc1"},  {&BlockW::fc2, &BlockSource::fc2, nullptr, ".mlp.fc2"},
};

class Exporter {
 public:
  Exporter(std::shared_ptr<const Source> source, const DitExportOptions& options)
      : source_(std::move(source)), options_(options) {}

  Exported run() {
    trunk();
    for (size_t i = 0; i < source_->blocks.size(); ++i) {
      const std::string prefix = "dit.blocks." + std::to_string(i) + ".";
      block(source_->blocks[i], prefix, "dit");
      adaln(static_cast<int64_t>(i), prefix + "adaln.", Keep::half);
    }
    adaln(-1, "dit.final_layer.adaln.", Keep::exact);
    for (size_t i = 0; i < source_->refiner.size(); ++i) {
      block(source_->refiner[i], "dit.token_refiner.blocks." + std::to_string(i) + ".", "dit.refiner");
    }
    out_.configs.emplace_back("dit.config_json", config());
    return std::move(out_);
  }

 private:
  void matrix(const std::string& name, const std::string& family, Keep keep, const MatrixSource& rows) {
    out_.tensors.push_back({name, {rows.rows, rows.cols}, keep, family, [rows] { return rows; }});
  }

  void values(const std::string& name, Keep keep, const std::vector<float>& values) {
    const int64_t n = static_cast<int64_t>(values.size());
    out_.tensors.push_back(export_values(name, "dit", keep, {n}, values));
  }

  bool curves() const { return options_.adaln || !source_->curve.empty() || !source_->final_adaln.table.empty(); }

  void trunk() {
    for (const TrunkSlot& slot : kTrunkSlots) {
      for (const Row<TrunkW>& row : kTrunk) {
        if (row.field != slot.field) continue;
        const std::string name = cmf_name(row.name);
        const bool of_time = row.dims[0] == Dim::time || row.dims[0] == Dim::time_hidden;
        if (name.empty() || (of_time && curves())) continue;
        const std::string full = "dit." + name;
        if (slot.matrix != nullptr) {
          const MatrixSource& rows = (*source_).*slot.matrix;
          const bool quantised = (row.flags & kQuantise) != 0;
          if (rows.rows > 0)
            matrix(full, quantised ? "dit.text" : "dit", quantised ? Keep::quantised : Keep::exact, rows);
        } else {
          // The frequencies are a table, everything else a norm or a bias.
          const std::vector<float>& found = (*source_).*slot.values;
          const Keep keep = row.field == &TrunkW::rope ? Keep::exact : Keep::half;
          if (!found.empty()) values(full, keep, found);
        }
      }
    }
  }

  void block(const BlockSource& block, const std::string& prefix, const std::string& family) {
    for (const BlockSlot& slot : kBlockSlots) {
      for (const Row<BlockW>& row : kBlock) {
        if (row.field != slot.field) continue;
        const std::string name = prefix + cmf_name(row.name);
        if (slot.matrix != nullptr) {
          matrix(name, family + slot.family, Keep::quantised, block.*slot.matrix);
        } else {
          values(name, Keep::half, block.*slot.values);
        }
      }
    }
  }

  // The projection as it is, or the packer's.
  void adaln(int64_t index, const std::string& prefix, Keep keep) {
    const AdalnSource& own = index < 0 ? source_->final_adaln : source_->blocks[static_cast<size_t>(index)].adaln;
    const int64_t rows = own.weight.rows;
    const DitExportOptions& options = options_;
    if (!options.adaln) {
      matrix(prefix + "weight", "dit.adaln", keep, own.weight);
      values(prefix + "bias", Keep::half, own.bias);
      const std::vector<float>& table = own.table.empty() ? source_->curve : own.table;
      if (table.empty()) return;
      const int64_t points = static_cast<int64_t>(table.size()) / own.weight.cols;
      out_.tensors.push_back(
          export_values(prefix + "table", "dit.adaln", Keep::exact, {points, own.weight.cols}, table));
      return;
    }
    const int64_t width = options.adaln_width, points = options.adaln_points;
    const auto make = options.adaln;
    out_.tensors.push_back(
        {prefix + "weight", {rows, width}, keep, "dit.adaln", [make, index] { return make(index).weight; }});
    out_.tensors.push_back({prefix + "bias", {rows}, Keep::half, "dit.adaln", [make, index, rows] {
                              return owned_rows("bias", make(index).bias, rows);
                            }});
    out_.tensors.push_back({prefix + "table", {points, width}, Keep::exact, "dit.adaln", [make, index, points] {
                              return owned_rows("table", make(index).table, points);
                            }});
  }

  Json config() const {
    const DitConfig& c = source_->config;
    const std::vector<float>& table = source_->final_adaln.table;
    const int64_t grid = options_.adaln   ? options_.adaln_points
                         : !table.empty() ? static_cast<int64_t>(table.size()) / source_->final_adaln.weight.cols
                                          : c.curve_points;
    Json json = Json::object();
    if (grid > 0) json.set("adaln_curve_grid", grid);
    json.set("attention_head_dim", c.head_dim).set("audio_latents_dim", c.audio_row);
    json.set("ffn_hidden_size", c.ffn).set("final_norm_eps", decimal_of(c.final_norm_eps));
    json.set("hidden_size", c.hidden).set("latents_dim", c.video_channels());
    json.set("norm_eps", decimal_of(c.norm_eps)).set("num_attention_heads", c.heads).set("num_layers", c.layers);
    json.set("patch_size", Json::array({1, 2, 2})).set("qk_norm_eps", decimal_of(c.qk_norm_eps));
    json.set("sigma_shift_audio", options_.audio_shift).set("sigma_shift_video", options_.video_shift);
    return json.set("text_dim", c.text_dim).set("token_refiner_num_layers", c.refiner_layers);
  }

  std::shared_ptr<const Source> source_;
  const DitExportOptions& options_;
  Exported out_;
};

}  // namespace

Exported export_dit(std::shared_ptr<const Source> source, const DitExportOptions& options) {
  return Exporter(std::move(source), options).run();
}

std::string comfy_name(const std::string& exported) {
  const std::string name = exported.substr(exported.find('.') + 1);  // behind "dit."
  const auto spelled = [](const auto& table, const std::string& own) -> std::optional<std::string> {
    for (const auto& row : table) {
      if (own == cmf_name(row.name)) return row.name[0];
    }
    return std::nullopt;
  };
  const size_t blocks = name.find("blocks.");
  if (blocks == std::string::npos) {
    const std::optional<std::string> found = spelled(kTrunk, name);
    H3_ASSERT(found);
    if (!found->empty()) return *found;
    const auto curve =
        std::find_if(std::begin(kTrunk), std::end(kTrunk), [](const auto& row) { return row.field == &TrunkW::curve; });
    return curve->name[0];
  }
  const size_t start = name.find('.', blocks + 7) + 1;
  const std::string own = name.substr(start);
  std::optional<std::string> found = spelled(kBlock, own);
  if (!found) found = spelled(kAdaln, own);
  H3_ASSERT(found);
  return found->empty() ? "" : name.substr(0, start) + *found;
}

}  // namespace h3::dit
