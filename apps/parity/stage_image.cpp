// Keyframes and reference pictures: Pillow's Lanczos to the byte (golden/README section 10).
#include <cstdio>

#include "apps/parity/suite.h"
#include "apps/parity/synthetic.h"
#include "media/media.h"
#include "model/dit/layout.h"

namespace h3 {
namespace {

// "<kind>_<w>x<h>_seed<s>_to_<W>x<H>".
struct Resize {
  char kind[16] = {};
  int width = 0, height = 0, seed = 0, to_width = 0, to_height = 0;
};

bool parse(const std::string& text, Resize& out) {
  return std::sscanf(text.c_str(), "%15[a-z]_%dx%d_seed%d_to_%dx%d", out.kind, &out.width, &out.height, &out.seed,
                     &out.to_width, &out.to_height) == 6;
}

Image made(const std::string& kind, int width, int height, int seed) {
  return {.width = width, .height = height, .rgb = made_image(kind, width, height, seed), .warnings = {}};
}

void check_pixels(Suite& suite, const std::string& name, const Image& got, const GoldenFile& file) {
  const TensorInfo& want = file.info(name);
  const std::vector<int64_t> dims = {got.height, got.width, 3};
  if (want.dims != dims) return suite.fail(name, "wrong shape");
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(want.data.data());
  size_t differing = 0;
  for (size_t i = 0; i < got.rgb.size(); ++i) differing += got.rgb[i] != bytes[i];
  suite.exact(name, differing == 0, differing == 0 ? "" : std::to_string(differing) + " samples differ");
}

void check_hash(Suite& suite, const std::string& name, const Image& got, const Json& want) {
  const int64_t count = static_cast<int64_t>(got.rgb.size());
  const Json& shape = want.at("shape");
  const bool same_shape = shape.at(size_t{0}).as_int() == got.height && shape.at(size_t{1}).as_int() == got.width;
  const bool same_hash = hex64(poly64(got.rgb.data(), count, 1)) == want.at("poly64").as_string();
  suite.exact(name, same_shape && same_hash, same_shape ? "hash" : "shape");
}

void run_tensors(Suite& suite, const GoldenFile& file) {
  for (const std::string& name : file.names()) {
    const size_t dot = name.find('.');
    const std::string family = name.substr(0, dot);
    Resize resize;
    if (family == "keyframe") {
      const size_t last = name.rfind('.');
      const std::string fit = name.substr(last + 1);
      if (!parse(name.substr(dot + 1, last - dot - 1), resize) || (fit != "stretch" && fit != "cover")) {
        suite.fail(name, "not a known form of case");
        continue;
      }
      const Image image = made(resize.kind, resize.width, resize.height, resize.seed);
      check_pixels(suite, name,
                   fit_to_canvas(image, resize.to_width, resize.to_height, fit == "cover" ? Fit::cover : Fit::stretch),
                   file);
    } else if (family == "reference_image") {
      if (!parse(name.substr(dot + 1), resize)) {
        suite.fail(name, "not a known form of case");
        continue;
      }
      const Image image = made(resize.kind, resize.width, resize.height, resize.seed);
      check_pixels(suite, name, resize_lanczos(image, resize.to_width, resize.to_height), file);
    }
  }
}

// "large_keyframes_<kind>_seed<s>": w, h, H, W, and the hashes of both ways.
void run_large(Suite& suite, const std::string& key, const Json& table) {
  char kind[16] = {};
  int seed = 0;
  if (std::sscanf(key.c_str(), "large_keyframes_%15[a-z]_seed%d", kind, &seed) != 2)
    return suite.fail(key, "unknown form");
  for (const Json& row : table.at("rows").items()) {
    const int w = static_cast<int>(row.at(size_t{0}).as_int()), h = static_cast<int>(row.at(size_t{1}).as_int());
    const int to_h = static_cast<int>(row.at(size_t{2}).as_int()), to_w = static_cast<int>(row.at(size_t{3}).as_int());
    const Image image = made(kind, w, h, seed);
    const std::string name = "large." + std::to_string(w) + "x" + std::to_string(h) + "_to_" + std::to_string(to_w) +
                             "x" + std::to_string(to_h);
    check_hash(suite, name + ".stretch", fit_to_canvas(image, to_w, to_h, Fit::stretch), row.at(4));
    check_hash(suite, name + ".cover", fit_to_canvas(image, to_w, to_h, Fit::cover), row.at(5));
  }
}

}  // namespace

void run_image(Suite& suite) {
  if (suite.exists("image.safetensors")) {
    const GoldenFile file = suite.open("image.safetensors");
    run_tensors(suite, file);
  }
  if (!suite.exists("image.json")) return;
  const Json json = suite.json("image.json");
  for (const Json::Member& member : json.members()) {
    if (member.first.rfind("large_keyframes_", 0) == 0) run_large(suite, member.first, member.second);
    int short_edge = 0;
    long long max_pixels = 0;
    if (std::sscanf(member.first.c_str(), "canvas_from_keyframe_short%d_max%lld", &short_edge, &max_pixels) != 2)
      continue;
    for (const Json& row : member.second.items()) {
      const int w = static_cast<int>(row.at(size_t{0}).as_int()), h = static_cast<int>(row.at(size_t{1}).as_int());
      const int to_h = static_cast<int>(row.at(size_t{2}).as_int()),
                to_w = static_cast<int>(row.at(size_t{3}).as_int());
      const std::string name = "canvas." + std::to_string(w) + "x" + std::to_string(h);
      const Canvas canvas = canvas_for_aspect(w, h, short_edge, max_pixels);
      suite.exact(name + ".size", canvas.width == to_w && canvas.height == to_h);
      // These pictures are smooth_image(w, h, 0).
      check_hash(suite, name, fit_to_canvas(made("smooth", w, h, 0), to_w, to_h, Fit::stretch), row.at(4));
    }
  }
}

}  // namespace h3
