// Files that appear under their name when they are complete.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file_map.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(AtomicFileTest, WhatAKilledProcessLeftIsReplaced) {
  std::ofstream(path_ + ".part") << "half of something longer";
  AtomicFile file(path_);
  EXPECT_EQ(file.left_over(), 24u);
  file.write("whole", 5);
  EXPECT_FALSE(fs::exists(path_));
  file.commit();
  EXPECT_EQ(read_file(path_), "whole");
  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

TEST_F(AtomicFileTest, OneWriterAtATime) {
  AtomicFile first(path_);
  first.write("first", 5);
  try {
    AtomicFile second(path_);
    FAIL() << "two writers of one file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    EXPECT_NE(std::string(error.what()).find("another process is writing it"), std::string::npos) << error.what();
  }
  first.commit();
  EXPECT_EQ(read_file(path_), "first");
  AtomicFile third(path_);
  EXPECT_EQ(third.left_over(), std::nullopt);
  third.write("third", 5);
  third.commit();
  EXPECT_EQ(read_file(path_), "third");
}

TEST_F(AtomicFileTest, AnUncommittedFileLeavesNothing) {
  {
    AtomicFile file(path_);
    file.write("half", 4);
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(fs::exists(path_ + ".part"));
}

}  // namespace
}  // namespace h3
