#include "apps/pack/pack.h"

#include <algorithm>

#include "apps/pack/collect.h"
#include "apps/pack/comfy_pack.h"
#include "apps/pack/header.h"
#include "apps/pack/velocity.h"
#include "base/error.h"
#include "model/synthetic.h"
#include "store/cmf.h"
#include "store/cmf_source.h"

namespace h3 {
namespace {

constexpr int64_t kChunkValues = int64_t{4} << 20;  // of plain formats, encoded and written at a time
constexpr size_t kStrongDigits = 32;

// Two levels of a family: "dit.mlp" of "dit.mlp.fc1".
std::string report_family(const std::string& family) {
  const size_t first = family.find('.');
  const size_t second = first == std::string::npos ? first : family.find('.', first + 1);
  return family.substr(0, second);
}

// The whole stored matrix that the rows are, when it is in the format already.
const StoredMatrix* as_stored(const MatrixSource& rows, Format format) {
  if (rows.parts.size() != 1) return nullptr;
  const MatrixSource::Part& part = rows.parts[0];
  const bool whole = part.first == 0 && part.rows == part.matrix.rows;
  // The scales of NVFP4 are written with its codes; those of other formats are not part of what a file here holds.
  const bool bare = (format == Format::nvfp4 || part.matrix.scale.empty()) && part.matrix.pre_scale.empty();
  return whole && bare && part.matrix.format == format ? &part.matrix : nullptr;
}

class Packer {
 public:
  Packer(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log, const Control& control)
      : files_(files), options_(options), pool_(pool), log_(log), control_(control) {}

  PackReport run() {
    const PackContents contents = collect(files_, options_, pool_, log_);
    const std::string tokenizer = contents.tap > 0 ? tokenizer_section(files_) : "";
    if (const std::unique_ptr<CmfFile> same = unchanged_input(contents, tokenizer)) return copy(contents, *same);
    const CmfSections sections{.vocab = std::as_bytes(std::span(tokenizer))};
    plan(contents);
    const std::vector<std::string> blank(entries_.size(), std::string(kStrongDigits, '0'));
    const uint64_t header_bytes = pack_header(files_, contents, options_, sections, entries_, blank).size();
    CmfWriter writer(options_.output, entries_, sections, {.header_bytes = header_bytes});
    tell_left_over(writer.file());
    for (size_t i = 0; i < entries_.size(); ++i) {
      control_.check();
      control_.progress("pack", static_cast<int64_t>(i), static_cast<int64_t>(entries_.size()));
      if (sources_[i] == nullptr) {
        writer.write(std::as_bytes(std::span(texts_[i])));
      } else {
        write_tensor(*sources_[i], [&](const StoredMatrix& piece) { writer.write(piece.data); });
      }
      report_.bytes += entries_[i].bytes;
    }
    writer.commit(pack_header(files_, contents, options_, sections, entries_, writer.strong_hashes()));
    report_.tensors = static_cast<int64_t>(entries_.size());
    report_.notes = contents.notes;
    return std::move(report_);
  }

  PackReport run_comfy() {
    const PackContents contents = collect(files_, options_, pool_, log_);
    const ComfyTensors tensors(files_, contents);
    SafetensorsWriter writer(options_.output, tensors.entries(), tensors.metadata());
    tell_left_over(writer.file());
    for (size_t i = 0; i < contents.tensors.size(); ++i) {
      control_.check();
      control_.progress("pack", static_cast<int64_t>(i), static_cast<int64_t>(contents.tensors.size()));
      if (!tensors.writes(i)) continue;
      write_tensor(contents.tensors[i], [&](const StoredMatrix& piece) { tensors.write(writer, i, piece); });
    }
    writer.commit();
    for (const auto& [name, family] : report_.families) report_.bytes += family.bytes;
    report_.tensors = static_cast<int64_t>(tensors.entries().size());
    report_.notes = contents.notes;
    report_.notes.push_back("a safetensors file holds the transformer alone");
    return std::move(report_);
  }

 private:
  void tell_left_over(const AtomicFile& file) const {
    if (!file.left_over()) return;
    log_.write(LogLevel::warn, "%s: %.1f MB that an interrupted pack left behind; written anew",
               file.temporary_path().c_str(), static_cast<double>(*file.left_over()) / 1e6);
  }

  // The one CMF file that a pack would repeat: every tensor, configuration and the tokenizer as it has them. Its header
  // is then kept to the byte: it may say what this program does not know.
  std::unique_ptr<CmfFile> unchanged_input(const PackContents& contents, const std::string& tokenizer) const {
    if (options_.inputs.paths.empty() || files_.components.empty()) return nullptr;
    const std::string path = files_.components[0].source->files().at(0);
    for (const Component& component : files_.components) {
      if (component.spelling != Spelling::cmf || component.source->files().at(0) != path) return nullptr;
    }
    auto file = std::make_unique<CmfFile>(path);
    if (file->tensors().size() != contents.tensors.size() + contents.configs.size()) return nullptr;
    if (file->text_of(file->envelope().vocab) != tokenizer) return nullptr;
    if (!says_as_much(*file, !tokenizer.empty())) return nullptr;
    for (const PackTensor& t : contents.tensors) {
      const CmfTensor* const stored = file->find(t.tensor.name);
      if (stored == nullptr || t.merge || stored->dtype != *cmf_dtype_of(t.format)) return nullptr;
      if (stored->dims != t.tensor.dims) return nullptr;
    }
    for (const auto& [name, config] : contents.configs) {
      const Json stored = file->config(name);
      for (const auto& [key, value] : config.members()) {
        const Json* const same = stored.find(key);
        if (same == nullptr || same->dump() != value.dump()) return nullptr;
      }
    }
    return file;
  }

  // Whether the header has what flags or a given tokenizer would add to it.
  bool says_as_much(const CmfFile& file, bool with_tokenizer) const {
    std::vector<Partition> partitions;
    for (const Component& component : files_.components) {
      if (component.role != Role::dit || component.partition_from.starts_with("assumed")) continue;
      partitions.push_back(component.partition);
    }
    if (!partitions.empty() && partitions != cmf_partitions(file)) return false;
    if (!with_tokenizer || files_.tokenizer->tokenizer_config_json.empty()) return true;
    const Json* const config = file.header().find("tokenizer_config");
    return config != nullptr &&
           config->dump() == Json::parse(files_.tokenizer->tokenizer_config_json, "tokenizer_config.json").dump();
  }

  PackReport copy(const PackContents& contents, const CmfFile& file) {
    for (const CmfTensor& tensor : file.tensors()) {
      entries_.push_back({tensor.name, tensor.dtype, tensor.dims, tensor.bytes});
    }
    const CmfEnvelope& envelope = file.envelope();
    const CmfSections sections{file.bytes_of(envelope.masks), file.bytes_of(envelope.vocab),
                               file.bytes_of(envelope.index)};
    CmfWriter writer(options_.output, entries_, sections,
                     {.header_bytes = file.header_text().size(),
                      .least_data_offset = envelope.data.offset,
                      .features = envelope.features});
    tell_left_over(writer.file());
    for (const CmfTensor& tensor : file.tensors()) {
      control_.check();
      writer.write(file.payload(tensor));
      report_.bytes += tensor.bytes;
    }
    writer.commit(file.header_text());
    for (const PackTensor& t : contents.tensors) {
      FamilyReport& family = report_.families[report_family(t.tensor.family)];
      ++family.tensors;
      ++family.copied;
      ++family.formats[row_of(t.format).name];
      family.bytes += file.find(t.tensor.name)->bytes;
    }
    report_.tensors = static_cast<int64_t>(entries_.size());
    report_.notes = contents.notes;
    report_.notes.push_back("nothing changes: the file is copied with its header");
    return std::move(report_);
  }

  // Entries in the order of their names, configurations among them.
  void plan(const PackContents& contents) {
    struct Item {
      CmfEntry entry;
      const PackTensor* source;
      std::string text;
    };
    std::vector<Item> items;
    for (const PackTensor& t : contents.tensors) {
      int64_t cols = 1;
      for (size_t i = 1; i < t.tensor.dims.size(); ++i) cols *= t.tensor.dims[i];
      const int64_t rows = t.tensor.dims.empty() ? 1 : t.tensor.dims[0];
      const uint64_t bytes = static_cast<uint64_t>(row_of(t.format).data_bytes(rows, cols));
      items.push_back({{t.tensor.name, *cmf_dtype_of(t.format), t.tensor.dims, bytes}, &t, ""});
    }
    for (const auto& [name, config] : contents.configs) {
      const std::string text = config.dump();
      items.push_back({{name, kCmfRaw, {static_cast<int64_t>(text.size())}, text.size()}, nullptr, text});
    }
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.entry.name < b.entry.name; });
    for (Item& item : items) {
      entries_.push_back(std::move(item.entry));
      sources_.push_back(item.source);
      texts_.push_back(std::move(item.text));
    }
  }

  // `put` gets the tensor in one piece, or ascending rows of it in formats without side planes.
  void write_tensor(const PackTensor& t, const std::function<void(const StoredMatrix&)>& put) {
    FamilyReport& family = report_.families[report_family(t.tensor.family)];
    ++family.tensors;
    ++family.formats[row_of(t.format).name];
    MatrixSource rows = t.tensor.rows();
    const SharedMerge merge = t.merge ? t.merge() : nullptr;
    if (const StoredMatrix* stored = merge == nullptr ? as_stored(rows, t.format) : nullptr) {
      put(*stored);
      family.bytes += static_cast<uint64_t>(stored->bytes());
      ++family.copied;
      return;
    }
    RowReader reader = reader_of(rows);
    reader.read = [&](int64_t first, int64_t count, float* out) {
      control_.check();  // the largest tensors take a minute
      rows.decode_rows(first, count, out);
      if (merge != nullptr) merge->add(first, count, out);
    };
    const int64_t step =
        is_plain(t.format) ? std::max<int64_t>(1, kChunkValues / std::max<int64_t>(1, rows.cols)) : rows.rows;
    for (int64_t first = 0; first < rows.rows; first += step) {
      RowReader part = reader;
      part.rows = std::min(step, rows.rows - first);
      part.read = [&](int64_t begin, int64_t count, float* out) { reader.read(first + begin, count, out); };
      const EncodedMatrix encoded = encode_matrix(t.format, part, t.tensor.name, pool_);
      put(encoded.matrix);
      family.bytes += static_cast<uint64_t>(encoded.matrix.bytes());
      family.error.add(encoded.error);
    }
  }

  const ModelFiles& files_;
  const PackOptions& options_;
  ThreadPool& pool_;
  Log& log_;
  const Control& control_;
  PackReport report_;
  std::vector<CmfEntry> entries_;
  std::vector<const PackTensor*> sources_;  // null: a configuration, in texts_
  std::vector<std::string> texts_;
};

std::string formats_text(const FamilyReport& family) {
  std::string text;
  for (const auto& [name, count] : family.formats) {
    text += (text.empty() ? "" : ", ") + name + strf(" x %lld", static_cast<long long>(count));
  }
  return text;
}

}  // namespace

PackReport pack_files(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log,
                      const Control& control) {
  const bool comfy = is_comfy_pack(options);
  const PackOptions wanted = comfy ? comfy_options(files, options) : options;
  Packer packer(files, wanted, pool, log, control);
  PackReport report = comfy ? packer.run_comfy() : packer.run();
  const Component* const given = files.find(Role::dit);
  if (!options.check_velocity || given == nullptr || !options.parts.dit) return report;
  OpenOptions open;
  open.paths = {options.output};
  const ModelFiles packed = open_model_files(open);
  const VelocityError error = velocity_error(*given, *packed.find(Role::dit), pool, log, control);
  report.notes.push_back(
      strf("velocities: relative L2 %.3e of the video, %.3e of the sound", error.video, error.audio));
  return report;
}

PackReport pack_model(const PackOptions& options, ThreadPool& pool, Log& log, const Control& control) {
  OpenOptions open = options.inputs;
  open.replace = true;
  return pack_files(open_model_files(open), options, pool, log, control);
}

PackReport pack_random(int layers, bool small_encoder, const PackOptions& options, ThreadPool& pool, Log& log,
                       const Control& control) {
  constexpr uint64_t kSeed = 1;  // matrices come as q4tp: a pack in that format copies them
  const SyntheticEncoder encoder = small_encoder ? SyntheticEncoder::small : SyntheticEncoder::release;
  return pack_files(synthetic_release(layers, kSeed, Format::q4tp, encoder, options.inputs.tokenizer), options, pool,
                    log, control);
}

std::string PackReport::to_text() const {
  size_t width = 0;
  for (const auto& [name, family] : families) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, family] : families) {
    const std::string error = family.copied == family.tensors ? "copied"
                              : family.error.squares == 0     ? "exact"
                                                              : strf("relative L2 %.3e", family.error.rel_l2());
    text += strf("%-*s %9.1f MB  %-22s %s\n", static_cast<int>(width), name.c_str(),
                 static_cast<double>(family.bytes) / 1e6, error.c_str(), formats_text(family).c_str());
  }
  for (const std::string& note : notes) text += note + "\n";
  return text + strf("%lld tensors, %.1f MB\n", static_cast<long long>(tensors), static_cast<double>(bytes) / 1e6);
}

Json PackReport::to_json() const {
  Json list = Json::object();
  for (const auto& [name, family] : families) {
    Json formats = Json::object();
    for (const auto& [format, count] : family.formats) formats.set(format, count);
    list.set(name, Json::object({{"tensors", family.tensors},
                                 {"copied", family.copied},
                                 {"bytes", family.bytes},
                                 {"relative_l2", family.error.rel_l2()},
                                 {"max_abs", family.error.max_abs},
                                 {"formats", formats}}));
  }
  Json lines = Json::array();
  for (const std::string& note : notes) lines.push(note);
  return Json::object({{"families", list}, {"tensors", tensors}, {"bytes", bytes}, {"notes", lines}});
}

}  // namespace h3
