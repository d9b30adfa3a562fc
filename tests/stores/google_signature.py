"""Checks the signatures of requests to Google Cloud Storage that use HMAC keys
(GOOG4-HMAC-SHA256, https://cloud.google.com/storage/docs/authentication/signatures).

A request is signed in its Authorization header. The canonical request is made from the decoded path
and query, all x-goog-* headers must be signed, and the date must be near the present. botocore has
no signer for this variant, so the signature is computed here.
"""
import hashlib
import hmac
import re
import time
from calendar import timegm

from signature_check import SKEW_SECONDS, Refusal, encoded

SCHEME = "GOOG4-HMAC-SHA256"
AUTHORIZATION = re.compile(
    SCHEME + r" Credential=([^/,\s]+)/(\d{8})/([^/,\s]+)/storage/goog4_request,\s*"
    r"SignedHeaders=([a-z0-9;_-]+),\s*Signature=([0-9a-f]{64})"
)


def canonical_query(query):
    pairs = [pair.partition("=") for pair in query.replace("+", "%20").split("&") if pair]
    pairs = sorted((encoded(name, "-_.~"), encoded(value, "-_.~")) for name, _, value in pairs)
    return "&".join("%s=%s" % pair for pair in pairs)


def signature_of(method, target, signed, date, region, secret):
    """Returns the signature. `signed` is a list of (lower-case name, value), and `date` the value
    of x-goog-date."""
    path, _, query = target.partition("?")
    values = {}
    for name, value in signed:
        values.setdefault(name, []).append(" ".join(value.split()))
    names = sorted(values)
    lines = [method, encoded(path, "-_.~/"), canonical_query(query)]
    lines += ["%s:%s" % (name, ",".join(values[name])) for name in names]
    lines += ["", ";".join(names), values["x-goog-content-sha256"][0]]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    scope = [date[:8], region, "storage", "goog4_request"]
    key = ("GOOG4" + secret).encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join([SCHEME, date, "/".join(scope), digest])
    return hmac.digest(key, text.encode(), "sha256").hex()


def check(method, target, headers, body, keys, now=time.time):
    """Checks a request. `headers` is a list of (name, value), and `keys` maps an access key id to
    its secret. Raises Refusal with the answer of the service."""
    sent = [(name.lower(), value) for name, value in headers]
    one = dict(sent)
    found = AUTHORIZATION.fullmatch(one.get("authorization", ""))
    if not found:
        raise Refusal(400, "InvalidArgument", "The Authorization header is malformed.")
    access_key, day, region, names, signature = found.groups()
    names = names.split(";")
    date = one.get("x-goog-date", "")
    if not re.fullmatch(r"\d{8}T\d{6}Z", date) or date[:8] != day:
        raise Refusal(403, "AccessDenied", "The date of the scope differs from x-goog-date.")
    if abs(timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")) - now()) > SKEW_SECONDS:
        raise Refusal(403, "RequestTimeTooSkewed", "The clocks differ too much.")
    must = {"host", "x-goog-content-sha256"} | {n for n in one if n.startswith("x-goog-")}
    if names != sorted(set(names)) or must - set(names) or set(names) - set(one):
        raise Refusal(403, "AccessDenied", "The signed headers are wrong.")
    if access_key not in keys:
        raise Refusal(403, "InvalidAccessKeyId", "The access key id does not exist.")
    signed = [(name, value) for name, value in sent if name in names]
    want = signature_of(method, target, signed, date, region, keys[access_key])
    if signature != want:
        raise Refusal(403, "SignatureDoesNotMatch", "The signature does not match.")
    if one["x-goog-content-sha256"] != hashlib.sha256(body).hexdigest():
        raise Refusal(400, "XAmzContentSHA256Mismatch", "The body has another SHA-256.")
