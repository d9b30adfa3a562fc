// The input is one byte that chooses between request and answer, then the bytes of a data frame.
//
// Property: every span of an accepted frame lies inside the frame. A frame that is built from the
// contents of the first one has the same contents.
#include <cstring>

#include "common/base/check.h"
#include "common/wire/data_frame.h"
#include "tests/fuzz/input.h"

namespace evergrad::wire {
namespace {

using Payloads = std::vector<std::span<const std::byte>>;

tensor::AlignedBuffer Aligned(std::span<const std::byte> bytes) {
  tensor::AlignedBuffer buffer(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}
std::span<const std::byte> View(const tensor::AlignedBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}
tensor::AlignedBuffer Flat(const std::vector<tensor::SharedBytes>& pieces) {
  std::size_t size = 0, at = 0;
  for (const tensor::SharedBytes& piece : pieces) size += piece.bytes.size();
  tensor::AlignedBuffer buffer(size);
  for (const tensor::SharedBytes& piece : pieces) {
    if (!piece.bytes.empty())
      std::memcpy(buffer.data() + at, piece.bytes.data(), piece.bytes.size());
    at += piece.bytes.size();
  }
  return buffer;
}
void CheckInside(std::span<const std::byte> frame, std::span<const std::byte> part) {
  if (part.empty()) return;
  EG_CHECK(part.data() >= frame.data() && part.data() + part.size() <= frame.data() + frame.size());
}
std::vector<tensor::SharedBytes> Shared(const Payloads& payloads) {
  std::vector<tensor::SharedBytes> shared;
  for (const auto payload : payloads) shared.push_back({nullptr, payload});
  return shared;
}
bool Equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void CheckRequest(std::span<const std::byte> frame) {
  const absl::StatusOr<Request> request = ParseRequest(frame);
  if (!request.ok()) return;
  EG_CHECK(request->payloads.size() == static_cast<std::size_t>(request->header->pushes_size()));
  EG_CHECK(request->push_ids.size() == request->payloads.size());
  EG_CHECK(request->pull_ids.size() == static_cast<std::size_t>(request->header->pulls_size()));
  Payloads ids;
  for (const auto& lists : {request->push_ids, request->pull_ids})
    for (const auto list : lists) ids.push_back(std::as_bytes(list));
  for (const auto payload : request->payloads) CheckInside(frame, payload);
  for (const auto list : ids) CheckInside(frame, list);

  v1::RequestHeader header = *request->header;
  for (v1::PushSection& push : *header.mutable_pushes()) push.clear_ids();
  for (v1::PullSection& pull : *header.mutable_pulls()) pull.clear_ids();
  const tensor::AlignedBuffer built =
      Flat(BuildRequest(&header, Shared(request->payloads), Shared(ids)));
  const absl::StatusOr<Request> again = ParseRequest(View(built));
  EG_CHECK_MSG(again.ok(), std::string(again.status().message()));
  for (std::size_t i = 0; i < request->payloads.size(); ++i)
    EG_CHECK(Equal(again->payloads[i], request->payloads[i]));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t pushes = request->push_ids.size();
    EG_CHECK(Equal(std::as_bytes(i < pushes ? again->push_ids[i] : again->pull_ids[i - pushes]),
                   ids[i]));
  }
}

void CheckResponse(std::span<const std::byte> frame) {
  const absl::StatusOr<Response> response = ParseResponse(frame);
  if (!response.ok()) return;
  EG_CHECK(response->payloads.size() == static_cast<std::size_t>(response->header->pulls_size()));
  for (const auto payload : response->payloads) CheckInside(frame, payload);
  const tensor::AlignedBuffer built =
      Flat(BuildResponse(*response->header, Shared(response->payloads)));
  const absl::StatusOr<Response> again = ParseResponse(View(built));
  EG_CHECK_MSG(again.ok(), std::string(again.status().message()));
  for (std::size_t i = 0; i < response->payloads.size(); ++i)
    EG_CHECK(Equal(again->payloads[i], response->payloads[i]));
}

}  // namespace
}  // namespace evergrad::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  evergrad::fuzz::Input input(data, size);
  const bool request = input.Choice(2) == 0;
  const auto frame = evergrad::wire::Aligned(evergrad::fuzz::BytesOf(input.Rest()));
  if (request)
    evergrad::wire::CheckRequest(evergrad::wire::View(frame));
  else
    evergrad::wire::CheckResponse(evergrad::wire::View(frame));
  return 0;
}
