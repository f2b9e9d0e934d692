// Compute capability 9.0a: barriers in shared memory, copies of tiles by tensor map, matrix products of a warp group.
// Names and layouts: PTX ISA, wgmma, cp.async.bulk.tensor, mbarrier, setmaxnreg. Empty in code for other targets.
#pragma once

#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {

inline constexpr int kWarpGroup = 128;  // threads that issue one wgmma together

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- barriers: phase k is done once every arrival and every announced byte of it has come ----
__device__ inline void barrier_init(uint64_t& barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals));
}
// After the barrier_init calls, before a __syncthreads: the copy engine sees them too.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ inline void barrier_arrive_expecting(uint64_t& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
// Waits for the end of the phase of this parity; of a new barrier, parity 1 has ended.
__device__ inline void barrier_wait(uint64_t& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// One box of a four-dimensional map; `barrier` counts its bytes.
__device__ inline void copy_box(uint32_t shared, const void* map, int c0, int c1, int c2, int c3, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared),
      "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(&barrier))
      : "memory");
}

// Registers move from warp groups that copy to warp groups that compute; by all threads of a group.
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- matrix products ----
// Where a tile lies: rows of 128 bytes, their 16-byte pieces swizzled over 8 rows, 8 rows after 8 rows. `pitch`: bytes
// from 128 bytes of a row to the next 128, for operands whose contiguous axis is not the reduced one.
__device__ inline uint64_t tile_descriptor(uint32_t shared, uint32_t pitch) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{pitch / 16} << 16 | (shared & 0x3ffff) / 16;
}

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// For all groups of products that have ended but the last.
__device__ inline void products_wait_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
// What reads or writes these registers stays on its side of this point: the compiler does not know that products do.
template <typename T, int n>
__device__ inline void settle(T (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, float>)
      asm volatile("" : "+f"(registers[i])::"memory");
    else
      asm volatile("" : "+r"(registers[i])::"memory");
  }
}

// Of a thread's accumulators of 64 rows: their rows, lane / 4 of its warp's sixteen and eight behind it.
__device__ inline int tile_row(int half) { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8; }

#define H3_D8(d, i)                                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define H3_D32(d, i) H3_D8(d, i), H3_D8(d, i + 8), H3_D8(d, i + 16), H3_D8(d, i + 24)
#define H3_R32                                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define H3_S8(d, i)                                                                                           \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
      "+r"(d[i + 7])
#define H3_S32(d, i) H3_S8(d, i), H3_S8(d, i + 8), H3_S8(d, i + 16), H3_S8(d, i + 24)
#define H3_R64                                                                                        \
  H3_R32                                                                                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define H3_R128                                                                                                     \
  H3_R64                                                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, "     \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, " \
  "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "    \
  "%124, %125, %126, %127"

// d [64, 64] (+)= a [64, 16] b [64, 16]^T in bf16, both in shared memory with the reduced axis contiguous; add 0 =
// overwrite.
__device__ inline void product_64(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" H3_R32
               "}, %32, %33, p, 1, 1, 0, 0;\n}"
               : H3_D32(d, 0)
               : "l"(a), "l"(b), "r"(add));
}

// d [64, 128] += a [64, 16] b [16, 128] in bf16: a in registers as mma.sync has it, b in shared memory, its rows
// contiguous.
__device__ inline void product_128(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" H3_R64
               "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
               : H3_D32(d, 0), H3_D32(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d [64, 80] (+)= a [64, 16] b [80, 16]^T, as product_64.
__device__ inline void product_80(float (&d)[40], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %42, 0;\nwgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {" H3_R32
               ", %32, %33, %34, %35, %36, %37, %38, %39}, %40, %41, p, 1, 1, 0, 0;\n}"
               : H3_D32(d, 0), H3_D8(d, 32)
               : "l"(a), "l"(b), "r"(add));
}

// For heads of 64, T = bf16 or f16 (__half): scores of 128 or of 32 keys as product_64 has them, values as product_128.
#define H3_OF_TYPE(T, before, after, ...)                  \
  if constexpr (std::is_same_v<T, __half>)                 \
    asm volatile(before ".f32.f16.f16" after __VA_ARGS__); \
  else                                                     \
    asm volatile(before ".f32.bf16.bf16" after __VA_ARGS__);
template <typename T>
__device__ inline void scores_64(float (&d)[64], uint64_t a, uint64_t b, int add) {
  H3_OF_TYPE(T, "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16",
             " {" H3_R64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
             : H3_D32(d, 0), H3_D32(d, 32)
             : "l"(a), "l"(b), "r"(add))
}
template <typename T>
__device__ inline void scores_64(float (&d)[16], uint64_t a, uint64_t b, int add) {
  H3_OF_TYPE(T, "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16",
             " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0;\n}"
             : H3_D8(d, 0), H3_D8(d, 8)
             : "l"(a), "l"(b), "r"(add))
}
template <typename T>
__device__ inline void values_64(float (&d)[32], const uint32_t* a, uint64_t b) {
  H3_OF_TYPE(T, "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n64k16",
             " {" H3_R32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
             : H3_D32(d, 0)
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
}
#undef H3_OF_TYPE

// d [64, 128] += a [64, 32] b [128, 32]^T in int8, otherwise as product_64.
__device__ inline void product_128_int8(int32_t (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" H3_R64
               "}, %64, %65, p;\n}"
               : H3_S32(d, 0), H3_S32(d, 32)
               : "l"(a), "l"(b));
}

// d [64, 128] += a [64, 32] b [128, 32]^T in e4m3: a in registers, b in shared memory, both with the reduced axis
// contiguous.
__device__ inline void product_128_e4m3(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" H3_R64
               "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
               : H3_D32(d, 0), H3_D32(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d [64, 256] (+)= 32 bytes of the depth of a [64, .] and b [256, .], both in shared memory; add 0 = overwrite.
template <typename T>
__device__ inline void product_256(float (&d)[128], uint64_t a, uint64_t b, int add) {
  if constexpr (sizeof(T) == 1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" H3_R128
        "}, %128, %129, p, 1, 1;\n}"
        : H3_D32(d, 0), H3_D32(d, 32), H3_D32(d, 64), H3_D32(d, 96)
        : "l"(a), "l"(b), "r"(add));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" H3_R128
        "}, %128, %129, p, 1, 1, 0, 0;\n}"
        : H3_D32(d, 0), H3_D32(d, 32), H3_D32(d, 64), H3_D32(d, 96)
        : "l"(a), "l"(b), "r"(add));
  }
}

#undef H3_S32
#undef H3_S8
#undef H3_R128
#undef H3_R64
#undef H3_R32
#undef H3_D32
#undef H3_D8

__device__ inline float exp2_fast(float x) {  // 2 ulp, denormals to zero
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four values rounded to e4m3, the first in the low byte; saturates.
__device__ inline uint32_t round_four(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

// Two values rounded to f16, `low` in the low half.
__device__ inline uint32_t round_pair_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two values rounded to bf16, `low` in the low half.
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

#endif

}  // namespace h3::cuda
