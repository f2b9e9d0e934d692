#include "model/text/presentation.h"

#include <algorithm>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int64_t kSampleEvery = 12;  // 2 of the 24 frames per second

class Builder {
 public:
  explicit Builder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void text(const std::string& segment) { append_text(tokenizer_.encode(segment)); }

  void prompt(const std::string& prompt) {
    const std::vector<int32_t> ids = tokenizer_.encode(prompt);
    const Tokenizer::Special& special = tokenizer_.special();
    for (const int32_t id : ids) {
      if (id == special.image_pad || id == special.video_pad) {
        fail(Code::usage, "the prompt contains %s, which stands for a picture's features; remove it",
             id == special.image_pad ? "<|image_pad|>" : "<|video_pad|>");
      }
    }
    append_text(ids);
  }

  void vision_block(bool video, int64_t count) {
    const Tokenizer::Special& special = tokenizer_.special();
    const int32_t pad = video ? special.video_pad : special.image_pad;
    if (special.vision_start < 0 || special.vision_end < 0 || pad < 0) {
      fail(Code::data, "the tokenizer lacks <|vision_start|>, <|vision_end|> or %s, so pictures cannot be presented",
           video ? "<|video_pad|>" : "<|image_pad|>");
    }
    std::vector<int32_t>& ids = out.ids;
    ids.push_back(special.vision_start);
    ids.insert(ids.end(), static_cast<size_t>(count), pad);
    ids.push_back(special.vision_end);
    out.tags.resize(ids.size(), 0);
  }

  Presentation out;

 private:
  void append_text(const std::vector<int32_t>& ids) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.tags.resize(out.ids.size(), 1);
  }

  const Tokenizer& tokenizer_;
};

void present_video(Builder& builder, const PromptMedia& media, int ordinal) {
  const int64_t count = static_cast<int64_t>(media.frames.size());
  if (count <= kSampleEvery) {
    fail(Code::usage, "reference video %d has %lld frames at 24 fps; at least %lld are needed", ordinal,
         static_cast<long long>(count), static_cast<long long>(kSampleEvery + 1));
  }
  std::vector<Picture> sampled;
  for (const int64_t index : conditioner_frames(count)) sampled.push_back(media.frames[static_cast<size_t>(index)]);
  VisionInput input = prepare_video(sampled);
  builder.text(video_label(ordinal));
  for (const std::string& label : block_labels(static_cast<int64_t>(sampled.size()))) {
    builder.text(label);
    builder.vision_block(true, input.tokens_per_block());
  }
  builder.out.vision.push_back(std::move(input));
}

}  // namespace

std::string picture_label(int ordinal) { return strf("<Picture %d>: ", ordinal); }
std::string audio_label(int ordinal) { return strf("<Audio %d>: ", ordinal); }
std::string video_label(int ordinal) { return strf("<Video %d>: ", ordinal); }

std::vector<int64_t> conditioner_frames(int64_t frames) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < frames; i += kSampleEvery) out.push_back(i);
  return out;
}

// Samples are half a second apart, so a block's mean time is k + 0.25 s, printed with one digit and half to even.
std::vector<std::string> block_labels(int64_t sampled_frames) {
  std::vector<std::string> out;
  for (int64_t k = 0; 2 * k < sampled_frames; ++k) {
    out.push_back(strf("<%lld.%d seconds>", static_cast<long long>(k), 2 * k + 1 < sampled_frames ? 2 : 0));
  }
  return out;
}

Presentation present(const Tokenizer& tokenizer, const std::string& prompt, const std::vector<PromptMedia>& media,
                     int64_t max_tokens) {
  if (prompt.empty()) fail(Code::usage, "the prompt is empty; a single blank is the shortest one");
  Builder builder(tokenizer);
  int pictures = 0, videos = 0, sounds = 0;
  for (const PromptMedia& item : media) {
    switch (item.kind) {
      case PromptMedia::Kind::image: {
        H3_ASSERT(item.frames.size() == 1);
        VisionInput input = prepare_image(item.frames[0]);
        builder.text(picture_label(++pictures));
        builder.vision_block(false, input.tokens());
        builder.out.vision.push_back(std::move(input));
        break;
      }
      case PromptMedia::Kind::audio: builder.text(audio_label(++sounds)); break;
      case PromptMedia::Kind::video:
        if (item.has_sound) builder.text(audio_label(++sounds));
        present_video(builder, item, ++videos);
        break;
    }
  }
  builder.prompt(prompt);
  const int64_t rows = static_cast<int64_t>(builder.out.ids.size());
  if (rows > max_tokens) {
    fail(Code::usage, "the prompt with its pictures has %lld tokens; at most %lld are allowed",
         static_cast<long long>(rows), static_cast<long long>(max_tokens));
  }
  return std::move(builder.out);
}

int64_t media_rows(const Tokenizer& tokenizer, const std::vector<PromptMedia>& media) {
  constexpr int64_t kMarks = 2, kPixels = int64_t{kPatch} * kMerge * kPatch * kMerge;  // around a block; of a token
  const auto text = [&](const std::string& segment) { return static_cast<int64_t>(tokenizer.encode(segment).size()); };
  const auto block = [&](const FrameSize& size) { return size.height * size.width / kPixels + kMarks; };
  int64_t rows = 0;
  int pictures = 0, videos = 0, sounds = 0;
  for (const PromptMedia& item : media) {
    const bool video = item.kind == PromptMedia::Kind::video;
    if (item.kind == PromptMedia::Kind::audio || (video && item.has_sound)) rows += text(audio_label(++sounds));
    if (item.kind == PromptMedia::Kind::audio) continue;
    const FrameSize size{item.frames[0].height, item.frames[0].width};
    if (item.kind == PromptMedia::Kind::image) {
      rows += text(picture_label(++pictures)) + block(smart_resize_image(size));
      continue;
    }
    rows += text(video_label(++videos));
    const int64_t sampled = static_cast<int64_t>(conditioner_frames(static_cast<int64_t>(item.frames.size())).size());
    const int64_t each = block(smart_resize_video(sampled, size));
    for (const std::string& label : block_labels(sampled)) rows += text(label) + each;
  }
  return rows;
}

namespace {

// Hands out the temporal blocks of one modality in order.
class BlockQueue {
 public:
  BlockQueue(const std::vector<VisionInput>& vision, bool video) : vision_(vision), video_(video) { skip(); }

  bool empty() const { return index_ == vision_.size(); }
  VisionRun take() {
    const VisionInput& input = vision_[index_];
    VisionRun run{.count = input.tokens_per_block(), .height = input.grid_h / kMerge, .width = input.grid_w / kMerge};
    run.feature = base_ + block_ * run.count;
    if (++block_ == input.grid_t) {
      advance();
      skip();
    }
    return run;
  }

 private:
  void advance() {
    base_ += vision_[index_].tokens();
    ++index_;
    block_ = 0;
  }
  void skip() {
    while (index_ < vision_.size() && vision_[index_].video != video_) advance();
  }

  const std::vector<VisionInput>& vision_;
  bool video_;
  size_t index_ = 0;
  int64_t block_ = 0, base_ = 0;
};

}  // namespace

std::vector<VisionRun> find_vision_runs(const std::vector<int32_t>& ids, const Tokenizer::Special& special,
                                        const std::vector<VisionInput>& vision) {
  BlockQueue images(vision, false), videos(vision, true);
  std::vector<VisionRun> runs;
  for (size_t i = 0; i < ids.size();) {
    const int32_t id = ids[i];
    if (id < 0 || (id != special.image_pad && id != special.video_pad)) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < ids.size() && ids[end] == id) ++end;
    BlockQueue& queue = id == special.image_pad ? images : videos;
    if (queue.empty()) fail(Code::data, "row %zu of the presentation is a vision pad without a picture", i);
    VisionRun run = queue.take();
    run.row = static_cast<int64_t>(i);
    if (run.count != static_cast<int64_t>(end - i)) {
      fail(Code::data, "%zu vision pads at row %zu for a picture of %lld tokens", end - i, i,
           static_cast<long long>(run.count));
    }
    runs.push_back(run);
    i = end;
  }
  if (!images.empty() || !videos.empty()) fail(Code::data, "a picture has no vision pads in the presentation");
  return runs;
}

std::vector<std::vector<int32_t>> rotary_positions(int64_t rows, const std::vector<VisionRun>& runs) {
  std::vector<std::vector<int32_t>> axes(3, std::vector<int32_t>(static_cast<size_t>(rows)));
  int32_t position = 0;
  int64_t row = 0;
  const auto text_until = [&](int64_t end) {
    for (; row < end; ++row, ++position) {
      for (std::vector<int32_t>& axis : axes) axis[static_cast<size_t>(row)] = position;
    }
  };
  for (const VisionRun& run : runs) {
    text_until(run.row);
    for (int64_t k = 0; k < run.count; ++k, ++row) {
      axes[0][static_cast<size_t>(row)] = position;
      axes[1][static_cast<size_t>(row)] = position + static_cast<int32_t>(k / run.width);
      axes[2][static_cast<size_t>(row)] = position + static_cast<int32_t>(k % run.width);
    }
    position += static_cast<int32_t>(std::max(run.height, run.width));  // not the number of tokens
  }
  text_until(rows);
  return axes;
}

}  // namespace h3
