// What a prompt will mean to the model, found out before anything runs: its tokens, the marks in it, the words that are
// spoken, the cut times. Spec conditioner 2, 3, 10.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/text/picture.h"

namespace h3 {

class Tokenizer;
struct ModelFiles;
struct TokenizerFiles;
enum class AddedSet : uint8_t;

struct PromptHint {
  // error: the request is refused. warning: the clip will probably disappoint. advice: how prompts of this model are
  // usually written.
  enum class Level : uint8_t { error, warning, advice } level = Level::advice;
  std::string code;   // "unknown_token", "chat_token", "unpaired_token", "too_many_tokens", "speech_too_long" ...
  std::string text;   // one sentence: what was found and what to write instead
  std::string found;  // the words of the prompt it is about; empty = the whole prompt
};
const char* name_of(PromptHint::Level level);

// What somebody says in the clip: the insides of <d>...</d>; in a prompt without them, and without the sections of a
// structured one, where they are signs to be read, the words in double quotes.
struct Speech {
  int words = 0;       // of scripts with spaces between words
  int characters = 0;  // of Chinese, Japanese, Thai and the like
  double seconds = 0;  // to say them
};
Speech spoken(const std::string& prompt);

struct PromptLint {
  int64_t prompt_tokens = -1;  // of the prompt alone; -1 = there is no tokenizer here
  int64_t tokens = -1;         // with the labels and blocks of its pictures: rows of the text encoder
  int64_t token_limit = 0;
  Speech speech;
  std::vector<PromptHint> hints;  // the worst first

  Json to_json() const;
};

// What of a request a prompt is judged against.
struct PromptScene {
  double seconds = 0;              // of the clip
  std::vector<PromptMedia> media;  // sizes only
};

class PromptLinter {
 public:
  // Of the text encoder among the files. Without a tokenizer there: the names of the release, and no counts.
  explicit PromptLinter(const ModelFiles& files);
  ~PromptLinter();

  // May be called by several threads. Error(data) when the tokenizer cannot be read, Error(usage) for text that it
  // cannot take.
  PromptLint lint(const std::string& prompt, const PromptScene& scene) const;

 private:
  void load() const;

  mutable std::once_flag once_;
  mutable std::unique_ptr<TokenizerFiles> files_;  // until they are read, with the first prompt
  AddedSet set_;
  mutable std::unique_ptr<const Tokenizer> tokenizer_;
  mutable std::vector<std::string> known_;  // added tokens
};

}  // namespace h3
