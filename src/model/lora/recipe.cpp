#include "model/lora/recipe.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "model/lora/names.h"

namespace h3::lora {
namespace {

struct Row {
  const char* name;
  const char* token;  // a word of the file name
  const char* also;   // another that must be there; "" = none
  int steps;
  double video_shift;
  double native_scale;
};

// LightX2V's adapters (spec dit 6.2, formats E.1), the more specific first. The first row of a name is not what
// --turbo NAME stands for: rows with a second word are variants.
constexpr Row kRows[] = {
    {"4step", "4step", "v0.1", 4, 12, 8.0 / 128},
    {"4step", "4step", "", 4, 6, 1},
    {"8step", "8step", "", 8, 12, 8.0 / 128},
};

Recipe recipe_from(const Row& row, std::string from) {
  Recipe recipe;
  recipe.name = row.name;
  recipe.steps = row.steps;
  recipe.video_shift = row.video_shift;
  recipe.scheduler = "linspace";
  recipe.sampler = "training-euler";
  recipe.native_scale = row.native_scale;
  recipe.from = std::move(from);
  return recipe;
}

// Lower-case words of a path's last two parts, cut at everything but letters, digits and the dot of "v0.1".
std::vector<std::string> words_of(const std::string& path) {
  size_t start = path.find_last_of('/');
  if (start != std::string::npos && start > 0) start = path.find_last_of('/', start - 1);
  std::string text = start == std::string::npos ? path : path.substr(start + 1);
  std::vector<std::string> words(1);
  for (const char c : text) {
    const unsigned char u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0 || c == '.') {
      words.back().push_back(static_cast<char>(std::tolower(u)));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  for (std::string& word : words) {  // "v0.1.safetensors"
    const size_t end = word.find(".safetensors");
    if (end != std::string::npos) word.resize(end);
  }
  return words;
}

bool has_word(const std::vector<std::string>& words, const std::string& word) {
  return word.empty() || std::find(words.begin(), words.end(), word) != words.end();
}

bool names_sla(const std::string& text) { return has_word(words_of(text), "sla"); }

}  // namespace

std::optional<Recipe> recipe_named(const std::string& name) {
  for (const Row& row : kRows) {
    if (name == row.name && *row.also == '\0') return recipe_from(row, "--turbo");
  }
  return std::nullopt;
}

std::optional<Recipe> recipe_of(const TensorSource& source, const std::string& path) {
  const auto declared = source.metadata().find("h3.turbo");
  if (declared != source.metadata().end()) {
    std::optional<Recipe> recipe = recipe_named(declared->second);
    if (!recipe) {
      fail(Code::data, "%s: its metadata h3.turbo = \"%s\" is not known, 4step and 8step are", path.c_str(),
           declared->second.c_str());
    }
    recipe->from = "metadata h3.turbo";
    return recipe;
  }
  const std::vector<std::string> words = words_of(path);
  for (const Row& row : kRows) {
    if (has_word(words, row.token) && has_word(words, row.also)) return recipe_from(row, "the file name");
  }
  // larryvrh's, the only published adapter with bare names that trains the AdaLN projections: four steps on one grid,
  // the sound remapped from the video's clock (spec formats E.2, dit 6.4).
  for (const TensorInfo& tensor : source.tensors()) {
    const Key key = parse_key(tensor.name);
    const bool bare = tensor.name.starts_with(key.module);
    if (!bare || key.piece != Piece::down || key.module != "final_layer.adaln_proj.linear") continue;
    Recipe recipe;
    recipe.name = "larryvrh";
    recipe.steps = 4;
    recipe.scheduler = recipe.sampler = "two-clock";
    recipe.from = "its AdaLN branches";
    return recipe;
  }
  return std::nullopt;
}

void refuse_unsupported(const TensorSource& source, const std::string& path) {
  bool sparse = names_sla(path);
  for (const auto& [key, value] : source.metadata()) {
    sparse = sparse || names_sla(key) || names_sla(value) || key.find("sparsity") != std::string::npos;
  }
  if (sparse) {
    fail(Code::data,
         "%s: SLA adapter needs the sparse attention it was trained with; not supported; use a 4step or 8step "
         "adapter",
         path.c_str());
  }
  for (const TensorInfo& tensor : source.tensors()) {
    const Key key = parse_key(tensor.name);
    if (key.piece == Piece::gate) {
      fail(Code::data,
           "%s: %s is the gate of a trained-sparse attention (FastH3, VSA), which is not supported; use a 4step or "
           "8step adapter",
           path.c_str(), tensor.name.c_str());
    }
    if (key.module == "final_layer.video_out" || key.module == "proj_out" || key.module == "final_layer.audio_out" ||
        key.module == "audio_proj_out") {
      fail(Code::data,
           "%s: %s changes the output head: a multi-step (PDD) adapter, which is not supported; use a 4step or 8step "
           "adapter",
           path.c_str(), tensor.name.c_str());
    }
  }
}

}  // namespace h3::lora
