#!/usr/bin/env python3
"""One evaluation of the denoiser's trunk at release size, written plainly in torch: the peer of `h3 bench step`.

Fifty calls of the transformer block (four distinct sets of random weights in turn, more than any cache holds), eager and
under torch.compile, with cuDNN's attention. Prints one JSON line per length and mode with the median of the runs.

usage: peer_torch.py [--rows 1874,19300,37726] [--repeats 5] [--modes eager,compile]
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, HEADS, HEAD, FFN, LAYERS, DISTINCT = 5376, 56, 128, 14336, 50, 4


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def rotate(x, cos, sin):
    a, b, rest = x[..., :48], x[..., 48:96], x[..., 96:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def block(x, w, tables, ids, cos, sin):
    shift1, scale1, gate1, shift2, scale2, gate2 = tables[ids].chunk(6, -1)
    h = rms_norm(x, w["norm1"]) * (1 + scale1) + shift1
    q, k, v = F.linear(h, w["qkv"]).view(-1, 3, HEADS, HEAD).unbind(1)
    q = rotate(rms_norm(q, w["q_norm"]), cos, sin)
    k = rotate(rms_norm(k, w["k_norm"]), cos, sin)
    a = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
    x = x + gate1 * F.linear(a[0].transpose(0, 1).reshape(-1, HEADS * HEAD), w["out"])
    h = rms_norm(x, w["norm2"]) * (1 + scale2) + shift2
    gate, value = F.linear(h, w["fc1"]).chunk(2, -1)
    return x + gate2 * F.linear(F.silu(gate) * value, w["fc2"])


def random_weights(generator):
    def matrix(rows, cols):
        return torch.randn(rows, cols, generator=generator, device="cuda", dtype=torch.bfloat16) / cols**0.5

    def ones(n):
        return torch.ones(n, device="cuda", dtype=torch.bfloat16)

    return {"norm1": ones(HIDDEN), "norm2": ones(HIDDEN), "q_norm": ones(HEAD), "k_norm": ones(HEAD),
            "qkv": matrix(3 * HEADS * HEAD, HIDDEN), "out": matrix(HIDDEN, HEADS * HEAD),
            "fc1": matrix(2 * FFN, HIDDEN), "fc2": matrix(HIDDEN, FFN)}


@torch.inference_mode()
def run(rows, mode, repeats):
    generator = torch.Generator("cuda").manual_seed(rows)
    weights = [random_weights(generator) for _ in range(DISTINCT)]
    x = torch.randn(rows, HIDDEN, generator=generator, device="cuda", dtype=torch.bfloat16)
    tables = torch.randn(6, 6 * HIDDEN, generator=generator, device="cuda", dtype=torch.bfloat16) * 0.1
    ids = torch.randint(0, 6, (rows,), generator=generator, device="cuda")
    angles = torch.randn(rows, 1, 48, generator=generator, device="cuda")
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    step = torch.compile(block, dynamic=False) if mode == "compile" else block

    def evaluate():
        y = x
        for i in range(LAYERS):
            y = step(y, weights[i % DISTINCT], tables, ids, cos, sin)
        return y

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(2):
            y = evaluate()
        torch.cuda.synchronize()
        assert torch.isfinite(y).all()
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            evaluate()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return {"bench": "step", "peer": f"torch {torch.__version__} {mode}", "rows": rows,
            "median_s": statistics.median(seconds), "runs_s": seconds}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", default="1874,19300,37726")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for rows in args.rows.split(","):
        for mode in args.modes.split(","):
            print(json.dumps(run(int(rows), mode, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
