#include "pipeline/checks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/nearest.h"
#include "model/vae/video_plan.h"
#include "pipeline/request.h"

namespace h3 {

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

const std::string& one_of(const char* field, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    fail(Code::usage, "%s: \"%s\" is not known, give %s%s", field, value.c_str(), listed(allowed).c_str(),
         suggestion(value, allowed).c_str());
  }
  return value;
}

void in_range(const char* field, int64_t value, int64_t low, int64_t high, const char* example) {
  if (value >= low && value <= high) return;
  fail(Code::usage, "%s: %lld is not allowed, give %lld to %lld, for example %s", field, static_cast<long long>(value),
       static_cast<long long>(low), static_cast<long long>(high), example);
}

std::string size_text(int width, int height) { return strf("%dx%d", width, height); }

// "16:9", "16/9", "1.78"; the ratio must lie in 1:4 .. 4:1 (spec dit 4).
double parse_aspect(const std::string& text) {
  const size_t split = text.find_first_of(":/x");
  char* end = nullptr;
  double ratio = std::strtod(text.c_str(), &end);
  bool ok = end != text.c_str();
  if (split != std::string::npos) {
    ok = ok && end == text.c_str() + split;
    const char* second = text.c_str() + split + 1;
    const double denominator = std::strtod(second, &end);
    ok = ok && end != second && denominator > 0;
    ratio = ok ? ratio / denominator : 0;
  }
  if (!ok || *end != '\0' || !std::isfinite(ratio) || ratio <= 0) {
    fail(Code::usage, "aspect: \"%s\" is not a ratio, give WIDTH:HEIGHT, for example 16:9", text.c_str());
  }
  if (ratio < 0.25 || ratio > 4) {
    fail(Code::usage, "aspect: \"%s\" is not allowed, give 1:4 to 4:1, for example 16:9", text.c_str());
  }
  return ratio;
}

int snap_side(int side) {
  const int snapped = (side + kSideStep / 2) / kSideStep * kSideStep;
  return std::clamp(snapped, kMinSide, kMaxSide);
}

// The folder of `path` must exist and be writable, so that a run cannot fail on its first write.
void check_folder_of(const char* field, const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    fail(Code::io, "%s: the folder of %s does not exist, create it or choose another path", field, path.c_str());
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    fail(Code::io, "%s: cannot write into %s: %s", field, folder.c_str(), std::strerror(errno));
  }
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    fail(Code::usage, "%s: %s is a folder, give a file name", field, path.c_str());
  }
}

uint64_t draw_seed() {
  std::random_device device;
  // 53 bits: the drawn seed survives every JSON reader that keeps numbers in doubles.
  return (static_cast<uint64_t>(device()) << 32 | device()) & ((uint64_t{1} << 53) - 1);
}

namespace {

// The longest edge with one tile less, where it is at most an eighth shorter; else the edge itself.
int on_tile_grid(int edge) {
  const VideoTiling tiling;
  const int count = tile_axis(edge, tiling.tile, tiling.overlap).count();
  const int shorter = tiling.tile + (count - 2) * (tiling.tile - tiling.overlap);
  return count > 1 && 8 * (edge - shorter) <= edge ? shorter : edge;
}

int tile_count(int width, int height) { return tile_axis(width).count() * tile_axis(height).count(); }

}  // namespace

std::string tile_hint(int width, int height) {
  const int better_width = on_tile_grid(width), better_height = on_tile_grid(height);
  const int now = tile_count(width, height), then = tile_count(better_width, better_height);
  if (3 * then > 2 * now) return "";
  return strf("size: %s is decoded in %d tiles, %s would take %d", size_text(width, height).c_str(), now,
              size_text(better_width, better_height).c_str(), then);
}

}  // namespace h3
