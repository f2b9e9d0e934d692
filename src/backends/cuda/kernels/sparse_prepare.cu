// What comes before block-sparse attention (ops.h: sparse_attention): sums of blocks, the choice of exact blocks for
// every (query block, head), and the order in which the last step takes them.
#include <algorithm>

#include "backends/cuda/kernels/sparse.cuh"

namespace h3::cuda {
namespace {

constexpr int kSumThreads = 128, kChooseThreads = 256, kWarps = kChooseThreads / 32;
constexpr int kTogether = 8;  // query blocks that read the summary keys together
static_assert(kTogether == kWarps);

// Eight channels from c on; zeros beyond d.
template <typename T, bool kVec>
__device__ inline void load_eight(Vec8<T>& v, const T* row, int c, int d) {
  if constexpr (kVec) {
    v.load(row + c);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v.v[i] = c + i < d ? to_float(row[c + i]) : 0.0f;
  }
}

// One block per (block of rows, head, which of keys, values and queries): mean key, sum of values, mean query.
template <typename T, bool kVec>
__global__ void __launch_bounds__(kSumThreads) sums_kernel(Sparse a) {
  __shared__ float parts[kSumThreads * 8];
  const int64_t n = blockIdx.x;
  const int head = blockIdx.y, which = blockIdx.z, length = sparse_length(a, n);
  const int lanes = (a.d + 7) / 8, parties = kSumThreads / lanes;
  const int c0 = threadIdx.x % lanes * 8, party = threadIdx.x / lanes;
  const int64_t row = which == 0 ? a.k_row : which == 1 ? a.v_row : a.q_row;
  const int64_t start = head * (which == 0 ? a.k_head : which == 1 ? a.v_head : a.q_head) + n * kSparseRows * row;
  const T* x = reinterpret_cast<const T*>(which == 0 ? a.k : which == 1 ? a.v : a.q) + start;
  if (party < parties) {
    float sum[8] = {};
#pragma unroll 8
    for (int r = party; r < length; r += parties) {
      Vec8<T> v;
      load_eight<T, kVec>(v, x + r * row, c0, a.d);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += v.v[i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[(party * lanes * 8) + c0 + i] = sum[i];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < a.d; c += kSumThreads) {
    float sum = 0;
    for (int p = 0; p < parties; ++p) sum += parts[p * lanes * 8 + c];
    const int64_t at = (head * a.blocks + n) * a.d + c;
    const float mean = sum / static_cast<float>(length);
    if (which == 0) reinterpret_cast<T*>(a.kc)[at] = from_float<T>(mean);
    if (which == 1) reinterpret_cast<T*>(a.vc)[at] = from_float<T>(sum);
    if (which == 2) a.centres[at] = mean;
  }
}

// One block per head and 32 channels: a lane per channel.
template <typename T>
__global__ void __launch_bounds__(1024) statistics_kernel(Sparse a) {
  __shared__ float parts[2][32][33];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.y * 32 + lane;
  const T* kc = reinterpret_cast<const T*>(a.kc) + head * a.blocks * a.d;
  float sum = 0, squares = 0;
  if (c < a.d) {
    for (int64_t n = warp; n < a.blocks; n += 32) {
      const float x = to_float(kc[n * a.d + c]);
      sum += x;
      squares += x * x;
    }
  }
  parts[0][warp][lane] = sum;
  parts[1][warp][lane] = squares;
  __syncthreads();
  if (warp != 0 || c >= a.d) return;
  for (int w = 1; w < 32; ++w) {
    sum += parts[0][w][lane];
    squares += parts[1][w][lane];
  }
  const float count = static_cast<float>(a.blocks), mean = sum / count;
  a.statistics[(head * 2) * a.d + c] = mean;
  a.statistics[(head * 2 + 1) * a.d + c] = fmaxf(squares / count - mean * mean, 0.0f);
}

__device__ inline float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// By the rule, for some query blocks of a head: the mean query against every summary key, as the mean of its scores.
template <typename T, bool kVec>
__global__ void __launch_bounds__(kChooseThreads) choose_kernel(Sparse a) {
  __shared__ float centres[kTogether][kSparseMaxDim], thresholds[kTogether];
  const int head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first = int64_t{blockIdx.x} * kTogether;
  const int there = static_cast<int>(min(int64_t{kTogether}, a.blocks - first));
  {
    const float* mu = a.statistics + head * 2 * a.d;
    float mean = 0, spread = 0;
    for (int c = lane; c < kSparseMaxDim; c += 32) {
      const float centre = warp < there && c < a.d ? a.centres[(head * a.blocks + first + warp) * a.d + c] : 0.0f;
      centres[warp][c] = centre;
      if (c >= a.d) continue;
      mean += centre * mu[c];
      spread += centre * centre * mu[a.d + c];
    }
    mean = warp_sum(mean);
    spread = warp_sum(spread);
    const float deviation = sqrtf(fmaxf(spread, 0.0f) * a.scale_log2 * a.scale_log2 + 1e-6f);
    if (lane == 0) thresholds[warp] = mean * a.scale_log2 + a.tau * deviation;
  }
  __syncthreads();
  const T* kc = reinterpret_cast<const T*>(a.kc) + head * a.blocks * a.d;
  int found = 0;
  for (int64_t word = warp; word < a.words; word += kWarps) {
    const int64_t n = word * 32 + lane;
    float score[kTogether] = {};
    for (int c = 0; n < a.blocks && c < a.d; c += 8) {
      Vec8<T> key;
      load_eight<T, kVec>(key, kc + n * a.d, c, a.d);
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) score[b] = fmaf(centres[b][c + i], key.v[i], score[b]);
      }
    }
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      const int64_t distance = n > first + b ? n - first - b : first + b - n;
      const bool exact = score[b] * a.scale_log2 > thresholds[b] || distance <= 1 || n < a.exact_blocks;
      const uint32_t bits = __ballot_sync(0xffffffffu, n < a.blocks && exact);
      if (b >= there) break;
      found += __popc(bits);
      if (lane == 0) a.chosen[sparse_choice(a, head, first + b) * a.words + word] = bits;
    }
  }
  if (a.total != nullptr && lane == 0) atomicAdd(a.total, found);
}

// By a mask: one warp per word.
__global__ void __launch_bounds__(kChooseThreads) choose_masked_kernel(Sparse a) {
  const int64_t word = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (word >= a.blocks * a.words) return;
  const int64_t block = word / a.words, n = word % a.words * 32 + lane;
  const bool exact = n < a.blocks && a.mask[block * a.mask_row + n * a.mask_column] != 0;
  const uint32_t bits = __ballot_sync(0xffffffffu, exact);
  if (lane != 0) return;
  a.chosen[word] = bits;
  if (a.total != nullptr) atomicAdd(a.total, __popc(bits) * a.heads);
}

// One warp per row of choices.
__global__ void __launch_bounds__(kChooseThreads) list_kernel(Sparse a) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= a.choices * a.blocks) return;
  const uint32_t* chosen = a.chosen + row * a.words;
  uint16_t* list = a.list + row * a.blocks;
  int found = 0;
  for (int64_t word = 0; word < a.words; ++word) {
    const uint32_t bits = chosen[word];
    if ((bits >> lane & 1) != 0) {
      list[found + __popc(bits & ((1u << lane) - 1))] = static_cast<uint16_t>(word * 32 + lane);
    }
    found += __popc(bits);
  }
  if (lane == 0) a.count[row] = found;
}

// 32 tiles of a stream by a warp, and the 32 after them.
struct TileReader {
  const uint32_t* tiles;
  int count, next = 64;
  uint32_t now, ahead;
  __device__ TileReader(const uint32_t* from, int n) : tiles(from), count(n), now(read(0)), ahead(read(32)) {}
  __device__ uint32_t read(int from) const {
    const int i = from + static_cast<int>(threadIdx.x % 32);
    return i < count ? tiles[i] : 0;
  }
  __device__ void advance() {
    now = ahead;
    ahead = read(next);
    next += 32;
  }
};

// Puts tiles in an order in which all query blocks have something to do: of the 32 that come next, always the one whose
// query blocks have had the fewest so far. By one warp, in place.
__device__ inline void level(uint32_t* tiles, int count) {
  const int lane = threadIdx.x % 32;
  TileReader reader(tiles, count);
  uint32_t mine = reader.now, sorted = 0;
  reader.advance();
  int used = 0;                   // of reader.now
  int ahead[kSparseGroups] = {};  // by how much a query block is ahead of their mean, in thirds
  for (int i = 0; i < count; ++i) {
    int lead = 0;
#pragma unroll
    for (int g = 0; g < kSparseGroups; ++g) lead += (mine >> g & 1) != 0 ? ahead[g] : 0;
    const int needs = __popc(mine & kSparseNeeds), mean = lead * (needs == 1 ? 6 : needs == 2 ? 3 : 2);
    // Block numbers have 16 bits.
    const uint32_t rank = mine == 0 ? ~0u : static_cast<uint32_t>(min(max(mean, -8192), 8191) + 8192) << 16 | mine >> 8;
    const int winner = __ffs(__ballot_sync(0xffffffffu, rank == __reduce_min_sync(0xffffffffu, rank))) - 1;
    const uint32_t tile = __shfl_sync(0xffffffffu, mine, winner);
    const uint32_t following = __shfl_sync(0xffffffffu, reader.now, used);
    if (lane == winner) mine = following;
    if (++used == 32) {
      used = 0;
      reader.advance();
    }
    const int all = __popc(tile & kSparseNeeds);
#pragma unroll
    for (int g = 0; g < kSparseGroups; ++g) ahead[g] += ((tile >> g & 1) != 0 ? kSparseGroups : 0) - all;
    if (lane == i % 32) sorted = tile;
    if (i % 32 == 31 || i + 1 == count) {
      if (lane <= i % 32) tiles[i - i % 32 + lane] = sorted;
    }
  }
}

// One warp per thread block of sparse_hopper: its stream, summaries first.
__global__ void __launch_bounds__(32) stream_kernel(Sparse a) {
  const int head = blockIdx.y, lane = threadIdx.x;
  const int64_t first = int64_t{blockIdx.x} * kSparseGroups, stream = head * sparse_streams(a) + blockIdx.x;
  const int there = static_cast<int>(min(int64_t{kSparseGroups}, a.blocks - first));
  const uint32_t* chosen = a.chosen + sparse_choice(a, head, first) * a.words;
  uint32_t* const tiles = a.streams + stream * sparse_stream_room(a);
  const int summaries = static_cast<int>(sparse_summary_tiles(a));
  for (int t = lane; t < summaries; t += 32) {
    tiles[t] = static_cast<uint32_t>(t) << 8 | kSparseSummaries | ((1u << there) - 1);
  }
  uint32_t* const exact = tiles + summaries;
  int count = 0;
  for (int64_t word = 0; word < a.words; ++word) {
    const uint32_t mine = lane < there ? chosen[lane * a.words + word] : 0;
    uint32_t needs = 0;  // of block 32 word + lane
#pragma unroll
    for (int g = 0; g < kSparseGroups; ++g) needs |= (__shfl_sync(0xffffffffu, mine, g) >> lane & 1) << g;
    const uint32_t needed = __ballot_sync(0xffffffffu, needs != 0);
    if (needs != 0) {
      exact[count + __popc(needed & ((1u << lane) - 1))] = static_cast<uint32_t>(word * 32 + lane) << 8 | needs;
    }
    count += __popc(needed);
  }
  if (lane == 0) a.stream_tiles[stream] = summaries + count;
  __syncwarp();
  level(exact, count);
}

template <typename T, bool kVec>
void launch_sums(cudaStream_t stream, const Sparse& a, unsigned kinds) {
  const LaunchShape shape{dim3(static_cast<unsigned>(a.blocks), static_cast<unsigned>(a.heads), kinds),
                          dim3(kSumThreads)};
  launch(stream, "sparse_sums", sums_kernel<T, kVec>, shape, a);
}

template <typename T>
void prepare(cudaStream_t stream, const Sparse& a) {
  const auto count = [](int64_t n, int64_t per_block) { return static_cast<unsigned>(ceil_div(n, per_block)); };
  const int64_t strides = a.q_row | a.q_head | a.k_row | a.k_head | a.v_row | a.v_head | a.d;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.k) | reinterpret_cast<uintptr_t>(a.v);
  const bool masked = a.mask != nullptr;
  if (strides % 8 == 0 && addresses % 16 == 0)
    launch_sums<T, true>(stream, a, masked ? 2 : 3);
  else
    launch_sums<T, false>(stream, a, masked ? 2 : 3);
  const unsigned heads = static_cast<unsigned>(a.heads), choices = static_cast<unsigned>(a.choices);
  if (masked) {
    launch(stream, "sparse_choose", choose_masked_kernel,
           LaunchShape{dim3(count(a.blocks * a.words, kWarps)), dim3(kChooseThreads)}, a);
  } else {
    launch(stream, "sparse_statistics", statistics_kernel<T>, LaunchShape{dim3(heads, count(a.d, 32)), dim3(1024)}, a);
    const LaunchShape shape{dim3(count(a.blocks, kTogether), heads), dim3(kChooseThreads)};
    if (a.d % 8 == 0)
      launch(stream, "sparse_choose", choose_kernel<T, true>, shape, a);
    else
      launch(stream, "sparse_choose", choose_kernel<T, false>, shape, a);
  }
  if (a.streams != nullptr) {
    launch(stream, "sparse_streams", stream_kernel,
           LaunchShape{dim3(static_cast<unsigned>(sparse_streams(a)), choices), dim3(32)}, a);
  } else {
    launch(stream, "sparse_lists", list_kernel,
           LaunchShape{dim3(count(a.choices * a.blocks, kWarps)), dim3(kChooseThreads)}, a);
  }
}

}  // namespace

void sparse_prepare(cudaStream_t stream, const Sparse& a, DType type) { H3_FLOAT_TYPE(type, prepare<T>(stream, a);) }

}  // namespace h3::cuda
