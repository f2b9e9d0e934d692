#include "tensor/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base/error.h"
#include "codec/scalar.h"

namespace h3 {

Buffer::~Buffer() {
  if (data_ != nullptr) device_->release(data_, bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) device_->release(data_, bytes_);
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

int64_t View::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim[i];
  return n;
}

bool View::contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim[i] != 1 && stride[i] != expected) return false;
    expected *= dim[i];
  }
  return true;
}

View View::slice(int axis, int64_t begin, int64_t count) const {
  H3_ASSERT(axis >= 0 && axis < rank && begin >= 0 && count >= 0 && begin + count <= dim[axis]);
  View out = *this;
  out.data += begin * stride[axis] * size_of(type);
  out.dim[axis] = count;
  return out;
}

View View::select(int axis, int64_t index) const {
  View out = slice(axis, index, 1);
  for (int i = axis; i + 1 < rank; ++i) {
    out.dim[i] = out.dim[i + 1];
    out.stride[i] = out.stride[i + 1];
  }
  --out.rank;
  return out;
}

View View::reshape(std::initializer_list<int64_t> dims) const {
  H3_ASSERT(contiguous() && static_cast<int>(dims.size()) <= kMaxRank);
  View out = *this;
  out.rank = static_cast<int>(dims.size());
  int64_t known = 1;
  int unknown = -1, i = 0;
  for (int64_t d : dims) {
    if (d < 0)
      unknown = i;
    else
      known *= d;
    out.dim[i++] = d;
  }
  if (unknown >= 0) out.dim[unknown] = known == 0 ? 0 : elements() / known;
  int64_t step = 1;
  for (int k = out.rank - 1; k >= 0; --k) {
    out.stride[k] = step;
    step *= out.dim[k];
  }
  H3_ASSERT(out.elements() == elements());
  return out;
}

View View::split(int axis, int64_t inner) const {
  H3_ASSERT(rank < kMaxRank && axis >= 0 && axis < rank && inner > 0 && dim[axis] % inner == 0);
  View out = *this;
  for (int i = rank; i > axis + 1; --i) {
    out.dim[i] = dim[i - 1];
    out.stride[i] = stride[i - 1];
  }
  out.rank = rank + 1;
  out.dim[axis] = dim[axis] / inner;
  out.stride[axis] = stride[axis] * inner;
  out.dim[axis + 1] = inner;
  out.stride[axis + 1] = stride[axis];
  return out;
}

View View::as(DType other) const {
  H3_ASSERT(size_of(other) == size_of(type));
  View out = *this;
  out.type = other;
  return out;
}

std::string View::shape() const {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(dim[i]);
  return text + "]";
}

void Device::admit(int64_t bytes, const char* what) {
  constexpr double kMiB = 1048576.0;
  if (fail_in_.load() > 0 && fail_in_.fetch_sub(1) == 1) {
    fail(Code::memory, "out of memory on %s: %s needs %.1f MiB (planned failure of a test)", name(), what,
         static_cast<double>(bytes) / kMiB);
  }
  const int64_t held = now_.load() + (is_host() ? host_now_->load() : 0);
  admit_within(cap_.load(), held, bytes, is_host() ? "--ram" : "--vram", what);
}

void Device::admit_within(int64_t cap, int64_t now, int64_t bytes, const char* flag, const char* what) const {
  constexpr double kMiB = 1048576.0;
  if (cap <= 0 || now + bytes <= cap) return;
  fail(Code::memory,
       "out of memory on %s: %s needs %.1f MiB, %.1f MiB of the cap of %.1f MiB are in use; raise %s, use --plan "
       "stream or ask for a smaller or shorter clip",
       name(), what, static_cast<double>(bytes) / kMiB, static_cast<double>(now) / kMiB,
       static_cast<double>(cap) / kMiB, flag);
}

std::shared_ptr<const void> Device::claim_host(int64_t bytes, const char* what) {
  const int64_t held = host_now_->load() + (is_host() ? now_.load() : 0);
  admit_within(is_host() ? cap_.load() : host_cap_.load(), held, bytes, "--ram", what);
  host_now_->fetch_add(bytes);
  const auto give = [counter = host_now_, bytes](const void*) { counter->fetch_sub(bytes); };
  return {static_cast<const void*>(this), give};
}

std::shared_ptr<std::byte> Device::staging(int64_t bytes) {
  struct Staged {
    std::shared_ptr<const void> claim;
    std::shared_ptr<std::byte> memory;
  };
  auto staged = std::make_shared<Staged>();
  staged->claim = claim_host(bytes, "staging");
  staged->memory = make_staging(bytes);
  return {staged, staged->memory.get()};
}

std::shared_ptr<std::byte> Device::make_staging(int64_t bytes) {
  constexpr size_t kAlign = 64;
  const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded));
  if (data == nullptr) fail(Code::memory, "out of memory: staging needs %.1f MiB of RAM", bytes / 1048576.0);
  return {data, [](std::byte* p) { std::free(p); }};
}

void Device::count_taken(int64_t bytes) {
  const int64_t now = now_.fetch_add(bytes) + bytes;
  int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  count_.fetch_add(1);
}

namespace {
constexpr int64_t kHugePage = int64_t{2} << 20;
}

Buffer HostDevice::allocate(int64_t bytes, const char* what) {
  H3_ASSERT(bytes >= 0);
  admit(bytes, what);
  // Large buffers ask for 2 MiB pages: streaming a packed weight through 4 KiB pages runs at half the bandwidth.
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const size_t rounded = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) fail(Code::memory, "out of memory: %s needs %.1f MiB of RAM", what, bytes / 1048576.0);
#if defined(__linux__)
  if (bytes >= kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // advice: a refusal changes speed only
#endif
  count_taken(bytes);
  return Buffer(this, data, bytes);
}

void HostDevice::release(void* data, int64_t bytes) noexcept {
  count_given(bytes);
  std::free(data);
}

void HostDevice::upload(const void* source, View destination) {
  H3_ASSERT(destination.contiguous());
  if (destination.elements() > 0) std::memcpy(destination.data, source, static_cast<size_t>(destination.bytes()));
}

void HostDevice::download(View source, void* destination) {
  H3_ASSERT(source.contiguous());
  if (source.elements() > 0) std::memcpy(destination, source.data, static_cast<size_t>(source.bytes()));
}

View make_view(Device& device, void* data, DType type, const std::vector<int64_t>& dims) {
  H3_ASSERT(static_cast<int>(dims.size()) <= kMaxRank);
  View view;
  view.data = static_cast<std::byte*>(data);
  view.device = &device;
  view.type = type;
  view.rank = static_cast<int>(dims.size());
  int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.dim[i] = dims[i];
    view.stride[i] = step;
    step *= dims[i];
  }
  return view;
}

Tensor::Tensor(Device& device, DType type, const std::vector<int64_t>& dims, const char* what) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  buffer = device.allocate(n * size_of(type), what);
  view = make_view(device, buffer.data(), type, dims);
}

Tensor::Tensor(Device& device, DType type, std::initializer_list<int64_t> dims, const char* what)
    : Tensor(device, type, std::vector<int64_t>(dims), what) {}

namespace {

template <typename T>
constexpr bool matches(DType type) {
  if (std::is_same_v<T, float>) return type == DType::f32;
  if (std::is_same_v<T, double>) return type == DType::f64;
  if (std::is_same_v<T, int64_t>) return type == DType::i64;
  if (std::is_same_v<T, int32_t>) return type == DType::i32;
  if (std::is_same_v<T, int8_t>) return type == DType::i8;
  if (std::is_same_v<T, uint8_t>) return type == DType::u8;
  return type == DType::bf16 || type == DType::f16;  // uint16_t
}

float load_f32(const std::byte* p, DType type) {
  switch (type) {
    case DType::f32: {
      float v;
      std::memcpy(&v, p, 4);
      return v;
    }
    case DType::f64: {
      double v;
      std::memcpy(&v, p, 8);
      return static_cast<float>(v);
    }
    case DType::bf16: {
      uint16_t v;
      std::memcpy(&v, p, 2);
      return bf16_to_f32(v);
    }
    case DType::f16: {
      uint16_t v;
      std::memcpy(&v, p, 2);
      return f16_to_f32(v);
    }
    default: H3_ASSERT(false); return 0;
  }
}

}  // namespace

template <typename T>
T* host(const View& view) {
  H3_ASSERT(view.device->is_host() && matches<T>(view.type));
  return reinterpret_cast<T*>(view.data);
}
template float* host<float>(const View&);
template double* host<double>(const View&);
template int64_t* host<int64_t>(const View&);
template int32_t* host<int32_t>(const View&);
template int8_t* host<int8_t>(const View&);
template uint8_t* host<uint8_t>(const View&);
template uint16_t* host<uint16_t>(const View&);

Tensor upload_f32(Device& device, const float* values, const std::vector<int64_t>& dims, DType type, const char* what) {
  Tensor tensor(device, type, dims, what);
  const int64_t n = tensor.view.elements();
  if (type == DType::f32) {
    device.upload(values, tensor.view);
    return tensor;
  }
  H3_ASSERT(type == DType::bf16 || type == DType::f16);
  std::vector<uint16_t> narrow(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) narrow[i] = type == DType::bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
  device.upload(narrow.data(), tensor.view);
  return tensor;
}

Tensor upload_i32(Device& device, const std::vector<int32_t>& values, const char* what) {
  Tensor tensor(device, DType::i32, {static_cast<int64_t>(values.size())}, what);
  device.upload(values.data(), tensor.view);
  return tensor;
}

std::vector<float> download_f32(const View& view) {
  const int64_t n = view.elements();
  std::vector<float> out(static_cast<size_t>(n));
  if (n == 0) return out;
  if (view.contiguous()) {
    std::vector<std::byte> raw(static_cast<size_t>(view.bytes()));
    view.device->download(view, raw.data());
    const int64_t size = size_of(view.type);
    for (int64_t i = 0; i < n; ++i) out[i] = load_f32(raw.data() + i * size, view.type);
    return out;
  }
  const int64_t inner = n / view.dim[0];
  for (int64_t i = 0; i < view.dim[0]; ++i) {
    const std::vector<float> part = download_f32(view.select(0, i));
    std::copy(part.begin(), part.end(), out.begin() + i * inner);
  }
  return out;
}

}  // namespace h3
