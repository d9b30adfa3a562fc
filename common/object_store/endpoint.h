// The place to which the requests for a bucket are sent.
#pragma once

#include <string>

namespace evergrad::object_store {

struct Endpoint {
  std::string url;     // "https://s3.eu-central-1.amazonaws.com", without a slash at its end
  std::string region;  // for the signature
  // The bucket is in the path (https://host/bucket/key), or else in the host's name.
  bool bucket_in_path = false;
};

}  // namespace evergrad::object_store
