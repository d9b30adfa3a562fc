// Credentials of channels and listeners: mutual TLS, or none. Private to the room: includes gRPC.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"

namespace evergrad::transport {

// Both ends want a certificate of the one private authority and ask for no host name: tasks move between addresses, and who
// holds a certificate of this authority is a member of the cluster. InvalidArgument names a bad file (tls_files.h).
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientCredentials(const TlsFiles& files);
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ListenCredentials(const TlsFiles& files);

}  // namespace evergrad::transport
