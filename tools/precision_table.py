#!/usr/bin/env python3
"""The errors of every precision, as the table of docs/performance.md.

precision_table.py H3 [GOLDEN]: renders a clip of the embedded demo model in each precision of the transformer and of
the video decoder, and prints how far latents, picture and sound lie from the run in f32. With a golden folder also how
far the toy checkpoint lies from the reference's own results in f32.
"""
import json
import os
import subprocess
import sys
import tempfile

PROMPT = "A red ball bounces on a black background."
PRECISIONS = [("f32", "f32"), ("bf16", "f32"), ("int8", "f32"), ("f32", "bf16"), ("bf16", "bf16"), ("int8", "bf16")]
CASE = "t2va"


def render(program, folder, name, flags):
    files = {part: os.path.join(folder, f"{name}.{part}") for part in ("y4m", "safetensors")}
    subprocess.run([program, "generate", *flags, "--dump", f"final={files['safetensors']}", "-o", files["y4m"]],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return files


def compared(program, a, b):
    """The comparison of two paths; of tensors, by name."""
    text = subprocess.run([program, "compare", a, b, "--json"], check=True, capture_output=True).stdout
    result = json.loads(text)
    return result["clip"] if "clip" in result else {row["name"]: row for row in result["tensors"]}


def decibel(value):
    return f"{value:.1f} dB" if isinstance(value, (int, float)) else "same"


def table(title, rows):
    print(f"| {title} | video latents | sound latents | picture, PSNR | SSIM | sound, SNR |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def row_of(program, label, files, reference):
    latents = compared(program, files["safetensors"], reference["safetensors"])
    cells = [label] + [f"{latents[name]['rel_l2']:.1e}" for name in ("latents", "audio_latents")]
    if "y4m" not in reference:
        return cells + ["", "", ""]
    clip = compared(program, files["y4m"], reference["y4m"])
    return cells + [decibel(clip["psnr"]), f"{clip['ssim']:.5f}", decibel(clip["audio_snr"])]


def labels(precision, vae):
    return f"{precision}, decoder {vae}"


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        rows, reference = [], None
        for precision, vae in PRECISIONS:
            flags = ["-p", PROMPT, "--precision", precision, "--vae-precision", vae]
            files = render(program, folder, f"demo-{precision}-{vae}", flags)
            reference = reference or files
            rows.append(row_of(program, labels(precision, vae), files, reference))
        table("demo model against f32", rows[1:])
        if len(sys.argv) < 3:
            return
        golden = sys.argv[2]
        with open(os.path.join(golden, "e2e.json"), encoding="utf-8") as file:
            page = json.load(file)
        case, rows, reference = page["cases"][CASE], [], None
        truth = {"safetensors": os.path.join(golden, f"e2e_{CASE}.safetensors")}
        for precision, vae in PRECISIONS:
            flags = [os.path.join(golden, "toy"), "--te-layers", str(page["text_encoder_layer"]), "-p", case["prompt"],
                     "--steps", str(case["grid_points"] - 1), "--seed", str(case["seed"]), "--precision", precision,
                     "--size", f"{case['width']}x{case['height']}", "--frames", str(case["num_frames"]),
                     "--vae-precision", vae]
            files = render(program, folder, f"toy-{precision}-{vae}", flags)
            reference = reference or files
            row = row_of(program, labels(precision, vae), files, truth)
            clip = row_of(program, "", files, reference)[3:]
            rows.append(row[:3] + (clip if files is not reference else ["", "", ""]))
        table("toy checkpoint: latents against the reference in f32, picture and sound against ours", rows)


if __name__ == "__main__":
    main()
