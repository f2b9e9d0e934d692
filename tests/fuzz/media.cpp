// Pictures, Y4M and WAV of any bytes: an h3::Error or a result, never more. The first byte chooses the reader.
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/error.h"
#include "media/codecs.h"

namespace {

constexpr int64_t kMaxPixels = 1 << 18;  // larger claims are legal and only slow

void read(int reader, std::span<const uint8_t> bytes, const std::string& path) {
  if (reader == 0) {
    const h3::ImageHeader header = h3::probe_image(bytes, path);
    if (header.width * header.height <= kMaxPixels) h3::read_image(path);
  } else if (reader == 1) {
    const std::unique_ptr<h3::ClipReader> clip = h3::open_y4m_reader(path);
    if (!clip || static_cast<int64_t>(clip->info().width) * clip->info().height > kMaxPixels) return;
    h3::Image frame;
    double time = 0;
    for (int i = 0; i < 4 && clip->next(frame, time); ++i) {
    }
  } else {
    h3::read_wav(path, 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  const int fd = ::memfd_create("media", 0);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) return 0;
  try {
    read(data[0] % 3, bytes, "/proc/self/fd/" + std::to_string(fd));
  } catch (const h3::Error&) {
  }
  ::close(fd);
  return 0;
}
