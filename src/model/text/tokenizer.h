// Byte-level BPE of the conditioner (spec conditioner 2): text <-> ids, with the added tokens of H3.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace h3 {

struct TokenizerFiles;
struct BpeModel;

struct AddedToken {
  std::string content;
  int32_t id = 0;
};

// h3: with <d>, </d>, <|cutoff|>, lyrics and caption marks. stock: Qwen3-VL's 26 tokens only, which is what ClipProj
// matrices were fitted with.
enum class AddedSet : uint8_t { h3, stock };

class Tokenizer {
 public:
  // Error(data) naming the file when the data is not a Qwen2 byte-level BPE.
  explicit Tokenizer(const TokenizerFiles& files, AddedSet set = AddedSet::h3);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // No prefix space, no begin or end token, no padding. "" gives no ids. Error(usage) when the text is not UTF-8,
  // or is not ASCII in a build without Unicode tables.
  std::vector<int32_t> encode(std::string_view text) const;
  // The bytes the ids stand for; an id without a token is skipped. decode(encode(s)) == NFC(s) outside added tokens.
  std::string decode(std::span<const int32_t> ids) const;

  int32_t id_of(std::string_view added) const;                      // of an added token; -1 when there is none
  int32_t base_size() const;                                        // ids below are plain vocabulary
  const std::vector<AddedToken>& added() const { return added_; }   // by id
  const std::vector<std::string>& notes() const { return notes_; }  // where the files disagree with the release

  // Tokens the presentation is made of; -1 when the vocabulary lacks one.
  struct Special {
    int32_t vision_start = -1, vision_end = -1, image_pad = -1, video_pad = -1;
  };
  const Special& special() const { return special_; }

 private:
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  const AddedToken* match_added(std::string_view text) const;

  std::unique_ptr<const BpeModel> model_;
  std::vector<AddedToken> added_;
  std::vector<const AddedToken*> longest_first_;
  bool starts_added_[256] = {};
  std::vector<std::string> notes_;
  Special special_;
};

}  // namespace h3
