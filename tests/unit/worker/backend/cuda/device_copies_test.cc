#include "worker/backend/cuda/device_copies.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/unit/worker/backend/cuda/call_log_fixture.h"

namespace evergrad::worker {
namespace {

struct Copies {
  CallLog log;
  FirstError error;
  DeviceMemory memory{CallLog::api(), CallLog::context()};
  std::shared_ptr<PinnedMemory> pinned = std::make_shared<PinnedMemory>(CallLog::api());
  StepTimes times{CallLog::api(), CallLog::context()};
  std::vector<std::byte> host, device;  // the device's bytes are never accessed
  explicit Copies(std::size_t bytes) : host(bytes), device(bytes) {}
  DeviceCopies Make(std::uint64_t staging_bytes) {
    return {CallLog::api(), CallLog::context(), staging_bytes, &memory, pinned.get(), &times,
            &error};
  }
};

TEST_CASE("an upload passes through the ring in pieces, and waits only if the ring is full") {
  Copies c(1000);
  DeviceCopies copies = c.Make(512);
  c.log.all_passed = false;
  copies.Upload(DeviceQueue::kIn, c.host, c.device);
  CHECK(c.log.Take() ==
        "allocate_host, make_event e1, copy 1 in 512, record 1 e1, wait e1, drop_event e1, "
        "make_event e2, copy 1 in 488, record 1 e2");
  // The space in the ring of a copy that is done must be reused without a wait.
  c.log.all_passed = true;
  copies.Upload(DeviceQueue::kIn, std::span(c.host).first(10), std::span(c.device).first(10));
  CHECK(c.log.Take() == "drop_event e2, make_event e3, copy 1 in 10, record 1 e3");
  CHECK(copies.in_bytes() == 1010);
  CHECK(copies.staged_bytes() == 1010);
}

TEST_CASE("page-locked memory, or all memory if there is none, is copied by the driver itself") {
  Copies c(1000);
  DeviceCopies copies = c.Make(512);
  const tensor::AlignedBuffer locked = c.pinned->Allocate(1000).value();
  c.log.Take();
  copies.Upload(DeviceQueue::kIn, {locked.data(), 1000}, c.device);
  CHECK(c.log.Take() == "copy 1 in 1000");
  c.log.fail["allocate_host"] = EG_CUDA_NO_MEMORY;
  copies.Upload(DeviceQueue::kIn, c.host, c.device);
  CHECK(c.log.Take() == "allocate_host fails, copy 1 in 1000");
  copies.Download(DeviceQueue::kOut, c.device, c.host);
  CHECK(c.log.Take() == "copy 2 out 1000");
  CHECK(copies.in_bytes() == 2000);
  CHECK(copies.staged_bytes() == 0);
}

TEST_CASE("a refused copy is an error, ends the upload, and leaves its place in the ring free") {
  Copies c(1000);
  DeviceCopies copies = c.Make(512);
  c.log.fail["copy"] = EG_CUDA_NO_MEMORY;
  copies.Upload(DeviceQueue::kIn, c.host, c.device);
  CHECK(c.log.Take() == "allocate_host, make_event e1, copy 1 in 512 fails, drop_event e1");
  copies.Upload(DeviceQueue::kIn, c.host, c.device);
  copies.Download(DeviceQueue::kOut, c.device, c.host);
  CHECK(c.log.Take().empty());
  CHECK(c.error.Take().code() == absl::StatusCode::kResourceExhausted);
  c.log.all_passed = false;
  copies.Upload(DeviceQueue::kIn, std::span(c.host).first(10), std::span(c.device).first(10));
  CHECK(c.log.Take() == "make_event e2, copy 1 in 10, record 1 e2");
}

TEST_CASE("results of a step are copied in one piece, and the host waits even after an error") {
  Copies c(24);
  ResultCopy results(CallLog::api(), CallLog::context(), c.pinned.get(), &c.error);
  results.Fetch(c.device, c.host);
  CHECK(c.log.Take() == "allocate_host, make_event e1, copy 0 out 24, record 0 e1, wait e1");
  results.Fetch(c.device, c.host);
  CHECK(c.log.Take() == "copy 0 out 24, record 0 e1, wait e1");
  results.Fetch({}, {});
  CHECK(c.log.Take() == "record 0 e1, wait e1");
  c.error.Refuse("dense", absl::InternalError("no such shape"));
  c.log.fail["wait"] = EG_CUDA_FAILED;
  results.Fetch(c.device, c.host);
  CHECK(c.log.Take() == "record 0 e1, wait e1 fails");
  CHECK(c.error.Take().code() == absl::StatusCode::kInternal);  // the first error is kept
}

}  // namespace
}  // namespace evergrad::worker
