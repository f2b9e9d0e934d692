// Copies, gathers and the reductions over whole tensors.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/runs.h"
#include "codec/scalar.h"

namespace h3 {
namespace {

template <typename T>
void strided(const std::byte* src, int64_t src_stride, std::byte* dst, int64_t dst_stride, int64_t n) {
  const T* s = reinterpret_cast<const T*>(src);
  T* d = reinterpret_cast<T*>(dst);
  for (int64_t i = 0; i < n; ++i) d[i * dst_stride] = s[i * src_stride];
}

double load_element(const std::byte* p, DType type) {
  switch (type) {
    case DType::f32: return *reinterpret_cast<const float*>(p);
    case DType::f64: return *reinterpret_cast<const double*>(p);
    case DType::bf16: return bf16_to_f32(*reinterpret_cast<const uint16_t*>(p));
    case DType::f16: return f16_to_f32(*reinterpret_cast<const uint16_t*>(p));
    default: H3_ASSERT(false); return 0;
  }
}

void store_element(std::byte* p, DType type, double value) {
  switch (type) {
    case DType::f32: *reinterpret_cast<float*>(p) = static_cast<float>(value); return;
    case DType::f64: *reinterpret_cast<double*>(p) = value; return;
    case DType::bf16: *reinterpret_cast<uint16_t*>(p) = f32_to_bf16(static_cast<float>(value)); return;
    case DType::f16: *reinterpret_cast<uint16_t*>(p) = f32_to_f16(static_cast<float>(value)); return;
    default: H3_ASSERT(false);
  }
}

// n elements with strides, between any two types that copy() allows.
void copy_strided(const View& from, const std::byte* src, int64_t src_stride, const View& to, std::byte* dst,
                  int64_t dst_stride, int64_t n) {
  if (from.type == to.type) {
    switch (size_of(from.type)) {
      case 1: strided<uint8_t>(src, src_stride, dst, dst_stride, n); return;
      case 2: strided<uint16_t>(src, src_stride, dst, dst_stride, n); return;
      case 4: strided<uint32_t>(src, src_stride, dst, dst_stride, n); return;
      default: strided<uint64_t>(src, src_stride, dst, dst_stride, n); return;
    }
  }
  const int64_t src_size = size_of(from.type), dst_size = size_of(to.type);
  for (int64_t i = 0; i < n; ++i) {
    store_element(dst + i * dst_stride * dst_size, to.type, load_element(src + i * src_stride * src_size, from.type));
  }
}

bool is_kernel_type(DType type) { return type == DType::f32 || type == DType::bf16 || type == DType::f16; }

int64_t id_of(const View& ids, int64_t i, int64_t limit) {
  const int32_t id = host<int32_t>(ids)[i * ids.stride[0]];
  H3_ASSERT(id >= 0 && id < limit);
  return id;
}

// The items (everything behind axis 0) of two stacks, as runs that are contiguous in both.
struct Items {
  Items(const View& a, const View& b) : runs(first_items(a, b)) {
    step[0] = a.stride[0] * size_of(a.type);
    step[1] = b.stride[0] * size_of(b.type);
  }
  static Runs<2> first_items(const View& a, const View& b) {
    H3_ASSERT(a.rank >= 1 && a.rank == b.rank);
    View x = a, y = b;
    x.dim[0] = y.dim[0] = 1;
    return Runs<2>({&x, &y});
  }
  int64_t elements() const { return runs.count() * runs.length(); }
  // body(from a, from b, n) over the runs of item i of a and item j of b.
  template <typename Body>
  void each(int64_t i, int64_t j, Body body) const {
    for (int64_t run = 0; run < runs.count(); ++run) {
      const auto p = runs.at(run, 0);
      body(p[0] + i * step[0], p[1] + j * step[1], runs.length());
    }
  }

  Runs<2> runs;
  int64_t step[2];
};

}  // namespace

void CpuOps::copy(const View& src, const View& dst) {
  H3_ASSERT(src.rank == dst.rank && src.elements() == dst.elements());
  if (src.elements() == 0) return;
  const Runs<2> runs({&src, &dst});
  const bool kernel = is_kernel_type(src.type) && is_kernel_type(dst.type);
  if (runs.length() > 1 || src.rank == 0) {
    runs.parallel(context_.pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
      if (src.type == dst.type) {
        std::memcpy(p[1], p[0], static_cast<size_t>(n * size_of(src.type)));
      } else if (kernel) {
        kernels_.pointwise->convert(elem_of(src.type), p[0], elem_of(dst.type), p[1], n);
      } else {
        copy_strided(src, p[0], 1, dst, p[1], 1, n);
      }
    });
    return;
  }
  // No common contiguous axis: walk the rows of the last one.
  const int last = src.rank - 1;
  const View from = src.select(last, 0), to = dst.select(last, 0);
  const Runs<2> rows({&from, &to});
  const int64_t length = src.dim[last];
  for_row_pieces(from.elements(), length, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto p = rows.at(r / rows.length(), r % rows.length());
      copy_strided(src, p[0], src.stride[last], dst, p[1], dst.stride[last], length);
    }
  });
}

void CpuOps::fill(const View& dst, float value) {
  const Runs<1> runs({&dst});
  runs.parallel(context_.pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
    switch (dst.type) {
      case DType::f32: std::fill_n(reinterpret_cast<float*>(p[0]), n, value); break;
      case DType::bf16: std::fill_n(reinterpret_cast<uint16_t*>(p[0]), n, f32_to_bf16(value)); break;
      case DType::f16: std::fill_n(reinterpret_cast<uint16_t*>(p[0]), n, f32_to_f16(value)); break;
      case DType::i32: std::fill_n(reinterpret_cast<int32_t*>(p[0]), n, static_cast<int32_t>(value)); break;
      default: H3_ASSERT(false);
    }
  });
}

void CpuOps::gather_rows(const View& src, const View& ids, const View& dst) {
  H3_ASSERT(ids.rank == 1 && ids.dim[0] == dst.dim[0]);
  const Items items(src, dst);
  for_row_pieces(dst.dim[0], items.elements(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      items.each(id_of(ids, i, src.dim[0]), i,
                 [&](const std::byte* from, std::byte* to, int64_t n) { copy_strided(src, from, 1, dst, to, 1, n); });
    }
  });
}

void CpuOps::scatter_rows(const View& src, const View& ids, const View& dst) {
  H3_ASSERT(ids.rank == 1 && ids.dim[0] == src.dim[0]);
  const Items items(src, dst);
  for_row_pieces(src.dim[0], items.elements(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      items.each(i, id_of(ids, i, dst.dim[0]),
                 [&](const std::byte* from, std::byte* to, int64_t n) { copy_strided(src, from, 1, dst, to, 1, n); });
    }
  });
}

void CpuOps::scatter_add_rows(const View& src, const View& ids, const View& dst) {
  H3_ASSERT(ids.rank == 1 && ids.dim[0] == src.dim[0]);
  const Items items(src, dst);
  for_row_pieces(src.dim[0], items.elements(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      items.each(i, id_of(ids, i, dst.dim[0]), [&](const std::byte* from, std::byte* to, int64_t n) {
        kernels_.pointwise->accumulate(elem_of(src.type), from, elem_of(dst.type), to, n);
      });
    }
  });
}

void CpuOps::l1_pair(const View& a, const View& b, const View& out) {
  H3_ASSERT(a.type == b.type && out.rank == 1 && out.dim[0] == 2 && out.type == DType::f32);
  const Runs<2> runs({&a, &b});
  const int64_t pieces = ceil_div(std::max<int64_t>(1, runs.length()), Runs<2>::kPiece);
  need_shared(runs.count() * pieces * 2 * 4);
  float* partial = reinterpret_cast<float*>(shared());
  runs.parallel(context_.pool, [&](const auto& p, int64_t n, int64_t run, int64_t offset) {
    float* slot = partial + 2 * (run * pieces + offset / Runs<2>::kPiece);
    kernels_.pointwise->l1_pair(elem_of(a.type), p[0], p[1], n, slot, slot + 1);
  });
  double difference = 0, norm = 0;
  if (a.elements() > 0) {
    for (int64_t i = 0; i < runs.count() * pieces; ++i) {
      difference += static_cast<double>(partial[2 * i]);
      norm += static_cast<double>(partial[2 * i + 1]);
    }
  }
  float* result = host<float>(out);
  result[0] = static_cast<float>(difference);
  result[out.stride[0]] = static_cast<float>(norm);
}

bool CpuOps::all_finite(const View& x) {
  std::atomic<bool> good{true};
  const Runs<1> runs({&x});
  runs.parallel(context_.pool, [&](const auto& p, int64_t n, int64_t, int64_t) {
    if (!kernels_.pointwise->finite(elem_of(x.type), p[0], n)) good.store(false, std::memory_order_relaxed);
  });
  return good.load();
}

void CpuOps::check_finite(const View& x, const View& flags) {
  H3_ASSERT(flags.type == DType::i32 && flags.dim[0] == 1);
  *host<int32_t>(flags) |= all_finite(x) ? 0 : 1;
}

}  // namespace h3
