#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace h3 {
namespace {

std::string error_of(std::string_view text) {
  try {
    Json::parse(text, "x.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data);
    return error.what();
  }
  return "";
}

TEST(Json, ReadsEveryKind) {
  const Json json =
      Json::parse(R"( {"a": [1, -2.5e1, true, false, null], "b": {"c": "x\n\u00e9\ud83d\ude00/"}} )", "x.json");
  EXPECT_EQ(json.at("a").size(), 5u);
  EXPECT_EQ(json.at("a").at(size_t{0}).as_int(), 1);
  EXPECT_EQ(json.at("a").at(size_t{1}).as_int(), -25);
  EXPECT_TRUE(json.at("a").at(size_t{2}).as_bool());
  EXPECT_TRUE(json.at("a").at(size_t{4}).is_null());
  EXPECT_EQ(json.at("b").at("c").as_string(), "x\n\xc3\xa9\xf0\x9f\x98\x80/");
  EXPECT_EQ(json.find("z"), nullptr);
}

TEST(Json, KeepsTheOrderOfMembers) { EXPECT_EQ(Json::parse(R"({"z":1,"a":2})", "x").dump(), R"({"z":1,"a":2})"); }

TEST(Json, NumbersReadBackEqual) {
  for (const double value : {0.1, 1e-310, 5e-324, 1.7976931348623157e308, -0.0, 123456789.125}) {
    const double back = Json::parse(Json(value).dump(), "x").as_double();
    EXPECT_EQ(back, value);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
  }
  EXPECT_EQ(Json::parse("9223372036854775807", "x").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Json::parse("-9223372036854775808", "x").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(Json::parse("18446744073709551615", "x").is_number());
  EXPECT_EQ(Json::parse("1e-999", "x").as_double(), 0.0);
  EXPECT_EQ(Json::parse("0.00001e-99999999999999999999", "x").as_double(), 0.0);
  EXPECT_EQ(Json::parse("0e99999", "x").as_double(), 0.0);
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
}

TEST(Json, RejectsWhatIsNotJson) {
  for (const char* text : {"",        " ",           "{",     "[1,]", "{\"a\":1,}", "{a:1}",    "01",   "1.",
                           ".5",      "+1",          "-",     "1e",   "NaN",        "Infinity", "tru",  "\"a",
                           "\"\\x\"", "\"\\u12g4\"", "[1] 2", "'a'",  "{\"a\" 1}",  "[1 2]",    "nullx"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
  EXPECT_EQ(error_of("[1, }"), "x.json: invalid JSON at byte 4: expected a value, found '}'");
}

TEST(Json, RejectsDuplicateNames) {
  EXPECT_EQ(error_of(R"({"a":1,"b":2,"a":3})"), "x.json: invalid JSON at byte 0: this object names \"a\" twice");
  EXPECT_NE(error_of(R"({"a":1,"\u0061":3})"), "");  // the same name, written with an escape
}

TEST(Json, BoundsTheDepth) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(error_of(std::string(66, '[') + std::string(66, ']')), "");
  EXPECT_NE(error_of(std::string(1000000, '[')), "");
}

TEST(Json, RejectsBadText) {
  for (const char* text : {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xe2\x82\"",
                           "\"a\nb\"", R"("\ud800")", R"("\udc00")", R"("\ud800\u0041")"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
  EXPECT_NE(error_of("1e999"), "");
  EXPECT_NE(error_of("-123456789e400"), "");
}

TEST(Json, TypedAccessNamesTheValue) {
  const Json json = Json::parse(R"({"a": "x", "b": 1.5})", "x");
  EXPECT_THROW(json.at("c"), Error);
  EXPECT_THROW(json.at("a").as_int(), Error);
  EXPECT_THROW(json.at("b").as_int(), Error);
  EXPECT_THROW(json.at(size_t{0}), Error);
  try {
    json.at("a").as_double();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "expected a number, found a string: \"x\"");
  }
}

TEST(Json, WritesDeterministically) {
  Json json;
  json.set("b", Json::array({1, 2.5, "q\"\\\x01"})).set("a", Json::object({{"n", nullptr}})).set("e", Json::array());
  EXPECT_EQ(json.dump(), R"({"b":[1,2.5,"q\"\\\u0001"],"a":{"n":null},"e":[]})");
  EXPECT_EQ(json.dump(1),
            "{\n \"b\": [\n  1,\n  2.5,\n  \"q\\\"\\\\\\u0001\"\n ],\n \"a\": {\n  \"n\": null\n },\n \"e\": []\n}");
  EXPECT_EQ(Json("\xff").dump(), "\"\\ufffd\"");
  EXPECT_EQ(Json(uint64_t{7}).as_int(), 7);
}

}  // namespace
}  // namespace h3
