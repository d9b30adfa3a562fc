#include <catch2/catch.hpp>

#include "common/base/host_port.h"

namespace evergrad {
namespace {

TEST_CASE("host:port is split, and malformed addresses are refused") {
  struct Row {
    const char *text, *host;
    int port;
  };
  for (const Row& row :
       {Row{"127.0.0.1:4000", "127.0.0.1", 4000}, Row{"[::1]:65535", "::1", 65535},
        Row{"ps-server-0.train:0", "ps-server-0.train", 0}, Row{"h:00080", "h", 80}}) {
    INFO(row.text);
    const auto parts = ParseHostPort(row.text);
    REQUIRE(parts.has_value());
    CHECK(parts->host == row.host);
    CHECK(parts->port == row.port);
  }
  for (const char* text : {"", ":", "host", "host:", ":4000", "127.0.0.1:65536", "127.0.0.1:99999",
                           "127.0.0.1:4295003296", "h:+80", "h: 80", "h:80 ", "h:8x", "h:-1",
                           "::1:80", "[]:80", "[::1]80", "http://h:80", "a b:80", "h\n:80"}) {
    INFO(text);
    CHECK_FALSE(ParseHostPort(text).has_value());
  }
}

}  // namespace
}  // namespace evergrad
