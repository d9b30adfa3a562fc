// A parameter server without its transport. It has control, shards, and the threads that write and
// read shard files; the files are in memory. The caller's thread runs the executors.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/client/protocol.h"
#include "common/fs/file_system.h"
#include "ps_server/service/control.h"
#include "tests/fuzz/quiet.h"
#include "tests/support/manual_executor.h"
#include "tests/support/memory_files/memory_file_system.h"
#include "tests/unit/ps_server/service/service_fixture.h"

namespace evergrad::fuzz {

// Like runtime::ManualExecutor, but the snapshot threads may post to it from outside. A timer is
// due at once: it runs in the next Run.
class QueueExecutor final : public runtime::Executor {
 public:
  bool Post(runtime::Task task) override {
    MutexLock lock(&mu_);
    tasks_.push_back(std::move(task));
    return true;
  }
  bool PostAfter(std::chrono::nanoseconds, runtime::Task task) override {
    return Post(std::move(task));
  }
  // Runs the tasks that were posted before this call, and returns their number.
  std::size_t Run() {
    std::deque<runtime::Task> tasks;
    {
      MutexLock lock(&mu_);
      tasks.swap(tasks_);
    }
    for (runtime::Task& task : tasks) task();
    return tasks.size();
  }

 private:
  Mutex mu_;
  std::deque<runtime::Task> tasks_ ABSL_GUARDED_BY(mu_);
};

class ServerStage {
 public:
  ServerStage() {
    ps_server::ShardHost::Options host;
    host.executors = {&lanes_[0], &lanes_[1]};
    host.registry = &registry_;
    host.failpoints = &failpoints_;
    host.frame_bytes_max = 1u << 20;
    host.memory_bytes_max = 8u << 20;
    host.clock = &clock_;
    images_ = std::make_unique<ps_server::Images>(
        ps_server::Images::Options{.registry = &registry_, .bytes_max = 1u << 20});
    host.images = images_.get();
    host_ = std::make_unique<ps_server::ShardHost>(std::move(host));
    ps_server::SnapshotWriter::Options writer;
    writer.files = &files_;
    writer.registry = &registry_;
    writer.clock = &clock_;
    writer.pool = host_->pool();
    writer_ = std::make_unique<ps_server::SnapshotWriter>(std::move(writer));
    ps_server::Restorer::Options restorer;
    restorer.files = &files_;
    restorer.registry = &registry_;
    restorer.clock = &clock_;
    restorer.pool = host_->pool();
    restorer_ = std::make_unique<ps_server::Restorer>(std::move(restorer));
    ps_server::Control::Options control;
    control.executor = &control_executor_;
    control.host = host_.get();
    control.logger = &logger_;
    control.clock = &clock_;
    control.writer = writer_.get();
    control.restorer = restorer_.get();
    control.images = images_.get();
    control.send = [this](v1::TaskMessage message) {
      EG_CHECK(message.message_case() != v1::TaskMessage::MESSAGE_NOT_SET);
      ++sent_;
      return true;
    };
    control_ = std::make_unique<ps_server::Control>(std::move(control));
    v1::Registered registered;
    registered.set_term(1);
    control_->OnRegistered(registered);
  }
  ~ServerStage() {
    control_->OnLost();
    // The order is that of Server::Stop. The last answers of the snapshot threads run before the
    // objects that they use are destroyed.
    writer_.reset();
    restorer_.reset();
    images_.reset();
    Run();
    control_.reset();
  }

  ps_server::Control& control() { return *control_; }
  ps_server::ShardHost& host() { return *host_; }
  std::uint64_t sent() const { return sent_; }

  void Run() {
    while (control_executor_.Run() + lanes_[0].Run() + lanes_[1].Run() > 0) {
    }
  }
  // Waits until the restorer has finished the orders that were submitted before this call. The
  // snapshot writer may still be busy.
  void Settle() {
    Run();
    auto done = std::make_shared<runtime::WaitableEvent>();
    ps_server::Restorer::Order order;
    order.what.source.uri = "file:///none";
    order.what.settings = ps_server::CountingShard(1u << 30);
    order.done = [done](const auto&) { done->Set(); };
    if (restorer_->Submit(std::move(order)).ok()) done->Wait();
    Run();
  }
  // Checks that the request is answered exactly once and that its reservation is released.
  std::shared_ptr<ps_server::Reply> Send(const tensor::AlignedBuffer& frame) {
    auto reply = std::make_shared<ps_server::Reply>();
    int answers = 0, released = 0;
    tensor::AlignedBuffer copy(frame.size());
    if (frame.size() > 0) std::memcpy(copy.data(), frame.data(), frame.size());
    host_->Handle({std::move(copy), std::make_unique<ps_server::CountedReservation>(&released)},
                  std::make_unique<ps_server::RecordingResponder>(reply, &answers));
    Run();
    EG_CHECK(reply->answered != (reply->failed.has_value()));
    EG_CHECK(answers <= 1 && released == 1);
    return reply;
  }
  // Returns the serialized ShardStates, ordered by job and shard.
  std::vector<std::string> States() {
    std::vector<std::string> states;
    host_->Report(JobUid(0), true, [&](const std::vector<v1::ShardState>& reported) {
      for (const v1::ShardState& state : reported) states.push_back(state.SerializeAsString());
    });
    Run();
    return states;
  }

 private:
  RealClock clock_;
  metrics::Registry registry_;
  fault::Failpoints failpoints_;
  fs::MemoryFileSystem files_{{.bytes_max = 16u << 20}};
  log::Logger logger_{[] {
    log::Options options;
    options.level = log::Level::kError;
    options.file = "/dev/null";
    return options;
  }()};
  QueueExecutor control_executor_, lanes_[2];
  std::unique_ptr<ps_server::Images> images_;
  std::unique_ptr<ps_server::ShardHost> host_;
  std::unique_ptr<ps_server::SnapshotWriter> writer_;
  std::unique_ptr<ps_server::Restorer> restorer_;
  std::unique_ptr<ps_server::Control> control_;
  std::uint64_t sent_ = 0;
};

}  // namespace evergrad::fuzz
