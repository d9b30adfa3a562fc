"""Checks the signatures of S3 requests with botocore, because moto checks none.

A request must be signed with AWS Signature Version 4 in its Authorization header. The check follows
the rules of S3: the canonical request is made from the decoded path and query, all x-amz-* headers
must be signed, and the date must be near the present. botocore is in build/venv. The programs that
use this module may also run with another Python 3.11, because botocore needs no compiled module.
"""
import glob
import importlib.util
import os
import re
import sys
import time
import urllib.parse
from calendar import timegm

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, "build", "venv")
SKEW_SECONDS = 15 * 60
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8})/([^/,\s]+)/([^/,\s]+)/aws4_request,\s*"
    r"SignedHeaders=([a-z0-9;_-]+),\s*Signature=([0-9a-f]{64})"
)
SHA256 = re.compile(r"[0-9a-f]{64}")


def import_botocore(venv=VENV):
    """Imports botocore, from `venv` if this Python does not have it. Raises ImportError if it is in
    neither."""
    if importlib.util.find_spec("botocore") is None:
        packages = os.path.join(glob.escape(venv), "lib", "python3.11", "site-packages")
        sys.path += glob.glob(packages)
    import botocore.auth
    import botocore.awsrequest
    import botocore.credentials

    return botocore


class Refusal(Exception):
    """The error with which S3 answers a request that is not signed correctly."""

    def __init__(self, status, code, message):
        super().__init__("%d %s: %s" % (status, code, message))
        self.status, self.code, self.message = status, code, message


class Key:
    """An access key that the store knows. The state is "valid", or "expired" for a key whose
    session has ended."""

    def __init__(self, secret, session_token="", state="valid"):
        self.secret, self.session_token, self.state = secret, session_token, state


def encoded(text, safe):
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text), safe=safe)


def canonical_url(scheme, host, target):
    """Returns the URL for the canonical request. S3 decodes the path and the query, and encodes
    them again, so that a client cannot be right by sending what it has signed. A "+" in the query
    is a space."""
    path, _, query = target.partition("?")
    query = query.replace("+", "%20")
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    pairs = [(encoded(name, "-_.~"), encoded(value, "-_.~")) for name, _, value in pairs]
    url = "%s://%s%s" % (scheme, host, encoded(path, "-_.~/"))
    return url + ("?" + "&".join("%s=%s" % pair for pair in pairs) if pairs else "")


class Checker:
    """Checks requests against the keys of a store. `keys` maps an access key id to a Key."""

    def __init__(self, keys, region=None, now=time.time, venv=VENV):
        self.botocore = import_botocore(venv)
        self.keys, self.region, self.now = keys, region, now

    def check(self, method, target, headers, scheme="http"):
        """Checks the signature of a request. `headers` is a list of (name, value). Returns the
        SHA-256 that the body must have, or None if the body is not signed. Raises Refusal."""
        sent = [(name.lower(), value) for name, value in headers]
        one = dict(sent)
        for name in ("authorization", "host", "x-amz-date", "x-amz-content-sha256"):
            if sum(other == name for other, _ in sent) > 1:
                raise Refusal(400, "InvalidRequest", "the header %s is sent twice" % name)
        if "authorization" not in one:
            raise Refusal(403, "AccessDenied", "Anonymous access is forbidden")
        found = AUTHORIZATION.fullmatch(one["authorization"])
        if not found:
            raise Refusal(400, "AuthorizationHeaderMalformed", "The header is malformed")
        access_key, day, region, service, names, signature = found.groups()
        self.check_scope(one, day, region, service)
        key = self.keys.get(access_key)
        if key is None:
            raise Refusal(403, "InvalidAccessKeyId", "The access key id does not exist")
        names = names.split(";")
        self.check_signed_headers(names, one)
        # `names` has no duplicates, and each header is signed with all its values.
        signed = [(name, value) for name, value in sent if name in names]
        want = self.signature_of(method, target, signed, scheme, access_key, region, key.secret)
        if signature != want:
            raise Refusal(403, "SignatureDoesNotMatch", "The signature does not match")
        if one.get("x-amz-security-token", "") != key.session_token:
            raise Refusal(400, "InvalidToken", "The token is not that of the access key")
        if key.state == "expired":
            raise Refusal(400, "ExpiredToken", "The provided token has expired.")
        return self.body_hash(one["x-amz-content-sha256"])

    def check_scope(self, one, day, region, service):
        date = one.get("x-amz-date", "")
        if not re.fullmatch(r"\d{8}T\d{6}Z", date) or date[:8] != day:
            raise Refusal(403, "AccessDenied", "The date of the scope differs from x-amz-date")
        at = timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
        if abs(at - self.now()) > SKEW_SECONDS:
            raise Refusal(403, "RequestTimeTooSkewed", "The clocks differ too much")
        if service != "s3":
            raise Refusal(400, "AuthorizationHeaderMalformed", "The service must be s3")
        if self.region and region != self.region:
            raise Refusal(
                400, "AuthorizationHeaderMalformed", "The region must be %s" % self.region
            )

    @staticmethod
    def check_signed_headers(names, one):
        if names != sorted(set(names)):
            raise Refusal(400, "AuthorizationHeaderMalformed", "SignedHeaders are not in order")
        must = {"host", "x-amz-content-sha256"} | {n for n in one if n.startswith("x-amz-")}
        if must - set(names):
            raise Refusal(
                403, "AccessDenied", "headers that are not signed: %s" % sorted(must - set(names))
            )
        if set(names) - set(one):
            raise Refusal(403, "SignatureDoesNotMatch", "a signed header is not sent")

    def signature_of(self, method, target, signed, scheme, access_key, region, secret):
        """Returns the signature that botocore computes for these headers."""
        request = self.botocore.awsrequest.AWSRequest(
            method=method, url=canonical_url(scheme, dict(signed)["host"], target)
        )
        for name, value in signed:
            request.headers[name] = value  # adds a header, even if there is one of this name
        request.context["timestamp"] = dict(signed)["x-amz-date"]
        signer = self.botocore.auth.S3SigV4Auth(
            self.botocore.credentials.Credentials(access_key, secret), "s3", region
        )
        # botocore signs no User-Agent, for example. Other clients may sign it.
        signer.headers_to_sign = lambda request: request.headers
        text = signer.string_to_sign(request, signer.canonical_request(request))
        return signer.signature(text, request)

    @staticmethod
    def body_hash(text):
        if text == "UNSIGNED-PAYLOAD":
            return None
        if not SHA256.fullmatch(text):
            raise Refusal(400, "InvalidRequest", "x-amz-content-sha256 is not a SHA-256")
        return text
