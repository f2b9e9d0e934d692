// mp4 (H.264 + AAC), webm (VP9 + Opus) and AVI (MJPEG + PCM) through FFmpeg, as a stream: a frame is encoded when it
// arrives and written when the encoder releases it.
#if H3_HAVE_FFMPEG

#include <algorithm>
#include <cmath>
#include <deque>

#include "media/codecs.h"
#include "media/ffmpeg.h"

namespace h3 {
namespace {

struct Recipe {
  const char* muxer;
  const char* video;
  AVPixelFormat pixels;
  const char* audio;
  AVSampleFormat samples;
  int sample_rate;  // 0 = the clip's own
};

Recipe recipe_of(ClipKind kind) {
  switch (kind) {
    case ClipKind::webm: return {"webm", "libvpx-vp9", AV_PIX_FMT_YUV420P, "libopus", AV_SAMPLE_FMT_FLT, 48000};
    case ClipKind::avi: return {"avi", "mjpeg", AV_PIX_FMT_YUVJ444P, "pcm_s16le", AV_SAMPLE_FMT_S16, 0};
    default: return {"mp4", "libx264", AV_PIX_FMT_YUV420P, "aac", AV_SAMPLE_FMT_FLTP, 0};
  }
}

constexpr int kEncoderThreads = 4;  // fixed: x264's and libvpx's bytes depend on the count
constexpr int64_t kAudioBitRate = 192000;

class ContainerSink final : public ClipSink {
 public:
  ContainerSink(ClipKind kind, const std::string& path, const ClipOptions& options)
      : kind_(kind), recipe_(recipe_of(kind)), options_(options), out_(path, recipe_.muxer), packet_(new_packet()) {
    const LogCapture log;
    open_video(log);
    if (options.audio) open_audio(log);
    AVFormatContext* context = out_.get();
    if (!options.metadata.empty()) av_dict_set(&context->metadata, "comment", options.metadata.c_str(), 0);
    // The pre-skip of Opus and the reordering of H.264 start below zero, which both containers can say; moving
    // everything up instead would put sound and picture milliseconds apart.
    context->avoid_negative_ts = 0;
    AVDictionary* settings = nullptr;
    // The index at the front, so that a browser can start before it has the whole file.
    if (kind == ClipKind::mp4) av_dict_set(&settings, "movflags", "+faststart", 0);
    const int result = avformat_write_header(context, &settings);
    av_dict_free(&settings);
    out_.check(result, "writing the header", log);
  }

  void set_audio(const float* samples, int64_t count) override;
  void add_frame(const FrameView& frame) override;
  void close() override;
  std::vector<std::string> commit() override {
    out_.file().commit();
    return {out_.file().path()};
  }

 private:
  const AVCodec* find_encoder(const char* name);
  void open_video(const LogCapture& log);
  void open_audio(const LogCapture& log);
  void set_rate_control();
  AVStream* add_stream(AVCodecContext& codec, const LogCapture& log);
  void drain(AVCodecContext& codec, AVStream& stream, const LogCapture& log);
  void write_video(const LogCapture& log);
  void encode_sound(const uint8_t* const* planes, int64_t count, const LogCapture& log);
  int64_t sound_chunk(int64_t done, int64_t count) const;

  ClipKind kind_;
  Recipe recipe_;
  ClipOptions options_;
  OutputFile out_;
  AvPacket packet_;
  AvCodec video_, audio_;
  AVStream* video_stream_ = nullptr;
  AVStream* audio_stream_ = nullptr;
  std::deque<AvPacket> sound_;  // encoded, waiting for their place among the frames
  int64_t frames_ = 0;
};

const AVCodec* ContainerSink::find_encoder(const char* name) {
  const AVCodec* codec = avcodec_find_encoder_by_name(name);
  if (codec != nullptr) return codec;
  fail(Code::io, "cannot write %s: this FFmpeg has no %s encoder; choose another of %s", out_.file().path().c_str(),
       name, clip_extensions().c_str());
}

AVStream* ContainerSink::add_stream(AVCodecContext& codec, const LogCapture& log) {
  if ((out_.get()->oformat->flags & AVFMT_GLOBALHEADER) != 0) codec.flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  codec.flags |= AV_CODEC_FLAG_BITEXACT;
  out_.check(avcodec_open2(&codec, codec.codec, nullptr), "opening the encoder", log);
  AVStream* stream = avformat_new_stream(out_.get(), nullptr);
  if (stream == nullptr) fail(Code::memory, "cannot write %s: out of memory", out_.file().path().c_str());
  stream->time_base = codec.time_base;
  out_.check(avcodec_parameters_from_context(stream->codecpar, &codec), "describing the stream", log);
  return stream;
}

void ContainerSink::set_rate_control() {
  const int quality = std::clamp(options_.quality, 0, 51);
  void* specific = video_->priv_data;
  if (kind_ == ClipKind::mp4) {
    av_opt_set(specific, "preset", "medium", 0);
    // x264's AVX-512 routines read past the rows of small pictures (seen with core 164 at 64 pixels of width): the
    // bytes of a clip then depend on what lay in memory before. Its AVX2 routines do not. Naming a level skips x264's
    // own detection, so it is named only where it exists.
    if ((av_get_cpu_flags() & AV_CPU_FLAG_AVX512) != 0) av_opt_set(specific, "x264-params", "asm=avx2", 0);
    av_opt_set_double(specific, "crf", quality, 0);
  } else if (kind_ == ClipKind::webm) {
    av_opt_set_int(specific, "crf", quality * 63 / 51, 0);
    av_opt_set(specific, "deadline", "good", 0);
    av_opt_set_int(specific, "cpu-used", 4, 0);
    av_opt_set_int(specific, "row-mt", 1, 0);
    if (quality == 0) av_opt_set_int(specific, "lossless", 1, 0);
  } else {
    // 18 is the quantiser scale 2, about quality 92 of the IJG scale.
    const int scale = quality < 18 ? 1 + (quality > 0) : 2 + (quality - 18) / 3;
    video_->flags |= AV_CODEC_FLAG_QSCALE;
    video_->global_quality = FF_QP2LAMBDA * scale;
    video_->qmin = 1;
    video_->qmax = 31;
  }
}

void ContainerSink::open_video(const LogCapture& log) {
  const AVCodec* codec = find_encoder(recipe_.video);
  video_ = new_codec(codec);
  video_->width = options_.width;
  video_->height = options_.height;
  video_->pix_fmt = recipe_.pixels;
  video_->time_base = {1, options_.fps};
  video_->framerate = {options_.fps, 1};
  video_->sample_aspect_ratio = {1, 1};
  video_->gop_size = 2 * options_.fps;
  video_->thread_count = kEncoderThreads;
  if (kind_ == ClipKind::avi) {
    video_->color_range = AVCOL_RANGE_JPEG;
    video_->colorspace = AVCOL_SPC_BT470BG;
  } else {
    video_->color_range = AVCOL_RANGE_MPEG;
    video_->color_primaries = AVCOL_PRI_BT709;
    video_->color_trc = AVCOL_TRC_BT709;
    video_->colorspace = AVCOL_SPC_BT709;
    video_->chroma_sample_location = AVCHROMA_LOC_LEFT;
  }
  set_rate_control();
  video_stream_ = add_stream(*video_, log);
  video_stream_->avg_frame_rate = video_->framerate;
  video_stream_->r_frame_rate = video_->framerate;
}

void ContainerSink::open_audio(const LogCapture& log) {
  const AVCodec* codec = find_encoder(recipe_.audio);
  audio_ = new_codec(codec);
  audio_->sample_fmt = recipe_.samples;
  audio_->sample_rate = recipe_.sample_rate != 0 ? recipe_.sample_rate : options_.sample_rate;
  av_channel_layout_default(&audio_->ch_layout, 2);
  audio_->time_base = {1, audio_->sample_rate};
  if (kind_ != ClipKind::avi) audio_->bit_rate = kAudioBitRate;
  audio_stream_ = add_stream(*audio_, log);
}

void ContainerSink::drain(AVCodecContext& codec, AVStream& stream, const LogCapture& log) {
  while (true) {
    const int result = avcodec_receive_packet(&codec, packet_.get());
    if (result == AVERROR(EAGAIN) || result == AVERROR_EOF) return;
    out_.check(result, "encoding", log);
    if (packet_->duration == 0 && &stream == video_stream_) packet_->duration = 1;
#if LIBAVFORMAT_VERSION_MAJOR < 60
    // This Matroska writer states the pre-skip but does not move the packets by it, so that readers would subtract it
    // twice.
    if (kind_ == ClipKind::webm && &codec == audio_.get()) {
      packet_->pts += codec.initial_padding;
      packet_->dts += codec.initial_padding;
    }
#endif
    av_packet_rescale_ts(packet_.get(), codec.time_base, stream.time_base);
    packet_->stream_index = stream.index;
    if (&stream == video_stream_) {
      write_video(log);
    } else {
      sound_.push_back(new_packet());
      av_packet_move_ref(sound_.back().get(), packet_.get());
    }
  }
}

// Writes packet_ after the sound that is due by then. FFmpeg's own interleaving would hold packets back.
void ContainerSink::write_video(const LogCapture& log) {
  while (!sound_.empty() &&
         av_compare_ts(sound_.front()->dts, audio_stream_->time_base, packet_->dts, video_stream_->time_base) <= 0) {
    out_.check(av_write_frame(out_.get(), sound_.front().get()), "writing sound", log);
    sound_.pop_front();
  }
  const int result = av_write_frame(out_.get(), packet_.get());
  av_packet_unref(packet_.get());
  out_.check(result, "writing a frame", log);
}

// AAC and Opus want their frame size; PCM goes in as much as one picture lasts.
int64_t ContainerSink::sound_chunk(int64_t done, int64_t count) const {
  if (audio_->frame_size > 0) return std::min<int64_t>(audio_->frame_size, count - done);
  const int64_t index = done * options_.fps / audio_->sample_rate;
  int64_t end = (index + 1) * audio_->sample_rate / options_.fps;
  if (end <= done) end = (index + 2) * audio_->sample_rate / options_.fps;
  return std::min(end, count) - done;
}

void ContainerSink::encode_sound(const uint8_t* const* planes, int64_t count, const LogCapture& log) {
  const bool planar = av_sample_fmt_is_planar(audio_->sample_fmt) != 0;
  const size_t step = static_cast<size_t>(av_get_bytes_per_sample(audio_->sample_fmt)) * (planar ? 1 : 2);
  for (int64_t done = 0; done < count;) {
    const int64_t chunk = sound_chunk(done, count);
    const AvFrame frame = new_frame();
    frame->format = audio_->sample_fmt;
    frame->sample_rate = audio_->sample_rate;
    frame->nb_samples = static_cast<int>(chunk);
    frame->pts = done;
    av_channel_layout_copy(&frame->ch_layout, &audio_->ch_layout);
    out_.check(av_frame_get_buffer(frame.get(), 0), "allocating sound", log);
    for (int p = 0; p < (planar ? 2 : 1); ++p) {
      std::copy_n(planes[p] + static_cast<size_t>(done) * step, static_cast<size_t>(chunk) * step, frame->data[p]);
    }
    out_.check(avcodec_send_frame(audio_.get(), frame.get()), "encoding sound", log);
    drain(*audio_, *audio_stream_, log);
    done += chunk;
  }
  out_.check(avcodec_send_frame(audio_.get(), nullptr), "encoding sound", log);
  drain(*audio_, *audio_stream_, log);
}

// [2, count] planar at one rate to interleaved at another, exactly ceil(count * to / from) samples.
std::vector<float> resample_interleaved(const float* samples, int64_t count, int from, int to) {
  const int64_t wanted = (count * to + from - 1) / from;
  std::vector<float> out(static_cast<size_t>(wanted) * 2);
  SwrContext* raw = nullptr;
  AVChannelLayout stereo;
  av_channel_layout_default(&stereo, 2);
  swr_alloc_set_opts2(&raw, &stereo, AV_SAMPLE_FMT_FLT, to, &stereo, AV_SAMPLE_FMT_FLTP, from, 0, nullptr);
  const AvSwr swr(raw);
  if (!swr || swr_init(swr.get()) < 0) fail(Code::io, "cannot resample from %d to %d Hz", from, to);
  const uint8_t* in[2] = {reinterpret_cast<const uint8_t*>(samples), reinterpret_cast<const uint8_t*>(samples + count)};
  int64_t done = 0;
  for (bool flush = false;;) {
    uint8_t* target = reinterpret_cast<uint8_t*>(out.data() + 2 * done);
    const int got = swr_convert(swr.get(), &target, static_cast<int>(wanted - done), flush ? nullptr : in,
                                flush ? 0 : static_cast<int>(count));
    if (got < 0) fail(Code::io, "cannot resample from %d to %d Hz: %s", from, to, av_error(got).c_str());
    done += got;
    if (done >= wanted || (flush && got == 0)) break;
    flush = true;
  }
  return out;
}

void ContainerSink::set_audio(const float* given, int64_t count) {
  const LogCapture log;
  std::vector<float> samples(given, given + 2 * count);
  // Encoders refuse or blow up on what is not a sample; the watchdog reports it.
  for (float& v : samples) v = std::isnan(v) ? 0 : std::clamp(v, -1.0f, 1.0f);
  if (recipe_.samples == AV_SAMPLE_FMT_FLTP) {
    const uint8_t* planes[2] = {reinterpret_cast<const uint8_t*>(samples.data()),
                                reinterpret_cast<const uint8_t*>(samples.data() + count)};
    encode_sound(planes, count, log);
  } else if (recipe_.samples == AV_SAMPLE_FMT_FLT) {
    const std::vector<float> out =
        resample_interleaved(samples.data(), count, options_.sample_rate, audio_->sample_rate);
    const uint8_t* planes[1] = {reinterpret_cast<const uint8_t*>(out.data())};
    encode_sound(planes, static_cast<int64_t>(out.size() / 2), log);
  } else {
    std::vector<int16_t> pcm(samples.size());
    for (int64_t i = 0; i < 2 * count; ++i) pcm[i] = to_pcm16(samples[(i % 2) * count + i / 2]);
    const uint8_t* planes[1] = {reinterpret_cast<const uint8_t*>(pcm.data())};
    encode_sound(planes, count, log);
  }
}

void ContainerSink::add_frame(const FrameView& view) {
  const LogCapture log;
  const AvFrame frame = new_frame();
  frame->format = recipe_.pixels;
  frame->width = options_.width;
  frame->height = options_.height;
  frame->pts = frames_++;
  frame->color_range = video_->color_range;
  frame->colorspace = video_->colorspace;
  out_.check(av_frame_get_buffer(frame.get(), 0), "allocating a frame", log);
  const PlaneView planes[3] = {
      {frame->data[0], frame->linesize[0]}, {frame->data[1], frame->linesize[1]}, {frame->data[2], frame->linesize[2]}};
  kind_ == ClipKind::avi ? to_yuv444_full(view, planes) : to_yuv420(view, planes);
  out_.check(avcodec_send_frame(video_.get(), frame.get()), "encoding a frame", log);
  drain(*video_, *video_stream_, log);
}

void ContainerSink::close() {
  const LogCapture log;
  if (frames_ == 0) fail(Code::io, "cannot write %s: it has no frames", out_.file().path().c_str());
  out_.check(avcodec_send_frame(video_.get(), nullptr), "encoding", log);
  drain(*video_, *video_stream_, log);
  for (; !sound_.empty(); sound_.pop_front()) {
    out_.check(av_write_frame(out_.get(), sound_.front().get()), "writing sound", log);
  }
  out_.check(av_write_trailer(out_.get()), "writing the index", log);
  out_.flush();
}

}  // namespace

std::unique_ptr<ClipSink> open_container_sink(ClipKind kind, const std::string& path, const ClipOptions& options) {
  return std::make_unique<ContainerSink>(kind, path, options);
}

}  // namespace h3

#endif
