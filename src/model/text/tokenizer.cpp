#include "model/text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/unicode.h"
#include "store/model_files.h"

namespace h3 {
namespace {

// Longer prompts than any model takes; keeps positions in 32 bits.
constexpr size_t kMaxText = size_t{1} << 26;

struct Chars {
  std::vector<uint32_t> code;
  std::vector<CharClass> kind;
  std::vector<size_t> offset;  // byte offset of each, and of the end
  size_t size() const { return code.size(); }
  bool is(size_t i, CharClass k) const { return i < kind.size() && kind[i] == k; }
  bool newline(size_t i) const { return i < code.size() && (code[i] == '\r' || code[i] == '\n'); }
};

Chars decode_chars(std::string_view text) {
  Chars out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text.substr(i));
    H3_ASSERT(length > 0);  // checked by encode()
    const uint32_t c = utf8_decode(text.data() + i, length);
    out.code.push_back(c);
    out.kind.push_back(class_of(c));
    out.offset.push_back(i);
    i += length;
  }
  out.offset.push_back(text.size());
  return out;
}

// Case folding of (?i) as far as the contractions can see it: U+017F folds to s.
uint32_t fold(uint32_t c) {
  if (c >= 'A' && c <= 'Z') return c + 32;
  return c == 0x17f ? 's' : c;
}

// Characters of a contraction that starts at the apostrophe i; 0 when none does.
size_t contraction(const Chars& t, size_t i) {
  if (t.code[i] != '\'') return 0;
  for (const std::string_view suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    size_t k = 0;
    while (k < suffix.size() && i + 1 + k < t.size() &&
           fold(t.code[i + 1 + k]) == static_cast<unsigned char>(suffix[k])) {
      ++k;
    }
    if (k == suffix.size()) return 1 + k;
  }
  return 0;
}

// End of the blank run's piece that starts at i: \s*[\r\n]+ , \s+(?!\S) , \s+ .
size_t blank_end(const Chars& t, size_t i) {
  size_t end = i;
  size_t after_newline = 0;
  while (t.is(end, CharClass::space)) {
    ++end;
    if (t.newline(end - 1)) after_newline = end;
  }
  if (after_newline > 0) return after_newline;
  return end == t.size() || end - i == 1 ? end : end - 1;  // the last blank is left for the next word
}

// End of the piece that starts at i; alternatives in the order of the pattern (spec conditioner 2.4).
size_t piece_end(const Chars& t, size_t i) {
  if (const size_t length = contraction(t, i)) return i + length;
  const CharClass kind = t.kind[i];
  const bool joins_word = kind != CharClass::letter && kind != CharClass::number && !t.newline(i);
  size_t j = joins_word && t.is(i + 1, CharClass::letter) ? i + 1 : i;
  if (t.is(j, CharClass::letter)) {
    while (t.is(j, CharClass::letter)) ++j;
    return j;
  }
  if (kind == CharClass::number) return i + 1;  // every digit alone
  j = t.code[i] == ' ' && t.is(i + 1, CharClass::other) ? i + 1 : i;
  if (t.is(j, CharClass::other)) {
    while (t.is(j, CharClass::other)) ++j;
    while (t.newline(j)) ++j;
    return j;
  }
  return blank_end(t, i);
}

}  // namespace

Tokenizer::Tokenizer(const TokenizerFiles& files, AddedSet set)
    : model_(std::make_unique<const BpeModel>(load_bpe(files))),
      added_(resolve_added_tokens(*model_, files, set, notes_)) {
  for (const AddedToken& token : added_) {
    longest_first_.push_back(&token);
    starts_added_[static_cast<unsigned char>(token.content[0])] = true;
  }
  std::stable_sort(longest_first_.begin(), longest_first_.end(),
                   [](const AddedToken* a, const AddedToken* b) { return a->content.size() > b->content.size(); });
  special_ = {.vision_start = id_of("<|vision_start|>"),
              .vision_end = id_of("<|vision_end|>"),
              .image_pad = id_of("<|image_pad|>"),
              .video_pad = id_of("<|video_pad|>")};
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

int32_t Tokenizer::base_size() const { return model_->size(); }

int32_t Tokenizer::id_of(std::string_view added) const {
  for (const AddedToken& token : added_) {
    if (token.content == added) return token.id;
  }
  return -1;
}

const AddedToken* Tokenizer::match_added(std::string_view text) const {
  if (!starts_added_[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const AddedToken* token : longest_first_) {
    if (text.starts_with(token->content)) return token;
  }
  return nullptr;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (text.size() > kMaxText) {
    fail(Code::usage, "the text has %zu bytes; at most %zu can be tokenised", text.size(), kMaxText);
  }
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text.substr(i));
    if (length == 0) {
      fail(Code::usage, "the text is not valid UTF-8 at byte %zu (0x%02x)", i, static_cast<unsigned char>(text[i]));
    }
    i += length;
  }
  // Added tokens are matched on the raw text, before normalisation; what lies between is ordinary text.
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = match_added(text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    encode_plain(text.substr(begin, i - begin), ids);
    ids.push_back(token->id);
    i += token->content.size();
    begin = i;
  }
  encode_plain(text.substr(begin), ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const std::string normal = nfc(text);
  const Chars chars = decode_chars(normal);
  for (size_t i = 0; i < chars.size();) {
    const size_t end = piece_end(chars, i);
    model_->encode_piece(std::string_view(normal).substr(chars.offset[i], chars.offset[end] - chars.offset[i]), ids);
    i = end;
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) {
    if (id >= 0 && id < model_->size()) {
      out += model_->tokens[static_cast<size_t>(id)];
      continue;
    }
    for (const AddedToken& token : added_) {
      if (token.id == id) out += token.content;
    }
  }
  return out;
}

}  // namespace h3
