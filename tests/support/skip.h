// Marks a test as skipped if it cannot run on this machine.
#pragma once

#include <iostream>
#include <string_view>

namespace evergrad::test {

// Prints why the test cannot run here. ctest then counts it as skipped (cmake/add_tests.cmake looks
// for a line with this beginning). The caller must return afterwards.
inline void Skip(std::string_view why) { std::cout << "\nskipped: " << why << std::endl; }

}  // namespace evergrad::test
