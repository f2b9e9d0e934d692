// The first byte says what the rest is: j = tokenizer.json, m = merges.txt, c = tokenizer_config.json, anything else =
// text. Data either loads or is an Error; text is either not UTF-8 or comes back normalised.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "model/text/tokenizer.h"
#include "model/text/unicode.h"
#include "store/model_files.h"

namespace {

constexpr const char* kMerges = "\xC4\xA0 a\na b\nab ab\n\xC4\xA0 \xC4\xA0\n\xC3\x83 \xC2\xA9\n. \xC4\x8A\n' s\n1 2\n";

h3::TokenizerFiles made_files() {
  h3::TokenizerFiles files;
  files.merges_txt = kMerges;
  files.tokenizer_config_json =
      R"({"added_tokens_decoder": {"300": {"content": "<|x|>"}, "301": {"content": "<d>"},
      "302": {"content": "<d>>"}}})";
  return files;
}

void load(char kind, const std::string& data) {
  h3::TokenizerFiles files = made_files();
  if (kind == 'j') files.tokenizer_json = data;
  if (kind == 'm') files.merges_txt = data;
  if (kind == 'c') files.tokenizer_config_json = data;
  try {
    const h3::Tokenizer tokenizer(files);
    tokenizer.decode(tokenizer.encode("ab <d>'s 12.\n"));
  } catch (const h3::Error&) {
  }
}

void encode(const std::string& text) {
  static const h3::Tokenizer tokenizer(made_files(), h3::AddedSet::stock);
  try {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      if (id >= tokenizer.base_size()) return;  // composition does not cross an added token
    }
    if (tokenizer.decode(ids) != h3::nfc(text)) std::abort();
  } catch (const h3::Error& error) {
    if (error.code() != h3::Code::usage) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const char kind = static_cast<char>(data[0]);
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (kind == 'j' || kind == 'm' || kind == 'c') {
    load(kind, rest);
  } else {
    encode(rest);
  }
  return 0;
}
