#include "model/text/added_tokens.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "model/text/bpe.h"

namespace h3 {
namespace {

constexpr int32_t kReleasedBase = 151643;

// Ids 151643.. of the release, in order.
constexpr const char* kStock[] = {
    "<|endoftext|>",  "<|im_start|>",   "<|im_end|>",      "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>",  "<|box_end|>",    "<|quad_start|>",  "<|quad_end|>",         "<|vision_start|>",
    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",   "<|video_pad|>",        "<tool_call>",
    "</tool_call>",   "<|fim_prefix|>", "<|fim_middle|>",  "<|fim_suffix|>",       "<|fim_pad|>",
    "<|repo_name|>",  "<|file_sep|>",   "<tool_response>", "</tool_response>",     "<think>",
    "</think>"};

// The H3 addition, 151669.. in the release. It stands only in tokenizer_config.json, as a list of names.
constexpr const char* kExtra[] = {
    "<d>", "</d>", "<|cutoff|>", "<|lyrics_start|>", "<|lyrics_end|>", "<|caption_start|>", "<|caption_end|>"};

class Table {
 public:
  Table(const BpeModel& model, std::vector<std::string>& notes) : model_(model), notes_(notes) {}

  // The first definition of a string or an id wins.
  void add(const std::string& content, int64_t id, const char* where) {
    if (content.empty()) fail(Code::data, "%s: added token %lld is empty", where, static_cast<long long>(id));
    if (id < 0 || id > INT32_MAX) {
      fail(Code::data, "%s: added token '%s' has id %lld", where, content.c_str(), static_cast<long long>(id));
    }
    const auto known = ids_.find(content);
    if (known != ids_.end()) {
      if (known->second != id) note(content, id, where);
      return;
    }
    if (taken_.contains(static_cast<int32_t>(id))) {
      note(content, id, where);
      return;
    }
    ids_.emplace(content, static_cast<int32_t>(id));
    taken_.emplace(static_cast<int32_t>(id), content);
  }

  // A string of the base vocabulary keeps its id; any other takes the first id behind all that are in use.
  void append(const std::string& content, const char* where) {
    if (ids_.contains(content)) return;
    const auto found = std::find(model_.tokens.begin(), model_.tokens.end(), content);
    if (found != model_.tokens.end()) return add(content, found - model_.tokens.begin(), where);
    add(content, taken_.empty() ? model_.size() : std::max(model_.size(), taken_.rbegin()->first + 1), where);
  }

  bool empty() const { return ids_.empty(); }

  std::vector<AddedToken> sorted() const {
    std::vector<AddedToken> out;
    for (const auto& [id, content] : taken_) out.push_back({content, id});
    return out;
  }

 private:
  void note(const std::string& content, int64_t id, const char* where) {
    notes_.push_back(strf("%s: added token '%s' with id %lld contradicts the table in use; ignored", where,
                          content.c_str(), static_cast<long long>(id)));
  }

  const BpeModel& model_;
  std::map<std::string, int32_t> ids_;
  std::map<int32_t, std::string> taken_;
  std::vector<std::string>& notes_;
};

std::string content_of(const Json& token) {
  return token.is_string() ? token.as_string() : token.at("content").as_string();
}

int64_t parse_id(const std::string& text, const char* where) {
  int64_t id = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || id > INT32_MAX) id = -1;
    if (id < 0) break;
    id = id * 10 + (c - '0');
  }
  if (text.empty() || id < 0) fail(Code::data, "%s: added token id '%s' is not a number", where, text.c_str());
  return id;
}

// Names appended without an id. Null when the configuration does not list any.
const Json* extra_list(const Json& config) {
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = config.find(key);
    if (list != nullptr && list->is_array()) return list;
  }
  return nullptr;
}

}  // namespace

std::span<const char* const> stock_tokens() { return kStock; }
std::span<const char* const> h3_tokens() { return kExtra; }

std::vector<AddedToken> resolve_added_tokens(const BpeModel& model, const TokenizerFiles& files, AddedSet set,
                                             std::vector<std::string>& notes) {
  const std::string origin = files.origin.empty() ? "tokenizer" : files.origin;
  const std::string json_name = origin + "/tokenizer.json", config_name = origin + "/tokenizer_config.json";
  const int32_t base = model.size();
  Table table(model, notes);
  if (base == kReleasedBase) {
    for (const char* name : kStock) table.append(name, "release");
    if (set == AddedSet::h3) {
      for (const char* name : kExtra) table.append(name, "release");
    }
  }
  if (!files.tokenizer_json.empty()) {
    const Json root = Json::parse(files.tokenizer_json, json_name);
    const Json* list = root.find("added_tokens");
    for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
      table.add(content_of(list->at(i)), list->at(i).at("id").as_int(), json_name.c_str());
    }
  }
  const Json config =
      files.tokenizer_config_json.empty() ? Json() : Json::parse(files.tokenizer_config_json, config_name);
  if (const Json* decoder = config.find("added_tokens_decoder"); decoder != nullptr && decoder->is_object()) {
    for (const Json::Member& member : decoder->members()) {
      table.add(content_of(member.second), parse_id(member.first, config_name.c_str()), config_name.c_str());
    }
  }
  if (table.empty()) {
    fail(Code::data,
         "%s: a vocabulary of %d tokens that is not the released one (%d) needs its added tokens; "
         "put tokenizer_config.json or tokenizer.json beside it",
         origin.c_str(), base, kReleasedBase);
  }
  if (set == AddedSet::h3) {
    if (const Json* list = extra_list(config)) {
      for (const Json& token : list->items()) table.append(content_of(token), config_name.c_str());
    } else {
      for (const char* name : kExtra) table.append(name, "release");
    }
  }
  return table.sorted();
}

}  // namespace h3
