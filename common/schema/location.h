// A place in a user's file, and a mistake at that place.
#pragma once

#include <string>

namespace evergrad::config {

struct Location {
  std::string file;              // name of the file, or "<--set 2>" for the second --set
  int line = 0, column = 0;      // 1-based
  std::string ToString() const;  // file:line:column
  friend bool operator==(const Location&, const Location&) = default;
};

// One mistake. An example of ToString is "job.yaml:12:9: unknown key `unit` in a dense layer; did
// you mean `units`?"
struct Mistake {
  Location where;
  std::string text;
  std::string ToString() const;
};

}  // namespace evergrad::config
