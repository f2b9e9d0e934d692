#include "pipeline/step_runner.h"

namespace h3 {

void run_step(DitSession& session, StepPolicy& policy, int step, const Streams& input, const Streams& velocity) {
  if (!policy.needs_model(step, input)) {
    policy.fill(step, input, velocity);
    return;
  }
  session.embed(step, input.video, input.audio);
  policy.entering(step, session.residual());
  session.blocks(0, policy.prefix());
  const View modulated = policy.wants_modulated() ? session.modulated_input() : View();
  if (policy.run_rest(step, session.residual(), modulated)) {
    session.blocks(policy.prefix(), session.layers());
    policy.after_rest(step, session.residual());
  }
  session.head(velocity.video, velocity.audio);
  policy.after_run(step, input, velocity);
}

PolicyShape policy_shape(const PackedLayout& layout, const DitConfig& config, DType activation, int evaluations) {
  PolicyShape shape;
  shape.evaluations = evaluations;
  shape.rows = layout.rows;
  shape.hidden = config.hidden;
  shape.type = activation;
  shape.audio_rows = layout.target_audio_rows();
  shape.video_rows = layout.target_video_rows();
  shape.first_audio = layout.first_target();
  shape.first_video = layout.rows - shape.video_rows;
  shape.video_width = config.video_row;
  shape.audio_width = config.audio_row;
  return shape;
}

}  // namespace h3
