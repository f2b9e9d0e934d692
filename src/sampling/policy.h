// Step policies: which evaluations of the model run, and what stands in for the others (spec acceleration 2 to 4). One
// instance per request; it owns its buffers and sees rows and velocities only, through Ops.
//
// An evaluation that needs the model is: entering(rows before block 0), the policy's prefix of blocks, run_rest();
// when that says no, residual() already holds the estimate of the rows after the last block. Then the head. An
// evaluation that does not is fill().
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "sampling/sampler.h"
#include "sampling/schedule.h"

namespace h3 {

enum class StepAction : uint8_t { run, reuse, forecast };
const char* name_of(StepAction action);

// What happened in one evaluation. `metric` is what the decision was taken on; NaN when none was needed.
struct StepRecord {
  StepAction action = StepAction::run;
  double metric = std::numeric_limits<double>::quiet_NaN();
  const char* reason = "";  // "warmup", "tail", "cap", "first", "threshold", "reuse", "anchor", "trace"
};

struct PolicySpec {
  std::string mode = "none";
  std::map<std::string, double> parameters;  // every one of the mode's, filled in
  std::vector<StepAction> trace;             // decisions in place of the rule, one per evaluation; empty = the rule
};

// The rows a policy works on. Segments are of the packed sequence.
struct PolicyShape {
  int evaluations = 0;
  int64_t rows = 0, hidden = 0;
  DType type = DType::f32;
  int64_t first_audio = 0, audio_rows = 0, first_video = 0, video_rows = 0;  // targets
  int64_t video_width = 0, audio_width = 0;                                  // of a row of the latents
};

class StepPolicy {
 public:
  virtual ~StepPolicy() = default;
  // Whether evaluation `step` needs the model.
  virtual bool needs_model(int step, const Streams& input) = 0;
  // How many blocks run before run_rest() is asked.
  virtual int64_t prefix() const { return 0; }
  // Whether run_rest() wants the modulated input of block 0.
  virtual bool wants_modulated() const { return false; }
  virtual void entering(int step, const View& rows) { (void)step, (void)rows; }
  // rows: after the prefix. modulated: the input of block 0's attention, empty unless wanted. False: `rows` was
  // replaced by the estimate. Reads one pair of sums back from the device.
  virtual bool run_rest(int step, const View& rows, const View& modulated) {
    (void)step, (void)rows, (void)modulated;
    return true;
  }
  virtual void after_rest(int step, const View& rows) { (void)step, (void)rows; }
  virtual void after_run(int step, const Streams& input, const Streams& velocity) {
    (void)step, (void)input, (void)velocity;
  }
  virtual void fill(int step, const Streams& input, const Streams& velocity) {
    (void)step, (void)input, (void)velocity;
  }
  const std::vector<StepRecord>& records() const { return records_; }

 protected:
  void record(StepAction action, const char* reason, double metric = std::numeric_limits<double>::quiet_NaN()) {
    records_.push_back({action, metric, reason});
  }

 private:
  std::vector<StepRecord> records_;
};

struct PolicyParameter {
  const char* name;
  double fallback, low, high;
  bool whole;
  const char* help;
};

struct PolicyRow {
  const char* name;
  const char* help;
  bool lossy;
  StepAction saves;       // what it does instead of running
  const char* threshold;  // the parameter that "MODE:VALUE" sets; "" = none
  std::span<const PolicyParameter> parameters;
  std::unique_ptr<StepPolicy> (*make)(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                      const Schedule& schedule);
};

std::span<const PolicyRow> policies();
// "none", "first-block:0.08,warmup=3,tail=2": MODE[:THRESHOLD][,NAME=VALUE]... Error(usage) naming what is allowed.
PolicySpec parse_policy(const std::string& text);
// The same text again with every parameter, so that it survives changes of the defaults.
std::string policy_text(const PolicySpec& spec);
const PolicyRow& policy_row(const std::string& mode);

// Decisions as text: "run", "reuse" and "forecast", separated by blanks, commas or lines; '#' starts a comment.
// Error(usage).
std::vector<StepAction> parse_trace(const std::string& text);
std::string trace_text(std::span<const StepAction> trace);

// Buffers are allocated here. Error(usage) when the trace does not fit: its length, a first evaluation that does not
// run, or an action that the mode does not have.
std::unique_ptr<StepPolicy> make_policy(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                        const Schedule& schedule);

}  // namespace h3
