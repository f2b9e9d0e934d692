// Token ids of every golden string, from every kind of tokenizer data the folder has.
#include "apps/parity/suite.h"
#include "base/error.h"
#include "model/text/tokenizer.h"
#include "model/text/unicode.h"
#include "store/assemble.h"

namespace h3 {
namespace {

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.items()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

std::string text_of(const std::vector<int32_t>& ids) {
  std::string out;
  for (const int32_t id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return out;
}

bool has_added(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (id >= tokenizer.base_size()) return true;
  }
  return false;
}

// One verdict per way of loading: ids of all rows, and that decoding gives the normalised text back.
void run_rows(Suite& suite, const std::string& name, const TokenizerFiles& files, AddedSet set, const Json& rows) {
  const Tokenizer tokenizer(files, set);
  int64_t compared = 0, left_out = 0;
  std::string wrong, not_inverse;
  for (const Json& row : rows.items()) {
    const std::string& text = row.at("text").as_string();
    if (!have_unicode_tables() && !is_ascii(text)) {
      ++left_out;
      continue;
    }
    const Json* without = set == AddedSet::stock ? row.find("ids_without_extra") : nullptr;
    const std::vector<int32_t> want = ids_of(without != nullptr ? *without : row.at("ids"));
    const std::vector<int32_t> got = tokenizer.encode(text);
    ++compared;
    if (got != want && wrong.empty()) {
      wrong = Json(text).dump() + " gives " + text_of(got) + " instead of " + text_of(want);
    }
    if (!has_added(tokenizer, got) && tokenizer.decode(got) != nfc(text) && not_inverse.empty()) {
      not_inverse = Json(text).dump() + " does not come back";
    }
  }
  const std::string label = name + (set == AddedSet::stock ? ", without extra tokens" : "");
  suite.exact(strf("%s (%lld strings)", label.c_str(), static_cast<long long>(compared)), compared > 0 && wrong.empty(),
              wrong.empty() ? "no string" : wrong);
  suite.exact(label + " decode", not_inverse.empty(), not_inverse);
  if (left_out > 0) {
    suite.skip(label,
               strf("%lld strings outside ASCII, no Unicode tables in this build", static_cast<long long>(left_out)));
  }
}

void run_extra_ids(Suite& suite, const std::string& name, const TokenizerFiles& files, const Json& extra) {
  const Tokenizer tokenizer(files);
  std::string wrong;
  for (const Json::Member& token : extra.members()) {
    if (tokenizer.id_of(token.first) != token.second.as_int()) wrong = token.first;
  }
  suite.exact(name + " extra tokens", wrong.empty(), wrong + " has another id");
}

// Every subset of the files that is a complete tokenizer has to give the same ids. Only the released vocabulary is in
// merge order, and only its added tokens are known without files.
void run_folder(Suite& suite, const std::string& name, bool released, const TokenizerFiles& all, const Json& golden) {
  struct Variant {
    std::string label;
    TokenizerFiles files;
    bool possible;
  };
  TokenizerFiles vocab = all, merges = all, bare;
  vocab.tokenizer_json.clear();
  merges.tokenizer_json.clear();
  merges.vocab_json.clear();
  bare.origin = all.origin;
  bare.merges_txt = all.merges_txt;
  const bool has_json = !all.tokenizer_json.empty(), has_merges = !all.merges_txt.empty();
  const Variant variants[] = {
      {"all files", all, true},
      {"vocab.json + merges.txt", vocab, has_json && has_merges && !all.vocab_json.empty()},
      {"merges.txt + tokenizer_config.json", merges, released && has_merges},
      {"merges.txt alone", bare, released && has_merges},
  };
  for (const Variant& variant : variants) {
    if (!variant.possible) continue;
    const std::string label = name + ": " + variant.label;
    run_extra_ids(suite, label, variant.files, golden.at("extra_tokens"));
    run_rows(suite, label, variant.files, AddedSet::h3, golden.at("rows"));
  }
  for (const Json& row : golden.at("rows").items()) {
    if (row.find("ids_without_extra") == nullptr) continue;
    run_rows(suite, name + ": all files", all, AddedSet::stock, golden.at("rows"));
    return;
  }
}

void run_folder_of(Suite& suite, const std::string& name, const std::string& folder, const std::string& ids) {
  const bool released = name == "released";
  if (!suite.exists(ids)) return;
  const Json golden = suite.json(ids);
  suite.claim(folder.substr(0, folder.find('/')));
  const std::optional<TokenizerFiles> files = find_tokenizer(Folder(suite.path(folder)));
  if (!files) fail(Code::data, "%s has no tokenizer for %s", folder.c_str(), ids.c_str());
  run_folder(suite, name, released, *files, golden);
}

}  // namespace

void run_tokenizer(Suite& suite) {
  run_folder_of(suite, "released", "tokenizer", "tokenizer/token_ids.json");
  run_folder_of(suite, "toy", "toy/tokenizer", "toy_token_ids.json");
}

}  // namespace h3
