#!/usr/bin/env python3
"""Cuts tests/data/golden out of a full golden folder, in the same layout, small enough to live in the repository.

  tools/make_golden_subset.py GOLDEN [OUT]

Kept are the whole toy model, smaller cases of its stages, an adapter, a run from prompt to clip, and the tables that need
no weights (random streams, schedules, packing, pixels, tiles). Tables are thinned to every n-th row. Values are never
changed; the toy video VAE, whose float32 values are float16 values, is stored as float16. toy/h3.json states what the
toy's configs have no key for."""
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import safetensors

LIMIT = 18 << 20

# File -> which tensors stay. A rule is a prefix; "-" in front drops what an earlier rule kept.
TENSORS = {
    "audio_vae.safetensors": ["dec1_b1.", "dec2_b2.", "dec3.", "dec3_b1.", "enc800.", "enc2345.", "filter.", "resample8000.",
                              "resample22050.", "-dec3.act0.", "-dec3.resblock.1", "-dec3.resblock.2", "-dec3.ups.3",
                              "-dec3.ups.4", "-dec3.ups.5", "-dec3.ups.6", "-dec3.stage_out.3", "-dec3.stage_out.4",
                              "-dec3.stage_out.5", "-dec3.activation_post", "-enc2345.block.0", "-enc2345.block.1",
                              "-enc2345.block.2"],
    "dit_fl2va_both.safetensors": [""],
    "dit_lora_t2va.safetensors": [""],
    "dit_t2va.safetensors": ["", "-act.b0.", "act.b0.adaln"],
    "dit_tables.safetensors": [""],
    "dit_traj_t2va_N5.safetensors": [""],
    "e2e_fl2va_both.safetensors": [""],
    "image.safetensors": ["keyframe.smooth_53x70_", "keyframe.synth_37x53_", "reference_image.synth_37x53",
                          "qwen.synth_37x53", "qwen.smooth_53x70", "qwen_video.2x64x64", "qwen_video.5x32x48"],
    "packing_full.safetensors": ["t2va_5_64x96_22.", "fl2va_11_96x64_39_both."],
    "qwen_hidden.safetensors": ["text21.", "mixed."],
    "rng_native.safetensors": ["f32.seed42.", "f32.seed4294967301.n1", "rand_f32.seed42", "raw31.seed42", "seq.odd.",
                               "-f32.seed42.n1000", "-f32.seed4294967301.n1000"],
    "scheduler.safetensors": ["N5_", "explicit.", "scale_noise."],
    "vae_decode.safetensors": ["T7_2x3.", "T12_2x3_tile32.", "T7_5x4_tile48.", "T3_2x2_padded.", "T9_2x2_padded.",
                               "-T7_2x3.clip", "-T7_2x3.proj_out", "-T7_2x3.b0.", "-T7_2x3.rope.1", "-T7_2x3.block0_in"],
    "vae_encode.safetensors": ["image_32x48.", "clip17_32x32.", "video22_32x32.", "video20_32x32_padded.",
                               "image_96x160_tile64.", "image_112x80_tile48.", "-image_32x48.conv_in",
                               "-image_32x48.down.1.resnet", "-image_32x48.pixels"],
}

# Frames of the decoded clips that stay.
FRAMES = {"T7_2x3": [0, 17, 21], "T12_2x3_tile32": [0, 34, 38], "T7_5x4_tile48": [5], "T3_2x2_padded": [0, 4, 8],
          "T9_2x2_padded": [0, 17, 27]}

# JSON table -> path of its rows and the step of thinning.
ROWS = {
    "packing_arithmetic.json": [(("canvas", "rows"), 5), (("align_num_frames",), 7), (("audio_latents_of_frames",), 7)],
    "packing_layouts.json": [(("rows",), 11)],
    "packing_ref2va.json": [(("rows",), 4)],
    "packing_references.json": [(("conditioner_frames", "rows"), 2), (("fps_resample", "rows"), 4)],
    "packing_row_timesteps.json": [(("rows",), 3)],
    "scheduler_grids.json": [(("rows",), 5)],
    "toy_token_ids.json": [(("rows",), 3)],
    "vae_tiles.json": [(("rows",), 6)],
    "image.json": [(("smart_resize_image", "rows"), 4), (("smart_resize_video", "rows"), 4)],
    "rng_native.json": [],
    "e2e.json": [],
}
E2E_CASES = ("fl2va_both",)
DEFAULTS = {"text_encoder_layer": 4, "width": 96, "height": 64, "frames": 22, "steps": 4, "min_seconds": 0.5,
            "canvas_short_edge": 64, "canvas_max_pixels": 8192, "reference_image_short_edge": 64}
COPIED = ["toy/modular_model_index.json", "toy/scheduler/scheduler_config.json",
          "toy/audio_scheduler/scheduler_config.json", "toy/transformer/config.json",
          "toy/transformer/diffusion_pytorch_model.safetensors", "toy/text_encoder/config.json",
          "toy/text_encoder/model.safetensors", "toy_comfy/minimax_h3_toy_lora.safetensors", "toy/vae/config.json", "toy/audio_vae/config.json", "toy/audio_vae/diffusion_pytorch_model.safetensors",
          "toy/tokenizer/merges.txt", "toy/tokenizer/vocab.json", "toy/tokenizer/tokenizer.json",
          "toy/tokenizer/tokenizer_config.json"]
README = """# A subset of the golden data

Cut out of the full golden data by `tools/make_golden_subset.py`, in the same layout: the toy model, cases of its stages,
an adapter, a run from prompt to clip, and the tables that need no weights. `h3-parity --golden tests/data/golden` runs it. Values are those of
the public reference code; the toy video VAE is stored as float16, which holds its float32 values exactly.
"""


def kept(name, rules):
    keep = False
    for rule in rules:
        if name.startswith(rule.lstrip("-")):
            keep = not rule.startswith("-")
    return keep


def take_frames(tensor, indices):
    """Frames of a [3, n, h, w] float32 tensor."""
    dtype, (channels, count, height, width), data = tensor
    size = height * width * safetensors.SIZES[dtype]
    parts = [data[(c * count + i) * size:(c * count + i + 1) * size] for c in range(channels) for i in indices]
    return dtype, [channels, len(indices), height, width], b"".join(parts)


def cut_decoded(tensors, metadata):
    cases = json.loads(metadata["cases"])
    for name in list(cases):
        if name not in FRAMES:
            del cases[name]
            continue
        case = cases[name]
        whole = case["kept"] == "all"
        source = tensors.pop(f"{name}.sample" if whole else f"{name}.sample_frames")
        positions = FRAMES[name] if whole else [case["kept"].index(frame) for frame in FRAMES[name]]
        tensors[f"{name}.sample_frames"] = take_frames(source, positions)
        case["kept"] = FRAMES[name]
    metadata["cases"] = json.dumps(cases)


def cut_encoded(tensors, metadata):
    """Seeds are listed in the order of the cases."""
    cases = json.loads(metadata["cases"])
    text, _, seeds = metadata["pixels"].rpartition(":")
    pairs = [(name, seed) for name, seed in zip(cases, seeds.split(",")) if any(key.startswith(name + ".") for key in tensors)]
    metadata["cases"] = json.dumps({name: cases[name] for name, _ in pairs})
    metadata["pixels"] = text + ": " + ",".join(seed.strip() for _, seed in pairs)


def to_f16(tensors):
    out = {}
    for name, (dtype, shape, data) in tensors.items():
        count = len(data) // 4
        values = struct.unpack(f"<{count}f", data)
        narrow = struct.pack(f"<{count}e", *values)
        if dtype != "F32" or struct.unpack(f"<{count}e", narrow) != values:
            sys.exit(f"{name} does not fit float16")
        out[name] = ("F16", shape, narrow)
    return out


def thin(value, path, step):
    for key in path[:-1]:
        value = value[key]
    rows = value[path[-1]]
    value[path[-1]] = rows[::step]


def cut_json(name, table):
    for path, step in ROWS[name]:
        thin(table, path, step)
    if name == "rng_native.json":
        table["large"] = table["large"][-2:]
    if name == "e2e.json":
        table["cases"] = {case: table["cases"][case] for case in E2E_CASES}
    if name == "image.json":
        rows = table["qwen_images"]["rows"]
        table["qwen_images"]["rows"] = [row for row in rows if (row[1], row[2]) in ((37, 53), (53, 70))]
        videos = table["qwen_videos_smooth_seed_is_frame_index"]
        videos["rows"] = [row for row in videos["rows"] if tuple(row[:3]) in ((2, 64, 64), (5, 32, 48))]
        for key in table:
            if key.startswith("large_keyframes"):
                table[key]["rows"] = table[key]["rows"][:1]


def main():
    source, out = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "tests/data/golden"
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.join(out, "toy/vae"))
    index = {}

    def put(name, tensors, metadata):
        safetensors.write(os.path.join(out, name), tensors, metadata)
        index[name] = {"metadata": metadata, "tensors": {key: [tensors[key][0], tensors[key][1]] for key in sorted(tensors)}}

    with open(os.path.join(out, "toy/h3.json"), "w") as file:
        file.write(json.dumps(DEFAULTS, indent=1) + "\n")
    for name in COPIED:
        os.makedirs(os.path.dirname(os.path.join(out, name)), exist_ok=True)
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    weights = "toy/vae/diffusion_pytorch_model.safetensors"
    put(weights, to_f16(safetensors.read(os.path.join(source, weights))[0]), {"format": "pt"})
    for name, rules in TENSORS.items():
        tensors, metadata = safetensors.read(os.path.join(source, name))
        tensors = {key: value for key, value in tensors.items() if kept(key, rules)}
        if name == "vae_decode.safetensors":
            cut_decoded(tensors, metadata)
        if name == "vae_encode.safetensors":
            cut_encoded(tensors, metadata)
        put(name, tensors, metadata)
    for name in ROWS:
        table = json.load(open(os.path.join(source, name)))
        cut_json(name, table)
        with open(os.path.join(out, name), "w") as file:
            json.dump(table, file, separators=(",", ":"), ensure_ascii=False)
    with open(os.path.join(out, "INDEX.json"), "w") as file:
        json.dump(index, file, separators=(",", ":"))
    open(os.path.join(out, "README.md"), "w").write(README)

    total = 0
    for folder, _, names in os.walk(out):
        total += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    print(f"{out}: {total} bytes ({total / 2**20:.2f} MiB)")
    if total > LIMIT:
        sys.exit(f"more than {LIMIT} bytes")


if __name__ == "__main__":
    main()
