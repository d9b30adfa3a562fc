// What a server does when the coordinator says that another one has its index: it waits (P7), says
// at once who has it and what to type, and ends where waiting cannot be what was meant. Pure.
#pragma once

#include <string>

#include "evergrad/v1/session.pb.h"

namespace evergrad::ps_server {

class IndexTaken {
 public:
  // `by_default`: neither --index nor the host's name gave the index.
  IndexTaken(std::string index, bool by_default, std::string host)
      : index_(std::move(index)), by_default_(by_default), host_(std::move(host)) {}
  struct Verdict {
    std::string say;    // "": nothing new
    bool ends = false;  // the index was taken for want of another, and a living server on another
                        // host has it: it will not become free
  };
  Verdict Judge(const v1::Rejected& rejected);

 private:
  const std::string index_;
  const bool by_default_;
  const std::string host_;
  std::string said_of_;  // the host that was named last
};

}  // namespace evergrad::ps_server
