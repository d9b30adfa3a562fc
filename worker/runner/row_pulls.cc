#include "worker/runner/row_pulls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace evergrad::worker {

void RowPulls::Begin(std::uint64_t count, std::shared_ptr<const SlotRows> rows,
                     std::vector<tensor::AlignedBuffer> values) {
  const std::size_t parts = rows->parts().size();
  EG_CHECK(pulls_.try_emplace(count, Pull{std::move(rows), std::move(values), parts}).second);
}

absl::Status RowPulls::Accept(std::uint64_t count, const SlotRows::OfShard& part,
                              std::span<const std::byte> values) {
  Pull& pull = pulls_.at(count);
  if (!pull.rows->Scatter(part, values, &pull.values)) {
    return absl::InternalError(
        absl::StrCat("the server sent rows of another size: shard=", part.shard.value(),
                     " want=", part.bytes, " got=", values.size()));
  }
  --pull.missing;
  return absl::OkStatus();
}

bool RowPulls::IsDone(std::uint64_t count) const {
  const auto it = pulls_.find(count);
  return it != pulls_.end() && it->second.missing == 0;
}

std::vector<tensor::AlignedBuffer> RowPulls::Take(std::uint64_t count, bool widen) {
  EG_CHECK(IsDone(count));
  Pull pull = std::move(pulls_.extract(count).mapped());
  if (widen) pull.rows->Widen(&pull.values);
  return std::move(pull.values);
}

}  // namespace evergrad::worker
