#include "model/text/bpe.h"

#include <queue>

#include "base/error.h"
#include "base/utf8.h"

namespace h3 {
namespace {

// GPT-2's printable stand-ins for bytes: 188 bytes stand for themselves, the other 68 map to U+0100.. in byte order.
constexpr bool byte_is_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

constexpr uint32_t kSymbolEnd = 0x100 + 68;

struct ByteSymbols {
  std::array<uint32_t, 256> symbol{};      // code point of each byte
  std::array<int16_t, kSymbolEnd> byte{};  // byte of each code point; -1 = none
};

constexpr ByteSymbols make_byte_symbols() {
  ByteSymbols out;
  for (int16_t& byte : out.byte) byte = -1;
  uint32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const uint32_t symbol = byte_is_itself(byte) ? static_cast<uint32_t>(byte) : next++;
    out.symbol[static_cast<size_t>(byte)] = symbol;
    out.byte[symbol] = static_cast<int16_t>(byte);
  }
  return out;
}

constexpr ByteSymbols kBytes = make_byte_symbols();

std::string symbol_text(int byte) {
  std::string out;
  append_utf8(out, kBytes.symbol[static_cast<size_t>(byte)]);
  return out;
}

// Back from symbols to bytes. A token with any other character stands for its own UTF-8 bytes.
std::string bytes_of_symbols(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(std::string_view(text).substr(i));
    if (length == 0) return text;
    const uint32_t c = utf8_decode(text.data() + i, length);
    const int byte = c < kSymbolEnd ? kBytes.byte[c] : -1;
    if (byte < 0) return text;
    out += static_cast<char>(byte);
    i += length;
  }
  return out;
}

using SymbolIds = std::unordered_map<std::string, int32_t>;
using Pair = std::pair<std::string, std::string>;

Pair split_pair(std::string_view line, const char* where, size_t number) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    fail(Code::data, "%s: merge %zu is '%.60s'; expected two symbols with one space between", where, number,
         std::string(line).c_str());
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

std::vector<Pair> parse_merges_text(const std::string& text, const char* where) {
  std::vector<Pair> out;
  size_t begin = 0, number = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (!line.empty() && !(number == 1 && line.starts_with("#version"))) out.push_back(split_pair(line, where, number));
    begin = end + 1;
  }
  return out;
}

// "a b" strings or ["a", "b"] pairs.
std::vector<Pair> parse_merges_json(const Json& list, const char* where) {
  std::vector<Pair> out;
  for (const Json& item : list.items()) {
    if (item.is_string()) {
      out.push_back(split_pair(item.as_string(), where, out.size() + 1));
    } else if (item.is_array() && item.size() == 2) {
      out.emplace_back(item.at(size_t{0}).as_string(), item.at(size_t{1}).as_string());
    } else {
      fail(Code::data, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", where, out.size() + 1);
    }
  }
  return out;
}

SymbolIds parse_vocab(const Json& vocab, const char* where) {
  SymbolIds ids;
  const int64_t count = static_cast<int64_t>(vocab.members().size());
  std::vector<bool> seen(static_cast<size_t>(count));
  ids.reserve(static_cast<size_t>(count));
  for (const Json::Member& member : vocab.members()) {
    const int64_t id = member.second.as_int();
    if (id < 0 || id >= count || seen[static_cast<size_t>(id)]) {
      fail(Code::data, "%s: token '%.40s' has id %lld; ids have to be 0..%lld, each once", where, member.first.c_str(),
           static_cast<long long>(id), static_cast<long long>(count - 1));
    }
    seen[static_cast<size_t>(id)] = true;
    ids.emplace(member.first, static_cast<int32_t>(id));
  }
  return ids;
}

// merges.txt alone: 256 bytes in symbol order (the 188 printable ones first), then one token per merge.
SymbolIds vocab_of_merges(const std::vector<Pair>& merges) {
  SymbolIds ids;
  ids.reserve(256 + merges.size());
  int32_t next = 0;
  for (const bool itself : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (byte_is_itself(byte) == itself) ids.emplace(symbol_text(byte), next++);
    }
  }
  for (const Pair& merge : merges) {
    if (ids.emplace(merge.first + merge.second, next).second) ++next;
  }
  return ids;
}

BpeModel build(const SymbolIds& ids, const std::vector<Pair>& merges, const char* where) {
  BpeModel model;
  model.tokens.resize(ids.size());
  for (const auto& [symbols, id] : ids) model.tokens[static_cast<size_t>(id)] = bytes_of_symbols(symbols);
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(symbol_text(byte));
    if (found == ids.end()) fail(Code::data, "%s: no token for byte 0x%02x; not a byte-level vocabulary", where, byte);
    model.byte_ids[byte] = found->second;
  }
  model.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto l = ids.find(left), r = ids.find(right), whole = ids.find(left + right);
    if (l == ids.end() || r == ids.end() || whole == ids.end()) {
      fail(Code::data, "%s: merge %zu '%.40s %.40s' is not in the vocabulary", where, rank + 1, left.c_str(),
           right.c_str());
    }
    const uint64_t key = static_cast<uint64_t>(l->second) << 32 | static_cast<uint32_t>(r->second);
    model.merges.insert_or_assign(key, BpeModel::Merge{static_cast<int32_t>(rank), whole->second});
  }
  return model;
}

// The one pre-tokeniser pattern that the scanner in tokenizer.cpp implements.
constexpr const char* kPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Another pattern, normaliser or model kind would split text differently without anybody noticing.
void check_pipeline(const Json& root, const char* where) {
  const Json* normalizer = root.find("normalizer");
  if (normalizer != nullptr && normalizer->is_object() && normalizer->at("type").as_string() != "NFC") {
    fail(Code::data, "%s: normalizer '%s'; only NFC is known", where, normalizer->at("type").as_string().c_str());
  }
  const Json* pre = root.find("pre_tokenizer");
  const Json* steps = pre != nullptr ? pre->find("pretokenizers") : nullptr;
  if (steps == nullptr) return;
  for (const Json& step : steps->items()) {
    const Json* pattern = step.find("pattern");
    const Json* regex = pattern != nullptr ? pattern->find("Regex") : nullptr;
    if (regex != nullptr && regex->as_string() != kPattern) {
      fail(Code::data,
           "%s: pre-tokenizer pattern '%.80s' is not the one of Qwen2; pass the H3 tokenizer with --tokenizer", where,
           regex->as_string().c_str());
    }
  }
}

BpeModel load_tokenizer_json(const std::string& text, const char* where) {
  const Json root = Json::parse(text, where);
  const Json& model = root.at("model");
  const Json* kind = model.find("type");
  if (kind != nullptr && !kind->is_null() && kind->as_string() != "BPE") {
    fail(Code::data, "%s: model type '%s'; expected a byte-level BPE", where, kind->as_string().c_str());
  }
  for (const char* key : {"ignore_merges", "byte_fallback"}) {
    const Json* flag = model.find(key);
    if (flag != nullptr && flag->is_bool() && flag->as_bool()) fail(Code::data, "%s: %s is not supported", where, key);
  }
  check_pipeline(root, where);
  return build(parse_vocab(model.at("vocab"), where), parse_merges_json(model.at("merges"), where), where);
}

// A possible merge of the symbols starting at byte offsets `left` and `right`.
struct Candidate {
  int32_t rank, left, right, id;
  int32_t left_id, right_id;  // stale when the symbols have changed since
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
};

}  // namespace

void BpeModel::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  const int32_t n = static_cast<int32_t>(piece.size());
  if (n == 1) {
    ids.push_back(byte_ids[static_cast<unsigned char>(piece[0])]);
    return;
  }
  // A doubly linked list of symbols indexed by the byte offset of their start, and a heap of candidate merges.
  std::vector<int32_t> symbol(static_cast<size_t>(n)), next(static_cast<size_t>(n)), previous(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    symbol[i] = byte_ids[static_cast<unsigned char>(piece[i])];
    next[i] = i + 1 < n ? i + 1 : -1;
    previous[i] = i - 1;
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const uint64_t key = static_cast<uint64_t>(symbol[left]) << 32 | static_cast<uint32_t>(symbol[right]);
    const auto found = merges.find(key);
    if (found == merges.end()) return;
    heap.push({found->second.rank, left, right, found->second.id, symbol[left], symbol[right]});
  };
  for (int32_t i = 0; i + 1 < n; ++i) consider(i, i + 1);
  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    // A merged-away symbol is marked -1, so comparing ids and the link detects every stale candidate.
    if (symbol[c.left] != c.left_id || next[c.left] != c.right || symbol[c.right] != c.right_id) continue;
    symbol[c.left] = c.id;
    symbol[c.right] = -1;
    next[c.left] = next[c.right];
    if (next[c.right] >= 0) previous[next[c.right]] = c.left;
    consider(previous[c.left], c.left);
    consider(c.left, next[c.left]);
  }
  for (int32_t i = 0; i >= 0; i = next[i]) ids.push_back(symbol[i]);
}

BpeModel load_bpe(const TokenizerFiles& files) {
  const std::string origin = files.origin.empty() ? "tokenizer" : files.origin;
  if (!files.tokenizer_json.empty()) {
    return load_tokenizer_json(files.tokenizer_json, (origin + "/tokenizer.json").c_str());
  }
  if (files.merges_txt.empty()) {
    fail(Code::data, "%s: no tokenizer.json and no merges.txt; pass a folder that has one with --tokenizer",
         origin.c_str());
  }
  const std::string merges_name = origin + "/merges.txt", vocab_name = origin + "/vocab.json";
  const std::vector<Pair> merges = parse_merges_text(files.merges_txt, merges_name.c_str());
  if (files.vocab_json.empty()) return build(vocab_of_merges(merges), merges, merges_name.c_str());
  return build(parse_vocab(Json::parse(files.vocab_json, vocab_name), vocab_name.c_str()), merges, merges_name.c_str());
}

}  // namespace h3
