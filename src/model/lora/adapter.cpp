#include "model/lora/adapter.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace h3::lora {
namespace {

// A matrix of its own bytes: rows [first_row, +rows), columns [first_col, +cols) of a plain one.
StoredMatrix copy_part(const StoredMatrix& from, int64_t first_row, int64_t rows, int64_t first_col, int64_t cols) {
  const int64_t size = static_cast<int64_t>(from.data.size()) / (from.rows * from.cols);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(rows * cols * size));
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(bytes->data() + r * cols * size, from.data.data() + ((first_row + r) * from.cols + first_col) * size,
                static_cast<size_t>(cols * size));
  }
  StoredMatrix out;
  out.format = from.format;
  out.rows = rows;
  out.cols = cols;
  out.data = *bytes;
  out.keep_alive = bytes;
  return out;
}

// Zero everywhere outside the diagonal blocks: `parts` branches of rank cols / parts in one pair.
bool block_diagonal(const StoredMatrix& up, int64_t parts) {
  if (up.cols % parts != 0 || up.rows % parts != 0) return false;
  const int64_t size = static_cast<int64_t>(up.data.size()) / (up.rows * up.cols);
  const int64_t rows = up.rows / parts, width = up.cols / parts * size, row_bytes = up.cols * size;
  const auto zero = [&](const std::byte* at, int64_t count) {
    return std::all_of(at, at + count, [](std::byte b) { return b == std::byte{0}; });
  };
  for (int64_t r = 0; r < up.rows; ++r) {
    const std::byte* row = up.data.data() + r * row_bytes;
    const int64_t first = r / rows * width;
    if (!zero(row, first) || !zero(row + first + width, row_bytes - first - width)) return false;
  }
  return true;
}

}  // namespace

StoredMatrix Adapter::matrix(const TensorInfo& info) const {
  StoredMatrix out;
  out.format = info.format;
  out.rows = info.dims.at(0);
  out.cols = info.dims.at(1);
  out.data = info.data;
  out.keep_alive = file_.source;
  check_matrix(out, info.name);
  return out;
}

void Adapter::append_branches(const Pair& pair, std::vector<Branch>& out) const {
  const StoredMatrix down = matrix(*pair.down), up = matrix(*pair.up);
  const auto add = [&](const StoredMatrix& a, const StoredMatrix& b, int64_t first_row) {
    Branch branch;
    branch.down = a;
    branch.first_row = first_row;
    branch.scale = pair.scale;
    branch.up.name = pair.up->name;
    if (pair.target.value_first) {
      branch.up.append(b, ffn_, ffn_);
      branch.up.append(b, 0, ffn_);
    } else {
      branch.up.append(b, 0, b.rows);
    }
    out.push_back(std::move(branch));
  };
  const bool fused = pair.target.site.part == Site::Part::qkv && pair.target.rows == 3 * inner_;
  if (!fused || !block_diagonal(up, 3)) {
    add(down, up, pair.target.first_row);
    return;
  }
  const int64_t rank = up.cols / 3;
  for (int64_t part = 0; part < 3; ++part) {
    add(copy_part(down, part * rank, rank, 0, down.cols), copy_part(up, part * inner_, inner_, part * rank, rank),
        part * inner_);
  }
}

std::vector<Site> Adapter::sites() const {
  std::vector<Site> out;
  for (const auto& [site, pairs] : pairs_) out.push_back(site);
  return out;
}

std::vector<Branch> Adapter::branches(const Site& site) const {
  std::vector<Branch> out;
  const auto found = pairs_.find(site);
  if (found == pairs_.end()) return out;
  for (const Pair& pair : found->second) append_branches(pair, out);
  return out;
}

SiteMerge::SiteMerge(const std::vector<Use>& uses, const Site& site) {
  for (const Use& use : uses) {
    for (const Branch& branch : use.adapter->branches(site)) {
      Part part{std::vector<float>(static_cast<size_t>(branch.down.rows * branch.down.cols)),
                branch.up,
                branch.first_row,
                branch.down.rows,
                branch.down.cols,
                use.strength * branch.scale};
      const FormatRow& format = row_of(branch.down.format);
      for (int64_t k = 0; k < part.rank; ++k) format.decode_row(branch.down, k, &part.down[k * part.in]);
      branches_.push_back(std::move(part));
    }
  }
}

void SiteMerge::add(int64_t first, int64_t count, float* rows) const {
  for (const Part& part : branches_) {
    const int64_t begin = std::max(first, part.first_row), end = std::min(first + count, part.first_row + part.up.rows);
    std::vector<float> up(static_cast<size_t>(part.rank)), sum(static_cast<size_t>(part.in));
    for (int64_t r = begin; r < end; ++r) {
      part.up.decode_rows(r - part.first_row, 1, up.data());
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t k = 0; k < part.rank; ++k) {
        const float* down = &part.down[k * part.in];
        for (int64_t c = 0; c < part.in; ++c) sum[c] += up[k] * down[c];
      }
      float* row = rows + (r - first) * part.in;
      for (int64_t c = 0; c < part.in; ++c) row[c] += part.scale * sum[c];
    }
  }
}

}  // namespace h3::lora
