#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace h3 {
namespace {

// Optimal string alignment distance: Levenshtein plus swaps of neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, std::span<const std::string> known) {
  // Words of a request are short; a long one is not a typing error, and the distance costs its length squared.
  if (word.empty() || word.size() > 64) return "";
  const size_t limit = std::clamp<size_t>(word.size() / 3, 1, 3);
  std::string best;
  size_t best_distance = limit + 1;
  for (const std::string& entry : known) {
    const size_t distance = edit_distance(word, entry);
    if (distance < best_distance) {
      best_distance = distance;
      best = entry;
    }
  }
  return best;
}

std::string suggestion(const std::string& word, std::span<const std::string> known) {
  const std::string best = nearest(word, known);
  return best.empty() ? "" : " (did you mean " + best + "?)";
}

}  // namespace h3
