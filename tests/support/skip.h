// For a test that cannot run on this machine.
#pragma once

#include <iostream>
#include <string_view>

namespace evergrad::test {

// Prints why the test cannot run here; ctest then counts it as skipped (cmake/add_tests.cmake looks
// for a line that begins like this). The caller returns afterwards.
inline void Skip(std::string_view why) { std::cout << "\nskipped: " << why << std::endl; }

}  // namespace evergrad::test
