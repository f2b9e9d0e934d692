#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

struct TensorTest : ::testing::Test {
  HostDevice device;
  Tensor counted(const std::vector<int64_t>& dims, DType type = DType::f32) {  // 0, 1, 2, ...
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    std::vector<float> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>(i);
    return upload_f32(device, v.data(), dims, type, "test");
  }
};

TEST_F(TensorTest, RowMajorStrides) {
  const Tensor t = counted({2, 3, 4});
  EXPECT_EQ(t.view.stride[0], 12);
  EXPECT_EQ(t.view.stride[1], 4);
  EXPECT_EQ(t.view.stride[2], 1);
  EXPECT_TRUE(t.view.contiguous());
  EXPECT_EQ(t.view.elements(), 24);
  EXPECT_EQ(t.view.bytes(), 96);
  EXPECT_EQ(t.view.shape(), "[2, 3, 4]");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.view.data) % 64, 0u);
}

TEST_F(TensorTest, SliceAndSelect) {
  const Tensor t = counted({2, 3, 4});
  const View s = t.view.slice(2, 1, 2);
  EXPECT_FALSE(s.contiguous());
  EXPECT_EQ(download_f32(s), (std::vector<float>{1, 2, 5, 6, 9, 10, 13, 14, 17, 18, 21, 22}));
  EXPECT_EQ(download_f32(t.view.select(1, 2)), (std::vector<float>{8, 9, 10, 11, 20, 21, 22, 23}));
  EXPECT_EQ(t.view.select(0, 1).select(0, 0).select(0, 3).rank, 0);
  EXPECT_EQ(download_f32(t.view.select(0, 1).select(0, 0).select(0, 3)), std::vector<float>{15});
  EXPECT_EQ(t.view.slice(0, 2, 0).elements(), 0);
  EXPECT_TRUE(download_f32(t.view.slice(0, 2, 0)).empty());
}

TEST_F(TensorTest, ReshapeAndSplit) {
  const Tensor t = counted({4, 6});
  EXPECT_EQ(t.view.reshape({2, -1}).dim[1], 12);
  EXPECT_EQ(t.view.reshape({24}).rank, 1);
  // [4, 6] -> [4, 3, 2]; inside a wider row the strides are kept.
  const View split = t.view.slice(1, 2, 4).split(1, 2);
  EXPECT_EQ(split.shape(), "[4, 2, 2]");
  EXPECT_EQ(download_f32(split.select(0, 1)), (std::vector<float>{8, 9, 10, 11}));
}

TEST_F(TensorTest, MisuseAborts) {
  const Tensor t = counted({4, 6});
  EXPECT_DEATH(t.view.slice(0, 3, 2), "internal error");
  EXPECT_DEATH(t.view.slice(2, 0, 1), "internal error");
  EXPECT_DEATH(t.view.split(1, 4), "internal error");
  EXPECT_DEATH(t.view.slice(1, 0, 3).reshape({12}), "internal error");
  EXPECT_DEATH(t.view.reshape({5, 5}), "internal error");
  EXPECT_DEATH(host<uint16_t>(t.view), "internal error");
  EXPECT_DEATH(t.view.as(DType::f16), "internal error");
}

TEST_F(TensorTest, NarrowTypesRoundTrip) {
  for (DType type : {DType::bf16, DType::f16}) {
    const Tensor t = counted({3, 7}, type);
    EXPECT_EQ(t.view.bytes(), 42);
    EXPECT_EQ(download_f32(t.view.slice(1, 2, 2)), (std::vector<float>{2, 3, 9, 10, 16, 17}));
  }
  const Tensor ids = upload_i32(device, {5, -1}, "test");
  EXPECT_EQ(host<int32_t>(ids.view)[1], -1);
}

TEST_F(TensorTest, BuffersAreCountedAndMove) {
  const int64_t before = device.allocated_bytes(), count = device.allocations();
  {
    Tensor a(device, DType::f32, {100}, "test");
    EXPECT_EQ(device.allocated_bytes(), before + 400);
    Tensor b = std::move(a);
    EXPECT_EQ(device.allocated_bytes(), before + 400);
    b = Tensor(device, DType::f32, {50}, "test");
    EXPECT_EQ(device.allocated_bytes(), before + 200);
    EXPECT_EQ(device.peak_bytes(), before + 600);
    device.reset_peak();
    EXPECT_EQ(device.peak_bytes(), before + 200);
  }
  EXPECT_EQ(device.allocated_bytes(), before);
  EXPECT_EQ(device.allocations(), count + 2);
}

TEST_F(TensorTest, TooMuchMemoryIsAnError) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators end the process
  try {
    const Buffer buffer = device.allocate(int64_t{1} << 60, "a test");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::memory);
    EXPECT_NE(std::string(error.what()).find("a test"), std::string::npos);
  }
#endif
}

TEST(Staging, CountsAsMemoryOfTheHost) {
  HostDevice device;
  device.set_cap(1000);
  const Buffer held = device.allocate(600, "test");
  std::shared_ptr<std::byte> staging = device.staging(300);
  EXPECT_EQ(device.host_bytes(), 300);
  for (const bool stage : {true, false}) {
    try {
      if (stage) {
        device.staging(101);
      } else {
        device.allocate(101, "test");
      }
      FAIL() << "1001 bytes of 1000";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::memory);
      EXPECT_NE(std::string(error.what()).find("raise --ram"), std::string::npos) << error.what();
    }
  }
  const std::shared_ptr<std::byte> other = staging;
  staging.reset();
  EXPECT_EQ(device.host_bytes(), 300) << "another holds it";
  std::shared_ptr<const void> claim = device.claim_host(100, "test");
  EXPECT_THROW(device.claim_host(1, "test"), Error);
  claim.reset();
  EXPECT_EQ(device.host_bytes(), 300);
}

TEST(Rows, OneRoundingFromDouble) {
  // Halfway between two bf16 values plus a part that f32 cannot hold: rounding twice would go to even, down.
  const double halfway = 1 + 0x1p-8, above = halfway + 0x1p-40;
  EXPECT_EQ(rows::round_to(DType::bf16, halfway), 1.0);
  EXPECT_EQ(rows::round_to(DType::bf16, above), 1 + 0x1p-7);
  EXPECT_EQ(rows::round_to(DType::bf16, -above), -1 - 0x1p-7);
  EXPECT_EQ(rows::round_to(DType::bf16, halfway + 0x1p-7 - 0x1p-40), 1 + 0x1p-7);  // just below the next halfway
  EXPECT_EQ(rows::round_to(DType::f16, 1 + 0x1p-11 + 0x1p-45), 1 + 0x1p-10);
  EXPECT_EQ(rows::round_to(DType::f16, 65519.999999), 65504.0);
  EXPECT_TRUE(std::isinf(rows::round_to(DType::f16, 65520)));
  EXPECT_TRUE(std::isinf(rows::round_to(DType::bf16, 1e39)));
  EXPECT_TRUE(std::isnan(rows::round_to(DType::f16, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_EQ(rows::round_to(DType::f32, 0.1), static_cast<double>(0.1f));
  EXPECT_EQ(rows::round_to(DType::f16, 0x1p-25 + 0x1p-60), 0x1p-24);  // just above half of the least subnormal
  EXPECT_EQ(rows::round_to(DType::f16, 0x1p-25), 0.0);
}

TEST(Rows, AddressesFollowStrides) {
  HostDevice device;
  Tensor t(device, DType::f32, {2, 3, 4}, "test");
  for (int i = 0; i < 24; ++i) host<float>(t.view)[i] = static_cast<float>(i);
  View swapped = t.view;
  std::swap(swapped.dim[1], swapped.dim[2]);
  std::swap(swapped.stride[1], swapped.stride[2]);
  double row[3];
  rows::load_row(swapped, 5, 0, 3, row);  // [1][1][.] of [2, 4, 3]
  EXPECT_EQ(row[0], 13);
  EXPECT_EQ(row[1], 17);
  EXPECT_EQ(row[2], 21);
  const double more[2] = {-1, -2};
  rows::store_row(swapped, 5, 1, 2, more);
  EXPECT_EQ(host<float>(t.view)[13], 13);
  EXPECT_EQ(host<float>(t.view)[17], -1);
  EXPECT_EQ(host<float>(t.view)[21], -2);
}

}  // namespace
}  // namespace h3
