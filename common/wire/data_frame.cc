#include "common/wire/data_frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checked_math.h"

namespace evergrad::wire {
namespace {

constexpr std::uint64_t kAlignment = tensor::kAlignment;
constexpr std::uint64_t kLengthBytes = 4;
constexpr std::uint64_t kHeaderBytesMax = 8ull << 20;
constexpr int kSectionsMax = 1 << 16;
// Bytes of the fields payload_offset and payload_bytes of a section: a tag byte and at most ten
// bytes each.
constexpr std::uint64_t kSectionFieldsBytesMax = 22;
// A placeholder of five bytes for offsets that are not known yet. Frames stay below 4 GiB
// (frame_bytes_max), so no offset needs more bytes.
constexpr std::uint64_t kWidestOffset = 0xFFFFFFFF;

constexpr std::array<std::byte, kAlignment> kZeros{};

void StoreLength(std::uint32_t value, std::byte* out) {
  for (int i = 0; i < 4; ++i) out[i] = std::byte(value >> (8 * i));
}
std::uint32_t LoadLength(const std::byte* in) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(in[i]) << (8 * i);
  return value;
}

using Place = std::function<void(std::uint64_t offset, std::uint64_t bytes)>;

// Consecutive bytes of a frame, in one or more pieces. `place` is called with their offset and
// their length, and writes both into fields of the header.
struct Part {
  std::span<tensor::SharedBytes> pieces;
  Place place;
  std::uint64_t bytes = 0, offset = 0;
};

// Returns whether `piece` begins in memory where `last` and `gap` bytes of zeros end. The owner of
// both pieces has written the zeros (data_frame.h).
bool GoesOn(const tensor::SharedBytes& last, std::uint64_t gap, const tensor::SharedBytes& piece) {
  return last.owner != nullptr && last.owner == piece.owner &&
         last.bytes.data() + last.bytes.size() + gap == piece.bytes.data();
}

// Copies `copied` into one piece with the header; `parts` follow without a copy. The offsets of the
// parts are in the header, which precedes the parts. Therefore the header's size is first computed
// with the widest offsets, and padding fills the space between the header and the first part.
template <class Header>
std::vector<tensor::SharedBytes> Build(const Header& header, std::vector<Part> copied,
                                       std::vector<Part> parts) {
  std::uint64_t bytes = 0;
  std::size_t piece_count = 0;
  for (std::vector<Part>* list : {&copied, &parts}) {
    for (Part& part : *list) {
      for (const auto& piece : part.pieces) part.bytes += piece.bytes.size();
      part.place(part.bytes == 0 ? 0 : kWidestOffset, part.bytes);
      bytes += RoundUp(part.bytes, kAlignment);
      piece_count += part.pieces.size();
    }
  }
  const std::uint64_t first_part = RoundUp(kLengthBytes + header.ByteSizeLong(), kAlignment);
  EG_CHECK_MSG(first_part + bytes <= kWidestOffset, "a frame must be below 4 GiB");
  // `at` is the offset of the next part, `end` the end of the frame, and `head_bytes` the size of
  // the piece with the header.
  std::uint64_t at = first_part, end = 0, head_bytes = 0;
  for (std::vector<Part>* list : {&copied, &parts}) {
    for (Part& part : *list) {
      if (part.bytes == 0) continue;
      part.offset = at;
      part.place(at, part.bytes);
      end = at + part.bytes;
      at = RoundUp(end, kAlignment);
    }
    if (list == &copied) head_bytes = at;
  }

  const std::uint64_t header_bytes = header.ByteSizeLong();
  if (end == 0) head_bytes = end = kLengthBytes + header_bytes;
  // Padding precedes a part, so a frame never ends in padding.
  head_bytes = std::min(head_bytes, end);
  auto head = std::make_shared<tensor::AlignedBuffer>(head_bytes);
  StoreLength(static_cast<std::uint32_t>(header_bytes), head->data());
  EG_CHECK(header.SerializeToArray(head->data() + kLengthBytes, static_cast<int>(header_bytes)));
  std::uint64_t written = kLengthBytes + header_bytes;
  for (const Part& part : copied) {
    if (part.bytes == 0) continue;
    std::memset(head->data() + written, 0, part.offset - written);
    written = part.offset;
    for (const auto& piece : part.pieces) {
      if (!piece.bytes.empty())
        std::memcpy(head->data() + written, piece.bytes.data(), piece.bytes.size());
      written += piece.bytes.size();
    }
  }
  if (written < head_bytes) std::memset(head->data() + written, 0, head_bytes - written);

  std::vector<tensor::SharedBytes> pieces;
  pieces.reserve(1 + parts.size() + piece_count);
  pieces.push_back({head, {head->data(), head->size()}});
  std::uint64_t gap = 0;
  for (Part& part : parts) {
    if (part.bytes == 0) continue;
    for (tensor::SharedBytes& piece : part.pieces) {
      if (piece.bytes.empty()) continue;
      if (tensor::SharedBytes& last = pieces.back(); GoesOn(last, gap, piece)) {
        last.bytes = {last.bytes.data(), last.bytes.size() + gap + piece.bytes.size()};
      } else {
        if (gap > 0) pieces.push_back({nullptr, {kZeros.data(), gap}});
        pieces.push_back(std::move(piece));
      }
      gap = 0;
    }
    gap = RoundUp(part.bytes, kAlignment) - part.bytes;
  }
  return pieces;
}

template <class Header>
absl::StatusOr<std::uint64_t> ParseHeader(std::span<const std::byte> frame,
                                          Packed<Header>* header) {
  if (frame.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the frame is shorter than its length field: bytes=", frame.size(),
                     " want>=", kLengthBytes));
  }
  const std::uint64_t header_bytes = LoadLength(frame.data());
  if (header_bytes > kHeaderBytesMax || header_bytes > frame.size() - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header_bytes out of range: offset=0 got=", header_bytes,
        " max=", std::min<std::uint64_t>(kHeaderBytesMax, frame.size() - kLengthBytes)));
  }
  google::protobuf::LogSilencer silencer;  // malformed bytes of a peer must not fill the log
  *header = Packed<Header>(header_bytes);
  if (!(*header)->ParseFromArray(frame.data() + kLengthBytes, static_cast<int>(header_bytes))) {
    return absl::InvalidArgumentError(
        absl::StrCat("header is not a protobuf message: offset=4 bytes=", header_bytes));
  }
  return kLengthBytes + header_bytes;
}

// Returns byte ranges of a frame. Each range lies inside the frame. After a successful Check, no
// two ranges overlap.
class Ranges {
 public:
  Ranges(std::span<const std::byte> frame, std::uint64_t header_end, int sections)
      : frame_(frame), header_end_(header_end) {
    taken_.reserve(static_cast<std::size_t>(sections));
  }

  absl::StatusOr<std::span<const std::byte>> Take(const char* field, int index,
                                                  std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) return std::span<const std::byte>();
    const auto end = CheckedAdd(offset, bytes);
    if (offset % kAlignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat("offset not aligned: field=", field, "[",
                                                     index, "] offset=", offset,
                                                     " alignment=", kAlignment));
    }
    if (offset < header_end_) return Overlap({offset, 0, field, index}, header_end_);
    if (!end || *end > frame_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("bytes exceed the frame: field=", field, "[",
                                                     index, "] offset=", offset, " bytes=", bytes,
                                                     " frame=", frame_.size()));
    }
    sorted_ = sorted_ && (taken_.empty() || offset >= taken_.back().end);
    taken_.push_back({offset, *end, field, index});
    return frame_.subspan(offset, bytes);
  }

  absl::Status Check() {
    if (sorted_) return absl::OkStatus();
    std::ranges::stable_sort(taken_, {}, &Taken::offset);
    for (std::size_t i = 1; i < taken_.size(); ++i) {
      if (taken_[i].offset < taken_[i - 1].end) return Overlap(taken_[i], taken_[i - 1].end);
    }
    return absl::OkStatus();
  }

 private:
  struct Taken {
    std::uint64_t offset, end;
    const char* field;
    int index;
  };
  static absl::Status Overlap(const Taken& taken, std::uint64_t want) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes overlap the bytes before them: field=", taken.field, "[", taken.index,
                     "] offset=", taken.offset, " want>=", want));
  }

  const std::span<const std::byte> frame_;
  const std::uint64_t header_end_;
  std::vector<Taken> taken_;
  bool sorted_ = true;
};

absl::Status CheckSections(absl::string_view field, int count) {
  if (count <= kSectionsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("too many sections: field=", field, " got=", count, " max=", kSectionsMax));
}

// `field` names the ids in errors: "pulls.ids".
template <class Section>
absl::StatusOr<std::span<const std::int64_t>> TakeIds(const char* field, int index,
                                                      const Section& section, Ranges* ranges) {
  if (!section.has_ids()) return std::span<const std::int64_t>();
  const auto& ids = section.ids();
  const auto bytes = CheckedMul(ids.count(), sizeof(std::int64_t));
  if (!bytes || *bytes != ids.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("ids length mismatch: field=", field, "[", index,
                                                   "] count=", ids.count(),
                                                   " bytes=", ids.bytes()));
  }
  const auto taken = ranges->Take(field, index, ids.offset(), ids.bytes());
  if (!taken.ok()) return taken.status();
  if (reinterpret_cast<std::uintptr_t>(taken->data()) % alignof(std::int64_t) != 0)
    return absl::InvalidArgumentError(absl::StrCat("frame with ids is not aligned: field=", field,
                                                   "[", index,
                                                   "] alignment=", alignof(std::int64_t)));
  return std::span<const std::int64_t>(reinterpret_cast<const std::int64_t*>(taken->data()),
                                       ids.count());
}

// Returns a function that writes the place of a section's bytes into the section.
template <class Section>
Place PlacePayload(Section* section) {
  return [section](std::uint64_t offset, std::uint64_t bytes) {
    section->set_payload_bytes(bytes);
    section->set_payload_offset(offset);
  };
}
template <class Section>
Place PlaceIds(Section* section) {
  return [section](std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) return;
    section->mutable_ids()->set_count(bytes / sizeof(std::int64_t));
    section->mutable_ids()->set_bytes(bytes);
    section->mutable_ids()->set_offset(offset);
  };
}

}  // namespace

std::vector<tensor::SharedBytes> BuildRequest(v1::RequestHeader* header,
                                              std::vector<tensor::SharedBytes> payloads,
                                              std::vector<tensor::SharedBytes> ids) {
  const auto pushes = static_cast<std::size_t>(header->pushes_size()),
             pulls = static_cast<std::size_t>(header->pulls_size());
  EG_CHECK_MSG(payloads.size() == pushes, "expected one payload per section");
  EG_CHECK_MSG(ids.empty() || ids.size() == pushes + pulls, "expected one list of ids per section");
  std::vector<Part> lists, parts;
  lists.reserve(ids.size());
  parts.reserve(pushes);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lists.push_back({{&ids[i], 1},
                     i < pushes ? PlaceIds(header->mutable_pushes(static_cast<int>(i)))
                                : PlaceIds(header->mutable_pulls(static_cast<int>(i - pushes)))});
  }
  for (std::size_t i = 0; i < pushes; ++i)
    parts.push_back({{&payloads[i], 1}, PlacePayload(header->mutable_pushes(static_cast<int>(i)))});
  return Build(*header, std::move(lists), std::move(parts));
}

std::vector<tensor::SharedBytes> BuildResponse(v1::ResponseHeader header,
                                               std::vector<tensor::SharedBytes> payloads) {
  std::vector<std::span<tensor::SharedBytes>> pieces;
  pieces.reserve(payloads.size());
  for (auto& payload : payloads) pieces.push_back({&payload, 1});
  return BuildResponseOfPieces(&header, pieces, {});
}

std::vector<tensor::SharedBytes> BuildResponseOfPieces(
    v1::ResponseHeader* header, std::span<const std::span<tensor::SharedBytes>> payloads,
    std::span<const std::uint32_t> order) {
  EG_CHECK_MSG(static_cast<std::size_t>(header->pulls_size()) == payloads.size(),
               "expected one payload per section");
  EG_CHECK_MSG(order.empty() || order.size() == payloads.size(),
               "the order must contain every section once");
  std::vector<Part> parts;
  parts.reserve(payloads.size());
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const std::size_t section = order.empty() ? i : order[i];
    parts.push_back(
        {payloads[section], PlacePayload(header->mutable_pulls(static_cast<int>(section)))});
  }
  return Build(*header, {}, std::move(parts));
}

absl::StatusOr<Request> ParseRequest(std::span<const std::byte> frame) {
  Request request;
  const auto header_end = ParseHeader(frame, &request.header);
  if (!header_end.ok()) return header_end.status();
  const int pushes = request.header->pushes_size(), pulls = request.header->pulls_size();
  if (auto s = CheckSections("pushes", pushes); !s.ok()) return s;
  if (auto s = CheckSections("pulls", pulls); !s.ok()) return s;
  Ranges ranges(frame, *header_end, 2 * pushes + pulls);
  request.payloads.reserve(static_cast<std::size_t>(pushes));
  request.push_ids.reserve(static_cast<std::size_t>(pushes));
  request.pull_ids.reserve(static_cast<std::size_t>(pulls));
  for (int i = 0; i < pushes; ++i) {
    const auto& push = request.header->pushes(i);
    auto payload = ranges.Take("pushes", i, push.payload_offset(), push.payload_bytes());
    if (!payload.ok()) return payload.status();
    request.payloads.push_back(*payload);
    const auto ids = TakeIds("pushes.ids", i, push, &ranges);
    if (!ids.ok()) return ids.status();
    request.push_ids.push_back(*ids);
  }
  for (int i = 0; i < pulls; ++i) {
    const auto ids = TakeIds("pulls.ids", i, request.header->pulls(i), &ranges);
    if (!ids.ok()) return ids.status();
    request.pull_ids.push_back(*ids);
  }
  if (auto s = ranges.Check(); !s.ok()) return s;
  return request;
}

absl::StatusOr<Response> ParseResponse(std::span<const std::byte> frame) {
  Response response;
  const auto header_end = ParseHeader(frame, &response.header);
  if (!header_end.ok()) return header_end.status();
  if (auto s = CheckSections("pushes", response.header->pushes_size()); !s.ok()) return s;
  if (auto s = CheckSections("pulls", response.header->pulls_size()); !s.ok()) return s;
  Ranges ranges(frame, *header_end, response.header->pulls_size());
  response.payloads.reserve(static_cast<std::size_t>(response.header->pulls_size()));
  for (int i = 0; i < response.header->pulls_size(); ++i) {
    const auto& pull = response.header->pulls(i);
    auto payload = ranges.Take("pulls", i, pull.payload_offset(), pull.payload_bytes());
    if (!payload.ok()) return payload.status();
    response.payloads.push_back(*payload);
  }
  if (auto s = ranges.Check(); !s.ok()) return s;
  return response;
}

std::uint64_t RequestBytesBound(const v1::RequestHeader& header, std::uint64_t payload_bytes) {
  const auto pushes = static_cast<std::uint64_t>(header.pushes_size());
  // A section that grows by 22 bytes may need a longer length prefix; two more bytes cover it.
  return kLengthBytes + header.ByteSizeLong() + pushes * (kSectionFieldsBytesMax + 2) +
         (pushes + 1) * kAlignment + payload_bytes;
}

}  // namespace evergrad::wire
