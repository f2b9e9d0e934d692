// The tensor names of llama.cpp's converters (Qwen3-VL language models and their mmproj) as the canonical ones.
#pragma once

#include <string>

namespace h3 {

// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight"; other names stay as they are. Merged blocks of
// the vision tower keep the number of the layer they are fed from; order_deepstack gives them their place in the list.
std::string canonical_llama_name(const std::string& name);

// A tensor by which such files are known.
bool is_llama_name(const std::string& name);

// The layer number in a canonical deepstack name, -1 for other names; and the name with another number.
int deepstack_number(const std::string& name);
std::string with_deepstack_number(const std::string& name, int number);

}  // namespace h3
