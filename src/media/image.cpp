// Reading and writing of still pictures: what does not need FFmpeg, and the choice of who does the rest.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "media/codecs.h"
#include "media/files.h"

namespace h3 {
namespace {

constexpr int64_t kMaxImageBytes = int64_t{1} << 29;

// Pillow's rule for maxima other than 255: round(255 v / max).
Image read_ppm(std::span<const uint8_t> bytes, const std::string& path) {
  const PnmHeader header = parse_pnm(bytes, path);
  Image image{
      .width = static_cast<int>(header.width), .height = static_cast<int>(header.height), .rgb = {}, .warnings = {}};
  image.rgb.resize(static_cast<size_t>(image.width) * image.height * 3);
  const uint8_t* next = bytes.data() + header.data;
  const size_t pixels = image.rgb.size() / 3;
  for (size_t i = 0; i < pixels; ++i) {
    for (int c = 0; c < 3; ++c) {
      if (c >= header.channels) {
        image.rgb[3 * i + c] = image.rgb[3 * i];
        continue;
      }
      int64_t value = *next++;
      if (header.max > 255) value = value << 8 | *next++;
      value = std::min(value, header.max);
      image.rgb[3 * i + c] = static_cast<uint8_t>((value * 255 * 2 + header.max) / (header.max * 2));
    }
  }
  if (header.max > 255) image.warnings.push_back(path + ": 16-bit samples reduced to 8");
  return image;
}

}  // namespace

#if !H3_HAVE_FFMPEG
namespace {

void put_be32(std::vector<uint8_t>& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<uint8_t>(value >> shift));
}

void put_chunk(std::vector<uint8_t>& out, const char* type, const std::vector<uint8_t>& data) {
  put_be32(out, static_cast<uint32_t>(data.size()));
  const size_t start = out.size();
  out.insert(out.end(), type, type + 4);
  out.insert(out.end(), data.begin(), data.end());
  put_be32(out, crc32_update(0, out.data() + start, out.size() - start));
}

}  // namespace

Image decode_image(std::span<const uint8_t>, const ImageHeader&, const std::string& path) {
  fail(Code::data, "cannot read %s: this build has no FFmpeg and reads PPM only; convert it or build with H3_FFMPEG=ON",
       path.c_str());
}

// Valid but uncompressed: deflate blocks of the stored kind (RFC 1951, 3.2.4) in a zlib stream.
std::vector<uint8_t> encode_png(const Image& image) {
  const size_t row = static_cast<size_t>(image.width) * 3;
  std::vector<uint8_t> raw;
  raw.reserve((row + 1) * image.height);
  for (int y = 0; y < image.height; ++y) {
    raw.push_back(0);  // no filter
    raw.insert(raw.end(), image.rgb.begin() + y * row, image.rgb.begin() + (y + 1) * row);
  }
  std::vector<uint8_t> stream = {0x78, 0x01};
  for (size_t at = 0; at < raw.size(); at += 65535) {
    const size_t length = std::min<size_t>(65535, raw.size() - at);
    stream.push_back(at + length == raw.size() ? 1 : 0);
    for (const size_t field : {length, ~length}) {
      stream.push_back(static_cast<uint8_t>(field));
      stream.push_back(static_cast<uint8_t>(field >> 8));
    }
    stream.insert(stream.end(), raw.begin() + at, raw.begin() + at + length);
  }
  uint32_t a = 1, b = 0;  // Adler-32
  for (const uint8_t byte : raw) {
    a = (a + byte) % 65521;
    b = (b + a) % 65521;
  }
  put_be32(stream, b << 16 | a);
  std::vector<uint8_t> out = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header;
  put_be32(header, static_cast<uint32_t>(image.width));
  put_be32(header, static_cast<uint32_t>(image.height));
  for (const uint8_t byte : {8, 2, 0, 0, 0}) header.push_back(byte);  // 8 bits, RGB
  put_chunk(out, "IHDR", header);
  put_chunk(out, "IDAT", stream);
  put_chunk(out, "IEND", {});
  return out;
}
#endif

namespace {

Image decode_padded(const std::vector<uint8_t>& padded, const std::string& path) {
  const std::span<const uint8_t> bytes(padded.data(), padded.size() - kPadding);
  const ImageHeader header = probe_image(bytes, path);
  if (header.kind == ImageKind::ppm) return read_ppm(bytes, path);
  Image image = decode_image(bytes, header, path);
  image.rgb = apply_orientation(std::move(image.rgb), &image.width, &image.height, header.orientation);
  return image;
}

}  // namespace

std::vector<uint8_t> encode_ppm(const Image& image) {
  const std::string header = strf("P6\n%d %d\n255\n", image.width, image.height);
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), image.rgb.begin(), image.rgb.end());
  return bytes;
}

Image read_image(const std::string& path) { return decode_padded(read_bytes(path, kMaxImageBytes, kPadding), path); }

Image read_image(std::span<const std::byte> file, const std::string& name) {
  if (file.size() > static_cast<size_t>(kMaxImageBytes)) {
    fail(Code::data, "%s: %zu bytes are too many for a picture", name.c_str(), file.size());
  }
  std::vector<uint8_t> padded(file.size() + kPadding);
  if (!file.empty()) std::memcpy(padded.data(), file.data(), file.size());
  return decode_padded(padded, name);
}

void write_png(const std::string& path, const Image& image) {
  const std::vector<uint8_t> bytes = extension_of(path) == ".ppm" ? encode_ppm(image) : encode_png(image);
  StagedFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace h3
