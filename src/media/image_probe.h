// What a picture file is, from its own structure: kind, size, orientation, and whether it is whole. Decoders conceal
// truncation and allocate before they look, so this runs before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace h3 {

enum class ImageKind : uint8_t { png, jpeg, webp, ppm };

struct ImageHeader {
  ImageKind kind = ImageKind::ppm;
  int64_t width = 0, height = 0;  // as stored, before rotation
  int orientation = 1;            // EXIF 1..8
};

// Error(data) naming the file: not a picture, truncated, damaged, or too large.
ImageHeader probe_image(std::span<const uint8_t> bytes, const std::string& path);

// Orientation of an EXIF block (TIFF header, IFD0 tag 0x0112); 1 when absent or damaged.
int exif_orientation(std::span<const uint8_t> tiff);

// The numbers of a PPM or PGM header. `data` is the offset of the first sample.
struct PnmHeader {
  int64_t width = 0, height = 0, max = 0;
  int channels = 0;
  size_t data = 0;
};
PnmHeader parse_pnm(std::span<const uint8_t> bytes, const std::string& path);

uint32_t crc32_update(uint32_t crc, const void* data, size_t size);  // the CRC of PNG; start with 0

}  // namespace h3
