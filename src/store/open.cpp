#include "store/open.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"

namespace h3 {
namespace {

constexpr size_t kHead = 64;  // bytes that tell kinds apart

// The first bytes of a file; shorter for shorter files.
using Head = std::string_view;

bool is_safetensors(Head head) {
  // The header's length in eight bytes, of which JSON text cannot have the last, then an object.
  return head.size() > 8 && head[8] == '{' && head.substr(1, 7).find('\0') != head.npos;
}

bool is_index(Head head) {
  const size_t start = head.find_first_not_of(" \t\r\n");
  return start != head.npos && head[start] == '{';
}

bool is_gguf(Head head) { return head.starts_with("GGUF"); }

// Adding a kind of file: a reader, and a row here.
struct Kind {
  const char* name;
  const char* ending;
  bool (*fits)(Head head);
  std::unique_ptr<TensorSource> (*open)(const std::string& path);
  std::unique_ptr<TensorSource> (*open_bytes)(const std::string& name, std::span<const std::byte> bytes);
};
constexpr Kind kKinds[] = {
    {"safetensors", ".safetensors", is_safetensors, open_safetensors, open_safetensors},
    {"the index of sharded safetensors (JSON)", ".safetensors.index.json", is_index, open_safetensors_index, nullptr},
    {"GGUF", ".gguf", is_gguf, open_gguf, open_gguf},
};

// What people name by mistake.
struct Foreign {
  std::string_view magic;
  const char* name;
};
constexpr Foreign kForeign[] = {
    {"PK\x03\x04", "a ZIP archive, perhaps a PyTorch checkpoint (.pt, .ckpt); convert it to safetensors"},
    {"\x80\x02", "a Python pickle, perhaps an old PyTorch checkpoint; convert it to safetensors"},
    {"\x89HDF", "an HDF5 file"},
    {"version https://git-lfs", "a Git LFS pointer: the file itself was never downloaded; run git lfs pull"},
    {"<!DOCTYPE", "a web page: the download went wrong"},
    {"<html", "a web page: the download went wrong"},
    {"\x1f\x8b", "a gzip archive; unpack it"},
    {"ggml", "a file older than GGUF; convert it"},
};

[[noreturn]] void refuse(const std::string& path, Head head, uint64_t size) {
  std::string what;
  for (const Foreign& foreign : kForeign) {
    if (head.starts_with(foreign.magic)) what = std::string("it is ") + foreign.name;
  }
  if (what.empty() && size == 0) what = "it is empty";
  if (what.empty()) {
    what = "at offset 0 it has the bytes";
    for (const char c : head.substr(0, 8)) what += strf(" %02x", static_cast<unsigned char>(c));
    if (head.find_first_not_of('\0') == head.npos) what += ": an unfinished download?";
  }
  std::string accepted;
  for (const Kind& kind : kKinds) accepted += std::string(kind.name) + ", ";
  accepted += "CMF";
  fail(Code::data, "%s: not a checkpoint (%llu bytes): %s; accepted are %s", path.c_str(),
       static_cast<unsigned long long>(size), what.c_str(), accepted.c_str());
}

const Kind& kind_of(const std::string& path, std::span<const std::byte> bytes) {
  const Head head(reinterpret_cast<const char*>(bytes.data()), std::min(kHead, bytes.size()));
  for (const Kind& kind : kKinds) {
    if (kind.fits(head)) return kind;
  }
  refuse(path, head, bytes.size());
}

}  // namespace

std::unique_ptr<TensorSource> open_checkpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return open_safetensors(path);
  const FileMap map(path);
  return kind_of(path, map.bytes()).open(path);
}

std::unique_ptr<TensorSource> open_checkpoint(const std::string& name, std::span<const std::byte> bytes) {
  const Kind& kind = kind_of(name, bytes);
  if (kind.open_bytes == nullptr) fail(Code::data, "%s: %s cannot be read from memory", name.c_str(), kind.name);
  return kind.open_bytes(name, bytes);
}

bool has_checkpoint_ending(std::string_view path) {
  const bool container = path.ends_with(".cmf");  // several components: opened by the assembler (store/cmf.h)
  return container || std::any_of(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& kind) { return path.ends_with(kind.ending); });
}

}  // namespace h3
