// Hints about prompts: counted tokens, marks, spoken words and cut times.
#include "pipeline/prompt_lint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/list.h"
#include "base/error.h"
#include "model/text/presentation.h"
#include "pipeline/engine.h"
#include "store/model_files.h"

namespace h3 {
namespace {

using Level = PromptHint::Level;

// Plain bytes, "ab", the vision marks, one token of chats and those of H3.
ModelFiles made_files(bool tokenizer = true) {
  ModelFiles files;
  if (!tokenizer) return files;
  files.tokenizer.emplace();
  files.tokenizer->merges_txt = "a b\n";
  files.tokenizer->tokenizer_config_json = R"({"added_tokens_decoder": {
    "299": {"content": "<|im_start|>"}, "300": {"content": "<|vision_start|>"}, "301": {"content": "<|vision_end|>"},
    "302": {"content": "<|image_pad|>"}, "303": {"content": "<|video_pad|>"}}})";
  return files;
}

PromptLint lint(const std::string& prompt, double seconds = 0, bool tokenizer = true) {
  return PromptLinter(made_files(tokenizer)).lint(prompt, {seconds, {}});
}

// The hints of a code.
std::vector<PromptHint> hints(const std::string& prompt, const std::string& code, double seconds = 0) {
  std::vector<PromptHint> found = lint(prompt, seconds).hints;
  std::erase_if(found, [&](const PromptHint& hint) { return hint.code != code; });
  return found;
}

TEST(PromptLint, CountsTokens) {
  EXPECT_EQ(lint("ab").prompt_tokens, 1);
  EXPECT_EQ(lint("ba").prompt_tokens, 2);
  EXPECT_EQ(lint("ab <d>[English] ab</d><|cutoff|>").prompt_tokens, 2 + 1 + 9 + 1 + 1 + 2);
  EXPECT_EQ(lint("").tokens, 0);
  EXPECT_EQ(lint("ab", 0, false).tokens, -1);
  EXPECT_EQ(lint("ab").token_limit, 262144);
}

TEST(PromptLint, CountsPicturesWithThePrompt) {
  PromptScene scene;
  scene.media.push_back({PromptMedia::Kind::image, {{512, 288, {}}}, false});
  const PromptLint found = PromptLinter(made_files()).lint("ab", scene);
  EXPECT_EQ(found.prompt_tokens, 1);
  EXPECT_EQ(found.tokens, 1 + 13 + 2 + 16 * 9);  // the prompt, "<Picture 1>: ", two marks, 32x32 pixels each
}

TEST(PromptLint, TooManyTokensIsAnError) {
  EXPECT_TRUE(hints(std::string(262144, '1'), "too_many_tokens").empty());
  const std::vector<PromptHint> found = hints(std::string(262145, '1'), "too_many_tokens");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].level, Level::error);
  EXPECT_NE(found[0].text.find("262145 tokens, at most 262144"), std::string::npos) << found[0].text;
}

TEST(PromptLint, UnknownTokensAreNamedWithTheKnownOnes) {
  std::vector<PromptHint> found = hints("a <|scene|> b", "unknown_token");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].found, "<|scene|>");
  EXPECT_EQ(found[0].level, Level::warning);
  EXPECT_NE(found[0].text.find("read as 9 ordinary ones"), std::string::npos) << found[0].text;
  EXPECT_NE(found[0].text.find("known are <d>, </d>, <|cutoff|>, <|lyrics_start|>"), std::string::npos);
  found = hints("a <|cutof|> b", "unknown_token");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("did you mean <|cutoff|>?"), std::string::npos) << found[0].text;
  for (const auto& [wrong, right] : std::vector<std::pair<std::string, std::string>>{
           {"<D>", "<d>"}, {"< d>", "<d>"}, {"</ D >", "</d>"}, {"<|Cutoff|>", "<|cutoff|>"}}) {
    found = hints("a " + wrong + " b", "unknown_token");
    ASSERT_EQ(found.size(), 1u) << wrong;
    EXPECT_NE(found[0].text.find("write " + right), std::string::npos) << found[0].text;
  }
  // What the guide writes in plain words, comparisons, and hearts.
  for (const char* plain :
       {"<cutoff> <scenetrans>", "a < b and c > d", "I <3 you", "<Picture 1>", "<d>[English] x</d>"}) {
    EXPECT_TRUE(hints(plain, "unknown_token").empty()) << plain;
  }
  EXPECT_EQ(hints("<|x|> <|x|> <|y|>", "unknown_token").size(), 2u) << "each once";
}

TEST(PromptLint, TokensOfChatsAndPads) {
  ASSERT_EQ(hints("<|im_start|>user", "chat_token").size(), 1u);
  ASSERT_EQ(hints("a <|image_pad|>", "pad_token").size(), 1u);
  EXPECT_EQ(hints("a <|image_pad|>", "pad_token")[0].level, Level::error);
  EXPECT_TRUE(hints("<|cutoff|>", "chat_token").empty());
}

TEST(PromptLint, AnEncoderWithoutTheTokensSaysSo) {
  ModelFiles files = made_files();
  files.components.push_back({.role = Role::clip_proj});
  const PromptLint found = PromptLinter(files).lint("<d>[English] a</d>", {});
  EXPECT_EQ(std::count_if(found.hints.begin(), found.hints.end(),
                          [](const PromptHint& hint) {
                            return hint.text.find("is no token of this text encoder") != std::string::npos;
                          }),
            2);
}

TEST(PromptLint, MarksComeInPairs) {
  EXPECT_TRUE(hints("<d>[English] a</d> <d>[English] b</d>", "unpaired_token").empty());
  EXPECT_EQ(hints("<d>[English] a", "unpaired_token").size(), 1u);
  EXPECT_EQ(hints("</d>[English] a<d>", "unpaired_token").size(), 1u);
  EXPECT_EQ(hints("<|lyrics_start|>la", "unpaired_token").size(), 1u);
  EXPECT_EQ(hints("<d>a</d>", "no_language").size(), 1u);
  EXPECT_TRUE(hints("<d> [English] a</d>", "no_language").empty());
}

TEST(PromptLint, SpokenWords) {
  const struct {
    const char* prompt;
    int words, characters;
  } rows[] = {
      {"She says \"hold on to the rope\".", 5, 0},
      {"\u201cDon't go,\u201d he says, \u201cnot now \u2014 wait\u201d", 5, 0},
      {"\u201eGuten Tag\u201c und \u00abbonjour\u00bb", 3, 0},
      {"\u300c\u4f60\u597d\uff0c\u4e16\u754c\u300d", 0, 4},
      {"\"\u4f60\u597d Bob\"", 1, 2},
      {"a 12\" record beside a 7\" single", 0, 0},
      {"an unclosed \"quote", 0, 0},
      {"<d>[English] hold on</d> under a sign \"no entry at all\"", 2, 0},
      {"<d>hold on", 2, 0},
      {"integrated_multimodal_description: [Shot 1] a sign \"no entry\"", 0, 0},
      {"nobody speaks", 0, 0},
  };
  for (const auto& row : rows) {
    const Speech found = spoken(row.prompt);
    EXPECT_EQ(found.words, row.words) << row.prompt;
    EXPECT_EQ(found.characters, row.characters) << row.prompt;
    EXPECT_DOUBLE_EQ(found.seconds, row.words / 2.5 + row.characters / 4.5) << row.prompt;
  }
}

TEST(PromptLint, SpeechAgainstTheLengthOfTheClip) {
  std::string prompt = "He says \"";
  for (int i = 0; i < 25; ++i) prompt += "word ";
  prompt += "\".";
  EXPECT_TRUE(hints(prompt, "speech_too_long", 10).empty());
  const std::vector<PromptHint> found = hints(prompt, "speech_too_long", 9.9);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].text.find("25 spoken words take about 10.0 s to say and the clip lasts 9.9 s"), std::string::npos)
      << found[0].text;
}

TEST(PromptLint, CutsAfterTheEnd) {
  const std::string prompt =
      "[Shot 2] At 00:04.500, the camera cuts. [Shot 3] At 01:00.250, again. The clock says 12:30.";
  EXPECT_EQ(hints(prompt, "time_after_end", 61).size(), 0u);
  EXPECT_EQ(hints(prompt, "time_after_end", 5).size(), 1u);
  ASSERT_EQ(hints(prompt, "time_after_end", 4.5).size(), 2u);
  EXPECT_EQ(hints(prompt, "time_after_end", 4.5)[0].found, "00:04.500");
}

TEST(PromptLint, Manners) {
  EXPECT_EQ(hints("a cat", "short").size(), 1u);
  EXPECT_EQ(hints("a cat", "no_sound").size(), 1u);
  EXPECT_TRUE(hints("a cat sings", "no_sound").empty());
  EXPECT_EQ(hints("overall_soundscape: wind", "incomplete_structure").size(), 1u);
  EXPECT_EQ(hints("overall_soundscape: wind", "no_first_shot").size(), 1u);
  EXPECT_EQ(hints(std::string(7001, 'x'), "long").size(), 1u);
  EXPECT_TRUE(lint(" ").hints.empty());
  const std::vector<PromptHint> mixed = lint("a <|x|> <|image_pad|>").hints;
  EXPECT_TRUE(std::is_sorted(mixed.begin(), mixed.end(),
                             [](const PromptHint& a, const PromptHint& b) { return a.level < b.level; }));
}

// The rows that the linter counts are those that the presentation has.
TEST(PromptLint, CountsWhatIsPresented) {
  const ModelFiles files = made_files();
  const Tokenizer tokenizer(*files.tokenizer, AddedSet::h3);
  const auto picture = [](int width, int height) {
    return Picture{width, height, std::vector<uint8_t>(static_cast<size_t>(width) * static_cast<size_t>(height) * 3)};
  };
  const PromptMedia image{PromptMedia::Kind::image, {picture(320, 256)}, false};
  const PromptMedia sound{PromptMedia::Kind::audio, {}, true};
  for (const int frames : {13, 25, 36}) {
    for (const bool heard : {false, true}) {
      const PromptMedia video{PromptMedia::Kind::video,
                              std::vector<Picture>(static_cast<size_t>(frames), picture(96, 64)), heard};
      const std::vector<PromptMedia> media = {image, sound, video, image};
      const auto rows = static_cast<int64_t>(present(tokenizer, "ab <d>", media).ids.size());
      EXPECT_EQ(media_rows(tokenizer, media) + static_cast<int64_t>(tokenizer.encode("ab <d>").size()), rows)
          << frames << heard;
    }
  }
}

// Requests carry the count and the warnings, and a run has as many rows.
TEST(PromptLint, RequestsCarryIt) {
  Log log;
  ThreadPool pool(1);
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  Engine engine(context, *ops, {});
  Request request;
  request.prompt = "a red ball says \"one two three four five six seven eight nine ten\" <|ball|>";
  request.width = request.height = 32;
  request.frames = 5;
  request.steps = 1;
  auto picture = std::make_shared<Image>();
  picture->width = picture->height = 32;
  picture->rgb.resize(32 * 32 * 3);
  request.first_picture = picture;
  const Resolved resolved = resolve(request, engine.facts());
  const RunReport report = engine.run(resolved, Control());
  EXPECT_EQ(resolved.prompt_tokens, report.text_rows);
  const auto mentions = [&](const char* text) {
    return std::count_if(report.warnings.begin(), report.warnings.end(),
                         [&](const std::string& warning) { return warning.find(text) != std::string::npos; });
  };
  EXPECT_EQ(mentions("10 spoken words take about 4.0 s"), 1);
  EXPECT_EQ(mentions("<|ball|> is no token of this model"), 1);
  EXPECT_EQ(resolved.to_json().at("prompt_tokens").as_int(), resolved.prompt_tokens);
  request.prompt = std::string(262145, '1');
  try {
    resolve(request, engine.facts());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("at most 262144"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace h3
