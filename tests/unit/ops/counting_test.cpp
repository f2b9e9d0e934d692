#include "ops/counting.h"

#include <gtest/gtest.h>

#include <vector>

#include "backends/list.h"
#include "base/context.h"

namespace h3 {
namespace {

// Of weights that travel, those that are not multiplied in the bytes of the file wait in memory of the host.
TEST(Counting, ConvertedWeightsOfGroupsTakeRam) {
  ThreadPool pool(1);
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> cpu = make_backend("cpu", context);
  const std::unique_ptr<CountingOps> counting = make_counting(*cpu);
  const std::unique_ptr<WeightGroup> group = counting->make_group();
  const std::vector<std::byte> bytes(64 * 128 * 2);
  StoredMatrix stored;
  stored.format = Format::bf16;
  stored.rows = 64;
  stored.cols = 128;
  stored.data = bytes;
  const auto make = [&](Compute compute, WeightGroup* with) {
    LinearSpec spec;
    spec.label = "test";
    spec.weight.append(stored, 0, 64);
    spec.compute = compute;
    spec.group = with;
    counting->make_linear(std::move(spec));
    return counting->host_bytes();
  };
  EXPECT_EQ(make(Compute::bf16, group.get()), 0);
  EXPECT_EQ(make(Compute::int8, nullptr), 0);
  EXPECT_EQ(make(Compute::int8, group.get()), cpu->linear_bytes([&] {
    MatrixSource source;
    source.append(stored, 0, 64);
    return source;
  }(), Compute::int8));
}

}  // namespace
}  // namespace h3
