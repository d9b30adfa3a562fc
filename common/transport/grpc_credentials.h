// Credentials of channels and listeners: mutual TLS, or none. Private to the room: includes gRPC.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>

#include "common/transport/tls_files.h"

namespace evergrad::transport {

// Both ends want a certificate of the one private authority and ask for no host name: tasks move between addresses, and who
// holds a certificate of this authority is a member of the cluster. No pems: no TLS.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::optional<TlsPems>& pems);
std::shared_ptr<grpc::ServerCredentials> ListenCredentials(const std::optional<TlsPems>& pems);

}  // namespace evergrad::transport
