// Tests that the methods of the service Control are found by the types of their messages.
#include "common/client/control.h"

#include <catch2/catch.hpp>

#include <set>

#include "evergrad/v1/api.pb.h"

using namespace evergrad;

TEST_CASE(
    "each request type determines the path of one method, and each method has one request type") {
  CHECK(client::ControlMethod<v1::DrainTaskRequest>() == "/evergrad.v1.Control/DrainTask");
  CHECK(client::ControlMethod<v1::GetJobRequest, v1::GetJobResponse>() ==
        "/evergrad.v1.Control/GetJob");
  const google::protobuf::ServiceDescriptor& service = client::ControlService();
  std::set<std::string> requests;
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *service.method(i);
    CHECK(requests.insert(method.input_type()->full_name()).second);
    CHECK(client::ControlPath(*method.input_type(), method.output_type()) ==
          "/evergrad.v1.Control/" + method.name());
  }
}

TEST_CASE("an answer is parsed, an error is returned, and malformed bytes are an error") {
  v1::CancelJobResponse response;
  response.set_state("CANCELLED");
  const auto good = client::ParseAnswer<v1::CancelJobResponse>(response.SerializeAsString());
  REQUIRE(good.ok());
  CHECK(good->state() == "CANCELLED");
  CHECK(client::ParseAnswer<v1::CancelJobResponse>(absl::NotFoundError("x")).status() ==
        absl::NotFoundError("x"));
  CHECK(client::ParseAnswer<v1::CancelJobResponse>(std::string("\xff\xff\xff")).status() ==
        absl::InternalError("the coordinator's answer cannot be read: bytes=3"));
}
