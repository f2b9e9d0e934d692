#include "backends/cpu/isa_level.h"

#include <algorithm>

#include "base/error.h"
#include "base/knobs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace h3 {
namespace {

constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "amx"};

#if defined(__x86_64__)

struct Leaf {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  Leaf(uint32_t leaf, uint32_t sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};

constexpr bool all(uint64_t value, uint64_t mask) { return (value & mask) == mask; }
constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

// State components that the operating system saves: SSE 1, AVX 2, opmask 5, ZMM 6 and 7, tile configuration 17,
// tiles 18.
uint64_t saved_state() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux keeps the 8 KiB of tile data out of a process until it asks.
bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

IsaLevel detect() {
  const Leaf basic(1, 0);
  if (!all(basic.c, bit(27) | bit(28) | bit(12) | bit(29))) return IsaLevel::scalar;  // OSXSAVE AVX FMA F16C
  const uint64_t state = saved_state();
  const Leaf seven(7, 0), seven_one(7, 1);
  if (!all(state, 0x6) || !all(seven.b, bit(5))) return IsaLevel::scalar;
  // F, DQ, BW, VL; VNNI; BF16
  const bool avx512 = all(state, 0xe6) && all(seven.b, bit(16) | bit(17) | bit(30) | bit(31)) &&
                      all(seven.c, bit(11)) && all(seven_one.a, bit(5));
  if (!avx512) return IsaLevel::avx2;
  const bool tiles = all(state, bit(17) | bit(18)) && all(seven.d, bit(22) | bit(24) | bit(25));  // BF16, TILE, INT8
  return tiles && tiles_permitted() ? IsaLevel::amx : IsaLevel::avx512;
}

#else
IsaLevel detect() { return IsaLevel::scalar; }
#endif

}  // namespace

const char* name_of(IsaLevel level) { return kNames[static_cast<int>(level)]; }

IsaLevel parse_isa_level(std::string_view text) {
  for (int i = 0; i < 4; ++i) {
    if (text == kNames[i]) return static_cast<IsaLevel>(i);
  }
  fail(Code::usage, "H3_ISA=%s is not a level; use scalar, avx2, avx512 or amx", std::string(text).c_str());
}

IsaLevel host_isa_level() { return detect(); }

IsaLevel chosen_isa_level() {
  const std::string cap = env_knob("ISA");
  const IsaLevel host = host_isa_level();
  return cap.empty() ? host : std::min(host, parse_isa_level(cap));
}

isa::Level kernels_of(IsaLevel level) {
#if defined(__x86_64__)
  if (level == IsaLevel::avx2) return isa::kAvx2;
  if (level >= IsaLevel::avx512) {
    isa::Level table = isa::kAvx512;
    if (level == IsaLevel::amx) {
      table.name = "amx";
      table.bf16 = &isa::kBf16Amx;
      table.int8 = &isa::kInt8Amx;
      table.peak = &isa::kPeakAmx;
    }
    return table;
  }
#endif
  (void)level;
  return isa::kScalar;
}

}  // namespace h3
