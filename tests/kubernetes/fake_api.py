"""A fake of kube-apiserver for TrainingJobs and Events of one namespace, on threads of the test.

The class FakeApi answers the requests that the role of the operator permits, by the rules of
api_objects.py. Every other request is answered with the Status object of a real server, and is also
kept in `violations`, which a test expects to be empty. Rules (`set_rules`) make requests fail. The
kinds of faults are:

  error-500, error-503  InternalError or ServiceUnavailable, and nothing is done
  too-many              429 with Retry-After; nothing is done
  unauthorized          401; nothing is done
  gone                  410 as the status of the response
  gone-event            only for watches: an event ERROR with code 410, and the end of the watch
  conflict              another writer changes the object before the patch, which thus gets 409
  lost-answer           the request is carried out, and the connection ends without a response
  cut-request           the connection ends, and nothing is done
  cut-event             only for watches: the connection ends in the middle of the next event
  close                 only for watches: the watch ends at once, without an event
  slow                  the response comes in pieces of a few bytes
  hold                  the request waits for `release`
  garbage               200 with a body that is not JSON
  page                  502 with an HTML page, as from a proxy
  no-items              only for lists: 200 with a list that has no items
"""
import collections
import copy
import dataclasses
import http.server
import json
import random
import select
import socket
import socketserver
import ssl
import sys
import threading
import time
import urllib.parse

from api_objects import API_VERSION, KIND, PLURAL, Objects, Refusal, conflict, expired

KINDS = (
    "error-500",
    "error-503",
    "too-many",
    "unauthorized",
    "gone",
    "gone-event",
    "conflict",
    "lost-answer",
    "cut-request",
    "cut-event",
    "close",
    "slow",
    "hold",
    "garbage",
    "page",
    "no-items",
)
REQUESTS = ("list", "watch", "patch", "status", "event")
QUERIES = {
    "list": {"limit", "continue"},
    "watch": {"watch", "allowWatchBookmarks", "resourceVersion", "timeoutSeconds"},
}
LIMIT = 50
LOG_LINES_MAX = 20_000
BODY_BYTES_MAX = 3 << 20  # the limit of a real server
MERGE_PATCH = "application/merge-patch+json"


class Disconnect(Exception):
    """The server ends the connection."""


@dataclasses.dataclass
class Rule:
    """Chooses a fault for requests of a kind ("" for any) and for objects whose name is `name` (""
    for any). The rule skips the first `skip` requests that fit, and then applies to every
    `every`-th of them, in all to `times` (None: without end)."""

    kind: str
    request: str = ""
    name: str = ""
    skip: int = 0
    every: int = 1
    times: int = 1
    seen: int = 0
    applied: int = 0

    def fits(self, request, name):
        if self.request not in ("", request) or self.name not in ("", name):
            return False
        self.seen += 1
        after = self.seen - self.skip - 1
        if after < 0 or after % self.every or self.applied == self.times:
            return False
        self.applied += 1
        return True


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fake-apiserver", ""
    disable_nagle_algorithm = True

    @property
    def api(self):
        return self.server.api

    def setup(self):
        self.server.keep(self.request)
        context = self.server.context
        if context is not None:
            try:
                self.request = context.wrap_socket(self.request, server_side=True)
            except (OSError, ValueError):
                self.server.drop(self.request)
                self.api.count("no-handshake")
                raise Disconnect
            self.server.keep(self.request)
        super().setup()

    def finish(self):
        try:
            super().finish()
        finally:
            self.server.drop(self.request)

    def handle(self):
        try:
            super().handle()
        except (Disconnect, OSError, ValueError):
            pass  # the client or a fault has ended the connection

    def log_message(self, *_):
        pass

    def send_error(self, code, message=None, explain=None):
        self.api.violate("a malformed request: %s %s" % (code, message))
        self.close_connection = True

    # ---- the request

    def serve(self):
        self.slow = False
        try:
            body = self.read_body()
            request, name, query = self.classify()
            self.api.begin(request, self.command, self.path, self.headers.get("Authorization"))
            fault = self.api.choose(request, name)
            self.slow = fault == "slow"
            self.fail_before(fault, name)
            self.authorize()
            if request == "watch":
                return self.watch(query, fault)
            code, answer = self.carry_out(request, name, query, body)
            if fault == "lost-answer":
                raise Disconnect
            if fault == "garbage":
                return self.answer_bytes(200, b'{"kind": "TrainingJobList", "items": [{"meta')
            if fault == "no-items":
                del answer["items"]
            self.answer(code, answer)
        except Refusal as why:
            self.api.count("answered-%d" % why.code)
            self.answer(why.code, why.status(), why.headers)

    do_GET = do_PATCH = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = serve

    def read_body(self):
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            self.api.violate("a request with a Transfer-Encoding: %s" % self.path)
            raise Refusal(411, "BadRequest", "a length is required")
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            self.api.violate("a body of %d bytes" % length)
            raise Refusal(413, "RequestEntityTooLarge", "the body is too large")
        body = self.rfile.read(length)
        if len(body) < length:
            raise Disconnect
        return body

    def classify(self):
        """Returns (kind of request, name of the object, query). Raises Refusal, and keeps a
        violation, if the operator has no right to the request."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        spaces = "/apis/%s/namespaces/%s/" % (API_VERSION, self.api.namespace)
        path, request, name = url.path, None, ""
        if (self.command, path) == ("GET", spaces + PLURAL):
            request = "watch" if "watch" in query else "list"
        elif (self.command, path) == ("POST", "/api/v1/namespaces/%s/events" % self.api.namespace):
            request = "event"
        elif self.command == "PATCH" and path.startswith(spaces + PLURAL + "/"):
            parts = path[len(spaces + PLURAL) + 1 :].split("/")
            if len(parts) == 1 or parts[1:] == ["status"]:
                request = "patch" if len(parts) == 1 else "status"
                name = urllib.parse.unquote(parts[0])
        if request is None:
            self.api.violate("no right to %s %s" % (self.command, self.path))
            if path.startswith(("/api/v1/", "/apis/%s/" % API_VERSION)):
                raise Refusal(403, "Forbidden", "forbidden: %s %s" % (self.command, path))
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if set(query) - QUERIES.get(request, set()):
            self.api.violate("an unknown query: %s %s" % (self.command, self.path))
        return request, name, query

    def authorize(self):
        tokens = self.api.tokens
        if tokens is None:
            return
        words = self.headers.get("Authorization", "").split(" ")
        if len(words) != 2 or words[0] != "Bearer" or words[1] not in tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def fail_before(self, fault, name):
        """Carries out the faults of requests that do not reach the store."""
        if fault == "hold":
            self.api.hold()
        elif fault == "cut-request":
            raise Disconnect
        elif fault == "error-500":
            raise Refusal(500, "InternalError", "Internal error occurred: a fault of the test")
        elif fault == "error-503":
            raise Refusal(503, "ServiceUnavailable", "the server is currently unable")
        elif fault == "unauthorized":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        elif fault == "too-many":
            headers = [("Retry-After", str(self.api.retry_after))]
            raise Refusal(429, "TooManyRequests", "too many requests, try later", "", headers)
        elif fault == "gone":
            raise expired("too old resource version: a fault of the test")
        elif fault == "conflict":
            with self.api.changed:
                try:
                    self.api.touch(name)
                except Refusal:
                    raise conflict(name)
        elif fault == "page":
            self.answer_bytes(502, b"<html><h1>Bad Gateway</h1></html>", "text/html")
            raise Disconnect

    def carry_out(self, request, name, query, body):
        """Returns (code, object) of any request but a watch."""
        api = self.api
        if request == "list":
            if query.get("limit") != str(LIMIT):
                api.violate("a list without limit=%d: %s" % (LIMIT, self.path))
            with api.changed:
                return 200, api.store.list(api.page_items_max or LIMIT, query.get("continue"))
        wanted = MERGE_PATCH if self.command == "PATCH" else "application/json"
        kind = self.headers.get("Content-Type", "").split(";")[0].strip()
        if kind != wanted:
            api.violate("%s %s with Content-Type %r" % (self.command, self.path, kind))
            raise Refusal(415, "UnsupportedMediaType", "the body has the media type %s" % kind)
        try:
            value = json.loads(body)
        except ValueError as why:
            api.violate("a body that is not JSON: %s %s" % (self.path, why))
            raise Refusal(400, "BadRequest", "the body is not JSON: %s" % why)
        if not isinstance(value, dict):
            api.violate("a body that is no mapping: %s" % self.path)
            raise Refusal(400, "BadRequest", "the body is no mapping")
        with api.changed:
            try:
                if request == "event":
                    return 201, api.store.add_event(value)
                before = api.store.version
                patch = api.store.patch if request == "patch" else api.store.patch_status
                result = patch(name, value)
                if api.store.version == before:
                    api.count("patches-without-change")
                return 200, result
            finally:
                api.changed.notify_all()

    # ---- the response

    def answer(self, code, value, headers=()):
        self.answer_bytes(code, json.dumps(value).encode(), "application/json", headers)

    def answer_bytes(self, code, data, kind="application/json", headers=()):
        self.send_response(code)
        for header in headers:
            self.send_header(*header)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        head, self._headers_buffer = b"".join(self._headers_buffer) + b"\r\n", []
        self.write(head + (b"" if self.command == "HEAD" else data))

    def write(self, data):
        step = self.api.slow_bytes if self.slow else len(data) or 1
        for at in range(0, len(data), step):
            if self.slow and self.server.stopping.wait(self.api.slow_seconds):
                raise Disconnect
            self.wfile.write(data[at : at + step])

    # ---- watches

    def watch(self, query, fault):
        version, seconds = query.get("resourceVersion", ""), query.get("timeoutSeconds", "")
        if not version.isdigit() or not seconds.isdigit() or query["watch"] not in ("1", "true"):
            self.api.violate("a malformed watch: %s" % self.path)
            raise Refusal(400, "BadRequest", "a malformed watch")
        if int(version) > self.api.store.version:
            self.api.violate("a watch from a version that does not exist: %s" % self.path)
            raise Refusal(504, "Timeout", "Too large resource version: %s" % version)
        with self.api.changed:
            if fault != "gone-event" and not self.api.gone_as_event:
                self.api.store.changes_after(int(version))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fault == "gone-event":
            self.chunk(line("ERROR", expired("too old resource version").status()))
        elif fault != "close":
            self.follow(
                Watch(int(version), query.get("allowWatchBookmarks") in ("1", "true")),
                time.monotonic() + (self.api.watch_seconds or int(seconds)),
                fault,
            )
        self.write(b"0\r\n\r\n")

    def follow(self, watch, deadline, fault):
        """Sends the changes until the deadline."""
        api, left = self.api, 1
        with api.changed:
            api.watches.append(watch)
            api.changed.notify_all()
        try:
            while left > 0:
                with api.changed:
                    left, ended = deadline - time.monotonic(), watch.ended
                    before = watch.version
                    data = watch.take(api.store, left <= 0)
                    if watch.version != before:
                        api.changed.notify_all()
                    if not data and left > 0 and not ended:
                        api.changed.wait(min(left, 0.05))
                    if self.server.stopping.is_set() or watch.ended == "cut":
                        raise Disconnect
                # The client sends nothing during a watch, so it has closed a readable connection.
                if select.select([self.connection], [], [], 0)[0]:
                    raise Disconnect
                if data and fault == "cut-event":
                    return self.send_half(data)
                self.send_in_pieces(data)
                if ended:
                    return
        except Refusal as why:  # the versions after the watch's own are forgotten
            self.chunk(line("ERROR", why.status()))
        finally:
            with api.changed:
                api.watches.remove(watch)
                api.changed.notify_all()

    def send_half(self, data):
        """Sends an incomplete line. By chance the connection ends in the middle of the chunk, or
        the response ends in an orderly way."""
        half = data[: len(data) - 1 - self.api.random.randrange(len(data) // 2)]
        if self.api.random.random() < 0.5:
            return self.chunk(half)
        self.write(b"%x\r\n" % len(data) + half)
        raise Disconnect

    def send_in_pieces(self, data):
        """Sends events in chunks that begin and end anywhere in a line, as any proxy may do."""
        while data:
            size = len(data)
            if self.api.random.random() < 0.5:
                size = self.api.random.randint(1, len(data))
            self.chunk(data[:size])
            data = data[size:]

    def chunk(self, data):
        self.write(b"%x\r\n%s\r\n" % (len(data), data))


def line(kind, value):
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


class Watch:
    """One watch. `version` is the newest version that it has sent. `raw` has bytes that a test
    injects. `ended` is "", "end" or "cut"."""

    def __init__(self, version, bookmarks):
        self.version, self.bookmarks = version, bookmarks
        self.raw, self.ended, self.marking = [], "", False

    def take(self, store, last):
        """Returns the bytes that are to be sent now. Raises Refusal if changes are forgotten that
        the watch has not sent."""
        data = []
        if store.version > self.version:
            # The versions of Events also count, but no watch of TrainingJobs shows them.
            data = [line(kind, value) for _, kind, value in store.changes_after(self.version)]
            self.version = store.version
        data += self.raw
        self.raw = []
        if self.bookmarks and (self.marking or last):
            self.marking = False
            data.append(line("BOOKMARK", bookmark(store.version)))
        return b"".join(data)


def bookmark(version):
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, api, address, context):
        self.api, self.context = api, context
        self.stopping = threading.Event()
        self.connections, self.lock = set(), threading.Lock()
        super().__init__(address, Handler)

    def keep(self, connection):
        with self.lock:
            if self.stopping.is_set():
                raise Disconnect
            # The TLS layer takes the descriptor of a connection over.
            self.connections = {c for c in self.connections if c.fileno() >= 0}
            self.connections.add(connection)

    def drop(self, connection):
        with self.lock:
            self.connections.discard(connection)
        connection.close()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (Disconnect, OSError)):
            super().handle_error(request, client_address)

    def stop(self):
        with self.lock:
            self.stopping.set()
        with self.api.changed:
            self.api.changed.notify_all()
        self.shutdown()
        self.server_close()
        with self.lock:
            for connection in self.connections:
                try:  # without the TLS layer, which another thread may be using
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
                except OSError:
                    pass


class FakeApi:
    """The server. `tls` is (certificate file, key file), or None for plain HTTP. `tokens` is the
    set of bearer tokens that are accepted, or None if no token is necessary. `with` starts and
    stops the server. The store survives `stop_listening` and `start_listening`, which make the
    server unreachable and reachable at the same address."""

    def __init__(self, namespace="training", seed=1, tls=None, tokens=None):
        self.namespace, self.seed, self.tokens = namespace, seed, tokens
        self.store = Objects(namespace)
        self.changed = threading.Condition()
        self.random = random.Random(seed)
        self.context = None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls)
        self.rules, self.watches = [], []
        self.counted = collections.Counter()
        self.log = collections.deque(maxlen=LOG_LINES_MAX)
        self.authorizations = set()
        self.held, self.releasing = 0, None
        self.page_items_max = 0  # if not 0, a page of a list has at most this number of objects
        self.watch_seconds = 0  # if not 0, a watch ends after this time
        self.gone_as_event = False  # whether a watch from a forgotten version begins with 200
        self.retry_after, self.slow_bytes, self.slow_seconds = 1, 64, 0.002
        self.server = None
        # The port stays reserved while the server does not listen.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.reserved.getsockname()[1]

    @property
    def url(self):
        return "%s://%s" % ("https" if self.context else "http", self.address)

    def __enter__(self):
        print("fake kube-apiserver: seed=%d" % self.seed, file=sys.stderr, flush=True)
        self.start_listening()
        return self

    def __exit__(self, *_):
        self.release(False)
        if self.server is not None:
            self.stop_listening()
        self.reserved.close()

    def start_listening(self):
        self.server = Server(self, self.reserved.getsockname(), self.context)
        threading.Thread(
            target=self.server.serve_forever, args=(0.02,), name="fake-api", daemon=True
        ).start()

    def stop_listening(self):
        """Refuses new connections and ends the present ones."""
        self.server.stop()
        self.server = None

    def restart(self):
        self.stop_listening()
        self.start_listening()

    # ---- faults

    def set_rules(self, *rules):
        for rule in rules:
            if rule.kind not in KINDS or rule.request not in ("",) + REQUESTS:
                raise ValueError("unknown kind or request: %s" % rule)
        with self.changed:
            self.rules = list(rules)

    def set_tokens(self, tokens):
        with self.changed:
            self.tokens = set(tokens)

    def release(self, carry_out=True):
        """Lets the held requests continue. Without `carry_out` their connections end instead."""
        with self.changed:
            self.releasing = carry_out
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.held == 0)
            self.releasing = None

    def compact(self, after_watches=False):
        """Forgets the history. With `after_watches`, waits until each watch has sent all changes,
        so that no open watch gets 410."""

        def sent():
            return all(watch.version == self.store.version for watch in self.watches)

        with self.changed:
            if after_watches:
                self.wait_for("the watches to send all changes", sent)
            self.store.compact()

    def send_bookmarks(self):
        with self.changed:
            for watch in self.watches:
                watch.marking = True
            self.changed.notify_all()

    def end_watches(self, how="end"):
        """Ends all watches: "end" is an orderly end, and "cut" ends the connection."""
        with self.changed:
            for watch in self.watches:
                watch.ended = how
            self.changed.notify_all()

    def inject(self, data):
        """Sends bytes to all watches. Returns the number of watches."""
        with self.changed:
            for watch in self.watches:
                watch.raw.append(data)
            self.changed.notify_all()
            return len(self.watches)

    # ---- calls of users

    def apply(self, name, spec, annotations=None):
        return self._change(self.store.apply, name, spec, annotations)

    def put(self, value):
        return self._change(self.store.put, value)

    def delete(self, name):
        return self._change(self.store.delete, name)

    def touch(self, name):
        return self._change(self.store.touch, name)

    def remove(self, name):
        return self._change(self.store.remove, name)

    def get(self, name):
        """Returns the object, or None."""
        with self.changed:
            return copy.deepcopy(self.store.objects.get(name))

    def status(self, name):
        """Returns the status of the object, which is {} for an object without one."""
        return (self.get(name) or {}).get("status") or {}

    def condition(self, name, kind):
        """Returns (status, reason, message) of a condition, or ("", "", "")."""
        for condition in self.status(name).get("conditions", ()):
            if condition["type"] == kind:
                return tuple(condition.get(key, "") for key in ("status", "reason", "message"))
        return "", "", ""

    def changes(self, name):
        """Returns (version, type, object) of each change of the objects with this name."""
        with self.changed:
            return [copy.deepcopy(c[1:]) for c in self.store.all_changes if c[0] == name]

    def reasons(self, name):
        """Returns the reasons of the Events about the object, in the order of their creation."""
        with self.changed:
            events = list(self.store.events.values())
        return [e["reason"] for e in events if e["involvedObject"]["name"] == name]

    # ---- the view of the test

    @property
    def violations(self):
        return self.store.violations

    def counts(self):
        """Returns the numbers of requests and faults of each kind, and of answers with errors."""
        with self.changed:
            return dict(self.counted)

    def requests(self, kind=""):
        """Returns (kind, method, target) of the recent requests."""
        with self.changed:
            return [entry for entry in self.log if kind in ("", entry[0])]

    def wait_for(self, what, predicate, seconds=60):
        """Waits until `predicate()` is true, and returns its value. It is called after each change
        and each request, with the lock held, so it must be short."""
        with self.changed:
            value = self.changed.wait_for(predicate, seconds)
            if value:
                return value
            text = ["waited %.0f s for: %s" % (seconds, what), "counts: %s" % dict(self.counted)]
            text += ["  %s %s %s" % entry for entry in list(self.log)[-12:]]
            for name, value in list(self.store.objects.items())[:8]:
                status = value.get("status") if isinstance(value, dict) else None
                text.append("%s: %s" % (name, json.dumps(status)))
            raise AssertionError("\n".join(text))

    # ---- calls of the handlers

    def begin(self, request, method, target, authorization):
        with self.changed:
            self.log.append((request, method, target))
            if authorization:
                self.authorizations.add(authorization)
            self.counted[request] += 1
            self.counted["requests"] += 1
            self.changed.notify_all()

    def choose(self, request, name):
        with self.changed:
            fault = next((rule.kind for rule in self.rules if rule.fits(request, name)), None)
        if fault:
            self.count(fault)
        return fault

    def hold(self):
        with self.changed:
            self.held += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.releasing is not None)
            carry_out = self.releasing
            self.held -= 1
            self.changed.notify_all()
        if not carry_out:
            raise Disconnect

    def count(self, what):
        with self.changed:
            self.counted[what] += 1
            self.changed.notify_all()

    def violate(self, text):
        with self.changed:
            self.violations.append(text)

    def _change(self, function, *arguments):
        with self.changed:
            result = function(*arguments)
            self.changed.notify_all()
            return result
