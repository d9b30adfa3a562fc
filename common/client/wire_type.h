// Conversions of wire types between messages, job files and tensor::WireType.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/config/job_spec.h"
#include "common/tensor/wire_type.h"
#include "evergrad/v1/session.pb.h"
#include "evergrad/v1/types.pb.h"

namespace evergrad::client {

static_assert(static_cast<int>(tensor::WireType::kFloat32) == v1::DTYPE_FLOAT32 &&
              static_cast<int>(tensor::WireType::kFloat16) == v1::DTYPE_FLOAT16 &&
              static_cast<int>(tensor::WireType::kBFloat16) == v1::DTYPE_BFLOAT16);
inline v1::DType ToProto(tensor::WireType type) { return static_cast<v1::DType>(type); }

// Returns the wire type of a variable's or table's values and gradients (v1::VariableSpec,
// v1::TableSpec). Returns InvalidArgument for a type that is not allowed on the wire.
template <class Spec>
absl::StatusOr<tensor::WireType> WireTypeOf(const Spec& spec) {
  const v1::DType type =
      spec.wire_dtype() == v1::DTYPE_UNSPECIFIED ? spec.dtype() : spec.wire_dtype();
  if (type != v1::DTYPE_FLOAT32 && type != v1::DTYPE_FLOAT16 && type != v1::DTYPE_BFLOAT16) {
    return absl::InvalidArgumentError(
        absl::StrCat("unsupported wire type, expected DTYPE_FLOAT32, DTYPE_FLOAT16 or "
                     "DTYPE_BFLOAT16: variable=",
                     spec.name(), " got=", static_cast<int>(type)));
  }
  return static_cast<tensor::WireType>(type);
}

// Writes `spec.training.wire_dtype` of the variable or table `name` into its spec. Leaves the field
// unset if the type equals `dtype` (float32).
template <class Spec>
void FillWireType(const config::JobSpec& job, absl::string_view name, Spec* to) {
  const std::string type = config::WireTypeFor(job, name);
  if (type == "bf16") to->set_wire_dtype(v1::DTYPE_BFLOAT16);
  if (type == "fp16") to->set_wire_dtype(v1::DTYPE_FLOAT16);
}
// Returns UserError if an entry of `wire_dtype` matches none of the variables and tables in
// `described`, which is the result of the describe closure.
absl::Status CheckWireRules(const config::JobSpec& job, const v1::DescribeResult& described);

}  // namespace evergrad::client
