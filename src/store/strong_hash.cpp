#include "store/strong_hash.h"

#include "base/error.h"

#if H3_HAVE_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace h3 {

struct StrongHash::State {
  XXH3_state_t xxh;
};

bool StrongHash::available() { return true; }
StrongHash::StrongHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
void StrongHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}
std::string StrongHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return strf("%016llx%016llx", static_cast<unsigned long long>(hash.high64),
              static_cast<unsigned long long>(hash.low64));
}

}  // namespace h3
#else
namespace h3 {

struct StrongHash::State {};

bool StrongHash::available() { return false; }
StrongHash::StrongHash() = default;
void StrongHash::update(std::span<const std::byte>) {}
std::string StrongHash::hex() const { return {}; }

}  // namespace h3
#endif

namespace h3 {

StrongHash::~StrongHash() = default;
StrongHash::StrongHash(StrongHash&&) noexcept = default;
StrongHash& StrongHash::operator=(StrongHash&&) noexcept = default;

}  // namespace h3
