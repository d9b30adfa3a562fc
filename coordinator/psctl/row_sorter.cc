#include "coordinator/psctl/row_sorter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file_system.h"

namespace evergrad::psctl {
namespace {

constexpr std::uint64_t kPieceBytes = 1 << 20;  // size of one piece that `take` gets

}  // namespace

// Iterates over the rows of one run, or over the rows in memory.
class RowSorter::Cursor {
 public:
  // Reads rows in memory; they outlive the cursor.
  explicit Cursor(const Table& table)
      : dimension_(table.dimension), left_(0), ids_(table.ids), values_(table.values) {}
  Cursor(const RowSorter* sorter, const Table& table, SortedRun run, std::uint64_t buffer_bytes)
      : sorter_(sorter),
        dimension_(table.dimension),
        ids_at_(run.offset),
        values_at_(run.offset + run.rows * sizeof(std::int64_t)),
        left_(run.rows),
        rows_max_(std::max<std::uint64_t>(1, buffer_bytes / table.row_bytes())) {}

  // Returns false after the last row.
  absl::StatusOr<bool> Next() {
    if (++at_ < ids_.size()) return true;
    if (left_ == 0) return false;
    const std::uint64_t n = std::min(left_, rows_max_);
    own_ids_.resize(n);
    own_values_.resize(n * dimension_);
    EG_RETURN_IF_ERROR(sorter_->Read(ids_at_, std::as_writable_bytes(std::span(own_ids_))));
    EG_RETURN_IF_ERROR(sorter_->Read(values_at_, std::as_writable_bytes(std::span(own_values_))));
    ids_at_ += n * sizeof(std::int64_t);
    values_at_ += n * dimension_ * sizeof(float);
    left_ -= n;
    ids_ = own_ids_;
    values_ = own_values_;
    at_ = 0;
    return true;
  }
  std::int64_t id() const { return ids_[at_]; }
  std::span<const float> values() const { return values_.subspan(at_ * dimension_, dimension_); }

 private:
  const RowSorter* sorter_ = nullptr;
  std::uint32_t dimension_;
  std::uint64_t ids_at_ = 0, values_at_ = 0, left_, rows_max_ = 0;
  std::size_t at_ = ~std::size_t{0};
  std::span<const std::int64_t> ids_;
  std::span<const float> values_;
  std::vector<std::int64_t> own_ids_;
  std::vector<float> own_values_;
};

RowSorter::RowSorter(Options options, const std::vector<std::uint32_t>& dimensions)
    : options_(std::move(options)), tables_(dimensions.size()) {
  for (std::size_t t = 0; t < tables_.size(); ++t) tables_[t].dimension = dimensions[t];
}

RowSorter::~RowSorter() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status RowSorter::Add(std::size_t table, std::span<const std::byte> ids,
                            std::span<const std::byte> values) {
  Table& to = tables_.at(table);
  const std::size_t n = ids.size() / sizeof(std::int64_t);
  if (bytes_ > 0 && bytes_ + n * to.row_bytes() > options_.memory_bytes)
    EG_RETURN_IF_ERROR(Spill(
        &*std::max_element(tables_.begin(), tables_.end(),
                           [](const Table& a, const Table& b) { return a.bytes() < b.bytes(); })));
  const std::size_t first = to.ids.size();
  to.ids.resize(first + n);
  to.values.resize((first + n) * to.dimension);
  if (n == 0) return absl::OkStatus();
  std::memcpy(to.ids.data() + first, ids.data(), ids.size());
  if (!values.empty())
    std::memcpy(to.values.data() + first * to.dimension, values.data(), values.size());
  bytes_ += n * to.row_bytes();
  return absl::OkStatus();
}

void RowSorter::Sort(Table* table) {
  if (std::is_sorted(table->ids.begin(), table->ids.end())) return;
  // The rows are permuted in place along the cycles, because a copy would double the memory.
  std::vector<std::uint32_t> from(table->ids.size());
  std::iota(from.begin(), from.end(), 0u);
  std::sort(from.begin(), from.end(),
            [&](std::uint32_t a, std::uint32_t b) { return table->ids[a] < table->ids[b]; });
  const std::size_t d = table->dimension;
  std::vector<float> row(d);
  for (std::uint32_t begin = 0; begin < from.size(); ++begin) {
    if (from[begin] == begin) continue;
    const std::int64_t id = table->ids[begin];
    std::copy_n(table->values.data() + begin * d, d, row.data());
    std::uint32_t to = begin;
    while (from[to] != begin) {
      const std::uint32_t next = from[to];
      table->ids[to] = table->ids[next];
      std::copy_n(table->values.data() + next * d, d, table->values.data() + to * d);
      from[to] = to;
      to = next;
    }
    table->ids[to] = id;
    std::copy_n(row.data(), d, table->values.data() + to * d);
    from[to] = to;
  }
}

absl::Status RowSorter::Spill(Table* table) {
  if (fd_ < 0) {
    std::string name = options_.folder + "/.evergrad-rows-XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) return fs::FileError(errno, "cannot create a temporary file", options_.folder);
    ::unlink(name.c_str());
  }
  Sort(table);
  const SortedRun run{file_bytes_, table->ids.size()};
  EG_RETURN_IF_ERROR(Write(std::as_bytes(std::span(table->ids))));
  EG_RETURN_IF_ERROR(Write(std::as_bytes(std::span(table->values))));
  table->runs.push_back(run);
  bytes_ -= table->bytes();
  // The vectors are swapped instead of cleared, to release the memory to other tables.
  std::vector<std::int64_t>().swap(table->ids);
  std::vector<float>().swap(table->values);
  return absl::OkStatus();
}

absl::Status RowSorter::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(file_bytes_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return fs::FileError(n < 0 ? errno : EIO, "cannot write a temporary file", options_.folder);
    file_bytes_ += static_cast<std::uint64_t>(n);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status RowSorter::Read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return fs::FileError(n < 0 ? errno : EIO, "cannot read a temporary file", options_.folder);
    offset += static_cast<std::uint64_t>(n);
    to = to.subspan(static_cast<std::size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status RowSorter::Drain(std::size_t table, const Take& take) {
  Table& of = tables_.at(table);
  // The rows of other tables stay in memory. The buffers of this table get the remaining memory.
  const std::uint64_t others = bytes_ - of.bytes();
  const std::uint64_t capacity =
      options_.memory_bytes > others ? options_.memory_bytes - others : 0;
  if (!of.runs.empty() && !of.ids.empty()) EG_RETURN_IF_ERROR(Spill(&of));
  Sort(&of);
  std::vector<std::unique_ptr<Cursor>> cursors;
  if (!of.ids.empty()) cursors.push_back(std::make_unique<Cursor>(of));
  for (const SortedRun& run : of.runs)
    cursors.push_back(std::make_unique<Cursor>(
        this, of, run, std::min<std::uint64_t>(capacity / of.runs.size(), 4 * kPieceBytes)));
  using Head = std::pair<std::int64_t, Cursor*>;
  std::priority_queue<Head, std::vector<Head>, std::greater<Head>> heads;
  const auto advance = [&](Cursor* cursor) -> absl::Status {
    EG_ASSIGN_OR_RETURN(const bool more, cursor->Next());
    if (more) heads.emplace(cursor->id(), cursor);
    return absl::OkStatus();
  };
  for (const auto& cursor : cursors) EG_RETURN_IF_ERROR(advance(cursor.get()));
  const std::size_t piece_rows = std::max<std::size_t>(1, kPieceBytes / of.row_bytes());
  std::vector<std::int64_t> ids;
  std::vector<float> values;
  std::int64_t last = 0;
  bool any = false;
  while (!heads.empty()) {
    const auto [id, cursor] = heads.top();
    heads.pop();
    if (any && id == last) return absl::DataLossError(absl::StrCat("duplicate row: id=", id));
    any = true;
    last = id;
    ids.push_back(id);
    const auto row = cursor->values();
    values.insert(values.end(), row.begin(), row.end());
    if (ids.size() == piece_rows) {
      EG_RETURN_IF_ERROR(take(ids, values));
      ids.clear();
      values.clear();
    }
    EG_RETURN_IF_ERROR(advance(cursor));
  }
  if (!ids.empty()) EG_RETURN_IF_ERROR(take(ids, values));
  bytes_ -= of.bytes();
  of = Table{of.dimension, {}, {}, {}};
  return absl::OkStatus();
}

}  // namespace evergrad::psctl
