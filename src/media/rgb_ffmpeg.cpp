#if H3_HAVE_FFMPEG

#include <cstring>

#include "media/ffmpeg.h"
#include "media/yuv.h"

namespace h3 {
namespace {

// libswscale takes the full range as a flag; the J formats carry it in their name.
AVPixelFormat without_range(AVPixelFormat format, bool* full) {
  switch (format) {
    case AV_PIX_FMT_YUVJ420P: *full = true; return AV_PIX_FMT_YUV420P;
    case AV_PIX_FMT_YUVJ422P: *full = true; return AV_PIX_FMT_YUV422P;
    case AV_PIX_FMT_YUVJ444P: *full = true; return AV_PIX_FMT_YUV444P;
    case AV_PIX_FMT_YUVJ440P: *full = true; return AV_PIX_FMT_YUV440P;
    case AV_PIX_FMT_YUVJ411P: *full = true; return AV_PIX_FMT_YUV411P;
    default: return format;
  }
}

// Untagged pictures follow the usual guess: BT.709 from 720 lines up, BT.601 below; JPEG and WebP are always BT.601.
int matrix_of(const AVFrame& frame, bool still) {
  const bool tagged = frame.colorspace != AVCOL_SPC_UNSPECIFIED && frame.colorspace != AVCOL_SPC_RESERVED;
  if (tagged && !still) return frame.colorspace;
  return !still && frame.height >= 720 ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
}

// The luma weights of a matrix that yuv_to_rgb knows.
bool luma_weights(int matrix, YuvColour& colour) {
  switch (matrix) {
    case AVCOL_SPC_BT709: colour.kr = 0.2126, colour.kb = 0.0722; return true;
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M: colour.kr = 0.299, colour.kb = 0.114; return true;
    case AVCOL_SPC_BT2020_NCL: colour.kr = 0.2627, colour.kb = 0.0593; return true;
    default: return false;
  }
}

bool exact_format(const AVPixFmtDescriptor& format) {
  const uint64_t refused =
      AV_PIX_FMT_FLAG_PAL | AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_BAYER | AV_PIX_FMT_FLAG_FLOAT;
  if ((format.flags & refused) != 0) return false;
  return format.nb_components <= 2 || (format.flags & AV_PIX_FMT_FLAG_RGB) != 0;
}

}  // namespace

void RgbConverter::convert(const AVFrame& frame, int width, int height, uint8_t* rgb, const std::string& path) {
  const AVPixelFormat id = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* format = av_pix_fmt_desc_get(id);
  if (format == nullptr) fail(Code::data, "%s has an unknown pixel format", path.c_str());
  const bool same_size = frame.width == width && frame.height == height;
  if (same_size && id == AV_PIX_FMT_PAL8) return unpack_palette(frame, rgb);
  // Video grey may be limited range, which swscale knows; MONOWHITE is inverted.
  const bool limited_grey = format->nb_components <= 2 && frame.color_range == AVCOL_RANGE_MPEG;
  if (same_size && exact_format(*format) && !limited_grey && id != AV_PIX_FMT_MONOWHITE)
    return unpack(frame, *format, rgb);
  if (same_size && convert_planar(frame, *format, rgb)) return;
  scale(frame, *format, width, height, rgb, path);
}

void RgbConverter::unpack(const AVFrame& frame, const AVPixFmtDescriptor& format, uint8_t* rgb) {
  const int width = frame.width, components = format.nb_components;
  const bool grey = components <= 2;
  const int alpha_at = (format.flags & AV_PIX_FMT_FLAG_ALPHA) != 0 ? components - 1 : -1;
  std::vector<uint16_t> line[4];
  for (std::vector<uint16_t>& samples : line) samples.resize(static_cast<size_t>(width));
  for (int y = 0; y < frame.height; ++y) {
    for (int c = 0; c < components; ++c) {
      const uint8_t* planes[4] = {frame.data[0], frame.data[1], frame.data[2], frame.data[3]};
      av_read_image_line2(line[c].data(), planes, frame.linesize, &format, 0, y, c, width, 0, 2);
      const int depth = format.comp[c].depth;
      if (depth > 8) deep = true;
      for (uint16_t& v : line[c]) {
        v = static_cast<uint16_t>(depth > 8 ? v >> (depth - 8) : depth < 8 ? v * 255 / ((1 << depth) - 1) : v);
      }
    }
    uint8_t* target = rgb + static_cast<size_t>(y) * width * 3;
    for (int x = 0; x < width; ++x) {
      const int alpha = alpha_at >= 0 ? line[alpha_at][x] : 255;
      if (alpha < 255) transparent = true;
      for (int c = 0; c < 3; ++c) target[3 * x + c] = static_cast<uint8_t>((line[grey ? 0 : c][x] * alpha + 127) / 255);
    }
  }
}

void RgbConverter::blend(const uint8_t* rgba, int64_t count, uint8_t* rgb) {
  for (int64_t i = 0; i < count; ++i) {
    const int alpha = rgba[4 * i + 3];
    if (alpha < 255) transparent = true;
    for (int c = 0; c < 3; ++c) rgb[3 * i + c] = static_cast<uint8_t>((rgba[4 * i + c] * alpha + 127) / 255);
  }
}

void RgbConverter::unpack_palette(const AVFrame& frame, uint8_t* rgb) {
  uint8_t table[256 * 4];  // data[1] is [256] native 0xAARRGGBB
  for (int i = 0; i < 256; ++i) {
    uint32_t entry;
    std::memcpy(&entry, frame.data[1] + 4 * i, 4);
    for (int c = 0; c < 4; ++c) table[4 * i + c] = static_cast<uint8_t>(entry >> (c == 3 ? 24 : 16 - 8 * c));
  }
  rgba_.resize(static_cast<size_t>(frame.width) * 4);
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* row = frame.data[0] + static_cast<ptrdiff_t>(y) * frame.linesize[0];
    for (int x = 0; x < frame.width; ++x) std::memcpy(rgba_.data() + 4 * x, table + 4 * row[x], 4);
    blend(rgba_.data(), frame.width, rgb + static_cast<size_t>(y) * frame.width * 3);
  }
}

bool RgbConverter::convert_planar(const AVFrame& frame, const AVPixFmtDescriptor& format, uint8_t* rgb) {
  const uint64_t refused = AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_HWACCEL | AV_PIX_FMT_FLAG_BITSTREAM;
  const bool alpha = (format.flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
  if ((format.flags & AV_PIX_FMT_FLAG_PLANAR) == 0 || (format.flags & refused) != 0) return false;
  const int most = kind == Kind::jpeg ? 2 : 1;
  if (format.nb_components != (alpha ? 4 : 3) || format.log2_chroma_w > most || format.log2_chroma_h > most)
    return false;
  YuvPicture picture{.width = frame.width, .height = frame.height};
  picture.shift_x = format.log2_chroma_w;
  picture.shift_y = format.log2_chroma_h;
  for (int c = 0; c < format.nb_components; ++c) {
    if (format.comp[c].depth != 8 || format.comp[c].step != 1 || format.comp[c].plane != c) return false;
  }
  for (int c = 0; c < 3; ++c) {
    picture.plane[c] = frame.data[c];
    picture.stride[c] = frame.linesize[c];
  }
  YuvColour colour;
  colour.full = frame.color_range == AVCOL_RANGE_JPEG;
  without_range(static_cast<AVPixelFormat>(frame.format), &colour.full);
  if (!luma_weights(matrix_of(frame, kind != Kind::video), colour)) return false;
  if (kind == Kind::jpeg) {
    jfif_to_rgb(picture, rgb);
  } else {
    colour.centred_x = kind == Kind::webp || frame.chroma_location == AVCHROMA_LOC_CENTER;
    colour.centred_y = frame.chroma_location != AVCHROMA_LOC_TOPLEFT;
    yuv_to_rgb(picture, colour, rgb);
  }
  for (int y = 0; alpha && y < frame.height; ++y) {
    const uint8_t* row = frame.data[3] + static_cast<ptrdiff_t>(y) * frame.linesize[3];
    uint8_t* target = rgb + static_cast<size_t>(y) * frame.width * 3;
    for (int x = 0; x < frame.width; ++x) {
      if (row[x] < 255) transparent = true;
      for (int c = 0; c < 3; ++c) target[3 * x + c] = static_cast<uint8_t>((target[3 * x + c] * row[x] + 127) / 255);
    }
  }
  return true;
}

void RgbConverter::scale(const AVFrame& frame, const AVPixFmtDescriptor& format, int width, int height, uint8_t* rgb,
                         const std::string& path) {
  bool full = frame.color_range == AVCOL_RANGE_JPEG || (format.flags & AV_PIX_FMT_FLAG_RGB) != 0;
  const AVPixelFormat source = without_range(static_cast<AVPixelFormat>(frame.format), &full);
  const bool alpha = (format.flags & AV_PIX_FMT_FLAG_ALPHA) != 0 || frame.format == AV_PIX_FMT_PAL8;
  if (format.comp[0].depth > 8) deep = true;
  const int matrix = matrix_of(frame, kind != Kind::video);
  const int key[8] = {frame.width, frame.height, source, width, height, alpha, matrix, full};
  if (!sws_ || std::memcmp(key, key_, sizeof(key)) != 0) {
    sws_.reset(sws_alloc_context());
    if (!sws_) fail(Code::memory, "cannot convert %s: out of memory", path.c_str());
    const bool subsampled = format.log2_chroma_w != 0 || format.log2_chroma_h != 0;
    const bool centred = kind != Kind::video || frame.chroma_location == AVCHROMA_LOC_CENTER;
    av_opt_set_int(sws_.get(), "srcw", frame.width, 0);
    av_opt_set_int(sws_.get(), "srch", frame.height, 0);
    av_opt_set_int(sws_.get(), "src_format", source, 0);
    av_opt_set_int(sws_.get(), "dstw", width, 0);
    av_opt_set_int(sws_.get(), "dsth", height, 0);
    av_opt_set_int(sws_.get(), "dst_format", alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24, 0);
    av_opt_set_int(sws_.get(), "sws_flags", SWS_BICUBIC | SWS_FULL_CHR_H_INT | SWS_ACCURATE_RND | SWS_BITEXACT, 0);
    if (subsampled) {
      av_opt_set_int(sws_.get(), "src_h_chr_pos", centred ? 128 : 0, 0);
      av_opt_set_int(sws_.get(), "src_v_chr_pos", 128, 0);
    }
    const LogCapture log;
    const int result = sws_init_context(sws_.get(), nullptr, nullptr);
    if (result < 0) fail(Code::data, "cannot convert %s to RGB: %s", path.c_str(), log.reason(result).c_str());
    // After the context is made, which sets its own.
    const int* coefficients = sws_getCoefficients(matrix);
    sws_setColorspaceDetails(sws_.get(), coefficients, full, sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16,
                             1 << 16);
    std::memcpy(key_, key, sizeof(key));
  }
  // swscale writes whole vectors: rows get room behind them.
  const int stride = (width * (alpha ? 4 : 3) + 63) / 64 * 64;
  rgba_.resize(static_cast<size_t>(stride) * height + 64);
  uint8_t* planes[4] = {rgba_.data()};
  const int strides[4] = {stride};
  sws_scale(sws_.get(), frame.data, frame.linesize, 0, frame.height, planes, strides);
  for (int y = 0; y < height; ++y) {
    const uint8_t* row = rgba_.data() + static_cast<size_t>(y) * stride;
    uint8_t* target = rgb + static_cast<size_t>(y) * width * 3;
    if (alpha) {
      blend(row, width, target);
    } else {
      std::memcpy(target, row, static_cast<size_t>(width) * 3);
    }
  }
}

}  // namespace h3

#endif
