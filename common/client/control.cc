#include "common/client/control.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::client {

const google::protobuf::ServiceDescriptor& ControlService() {
  static const google::protobuf::ServiceDescriptor* const service =
      v1::GetJobRequest::descriptor()->file()->FindServiceByName("Control");
  EG_CHECK(service != nullptr);
  return *service;
}

std::string ControlPath(const google::protobuf::Descriptor& request,
                        const google::protobuf::Descriptor* response) {
  const google::protobuf::ServiceDescriptor& service = ControlService();
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *service.method(i);
    if (method.input_type() != &request) continue;
    EG_CHECK_MSG(response == nullptr || method.output_type() == response, method.full_name());
    return absl::StrCat("/", service.full_name(), "/", method.name());
  }
  EG_CHECK_MSG(false, absl::StrCat("no method of Control has this request: ", request.full_name()));
  return "";
}

absl::Status UnreadableAnswer(std::size_t bytes) {
  return absl::InternalError(
      absl::StrCat("the coordinator's answer cannot be read: bytes=", bytes));
}

}  // namespace evergrad::client
