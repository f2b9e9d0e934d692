#include "store/plan_package.h"

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"

namespace h3 {
namespace {

constexpr char kMagic[] = "H3PLANS\n";
constexpr uint64_t kMagicBytes = 8, kHeader = 40, kHashAt = 32;
constexpr uint32_t kVersion = 1;
constexpr size_t kMostBytes = size_t{64} << 20;
constexpr size_t kMostText = 512, kMostDims = 5;

using Bytes = std::span<const std::byte>;

uint64_t load(Bytes bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  return value;
}

void store(std::vector<std::byte>& out, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// Reads the parts of one file; errors name it.
class Reader {
 public:
  Reader(Bytes bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  PlanPackage run() {
    envelope();
    const Json json = Json::parse({reinterpret_cast<const char*>(bytes_.data()) + kHeader, json_bytes_},
                                  what_ + ", JSON at byte " + std::to_string(kHeader));
    PlanPackage out;
    guarded("key", [&] {
      for (const auto& [name, value] : json.at("key").members()) out.key.emplace_back(name, text(value));
    });
    guarded("parameters", [&] {
      for (const Json& item : json.at("parameters").items()) out.parameters.push_back(parameter(item));
    });
    guarded("matmuls", [&] {
      for (const Json& item : json.at("matmuls").items()) out.matmuls.push_back(choice(item));
    });
    guarded("attentions", [&] {
      for (const Json& item : json.at("attentions").items()) out.attentions.push_back(choice(item));
    });
    guarded("attentions", [&] {
      if (next_ != data_.size())
        fail(Code::data, "choices name %llu bytes of data, it has %zu,", static_cast<unsigned long long>(next_),
             data_.size());
    });
    guarded("report", [&] { out.report = json.at("report"); });
    return out;
  }

 private:
  [[noreturn]] void refuse(uint64_t at, const std::string& problem) const {
    fail(Code::data, "%s: %s at byte %llu; make it again with h3 prepare", what_.c_str(), problem.c_str(),
         static_cast<unsigned long long>(at));
  }

  void envelope() {
    if (bytes_.size() < kHeader || std::memcmp(bytes_.data(), kMagic, kMagicBytes) != 0) {
      fail(Code::data, "%s: not a file of plans: it does not begin with H3PLANS at byte 0; h3 prepare makes one",
           what_.c_str());
    }
    const uint64_t version = load(bytes_, 8, 4), size = bytes_.size();
    if (version != kVersion) refuse(8, strf("version %llu, 1 is known,", static_cast<unsigned long long>(version)));
    if (load(bytes_, 12, 4) != 0) refuse(12, "a reserved field is not zero");
    const uint64_t json = load(bytes_, 16, 8), data = load(bytes_, 24, 8);
    if (json > size - kHeader || data != size - kHeader - json) {
      refuse(16, strf("%llu bytes of JSON and %llu of data do not make up the %llu after the header",
                      static_cast<unsigned long long>(json), static_cast<unsigned long long>(data),
                      static_cast<unsigned long long>(size - kHeader)));
    }
    if (hash64(bytes_.subspan(kHeader)) != load(bytes_, kHashAt, 8))
      refuse(kHashAt, "the contents do not have the hash");
    json_bytes_ = static_cast<size_t>(json);
    data_ = bytes_.subspan(kHeader + json_bytes_);
  }

  // JSON that is not of the form expected: where it is said in terms of the file.
  template <typename Work>
  void guarded(const char* field, const Work& work) const {
    try {
      work();
    } catch (const Error& error) {
      refuse(kHeader, strf("\"%s\": %s in the JSON", field, error.what()));
    }
  }

  static std::string text(const Json& json) {
    const std::string& out = json.as_string();
    if (out.empty() || out.size() > kMostText) {
      fail(Code::data, "a text of %zu bytes, 1 to %zu are allowed,", out.size(), kMostText);
    }
    return out;
  }

  static int64_t whole(const Json& json, int64_t low) {
    const int64_t value = json.as_int();
    if (value < low || value > int64_t{1} << 40) {
      fail(Code::data, "%lld, a whole number from %lld to 2^40 is allowed,", static_cast<long long>(value),
           static_cast<long long>(low));
    }
    return value;
  }

  static PlanPackage::Parameter parameter(const Json& json) {
    PlanPackage::Parameter out{text(json.at("name")), text(json.at("format")), {}};
    for (const Json& dim : json.at("dims").items()) out.dims.push_back(whole(dim, 1));
    if (out.dims.empty() || out.dims.size() > kMostDims) fail(Code::data, "%zu dimensions", out.dims.size());
    return out;
  }

  // The data of one choice follows that of the one before: a small file cannot ask for more than it holds.
  PlanPackage::Choice choice(const Json& json) {
    PlanPackage::Choice out{text(json.at("call")), whole(json.at("above"), 0), whole(json.at("upto"), 1), {}};
    if (out.upto <= out.above) fail(Code::data, "no rows are above %lld", static_cast<long long>(out.above));
    const auto offset = static_cast<uint64_t>(whole(json.at("offset"), 0));
    const auto count = static_cast<uint64_t>(whole(json.at("bytes"), 0));
    if (offset != next_) {
      fail(Code::data, "data from %llu on, %llu is expected,", static_cast<unsigned long long>(offset),
           static_cast<unsigned long long>(next_));
    }
    if (count > data_.size() - offset) {
      fail(Code::data, "%llu bytes from %llu on, the data has %zu,", static_cast<unsigned long long>(count),
           static_cast<unsigned long long>(offset), data_.size());
    }
    const Bytes bytes = data_.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
    out.data.assign(bytes.begin(), bytes.end());
    next_ += count;
    return out;
  }

  Bytes bytes_, data_;
  const std::string& what_;
  size_t json_bytes_ = 0;
  uint64_t next_ = 0;  // of the data, first byte that no choice has named
};

Json list_of(const std::vector<PlanPackage::Choice>& choices, std::vector<std::byte>& data) {
  Json list = Json::array();
  for (const PlanPackage::Choice& choice : choices) {
    Json item = Json::object({{"call", choice.call}, {"above", choice.above}, {"upto", choice.upto}});
    item.set("offset", static_cast<int64_t>(data.size())).set("bytes", static_cast<int64_t>(choice.data.size()));
    list.push(std::move(item));
    data.insert(data.end(), choice.data.begin(), choice.data.end());
  }
  return list;
}

}  // namespace

std::vector<std::byte> PlanPackage::bytes() const {
  std::vector<std::byte> data, out;
  Json names = Json::object({}), list = Json::array();
  for (const auto& [name, value] : key) names.set(name, value);
  for (const Parameter& parameter : parameters) {
    Json dims = Json::array();
    for (const int64_t dim : parameter.dims) dims.push(dim);
    list.push(Json::object({{"name", parameter.name}, {"format", parameter.format}, {"dims", std::move(dims)}}));
  }
  Json json = Json::object({{"key", std::move(names)}, {"parameters", std::move(list)}});
  json.set("matmuls", list_of(matmuls, data)).set("attentions", list_of(attentions, data)).set("report", report);
  const std::string text = json.dump(1);
  std::vector<std::byte> body(text.size() + data.size());
  std::memcpy(body.data(), text.data(), text.size());
  std::copy(data.begin(), data.end(), body.begin() + static_cast<std::ptrdiff_t>(text.size()));
  for (size_t i = 0; i < kMagicBytes; ++i) out.push_back(static_cast<std::byte>(kMagic[i]));
  store(out, kVersion, 4);
  store(out, 0, 4);
  store(out, text.size(), 8);
  store(out, data.size(), 8);
  store(out, hash64(body), 8);
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

void PlanPackage::write(const std::string& path) const {
  AtomicFile file(path);
  const std::vector<std::byte> all = bytes();
  file.write(all.data(), all.size());
  file.commit();
}

PlanPackage PlanPackage::parse(std::span<const std::byte> bytes, const std::string& what) {
  return Reader(bytes, what).run();
}

PlanPackage PlanPackage::read(const std::string& path) {
  const std::string text = read_file(path, kMostBytes);
  return parse(std::as_bytes(std::span(text)), path);
}

}  // namespace h3
