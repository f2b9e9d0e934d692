#include "apps/server/media_types.h"

namespace h3::server {
namespace {

struct Signature {
  std::string_view start;  // of the file
  size_t at;               // where `then` stands
  std::string_view then;
  const char* ending;
};

// The first that matches. ISO files carry their kind after the length of their first box.
constexpr Signature kSignatures[] = {
    {"\x89PNG", 0, "", ".png"},  {"\xff\xd8", 0, "", ".jpg"},  {"RIFF", 8, "WEBP", ".webp"},
    {"RIFF", 8, "WAVE", ".wav"}, {"RIFF", 8, "AVI ", ".avi"},  {"P5", 0, "", ".ppm"},
    {"P6", 0, "", ".ppm"},       {"GIF8", 0, "", ".gif"},      {"\x1a\x45\xdf\xa3", 0, "", ".mkv"},
    {"", 4, "ftypM4A", ".m4a"},  {"", 4, "ftypqt", ".mov"},    {"", 4, "ftyp", ".mp4"},
    {"ID3", 0, "", ".mp3"},      {"\xff\xfb", 0, "", ".mp3"},  {"OggS", 0, "", ".ogg"},
    {"fLaC", 0, "", ".flac"},    {"YUV4MPEG2", 0, "", ".y4m"},
};

struct Type {
  std::string_view ending;
  const char* type;
};

constexpr Type kTypes[] = {
    {"png", "image/png"},   {"jpg", "image/jpeg"},      {"webp", "image/webp"}, {"gif", "image/gif"},
    {"mp4", "video/mp4"},   {"mov", "video/quicktime"}, {"mkv", "video/webm"},  {"avi", "video/x-msvideo"},
    {"m4a", "audio/mp4"},   {"wav", "audio/wav"},       {"mp3", "audio/mpeg"},  {"ogg", "audio/ogg"},
    {"flac", "audio/flac"},
};

}  // namespace

std::string ending_of(std::string_view all) {
  for (const Signature& known : kSignatures) {
    if (all.substr(0, known.start.size()) != known.start || all.size() < known.at) continue;
    if (all.substr(known.at, known.then.size()) == known.then) return known.ending;
  }
  return ".bin";
}

std::string media_type_of(const std::string& ending) {
  for (const Type& known : kTypes) {
    if (ending == known.ending || (!ending.empty() && ending[0] == '.' && ending.substr(1) == known.ending)) {
      return known.type;
    }
  }
  return "application/octet-stream";
}

}  // namespace h3::server
