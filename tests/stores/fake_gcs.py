"""A small fake of Google Cloud Storage: the XML API, the token endpoints, and the metadata service.

    with FakeGcs(buckets=["data"]) as gcs:
        write(token_file, gcs.tokens.issue())
        run(..., "--gcs-endpoint", gcs.endpoint, env=dict(EVERGRAD_GCS_TOKEN_FILE=token_file))

The fake is stricter than the service where a mistake of a client would otherwise stay unseen:

- Each request needs a bearer token that is valid (401), or, if `hmac_keys` has the access key, a
  valid signature (403).
- A request with both x-amz-* and x-goog-* headers is refused (400 ExcessHeaderValues).
- A precondition on a multipart upload is refused (400), because the service ignores it there.
- A body with another crc32c or md5 than x-goog-hash is refused (400). Bodies without x-goog-hash
  are accepted, and counted in `bodies_without_hash`.

Both servers listen on loopback. Objects are in memory.
"""
import base64
import dataclasses
import functools
import hashlib
import http.server
import itertools
import json
import os
import re
import secrets
import sys
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import google_signature  # noqa: E402
from signature_check import Refusal  # noqa: E402

BODY_BYTES_MAX = 1 << 30
PART_BYTES_MIN = 5 << 20
LOG_LINES_MAX = 20_000


def _crc_table():
    table = []
    for index in range(256):
        for _ in range(8):
            index = (index >> 1) ^ (0x82F63B78 if index & 1 else 0)
        table.append(index)
    return table


CRC_TABLE = _crc_table()


def crc32c(data):
    """Returns the CRC-32C (Castagnoli) of bytes."""
    state, table = 0xFFFFFFFF, CRC_TABLE
    for byte in data:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def crc_text(data):
    """Returns the CRC-32C as x-goog-hash has it."""
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


class Failure(Exception):
    """An error of the XML API."""

    def __init__(self, status, code, message=""):
        super().__init__("%d %s" % (status, code))
        self.status, self.code, self.message = status, code, message or code


class Tokens:
    """The access tokens that are valid now. A token may expire after some requests or seconds."""

    def __init__(self):
        self.lock, self.left, self.numbers = threading.Lock(), {}, itertools.count(1)

    def issue(self, uses=None, seconds=None):
        """Returns a new token that is valid for `uses` requests and for `seconds` (None: for
        ever)."""
        token = "ya29.test-%d-%s" % (next(self.numbers), secrets.token_hex(16))
        until = None if seconds is None else time.monotonic() + seconds
        with self.lock:
            self.left[token] = [uses, until]
        return token

    def keep_only(self, *tokens):
        """Revokes all other tokens."""
        with self.lock:
            self.left = {token: left for token, left in self.left.items() if token in tokens}

    def use(self, token):
        """Counts a use of the token. Returns whether the token was valid."""
        with self.lock:
            found = self.left.get(token)
            if found is None or found[0] == 0:
                return False
            if found[1] is not None and time.monotonic() >= found[1]:
                return False
            if found[0] is not None:
                found[0] -= 1
            return True


@dataclasses.dataclass
class Object:
    data: bytes
    generation: int
    headers: list  # x-goog-meta-* and Content-Type
    multipart: bool = False

    @functools.cached_property
    def crc(self):
        return crc_text(self.data)

    @property
    def etag(self):
        if self.multipart:
            return '"%s"' % base64.b64encode(b"generation %d" % self.generation).decode()
        return '"%s"' % hashlib.md5(self.data).hexdigest()


@dataclasses.dataclass
class Upload:
    bucket: str
    key: str
    headers: list
    parts: dict  # number -> (etag, bytes)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "UploadServer"

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def body(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise Failure(411, "MissingContentLength")
        data = self.rfile.read(length)
        if len(data) != length:
            raise ConnectionAbortedError("a request ended early")
        return data

    def reply(self, status, headers=(), data=b""):
        self.send_response(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            self.send_header(name, value)
        if "content-length" not in names:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


# ------------------------------------------------------------------ the XML API


class ObjectHandler(Handler):
    """`self.gcs` is the FakeGcs."""

    def do_any(self):
        path, _, query = self.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, True))
        bucket, _, key = urllib.parse.unquote(path[1:]).partition("/")
        self.bucket, self.key = bucket, key
        status = 0
        try:
            data = self.body()
            self.check_head(data)
            if bucket not in self.gcs.buckets:
                raise Failure(404, "NoSuchBucket")
            status = self.act(data)
        except Failure as why:
            status = why.status
            text = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>%s</Code>"
            text += "<Message>%s</Message></Error>"
            headers = [("Content-Type", "application/xml"), ("x-guploader-uploadid", "fake-1")]
            if status == 401:
                headers.append(("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"'))
            self.reply(status, headers, (text % (why.code, escape(why.message))).encode())
        finally:
            self.gcs.note([self.command, self.path, status])

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any

    def check_head(self, data):
        names = [name.lower() for name in self.headers]
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if scheme == google_signature.SCHEME and self.gcs.hmac_keys is not None:
            try:
                google_signature.check(
                    self.command, self.path, self.headers.items(), data, self.gcs.hmac_keys
                )
            except Refusal as why:
                raise Failure(why.status, why.code, why.message)
        elif scheme != "Bearer" or not self.gcs.tokens.use(token):
            raise Failure(401, "AuthenticationRequired", "Authentication required.")
        if any(n.startswith("x-amz-") for n in names) and any(
            n.startswith("x-goog-") for n in names
        ):
            raise Failure(400, "ExcessHeaderValues", "Multiple header values for the same header.")

    def act(self, data):
        if not self.key:
            if self.command == "GET" and self.query.get("list-type") == "2":
                return self.list()
            raise Failure(400, "InvalidArgument", "The fake cannot do this with a bucket.")
        if "uploads" in self.query or "uploadId" in self.query:
            if self.headers.get("x-goog-if-generation-match") is not None:
                raise Failure(400, "InvalidArgument", "No preconditions on multipart uploads.")
            return self.act_on_upload(data)
        actions = {"GET": self.get, "HEAD": self.get, "DELETE": self.delete, "PUT": self.put}
        if self.command not in actions:
            raise Failure(405, "MethodNotAllowed")
        return actions[self.command](data)

    # ---- objects

    def found(self):
        found = self.gcs.buckets[self.bucket].get(self.key)
        if found is None:
            raise Failure(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def get(self, _):
        with self.gcs.lock:
            found = self.found()
        if self.headers.get("If-Match") not in (None, found.etag):
            raise Failure(412, "PreconditionFailed")
        headers = list(found.headers) + self.facts(found)
        headers.append(("Accept-Ranges", "bytes"))
        data, status = found.data, 200
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span:
            first, last = int(span.group(1)), int(span.group(2) or len(data))
            if first >= len(data) or last < first:
                raise Failure(416, "InvalidRange", "The requested range cannot be satisfied.")
            last = min(last, len(data) - 1)
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first, last, len(data))))
            data, status = data[first : last + 1], 206
        headers.append(("Content-Length", str(len(data))))
        self.reply(status, headers, data)
        return status

    @staticmethod
    def facts(found):
        facts = [("ETag", found.etag), ("x-goog-generation", str(found.generation))]
        return facts + [("x-goog-hash", "crc32c=" + found.crc)]

    def delete(self, _):
        with self.gcs.lock:
            self.found()
            del self.gcs.buckets[self.bucket][self.key]
        self.reply(204)
        return 204

    def put(self, data):
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            self.check_hash(data)
        must_be = self.headers.get("x-goog-if-generation-match")
        objects = self.gcs.buckets[self.bucket]
        with self.gcs.lock:
            old = objects.get(self.key)
            generation = old.generation if old else 0
            if must_be is not None and str(generation) != must_be:
                raise Failure(412, "PreconditionFailed", "A precondition does not hold.")
            headers = self.kept_headers()
            if source is not None:
                original = self.source_of(source)
                data = original.data
                if self.headers.get("x-goog-metadata-directive", "COPY") == "COPY":
                    headers = original.headers
            new = objects[self.key] = Object(data, self.gcs.next_generation(), headers)
        text = b""
        if source is not None:
            text = ("<CopyObjectResult><ETag>%s</ETag></CopyObjectResult>" % new.etag).encode()
        self.reply(200, self.facts(new), text)
        return 200

    def source_of(self, source):
        bucket, _, key = urllib.parse.unquote(source).lstrip("/").partition("/")
        found = self.gcs.buckets.get(bucket, {}).get(key)
        if found is None:
            raise Failure(404, "NoSuchKey", "The source does not exist.")
        return found

    def kept_headers(self):
        return [
            (name, value)
            for name, value in self.headers.items()
            if name.lower().startswith("x-goog-meta-") or name.lower() == "content-type"
        ]

    def check_hash(self, data):
        text = ",".join(self.headers.get_all("x-goog-hash") or [])
        if not text:
            self.gcs.bodies_without_hash += 1
        for one in text.split(",") if text else ():
            kind, _, value = one.strip().partition("=")
            if kind == "crc32c":
                right = value == crc_text(data)
            else:
                right = kind == "md5"
                right &= value == base64.b64encode(hashlib.md5(data).digest()).decode()
            if not right:
                raise Failure(400, "BadDigest", "The body has another %s." % kind)

    def list(self):
        query = self.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = min(int(query.get("max-keys", "1000")), self.gcs.page_keys_max)
        start, after = query.get("start-after", "").encode(), b""
        if "continuation-token" in query:
            after = base64.urlsafe_b64decode(query["continuation-token"])
        with self.gcs.lock:
            objects = dict(self.gcs.buckets[self.bucket])
        rows, last, more = [], "", False
        for key in sorted(objects, key=lambda text: text.encode()):
            if not key.startswith(prefix) or key.encode() <= start:
                continue
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key[: at + len(delimiter)] if at >= 0 else key
            if name.encode() <= after or name == last:
                continue
            if len(rows) == most:
                more = True
                break
            rows.append((name, objects[key] if at < 0 else None))
            last = name
        text = self.page(rows, base64.urlsafe_b64encode(last.encode()).decode() if more else "")
        self.reply(200, [("Content-Type", "application/xml")], text.encode())
        return 200

    def page(self, rows, token):
        url = self.query.get("encoding-type") == "url"
        write = urllib.parse.quote if url else escape
        parts = ["<?xml version='1.0' encoding='UTF-8'?>"]
        parts.append("<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>")
        parts.append("<Name>%s</Name><Prefix>%s</Prefix>" % (self.bucket, write(self.prefix())))
        parts.append("<IsTruncated>%s</IsTruncated>" % ("true" if token else "false"))
        if token:
            parts.append("<NextContinuationToken>%s</NextContinuationToken>" % token)
        for name, found in rows:
            if found is None:
                parts.append("<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>" % write(name))
            else:
                parts.append(
                    "<Contents><Key>%s</Key><Generation>%d</Generation><ETag>%s</ETag>"
                    "<Size>%d</Size></Contents>"
                    % (write(name), found.generation, escape(found.etag), len(found.data))
                )
        return "".join(parts + ["</ListBucketResult>"])

    def prefix(self):
        return self.query.get("prefix", "")

    # ---- multipart uploads

    def act_on_upload(self, data):
        with self.gcs.lock:
            if "uploads" in self.query and self.command == "POST":
                return self.begin_upload()
            name = self.query.get("uploadId")
            upload = self.gcs.uploads.get(name)
            if upload is None or (upload.bucket, upload.key) != (self.bucket, self.key):
                raise Failure(404, "NoSuchUpload", "The upload does not exist.")
            if self.command == "DELETE":
                del self.gcs.uploads[name]
                self.reply(204)
                return 204
            if self.command == "POST":
                return self.complete_upload(name, upload, data)
        if self.command != "PUT" or not self.query.get("partNumber", "").isdigit():
            raise Failure(400, "InvalidArgument", "This is no request of a multipart upload.")
        self.check_hash(data)
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        with self.gcs.lock:
            upload.parts[int(self.query["partNumber"])] = (etag, data)
        self.reply(200, [("ETag", etag), ("x-goog-hash", "crc32c=" + crc_text(data))])
        return 200

    def begin_upload(self):
        name = secrets.token_urlsafe(16)
        self.gcs.uploads[name] = Upload(self.bucket, self.key, self.kept_headers(), {})
        text = (
            "<?xml version='1.0' encoding='UTF-8'?><InitiateMultipartUploadResult>"
            "<Bucket>%s</Bucket><Key>%s</Key><UploadId>%s</UploadId>"
            "</InitiateMultipartUploadResult>" % (self.bucket, escape(self.key), name)
        )
        self.reply(200, [("Content-Type", "application/xml")], text.encode())
        return 200

    def complete_upload(self, name, upload, data):
        text = data.decode()
        numbers = [int(n) for n in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
        etags = re.findall(r"<ETag>(.*?)</ETag>", text)
        etags = [etag.replace("&quot;", '"').strip('"') for etag in etags]
        if not numbers or numbers != sorted(set(numbers)) or len(etags) != len(numbers):
            raise Failure(400, "InvalidPartOrder", "The parts are not in order.")
        bodies = []
        for number, etag in zip(numbers, etags):
            have = upload.parts.get(number)
            if have is None or have[0].strip('"') != etag:
                raise Failure(400, "InvalidPart", "Part %d was not uploaded." % number)
            bodies.append(have[1])
        if any(len(body) < PART_BYTES_MIN for body in bodies[:-1]):
            raise Failure(400, "EntityTooSmall", "A part is smaller than 5 MiB.")
        del self.gcs.uploads[name]
        new = Object(b"".join(bodies), self.gcs.next_generation(), upload.headers, True)
        self.gcs.buckets[self.bucket][self.key] = new
        text = (
            "<?xml version='1.0' encoding='UTF-8'?><CompleteMultipartUploadResult>"
            "<Bucket>%s</Bucket><Key>%s</Key><ETag>%s</ETag></CompleteMultipartUploadResult>"
            % (self.bucket, escape(self.key), escape(new.etag))
        )
        self.reply(200, self.facts(new), text.encode())
        return 200


# ------------------------------------------------------------------ tokens


class TokenHandler(Handler):
    """Issues tokens as the OAuth endpoint (POST /token, also the one for external accounts), as the
    service of impersonated accounts, and as the metadata service (GET)."""

    GRANTS = {
        "urn:ietf:params:oauth:grant-type:jwt-bearer": ("assertion",),
        "urn:ietf:params:oauth:grant-type:token-exchange": (
            "audience",
            "scope",
            "requested_token_type",
            "subject_token",
            "subject_token_type",
        ),
        "refresh_token": ("client_id", "client_secret", "refresh_token"),
    }
    METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"

    def do_POST(self):
        try:
            data = self.body()
        except Failure as why:
            return self.reply(why.status)
        if self.path.endswith(":generateAccessToken"):
            return self.impersonate()
        if self.path != "/token":
            return self.reply(404)
        form = dict(urllib.parse.parse_qsl(data.decode(errors="replace")))
        grant = form.get("grant_type", "")
        problem = self.problem_of(grant, form)
        self.gcs.note([self.command, self.path, problem or grant])
        if problem:
            return self.say(400, {"error": "invalid_grant", "error_description": problem})
        return self.say(200, self.new_token())

    def problem_of(self, grant, form):
        if grant not in self.GRANTS:
            return "unknown grant_type"
        missing = [name for name in self.GRANTS[grant] if not form.get(name)]
        if missing:
            return "missing: " + ", ".join(missing)
        if "assertion" in form:
            return jwt_problem(form["assertion"], self.gcs.token_url, self.gcs.verify_jwt)
        return None

    def impersonate(self):
        scheme, _, token = (self.headers.get("Authorization") or "").partition(" ")
        if scheme != "Bearer" or not self.gcs.tokens.use(token):
            return self.say(401, {"error": {"code": 401, "status": "UNAUTHENTICATED"}})
        new = self.new_token()
        until = time.gmtime(time.time() + new["expires_in"])
        answer = {"accessToken": new["access_token"]}
        return self.say(200, dict(answer, expireTime=time.strftime("%Y-%m-%dT%H:%M:%SZ", until)))

    def do_GET(self):
        self.gcs.note([self.command, self.path, self.headers.get("Metadata-Flavor") or ""])
        if self.headers.get("Metadata-Flavor") != "Google":
            return self.reply(403)
        if self.path.split("?")[0] != self.METADATA:
            return self.reply(404)
        return self.say(200, self.new_token(), [("Metadata-Flavor", "Google")])

    def new_token(self):
        token = self.gcs.tokens.issue(self.gcs.token_uses, self.gcs.token_seconds)
        seconds = 3600 if self.gcs.token_seconds is None else self.gcs.token_seconds
        return {"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"}

    def say(self, status, value, headers=()):
        headers = [("Content-Type", "application/json")] + list(headers)
        self.reply(status, headers, json.dumps(value).encode())


def jwt_problem(text, audience, verify=None):
    """Returns why a token endpoint refuses this assertion of a service account, or None. `verify`
    is a function of (signed bytes, signature), or None to accept every signature."""

    def decoded(part):
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    parts = text.split(".")
    try:
        header, claims = json.loads(decoded(parts[0])), json.loads(decoded(parts[1]))
        signature = decoded(parts[2])
    except (ValueError, IndexError):
        return "the assertion is no JWT"
    if header.get("alg") != "RS256" or len(parts) != 3 or "=" in text:
        return "the algorithm must be RS256"
    if claims.get("aud") != audience:
        return "the audience must be %s" % audience
    if not claims.get("iss") or "devstorage" not in claims.get("scope", "devstorage"):
        return "the issuer or the scope is wrong"
    if not (claims.get("iat", 0) - 60 <= time.time() < claims.get("exp", 0)):
        return "the assertion is not valid now"
    if claims["exp"] - claims["iat"] > 3600:
        return "the assertion is valid for more than an hour"
    if verify is not None and not verify((parts[0] + "." + parts[1]).encode(), signature):
        return "the signature is wrong"
    return None


class FakeGcs:
    """The fake. A listing has at most `page_keys_max` entries. Tokens of the token endpoints expire
    after `token_uses` requests or `token_seconds`."""

    def __init__(self, buckets=(), page_keys_max=1000, token_uses=None, token_seconds=None):
        self.buckets = {name: {} for name in buckets}
        self.uploads, self.lock, self.tokens = {}, threading.RLock(), Tokens()
        self.page_keys_max = page_keys_max
        self.token_uses, self.token_seconds, self.verify_jwt = token_uses, token_seconds, None
        # The HMAC keys, as {access key id: secret}. With None, signed requests are refused (401).
        self.hmac_keys = None
        self.generations = itertools.count(1700000000000001)
        self.log, self.bodies_without_hash = [], 0
        self.servers = []

    def __enter__(self):
        self.endpoint = self._serve(ObjectHandler)
        self.address = self.endpoint.split("//")[1]
        self.token_server = self._serve(TokenHandler)
        self.token_url = self.token_server + "/token"
        self.metadata_url = self.token_server
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def _serve(self, handler):
        bound = type(handler.__name__, (handler,), {"gcs": self})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
        server.daemon_threads = True
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return "http://127.0.0.1:%d" % server.server_port

    def next_generation(self):
        return next(self.generations)

    def note(self, line):
        with self.lock:
            self.log.append(line)
            del self.log[:-LOG_LINES_MAX]

    # ---- objects, without HTTP

    def put(self, bucket, key, body):
        with self.lock:
            self.buckets[bucket][key] = Object(bytes(body), self.next_generation(), [])

    def read(self, bucket, key):
        with self.lock:
            found = self.buckets[bucket].get(key)
        if found is None:
            raise FileNotFoundError("%s/%s" % (bucket, key))
        return found.data

    def delete(self, bucket, key):
        with self.lock:
            self.buckets[bucket].pop(key, None)

    def keys(self, bucket, prefix=""):
        with self.lock:
            return sorted(key for key in self.buckets[bucket] if key.startswith(prefix))
