// Tests the conditions that the contents of a Hello must meet.
#include "coordinator/service/hello_check.h"

#include <catch2/catch.hpp>

#include <functional>
#include <string>

using namespace evergrad;
using namespace evergrad::coordinator;

namespace {

v1::Hello GoodHello() {
  v1::Hello hello;
  hello.set_role(v1::ROLE_PS_SERVER);
  hello.mutable_endpoint()->set_address("server:0");
  hello.set_highest_term(5);
  hello.add_shards()->mutable_epoch()->set_term(5);
  return hello;
}

}  // namespace

TEST_CASE("a Hello with one mistake is refused, and the mistake is named") {
  CHECK(CheckHello(GoodHello(), 4).ok());
  const struct {
    std::function<void(v1::Hello&)> change;
    const char* message;
  } cases[] = {
      {[](v1::Hello& h) { h.set_role(v1::ROLE_COORDINATOR); }, "unknown role"},
      {[](v1::Hello& h) { h.mutable_endpoint()->clear_address(); }, "has no endpoint"},
      {[](v1::Hello& h) { h.set_host(std::string(1025, 'h')); }, "bytes=1025 max=1024"},
      {[](v1::Hello& h) { h.set_leaving(std::string(1025, 'l')); }, "bytes=1025 max=1024"},
      {[](v1::Hello& h) { h.set_highest_term(4 + (1ull << 32) + 1); }, "impossible term"},
      {[](v1::Hello& h) { h.mutable_shards(0)->mutable_epoch()->set_term(1ull << 62); },
       "has a shard of an impossible term"},
      {[](v1::Hello& h) {
         for (int i = 0; i < (1 << 16); ++i) h.add_shards();
       },
       "too many shards"},
  };
  for (const auto& one : cases) {
    CAPTURE(one.message);
    v1::Hello hello = GoodHello();
    one.change(hello);
    const absl::Status status = CheckHello(hello, 4);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(one.message));
  }
}

TEST_CASE("a coordinator without a term accepts every term that is not forged") {
  v1::Hello hello = GoodHello();
  hello.set_highest_term(1ull << 62);
  CHECK(CheckHello(hello, 0).ok());
  CHECK_FALSE(CheckHello(hello, 1).ok());
  hello.set_highest_term((1ull << 62) + 1);
  CHECK_FALSE(CheckHello(hello, 0).ok());
}
