// Marks a test as skipped if it cannot run on this machine.
#pragma once

#include <iostream>
#include <string_view>

namespace evergrad::test {

// Prints the reason for which the test cannot run here. ctest counts the test as skipped, because
// cmake/add_tests.cmake looks for a line that begins like this one. The caller must return
// afterwards.
inline void Skip(std::string_view why) { std::cout << "\nskipped: " << why << std::endl; }

}  // namespace evergrad::test
