// CMF v2: every component of a model in one file (spec formats A).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_map.h"
#include "base/json.h"
#include "quant/formats.h"
#include "store/strong_hash.h"

namespace h3 {

// One id of spec formats A.4. Ids without a format are named, hashed and copied, but not decoded: no file of this model
// uses them.
struct CmfDtype {
  uint8_t id;
  const char* name;
  std::optional<Format> format;
};
std::span<const CmfDtype> cmf_dtypes();
std::optional<uint8_t> cmf_dtype_of(Format format);  // empty: the container cannot hold it
inline constexpr uint8_t kCmfRaw = 6;                // bytes: configurations

struct CmfTensor {
  std::string name;
  uint8_t dtype = 0;
  std::vector<int64_t> dims;
  uint64_t offset = 0;  // of the payload in the file
  uint64_t bytes = 0;
  uint64_t hash = 0;  // hash64 of the payload
};

// A part of the file that is no tensor, and the hash recorded for it (0 = none).
struct CmfSection {
  const char* name = "";
  uint64_t offset = 0, bytes = 0, hash = 0;
};

// The envelope, at offset 0.
struct CmfEnvelope {
  static constexpr uint64_t kBytes = 128;
  uint32_t flags = 0, features = 0;
  CmfSection header{"header"}, directory{"directory"}, data{"data"}, masks{"masks"}, vocab{"tokenizer"}, index{"index"};
};

class CmfFile {
 public:
  // Error(data) naming file, tensor, value and offset: magic, version, unknown features, sections past the end, a
  // directory or header that cannot be. Payload hashes are verify's job. An `open_damaged` file may lack its end:
  // tensors past it have no bytes in payload().
  explicit CmfFile(const std::string& path, bool open_damaged = false);
  // The same for bytes that the caller keeps alive; `name` stands for the path.
  CmfFile(const std::string& name, std::span<const std::byte> bytes, bool open_damaged = false);

  static bool is_cmf(std::span<const std::byte> start);  // by its magic

  const std::string& path() const { return path_; }
  const CmfEnvelope& envelope() const { return envelope_; }
  const Json& header() const { return header_; }
  std::string_view header_text() const { return text_of(envelope_.header); }
  const std::vector<CmfTensor>& tensors() const { return tensors_; }  // in directory order
  const CmfTensor* find(const std::string& name) const;
  std::span<const std::byte> whole() const { return bytes_; }
  uint64_t size() const { return bytes_.size(); }
  uint64_t declared_size() const;  // the end of the last section or tensor

  std::span<const std::byte> payload(const CmfTensor& tensor) const;
  std::span<const std::byte> bytes_of(const CmfSection& section) const;
  std::string_view text_of(const CmfSection& section) const;
  // A configuration ("dit.config_json"); null when absent.
  Json config(const std::string& name) const;
  // XXH3-128 that the header records for a tensor; empty when it records none.
  std::string strong_hash_of(const std::string& tensor) const;
  std::string id() const;  // hash of the directory, and the size

 private:
  void parse(bool open_damaged);
  void read_envelope(bool open_damaged);
  void read_header();
  void read_directory(bool open_damaged);
  CmfTensor read_record(const uint8_t* record, std::string_view pool, size_t number, bool open_damaged) const;
  void check_payload(const CmfTensor& tensor) const;

  std::string path_;
  FileMap map_;
  std::span<const std::byte> bytes_;
  CmfEnvelope envelope_;
  Json header_;
  std::vector<CmfTensor> tensors_;
  std::map<std::string, size_t> index_;
};

inline constexpr uint64_t kCmfAlignment = 4096;

// Writes a CMF tensor by tensor: nothing but the piece at hand is in memory. The place of every payload follows from
// the entries, so payloads are streamed and the head is filled in last.
struct CmfEntry {
  std::string name;
  uint8_t dtype = 0;
  std::vector<int64_t> dims;
  uint64_t bytes = 0;
};

struct CmfSections {
  std::span<const std::byte> masks, vocab, index;
};

struct CmfLayout {
  uint64_t header_bytes = 0;       // of the JSON that commit() will get
  uint64_t least_data_offset = 0;  // of a rewritten file whose blob started later than it had to
  uint32_t features = 0;           // beyond those that follow from the entries
};

class CmfWriter {
 public:
  CmfWriter(const std::string& path, std::vector<CmfEntry> entries, const CmfSections& sections,
            const CmfLayout& layout);

  // The next bytes of the tensor at hand; a tensor ends when its bytes are complete.
  void write(std::span<const std::byte> bytes);
  // XXH3-128 of every finished tensor, in order; empty strings in a build without it.
  const std::vector<std::string>& strong_hashes() const { return strong_; }
  // Head and sections; the file appears under its name. `header` has CmfLayout::header_bytes.
  void commit(std::string_view header);
  const AtomicFile& file() const { return file_; }

 private:
  void finish_tensor();

  AtomicFile file_;
  std::vector<CmfEntry> entries_;
  CmfSections sections_;
  CmfLayout layout_;
  std::vector<uint64_t> offsets_, hashes_;  // offsets are relative to the data section
  std::vector<std::string> strong_;
  uint64_t data_offset_ = 0, data_bytes_ = 0;
  // of the tensor at hand
  uint64_t written_ = 0, parts_ = 0;
  std::vector<std::byte> tail_;  // fewer than 8 bytes that wait for the rest of their word
  StrongHash running_;
};

// "section_hashes" of a header, for sections that exist.
Json cmf_section_hashes(const CmfSections& sections);

}  // namespace h3
