// Geometry and the packed sequence: hashes of whole layouts, full layouts, row times, canvas and frame arithmetic.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "apps/parity/suite.h"
#include "base/error.h"
#include "model/dit/layout.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

// Rows of a table whose columns are named.
class Table {
 public:
  explicit Table(const Json& json) : json_(json) {
    for (const Json& column : json.at("columns").items()) columns_.push_back(column.as_string());
  }
  const std::vector<Json>& rows() const { return json_.at("rows").items(); }
  const Json& cell(const Json& row, const std::string& column) const {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i] == column) return row.at(i);
    }
    fail(Code::data, "a golden table has no column %s", column.c_str());
  }
  int64_t integer(const Json& row, const std::string& column) const { return cell(row, column).as_int(); }
  bool has(const std::string& column) const {
    return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
  }

 private:
  const Json& json_;
  std::vector<std::string> columns_;
};

// "0 where index % 7 in (2,3,4)", the rule of the golden's text tags.
std::vector<int32_t> text_tags(int64_t rows, bool vision) {
  std::vector<int32_t> tags;
  for (int64_t i = 0; i < rows; ++i) tags.push_back(vision && i % 7 >= 2 && i % 7 <= 4 ? 0 : 1);
  return tags;
}

LayoutSpec target_of(const Table& table, const Json& row, bool vision) {
  LayoutSpec spec;
  const int frames = static_cast<int>(table.integer(row, "frames"));
  spec.text_tags = text_tags(table.integer(row, "text_len"), vision);
  spec.latent_frames = latent_frames(frames);
  spec.latent_height = static_cast<int>(table.integer(row, "height")) / kLatentPixels;
  spec.latent_width = static_cast<int>(table.integer(row, "width")) / kLatentPixels;
  spec.audio_latents = audio_latents(frames);
  return spec;
}

void add_anchors(LayoutSpec& spec, const std::string& anchors) {
  using Kind = LayoutBlock::Kind;
  const auto add = [&](Kind kind) { spec.blocks.push_back({kind, 1, spec.latent_height, spec.latent_width, 0}); };
  if (anchors == "first" || anchors == "both") add(Kind::first_frame);
  if (anchors == "last" || anchors == "both") add(Kind::last_frame);
}

void add_references(LayoutSpec& spec, const Json& references) {
  using Kind = LayoutBlock::Kind;
  for (const Json& reference : references.items()) {
    const std::string& kind = reference.at(size_t{0}).as_string();
    LayoutBlock block;
    block.kind = kind == "image" ? Kind::image : kind == "audio" ? Kind::audio : Kind::video;
    block.latent_frames = static_cast<int>(reference.at(1).as_int());
    block.latent_height = static_cast<int>(reference.at(2).as_int());
    block.latent_width = static_cast<int>(reference.at(3).as_int());
    block.audio_latents = static_cast<int>(reference.at(4).as_int());
    spec.blocks.push_back(block);
  }
}

std::vector<float> narrow(const std::vector<double>& values) { return {values.begin(), values.end()}; }
std::vector<int64_t> widen(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }

template <typename T>
std::string hash_of(const std::vector<T>& values) {
  return hex64(poly64(values.data(), static_cast<int64_t>(values.size()), sizeof(T)));
}

// Empty when everything equals, else what differs.
std::string compare_layout(const Table& table, const Json& row, const PackedLayout& layout) {
  const auto differs = [&](const char* column, int64_t value) { return table.integer(row, column) != value; };
  if (differs("latent_frames", layout.spec.latent_frames)) return "latent frames";
  if (differs("audio_latents", layout.spec.audio_latents)) return "audio latents";
  if (differs("seq_len", layout.rows)) return "sequence length";
  if (differs("num_condition_video_rows", layout.condition_video_rows)) return "condition video rows";
  if (differs("num_condition_audio_rows", layout.condition_audio_rows)) return "condition audio rows";
  const struct {
    const char* column;
    std::string hash;
  } hashes[] = {
      {"position_ids_f64_poly64", hash_of(layout.position)},
      {"position_ids_f32_poly64", hash_of(narrow(layout.position))},
      {"token_tags_i64_poly64", hash_of(widen(layout.tags))},
      {"video_indices_i64_poly64", hash_of(layout.video_rows)},
      {"audio_indices_i64_poly64", hash_of(layout.audio_rows)},
  };
  for (const auto& entry : hashes) {
    if (table.cell(row, entry.column).as_string() != entry.hash) return entry.column;
  }
  const uint32_t crc = crc32_of(layout.position.data(), layout.position.size() * sizeof(double));
  return strf("%08x", crc) == table.cell(row, "position_ids_f64_crc32").as_string() ? "" : "position_ids_f64_crc32";
}

std::string text_of(const Table& table, const Json& row, const char* column) {
  const Json& cell = table.cell(row, column);
  return cell.is_string() ? cell.as_string() : cell.dump();
}

void run_layouts(Suite& suite, const std::string& file, const char* conditions) {
  const Json json = suite.json(file);
  const Table table(json);
  int64_t number = 0;
  for (const Json& row : table.rows()) {
    const bool references = std::string(conditions) == "refs";
    const std::string which = text_of(table, row, conditions);
    LayoutSpec spec = target_of(table, row, references || which != "none");
    if (references)
      add_references(spec, table.cell(row, conditions));
    else
      add_anchors(spec, which);
    const std::string why = compare_layout(table, row, build_layout(spec));
    const std::string name =
        strf("%s.%lld_%s_%sx%s_%s", references ? "ref2va" : "layout", static_cast<long long>(number++),
             text_of(table, row, "text_len").c_str(), text_of(table, row, "height").c_str(),
             text_of(table, row, "width").c_str(), text_of(table, row, "frames").c_str());
    suite.exact(references ? name : name + "_" + which, why.empty(), why + " differs");
  }
}

// "fl2va_11_96x64_39_both": task, text rows, height x width, frames, anchors. "ref2va_3": row 3 of the ref2va table.
bool spec_of_name(const std::string& name, const Json& references, LayoutSpec& spec) {
  if (name.starts_with("ref2va_")) {
    const Table table(references);
    const Json& row = table.rows().at(static_cast<size_t>(std::atoi(name.c_str() + 7)));
    spec = target_of(table, row, true);
    add_references(spec, table.cell(row, "refs"));
    return true;
  }
  int text = 0, height = 0, width = 0, frames = 0;
  char task[16], anchors[16] = "none";
  const int read =
      std::sscanf(name.c_str(), "%15[^_]_%d_%dx%d_%d_%15s", task, &text, &height, &width, &frames, anchors);
  if (read < 5) return false;
  spec.text_tags = text_tags(text, std::string(anchors) != "none");
  spec.latent_frames = latent_frames(frames);
  spec.latent_height = height / kLatentPixels;
  spec.latent_width = width / kLatentPixels;
  spec.audio_latents = audio_latents(frames);
  add_anchors(spec, anchors);
  return true;
}

void run_full(Suite& suite) {
  const GoldenFile file = suite.open("packing_full.safetensors");
  const Json references = suite.json("packing_ref2va.json");
  for (const std::string& tensor : file.names()) {
    const size_t dot = tensor.rfind(".position_ids");
    if (dot == std::string::npos) continue;
    const std::string name = tensor.substr(0, dot);
    LayoutSpec spec;
    if (!spec_of_name(name, references, spec)) {
      suite.fail("full." + name, "cannot tell the layout from its name");
      continue;
    }
    const PackedLayout layout = build_layout(spec);
    suite.exact("full." + name + ".position_ids", layout.position == file.f64(name + ".position_ids"));
    suite.exact("full." + name + ".token_tags", widen(layout.tags) == file.i64(name + ".token_tags"));
    suite.exact("full." + name + ".video_indices", layout.video_rows == file.i64(name + ".video_indices"));
    suite.exact("full." + name + ".audio_indices", layout.audio_rows == file.i64(name + ".audio_indices"));
    suite.exact("full." + name + ".text_indices", layout.text_rows == file.i64(name + ".text_indices"));
  }
}

void run_row_times(Suite& suite) {
  const Json json = suite.json("packing_row_timesteps.json");
  const Table table(json);
  for (const Json& row : table.rows()) {
    const std::string anchors = text_of(table, row, "anchors");
    LayoutSpec spec = target_of(table, row, anchors != "none");
    add_anchors(spec, anchors);
    const PackedLayout layout = build_layout(spec);
    const int points = static_cast<int>(table.integer(row, "grid_points"));
    const size_t step = static_cast<size_t>(table.integer(row, "step"));
    const Schedule schedule = make_schedule("linspace", {.evaluations = points - 1});
    const RowTimes times = row_times(layout, schedule.video.time.at(step), schedule.audio.time.at(step));
    const Json& want = table.cell(row, "unique_timesteps_f32_bits_hex");
    std::string got;
    for (float time : times.times) got += strf("%08x ", std::bit_cast<uint32_t>(time));
    std::string wanted;
    for (const Json& bits : want.items()) wanted += bits.as_string() + " ";
    const bool same_hash = hash_of(widen(times.index)) == table.cell(row, "timestep_indices_i64_poly64").as_string();
    suite.exact(
        strf("row_times.%s_%s_N%d_step%zu", text_of(table, row, "text_len").c_str(), anchors.c_str(), points, step),
        got == wanted && same_hash, got == wanted ? "indices differ" : "times " + got);
  }
}

void run_arithmetic(Suite& suite) {
  const Json json = suite.json("packing_arithmetic.json");
  for (const Json& row : json.at("canvas").at("rows").items()) {
    const Canvas canvas = canvas_for_aspect(row.at(size_t{0}).as_double(), row.at(1).as_double(),
                                            static_cast<int>(row.at(2).as_int()), row.at(3).as_int());
    suite.exact("canvas." + row.dump(),
                canvas.height == row.at(4).at(size_t{0}).as_int() && canvas.width == row.at(4).at(1).as_int(),
                strf("%dx%d", canvas.width, canvas.height));
  }
  bool aligned = true, latents = true, sounds = true;
  for (const Json& row : json.at("align_num_frames").items()) {
    aligned = aligned && align_frames(static_cast<int>(row.at(size_t{0}).as_int())) == row.at(1).as_int();
  }
  for (const Json& row : json.at("latents_of_frames").items()) {
    const int frames = static_cast<int>(row.at(size_t{0}).as_int());
    latents = latents && latent_frames(frames) == row.at(1).as_int() && audio_latents(frames) == row.at(2).as_int();
  }
  for (const Json& row : json.at("audio_latents_of_frames").items()) {
    sounds = sounds && audio_latents(static_cast<int>(row.at(size_t{0}).as_int())) == row.at(1).as_int();
  }
  suite.exact("align_num_frames", aligned);
  suite.exact("latents_of_frames", latents);
  suite.exact("audio_latents_of_frames", sounds);
}

// The other half of the file, which frames the conditioner reads, belongs to its stage.
void run_references(Suite& suite) {
  const Json json = suite.json("packing_references.json");
  const std::vector<Json>& rows = json.at("fps_resample").at("rows").items();
  size_t most = 0;  // the target length that the table was made for, when any row reaches it
  for (const Json& row : rows) most = std::max(most, row.at(2).size());
  for (const Json& row : rows) {
    const std::vector<int> got =
        resample_frames(row.at(size_t{0}).as_double(), static_cast<int>(row.at(1).as_int()), static_cast<int>(most));
    bool equal = got.size() == row.at(2).size();
    for (size_t i = 0; equal && i < got.size(); ++i) equal = got[i] == row.at(2).at(i).as_int();
    suite.exact("fps_resample." + row.at(size_t{0}).dump() + "." + row.at(1).dump(), equal);
  }
}

}  // namespace

void run_packing(Suite& suite) {
  if (suite.exists("packing_arithmetic.json")) run_arithmetic(suite);
  if (suite.exists("packing_layouts.json")) run_layouts(suite, "packing_layouts.json", "anchors");
  if (suite.exists("packing_ref2va.json")) run_layouts(suite, "packing_ref2va.json", "refs");
  if (suite.exists("packing_full.safetensors")) run_full(suite);
  if (suite.exists("packing_references.json")) run_references(suite);
  if (suite.exists("packing_row_timesteps.json")) run_row_times(suite);
}

}  // namespace h3
