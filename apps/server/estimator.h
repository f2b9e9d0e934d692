// How long a clip takes here, learned from the clips that were made here. Knows nothing before the first one.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "apps/server/job.h"

namespace h3::server {

// What decides the cost of a clip.
struct Work {
  double rows = 0;  // of the packed sequence, without the prompt
  double evaluations = 0;
  double pixels = 0;  // width * height * frames
  int keyframes = 0;
};
Work work_of(int width, int height, int frames, int evaluations, int keyframes);
Work work_of(const Job& job);

// Which part of a job a stage belongs to: "prepare", "denoise" or "decode".
const char* phase_of(const std::string& stage);

struct Estimate {
  double seconds = -1;  // -1 = nothing is known yet
  std::map<std::string, double> stages;
  bool measured = false;  // a clip of this very size and length was made before
};

class Estimator {
 public:
  // From the report of a completed job. Stages that load weights are left out: they happen once.
  void learn(const Work& work, const Json& report);
  Estimate estimate(const Work& work) const;
  double mean_job_seconds() const;  // of the last ones; -1 = none

 private:
  struct Sample {
    Work work;
    double evaluation = 0;  // seconds of one
    double decode = 0;      // of all frames and the sound
    double other = 0;
    double total = 0;
  };
  double evaluation_seconds(double rows) const;

  static constexpr size_t kSamples = 64;
  mutable std::mutex mutex_;
  std::deque<Sample> samples_;  // the newest at the back
};

}  // namespace h3::server
