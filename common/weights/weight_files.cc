#include "common/weights/weight_files.h"

#include "common/base/status.h"
#include "common/weights/weight_stream.h"

namespace evergrad::weights {
namespace {

absl::Status Write(const std::string& path, Format format,
                   const std::vector<NamedTensor>& tensors) {
  std::vector<StreamedTensor> streamed;
  streamed.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors)
    streamed.push_back({tensor.name, Element::kFloat32, tensor.shape});
  EG_ASSIGN_OR_RETURN(const auto stream, WeightStream::Create(path, format, std::move(streamed)));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EG_RETURN_IF_ERROR(stream->Append(i, std::as_bytes(tensors[i].values)));
  return stream->Finish();
}

}  // namespace

absl::Status WriteNpz(const std::string& path, const std::vector<NamedTensor>& tensors) {
  return Write(path, Format::kNpz, tensors);
}
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  return Write(path, Format::kSafetensors, tensors);
}

}  // namespace evergrad::weights
