#include "store/model_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "store/assemble.h"
#include "store/cmf.h"
#include "store/embedded.h"
#include "store/open.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDemoModel = "demo.cmf";
constexpr const char* kDemoName = "embedded demo";

// The index that lists this shard, or the file itself. A shard alone is never a whole component.
std::string index_of_shard(const std::string& path) {
  const fs::path file(path);
  if (file.filename().string().find("-of-") == std::string::npos) return path;
  const std::string folder = file.parent_path().string();
  const std::vector<std::string> checkpoints = checkpoints_in(folder.empty() ? "." : folder);
  for (const std::string& checkpoint : checkpoints) {
    if (fs::path(checkpoint).filename() == file.filename()) return path;  // no index lists it
  }
  for (const std::string& checkpoint : checkpoints) {
    if (fs::path(checkpoint).extension() != ".json") continue;
    const Json index = Json::parse(read_file(checkpoint), checkpoint);
    const Json* weight_map = index.find("weight_map");
    if (weight_map == nullptr || !weight_map->is_object()) continue;
    for (const auto& [tensor, shard] : weight_map->members()) {
      if (shard.is_string() && shard.as_string() == file.filename().string()) return checkpoint;
    }
  }
  return path;
}

class Opener {
 public:
  explicit Opener(const OpenOptions& options) : options_(options), assembler_(options) {}

  ModelFiles run() {
    for (const std::string& path : options_.paths) add(path);
    ModelFiles files = assembler_.finish();
    find_tokenizer_beside(files);
    return files;
  }

 private:
  void add(const std::string& path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    if (!seen_.insert(whole.string()).second) return;
    if (fs::is_directory(path, error)) {
      add_folder(path);
      return;
    }
    if (!fs::exists(path, error)) fail(Code::io, "%s: no such file or folder", path.c_str());
    const std::string name = fs::path(path).filename().string();
    if (name == "modular_model_index.json" || name == "model_index.json") {
      const std::string parent = fs::path(path).parent_path().string();
      add_folder(parent.empty() ? "." : parent);
      return;
    }
    add_checkpoint(index_of_shard(path), true);
  }

  void add_checkpoint(const std::string& path, bool named) {
    std::error_code error;
    const std::string whole = fs::weakly_canonical(path, error).string();
    if (opened_.count(whole) != 0) return;  // two shards of one index, or a file and its folder
    Surroundings around = surroundings_of(path);
    around.named = named;
    const size_t before = assembler_.count();
    if (CmfFile::is_cmf(FileMap(path).bytes())) {
      assembler_.add_cmf(std::make_shared<const CmfFile>(path), path);
    } else {
      assembler_.add(open_checkpoint(path), path, around);
    }
    if (assembler_.count() > before) opened_.insert(whole);
  }

  void add_folder(const std::string& path) {
    const Folder folder(path);
    if (assembler_.add_repository(folder)) return;
    const std::vector<std::string> checkpoints = checkpoints_in(path);
    const size_t before = assembler_.count();
    for (const std::string& checkpoint : checkpoints) add_checkpoint(checkpoint, false);
    if (checkpoints.empty()) {
      Surroundings around;
      around.config_path = folder.path("config.json");
      if (auto source = open_component(folder, "", around.config)) assembler_.add(std::move(source), path, around);
    }
    if (assembler_.count() == before) {
      fail(Code::data,
           "%s: no model in this folder (%zu checkpoints directly inside); expected component files, or a "
           "repository with transformer/, vae/, audio_vae/ and text_encoder/",
           path.c_str(), checkpoints.size());
    }
  }

  // Inside a file, in the folder of a component, or beside it; the conditioner's own come first.
  void find_tokenizer_beside(ModelFiles& files) const {
    if (!options_.tokenizer.empty()) {
      files.tokenizer = named_tokenizer(options_.tokenizer);
      return;
    }
    for (const bool conditioner : {true, false}) {
      for (const Component& component : files.components) {
        const TokenizerFiles* inside = component.source->tokenizer();
        if ((component.role == Role::conditioner) != conditioner || inside == nullptr) continue;
        files.tokenizer = *inside;
        return;
      }
    }
    std::vector<std::string> folders;
    for (const bool conditioner : {true, false}) {
      for (const Component& component : files.components) {
        if ((component.role == Role::conditioner) != conditioner) continue;
        const fs::path parent = fs::path(component.source->files().front()).parent_path();
        folders.push_back(parent.empty() ? "." : parent.string());
        if (conditioner) folders.push_back((parent / "..").string());  // tokenizer/ of its repository
      }
    }
    for (const std::string& path : options_.paths) folders.push_back(path);
    for (const std::string& folder : folders) {
      const auto found = find_tokenizer(Folder(fs::path(folder).lexically_normal().string()));
      if (found) {
        files.tokenizer = found;
        return;
      }
    }
  }

  const OpenOptions& options_;
  Assembler assembler_;
  std::set<std::string> seen_, opened_;
};

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::dit: return "transformer";
    case Role::conditioner: return "conditioner";
    case Role::video_vae: return "video VAE";
    case Role::audio_vae: return "audio VAE";
    case Role::clip_proj: return "ClipProj";
    case Role::adapter: return "adapter";
    case Role::unknown: return "unknown";
  }
  return "?";
}

const char* name_of(Spelling spelling) {
  switch (spelling) {
    case Spelling::diffusers: return "diffusers";
    case Spelling::comfy: return "ComfyUI";
    case Spelling::official: return "official";
    case Spelling::cmf: return "CMF";
    case Spelling::gguf: return "GGUF";
  }
  return "?";
}

const char* name_of(Partition partition) { return partition == Partition::fl2va ? "fl2va" : "ref2va"; }
const char* name_of(QkvOrder order) { return order == QkvOrder::contiguous ? "contiguous" : "interleaved"; }

const Component* ModelFiles::find(Role role) const {
  for (const Component& component : components) {
    if (component.role == role) return &component;
  }
  return nullptr;
}

const Component* ModelFiles::find_dit(Partition partition) const {
  for (const Component& component : components) {
    if (component.role == Role::dit && component.partition == partition) return &component;
  }
  return nullptr;
}

std::optional<TokenizerFiles> named_tokenizer(const std::string& given) {
  std::error_code error;
  const fs::path path(given);
  const std::string name = path.filename().string();
  const bool is_folder = fs::is_directory(path, error);
  const Folder folder(is_folder ? path.string() : path.has_parent_path() ? path.parent_path().string() : ".");
  if (is_folder || name == "vocab.json" || name == "merges.txt") {
    std::optional<TokenizerFiles> found = find_tokenizer(folder);
    if (!found) {
      fail(Code::data, "--tokenizer %s: found neither tokenizer.json nor vocab.json with merges.txt there",
           given.c_str());
    }
    return found;
  }
  TokenizerFiles files;
  files.origin = given;
  files.tokenizer_json = read_file(given);
  files.tokenizer_config_json = folder.text_or_empty("tokenizer_config.json");
  return files;
}

std::optional<TokenizerFiles> find_tokenizer(const Folder& folder) {
  for (const char* place : {"", "tokenizer/", "processor/"}) {
    const std::string base = place;
    const bool pair = folder.has(base + "vocab.json") && folder.has(base + "merges.txt");
    if (!pair && !folder.has(base + "tokenizer.json")) continue;
    TokenizerFiles files;
    files.origin = folder.path(base);
    files.tokenizer_json = folder.text_or_empty(base + "tokenizer.json");
    files.vocab_json = folder.text_or_empty(base + "vocab.json");
    files.merges_txt = folder.text_or_empty(base + "merges.txt");
    files.tokenizer_config_json = folder.text_or_empty(base + "tokenizer_config.json");
    return files;
  }
  return std::nullopt;
}

ModelFiles open_model_files(const OpenOptions& options) {
  if (!options.paths.empty()) return Opener(options).run();
  const std::span<const MemoryFile> demo = embedded_demo();
  const auto model = std::find_if(demo.begin(), demo.end(), [](const MemoryFile& f) { return f.name == kDemoModel; });
  if (model == demo.end()) {
    fail(Code::usage, "no model was named, and this build has no embedded one; name checkpoint files or a repository");
  }
  Assembler assembler(options);
  assembler.add_cmf(std::make_shared<const CmfFile>(kDemoName, model->bytes), kDemoName);
  ModelFiles files = assembler.finish();
  if (!options.tokenizer.empty()) files.tokenizer = named_tokenizer(options.tokenizer);
  return files;
}

}  // namespace h3
