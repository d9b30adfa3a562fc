// Lists the methods of the service Control. They are read from the descriptor of api.proto, so a
// new method is fuzzed without a change here.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "evergrad/v1/api.pb.h"

namespace evergrad::fuzz {

inline const google::protobuf::ServiceDescriptor& ControlService() {
  const auto* service = v1::ListJobsRequest::descriptor()->file()->FindServiceByName("Control");
  EG_CHECK(service != nullptr);
  return *service;
}
inline std::size_t ControlMethods() {
  return static_cast<std::size_t>(ControlService().method_count());
}
inline std::string MethodPath(std::size_t index) {
  return absl::StrCat("/", ControlService().full_name(), "/",
                      ControlService().method(static_cast<int>(index))->name());
}
// Returns the number of the method whose request has this type.
template <class Request>
std::size_t MethodOf() {
  for (std::size_t i = 0; i < ControlMethods(); ++i) {
    if (ControlService().method(static_cast<int>(i))->input_type() == Request::descriptor())
      return i;
  }
  EG_CHECK_MSG(false, Request::descriptor()->full_name());
}

}  // namespace evergrad::fuzz
