// Reads and writes golden bytes (the stored bytes of a format) as text, with 16 bytes per line in
// hexadecimal.
#pragma once

#include <cstddef>
#include <cstdio>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

namespace evergrad::wire {

inline std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  char two[3];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(two, sizeof two, "%02x", std::to_integer<unsigned>(bytes[i]));
    out += two;
    out += (i % 16 == 15 || i + 1 == bytes.size()) ? '\n' : ' ';
  }
  return out;
}

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace evergrad::wire
