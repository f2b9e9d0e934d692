// Parsing: command line, environment and config file through the same table.
#include "apps/cli/flags.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file_map.h"
#include "base/knobs.h"
#include "base/nearest.h"
#include "base/text.h"

namespace h3 {
namespace {

bool parse_whole(const std::string& text, int64_t low, int64_t high, int64_t& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtoll(text.c_str(), &end, 10);
  const bool starts = !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-');
  return starts && *end == '\0' && errno == 0 && value >= low && value <= high;
}

bool parse_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  // No hexadecimal, no "inf", no "nan", no leading blanks.
  const bool plain = !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string::npos;
  return plain && end != text.c_str() && *end == '\0' && std::isfinite(value);
}

bool parse_size(const std::string& text, int& width, int& height) {
  const size_t split = text.find_first_of("xX");
  int64_t w = 0, h = 0;
  if (split == std::string::npos || !parse_whole(text.substr(0, split), INT32_MIN, INT32_MAX, w) ||
      !parse_whole(text.substr(split + 1), INT32_MIN, INT32_MAX, h)) {
    return false;
  }
  width = static_cast<int>(w);
  height = static_cast<int>(h);
  return true;
}

std::string parse_switch(const Flag& flag, const std::string& text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") return "true";
  if (word == "0" || word == "false" || word == "no" || word == "off") return "false";
  fail(Code::usage, "%s: \"%s\" is not a switch value, give true or false", spelled(flag).c_str(), text.c_str());
}

[[noreturn]] void bad_value(const Flag& flag, const std::string& text, const char* what) {
  const char* const example = flag.kind == ValueKind::size    ? "960x544"
                              : flag.kind == ValueKind::shift ? "12/3"
                              : flag.kind == ValueKind::dump  ? "latents=latents.safetensors"
                                                              : "";
  std::string hint = *example != '\0' ? ", for example " + std::string(example) : "";
  if (hint.empty() && *flag.allowed != '\0') hint = std::string(", give ") + flag.allowed;
  fail(Code::usage, "%s: \"%s\" is not %s%s", spelled(flag).c_str(), text.c_str(), what, hint.c_str());
}

void check_kind(const Flag& flag, std::string& text) {
  int64_t whole = 0;
  double number = 0;
  int width = 0, height = 0;
  switch (flag.kind) {
    case ValueKind::none: text = parse_switch(flag, text); break;
    case ValueKind::whole:
      if (!parse_whole(text, INT32_MIN, INT32_MAX, whole)) bad_value(flag, text, "a whole number");
      break;
    case ValueKind::number:
      if (!parse_number(text, number)) bad_value(flag, text, "a number");
      break;
    case ValueKind::size:
      if (!parse_size(text, width, height)) bad_value(flag, text, "WIDTHxHEIGHT");
      break;
    case ValueKind::shift: {
      const size_t slash = text.find('/');
      const bool ok = parse_number(text.substr(0, slash), number) &&
                      (slash == std::string::npos || parse_number(text.substr(slash + 1), number));
      if (!ok) bad_value(flag, text, "a shift");
      break;
    }
    case ValueKind::dump: {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) bad_value(flag, text, "STAGE=FILE");
      break;
    }
    case ValueKind::path:
      if (text.empty()) bad_value(flag, text, "a path");
      break;
    case ValueKind::text:
    case ValueKind::choice:
    case ValueKind::seed: break;
  }
}

const char* group_of(const Flag& flag) { return *flag.group != '\0' ? flag.group : flag.name; }

std::vector<std::string> spellings(uint32_t bit) {
  std::vector<std::string> words;
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & bit) == 0) continue;
    words.push_back(spelled(flag));
    for (std::string& alias : alias_list(flag)) words.push_back(std::move(alias));
  }
  return words;
}

const Flag* by_spelling(const std::string& word, uint32_t bit) {
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & bit) == 0) continue;
    if (word == spelled(flag)) return &flag;
    for (const std::string& alias : alias_list(flag)) {
      if (word == alias) return &flag;
    }
  }
  return nullptr;
}

const Flag& known_flag(const std::string& word, uint32_t bit) {
  const Flag* const flag = by_spelling(word, bit);
  if (flag != nullptr) return *flag;
  const std::string hint = suggestion(word, spellings(bit));
  fail(Code::usage, "unknown flag %s%s", word.c_str(), hint.empty() ? ", see --help" : hint.c_str());
}

void from_command_line(Arguments& out, const std::vector<std::string>& words, uint32_t bit) {
  bool flags = true;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (flags && word == "--") {
      flags = false;
      continue;
    }
    if (!flags || word.size() < 2 || word[0] != '-') {
      out.positional.push_back(word);
      continue;
    }
    const size_t equals = word.compare(0, 2, "--") == 0 ? word.find('=') : std::string::npos;
    const Flag& flag = known_flag(word.substr(0, equals), bit);
    if (flag.kind == ValueKind::none) {
      out.add({&flag, equals == std::string::npos ? "true" : word.substr(equals + 1), Source::command_line, "given"});
      continue;
    }
    if (equals != std::string::npos) {
      out.add({&flag, word.substr(equals + 1), Source::command_line, "given"});
      continue;
    }
    // A flag where a value should be is a forgotten value, not a value that looks like a flag.
    if (i + 1 >= words.size() || by_spelling(words[i + 1], bit) != nullptr) {
      fail(Code::usage, "%s needs a value: %s %s", word.c_str(), word.c_str(), flag.value);
    }
    out.add({&flag, words[++i], Source::command_line, "given"});
  }
}

void from_environment(Arguments& out, uint32_t bit) {
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & bit) == 0 || flag.commands == kEvery) continue;
    const std::string name = environment_name(flag);
    const std::string value = env_knob(name.substr(3));
    if (!value.empty()) out.add({&flag, value, Source::environment, "environment " + name});
  }
}

void from_config(Arguments& out, const std::string& path, uint32_t bit) {
  std::vector<std::string> names;
  for (const Flag& flag : flag_table()) {
    if ((flag.commands & bit) != 0 && std::string(flag.name) != "config") names.emplace_back(flag.name);
  }
  for (const ConfigEntry& entry : parse_config(read_file(path), path)) {
    std::string key = entry.key;
    std::replace(key.begin(), key.end(), '_', '-');
    const Flag* const flag = by_spelling("--" + key, bit);
    if (flag == nullptr || key == "config") {
      fail(Code::usage, "%s:%d: unknown key %s%s", path.c_str(), entry.line, entry.key.c_str(),
           suggestion(key, names).c_str());
    }
    if (entry.values.size() != 1 && !flag->repeats) {
      fail(Code::usage, "%s:%d: %s takes one value", path.c_str(), entry.line, entry.key.c_str());
    }
    for (const std::string& value : entry.values) out.add({flag, value, Source::config, "config " + path});
  }
}

}  // namespace

std::string spelled(const Flag& flag) { return std::string("--") + flag.name; }

std::string environment_name(const Flag& flag) {
  std::string name = std::string("H3_") + flag.name;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> alias_list(const Flag& flag) {
  std::vector<std::string> aliases;
  std::string word;
  for (const char* c = flag.aliases;; ++c) {
    if (*c != ' ' && *c != '\0') {
      word += *c;
      continue;
    }
    if (!word.empty()) aliases.push_back(std::move(word));
    word.clear();
    if (*c == '\0') return aliases;
  }
}

void Arguments::add(Given given) {
  try {
    check_kind(*given.flag, given.value);
  } catch (const Error& error) {
    if (given.source == Source::command_line) throw;
    throw error.with_context(given.origin);
  }
  given_.push_back(std::move(given));
}

void Arguments::settle() {
  std::vector<Given> kept;
  for (const Given& entry : given_) {
    const bool beaten = std::any_of(given_.begin(), given_.end(), [&](const Given& other) {
      return other.source > entry.source && std::string(group_of(*other.flag)) == group_of(*entry.flag);
    });
    if (!beaten) kept.push_back(entry);
  }
  given_ = std::move(kept);
}

const Given* Arguments::find(const char* name) const {
  const Given* found = nullptr;
  for (const Given& entry : given_) {
    if (std::string(entry.flag->name) == name) found = &entry;  // the last one wins
  }
  return found;
}

bool Arguments::on(const char* name) const {
  const Given* const entry = find(name);
  return entry != nullptr && entry->value == "true";
}

std::string Arguments::text(const char* name, const std::string& fallback) const {
  const Given* const entry = find(name);
  return entry == nullptr ? fallback : entry->value;
}

int Arguments::whole(const char* name, int fallback) const {
  const Given* const entry = find(name);
  return entry == nullptr ? fallback : std::atoi(entry->value.c_str());  // its form was checked by add()
}

std::vector<std::string> Arguments::all(const char* name) const {
  std::vector<std::string> values;
  for (const Given& entry : given_) {
    if (std::string(entry.flag->name) == name) values.push_back(entry.value);
  }
  return values;
}

namespace {

// The clip that a sound was given for is the one named last.
void set_video_sound(std::vector<Reference>& references, const std::string& file) {
  for (auto reference = references.rbegin(); reference != references.rend(); ++reference) {
    if (reference->kind != Reference::Kind::video) continue;
    if (!reference->sound.empty()) {
      fail(Code::usage, "--ref-video-audio: %s already has the sound %s, give each right after its --ref-video",
           reference->path.c_str(), reference->sound.c_str());
    }
    reference->sound = file;
    return;
  }
  fail(Code::usage, "--ref-video-audio: %s stands before any --ref-video, give it after its clip", file.c_str());
}

}  // namespace

Request Arguments::request() const {
  Request request;
  const auto set = [&](const char* field, const Json& value, const Given& entry) {
    set_field(request, field, value);
    request.origin[field] = entry.origin;
  };
  for (const Given& entry : given_) {
    const std::string name = entry.flag->name;
    const std::string& value = entry.value;
    if (name == "size") {
      int width = 0, height = 0;
      parse_size(value, width, height);
      set("width", width, entry);
      set("height", height, entry);
    } else if (name == "shift") {
      const size_t slash = value.find('/');
      set("video_shift", std::atof(value.c_str()), entry);
      if (slash != std::string::npos) set("audio_shift", std::atof(value.c_str() + slash + 1), entry);
    } else if (name == "grid-points") {
      const int points = std::atoi(value.c_str());
      if (points < 2) fail(Code::usage, "--grid-points: %d is not allowed, give %s", points, entry.flag->allowed);
      set("steps", points - 1, entry);
    } else if (name == "no-audio") {
      set("audio", value != "true", entry);
    } else if (name == "prompt-file") {
      std::string text = read_file(value, 1u << 20);
      if (!text.empty() && text.back() == '\n') text.pop_back();
      if (!text.empty() && text.back() == '\r') text.pop_back();
      set("prompt", text, entry);
    } else if (name == "ref-image" || name == "ref-video" || name == "ref-audio") {
      using Kind = Reference::Kind;
      Reference& reference = request.references.emplace_back();
      reference.kind = name == "ref-image" ? Kind::image : name == "ref-video" ? Kind::video : Kind::audio;
      reference.path = value;
    } else if (name == "ref-video-audio") {
      set_video_sound(request.references, value);
    } else if (name == "lora") {
      request.adapters.push_back(parse_adapter(value));
    } else if (name == "policy-trace") {
      set("policy_trace", read_file(value, 1u << 20), entry);
    } else if (name == "dump") {
      const size_t equals = value.find('=');
      request.dumps.emplace_back(value.substr(0, equals), value.substr(equals + 1));
    } else if (*entry.flag->field != '\0') {
      switch (entry.flag->kind) {
        case ValueKind::none: set(entry.flag->field, value == "true", entry); break;
        case ValueKind::whole: set(entry.flag->field, std::atoi(value.c_str()), entry); break;
        case ValueKind::number: set(entry.flag->field, std::atof(value.c_str()), entry); break;
        default: set(entry.flag->field, value, entry); break;
      }
    }
  }
  return request;
}

Arguments parse_arguments(const std::vector<std::string>& words, uint32_t bit) {
  Arguments arguments;
  from_command_line(arguments, words, bit);
  if (arguments.on("help")) return arguments;
  from_environment(arguments, bit);
  const std::string config = arguments.text("config");
  if (!config.empty()) from_config(arguments, config, bit);
  arguments.settle();
  return arguments;
}

}  // namespace h3
