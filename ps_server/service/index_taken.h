// Decides the reaction of a server if the coordinator reports that another server has the same
// index. The server waits until the index is free (P7), and logs the holder and the remedy at once.
// The server ends instead if the index was a default and the holder runs on another host. Pure.
#pragma once

#include <string>

#include "evergrad/v1/session.pb.h"

namespace evergrad::ps_server {

class IndexTaken {
 public:
  // `by_default` is true if neither --index nor the host's name gave the index.
  IndexTaken(std::string index, bool by_default, std::string host)
      : index_(std::move(index)), by_default_(by_default), host_(std::move(host)) {}
  struct Verdict {
    std::string say;  // message for the log; "" if there is nothing new
    // Whether the server must end: the index was a default, and a running server on another host
    // has the index, so that the index will not become free.
    bool ends = false;
  };
  Verdict Judge(const v1::Rejected& rejected);

 private:
  const std::string index_;
  const bool by_default_;
  const std::string host_;
  std::string said_of_;  // the host that the last message named
};

}  // namespace evergrad::ps_server
