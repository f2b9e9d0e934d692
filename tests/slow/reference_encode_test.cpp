// What encoding a reference clip costs on an accelerator beside decoding one of the same size, in f16, with random
// weights of release size. Figures are printed; correctness is asserted.
#include <gtest/gtest.h>

#include <cstdio>

#include "backends/list.h"
#include "base/error.h"
#include "bench/models.h"

namespace h3 {
namespace {

TEST(ReferenceEncode, OnTheCard) {
  ThreadPool pool;
  Log log;
  Context context{pool, log};
  for (const BackendInfo& backend : list_backends(context)) {
    if (!backend.refused.empty() || backend.name.rfind("cuda", 0) != 0) continue;
    const std::unique_ptr<Ops> ops = make_backend(backend.name, context);
    ModelBench options;
    options.compute = Compute::f16;
    options.repeats = 3;
    const Ceiling ceiling = measure_ceiling(*ops, options.compute);
    const Json decode = bench_video_decode(*ops, options, ceiling);
    const Json encode = bench_video_encode(*ops, options, ceiling);  // throws when it is too far from f32
    for (const Json* row : {&decode, &encode}) {
      std::printf("%s\n", row->dump().c_str());
      EXPECT_TRUE(row->at("finite").as_bool());
      EXPECT_TRUE(row->at("repeatable").as_bool());
    }
    std::printf("encode / decode = %.2f\n", encode.at("median_s").as_double() / decode.at("median_s").as_double());
    return;
  }
  GTEST_SKIP() << "no accelerator";
}

}  // namespace
}  // namespace h3
