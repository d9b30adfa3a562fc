#include "coordinator/coordinator.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/fs/file.h"
#include "common/object_store/file_systems.h"

namespace evergrad::coordinator {

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(
    Options options, const transport::ServerOptions& server, Parts parts) {
  std::error_code error;
  const std::filesystem::path runs = std::filesystem::absolute(options.control.runs_folder, error);
  if (error)
    return UserError(absl::InvalidArgumentError(
        absl::StrCat("cannot create the runs folder: path=", options.control.runs_folder,
                     " reason=", error.message())));
  options.control.runs_folder = runs.lexically_normal().string();
  while (options.control.runs_folder.size() > 1 && options.control.runs_folder.back() == '/')
    options.control.runs_folder.pop_back();
  EG_RETURN_IF_ERROR(fs::MakeDirectories(options.control.runs_folder));
  options.control.pid = ::getpid();
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) == 0) options.control.host = host;

  std::unique_ptr<Coordinator> coordinator(new Coordinator());
  coordinator->files_ =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{.name = "files"});
  coordinator->checkpoints_ = std::make_unique<runtime::ThreadExecutor>(
      runtime::ThreadExecutor::Options{.name = "checkpoints"});
  coordinator->control_ = std::make_unique<runtime::ThreadExecutor>(
      runtime::ThreadExecutor::Options{.name = "control"});
  ControlPlane::Parts plane_parts;
  plane_parts.control = coordinator->control_.get();
  plane_parts.files = coordinator->files_.get();
  plane_parts.checkpoints = coordinator->checkpoints_.get();
  coordinator->OpenFiles(options, parts, &plane_parts);
  plane_parts.clock = parts.clock;
  plane_parts.logger = parts.logger;
  plane_parts.registry = parts.registry;
  plane_parts.failpoints = parts.failpoints;
  plane_parts.store = parts.store;
  plane_parts.on_end = parts.on_end;
  if (parts.health != nullptr) {
    // The executor of files is not watched, because a restart does not repair a file system.
    parts.health->liveness().Watch("control", coordinator->control_.get());
    plane_parts.readiness = &parts.health->readiness();
  }
  coordinator->plane_ = std::make_unique<ControlPlane>(options.control, plane_parts);
  EG_RETURN_IF_ERROR(coordinator->plane_->Recover());
  EG_ASSIGN_OR_RETURN(coordinator->server_,
                      parts.transport->Listen(server, coordinator->plane_->handlers()));
  return coordinator;
}

void Coordinator::OpenFiles(const Options& options, const Parts& parts,
                            ControlPlane::Parts* plane_parts) {
  if (!options.control.checkpoint_roots.everything()) {
    std::vector<std::string> folders = options.control.checkpoint_roots.folders();
    folders.push_back(options.control.runs_folder);
    written_ = fs::Roots::Only(
        folders, "checkpoints must be in a folder of the coordinator's --checkpoint-root");
  }
  file_system_ =
      object_store::MakeFileSystem({.local = {.failpoints = parts.failpoints, .roots = &written_},
                                    .store = options.stores,
                                    .variables = parts.variables,
                                    .clock = parts.clock,
                                    .interruption = &interruption_,
                                    .registry = parts.registry});
  plane_parts->file_system = file_system_.get();
  if (options.control.runs_copy.empty()) return;
  // The copies may be outside of the folders of checkpoints, because no user names their place.
  copies_ =
      std::make_unique<runtime::ThreadExecutor>(runtime::ThreadExecutor::Options{.name = "copies"});
  copy_files_ = object_store::MakeFileSystem({.local = {.failpoints = parts.failpoints},
                                              .store = options.stores,
                                              .variables = parts.variables,
                                              .clock = parts.clock,
                                              .interruption = &interruption_,
                                              .registry = parts.registry});
  plane_parts->copies = copies_.get();
  plane_parts->copy_files = copy_files_.get();
}

void Coordinator::Start(const std::string& advertised_address, const std::string& metrics_address) {
  control_->Post([plane = plane_.get(), advertised_address, metrics_address] {
    plane->Start(advertised_address, metrics_address);
  });
}

void Coordinator::Stop() {
  if (stopped_) return;
  stopped_ = true;
  if (control_ && plane_) control_->Post([plane = plane_.get()] { plane->Stop(); });
  if (server_) server_->Shutdown();  // After the shutdown nothing more is posted.
  if (control_) control_->Shutdown();
  interruption_.Interrupt();
  if (copies_) copies_->Shutdown();
  if (checkpoints_) checkpoints_->Shutdown();
  if (files_) files_->Shutdown();
}

Coordinator::~Coordinator() { Stop(); }

}  // namespace evergrad::coordinator
