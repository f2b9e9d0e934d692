#!/usr/bin/env python3
"""Makes the repository that the embedded demo model is packed from, of a trained one in the diffusers layout.

  tools/make_demo.py SOURCE demo
  h3 pack demo --quant q4tp -o models/demo/demo.cmf

Left out: what no task reads (the text encoder's layers from the tap on, its final norm and lm_head; the audio VAE's
log-deviation head; processor files, whose constants the program knows). Tensors that cannot reach any output, because a
projection behind them is exactly zero, are replaced by ones in eight bits: the structure needs them, their values do not
matter. All other tensors keep their bytes. h3.json states what the config files have no key for."""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors

TAP = 4  # hidden_states[4] of the text encoder
DEFAULTS = {
    "text_encoder_layer": TAP, "width": 128, "height": 128, "frames": 22, "steps": 8, "min_seconds": 0.5,
    "canvas_short_edge": 128, "canvas_max_pixels": 16384, "reference_image_short_edge": 128,
}
E4M3_ONE = b"\x38"


def load(folder):
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(safetensors.read(os.path.join(folder, name))[0])
    return tensors


def is_zero(tensors, name):
    return name not in tensors or not any(byte & 0x7f if i & 1 else byte for i, byte in enumerate(tensors[name][2]))


def conv_is_zero(tensors, name):
    """A weight-normed convolution (two-byte floats) that returns zero for every input."""
    gain = tensors.get(name + ".weight_g")
    return gain is not None and is_zero(tensors, name + ".weight_g") and is_zero(tensors, name + ".bias")


def dead_in_audio_vae(tensors):
    dead = set()
    for name in [key[:-len(".weight_g")] for key in tensors if key.endswith(".weight_g")]:
        if not conv_is_zero(tensors, name):
            continue
        dead.add(name + ".weight_v")
        if ".convs2." in name:  # a residual branch: conv1, activation, conv2
            dead.add(name.replace(".convs2.", ".convs1.") + ".weight_v")
        elif name.startswith("encoder.block.") and name.endswith(".block.3"):
            dead.add(name[:-1] + "1.weight_v")
    if is_zero(tensors, "pre_block.attn.proj.weight") and is_zero(tensors, "pre_block.attn.proj.bias"):
        dead.add("pre_block.attn.qkv.weight")
    return dead


def replace(tensors, names):
    saved = 0
    for name in names:
        dtype, shape, data = tensors[name]
        count = len(data) // safetensors.SIZES[dtype]
        tensors[name] = ("F8_E4M3", shape, E4M3_ONE * count)
        saved += len(data) - count
    return saved


def main():
    source, out = sys.argv[1], sys.argv[2]
    shutil.rmtree(out, ignore_errors=True)

    def put(relative, tensors=None, text=None):
        path = os.path.join(out, relative)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if tensors is not None:
            safetensors.write(path, tensors, {"format": "pt"})
        else:
            open(path, "w").write(text)

    def copy(relative):
        put(relative, text=open(os.path.join(source, relative)).read())

    put("transformer/diffusion_pytorch_model.safetensors", load(os.path.join(source, "transformer")))
    put("vae/diffusion_pytorch_model.safetensors", load(os.path.join(source, "vae")))

    audio = load(os.path.join(source, "audio_vae"))
    for name in ("logs_proj.weight", "logs_proj.bias"):
        del audio[name]
    dead = dead_in_audio_vae(audio)
    print(f"{len(dead)} tensors without effect: {replace(audio, dead)} bytes saved")
    put("audio_vae/diffusion_pytorch_model.safetensors", audio)

    text = load(os.path.join(source, "text_encoder"))
    config = json.load(open(os.path.join(source, "text_encoder/config.json")))
    layers = config["text_config"]["num_hidden_layers"]
    unused = ["lm_head.weight", "model.language_model.norm.weight"]
    for layer in range(TAP, layers):
        unused += [name for name in text if name.startswith(f"model.language_model.layers.{layer}.")]
    for name in unused:
        del text[name]
    config["text_config"]["num_hidden_layers"] = TAP
    put("text_encoder/model.safetensors", text)
    put("text_encoder/config.json", text=json.dumps(config, indent=1) + "\n")

    for relative in ("transformer/config.json", "vae/config.json", "audio_vae/config.json",
                     "scheduler/scheduler_config.json", "audio_scheduler/scheduler_config.json",
                     "modular_model_index.json", "tokenizer/merges.txt", "tokenizer/vocab.json",
                     "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"):
        copy(relative)
    put("h3.json", text=json.dumps(DEFAULTS, indent=1) + "\n")

    total = 0
    for folder, _, names in os.walk(out):
        total += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    print(f"{out}: {total} bytes ({total / 2**20:.2f} MiB)")


if __name__ == "__main__":
    main()
