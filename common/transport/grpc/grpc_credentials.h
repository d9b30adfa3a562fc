// Credentials of channels and listeners: mutual TLS, or none. Private to the room: includes gRPC.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// Whom a channel is meant for.
struct ExpectedPeer {
  std::string task;       // Of its certificate; "" any, but it must name one.
  std::string host_port;  // The certificate must be for this host; "" whatever it is for.
};

// Both ends want a certificate of the one private authority that names a task. A channel checks it
// in the handshake; a server finds it at the call (peer_uri). No pems: no TLS.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::optional<TlsPems>& pems,
                                                            ExpectedPeer expected);
std::shared_ptr<grpc::ServerCredentials> ListenCredentials(const std::optional<TlsPems>& pems);

}  // namespace evergrad::transport
