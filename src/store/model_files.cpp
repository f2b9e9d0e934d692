#include "store/model_files.h"

namespace h3 {

const char* name_of(Role role) {
  switch (role) {
    case Role::dit: return "transformer";
    case Role::conditioner: return "conditioner";
    case Role::video_vae: return "video VAE";
    case Role::audio_vae: return "audio VAE";
    case Role::clip_proj: return "ClipProj";
    case Role::adapter: return "adapter";
    case Role::unknown: return "unknown";
  }
  return "?";
}

const char* name_of(Spelling spelling) {
  switch (spelling) {
    case Spelling::diffusers: return "diffusers";
    case Spelling::comfy: return "ComfyUI";
    case Spelling::official: return "official";
    case Spelling::cmf: return "CMF";
    case Spelling::gguf: return "GGUF";
  }
  return "?";
}

const Component* ModelFiles::find(Role role) const {
  for (const Component& component : components) {
    if (component.role == role) return &component;
  }
  return nullptr;
}

}  // namespace h3
