#include "media/image_probe.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace h3 {
namespace {

using Bytes = std::span<const uint8_t>;

// More than any camera's and far below what a few kilobytes of zeros can claim.
constexpr int64_t kMaxSide = 32768, kMaxPixels = int64_t{1} << 27;

[[noreturn]] void truncated(const std::string& path, const char* what) {
  fail(Code::data, "%s is truncated: %s; copy the file again", path.c_str(), what);
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  fail(Code::data, "%s is damaged: %s", path.c_str(), what.c_str());
}

uint32_t be16(Bytes b, size_t at) { return static_cast<uint32_t>(b[at] << 8 | b[at + 1]); }
uint32_t be32(Bytes b, size_t at) { return be16(b, at) << 16 | be16(b, at + 2); }
uint32_t le16(Bytes b, size_t at) { return static_cast<uint32_t>(b[at] | b[at + 1] << 8); }
uint32_t le32(Bytes b, size_t at) { return le16(b, at) | le16(b, at + 2) << 16; }

bool starts_with(Bytes b, size_t at, const char* text) {
  const size_t n = std::strlen(text);
  return b.size() >= at + n && std::memcmp(b.data() + at, text, n) == 0;
}

void probe_png(Bytes b, const std::string& path, ImageHeader& header) {
  size_t at = 8;
  bool first = true, has_data = false;
  while (true) {
    if (b.size() - at < 12) truncated(path, "the PNG data ends before its IEND chunk");
    const size_t length = be32(b, at);
    if (length > b.size() - at - 12) truncated(path, "a PNG chunk is longer than the rest of the file");
    const std::string type(reinterpret_cast<const char*>(b.data()) + at + 4, 4);
    if (first != (type == "IHDR") || (first && length != 13)) damaged(path, "the PNG header is not where it must be");
    if (crc32_update(0, b.data() + at + 4, length + 4) != be32(b, at + 8 + length)) {
      damaged(path, "the checksum of a PNG chunk does not match");
    }
    if (first) {
      header.width = be32(b, at + 8);
      header.height = be32(b, at + 12);
    }
    if (type == "IDAT") has_data = true;
    if (type == "eXIf") header.orientation = exif_orientation(b.subspan(at + 8, length));
    if (type == "IEND") break;
    first = false;
    at += length + 12;
  }
  if (!has_data) damaged(path, "the PNG has no picture data");
}

// The offset of the marker that ends the entropy-coded data at `at`, or the size of the file.
size_t skip_entropy(Bytes b, size_t at) {
  for (; at + 1 < b.size(); ++at) {
    if (b[at] != 0xff) continue;
    const uint8_t code = b[at + 1];
    if (code != 0x00 && code != 0xff && (code < 0xd0 || code > 0xd7)) return at;
  }
  return b.size();
}

void probe_jpeg(Bytes b, const std::string& path, ImageHeader& header) {
  const char* no_end = "the JPEG data ends before its end marker";
  size_t at = 2;
  bool has_scan = false;
  while (true) {
    if (b.size() - at < 2) truncated(path, no_end);
    if (b[at] != 0xff) damaged(path, "a JPEG marker is not where it must be");
    const uint8_t code = b[at + 1];
    if (code == 0xff) {  // fill byte
      ++at;
      continue;
    }
    at += 2;
    if (code == 0xd9) break;
    if (code == 0x01 || (code >= 0xd0 && code <= 0xd8)) continue;
    if (b.size() - at < 2 || be16(b, at) > b.size() - at) truncated(path, no_end);
    const size_t length = be16(b, at);
    if (length < 2) damaged(path, "a JPEG segment has no length");
    const bool is_frame = code >= 0xc0 && code <= 0xcf && code != 0xc4 && code != 0xc8 && code != 0xcc;
    if (is_frame && length >= 7 && header.width == 0) {
      header.height = be16(b, at + 3);
      header.width = be16(b, at + 5);
    }
    if (code == 0xe1 && length >= 16 && starts_with(b, at + 2, "Exif") && header.orientation == 1) {
      header.orientation = exif_orientation(b.subspan(at + 8, length - 8));
    }
    at += length;
    if (code == 0xda) {
      has_scan = true;
      at = skip_entropy(b, at);
    }
  }
  if (!has_scan || header.width == 0 || header.height == 0) damaged(path, "the JPEG has no picture data");
}

void probe_webp(Bytes b, const std::string& path, ImageHeader& header) {
  const size_t end = size_t{8} + le32(b, 4);
  if (end > b.size()) truncated(path, "the WebP container is longer than the file");
  bool has_data = false;
  for (size_t at = 12; end - at >= 8 && at < end;) {
    const size_t length = le32(b, at + 4), data = at + 8;
    if (length > end - data) truncated(path, "a WebP chunk is longer than the rest of the file");
    if (starts_with(b, at, "ANIM") || starts_with(b, at, "ANMF")) {
      fail(Code::data, "%s is an animated WebP; give a still picture", path.c_str());
    }
    if (starts_with(b, at, "VP8 ") && length >= 10) {
      has_data = true;
      header.width = le16(b, data + 6) & 0x3fff;
      header.height = le16(b, data + 8) & 0x3fff;
    }
    if (starts_with(b, at, "VP8L") && length >= 5) {
      has_data = true;
      const uint32_t bits = le32(b, data + 1);
      header.width = (bits & 0x3fff) + 1;
      header.height = (bits >> 14 & 0x3fff) + 1;
    }
    if (starts_with(b, at, "EXIF")) {
      const bool has_mark = length > 6 && starts_with(b, data, "Exif");
      header.orientation = exif_orientation(b.subspan(data + (has_mark ? 6 : 0), length - (has_mark ? 6 : 0)));
    }
    at = data + length + (length & 1);
    if (at > end) break;
  }
  if (!has_data) damaged(path, "the WebP has no picture data");
}

// "a PDF file", for the message about something that is not a picture.
const char* guess(Bytes b) {
  if (b.empty()) return "it is empty";
  if (starts_with(b, 0, "%PDF")) return "it is a PDF";
  if (starts_with(b, 0, "GIF8")) return "it is a GIF; save one frame as PNG";
  if (starts_with(b, 0, "BM")) return "it looks like a BMP; save it as PNG";
  if (starts_with(b, 0, "II*") || starts_with(b, 0, "MM")) return "it looks like a TIFF; save it as PNG";
  if (starts_with(b, 4, "ftypavif") || starts_with(b, 4, "ftypheic") || starts_with(b, 4, "ftypmif1")) {
    return "it is an AVIF or HEIC picture; save it as PNG or JPEG";
  }
  if (starts_with(b, 4, "ftyp") || starts_with(b, 0, "\x1a\x45\xdf\xa3")) return "it is a video";
  const Bytes head = b.first(std::min<size_t>(b.size(), 256));
  const bool text = std::all_of(head.begin(), head.end(), [](uint8_t c) { return c >= 32 || (c >= 9 && c <= 13); });
  return text ? "it is text" : "its first bytes belong to none of them";
}

}  // namespace

uint32_t crc32_update(uint32_t crc, const void* data, size_t size) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t n = 0; n < 256; ++n) {
      uint32_t c = n;
      for (int k = 0; k < 8; ++k) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      t[n] = c;
    }
    return t;
  }();
  const uint8_t* next = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (size_t i = 0; i < size; ++i) crc = table[(crc ^ next[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}

int exif_orientation(std::span<const uint8_t> b) {
  if (b.size() < 8) return 1;
  const bool big = b[0] == 'M';
  if (!(big ? starts_with(b, 0, "MM") : starts_with(b, 0, "II"))) return 1;
  const auto u16 = [&](size_t at) { return big ? be16(b, at) : le16(b, at); };
  const size_t directory = big ? be32(b, 4) : le32(b, 4);
  if (directory > b.size() - 2) return 1;
  const size_t entries = u16(directory);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + 12 * i;
    if (at + 12 > b.size()) return 1;
    if (u16(at) != 0x0112 || u16(at + 2) != 3) continue;  // Orientation, SHORT
    const int value = static_cast<int>(u16(at + 8));
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

PnmHeader parse_pnm(std::span<const uint8_t> b, const std::string& path) {
  PnmHeader header;
  header.channels = b[1] == '6' ? 3 : 1;
  size_t at = 2;
  const auto is_space = [](uint8_t c) { return c == ' ' || (c >= 9 && c <= 13); };
  const auto number = [&](const char* what) {
    while (at < b.size() && (is_space(b[at]) || b[at] == '#')) {
      if (b[at] == '#') {
        while (at < b.size() && b[at] != '\n') ++at;
      } else {
        ++at;
      }
    }
    int64_t value = 0;
    const size_t start = at;
    for (; at < b.size() && b[at] >= '0' && b[at] <= '9' && value < (int64_t{1} << 40); ++at)
      value = value * 10 + b[at] - '0';
    if (at >= b.size()) truncated(path, "the PPM header is not complete");
    if (at == start) damaged(path, strf("the %s in the PPM header is not a number", what));
    return value;
  };
  header.width = number("width");
  header.height = number("height");
  header.max = number("maximum");
  header.data = at + 1;  // exactly one byte of white space
  if (header.max < 1 || header.max > 65535) {
    damaged(path, strf("the PPM maximum is %lld, 1 to 65535 are allowed", static_cast<long long>(header.max)));
  }
  return header;
}

ImageHeader probe_image(std::span<const uint8_t> b, const std::string& path) {
  ImageHeader header;
  if (starts_with(b, 0, "\x89PNG\r\n\x1a\n")) {
    header.kind = ImageKind::png;
    probe_png(b, path, header);
  } else if (starts_with(b, 0, "\xff\xd8\xff")) {
    header.kind = ImageKind::jpeg;
    probe_jpeg(b, path, header);
  } else if (b.size() >= 12 && starts_with(b, 0, "RIFF") && starts_with(b, 8, "WEBP")) {
    header.kind = ImageKind::webp;
    probe_webp(b, path, header);
  } else if (b.size() > 2 && b[0] == 'P' && (b[1] == '5' || b[1] == '6') && (b[2] <= ' ' || b[2] == '#')) {
    const PnmHeader pnm = parse_pnm(b, path);
    header = {.kind = ImageKind::ppm, .width = pnm.width, .height = pnm.height};
  } else {
    fail(Code::data, "%s is not a picture: PNG, JPEG, WebP and PPM are read, and %s", path.c_str(), guess(b));
  }
  if (header.width < 1 || header.height < 1) damaged(path, "its size is zero");
  if (header.width > kMaxSide || header.height > kMaxSide || header.width * header.height > kMaxPixels) {
    fail(Code::data,
         "%s is %lldx%lld pixels; at most %lld per side and %lld million in all are allowed, so scale it down",
         path.c_str(), static_cast<long long>(header.width), static_cast<long long>(header.height),
         static_cast<long long>(kMaxSide), static_cast<long long>(kMaxPixels / 1000000));
  }
  if (header.kind == ImageKind::ppm) {
    const PnmHeader pnm = parse_pnm(b, path);
    const size_t need = static_cast<size_t>(pnm.width * pnm.height * pnm.channels * (pnm.max > 255 ? 2 : 1));
    if (pnm.data > b.size() || b.size() - pnm.data < need)
      truncated(path, "the PPM has fewer samples than its size says");
  }
  return header;
}

}  // namespace h3
