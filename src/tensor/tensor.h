// Memory: Device -> Buffer (one allocation, move-only) -> View (typed, strided window) and Tensor (a Buffer with its
// View).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace h3 {

class Device;

// One allocation on one device. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, int64_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  Device* device() const { return device_; }
  void* data() const { return data_; }  // a device address when the device is not the host
  int64_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

inline constexpr int kMaxRank = 5;

// A typed window into a Buffer. dim and stride are in elements; index arithmetic is 64 bit everywhere.
// Does not own; valid while its Buffer lives. Row-major unless strided() or select() made it otherwise.
struct View {
  std::byte* data = nullptr;  // address of element (0, ..., 0), on `device`
  Device* device = nullptr;
  DType type = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dim{};
  std::array<int64_t, kMaxRank> stride{};

  bool empty() const { return data == nullptr; }
  int64_t elements() const;
  int64_t bytes() const { return elements() * size_of(type); }
  bool contiguous() const;
  // Sub-ranges share memory. Programmer errors (out of range) assert.
  View slice(int axis, int64_t begin, int64_t count) const;
  View select(int axis, int64_t index) const;               // drops the axis
  View reshape(std::initializer_list<int64_t> dims) const;  // contiguous views only; one dim may be -1
  View split(int axis, int64_t inner) const;                // [.., n, ..] -> [.., n/inner, inner, ..]
  View as(DType other) const;                               // same bytes, other type of the same size
  std::string shape() const;                                // "[12, 96]"
};

// Where memory lives and how it is reached. Host back ends share HostDevice.
class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;
  virtual bool is_host() const = 0;
  // 64-byte aligned (256 on accelerators). Error(memory) with the size asked, what is in use and what the cap or the
  // device has, when it does not fit.
  virtual Buffer allocate(int64_t bytes, const char* what) = 0;
  virtual void release(void* data, int64_t bytes) noexcept = 0;
  // Ordered after earlier calls on this device; return when the host memory may be reused / is filled.
  virtual void upload(const void* host, View destination) = 0;  // destination contiguous
  virtual void download(View source, void* host) = 0;           // source contiguous
  virtual int64_t free_bytes() const { return 0; }              // that the device could still give; 0 = unknown
  // Host memory that transfers to and from this device are fastest with (page-locked for a card). 64-byte aligned.
  std::shared_ptr<std::byte> staging(int64_t bytes);
  // Counts host memory that serves this device without being its own, until the last copy of the result goes.
  // Error(memory) above the cap on host memory.
  std::shared_ptr<const void> claim_host(int64_t bytes, const char* what);

  int64_t allocated_bytes() const { return now_.load(); }  // now
  int64_t peak_bytes() const { return peak_.load(); }      // since the last reset_peak
  void reset_peak() { peak_.store(now_.load()); }
  int64_t allocations() const { return count_.load(); }  // how many so far: the step loop asserts it stands still
  // Hard cap on what may be held at a time (--vram, --ram); 0 = none. Larger requests fail like any that do not fit.
  void set_cap(int64_t bytes) { cap_.store(bytes); }
  int64_t cap() const { return cap_.load(); }
  // The same for staging() and claim_host() of an accelerator; those of a host device count with its own memory.
  void set_host_cap(int64_t bytes) { host_cap_.store(bytes); }
  int64_t host_bytes() const { return host_now_->load(); }
  // Test hook: the n-th allocation from now fails (1 = the next); 0 switches it off.
  void fail_allocation(int64_t n) { fail_in_.store(n); }

 protected:
  void admit(int64_t bytes, const char* what);  // Error(memory) above the cap or at a planned failure
  void count_taken(int64_t bytes);
  void count_given(int64_t bytes) noexcept { now_.fetch_sub(bytes); }
  virtual std::shared_ptr<std::byte> make_staging(int64_t bytes);

 private:
  void admit_within(int64_t cap, int64_t now, int64_t bytes, const char* flag, const char* what) const;

  std::atomic<int64_t> now_{0}, peak_{0}, count_{0}, cap_{0}, fail_in_{0}, host_cap_{0};
  const std::shared_ptr<std::atomic<int64_t>> host_now_ = std::make_shared<std::atomic<int64_t>>(0);
};

class HostDevice final : public Device {
 public:
  const char* name() const override { return "host"; }
  bool is_host() const override { return true; }
  Buffer allocate(int64_t bytes, const char* what) override;
  void release(void* data, int64_t bytes) noexcept override;
  void upload(const void* host, View destination) override;
  void download(View source, void* host) override;
};

// A Buffer and the View of all of it.
struct Tensor {
  Buffer buffer;
  View view;

  Tensor() = default;
  Tensor(Device& device, DType type, std::initializer_list<int64_t> dims, const char* what);
  Tensor(Device& device, DType type, const std::vector<int64_t>& dims, const char* what);
  operator const View&() const { return view; }
};

// A contiguous view over memory that the caller owns.
View make_view(Device& device, void* data, DType type, const std::vector<int64_t>& dims);

// Element access on host views; asserts type and device.
template <typename T>
T* host(const View& view);  // float, double, int64_t, int32_t, int8_t, uint8_t; uint16_t for bf16 and f16

// A copy on `device`, converted to `type` on the host. For parameters, tables and tests.
Tensor upload_f32(Device& device, const float* values, const std::vector<int64_t>& dims, DType type, const char* what);
Tensor upload_i32(Device& device, const std::vector<int32_t>& values, const char* what);
std::vector<float> download_f32(const View& view);  // any float type, any strides

}  // namespace h3
