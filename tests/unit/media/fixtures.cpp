#include "tests/unit/media/fixtures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#if H3_HAVE_FFMPEG
#include "media/ffmpeg.h"
#endif

#if defined(__SANITIZE_THREAD__)
// FFmpeg and its encoders are not instrumented: their atomics are invisible to the sanitizer and look like races.
extern "C" const char* __tsan_default_suppressions() {
  return "race:libavcodec.so\nrace:libavutil.so\nrace:libx264.so\nrace:libvpx.so\n";
}
#endif

namespace h3 {

void write_bytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  const size_t written = bytes.empty() ? 0 : std::fwrite(bytes.data(), 1, bytes.size(), file);
  ASSERT_EQ(written, bytes.size());
  std::fclose(file);
}

std::vector<uint8_t> file_bytes(const std::string& path) {
  std::vector<uint8_t> bytes;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return bytes;
  uint8_t block[4096];
  for (size_t got; (got = std::fread(block, 1, sizeof(block), file)) > 0;)
    bytes.insert(bytes.end(), block, block + got);
  std::fclose(file);
  return bytes;
}

std::vector<float> moving_frames(int first, int count, int width, int height) {
  std::vector<float> out(static_cast<size_t>(3) * count * width * height);
  for (int c = 0; c < 3; ++c) {
    for (int t = 0; t < count; ++t) {
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          const double phase = 0.05 * (x + (c + 1) * y) + 0.2 * (first + t) + c;
          out[((static_cast<size_t>(c) * count + t) * height + y) * width + x] =
              static_cast<float>(0.5 + 0.45 * std::sin(phase));
        }
      }
    }
  }
  return out;
}

std::vector<float> tone(int64_t count, int rate) {
  std::vector<float> out(static_cast<size_t>(count) * 2);
  for (int c = 0; c < 2; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      const double cycles = (c == 0 ? 440.0 : 660.0) * static_cast<double>(i) / rate;
      out[static_cast<size_t>(c * count + i)] = static_cast<float>(0.5 * std::sin(2 * 3.14159265358979 * cycles));
    }
  }
  return out;
}

double psnr(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size() || a.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return 10 * std::log10(255.0 * 255.0 / std::max(sum / static_cast<double>(a.size()), 1e-9));
}

double tone_share(const float* samples, int64_t count, double frequency, int rate) {
  double cosine = 0, sine = 0, power = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double phase = 2 * 3.14159265358979 * frequency * static_cast<double>(i) / rate;
    cosine += samples[i] * std::cos(phase);
    sine += samples[i] * std::sin(phase);
    power += static_cast<double>(samples[i]) * samples[i];
  }
  return power > 0 ? 2 * (cosine * cosine + sine * sine) / (static_cast<double>(count) * power) : 0;
}

#if H3_HAVE_FFMPEG
namespace {

void check(int result) {
  if (result < 0) fail(Code::io, "fixture: %s", av_error(result).c_str());
}

// R = 255 x / (w-1), G = 255 y / (h-1), B = 128, alpha 255 left and 64 right, in 8 or 16 bits per sample.
AvFrame gradient(int width, int height, bool deep) {
  AvFrame frame = new_frame();
  frame->format = deep ? AV_PIX_FMT_RGBA64LE : AV_PIX_FMT_RGBA;
  frame->width = width;
  frame->height = height;
  check(av_frame_get_buffer(frame.get(), 0));
  const int bytes = deep ? 2 : 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const int alpha = x < width / 2 ? 255 : 64;
      const int rgba[4] = {255 * x / std::max(1, width - 1), 255 * y / std::max(1, height - 1), 128, alpha};
      uint8_t* at = frame->data[0] + y * frame->linesize[0] + 4 * bytes * x;
      for (int i = 0; i < 4 * bytes; ++i) at[i] = static_cast<uint8_t>(rgba[i / bytes]);
    }
  }
  return frame;
}

AvFrame converted(const AVFrame& from, AVPixelFormat format) {
  AvFrame to = new_frame();
  to->format = format;
  to->width = from.width;
  to->height = from.height;
  check(av_frame_get_buffer(to.get(), 0));
  const AvSws sws(sws_getContext(from.width, from.height, static_cast<AVPixelFormat>(from.format), from.width,
                                 from.height, format, SWS_BICUBIC | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND, nullptr,
                                 nullptr, nullptr));
  if (!sws) fail(Code::io, "fixture: no conversion to %s", av_get_pix_fmt_name(format));
  sws_scale(sws.get(), from.data, from.linesize, 0, from.height, to->data, to->linesize);
  return to;
}

// A palette of two colours: index 0 opaque red, index 1 a green that is half transparent.
AvFrame two_colours(int width, int height) {
  AvFrame frame = new_frame();
  frame->format = AV_PIX_FMT_PAL8;
  frame->width = width;
  frame->height = height;
  check(av_frame_get_buffer(frame.get(), 0));
  uint32_t* palette = reinterpret_cast<uint32_t*>(frame->data[1]);
  std::fill_n(palette, 256, 0xff000000u);
  palette[0] = 0xffff0000u;
  palette[1] = 0x8000ff00u;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) frame->data[0][y * frame->linesize[0] + x] = static_cast<uint8_t>(x >= width / 2);
  }
  return frame;
}

}  // namespace

std::vector<uint8_t> encode_still(const char* encoder, const char* pixel_format, int width, int height) {
  const LogCapture log;
  const AVPixelFormat format = av_get_pix_fmt(pixel_format);
  const AVCodec* codec = avcodec_find_encoder_by_name(encoder);
  if (codec == nullptr) return {};
  const AvCodec context = new_codec(codec);
  context->width = width;
  context->height = height;
  context->pix_fmt = format;
  context->time_base = {1, 24};
  context->color_range = std::string(encoder) == "mjpeg" ? AVCOL_RANGE_JPEG : AVCOL_RANGE_UNSPECIFIED;
  context->flags |= AV_CODEC_FLAG_QSCALE;
  context->global_quality = FF_QP2LAMBDA * 2;
  if (std::string(encoder) == "libwebp") context->global_quality = FF_QP2LAMBDA * 98;
  check(avcodec_open2(context.get(), codec, nullptr));
  const bool deep = av_pix_fmt_desc_get(format)->comp[0].depth > 8;
  const AvFrame frame =
      format == AV_PIX_FMT_PAL8 ? two_colours(width, height) : converted(*gradient(width, height, deep), format);
  frame->quality = context->global_quality;
  const AvPacket packet = new_packet();
  check(avcodec_send_frame(context.get(), frame.get()));
  check(avcodec_send_frame(context.get(), nullptr));
  check(avcodec_receive_packet(context.get(), packet.get()));
  return {packet->data, packet->data + packet->size};
}

std::vector<uint8_t> jpeg_with_orientation(int orientation, int width, int height, bool big_endian) {
  std::vector<uint8_t> jpeg = encode_still("mjpeg", "yuvj444p", width, height);
  std::vector<uint8_t> exif = {'E', 'x', 'i', 'f', 0, 0};
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      exif.push_back(static_cast<uint8_t>(value >> (8 * (big_endian ? bytes - 1 - i : i))));
  };
  exif.push_back(big_endian ? 'M' : 'I');
  exif.push_back(big_endian ? 'M' : 'I');
  put(42, 2);
  put(8, 4);       // the directory follows
  put(2, 2);       // two entries
  put(0x0100, 2);  // ImageWidth, LONG, to be skipped
  put(4, 2);
  put(1, 4);
  put(static_cast<uint32_t>(width), 4);
  put(0x0112, 2);  // Orientation, SHORT
  put(3, 2);
  put(1, 4);
  put(static_cast<uint32_t>(orientation), 2);
  put(0, 2);
  put(0, 4);
  std::vector<uint8_t> segment = {0xff, 0xe1, static_cast<uint8_t>((exif.size() + 2) >> 8),
                                  static_cast<uint8_t>(exif.size() + 2)};
  segment.insert(segment.end(), exif.begin(), exif.end());
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

namespace {

// Everything of one clip being made. Packets are written as they come; the muxers interleave.
class ClipMaker {
 public:
  ClipMaker(const std::string& path, const MadeClip& clip) : clip_(clip), out_(path, clip.muxer) {}

  void make() {
    if (clip_.cover) add_cover();
    if (clip_.video != nullptr) open_video();
    if (clip_.audio != nullptr) open_audio();
    check(avformat_write_header(out_.get(), nullptr));
    if (clip_.cover) write_cover();
    if (clip_.video != nullptr) write_video();
    if (clip_.audio != nullptr) write_audio();
    check(av_write_trailer(out_.get()));
    out_.flush();
    out_.file().commit();
  }

 private:
  AVStream* open(AVCodecContext& codec) {
    if ((out_.get()->oformat->flags & AVFMT_GLOBALHEADER) != 0) codec.flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    codec.strict_std_compliance = FF_COMPLIANCE_EXPERIMENTAL;
    check(avcodec_open2(&codec, codec.codec, nullptr));
    AVStream* stream = avformat_new_stream(out_.get(), nullptr);
    stream->time_base = codec.time_base;
    check(avcodec_parameters_from_context(stream->codecpar, &codec));
    return stream;
  }

  void add_cover() {
    cover_ = avformat_new_stream(out_.get(), nullptr);
    cover_->codecpar->codec_type = AVMEDIA_TYPE_VIDEO;
    cover_->codecpar->codec_id = AV_CODEC_ID_PNG;
    cover_->codecpar->width = cover_->codecpar->height = 32;
    cover_->disposition = AV_DISPOSITION_ATTACHED_PIC;
  }
  void write_cover() {
    const std::vector<uint8_t> png = encode_still("png", "rgb24", 32, 32);
    const AvPacket packet = new_packet();
    check(av_new_packet(packet.get(), static_cast<int>(png.size())));
    std::copy(png.begin(), png.end(), packet->data);
    packet->stream_index = cover_->index;
    packet->flags |= AV_PKT_FLAG_KEY;
    check(av_interleaved_write_frame(out_.get(), packet.get()));
  }

  void open_video() {
    const AVCodec* codec = avcodec_find_encoder_by_name(clip_.video);
    if (codec == nullptr) fail(Code::io, "fixture: no encoder %s", clip_.video);
    video_ = new_codec(codec);
    video_->width = clip_.width;
    video_->height = clip_.height;
    video_->pix_fmt = av_get_pix_fmt(clip_.pixel_format);
    video_->time_base = {1, 24};
    video_->flags |= AV_CODEC_FLAG_QSCALE;
    video_->global_quality = FF_QP2LAMBDA * 2;
    video_->thread_count = 1;
    video_->max_b_frames = 0;
    video_stream_ = open(*video_);
    if (clip_.rotation == 0) return;
    uint8_t* matrix = av_stream_new_side_data(video_stream_, AV_PKT_DATA_DISPLAYMATRIX, 9 * sizeof(int32_t));
    av_display_rotation_set(reinterpret_cast<int32_t*>(matrix), clip_.rotation);
  }
  void write_video() {
    for (size_t i = 0; i < clip_.times.size(); ++i) {
      const AvFrame rgb = new_frame();
      rgb->format = AV_PIX_FMT_RGBA;
      rgb->width = clip_.width;
      rgb->height = clip_.height;
      check(av_frame_get_buffer(rgb.get(), 0));
      const uint8_t grey = static_cast<uint8_t>(40 + 20 * i);
      for (int y = 0; y < clip_.height; ++y) {
        for (int x = 0; x < clip_.width; ++x) {
          uint8_t* at = rgb->data[0] + y * rgb->linesize[0] + 4 * x;
          const bool red = x < clip_.width / 2;
          at[0] = red ? 220 : grey;
          at[1] = at[2] = red ? 20 : grey;
          at[3] = clip_.alpha && y < clip_.height / 2 ? 128 : 255;
        }
      }
      const AvFrame frame = converted(*rgb, video_->pix_fmt);
      frame->pts = clip_.times[i];
      frame->quality = video_->global_quality;
      check(avcodec_send_frame(video_.get(), frame.get()));
      drain(*video_, *video_stream_);
    }
    check(avcodec_send_frame(video_.get(), nullptr));
    drain(*video_, *video_stream_);
  }

  void open_audio() {
    const AVCodec* codec = avcodec_find_encoder_by_name(clip_.audio);
    if (codec == nullptr) fail(Code::io, "fixture: no encoder %s", clip_.audio);
    audio_ = new_codec(codec);
    audio_->sample_rate = clip_.sample_rate;
    audio_->sample_fmt = codec->sample_fmts[0];
    av_channel_layout_default(&audio_->ch_layout, clip_.channels);
    audio_->time_base = {1, clip_.sample_rate};
    audio_stream_ = open(*audio_);
  }
  void write_audio() {
    const int block = audio_->frame_size > 0 ? audio_->frame_size : 1024;
    for (int64_t done = 0; done < clip_.samples; done += block) {
      const AvFrame frame = new_frame();
      frame->format = audio_->sample_fmt;
      frame->sample_rate = clip_.sample_rate;
      frame->nb_samples = static_cast<int>(std::min<int64_t>(block, clip_.samples - done));
      frame->pts = done + clip_.audio_offset;
      av_channel_layout_copy(&frame->ch_layout, &audio_->ch_layout);
      check(av_frame_get_buffer(frame.get(), 0));
      av_samples_set_silence(frame->extended_data, 0, frame->nb_samples, clip_.channels, audio_->sample_fmt);
      if (audio_->sample_fmt == AV_SAMPLE_FMT_S16) {  // a ramp that is exact
        int16_t* at = reinterpret_cast<int16_t*>(frame->data[0]);
        for (int i = 0; i < frame->nb_samples * clip_.channels; ++i) {
          at[i] = static_cast<int16_t>((done * clip_.channels + i) % 20000);
        }
      }
      check(avcodec_send_frame(audio_.get(), frame.get()));
      drain(*audio_, *audio_stream_);
    }
    check(avcodec_send_frame(audio_.get(), nullptr));
    drain(*audio_, *audio_stream_);
  }

  void drain(AVCodecContext& codec, AVStream& stream) {
    const AvPacket packet = new_packet();
    while (avcodec_receive_packet(&codec, packet.get()) >= 0) {
      if (packet->duration == 0) packet->duration = 1;
      av_packet_rescale_ts(packet.get(), codec.time_base, stream.time_base);
      packet->stream_index = stream.index;
      check(av_interleaved_write_frame(out_.get(), packet.get()));
    }
  }

  MadeClip clip_;
  OutputFile out_;
  AvCodec video_, audio_;
  AVStream* cover_ = nullptr;
  AVStream* video_stream_ = nullptr;
  AVStream* audio_stream_ = nullptr;
};

}  // namespace

void make_clip(const std::string& path, const MadeClip& clip) {
  const LogCapture log;
  ClipMaker(path, clip).make();
}
#endif

}  // namespace h3
