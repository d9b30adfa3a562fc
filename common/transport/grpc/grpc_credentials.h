// Credentials of channels and listeners: mutual TLS or none. Private to the room.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>
#include <string>

#include "common/transport/tls/tls_files.h"

namespace evergrad::transport {

// The peer that a channel expects.
struct ExpectedPeer {
  // The task of the peer's certificate. "" accepts any task, but the certificate must name one.
  std::string task;
  std::string host_port;  // the host of the peer's certificate; "" accepts any host
};

// Both ends require a certificate that names a task and is signed by the cluster's one private
// authority. A channel checks the certificate in the handshake, and a server reads it when a call
// begins (peer_uri). Without pems there is no TLS.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::optional<TlsPems>& pems,
                                                            ExpectedPeer expected);
std::shared_ptr<grpc::ServerCredentials> ListenCredentials(const std::optional<TlsPems>& pems);

}  // namespace evergrad::transport
