#include "pipeline/prompt_lint.h"

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/utf8.h"
#include "model/text/added_tokens.h"
#include "model/text/conditioner.h"
#include "model/text/presentation.h"
#include "model/text/unicode.h"
#include "store/model_files.h"

namespace h3 {
namespace {

using Level = PromptHint::Level;

// Talk in films and on the radio, pauses included: about 150 words of English and 270 characters of Chinese or Japanese
// a minute. People can speak faster; the model then swallows words.
constexpr double kWordsPerSecond = 2.5, kCharactersPerSecond = 4.5;

// The hosted service refuses longer ones.
constexpr size_t kHostedCharacters = 7000;

// A prompt of any language has fewer bytes a token; longer ones are refused before they are counted.
constexpr size_t kMostBytes = 16 * kMostTokens;
// Enough to be told at once.
constexpr size_t kMostHints = 40;

constexpr const char* kSections[] = {
    "integrated_multimodal_description:", "overall_soundscape:", "non_diegetic_music:"};
constexpr const char* kReferenceSection = "detailed_description:";  // of prompts with references

struct Pair {
  const char *open, *close, *what;
};
constexpr Pair kPairs[] = {{"<d>", "</d>", "every spoken line"},
                           {"<|lyrics_start|>", "<|lyrics_end|>", "lyrics"},
                           {"<|caption_start|>", "<|caption_end|>", "a caption"}};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
// ---- words that are spoken ------------------------------------------------------------------------------------------
// Scripts that put no spaces between words.
bool unspaced(uint32_t c) {
  return (c >= 0x0E00 && c <= 0x0EFF) || (c >= 0x1000 && c <= 0x109F) || (c >= 0x1780 && c <= 0x17FF) ||
         (c >= 0x3040 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x20000 && c <= 0x323AF);
}

void count_words(std::string_view text, Speech& speech) {
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::max<size_t>(utf8_sequence(text.substr(i)), 1);
    const uint32_t c = utf8_decode(text.data() + i, length);
    i += length;
    const CharClass kind = class_of(c);
    const bool part = kind == CharClass::letter || kind == CharClass::number;
    if (part && unspaced(c)) {
      ++speech.characters;
      inside = false;
    } else if (part) {
      speech.words += inside ? 0 : 1;
      inside = true;
    } else if (kind == CharClass::space || c == 0x2013 || c == 0x2014) {  // and dashes
      inside = false;
    }
  }
}

// Texts between double quotes of any kind. A straight one right behind a letter or digit opens nothing (12" records).
std::vector<std::string_view> in_quotes(std::string_view text) {
  struct Quotes {
    std::string_view open, close, other;
  };
  static constexpr Quotes kQuotes[] = {{"\"", "\"", "\""},
                                       {"\u201c", "\u201d", "\u201d"},
                                       {"\u201e", "\u201c", "\u201d"},
                                       {"\u00ab", "\u00bb", "\u00bb"},
                                       {"\u300c", "\u300d", "\u300d"},
                                       {"\u300e", "\u300f", "\u300f"}};
  std::vector<std::string_view> out;
  const Quotes* open = nullptr;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto here = [&](std::string_view mark) { return text.substr(i, mark.size()) == mark; };
    if (open != nullptr) {
      if (!here(open->close) && !here(open->other)) continue;
      out.push_back(text.substr(begin, i - begin));
      i += open->close.size() - 1;
      open = nullptr;
      continue;
    }
    for (const Quotes& quotes : kQuotes) {
      if (!here(quotes.open)) continue;
      if (quotes.open == "\"" && i > 0 && (is_letter(text[i - 1]) || is_digit(text[i - 1]))) break;
      open = &quotes;
      begin = i + quotes.open.size();
      i = begin - 1;
      break;
    }
  }
  return out;
}

// What stands between <d> and </d>.
std::vector<std::string_view> dialogue(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = text.find("<d>"); at != std::string_view::npos; at = text.find("<d>", at)) {
    at += 3;
    const size_t end = std::min(text.find("</d>", at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

// "[English] hold on": the language, which is not spoken.
size_t label_length(std::string_view line) {
  const size_t first = line.find_first_not_of(' '), end = line.find(']');
  return first != std::string_view::npos && line[first] == '[' && end != std::string_view::npos ? end + 1 : 0;
}

bool structured(std::string_view prompt) {
  return has(prompt, kReferenceSection) ||
         std::any_of(std::begin(kSections), std::end(kSections), [&](const char* name) { return has(prompt, name); });
}

// ---- marks ----------------------------------------------------------------------------------------------------------
// Something in angle brackets that looks like a token of the model; empty: it does not.
struct Mark {
  std::string_view text;
  std::string plain;  // lower case, without blanks
  bool piped = false;
};

Mark mark_at(std::string_view text, size_t at) {
  constexpr size_t kMost = 40;
  Mark mark;
  mark.piped = text.substr(at, 2) == "<|";
  size_t end = at + (mark.piped ? 2 : 1);
  const auto belongs = [&](char c) { return is_letter(c) || is_digit(c) || c == ' ' || c == '/' || c == '-'; };
  while (end < text.size() && end - at < kMost && belongs(text[end])) ++end;
  const size_t inside = end;
  while (end < text.size() && end - inside < 2 && (text[end] == '|' || text[end] == '>')) ++end;
  const bool named = std::any_of(text.begin() + static_cast<std::ptrdiff_t>(at),
                                 text.begin() + static_cast<std::ptrdiff_t>(inside), is_letter);
  if (!named || end == inside) return {};
  mark.text = text.substr(at, end - at);
  for (const char c : mark.text) {
    if (c != ' ') mark.plain += lower(c);
  }
  return mark;
}

class Finder {
 public:
  Finder(const std::string& prompt, const PromptScene& scene, const std::vector<std::string>& known,
         const Tokenizer* tokenizer)
      : prompt_(prompt), scene_(scene), known_(known), tokenizer_(tokenizer) {}

  PromptLint run() {
    count_tokens();
    if (prompt_.size() > kMostBytes) return std::move(out_);
    marks();
    pairs();
    speech();
    cuts();
    manners();
    std::stable_sort(out_.hints.begin(), out_.hints.end(),
                     [](const PromptHint& a, const PromptHint& b) { return a.level < b.level; });
    return std::move(out_);
  }

 private:
  bool full() const { return out_.hints.size() >= kMostHints; }
  void add(Level level, const char* code, std::string text, std::string_view found = {}) {
    if (full()) return;
    for (const PromptHint& hint : out_.hints) {
      if (hint.code == code && hint.found == found) return;  // once is enough
    }
    out_.hints.push_back({level, code, "prompt: " + std::move(text), std::string(found)});
  }

  void count_tokens() {
    out_.token_limit = kMostTokens;
    if (prompt_.size() > kMostBytes) {
      return add(Level::error, "too_many_tokens",
                 strf("%zu bytes, at most %zu are possible, shorten it", prompt_.size(), kMostBytes));
    }
    if (tokenizer_ == nullptr) return;
    out_.prompt_tokens = static_cast<int64_t>(tokenizer_->encode(prompt_).size());
    out_.tokens = out_.prompt_tokens + media_rows(*tokenizer_, scene_.media);
    if (out_.tokens <= kMostTokens) return;
    add(Level::error, "too_many_tokens",
        strf("%s%lld tokens, at most %lld are possible, shorten it", scene_.media.empty() ? "" : "with its pictures ",
             static_cast<long long>(out_.tokens), static_cast<long long>(kMostTokens)));
  }

  // The longest added token here.
  std::string_view known_at(size_t at) const {
    std::string_view best;
    for (const std::string& token : known_) {
      if (token.size() > best.size() && prompt_.compare(at, token.size(), token) == 0) best = token;
    }
    return best;
  }

  void marks() {
    std::vector<std::string> ours, all(known_);
    for (const char* token : h3_tokens()) {
      if (std::find(known_.begin(), known_.end(), token) != known_.end()) ours.emplace_back(token);
      all.emplace_back(token);
    }
    for (size_t at = prompt_.find('<'); !full() && at != std::string::npos; at = prompt_.find('<', at)) {
      const std::string_view known = known_at(at);
      if (!known.empty()) {
        check_chat(known, ours);
        at += known.size();
        continue;
      }
      const Mark mark = mark_at(prompt_, at);
      if (!mark.text.empty()) check_mark(mark, ours, all);
      at += 1;
    }
  }

  void check_chat(std::string_view token, const std::vector<std::string>& ours) {
    if (std::find(ours.begin(), ours.end(), token) != ours.end()) return;
    const std::string text(token);
    if (token == "<|image_pad|>" || token == "<|video_pad|>") {
      add(Level::error, "pad_token", text + " stands for a picture inside the model, remove it", token);
    } else {
      add(Level::warning, "chat_token",
          text + " belongs to chats, and this model reads its prompt without a template, remove it", token);
    }
  }

  void check_mark(const Mark& mark, const std::vector<std::string>& ours, const std::vector<std::string>& all) {
    const std::string text(mark.text);
    const auto meant = std::find(all.begin(), all.end(), mark.plain);
    if (meant == all.end() && !mark.piped) return;  // <cutoff> and the like are ordinary words of a prompt
    if (meant != all.end() && *meant == text) {     // of the release, but not of this text encoder
      add(Level::warning, "unknown_token", text + " is no token of this text encoder, which reads it as ordinary text",
          mark.text);
      return;
    }
    std::string read = "is no token of this model";
    if (tokenizer_ != nullptr) read += strf(" and is read as %zu ordinary ones", tokenizer_->encode(text).size());
    const std::string advice =
        meant != all.end() ? "write " + *meant : "known are " + joined(ours, ", ") + suggestion(mark.plain, ours);
    add(Level::warning, "unknown_token", text + " " + read + ", " + advice, mark.text);
  }

  void pairs() {
    for (const Pair& pair : kPairs) {
      const size_t opened = count(prompt_, pair.open), closed = count(prompt_, pair.close);
      const bool turned = opened == closed && opened > 0 && prompt_.find(pair.close) < prompt_.find(pair.open);
      if (opened == closed && !turned) continue;
      add(Level::warning, "unpaired_token",
          strf("%s stands between %s and %s, here are %zu and %zu%s", pair.what, pair.open, pair.close, opened, closed,
               turned ? " in the wrong order" : ""),
          opened > closed || turned ? pair.open : pair.close);
    }
    for (const std::string_view line : dialogue(prompt_)) {
      if (label_length(line) > 0) continue;
      add(Level::advice, "no_language", "name the language of spoken words, as in <d>[English] hold on</d>", "<d>");
    }
  }

  void speech() {
    out_.speech = spoken(prompt_);
    const Speech& said = out_.speech;
    if (scene_.seconds <= 0 || said.seconds <= scene_.seconds) return;
    std::string amount = said.words > 0 ? strf("%d spoken words", said.words) : "";
    if (said.characters > 0) amount += strf("%s%d spoken characters", said.words > 0 ? " and " : "", said.characters);
    add(Level::warning, "speech_too_long",
        strf("the %s take about %.1f s to say and the clip lasts %.1f s, shorten them or ask for a longer clip",
             amount.c_str(), said.seconds, scene_.seconds));
  }

  // "[Shot 2] At 00:04.500, the camera cuts": minutes, seconds and a fraction.
  void cuts() {
    const auto digit = [&](size_t at) { return at < prompt_.size() && is_digit(prompt_[at]); };
    for (size_t i = 0; scene_.seconds > 0 && i + 6 < prompt_.size(); ++i) {
      if (prompt_[i + 2] != ':' || prompt_[i + 5] != '.' || (i > 0 && digit(i - 1))) continue;
      if (!digit(i) || !digit(i + 1) || !digit(i + 3) || !digit(i + 4) || !digit(i + 6)) continue;
      size_t end = i + 6;
      while (digit(end)) ++end;
      const std::string time = prompt_.substr(i, end - i);
      const double seconds = 60 * std::atof(time.c_str()) + std::atof(time.c_str() + 3);
      if (seconds >= scene_.seconds) {
        add(Level::warning, "time_after_end",
            strf("%s is after the end of the clip, which lasts %.1f s", time.c_str(), scene_.seconds), time);
      }
      i = end - 1;
    }
  }

  void manners() {
    if (prompt_.find_first_not_of(" \t\r\n") == std::string::npos) return;
    size_t characters = 0;
    for (const char c : prompt_) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (characters > kHostedCharacters) {
      add(Level::advice, "long",
          strf("%zu characters; the hosted service takes %zu, so nobody knows how longer ones fare", characters,
               kHostedCharacters));
    }
    std::vector<std::string> missing;
    for (const char* name : kSections) {
      if (!has(prompt_, name)) missing.emplace_back(name);
    }
    if (!missing.empty() && missing.size() < std::size(kSections) && !has(prompt_, kReferenceSection)) {
      add(Level::advice, "incomplete_structure", "the structure lacks " + joined(missing, ", "));
    }
    if (structured(prompt_) && !has(prompt_, "[Shot 1]")) {
      add(Level::advice, "no_first_shot", "start the description with [Shot 1]");
    }
    if (characters < 20 && !structured(prompt_)) {
      add(Level::advice, "short", "short ones leave much to chance, say who, what, where, light and sound");
    }
    if (!mentions_sound())
      add(Level::advice, "no_sound", "nothing is said about sound, and the model makes some anyway");
  }

  // A word that starts with one of these.
  bool mentions_sound() const {
    if (out_.speech.seconds > 0) return true;
    std::string text = " ";
    for (const char c : prompt_) text += is_letter(c) ? lower(c) : static_cast<unsigned char>(c) < 0x80 ? ' ' : c;
    for (const char* word : {" sound", " music", " voice", " say", " hear", " noise", " silen", " sing", " beep",
                             " song", " speak", " audio", "\u58f0", "\u97f3"}) {
      if (has(text, word)) return true;
    }
    return false;
  }

  const std::string& prompt_;
  const PromptScene& scene_;
  const std::vector<std::string>& known_;
  const Tokenizer* tokenizer_;
  PromptLint out_;
};

}  // namespace

const char* name_of(PromptHint::Level level) {
  return level == Level::error ? "error" : level == Level::warning ? "warning" : "advice";
}

Speech spoken(const std::string& prompt) {
  Speech speech;
  std::vector<std::string_view> lines = dialogue(prompt);
  if (lines.empty() && !structured(prompt)) lines = in_quotes(prompt);
  for (const std::string_view line : lines) count_words(line.substr(label_length(line)), speech);
  speech.seconds = speech.words / kWordsPerSecond + speech.characters / kCharactersPerSecond;
  return speech;
}

Json PromptLint::to_json() const {
  const auto number = [](int64_t value) { return value < 0 ? Json() : Json(value); };
  Json list = Json::array();
  for (const PromptHint& hint : hints) {
    list.push(Json::object(
        {{"level", name_of(hint.level)}, {"code", hint.code}, {"message", hint.text}, {"found", hint.found}}));
  }
  Json json = Json::object({{"tokens", number(tokens)}, {"prompt_tokens", number(prompt_tokens)}});
  json.set("token_limit", token_limit).set("spoken_words", speech.words);
  json.set("spoken_characters", speech.characters).set("speech_seconds", speech.seconds);
  return json.set("hints", std::move(list));
}

PromptLinter::PromptLinter(const ModelFiles& files) : set_(added_set(files)) {
  if (files.tokenizer) files_ = std::make_unique<TokenizerFiles>(*files.tokenizer);
}

PromptLinter::~PromptLinter() = default;

void PromptLinter::load() const {
  if (files_) {
    tokenizer_ = std::make_unique<const Tokenizer>(*files_, set_);
    for (const AddedToken& token : tokenizer_->added()) known_.push_back(token.content);
    files_.reset();
    return;
  }
  known_.assign(stock_tokens().begin(), stock_tokens().end());
  if (set_ == AddedSet::h3) known_.insert(known_.end(), h3_tokens().begin(), h3_tokens().end());
}

PromptLint PromptLinter::lint(const std::string& prompt, const PromptScene& scene) const {
  std::call_once(once_, [this] { load(); });
  return Finder(prompt, scene, known_, tokenizer_.get()).run();
}

}  // namespace h3
