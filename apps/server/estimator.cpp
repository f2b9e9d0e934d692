#include "apps/server/estimator.h"

#include <algorithm>
#include <cmath>

namespace h3::server {

Work work_of(int width, int height, int frames, int evaluations, int keyframes) {
  // Spec dit 4: 2 + 5 (F - 5) / 17 latent frames of (H/16)(W/16) positions in 2x2 patches; 2 F 40/24 sound rows.
  const double positions = (height / 16) * (width / 16) / 4.0;
  const double latent_frames = 2 + 5 * std::max(0, frames - 5) / 17;
  Work work;
  work.rows = positions * (latent_frames + keyframes) + 2 * std::round(frames * 40 / 24.0);
  work.evaluations = evaluations;
  work.pixels = static_cast<double>(width) * height * frames;
  work.keyframes = keyframes;
  return work;
}

Work work_of(const Job& job) {
  const size_t keyframes = job.inputs.count("first_frame") + job.inputs.count("last_frame");
  Work work = work_of(job.width, job.height, job.frames, job.evaluations, static_cast<int>(keyframes));
  work.rows += static_cast<double>(job.reference_rows);
  return work;
}

const char* phase_of(const std::string& stage) {
  if (stage == "denoise") return "denoise";
  return stage.rfind("decode", 0) == 0 ? "decode" : "prepare";
}

void Estimator::learn(const Work& work, const Json& report) {
  const Json* const stages = report.find("stages");
  if (stages == nullptr || work.evaluations <= 0) return;
  Sample sample{work, 0, 0, 0, 0};
  for (const Json& stage : stages->items()) {
    const std::string& name = stage.at("stage").as_string();
    const double seconds = stage.at("seconds").as_double();
    if (name.rfind("load", 0) == 0) continue;
    sample.total += seconds;
    if (name == "denoise") {
      sample.evaluation = seconds / work.evaluations;
    } else if (name.rfind("decode", 0) == 0) {
      sample.decode += seconds;
    } else {
      sample.other += seconds;
    }
  }
  const std::lock_guard lock(mutex_);
  samples_.push_back(sample);
  if (samples_.size() > kSamples) samples_.pop_front();
}

// a rows + b rows^2: matmuls are linear in the sequence, attention is quadratic (spec dit 2). Least squares over the
// samples, both terms at least zero; with one length only, linear scaling, which errs on the short side for longer
// ones.
double Estimator::evaluation_seconds(double rows) const {
  double s2 = 0, s3 = 0, s4 = 0, t1 = 0, t2 = 0;
  for (const Sample& sample : samples_) {
    const double s = sample.work.rows, weight = 1 / (s * s);  // relative errors count, not absolute ones
    s2 += weight * s * s;
    s3 += weight * s * s * s;
    s4 += weight * s * s * s * s;
    t1 += weight * s * sample.evaluation;
    t2 += weight * s * s * sample.evaluation;
  }
  const double determinant = s2 * s4 - s3 * s3;
  double a = t1 / s2, b = 0;
  if (determinant > 1e-9 * s2 * s4) {
    a = (t1 * s4 - t2 * s3) / determinant;
    b = (s2 * t2 - s3 * t1) / determinant;
    if (a < 0) {
      a = 0;
      b = t2 / s4;
    } else if (b < 0) {
      a = t1 / s2;
      b = 0;
    }
  }
  return a * rows + b * rows * rows;
}

Estimate Estimator::estimate(const Work& work) const {
  const std::lock_guard lock(mutex_);
  Estimate estimate;
  if (samples_.empty()) return estimate;
  double evaluation = 0, decode = 0, other = 0;
  int same = 0;
  double decode_rate = 0;
  for (const Sample& sample : samples_) {
    other += sample.other / static_cast<double>(samples_.size());
    decode_rate += sample.decode / std::max(1.0, sample.work.pixels) / static_cast<double>(samples_.size());
    if (sample.work.rows != work.rows || sample.work.pixels != work.pixels) continue;
    ++same;
    evaluation += sample.evaluation;
    decode += sample.decode;
  }
  estimate.measured = same > 0;
  evaluation = same > 0 ? evaluation / same : evaluation_seconds(work.rows);
  decode = same > 0 ? decode / same : decode_rate * work.pixels;
  estimate.stages = {{"prepare", other}, {"denoise", evaluation * work.evaluations}, {"decode", decode}};
  estimate.seconds = other + evaluation * work.evaluations + decode;
  return estimate;
}

double Estimator::mean_job_seconds() const {
  const std::lock_guard lock(mutex_);
  if (samples_.empty()) return -1;
  const size_t count = std::min<size_t>(samples_.size(), 8);
  double total = 0;
  for (size_t i = samples_.size() - count; i < samples_.size(); ++i) total += samples_[i].total;
  return total / static_cast<double>(count);
}

}  // namespace h3::server
