// Clients and requests of the tests.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/http/client.h"

namespace evergrad::http {

// Returns options with timeouts that no test reaches.
inline ClientOptions Patient() {
  ClientOptions options;
  options.connect_timeout = options.stall_timeout = options.total_timeout =
      std::chrono::seconds(100);
  return options;
}

inline std::unique_ptr<Client> MakeClient(ClientOptions options = Patient()) {
  auto client = MakeCurlClient(std::move(options));
  REQUIRE(client.ok());
  return *std::move(client);
}

inline Request MakeRequest(const std::string& method, const std::string& url) {
  Request request;
  request.method = method;
  request.url = url;
  return request;
}

inline absl::StatusOr<Response> Get(Client* client, const std::string& url) {
  return client->Send(MakeRequest("GET", url));
}

// Sets an environment variable for one test. nullptr removes the variable.
class TestVariable {
 public:
  TestVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    Set(value);
  }
  ~TestVariable() { Set(before_ ? before_->c_str() : nullptr); }
  TestVariable(const TestVariable&) = delete;
  TestVariable& operator=(const TestVariable&) = delete;

 private:
  void Set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace evergrad::http
