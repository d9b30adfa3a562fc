// Credentials of channels and listeners: mutual TLS or none. Private to the room.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "common/transport/tls/tls_files.h"
#include "common/transport/tls/tls_watch.h"

namespace evergrad::transport {

// The peer that a channel expects.
struct ExpectedPeer {
  // The task of the peer's certificate. "" accepts any task, but the certificate must name one.
  std::string task;
  std::string host_port;  // the host of the peer's certificate; "" accepts any host
};

// Both ends require a certificate that names a task and is signed by the cluster's private
// authority, or by one of several while it is being replaced. A channel checks the certificate in
// the handshake, and a server reads it when a call begins (peer_uri). Null means no TLS.
//
// The credentials of a channel never change. After a reload, a channel makes its next connection
// with new ones.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const TlsPems* pems,
                                                            ExpectedPeer expected);
// A listener uses the contents that the watch has in use when a connection arrives. The credentials
// must outlive the server.
std::shared_ptr<grpc::ServerCredentials> ListenCredentials(std::shared_ptr<const TlsWatch> watch);

}  // namespace evergrad::transport
