#include "worker/backend/cuda/device_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/backend/cuda/library.h"

namespace evergrad::worker {
namespace {

constexpr BlockCache::Stream kCompute = static_cast<BlockCache::Stream>(DeviceQueue::kCompute);

BlockCache::Driver DriverOf(const EgCudaApi* api, EgContext* context) {
  return {[=](std::uint64_t bytes) -> absl::StatusOr<BlockCache::Address> {
            EgCudaError error{};
            std::uint64_t address = 0;
            if (api->allocate(context, bytes, &address, &error) != EG_CUDA_OK)
              return StatusOf(error);
            return address;
          },
          [=](BlockCache::Address address) {
            EgCudaError error{};
            return api->release(context, address, &error) == EG_CUDA_OK ? absl::OkStatus()
                                                                        : StatusOf(error);
          },
          [=] {
            EgCudaError error{};
            std::uint64_t available = 0, total = 0;
            return api->memory(context, &available, &total, &error) == EG_CUDA_OK ? available : 0;
          }};
}

}  // namespace

DeviceMemory::DeviceMemory(const EgCudaApi* api, EgContext* context)
    : api_(api), context_(context), cache_(DriverOf(api, context)) {}

DeviceMemory::~DeviceMemory() {
  for (auto& pending : pending_)
    for (const auto& [mark, event] : pending) api_->drop_event(event);
}

absl::StatusOr<tensor::AlignedBuffer> DeviceMemory::Allocate(
    const std::shared_ptr<DeviceMemory>& self, std::size_t bytes, absl::string_view what) {
  EG_CHECK(bytes > 0);
  self->Poll();
  const absl::StatusOr<BlockCache::Address> address = self->cache_.Allocate(bytes, kCompute);
  if (!address.ok()) {
    if (!absl::IsResourceExhausted(address.status()) && !absl::IsInvalidArgument(address.status()))
      return address.status();
    const BlockCache::Stats stats = self->cache_.stats();
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory: what=", what, " bytes=", bytes, " free=", self->use().free,
                     " in_use=", stats.in_use, " cached=", stats.reserved - stats.in_use,
                     " largest_cached=", stats.largest_free));
  }
  self->buffers_[*address].bytes = bytes;
  self->used_ += bytes;
  self->peak_ = std::max(self->peak_, self->used_);
  return tensor::AlignedBuffer(reinterpret_cast<std::byte*>(*address), bytes, self);
}

void DeviceMemory::TakeBack(std::byte* data, std::size_t bytes) {
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(data);
  const auto found = buffers_.find(address);
  EG_CHECK(found != buffers_.end() && found->second.bytes == bytes);
  for (const DeviceQueue queue : {DeviceQueue::kIn, DeviceQueue::kOut}) {
    const std::size_t l = static_cast<std::size_t>(queue);
    if (!found->second.queues[l]) continue;
    // The event follows all copies that the queue has so far.
    EgCudaError error{};
    EgEvent* event = nullptr;
    if (api_->make_event(context_, 0, &event, &error) == EG_CUDA_OK &&
        api_->record(context_, static_cast<std::int32_t>(queue), event, &error) == EG_CUDA_OK) {
      pending_[l].emplace_back(++marks_[l], event);
      cache_.UsedOn(address, static_cast<BlockCache::Stream>(queue), marks_[l]);
    } else if (event != nullptr) {
      api_->drop_event(event);  // the device has failed, which the wait for the step will report
    }
  }
  used_ -= bytes;
  buffers_.erase(found);
  cache_.Free(address);
}

void DeviceMemory::UsedBy(DeviceQueue queue, const void* piece) {
  if (queue == DeviceQueue::kCompute) return;
  auto after = buffers_.upper_bound(reinterpret_cast<std::uint64_t>(piece));
  if (after == buffers_.begin()) return;
  bool& used = std::prev(after)->second.queues[static_cast<std::size_t>(queue)];
  if (std::exchange(used, true)) return;
  EgCudaError error{};
  EgEvent* before = nullptr;
  // The error need not be reported, because the following copy fails in the same way.
  if (api_->make_event(context_, 0, &before, &error) != EG_CUDA_OK) return;
  if (api_->record(context_, static_cast<std::int32_t>(DeviceQueue::kCompute), before, &error) ==
      EG_CUDA_OK)
    static_cast<void>(api_->await(context_, static_cast<std::int32_t>(queue), before, &error));
  api_->drop_event(before);
}

void DeviceMemory::Poll() {
  for (const DeviceQueue queue : {DeviceQueue::kIn, DeviceQueue::kOut}) {
    auto& pending = pending_[static_cast<std::size_t>(queue)];
    while (!pending.empty()) {
      EgCudaError error{};
      std::int32_t passed = 0;
      if (api_->passed(pending.front().second, &passed, &error) != EG_CUDA_OK || passed == 0) break;
      cache_.Reached(static_cast<BlockCache::Stream>(queue), pending.front().first);
      api_->drop_event(pending.front().second);
      pending.pop_front();
    }
  }
}

MemoryUse DeviceMemory::use(bool with_free) const {
  EgCudaError error{};
  std::uint64_t available = 0, total = 0;
  if (with_free && api_->memory(context_, &available, &total, &error) != EG_CUDA_OK) available = 0;
  const BlockCache::Stats stats = cache_.stats();
  return {used_, peak_, stats.reserved, available, stats.fragmentation};
}

PinnedMemory::~PinnedMemory() {
  MutexLock lock(&mu_);
  for (const auto& [bytes, kept] : kept_) api_->release_host(kept.data);
}

std::size_t PinnedMemory::Rounded(std::size_t bytes) {
  const std::size_t unit = std::max<std::size_t>(4096, std::bit_floor(bytes) / 8);
  return (bytes + unit - 1) / unit * unit;
}

std::vector<std::byte*> PinnedMemory::MakeRoom(std::uint64_t more) {
  std::vector<std::byte*> gone;
  const std::uint64_t most = std::max({kKeptMax, out_peak_, out_bytes_});
  while (!kept_.empty() && out_bytes_ + kept_bytes_ + more > most) {
    const auto oldest =
        std::min_element(kept_.begin(), kept_.end(),
                         [](const auto& a, const auto& b) { return a.second.age < b.second.age; });
    gone.push_back(oldest->second.data);
    kept_bytes_ -= oldest->first;
    kept_.erase(oldest);
  }
  return gone;
}

std::vector<std::byte*> PinnedMemory::TakeKept() {
  std::vector<std::byte*> gone;
  for (const auto& [bytes, kept] : kept_) gone.push_back(kept.data);
  kept_.clear();
  kept_bytes_ = 0;
  return gone;
}

void PinnedMemory::Release(const std::vector<std::byte*>& gone) {
  if (gone.empty()) return;
  for (std::byte* const each : gone) api_->release_host(each);
  MutexLock lock(&mu_);
  refused_ = 0;
}

absl::StatusOr<tensor::AlignedBuffer> PinnedMemory::Allocate(std::size_t bytes) {
  EG_CHECK(bytes > 0);
  const std::size_t rounded = Rounded(bytes);
  const auto refuse = [bytes](absl::string_view because) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "out of memory: what=page-locked memory of the host bytes=", bytes, ": ", because));
  };
  std::vector<std::byte*> gone;
  {
    MutexLock lock(&mu_);
    if (const auto kept = kept_.find(rounded); kept != kept_.end()) {
      std::byte* const data = kept->second.data;
      out_bytes_ += rounded;
      out_peak_ = std::max(out_peak_, out_bytes_);
      kept_.erase(kept);
      kept_bytes_ -= rounded;
      out_[data] = rounded;
      return tensor::AlignedBuffer(data, bytes, shared_from_this());
    }
    if (refused_ > 0 && rounded >= refused_bytes_) {
      --refused_;
      return refuse(refused_because_);
    }
    out_bytes_ += rounded;
    gone = MakeRoom(0);
  }
  Release(gone);
  EgCudaError error{};
  void* memory = nullptr;
  std::int32_t kind = api_->allocate_host(rounded, &memory, &error);
  if (kind == EG_CUDA_NO_MEMORY) {
    {
      MutexLock lock(&mu_);
      gone = TakeKept();
    }
    Release(gone);
    if (!gone.empty()) kind = api_->allocate_host(rounded, &memory, &error);
  }
  MutexLock lock(&mu_);
  if (kind != EG_CUDA_OK) {
    out_bytes_ -= rounded;
    if (kind != EG_CUDA_NO_MEMORY) return StatusOf(error);
    refused_bytes_ = refused_ > 0 ? std::min(refused_bytes_, rounded) : rounded;
    refused_ = kRefusedMax;
    refused_because_ = error.text;
    return refuse(error.text);
  }
  out_peak_ = std::max(out_peak_, out_bytes_);
  std::byte* const data = static_cast<std::byte*>(memory);
  out_[data] = rounded;
  return tensor::AlignedBuffer(data, bytes, shared_from_this());
}

void PinnedMemory::TakeBack(std::byte* data, std::size_t bytes) {
  const std::size_t rounded = Rounded(bytes);
  std::vector<std::byte*> gone;
  {
    MutexLock lock(&mu_);
    out_.erase(data);
    out_bytes_ -= rounded;
    gone = MakeRoom(rounded);
    if (out_bytes_ + kept_bytes_ + rounded <= std::max(kKeptMax, out_peak_)) {
      kept_.emplace(rounded, Kept{data, ++age_});
      kept_bytes_ += rounded;
    } else {
      gone.push_back(data);
    }
  }
  Release(gone);
}

bool PinnedMemory::Holds(const std::byte* data, std::size_t bytes) const {
  MutexLock lock(&mu_);
  const auto after = out_.upper_bound(data);
  if (after == out_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return data + bytes <= begin + size;
}

}  // namespace evergrad::worker
