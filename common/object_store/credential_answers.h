// Reads the answers of services that give out credentials. The answers may have any content. Pure.
//
// An answer that is not as documented gives Unavailable, because a proxy or a service that starts
// may have sent it, and a later answer can be right. No error contains a part of the answer, except
// the code of an error. `place` is for the error. Only this room includes this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/object_store/credentials.h"

namespace evergrad::object_store {

inline constexpr std::size_t kCredentialAnswerBytesMax = 64 << 10;

// Returns the text of a key, or "" if `object` is no JSON object with a text of this key.
std::string JsonText(const nlohmann::json& object, const char* key);

// Reads the JSON of IMDS and of the endpoints for containers: AccessKeyId, SecretAccessKey, Token,
// Expiration.
absl::StatusOr<Credentials> ParseAwsAnswer(absl::string_view json, absl::string_view place);
// Reads the XML of STS AssumeRoleWithWebIdentity.
absl::StatusOr<Credentials> ParseStsAnswer(absl::string_view xml, absl::string_view place);
// Reads the JSON of an OAuth 2.0 token endpoint and of the metadata service of GCS: access_token,
// expires_in.
absl::StatusOr<Credentials> ParseTokenAnswer(absl::string_view json, absl::string_view place,
                                             std::int64_t wall_ms);
// Reads the JSON of generateAccessToken: accessToken, expireTime.
absl::StatusOr<Credentials> ParseImpersonationAnswer(absl::string_view json,
                                                     absl::string_view place);

}  // namespace evergrad::object_store
