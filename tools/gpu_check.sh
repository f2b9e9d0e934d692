#!/usr/bin/env bash
# One check of the NVIDIA back end on a machine with a card, a compiler and CUDA 13, in under 8 minutes: builds the
# preset bare-cuda, compares with the golden data, runs the sanitizer over the demo clip, renders one clip under several
# placements, times the release-size model, and leaves docs/measurements/gpu_check.json to be committed.
#
# usage: tools/gpu_check.sh [RESULTS]     the folder of logs and reports; default build/gpu_check
# H3_GOLDEN names a folder of golden data beside tests/data/golden; H3_COMMIT the commit, where the sources are no repository
# of their own; PEER_ROWS=1874,19300,37726 also times the same block in torch (bench/peer_torch.py); PACKED_FILE=1 also
# packs a model of release size to a CMF file (14.5 GB) and renders it under caps, about a minute more; QUICK=1 leaves
# the benches out, a minute and a half less.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD out=$(realpath -m "${1:-build/gpu_check}") start=$SECONDS
rm -rf "$out" && mkdir -p "$out" || exit 1
step() { printf '%4d s  %s\n' $((SECONDS - start)) "$1"; }

# Where Python packages or the toolkit keep the libraries and cuDNN's header.
first() { find /usr/local /usr/lib /usr/include /opt -name "$1" -print -quit 2>/dev/null; }
for library in libcudnn.so.9 libcublasLt.so.13; do
  path=$(first "$library")
  [ -n "$path" ] && export LD_LIBRARY_PATH=$(dirname "$path")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
header=$(first cudnn.h)

step "building"
{ cmake --preset bare-cuda ${header:+-DH3_CUDNN_DIR=$(dirname "$(dirname "$header")")} ${H3_CMAKE_FLAGS:-} &&
    cmake --build build/bare-cuda -j "$(nproc)"; } >"$out/build.log" 2>&1 ||
  { grep -B2 -A6 -m3 'error' "$out/build.log"; exit 1; }
h3=$root/build/bare-cuda/bin/h3
{ [ -n "${H3_COMMIT:-}" ] && echo "$H3_COMMIT" || git rev-parse HEAD || echo unknown; } >"$out/commit" 2>/dev/null
"$h3" devices >"$out/devices" 2>&1
grep -m1 '^cuda:0' "$out/devices" | sed 's/  */ /g' >"$out/device"
cat "$out/device"

cmf=$out/release.cmf pack=
if [ -n "${PACKED_FILE:-}" ]; then  # on the host, while the card is checked
  "$h3" pack --random release-4b -o "$cmf" >"$out/pack.log" 2>&1 &
  pack=$!
fi

step "parity"
i=0
for folder in tests/data/golden ${H3_GOLDEN:-}; do
  "${h3}-parity" --golden "$folder" --backend cuda:0 >"$out/parity$i.log" 2>&1
  tail -n 1 "$out/parity$i.log"
  i=$((i + 1))
done

step "sanitizer"
timeout 120 compute-sanitizer --tool memcheck "$h3" generate -p "A red ball bounces." --steps 2 --plan stream \
  -o "$out/memcheck.y4m" >"$out/memcheck.log" 2>&1
tail -n 1 "$out/memcheck.log"

# render NAME flags...: release dimensions, weights made by hash.
render() {
  local name=$1
  shift
  timeout 150 "$h3" generate -p "a paper boat on a river" --vae-precision f16 -o "$out/clip.y4m" \
    --report "$out/$name.json" "$@" >"$out/$name.log" 2>&1 || tail -n 2 "$out/$name.log"
  md5sum <"$out/clip.y4m" >"$out/$name.md5"
  rm -f "$out/clip.y4m"
}

step "placements"
small="--weights random -W 512 -H 288 --frames 39 --steps 2 --layers 50"
render placement_bf16-resident $small --plan resident
render placement_bf16-offload $small --plan offload
for cap in 40G 24G 16G 12G; do render "placement_bf16-$cap" $small --vram $cap; done
packed="--weights random-q4tp -W 512 -H 288 --frames 39 --steps 2 --layers 50"
render placement_q4tp-resident $packed --plan resident
for cap in 16G 12G 8G; do render "placement_q4tp-$cap" $packed --vram $cap; done
packed="--weights random-fp8 --precision fp8 -W 512 -H 288 --frames 39 --steps 2 --layers 50"
render placement_fp8-resident $packed --plan resident
render placement_fp8-12G $packed --vram 12G
if [ -n "$pack" ]; then
  wait "$pack"
  file="$cmf -W 512 -H 288 --frames 39 --steps 2"
  render placement_cmf-resident $file --plan resident
  for cap in 16G 12G; do render "placement_cmf-$cap" $file --vram $cap; done
  rm -f "$cmf"
fi

step "whole clip, 960x544, 124 frames, 4 evaluations"
render clip --weights random -W 960 -H 544 --frames 124 --steps 4 --layers 50

step "the longest clip on the largest canvas, two layers"
render wide --weights random -W 1344 -H 768 --frames 362 --steps 1 --layers 2

if [ -z "${QUICK:-}" ]; then
  step "benches"
  bench() { timeout 100 "$h3" bench "$@" --device cuda:0 --json; }
  bench step --layers 50 -W 512 -H 288 --frames 39 --precision bf16 --repeats 9 >"$out/bench_step_1874.json" 2>"$out/bench.log"
  bench step --layers 50 -W 960 -H 544 --frames 124 --precision bf16 --repeats 5 >"$out/bench_step_19300.json" 2>>"$out/bench.log"
  bench step --layers 50 -W 960 -H 544 --frames 124 --precision fp8 --repeats 5 >"$out/bench_step_fp8_19300.json" 2>>"$out/bench.log"
  bench step --layers 50 -W 1344 -H 768 --frames 124 --precision bf16 --repeats 3 >"$out/bench_step_37726.json" 2>>"$out/bench.log"
  bench vae --layers 36 -W 1344 -H 768 --frames 124 --precision f16 --repeats 3 >"$out/bench_vae.json" 2>>"$out/bench.log"
fi
if [ -n "${PEER_ROWS:-}" ]; then
  step "torch"
  timeout 150 python3 bench/peer_torch.py --rows "$PEER_ROWS" --modes compile --repeats 3 >"$out/peer.json" 2>"$out/peer.log"
fi

echo $((SECONDS - start)) >"$out/seconds"
python3 tools/gpu_check.py record "$out"
verdict=$?
step "done"
exit $verdict
