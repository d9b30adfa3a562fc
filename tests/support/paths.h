// The paths of the checkout, the binaries and the data. ctest sets environment variables for them.
// Without these variables the paths begin at the current folder.
#pragma once

#include <cstdlib>
#include <string>

namespace evergrad::test {

inline std::string FromEnvironment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}
inline std::string SourceDir() { return FromEnvironment("EVERGRAD_SOURCE_DIR", "."); }
inline std::string BinDir() {
  return FromEnvironment("EVERGRAD_BIN_DIR", SourceDir() + "/build/release/bin");
}
inline std::string DataDir() { return FromEnvironment("EVERGRAD_DATA", SourceDir() + "/data"); }

}  // namespace evergrad::test
