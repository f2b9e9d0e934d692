# Sourced by ./run, ./test and .ci/run: installs what is missing on Debian 12 and offers build helpers.
# shellcheck shell=bash

h3_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What a build and its tests need. Everything comes from Debian's own archive.
h3_packages_build=(g++ cmake ninja-build pkg-config python3
  libavformat-dev libavcodec-dev libavutil-dev libswscale-dev libswresample-dev libutf8proc-dev libdnnl-dev
  libcpp-httplib-dev libssl-dev zlib1g-dev libbrotli-dev libsqlite3-dev prometheus-cpp-dev libxxhash-dev libeigen3-dev)
h3_packages_test=(libgtest-dev libgmock-dev ffmpeg binutils groff zsh fish)
h3_packages_slow=(clang libclang-rt-14-dev chromium chromium-driver)

# h3_install package...: installs those that are missing, as root or through sudo.
h3_install() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "need root or sudo to install: ${missing[*]}" >&2; return 1; }
    as_root=(sudo)
  fi
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# h3_build preset [target...]
h3_build() {
  local preset=$1
  shift
  local targets=()
  [ $# -gt 0 ] && targets=(--target "$@")
  if [ ! -f "$h3_root/build/$preset/build.ninja" ]; then
    (cd "$h3_root" && cmake --preset "$preset" >"/tmp/h3-configure-$$.log" 2>&1) ||
      { cat "/tmp/h3-configure-$$.log"; rm -f "/tmp/h3-configure-$$.log"; return 1; }
    rm -f "/tmp/h3-configure-$$.log"
  fi
  cmake --build "$h3_root/build/$preset" "${targets[@]}"
}

# Golden data is optional: tests that need it skip where it is absent.
if [ -z "${H3_GOLDEN:-}" ] && [ -d "$h3_root/../shared/golden" ]; then
  H3_GOLDEN=$(cd "$h3_root/../shared/golden" && pwd)
  export H3_GOLDEN
fi
