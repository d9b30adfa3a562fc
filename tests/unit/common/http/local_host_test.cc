#include "common/http/local_host.h"

#include <catch2/catch.hpp>

namespace evergrad::http {
namespace {

TEST_CASE("this machine and the metadata services of clouds are contacted without a proxy") {
  for (const char* host :
       {"localhost", "LocalHost", "localhost.", "store.localhost", "127.0.0.1", "127.255.255.255",
        "::1", "[::1]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "169.254.169.254",
        "169.254.170.2", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "fd00:ec2::23",
        "[FD00:0EC2::254]", "[fd20:ce::254]", "metadata.google.internal",
        "Metadata.Google.Internal."}) {
    CAPTURE(host);
    CHECK(IsLocalHost(host));
  }
}

TEST_CASE("other hosts are contacted through the proxy of the environment, if it names one") {
  for (const char* host : {"",
                           ".",
                           "[]",
                           "[",
                           "s3.eu-central-1.amazonaws.com",
                           "storage.googleapis.com",
                           "localhost.x",
                           "notlocalhost",
                           "127.0.0.1.example",
                           "127.1.example",
                           "128.0.0.1",
                           "126.255.255.255",
                           "169.253.169.254",
                           "169.255.0.1",
                           "10.0.0.1",
                           "0.0.0.0",
                           "::",
                           "[::2]",
                           "[fd00:ec3::254]",
                           "[fd20:ce::255]",
                           "[::ffff:10.0.0.1]",
                           "google.internal",
                           "x.metadata.google.internal"}) {
    CAPTURE(host);
    CHECK_FALSE(IsLocalHost(host));
  }
}

}  // namespace
}  // namespace evergrad::http
