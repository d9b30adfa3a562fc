#include "common/layers/activations.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/layers/named.h"

namespace evergrad::config {

const std::vector<ActivationDescriptor>& Activations() {
  static const std::vector<ActivationDescriptor> table = {{"linear", true, Activation::kLinear},
                                                          {"relu", true, Activation::kRelu},
                                                          {"tanh", true, Activation::kTanh},
                                                          {"sigmoid", true, Activation::kSigmoid},
                                                          {"softmax", true, Activation::kSoftmax},
                                                          {"gelu", false},
                                                          {"elu", false},
                                                          {"selu", false},
                                                          {"swish", false},
                                                          {"softplus", false},
                                                          {"leaky_relu", false},
                                                          {"exponential", false},
                                                          {"hard_sigmoid", false},
                                                          {"softsign", false}};
  return table;
}

absl::Status CheckActivation(absl::string_view name) {
  if (FindBuilt(Activations(), name) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown activation `", name, "`; expected one of ",
                   absl::StrJoin(NamesOf(Activations(), true), ", ")));
}

}  // namespace evergrad::config
