// Any prompt: it is judged, with a tokenizer and without one, in time that grows with its length alone, and what is
// said of it can be written down.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "pipeline/prompt_lint.h"
#include "store/model_files.h"

namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

h3::ModelFiles made_files(bool tokenizer) {
  h3::ModelFiles files;
  if (!tokenizer) return files;
  files.tokenizer.emplace();
  files.tokenizer->merges_txt = "a b\n";
  files.tokenizer->tokenizer_config_json = R"({"added_tokens_decoder": {"300": {"content": "<|im_start|>"},
    "302": {"content": "<|image_pad|>"}, "303": {"content": "<|video_pad|>"}}})";
  return files;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const h3::PromptLinter with(made_files(true)), without(made_files(false));
  if (size == 0) return 0;
  const h3::PromptScene scene{data[0] / 16.0, {}};
  const std::string prompt(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const h3::PromptLint found = with.lint(prompt, scene);
    check(found.tokens >= 0 && found.tokens == found.prompt_tokens && found.tokens <= static_cast<int64_t>(size) * 4);
    check(found.speech.words <= static_cast<int>(size) && found.speech.characters <= static_cast<int>(size));
    const std::string text = found.to_json().dump();
    check(h3::Json::parse(text, "again").dump() == text);
    const h3::PromptLint bare = without.lint(prompt, scene);
    check(bare.tokens == -1 && bare.speech.words == found.speech.words);
    for (const h3::PromptHint& hint : found.hints) check(prompt.find(hint.found) != std::string::npos);
  } catch (const h3::Error& error) {
    check(error.code() == h3::Code::usage);  // not UTF-8
  }
  return 0;
}
