#include <cstring>

#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

constexpr int64_t kPiece = 4096;  // elements of a row handled at once; bounds the scratch of a task

void copy_piece(const View& src, int64_t src_row, const View& dst, int64_t dst_row, int64_t begin, int64_t count) {
  if (is_float(src.type) && is_float(dst.type)) {
    double values[kPiece];
    rows::load_row(src, src_row, begin, count, values);
    rows::store_row(dst, dst_row, begin, count, values);
    return;
  }
  H3_ASSERT(src.type == dst.type);
  const int64_t size = size_of(src.type);
  const int64_t src_step = src.rank == 0 ? size : src.stride[src.rank - 1] * size;
  const int64_t dst_step = dst.rank == 0 ? size : dst.stride[dst.rank - 1] * size;
  const std::byte* from = rows::row_address(src, src_row) + begin * src_step;
  std::byte* to = rows::row_address(dst, dst_row) + begin * dst_step;
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * dst_step, from + i * src_step, static_cast<size_t>(size));
}

// src and dst are stacks of items along axis 0 with equal item shapes; ids number the items of `table`.
void check_rows(const View& items, const View& ids, const View& table) {
  H3_ASSERT(items.rank >= 1 && items.rank == table.rank && ids.rank == 1 && ids.type == DType::i32);
  H3_ASSERT(ids.dim[0] == items.dim[0]);
  for (int i = 1; i < items.rank; ++i) H3_ASSERT(items.dim[i] == table.dim[i]);
  for (int64_t i = 0; i < ids.dim[0]; ++i) {
    const int32_t id = host<int32_t>(ids)[i * ids.stride[0]];
    H3_ASSERT(id >= 0 && id < table.dim[0]);
  }
}

int64_t id_of(const View& ids, int64_t i) { return host<int32_t>(ids)[i * ids.stride[0]]; }

// Rows of one item: a stack [n, a, b, c] has items of a * b rows; [n, c] of one; [n] is one row of n items.
int64_t rows_per_item(const View& stack) { return stack.rank < 2 ? 0 : rows::row_count(stack) / stack.dim[0]; }

}  // namespace

void RefOps::for_pieces(const View& shape, const std::function<void(int64_t, int64_t, int64_t)>& body) {
  const int64_t rows = rows::row_count(shape), length = rows::row_length(shape);
  if (rows * length == 0) return;
  const int64_t pieces = (length + kPiece - 1) / kPiece;
  const int64_t total = rows * pieces;
  const int64_t per_task = std::max<int64_t>(1, 4 * kPiece / std::min(length, kPiece));
  context_.pool.parallel((total + per_task - 1) / per_task, [&](int64_t task) {
    for (int64_t i = task * per_task; i < std::min(total, (task + 1) * per_task); ++i) {
      const int64_t begin = i % pieces * kPiece;
      body(i / pieces, begin, std::min(kPiece, length - begin));
    }
  });
}

void RefOps::for_rows(int64_t rows, int64_t length, const std::function<void(int64_t)>& body) {
  const int64_t per_task = std::max<int64_t>(1, 4096 / std::max<int64_t>(1, length));
  context_.pool.parallel((rows + per_task - 1) / per_task, [&](int64_t task) {
    for (int64_t row = task * per_task; row < std::min(rows, (task + 1) * per_task); ++row) body(row);
  });
}

void RefOps::copy(const View& src, const View& dst) {
  H3_ASSERT(rows::same_dims(src, dst));
  for_pieces(dst, [&](int64_t row, int64_t begin, int64_t count) { copy_piece(src, row, dst, row, begin, count); });
}

void RefOps::fill(const View& dst, float value) {
  for_pieces(dst, [&](int64_t row, int64_t begin, int64_t count) {
    if (is_float(dst.type)) {
      const std::vector<double> values(static_cast<size_t>(count), value);
      rows::store_row(dst, row, begin, count, values.data());
      return;
    }
    H3_ASSERT(dst.type == DType::i32);
    const int64_t step = dst.stride[dst.rank - 1];
    int32_t* out = reinterpret_cast<int32_t*>(rows::row_address(dst, row)) + begin * step;
    for (int64_t i = 0; i < count; ++i) out[i * step] = static_cast<int32_t>(value);
  });
}

void RefOps::gather_rows(const View& src, const View& ids, const View& dst) {
  check_rows(dst, ids, src);
  if (dst.rank == 1) {
    for (int64_t i = 0; i < dst.dim[0]; ++i) copy_piece(src.slice(0, id_of(ids, i), 1), 0, dst.slice(0, i, 1), 0, 0, 1);
    return;
  }
  const int64_t inner = rows_per_item(src);
  for_pieces(dst, [&](int64_t row, int64_t begin, int64_t count) {
    copy_piece(src, id_of(ids, row / inner) * inner + row % inner, dst, row, begin, count);
  });
}

void RefOps::scatter_rows(const View& src, const View& ids, const View& dst) {
  check_rows(src, ids, dst);
  if (src.rank == 1) {
    for (int64_t i = 0; i < src.dim[0]; ++i) copy_piece(src.slice(0, i, 1), 0, dst.slice(0, id_of(ids, i), 1), 0, 0, 1);
    return;
  }
  const int64_t inner = rows_per_item(dst);
  for_pieces(src, [&](int64_t row, int64_t begin, int64_t count) {
    copy_piece(src, row, dst, id_of(ids, row / inner) * inner + row % inner, begin, count);
  });
}

void RefOps::scatter_add_rows(const View& src, const View& ids, const View& dst) {
  check_rows(src, ids, dst);
  H3_ASSERT(src.rank >= 2);
  // Repeated ids add up in the order of the rows, so only the columns are shared out.
  const int64_t inner = rows_per_item(dst), length = rows::row_length(src);
  constexpr int64_t kColumns = 256;
  context_.pool.parallel((length + kColumns - 1) / kColumns, [&](int64_t task) {
    const int64_t begin = task * kColumns, count = std::min(kColumns, length - begin);
    double sum[kColumns], more[kColumns];
    for (int64_t row = 0; row < rows::row_count(src); ++row) {
      const int64_t target = id_of(ids, row / inner) * inner + row % inner;
      rows::load_row(dst, target, begin, count, sum);
      rows::load_row(src, row, begin, count, more);
      for (int64_t i = 0; i < count; ++i) sum[i] += more[i];
      rows::store_row(dst, target, begin, count, sum);
    }
  });
}

std::unique_ptr<Ops> make_ref_ops(Context& context) { return std::make_unique<RefOps>(context); }

}  // namespace h3
