// Pixels of the conditioner: resize rules, resampling and patches, to the byte; frames and labels of reference videos.
#include <algorithm>

#include "apps/parity/suite.h"
#include "apps/parity/synthetic.h"
#include "base/error.h"
#include "model/text/pixels.h"
#include "model/text/presentation.h"

namespace h3 {
namespace {

// [value, ...] rows of a table as integers.
std::vector<int64_t> integers(const Json& list) {
  std::vector<int64_t> out;
  for (const Json& item : list.items()) out.push_back(item.as_int());
  return out;
}

bool hash_matches(const Json& golden, const void* data, int64_t elements, int bytes) {
  return golden.at("poly64").as_string() == hex64(poly64(data, elements, bytes)) &&
         golden.at("crc32").as_string() == strf("%08x", crc32_of(data, static_cast<size_t>(elements * bytes)));
}

std::vector<float> pixel_values(const VisionInput& input) {
  std::vector<float> out(input.patches.size());
  std::transform(input.patches.begin(), input.patches.end(), out.begin(), pixel_value);
  return out;
}

bool grid_matches(const VisionInput& input, const Json& grid) {
  return integers(grid) == std::vector<int64_t>{input.grid_t, input.grid_h, input.grid_w};
}

bool row_matches(const GoldenFile& file, const std::string& name, const std::vector<float>& values, int64_t row,
                 int64_t golden_row) {
  const std::vector<float> want = file.f32(name);
  const auto begin = want.begin() + golden_row * kPatchRow;
  return std::equal(begin, begin + kPatchRow, values.begin() + row * kPatchRow);
}

// The corner or whole-image tensors of a case, whichever the file has.
void check_picture_tensors(Suite& suite, const GoldenFile& file, const std::string& name, const Picture& picture) {
  for (const char* part : {"resized_u8", "resized_u8_top_left_32x32", "resized_u8_bottom_right_32x32"}) {
    const std::string key = "qwen." + name + "." + part;
    if (!file.has(key)) continue;
    const std::vector<int64_t> want = file.i64(key);
    const int height = static_cast<int>(file.info(key).dims[0]), width = static_cast<int>(file.info(key).dims[1]);
    const bool bottom = std::string(part).find("bottom") != std::string::npos;
    const int top = bottom ? picture.height - height : 0, left = bottom ? picture.width - width : 0;
    bool equal = true;
    for (int i = 0; i < height * width * 3; ++i) {
      const int y = i / (width * 3) + top, x = i / 3 % width + left;
      equal = equal && picture.rgb[static_cast<size_t>((y * picture.width + x) * 3 + i % 3)] == want[i];
    }
    suite.exact(name + " " + part, equal);
  }
}

void run_images(Suite& suite, const GoldenFile& file, const Json& table) {
  for (const Json& row : table.at("rows").items()) {
    const std::string kind = row.at(size_t{0}).as_string();
    const int width = static_cast<int>(row.at(1).as_int()), height = static_cast<int>(row.at(2).as_int());
    const int seed = static_cast<int>(row.at(3).as_int());
    const std::string name = strf("%s_%dx%d_seed%d", kind.c_str(), width, height, seed);
    const Picture source{width, height, made_image(kind, width, height, seed)};
    const Picture resized = resize_bicubic(source, smart_resize_image({height, width}));
    const VisionInput input = prepare_image(source);
    const std::vector<float> values = pixel_values(input);
    suite.exact(name + " grid", grid_matches(input, row.at(4)));
    suite.exact(name + " resized u8",
                hash_matches(row.at(6), resized.rgb.data(), static_cast<int64_t>(resized.rgb.size()), 1));
    suite.exact(name + " pixel values", hash_matches(row.at(5), values.data(), static_cast<int64_t>(values.size()), 4));
    const std::string patch = "qwen." + name + ".pixel_values_row_1";
    if (file.has(patch)) suite.exact(name + " patch row", row_matches(file, patch, values, 1, 0));
    check_picture_tensors(suite, file, name, resized);
  }
}

void run_videos(Suite& suite, const GoldenFile& file, const Json& table) {
  for (const Json& row : table.at("rows").items()) {
    const int frames = static_cast<int>(row.at(size_t{0}).as_int());
    const int width = static_cast<int>(row.at(1).as_int()), height = static_cast<int>(row.at(2).as_int());
    const std::string name = strf("video %dx%dx%d", frames, width, height);
    std::vector<Picture> clip;
    for (int t = 0; t < frames; ++t) clip.push_back({width, height, smooth_image(width, height, t)});
    const VisionInput input = prepare_video(clip);
    const std::vector<float> values = pixel_values(input);
    suite.exact(name + " grid", grid_matches(input, row.at(3)));
    suite.exact(name + " pixel values", hash_matches(row.at(4), values.data(), static_cast<int64_t>(values.size()), 4));
    const std::string patch = strf("qwen_video.%dx%dx%d.pixel_values_rows_1_last", frames, width, height);
    if (file.has(patch)) {
      suite.exact(name + " patch rows",
                  row_matches(file, patch, values, 1, 0) && row_matches(file, patch, values, input.rows() - 1, 1));
    }
  }
}

// Rows of [.., [h, w]] or [.., "error"].
template <typename Resize>
void run_sizes(Suite& suite, const std::string& name, const Json& table, const Resize& resize) {
  const PixelBounds bounds{table.at("min_pixels").as_int(), table.at("max_pixels").as_int()};
  int64_t rows = 0;
  std::string wrong;
  for (const Json& row : table.at("rows").items()) {
    const Json& want = row.at(row.size() - 1);
    bool equal = false;
    try {
      const FrameSize got = resize(row, bounds);
      equal = want.is_array() && integers(want) == std::vector<int64_t>{got.height, got.width};
    } catch (const Error& error) {
      equal = want.is_string() && error.code() == Code::usage;
    }
    if (!equal && wrong.empty()) wrong = row.dump();
    ++rows;
  }
  suite.exact(strf("%s (%lld sizes)", name.c_str(), static_cast<long long>(rows)), rows > 0 && wrong.empty(), wrong);
}

void run_labels(Suite& suite, const Json& table) {
  for (const Json& row : table.at("rows").items()) {
    const int64_t frames = row.at(size_t{0}).as_int();
    const std::vector<int64_t> picked = conditioner_frames(frames);
    std::vector<std::string> labels;
    for (const Json& label : row.at(3).items()) labels.push_back(label.as_string());
    suite.exact(strf("frames and labels of %lld frames", static_cast<long long>(frames)),
                picked == integers(row.at(1)) && labels == block_labels(static_cast<int64_t>(picked.size())));
  }
}

}  // namespace

void run_image_qwen(Suite& suite) {
  if (suite.exists("image.json")) {
    const Json golden = suite.json("image.json");
    const GoldenFile file = suite.open("image.safetensors");
    run_images(suite, file, golden.at("qwen_images"));
    run_videos(suite, file, golden.at("qwen_videos_smooth_seed_is_frame_index"));
    run_sizes(suite, "smart resize, images", golden.at("smart_resize_image"), [](const Json& row, PixelBounds bounds) {
      return smart_resize_image({row.at(size_t{0}).as_int(), row.at(1).as_int()}, bounds);
    });
    run_sizes(suite, "smart resize, videos", golden.at("smart_resize_video"), [](const Json& row, PixelBounds bounds) {
      return smart_resize_video(row.at(size_t{0}).as_int(), {row.at(1).as_int(), row.at(2).as_int()}, bounds);
    });
  }
  if (suite.exists("packing_references.json")) {
    run_labels(suite, suite.json("packing_references.json").at("conditioner_frames"));
  }
}

}  // namespace h3
