// Every stage, in the order of the pipeline. A new stage is one declaration and one row.
#include "apps/parity/suite.h"

namespace h3 {

void run_tokenizer(Suite& suite);
void run_image_qwen(Suite& suite);
void run_text(Suite& suite);
void run_codec(Suite& suite);
void run_rng(Suite& suite);
void run_scheduler(Suite& suite);
void run_packing(Suite& suite);
void run_dit(Suite& suite);
void run_trajectory(Suite& suite);
void run_lora(Suite& suite);
void run_image(Suite& suite);
void run_video_vae(Suite& suite);
void run_audio_vae(Suite& suite);
void run_e2e(Suite& suite);
void run_references(Suite& suite);

namespace {

// What carries no case of its own: the checkpoints and the descriptions.
void run_inventory(Suite& suite) {
  for (const char* name : {"README.md", "INDEX.json", "toy", "toy_comfy", "toy_original"}) suite.claim(name);
}

constexpr StageRow kStages[] = {
    {"inventory", run_inventory},
    {"tokenizer", run_tokenizer},
    {"image_qwen", run_image_qwen},
    {"text", run_text},
    {"codec", run_codec},
    {"rng", run_rng},
    {"scheduler", run_scheduler},
    {"packing", run_packing},
    {"dit", run_dit},
    {"trajectory", run_trajectory},
    {"dit_lora", run_lora},
    {"image", run_image},
    {"video_vae", run_video_vae},
    {"audio_vae", run_audio_vae},
    {"e2e", run_e2e},
    {"references", run_references},
};

}  // namespace

std::span<const StageRow> parity_stages() { return kStages; }

}  // namespace h3
