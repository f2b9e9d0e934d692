// Clips and sound out of any container FFmpeg reads.
#if H3_HAVE_FFMPEG

#include <algorithm>
#include <cmath>

#include "media/codecs.h"
#include "media/ffmpeg.h"

namespace h3 {
namespace {

constexpr int64_t kMaxFramePixels = int64_t{1} << 26;
constexpr int64_t kMaxSoundBytes = int64_t{2} << 30;

// The first stream of a type, default ones before others; cover art is not a video.
AVStream* find_stream(AVFormatContext* context, AVMediaType type) {
  AVStream* found = nullptr;
  for (unsigned i = 0; i < context->nb_streams; ++i) {
    AVStream* stream = context->streams[i];
    const bool cover = (stream->disposition & (AV_DISPOSITION_ATTACHED_PIC | AV_DISPOSITION_TIMED_THUMBNAILS)) != 0;
    if (stream->codecpar->codec_type != type || cover) continue;
    const bool is_default = (stream->disposition & AV_DISPOSITION_DEFAULT) != 0;
    if (found == nullptr || (is_default && (found->disposition & AV_DISPOSITION_DEFAULT) == 0)) found = stream;
  }
  return found;
}

const int32_t* display_matrix(const AVStream* stream) {
  const AVPacketSideData* data = nullptr;
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
  data = av_packet_side_data_get(stream->codecpar->coded_side_data, stream->codecpar->nb_coded_side_data,
                                 AV_PKT_DATA_DISPLAYMATRIX);
#else
  for (int i = 0; i < stream->nb_side_data; ++i) {
    if (stream->side_data[i].type == AV_PKT_DATA_DISPLAYMATRIX) data = &stream->side_data[i];
  }
#endif
  return data != nullptr && data->size >= 9 * sizeof(int32_t) ? reinterpret_cast<const int32_t*>(data->data) : nullptr;
}

// A display matrix (x' = a x + c y, y' = b x + d y) as an EXIF orientation; 0 when it is no multiple of 90 degrees.
int orientation_of(const int32_t* m) {
  const int a = (m[0] > 0) - (m[0] < 0), b = (m[1] > 0) - (m[1] < 0);
  const int c = (m[3] > 0) - (m[3] < 0), d = (m[4] > 0) - (m[4] < 0);
  if (b == 0 && c == 0 && a != 0 && d != 0) return a > 0 ? (d > 0 ? 1 : 4) : (d > 0 ? 2 : 3);
  if (a == 0 && d == 0 && b != 0 && c != 0) return b > 0 ? (c > 0 ? 5 : 6) : (c > 0 ? 8 : 7);
  return 0;
}

// Packets of one stream through its decoder.
class Decoder {
 public:
  Decoder(MediaInput& file, AVStream* stream)
      : file_(file), stream_(stream), packet_(new_packet()), frame_(new_frame()) {
    const LogCapture log;
    const AVCodec* codec = avcodec_find_decoder(stream->codecpar->codec_id);
    if (codec == nullptr) {
      fail(Code::data, "cannot read %s: this FFmpeg has no decoder for %s", file.path().c_str(),
           avcodec_get_name(stream->codecpar->codec_id));
    }
    codec_ = new_codec(codec);
    int result = avcodec_parameters_to_context(codec_.get(), stream->codecpar);
    codec_->pkt_timebase = stream->time_base;
    codec_->thread_count = 1;  // errors then speak on this thread, where LogCapture hears them
    codec_->max_pixels = kMaxFramePixels;
    if (result >= 0) result = avcodec_open2(codec_.get(), codec, nullptr);
    if (result < 0) fail(Code::data, "cannot read %s: %s", file.path().c_str(), log.reason(result).c_str());
    AVFormatContext* context = file.get();
    for (unsigned i = 0; i < context->nb_streams; ++i) {
      context->streams[i]->discard = context->streams[i] == stream ? AVDISCARD_DEFAULT : AVDISCARD_ALL;
    }
  }

  // The next frame, nullptr at the end. Valid until the next call.
  AVFrame* next() {
    const LogCapture log;
    while (true) {
      const int result = avcodec_receive_frame(codec_.get(), frame_.get());
      if (result >= 0) return frame_.get();
      if (result == AVERROR_EOF) return nullptr;
      if (result != AVERROR(EAGAIN)) damaged(result, log);
      feed(log);
    }
  }
  AVCodecContext* codec() const { return codec_.get(); }

 private:
  void feed(const LogCapture& log) {
    int result = av_read_frame(file_.get(), packet_.get());
    if (result == AVERROR_EOF) {
      result = avcodec_send_packet(codec_.get(), nullptr);
      if (result < 0 && result != AVERROR_EOF) damaged(result, log);
      return;
    }
    if (result < 0) damaged(result, log);
    const bool ours = packet_->stream_index == stream_->index;
    if (ours && packet_->dts != AV_NOPTS_VALUE)
      seconds_ = static_cast<double>(packet_->dts) * av_q2d(stream_->time_base);
    // Transport streams flag what merely follows a gap; elsewhere the flag means that bytes are missing.
    const bool cut =
        ours && (packet_->flags & AV_PKT_FLAG_CORRUPT) != 0 && std::string(file_.get()->iformat->name) != "mpegts";
    result = ours && !cut ? avcodec_send_packet(codec_.get(), packet_.get()) : 0;
    av_packet_unref(packet_.get());
    if (cut) fail(Code::data, "%s is truncated: data is missing at %.2f s", file_.path().c_str(), seconds_);
    if (result < 0) damaged(result, log);
  }

  [[noreturn]] void damaged(int result, const LogCapture& log) {
    fail(Code::data, "%s is damaged near %.2f s: %s", file_.path().c_str(), seconds_, log.reason(result).c_str());
  }

  MediaInput& file_;
  AVStream* stream_;
  AvPacket packet_;
  AvFrame frame_;
  AvCodec codec_;
  double seconds_ = 0;
};

class ContainerReader final : public ClipReader {
 public:
  explicit ContainerReader(const std::string& path) : file_(path) {
    AVFormatContext* context = file_.get();
    if (context->duration > 0) info_.seconds = static_cast<double>(context->duration) / AV_TIME_BASE;
    if (const AVStream* audio = find_stream(context, AVMEDIA_TYPE_AUDIO)) {
      info_.sample_rate = audio->codecpar->sample_rate;
      info_.channels = audio->codecpar->ch_layout.nb_channels;
    }
    stream_ = find_stream(context, AVMEDIA_TYPE_VIDEO);
    if (stream_ == nullptr && info_.sample_rate == 0)
      fail(Code::data, "%s has neither pictures nor sound", path.c_str());
    if (stream_ != nullptr) open_video();
  }

  const ClipInfo& info() const override { return info_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  bool next(Image& frame, double& time) override {
    if (!decoder_) return false;
    const AVFrame* decoded = decoder_->next();
    if (decoded == nullptr) {
      if (frames_ == 0) fail(Code::data, "%s is damaged: no frame could be decoded", file_.path().c_str());
      return false;
    }
    frame.width = info_.width;
    frame.height = info_.height;
    frame.warnings.clear();
    frame.rgb.resize(static_cast<size_t>(info_.width) * info_.height * 3);
    const bool turned = orientation_ >= 5;
    int width = turned ? info_.height : info_.width, height = turned ? info_.width : info_.height;
    converter_.convert(*decoded, width, height, frame.rgb.data(), file_.path());
    frame.rgb = apply_orientation(std::move(frame.rgb), &width, &height, orientation_);
    warn(*decoded);
    time = time_of(*decoded);
    ++frames_;
    return true;
  }

 private:
  void open_video() {
    decoder_ = std::make_unique<Decoder>(file_, stream_);
    const AVCodecParameters& parameters = *stream_->codecpar;
    AVRational rate = av_guess_frame_rate(file_.get(), stream_, nullptr);
    if (rate.num <= 0 || rate.den <= 0) rate = {25, 1};
    info_.fps = av_q2d(rate);
    int width = parameters.width, height = parameters.height;
    // Anamorphic pictures are stretched to square pixels; nonsense ratios are ignored.
    const AVRational aspect = av_guess_sample_aspect_ratio(file_.get(), stream_, nullptr);
    if (aspect.num > 0 && aspect.den > 0 && aspect.num != aspect.den) {
      const double ratio = av_q2d(aspect);
      if (ratio > 0.1 && ratio < 10) width = std::max(1, static_cast<int>(std::lround(width * ratio)));
    }
    if (const int32_t* matrix = display_matrix(stream_)) orientation_ = orientation_of(matrix);
    if (orientation_ == 0) {
      warnings_.push_back(file_.path() + ": its rotation is no multiple of 90 degrees and is ignored");
      orientation_ = 1;
    }
    if (width < 1 || height < 1 || static_cast<int64_t>(width) * height > kMaxFramePixels) {
      fail(Code::data, "%s has frames of %dx%d; at most %lld million pixels are allowed", file_.path().c_str(), width,
           height, static_cast<long long>(kMaxFramePixels / 1000000));
    }
    info_.width = orientation_ >= 5 ? height : width;
    info_.height = orientation_ >= 5 ? width : height;
  }

  double time_of(const AVFrame& decoded) {
    double time = last_time_ + 1 / info_.fps;
    if (decoded.best_effort_timestamp != AV_NOPTS_VALUE) {
      const double stamp = static_cast<double>(decoded.best_effort_timestamp) * av_q2d(stream_->time_base);
      if (frames_ == 0) first_time_ = stamp;
      time = std::max(stamp - first_time_, frames_ == 0 ? 0 : last_time_);
    } else if (frames_ == 0) {
      time = 0;
    }
    last_time_ = time;
    return time;
  }

  void warn(const AVFrame& decoded) {
    const bool hdr = decoded.color_trc == AVCOL_TRC_SMPTE2084 || decoded.color_trc == AVCOL_TRC_ARIB_STD_B67;
    warn_once(converter_.deep, &warned_deep_, "samples of more than 8 bits reduced to 8");
    warn_once(converter_.transparent, &warned_alpha_, "alpha composited on black");
    warn_once(hdr, &warned_hdr_, "HDR colours are not tone-mapped");
  }
  void warn_once(bool seen, bool* warned, const char* text) {
    if (!seen || *warned) return;
    *warned = true;
    warnings_.push_back(file_.path() + ": " + text);
  }

  MediaInput file_;
  AVStream* stream_ = nullptr;
  std::unique_ptr<Decoder> decoder_;
  RgbConverter converter_;
  ClipInfo info_;
  std::vector<std::string> warnings_;
  int orientation_ = 1;
  int64_t frames_ = 0;
  double first_time_ = 0, last_time_ = 0;
  bool warned_deep_ = false, warned_alpha_ = false, warned_hdr_ = false;
};

// Decoded sound to planar f32 at its own rate, appended per channel.
class SoundCollector {
 public:
  SoundCollector(const std::string& path, AVStream* stream) : path_(path), stream_(stream) {}

  void add(const AVFrame& frame) {
    if (channels_.empty()) start(frame);
    if (frame.sample_rate != rate_ || frame.ch_layout.nb_channels != static_cast<int>(channels_.size()) ||
        frame.format != format_) {
      fail(Code::data, "the sound of %s changes its rate or channels on the way; convert it first", path_.c_str());
    }
    std::vector<std::vector<float>> block(channels_.size(), std::vector<float>(static_cast<size_t>(frame.nb_samples)));
    std::vector<uint8_t*> planes;
    for (std::vector<float>& plane : block) planes.push_back(reinterpret_cast<uint8_t*>(plane.data()));
    const int got = swr_convert(swr_.get(), planes.data(), frame.nb_samples,
                                const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples);
    if (got < 0) fail(Code::data, "cannot convert the sound of %s: %s", path_.c_str(), av_error(got).c_str());
    for (size_t c = 0; c < channels_.size(); ++c) {
      channels_[c].insert(channels_[c].end(), block[c].begin(), block[c].begin() + got);
    }
    if (static_cast<int64_t>(channels_.size() * channels_[0].size() * sizeof(float)) > kMaxSoundBytes) {
      fail(Code::memory, "%s has more than %lld MB of sound; cut it first", path_.c_str(),
           static_cast<long long>(kMaxSoundBytes >> 20));
    }
  }

  int64_t count() const { return channels_.empty() ? 0 : static_cast<int64_t>(channels_[0].size()); }
  int rate() const { return rate_; }
  double first_time() const { return first_time_; }  // seconds on the container's clock

  // `shift` samples of silence in front, or cut off when negative; at most `limit` samples (0 = all).
  Sound finish(int64_t shift, int64_t limit) {
    Sound sound;
    sound.sample_rate = rate_;
    sound.channels = static_cast<int>(channels_.size());
    sound.count = std::max<int64_t>(0, count() + shift);
    if (limit > 0) sound.count = std::min(sound.count, limit);
    sound.samples.assign(static_cast<size_t>(sound.count) * channels_.size(), 0.0f);
    for (size_t c = 0; c < channels_.size(); ++c) {
      for (int64_t i = std::max<int64_t>(0, shift); i < sound.count; ++i) {
        sound.samples[c * static_cast<size_t>(sound.count) + static_cast<size_t>(i)] =
            channels_[c][static_cast<size_t>(i - shift)];
      }
    }
    return sound;
  }

 private:
  void start(const AVFrame& frame) {
    rate_ = frame.sample_rate;
    format_ = frame.format;
    const int channels = frame.ch_layout.nb_channels;
    if (rate_ < 1 || channels < 1 || channels > 64) {
      fail(Code::data, "the sound of %s has %d channels at %d Hz", path_.c_str(), channels, rate_);
    }
    SwrContext* raw = nullptr;
    AVChannelLayout* layout = const_cast<AVChannelLayout*>(&frame.ch_layout);  // not const in every FFmpeg
    swr_alloc_set_opts2(&raw, layout, AV_SAMPLE_FMT_FLTP, rate_, layout, static_cast<AVSampleFormat>(format_), rate_, 0,
                        nullptr);
    swr_.reset(raw);
    const LogCapture log;
    const int result = swr_ ? swr_init(swr_.get()) : AVERROR(ENOMEM);
    if (result < 0) fail(Code::data, "cannot convert the sound of %s: %s", path_.c_str(), log.reason(result).c_str());
    channels_.resize(static_cast<size_t>(channels));
    if (frame.best_effort_timestamp != AV_NOPTS_VALUE) {
      first_time_ = static_cast<double>(frame.best_effort_timestamp) * av_q2d(stream_->time_base);
    }
  }

  std::string path_;
  AVStream* stream_;
  AvSwr swr_;
  int rate_ = 0, format_ = -1;
  double first_time_ = 0;
  std::vector<std::vector<float>> channels_;
};

}  // namespace

std::unique_ptr<ClipReader> open_container_reader(const std::string& path) {
  return std::make_unique<ContainerReader>(path);
}

Sound read_container_sound(const std::string& path, double max_seconds) {
  MediaInput file(path);
  AVStream* stream = find_stream(file.get(), AVMEDIA_TYPE_AUDIO);
  if (stream == nullptr) return {};
  const AVStream* video = find_stream(file.get(), AVMEDIA_TYPE_VIDEO);
  SoundCollector collector(path, stream);
  Decoder decoder(file, stream);
  // Where the first frame stands on the container's clock; the sound is brought to start there.
  const bool aligned = video != nullptr && video->start_time != AV_NOPTS_VALUE;
  const double start = aligned ? static_cast<double>(video->start_time) * av_q2d(video->time_base) : 0;
  int64_t shift = 0, limit = 0;
  while (const AVFrame* frame = decoder.next()) {
    const bool first = collector.count() == 0;
    collector.add(*frame);
    if (first && aligned) {
      const double gap = collector.first_time() - start;
      // Anything longer is a broken clock, not an offset.
      if (std::fabs(gap) < 60) shift = std::llround(gap * collector.rate());
    }
    if (first && max_seconds > 0) limit = std::max<int64_t>(1, static_cast<int64_t>(max_seconds * collector.rate()));
    if (limit > 0 && collector.count() + shift >= limit) break;
  }
  // mp4 states the length to the sample; the last AAC frame is longer.
  const bool exact = std::string(file.get()->iformat->name).find("mp4") != std::string::npos;
  if (exact && stream->duration > 0 && collector.rate() > 0) {
    const int64_t declared = shift + av_rescale_q(stream->duration, stream->time_base, AVRational{1, collector.rate()});
    const int64_t excess = collector.count() + shift - declared;
    if (excess > 0 && excess < 4096 && (limit == 0 || declared < limit)) limit = declared;
  }
  return collector.finish(shift, limit);
}

std::string read_container_comment(const std::string& path) {
  const MediaInput file(path);
  const AVDictionaryEntry* entry = av_dict_get(file.get()->metadata, "comment", nullptr, 0);
  return entry != nullptr ? entry->value : "";
}

}  // namespace h3

#endif
