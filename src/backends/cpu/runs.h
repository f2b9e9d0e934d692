// Equal-shaped strided views as runs of contiguous elements: trailing axes that are contiguous in every view are
// merged.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace h3 {

template <int N>
class Runs {
 public:
  static constexpr int64_t kPiece = 32768;  // elements of one task

  explicit Runs(const std::array<const View*, N>& views) {
    const View& shape = *views[0];
    for (const View* view : views) {
      H3_ASSERT(view->rank == shape.rank &&
                std::equal(view->dim.begin(), view->dim.begin() + shape.rank, shape.dim.begin()));
    }
    int axis = shape.rank - 1;
    for (; axis >= 0; --axis) {
      bool joins = true;
      for (const View* view : views) joins = joins && (view->stride[axis] == length_ || shape.dim[axis] == 1);
      if (!joins) break;
      length_ *= shape.dim[axis];
    }
    rank_ = axis + 1;
    for (int i = 0; i < rank_; ++i) {
      dim_[i] = shape.dim[i];
      count_ *= shape.dim[i];
    }
    for (int v = 0; v < N; ++v) {
      base_[v] = views[v]->data;
      size_[v] = size_of(views[v]->type);
      for (int i = 0; i < rank_; ++i) stride_[v][i] = views[v]->stride[i] * size_[v];
    }
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }

  std::array<std::byte*, N> at(int64_t run, int64_t offset) const {
    std::array<std::byte*, N> p;
    for (int v = 0; v < N; ++v) p[v] = base_[v] + offset * size_[v];
    for (int i = rank_ - 1; i >= 0; --i) {
      const int64_t index = run % dim_[i];
      run /= dim_[i];
      for (int v = 0; v < N; ++v) p[v] += index * stride_[v][i];
    }
    return p;
  }

  // body(addresses, n, run, offset) over pieces of at most kPiece elements, in parallel.
  template <typename Body>
  void parallel(ThreadPool& pool, Body body) const {
    if (count_ <= 0 || length_ <= 0) return;
    if (length_ >= kPiece) {
      const int64_t pieces = (length_ + kPiece - 1) / kPiece;
      pool.parallel(count_ * pieces, [&](int64_t task) {
        const int64_t run = task / pieces, offset = task % pieces * kPiece;
        body(at(run, offset), std::min(kPiece, length_ - offset), run, offset);
      });
      return;
    }
    const int64_t per_task = kPiece / length_;
    pool.parallel((count_ + per_task - 1) / per_task, [&](int64_t task) {
      const int64_t end = std::min(count_, (task + 1) * per_task);
      for (int64_t run = task * per_task; run < end; ++run) body(at(run, 0), length_, run, 0);
    });
  }

 private:
  int rank_ = 0;
  int64_t count_ = 1, length_ = 1;
  std::array<int64_t, kMaxRank> dim_{};
  std::array<std::byte*, N> base_{};
  std::array<int64_t, N> size_{};
  std::array<std::array<int64_t, kMaxRank>, N> stride_{};  // bytes
};

}  // namespace h3
