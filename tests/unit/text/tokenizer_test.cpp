// Byte-level BPE on a vocabulary made here, and the published vectors of the released one when $H3_GOLDEN has it.
#include "model/text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "model/text/unicode.h"
#include "store/assemble.h"

namespace h3 {
namespace {

using Ids = std::vector<int32_t>;

// Bytes are 0..255 in symbol order ('a' = 64, ' ' = 220, newline = 198), merges 256.. .
constexpr const char* kMerges =
    "#version: 0.2\n"
    "\xC4\xA0 \xC4\xA0\n"  // 256: two blanks
    "\xC4\xA0 a\n"         // 257: " a"
    "a b\n"                // 258
    "ab ab\n"              // 259
    "' s\n"                // 260
    "1 2\n"                // 261: never met, digits stand alone
    "\n"
    "b c\n"                // 262
    ". \xC4\x8A\n"         // 263: ".\n"
    "\xC3\x83 \xC2\xA9\n"  // 264: U+00E9
    "> >\n";               // 265

constexpr const char* kConfig = R"({"added_tokens_decoder": {
  "300": {"content": "<|vision_start|>"}, "301": {"content": "<|vision_end|>"}, "302": {"content": "<|image_pad|>"},
  "303": {"content": "<|video_pad|>"}, "305": {"content": "<|image_pad|>>"}},
  "additional_special_tokens": ["<|image_pad|>", "<d>", {"content": "</d>"}]})";

TokenizerFiles made_files() {
  TokenizerFiles files;
  files.origin = "made";
  files.merges_txt = kMerges;
  files.tokenizer_config_json = kConfig;
  return files;
}

std::string error_of(const TokenizerFiles& files, Code code) {
  try {
    Tokenizer tokenizer(files);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(Tokenizer, SplitsBeforeItMerges) {
  const Tokenizer t(made_files());
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.encode(" "), Ids{220});
  EXPECT_EQ(t.encode("  "), Ids{256});
  EXPECT_EQ(t.encode("a a"), (Ids{64, 257}));
  EXPECT_EQ(t.encode("a  a"), (Ids{64, 220, 257}));  // the last blank goes with the word
  EXPECT_EQ(t.encode("a   a"), (Ids{64, 256, 257}));
  EXPECT_EQ(t.encode("a  "), (Ids{64, 256}));
  EXPECT_EQ(t.encode("12"), (Ids{16, 17}));  // every digit alone, so the merge never applies
  EXPECT_EQ(t.encode("a's"), (Ids{64, 260}));
  EXPECT_EQ(t.encode("a'S"), (Ids{64, 6, 50}));
  EXPECT_EQ(t.encode("ab.\nab"), (Ids{258, 263, 258}));  // newlines belong to the punctuation before them
  EXPECT_EQ(t.encode("a\n  a"), (Ids{64, 198, 220, 257}));
}

TEST(Tokenizer, LowestRankFirstLeftmostOnTies) {
  const Tokenizer t(made_files());
  EXPECT_EQ(t.encode("abab"), Ids{259});
  EXPECT_EQ(t.encode("ababab"), (Ids{259, 258}));
  EXPECT_EQ(t.encode("abc"), (Ids{258, 66}));  // "a b" outranks "b c"
  EXPECT_EQ(t.encode("bc"), Ids{262});
  EXPECT_EQ(t.encode(">>>"), (Ids{265, 29}));
  EXPECT_EQ(t.encode(std::string(4001, 'a') + "b").size(), 4001u);  // a long piece, one merge at its end
}

TEST(Tokenizer, AddedTokensAreTakenFirstAndLongest) {
  const Tokenizer t(made_files());
  EXPECT_EQ(t.encode("a<|image_pad|>a"), (Ids{64, 302, 64}));
  EXPECT_EQ(t.encode("<|image_pad|>>"), Ids{305});
  EXPECT_EQ(t.encode("<d> a</d>"), (Ids{306, 257, 307}));  // appended behind the highest id, in list order
  EXPECT_EQ(t.encode("<D>").size(), 3u);
  EXPECT_EQ(t.special().image_pad, 302);
  EXPECT_EQ(t.id_of("<|cutoff|>"), -1);  // this configuration does not list it
  const Tokenizer stock(made_files(), AddedSet::stock);
  EXPECT_EQ(stock.id_of("<d>"), -1);
  EXPECT_EQ(t.decode(Ids{306, 257, 307, 9999, -1}), "<d> a</d>");
}

TEST(Tokenizer, ExtraTokensAreKnownWithoutAList) {
  TokenizerFiles files = made_files();
  files.tokenizer_config_json = R"({"added_tokens_decoder": {"266": {"content": "<|endoftext|>"}}})";
  const Tokenizer t(files);
  EXPECT_EQ(t.id_of("<d>"), 267);
  EXPECT_EQ(t.id_of("<|caption_end|>"), 273);
}

TEST(Tokenizer, TokenizerJsonTakesBothSpellingsOfMerges) {
  // Every byte symbol, then "ab".
  std::string vocab;
  int id = 0;
  for (const bool itself : {true, false}) {
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool plain =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
      const uint32_t symbol = plain ? static_cast<uint32_t>(byte) : next++;
      if (plain != itself) continue;
      vocab += '"';
      if (symbol == '"' || symbol == '\\') vocab += '\\';
      append_utf8(vocab, symbol);
      vocab += strf("\": %d, ", id++);
    }
  }
  const std::string head = R"({"added_tokens": [{"id": 257, "content": "<x>"}], "normalizer": {"type": "NFC"},
    "model": {"type": "BPE", "vocab": {)" +
                           vocab + R"("ab": 256}, "merges": [)";
  for (const char* merge : {R"("a b")", R"(["a", "b"])"}) {
    TokenizerFiles files;
    files.tokenizer_json = head + merge + "]}}";
    EXPECT_EQ(Tokenizer(files).encode("ab<x>"), (Ids{256, 257})) << merge;
  }
  TokenizerFiles other;
  other.tokenizer_json = head + R"("a b"]}, "pre_tokenizer": {"pretokenizers": [{"pattern": {"Regex": "\\w+"}}]}})";
  EXPECT_NE(error_of(other, Code::data).find("not the one of Qwen2"), std::string::npos);
  other.tokenizer_json = head + R"("a z"]}})";
  EXPECT_NE(error_of(other, Code::data).find("not in the vocabulary"), std::string::npos);
}

TEST(Tokenizer, RefusesDataThatIsNotATokenizer) {
  TokenizerFiles files;
  EXPECT_NE(error_of(files, Code::data).find("merges.txt"), std::string::npos);
  files.merges_txt = "a b c\n";
  EXPECT_NE(error_of(files, Code::data).find("merge 1"), std::string::npos);
  files.merges_txt = "zz y\n";
  EXPECT_NE(error_of(files, Code::data).find("not in the vocabulary"), std::string::npos);
  files.merges_txt = "a b\n";
  EXPECT_NE(error_of(files, Code::data).find("added tokens"), std::string::npos);
  files.vocab_json = R"({"a": 0, "b": 0})";
  EXPECT_NE(error_of(files, Code::data).find("each once"), std::string::npos);
  files.vocab_json = R"({"a": 0})";
  EXPECT_NE(error_of(files, Code::data).find("byte-level"), std::string::npos);
  files.vocab_json = "{";
  EXPECT_FALSE(error_of(files, Code::data).empty());
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer t(made_files());
  for (const char* text : {"a\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf4\x90\x80\x80"}) {
    try {
      t.encode(text);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      EXPECT_NE(std::string(error.what()).find("byte"), std::string::npos);
    }
  }
  if (!have_unicode_tables()) {
    EXPECT_THROW(t.encode("\xc3\xa9"), Error);
  }
}

// A mixture that exercises every branch of the scanner.
std::string random_text(std::mt19937& random) {
  static const char32_t kPool[] = {'a',    'b',    'B',    's',    't',     '\'',   ' ',    ' ',      '\n',   '\r',
                                   '\t',   '1',    '2',    '.',    '<',     '>',    0xe9,   0x301,    0x65,   0x17f,
                                   0x85,   0xa0,   0x2003, 0x3000, 0x200b,  0x200d, 0xfe0f, 0x1112,   0x1161, 0x11ab,
                                   0xd55c, 0x212b, 0x338,  0xbd,   0x2167,  0x663,  0x4e2d, 0x1f642,  0x180e, 0x1c,
                                   0xfeff, 0x93f,  0x1100, 0xac00, 0x1d15e, 0xf900, 0x344,  0x10ffff, 0x0,    'l'};
  std::string out;
  const int length = static_cast<int>(random() % 24);
  for (int i = 0; i < length; ++i) append_utf8(out, kPool[random() % std::size(kPool)]);
  return out;
}

void check_inverse(const Tokenizer& tokenizer, int rounds) {
  std::mt19937 random(20240607);
  for (int i = 0; i < rounds; ++i) {
    const std::string text = random_text(random);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), nfc(text)) << i;
  }
}

TEST(Tokenizer, DecodingGivesTheNormalisedTextBack) {
  if (!have_unicode_tables()) GTEST_SKIP() << "no Unicode tables in this build";
  TokenizerFiles files = made_files();
  files.tokenizer_config_json = R"({"added_tokens_decoder": {"300": {"content": "<|im_start|>"}}})";
  check_inverse(Tokenizer(files, AddedSet::stock), 20000);
}

TEST(Tokenizer, NormalisesAndClassifies) {
  if (!have_unicode_tables()) GTEST_SKIP() << "no Unicode tables in this build";
  EXPECT_EQ(nfc("e\xcc\x81"), "\xc3\xa9");
  EXPECT_EQ(nfc("\xe2\x84\xab"), "\xc3\x85");                                      // Angstrom sign
  EXPECT_EQ(nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"), "\xed\x95\x9c");          // Hangul
  EXPECT_EQ(nfc(std::string("a\0b\xc3\xa9", 5)), std::string("a\0b\xc3\xa9", 5));  // a zero byte is text
  EXPECT_EQ(class_of(0x2167), CharClass::number);
  EXPECT_EQ(class_of(0xbd), CharClass::number);
  EXPECT_EQ(class_of(0x301), CharClass::other);
  EXPECT_EQ(class_of(0x200b), CharClass::other);
  EXPECT_EQ(class_of(0x1c), CharClass::other);
  EXPECT_EQ(class_of(0x180e), CharClass::other);
  EXPECT_EQ(class_of(0x3000), CharClass::space);
  const Tokenizer t(made_files());
  EXPECT_EQ(t.encode("e\xcc\x81"), Ids{264});
  EXPECT_EQ(t.encode("a'\xc5\xbf").size(), 4u);  // U+017F folds to s: a piece of its own, so no merge "' s" of bytes
}

struct ReleasedTokenizer : ::testing::Test {
  void SetUp() override {
    const char* golden = std::getenv("H3_GOLDEN");
    if (golden == nullptr) GTEST_SKIP() << "H3_GOLDEN is not set";
    if (!have_unicode_tables()) GTEST_SKIP() << "no Unicode tables in this build";
    const std::optional<TokenizerFiles> files = find_tokenizer(Folder(std::string(golden) + "/tokenizer"));
    if (!files) GTEST_SKIP() << "no released tokenizer there";
    tokenizer.emplace(*files);
  }
  std::optional<Tokenizer> tokenizer;
};

TEST_F(ReleasedTokenizer, PublishedVectors) {
  const struct {
    const char* text;
    Ids ids;
  } vectors[] = {
      {"A red fox walking through snow", {32, 2518, 38835, 11435, 1526, 11794}},
      {"Hello, WORLD!  2026\n\u4e2d\u6587 caf\u00e9's",
       {9707, 11, 50891, 0, 220, 220, 17, 15, 17, 21, 198, 104811, 51950, 594}},
      {"\U0001f642a!\n", {145080, 64, 4894}},
      {"<Picture 1>: ", {21604, 3826, 220, 16, 26818, 220}},
      {"<Picture 10>: ", {21604, 3826, 220, 16, 15, 26818, 220}},
      {"<Audio 1>: ", {65406, 220, 16, 26818, 220}},
      {"<Video 1>: ", {27, 10724, 220, 16, 26818, 220}},
      {"<0.2 seconds>", {27, 15, 13, 17, 6486, 29}},
      {"<14.2 seconds>", {27, 16, 19, 13, 17, 6486, 29}},
      {"<d>[English] hold on</d><|cutoff|>", {151669, 58, 22574, 60, 3331, 389, 151670, 151671}},
      {"<d>[Chinese] \u4f60\u597d\u3002</d>", {151669, 58, 44923, 60, 220, 108386, 1773, 151670}},
      {"<|caption_start|>hi<|caption_end|>", {151674, 6023, 151675}},
      {"<|lyrics_start|>la la<|lyrics_end|>", {151672, 4260, 1187, 151673}},
      {"<D>", {29061, 29}},
      {"<scenetrans>", {27, 2388, 268, 17366, 596, 29}},
      {"<|vision_start|><|image_pad|><|vision_end|>", {151652, 151655, 151653}},
      {"<|im_end|", {27, 91, 318, 6213, 91}},
      {"a<|endoftext|> b", {64, 151643, 293}},
      {" \n ", {715, 220}},
      {"a  b", {64, 220, 293}},
      {"a \n b", {64, 715, 293}},
      {"line\r\nbreak", {1056, 319, 8960}},
      {"CAN'T", {41955, 17323}},
      {"O'Reilly", {46, 49427, 14385}},
      {"\u212b", {144044}},
      {"\u1112\u1161\u11ab", {23573}},
      {"x\u00b2", {87, 29456}},
      {"\u2167", {70467, 100}},
      {"\u0939\u093f\u0928\u094d\u0926\u0940", {93948, 42311, 101, 30484, 99, 43647}},
      {"\U0001f468\u200d\U0001f469\u200d\U0001f467", {145367, 378, 235, 145233, 378, 235, 145665}},
      {"a\u00a0b", {64, 4102, 65}},
      {"\u3000\u5168\u89d2", {22441, 35987, 63836}},
      {"a\u2028b", {64, 378, 101, 65}},
  };
  for (const auto& vector : vectors) EXPECT_EQ(tokenizer->encode(vector.text), vector.ids) << vector.text;
  EXPECT_TRUE(tokenizer->notes().empty());
}

TEST_F(ReleasedTokenizer, DecodingGivesTheNormalisedTextBack) { check_inverse(*tokenizer, 5000); }

}  // namespace
}  // namespace h3
