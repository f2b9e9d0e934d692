// The loaded components of an Engine.
#pragma once

#include <memory>

#include "model/dit/dit.h"
#include "model/text/conditioner.h"
#include "model/vae/audio_vae.h"
#include "model/vae/video_vae.h"
#include "pipeline/adapters.h"
#include "pipeline/engine.h"

namespace h3 {

// What a component was loaded for; a kept one is loaded again when a run asks for something else.
struct Engine::Parts {
  std::unique_ptr<Conditioner> conditioner;
  std::unique_ptr<Dit> dit;
  AdapterShelf adapters;  // their device copies go with the transformer
  std::unique_ptr<VideoVae> video;
  std::unique_ptr<AudioVae> audio;
  Compute text_compute{}, dit_compute{}, video_compute{};
  bool text_vision = false, video_encoder = false, video_decoder = false;
  const TensorSource* dit_source = nullptr;
};

}  // namespace h3
