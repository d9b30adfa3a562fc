#include "common/transport/health_protocol.h"

#include <catch2/catch.hpp>
#include <string>

namespace evergrad::transport {
namespace {

// Any client whose code was generated from health.proto sends these bytes.
TEST_CASE("the messages of the health protocol have the bytes of grpc.health.v1") {
  CHECK(HealthRequest("").empty());
  CHECK(HealthRequest("live") == "\x0a\x04live");
  CHECK(HealthRequest(std::string(127, 's')) == "\x0a\x7f" + std::string(127, 's'));
  CHECK(HealthResponse(true) == std::string("\x08\x01", 2));
  CHECK(HealthResponse(false) == std::string("\x08\x02", 2));
}

TEST_CASE("each message is read back, and malformed bytes are refused") {
  for (const std::string& service : {std::string(), std::string("ready"), std::string(127, 's')})
    CHECK(ParseHealthRequest(HealthRequest(service)).value() == service);
  for (const std::string& bytes :
       {std::string("\x0a"), std::string("\x0a\x05read"), std::string("\x0a\x03read"),
        std::string("\x12\x04live"), std::string("\x08\x01"), "\x0a\x80" + std::string(128, 's'),
        std::string("\xff\xff\xff")})
    CHECK(ParseHealthRequest(bytes).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(ParseHealthResponse(HealthResponse(true)).value());
  CHECK_FALSE(ParseHealthResponse(HealthResponse(false)).value());
  CHECK_FALSE(ParseHealthResponse("").value());          // UNKNOWN
  CHECK_FALSE(ParseHealthResponse("\x08\x03").value());  // SERVICE_UNKNOWN
  for (const std::string& bytes :
       {std::string("\x08"), std::string("\x10\x01"), std::string("\x08\x01\x01")})
    CHECK(ParseHealthResponse(bytes).status().code() == absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace evergrad::transport
