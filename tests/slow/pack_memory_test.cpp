// Packing streams: a checkpoint far larger than the memory that the packer may have.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/pack/pack.h"
#include "base/error.h"
#include "model/dit/weights.h"
#include "store/cmf_verify.h"
#include "tests/support/put_file.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

// A transformer of 0.5 GB in f32 whose largest matrix takes 2 % of it, as in a release of 10 GB.
testing::ToySize size() {
  testing::ToySize n;
  n.hidden = 512, n.heads = 4, n.head_dim = 128, n.ffn = 2048, n.layers = 27, n.text = 512;
  return n;
}

class PackMemory : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return root_ / name; }

  // The exit code of a process that does this work: 0 done, 3 out of memory.
  static int in_child(const std::function<void()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        work();
        ::_exit(0);
      } catch (const std::bad_alloc&) {
        ::_exit(3);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ::_exit(1);
      }
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // With at most this much writable memory of its own.
  int pack_within(int64_t bytes) const {
    return in_child([&] {
      const struct rlimit limit { static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes) };
      ::setrlimit(RLIMIT_DATA, &limit);
      ThreadPool pool(2);
      Log log;
      PackOptions options;
      options.inputs.paths = {path("dit.safetensors")};
      options.output = path("dit.cmf");
      options.policy = QuantPolicy::parse("q8");
      pack_model(options, pool, log, Control());
    });
  }

  TempFolder root_;
};

// 0.4 of the file: 4 GB for 10 GB.
TEST_F(PackMemory, StaysBelowTwoFifthsOfTheCheckpoint) {
  ASSERT_EQ(in_child([&] { testing::put_file(*testing::toy_source(size()), path("dit.safetensors")); }), 0);
  const int64_t bytes = static_cast<int64_t>(fs::file_size(path("dit.safetensors")));
  EXPECT_GT(bytes, int64_t{400} << 20);
  EXPECT_EQ(pack_within(bytes / 50), 3);  // the limit is one
  EXPECT_FALSE(fs::exists(path("dit.cmf")));
  EXPECT_FALSE(fs::exists(path("dit.cmf.part")));
  ASSERT_EQ(pack_within(bytes * 2 / 5), 0);
  ThreadPool pool(2);
  EXPECT_TRUE(verify_cmf(path("dit.cmf"), pool).faults.empty());
}

}  // namespace
}  // namespace h3
