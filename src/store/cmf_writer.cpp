// Writing CMF files (spec formats A.1 to A.3).
#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "store/cmf.h"

namespace h3 {
namespace {

constexpr uint64_t kRecordBytes = 56, kLargePayload = 16384, kSmallAlignment = 64;
constexpr uint32_t kDirectoryFeature = 1u << 0, kTwoFieldFeature = 1u << 2;
constexpr uint8_t kTwoFieldDtypes[] = {8, 9};

uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

void put(std::string& out, uint64_t value, int count) {
  for (int i = 0; i < count; ++i) out += static_cast<char>(value >> (8 * i));
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

uint64_t pool_bytes(const std::vector<CmfEntry>& entries) {
  uint64_t total = 0;
  for (const CmfEntry& entry : entries) total += entry.name.size();
  return total;
}

}  // namespace

Json cmf_section_hashes(const CmfSections& sections) {
  Json hashes = Json::object();
  const std::pair<const char*, std::span<const std::byte>> rows[] = {
      {"masks", sections.masks}, {"vocab", sections.vocab}, {"index", sections.index}};
  for (const auto& [name, bytes] : rows) {
    if (!bytes.empty()) hashes.set(name, strf("%016llx", static_cast<unsigned long long>(hash64(bytes))));
  }
  return hashes;
}

CmfWriter::CmfWriter(const std::string& path, std::vector<CmfEntry> entries, const CmfSections& sections,
                     const CmfLayout& layout)
    : file_(path), entries_(std::move(entries)), sections_(sections), layout_(layout) {
  for (const CmfEntry& entry : entries_) {
    if (entry.dims.size() > 6 || entry.name.size() > UINT16_MAX) {
      fail(Code::data, "tensor '%.80s' does not fit a CMF file: %zu axes (at most 6), a name of %zu bytes",
           entry.name.c_str(), entry.dims.size(), entry.name.size());
    }
    for (const int64_t dim : entry.dims) {
      if (dim < 0 || dim > UINT32_MAX) {
        fail(Code::data, "tensor '%s' does not fit a CMF file: an axis of %lld", entry.name.c_str(),
             static_cast<long long>(dim));
      }
    }
    data_bytes_ = align_up(data_bytes_, entry.bytes >= kLargePayload ? kCmfAlignment : kSmallAlignment);
    offsets_.push_back(data_bytes_);
    data_bytes_ += entry.bytes;
  }
  const uint64_t directory = 16 + kRecordBytes * entries_.size() + pool_bytes(entries_);
  const uint64_t head = CmfEnvelope::kBytes + layout.header_bytes + directory;
  data_offset_ = align_up(std::max(head, layout.least_data_offset), kCmfAlignment);
  while (hashes_.size() < entries_.size() && entries_[hashes_.size()].bytes == 0) finish_tensor();
}

void CmfWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    H3_ASSERT(hashes_.size() < entries_.size());
    const size_t at = hashes_.size();
    const uint64_t rest = entries_[at].bytes - written_;
    const std::span<const std::byte> now = bytes.first(std::min<uint64_t>(rest, bytes.size()));
    file_.write_at(data_offset_ + offsets_[at] + written_, now.data(), now.size());
    running_.update(now);
    // hash64 takes whole words: bytes of an unfinished one wait.
    std::span<const std::byte> unhashed = now;
    uint64_t hashed = written_ - tail_.size();
    if (!tail_.empty()) {
      const size_t take = std::min<size_t>(8 - tail_.size(), unhashed.size());
      tail_.insert(tail_.end(), unhashed.begin(), unhashed.begin() + static_cast<std::ptrdiff_t>(take));
      unhashed = unhashed.subspan(take);
      if (tail_.size() == 8) {
        parts_ ^= hash64_part(tail_, hashed);
        hashed += 8;
        tail_.clear();
      }
    }
    const size_t whole = unhashed.size() / 8 * 8;
    parts_ ^= hash64_part(unhashed.first(whole), hashed);
    tail_.insert(tail_.end(), unhashed.begin() + static_cast<std::ptrdiff_t>(whole), unhashed.end());
    written_ += now.size();
    bytes = bytes.subspan(now.size());
    while (hashes_.size() < entries_.size() && written_ == entries_[hashes_.size()].bytes) finish_tensor();
  }
}

void CmfWriter::finish_tensor() {
  if (!tail_.empty()) parts_ ^= hash64_part(tail_, written_ - tail_.size());
  hashes_.push_back(hash64_finish(parts_, written_));
  strong_.push_back(running_.hex());
  written_ = parts_ = 0;
  tail_.clear();
  running_ = StrongHash();
}

void CmfWriter::commit(std::string_view header) {
  H3_ASSERT(hashes_.size() == entries_.size() && header.size() == layout_.header_bytes);
  std::string directory, pool;
  put(directory, entries_.size(), 8);
  put(directory, 16 + kRecordBytes * entries_.size(), 8);
  uint32_t features = kDirectoryFeature | layout_.features;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const CmfEntry& entry = entries_[i];
    put(directory, pool.size(), 4);
    put(directory, entry.name.size(), 2);
    put(directory, entry.dtype, 1);
    put(directory, entry.dims.size(), 1);
    for (size_t axis = 0; axis < 6; ++axis) {
      put(directory, axis < entry.dims.size() ? static_cast<uint64_t>(entry.dims[axis]) : 0, 4);
    }
    put(directory, offsets_[i], 8);
    put(directory, entry.bytes, 8);
    put(directory, hashes_[i], 8);
    pool += entry.name;
    for (const uint8_t dtype : kTwoFieldDtypes) {
      if (entry.dtype == dtype) features |= kTwoFieldFeature;
    }
  }
  directory += pool;
  uint64_t end = data_offset_ + data_bytes_;
  std::string envelope;
  envelope.append("CMF\1", 4);
  put(envelope, 2, 4);
  put(envelope, 0, 4);
  put(envelope, features, 4);
  put(envelope, CmfEnvelope::kBytes, 8);
  put(envelope, header.size(), 8);
  put(envelope, CmfEnvelope::kBytes + header.size(), 8);
  put(envelope, directory.size(), 8);
  put(envelope, data_offset_, 8);
  put(envelope, data_bytes_, 8);
  for (const std::span<const std::byte> section : {sections_.masks, sections_.vocab, sections_.index}) {
    put(envelope, section.empty() ? 0 : end, 8);
    put(envelope, section.size(), 8);
    file_.write_at(end, section.data(), section.size());
    end += section.size();
  }
  put(envelope, hash64(std::as_bytes(std::span(header))), 8);
  put(envelope, hash64(bytes_of(directory)), 8);
  H3_ASSERT(envelope.size() == CmfEnvelope::kBytes);
  file_.write_at(0, envelope.data(), envelope.size());
  file_.write_at(CmfEnvelope::kBytes, header.data(), header.size());
  file_.write_at(CmfEnvelope::kBytes + header.size(), directory.data(), directory.size());
  file_.commit();
}

}  // namespace h3
