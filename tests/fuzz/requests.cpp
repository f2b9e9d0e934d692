// Any request: the first line is its content type, the rest its body. It is understood, or refused with a 4xx that says
// what is wrong; what is understood can be written down, and files in it survive base64.
#include <cstdlib>

#include "apps/server/body.h"
#include "apps/server/fields.h"
#include "apps/server/http.h"
#include "apps/server/routes.h"
#include "base/error.h"
#include "pipeline/request.h"

namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

void check_text(const h3::Json& json) {
  const std::string text = json.dump();
  check(h3::Json::parse(text, "again").dump() == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace h3::server;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(all.find('\n'), all.size());
  const std::string type(all.substr(0, line));
  const std::string_view body = all.substr(std::min(line + 1, all.size()));
  std::string bytes, allowed;
  if (decode_base64(body, bytes)) {
    std::string again;
    check(decode_base64(encode_base64(bytes), again) && again == bytes);
  }
  HttpRequest request;
  request.method = "GET";
  request.path = std::string(body.substr(0, 200));
  if (find_route(request, allowed) != nullptr) check(request.matched.size() <= 2);
  try {
    const std::vector<Given> fields = parse_body(type, body);
    for (const Given& given : fields) check(!given.file || given.value.is_null());
    const Draft draft = draft_of(fields);
    check_text(draft.canonical);
    check_text(draft.request.to_json());
    check(draft.request.references.empty() && draft.attachments.empty());  // files are read by the intake
    for (const ReferenceSource& reference : draft.references) {
      check(!reference.media.field.empty());
      check(!reference.sound || reference.kind == h3::Reference::Kind::video);
    }
    try {
      if (!draft.first && !draft.last) check_text(h3::resolve(draft.request, h3::ModelFacts{}).to_json());
    } catch (const h3::Error& error) {
      throw to_api_error(error, draft.spelled);
    }
  } catch (const ApiError& error) {
    check(error.status >= 400 && error.status < 500 && !error.message.empty() && !error.code.empty());
    check_text(h3::Json::parse(error_response(error).body, "answer"));
  }
  return 0;
}
