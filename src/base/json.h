// A strict JSON reader and a deterministic writer.
//
// Why our own: headers of checkpoint files must reject duplicate names and bound their depth, errors must name a byte
// offset, equal reports must give equal bytes, and the engine has to build where only a compiler is installed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace h3 {

class Json {
 public:
  enum class Kind { null, boolean, integer, number, string, array, object };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value) : kind_(Kind::boolean), bool_(value) {}
  Json(int value) : Json(static_cast<int64_t>(value)) {}
  Json(int64_t value) : kind_(Kind::integer), int_(value) {}
  Json(uint64_t value);
  Json(double value) : kind_(Kind::number), double_(value) {}
  Json(const char* value) : kind_(Kind::string), string_(value) {}
  Json(std::string value) : kind_(Kind::string), string_(std::move(value)) {}
  Json(std::string_view value) : kind_(Kind::string), string_(value) {}

  static Json array(std::initializer_list<Json> items = {});
  static Json object(std::initializer_list<Member> members = {});
  static Json object(std::vector<Member> members);  // names must be unique

  // Throws Error(data) naming `what` and the byte offset. Rejects duplicate keys, depth > 64, trailing bytes,
  // invalid UTF-8 in strings, unpaired surrogates, NaN/Infinity and numbers outside the range of double.
  static Json parse(std::string_view text, std::string_view what);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_object() const { return kind_ == Kind::object; }
  bool is_array() const { return kind_ == Kind::array; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  bool is_integer() const { return kind_ == Kind::integer; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::number; }

  // Typed access; each throws Error(data, "expected ..., found ...") on a mismatch.
  bool as_bool() const;
  int64_t as_int() const;    // an integer, or a number without fraction
  double as_double() const;  // any number
  const std::string& as_string() const;
  const std::vector<Json>& items() const;      // array elements
  const std::vector<Member>& members() const;  // object members in file order

  // Object lookup: nullptr when absent or not an object; at() throws naming the key.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;
  const Json& at(size_t index) const;
  size_t size() const { return kind_ == Kind::object ? members_.size() : items_.size(); }

  // Building.
  Json& set(std::string key, Json value);  // appends or replaces; returns *this
  Json& push(Json value);                  // returns *this

  // indent < 0: one line. Doubles are written with the fewest digits that read back equal; NaN and Inf as null.
  std::string dump(int indent = -1) const;

 private:
  void write(std::string& out, int indent, int depth) const;

  Kind kind_ = Kind::null;
  bool bool_ = false;
  int64_t int_ = 0;
  double double_ = 0;
  std::string string_;
  std::vector<Json> items_;
  std::vector<Member> members_;
};

}  // namespace h3
