// Checks of a shard file's header and of its list of sections, once both are decoded. Pure; private
// to this room.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "evergrad/v1/snapshot.pb.h"

namespace evergrad::snapshot {

// Returns the error for damage at this offset of the file.
using DamageAt = std::function<absl::Status(std::uint64_t offset, absl::string_view what,
                                            absl::string_view want, absl::string_view got)>;

absl::Status CheckHeader(const v1::ShardFileHeader& header, const DamageAt& damage);
// Checks that the header describes the sections of `footer`, and that their blocks fill the file
// from `blocks_begin` to `footer_offset`. `header` must have passed CheckHeader.
absl::Status CheckSections(const v1::ShardFileHeader& header, const v1::ShardFileFooter& footer,
                           std::uint64_t blocks_begin, std::uint64_t footer_offset,
                           const DamageAt& damage);

}  // namespace evergrad::snapshot
