#!/usr/bin/env python3
"""An HTTP proxy that stands between clients and an object store, and makes the store fail by seed.

  fault_proxy.py --to HOST:PORT [--listen HOST:PORT] [--seed N] [--rate 5%]
                 [--tls-cert FILE --tls-key FILE]

The class FaultProxy runs the proxy on a thread. The class ProxyProcess runs it as a process, for
example in another network namespace. Both have the same methods (CALLS). A process prints its
address as one line of JSON. It then reads calls from stdin, one line of JSON each, such as
{"call": "set_faults", "with": {"rate": 0.05}}, and answers each with one line. It ends with the end
of stdin.

The first rule that fits a request (`set_rules`) chooses its fault. Other requests fail by chance
(`set_faults`). The n-th request of a seed always draws the same fault. Bodies pass in pieces of
64 KiB, so the proxy needs little memory for bodies of any size. The kinds of faults are:

  cut-request    the connection ends in the middle of the request's body
  cut-response   the connection ends in the middle of the response
  error-500      500 InternalError; the store does not get the request
  slow-down      503 SlowDown with Retry-After; the store does not get the request
  wrong-length   the response announces more bytes than it has, and the connection ends
  lost-answer    the store does what the request asks, and the connection ends without a response
  slow           bodies pass at `slow_bytes_per_second`
  expired-token  400 or 403 ExpiredToken; the store does not get the request
"""
import argparse
import asyncio
import collections
import dataclasses
import datetime
import hashlib
import json
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from signature_check import VENV, Checker, Key, Refusal  # noqa: E402

PIECE = 64 * 1024
LOG_LINES_MAX = 20_000
# A client that gives up after some attempts survives these kinds.
TRANSIENT = (
    "cut-request",
    "cut-response",
    "error-500",
    "slow-down",
    "wrong-length",
    "lost-answer",
)
KINDS = TRANSIENT + ("slow", "expired-token")
ANSWERS = {
    "error-500": ((500,), "InternalError", "We encountered an internal error."),
    "slow-down": ((503,), "SlowDown", "Please reduce your request rate."),
    "expired-token": ((400, 403), "ExpiredToken", "The provided token has expired."),
}
# Headers of one connection, which are not passed on.
HOP_BY_HOP = {"connection", "keep-alive", "expect", "transfer-encoding", "upgrade"}


class Disconnect(Exception):
    """The proxy ends the connection of the client."""


@dataclasses.dataclass
class Rule:
    """Chooses a fault for requests of a method whose target contains `path` (both "" for any). The
    rule skips the first `skip` requests that fit, and then applies to every `every`-th of them, in
    all to `times` (None: without end). `when` is a function of the Request, for rules in the same
    process."""

    kind: str
    method: str = ""
    path: str = ""
    skip: int = 0
    every: int = 1
    times: int = 1
    when: object = None
    seen: int = 0
    applied: int = 0

    def fits(self, request):
        if self.method not in ("", request.method) or self.path not in request.target:
            return False
        if self.when is not None and not self.when(request):
            return False
        self.seen += 1
        after = self.seen - self.skip - 1
        if after < 0 or after % self.every or self.applied == self.times:
            return False
        self.applied += 1
        return True


class Request:
    """The head of a request. `number` counts the requests of the proxy from 1."""

    def __init__(self, number, first, headers):
        self.number, self.headers = number, headers
        try:
            self.method, self.target, self.version = first.split(" ")
            self.length = int(self.header("content-length") or 0)
        except ValueError:
            raise Disconnect
        self.expects = self.header("expect").lower() == "100-continue"
        self.keeps = self.version == "HTTP/1.1" and self.header("connection").lower() != "close"

    def header(self, name):
        return next((value for other, value in self.headers if other.lower() == name), "")


async def read_head(reader):
    """Returns the first line and the headers of a message, or None at the end of the stream."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as why:
        if why.partial:
            raise Disconnect
        return None
    first, *lines = data[:-4].decode("latin-1").split("\r\n")
    parts = [line.partition(":") for line in lines]
    return first, [(name, value.strip()) for name, _, value in parts]


def head_bytes(first, headers):
    lines = [first] + ["%s: %s" % header for header in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def without(headers, names):
    return [(name, value) for name, value in headers if name.lower() not in names]


class Exchange:
    """One request and its response."""

    def __init__(self, proxy, request, reader, writer):
        self.proxy, self.request, self.reader, self.writer = proxy, request, reader, writer
        self.draw = random.Random("%s/%d" % (proxy.seed, request.number))
        self.fault = proxy.choose(request, self.draw)
        at = datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%S.%f")
        self.log_line = [request.method, request.target, self.fault, 0, at]
        proxy.log.append(self.log_line)
        self.left = request.length  # bytes of the body that have not been read
        self.far_reader = self.far_writer = None

    async def run(self):
        """Returns whether the connection can carry another request."""
        if self.request.header("transfer-encoding"):
            return await self.answer(411, "MissingContentLength", "A length is required.")
        try:
            want = self.proxy.check(self.request)
            if self.fault in ANSWERS:
                statuses, code, message = ANSWERS[self.fault]
                return await self.answer(self.draw.choice(statuses), code, message)
            await self.forward(want)
        except Refusal as why:
            self.proxy.count("refused-" + why.code)
            return await self.answer(why.status, why.code, why.message)
        except Disconnect:
            self.abort(self.writer)
            return False
        finally:
            if self.far_writer is not None:
                self.far_writer.close()
        return self.request.keeps

    # ---- the request

    async def pieces(self):
        """Yields the body of the request."""
        while self.left:
            data = await self.reader.read(min(PIECE, self.left))
            if not data:
                raise Disconnect
            self.left -= len(data)
            self.proxy.count("bytes-up", len(data))
            yield data

    async def forward(self, want):
        """Sends the request to the store, and the response to the client. Each piece is held back
        until the next one has come, so that the store never gets the end of a request whose body
        has another hash than `want`."""
        request, digest = self.request, hashlib.sha256()
        await self.open()
        headers = without(request.headers, HOP_BY_HOP | self.proxy.dropped_headers)
        first = "%s %s HTTP/1.1" % (request.method, request.target)
        held = head_bytes(first, headers + [("Connection", "close")])
        cut_after = None
        if self.fault == "cut-request":
            cut_after = self.draw.randrange(max(1, request.length))
        if request.expects:
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for piece in self.pieces():
            digest.update(piece)
            await self.send(self.far_writer, held)
            held = piece
            if cut_after is not None and request.length - self.left > cut_after:
                break
        if cut_after is not None:
            # A server could take half of a head for a whole one, so it gets none.
            if request.length > self.left:
                await self.send(self.far_writer, held[: len(held) // 2])
            self.abort(self.far_writer)
            raise Disconnect
        if want is not None and digest.hexdigest() != want:
            self.abort(self.far_writer)
            raise Refusal(400, "XAmzContentSHA256Mismatch", "The body has another SHA-256.")
        await self.send(self.far_writer, held)
        await self.respond()

    async def open(self):
        host, port = self.proxy.to.rsplit(":", 1)
        try:
            self.far_reader, self.far_writer = await asyncio.open_connection(
                host.strip("[]"), int(port), limit=PIECE
            )
        except OSError:
            self.proxy.count("no-store")
            raise Disconnect
        no_delay(self.far_writer)
        self.proxy.count("forwarded")

    # ---- the response

    async def respond(self):
        head = await read_head(self.far_reader)
        while head is not None and head[0].split(" ")[1].startswith("1"):
            head = await read_head(self.far_reader)
        if head is None:
            self.proxy.count("no-response")
            raise Disconnect
        first, headers = head
        self.log_line[3] = status = int(first.split(" ")[1])
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        chunked = any(name.lower() == "transfer-encoding" for name, _ in headers)
        if self.request.method == "HEAD" or status in (204, 304):
            body, size = self.nothing(), 0
        elif chunked:
            body, size = self.chunks(), None
        else:
            size = int(lengths[0]) if lengths else None
            body = self.plain(size)
        if self.fault == "lost-answer":
            async for _ in body:
                pass
            raise Disconnect
        await self.pass_on(first, without(headers, HOP_BY_HOP), body, size)

    async def pass_on(self, first, headers, body, size):
        fault = self.fault
        if fault == "wrong-length" and not size:
            fault = "cut-response"  # a response without a body
        if fault == "wrong-length":
            headers = without(headers, {"content-length"})
            headers.append(("Content-Length", str(size + self.draw.randint(1, 1000))))
        if size is None:
            self.request.keeps = False  # the end of the connection is the end of the body
        if not self.request.keeps:
            headers.append(("Connection", "close"))
        head = head_bytes(first, headers)
        if fault == "cut-response" and not size:
            await self.send(self.writer, head[: self.draw.randrange(len(head) // 2)])
            raise Disconnect
        await self.send(self.writer, head)
        cut_after = self.draw.randrange(size) if fault == "cut-response" else None
        sent = 0
        async for piece in body:
            if cut_after is not None and sent + len(piece) > cut_after:
                await self.send(self.writer, piece[: cut_after - sent])
                raise Disconnect
            await self.send(self.writer, piece)
            self.proxy.count("bytes-down", len(piece))
            sent += len(piece)
        if fault == "wrong-length":
            self.writer.close()  # after all bytes, and without a reset
            raise Disconnect

    async def nothing(self):
        return
        yield

    async def plain(self, size):
        """Yields a body of `size` bytes, or, for None, all bytes until the end of the stream."""
        while size is None or size:
            data = await self.far_reader.read(PIECE if size is None else min(PIECE, size))
            if not data:
                if size:
                    raise Disconnect
                return
            size = None if size is None else size - len(data)
            yield data

    async def chunks(self):
        while True:
            size = int((await self.far_reader.readline()).split(b";")[0] or b"0", 16)
            if size == 0:
                return
            async for data in self.plain(size):
                yield data
            await self.far_reader.readline()

    async def answer(self, status, code, message):
        """Answers in place of the store."""
        self.log_line[3] = status
        if self.request.expects:
            self.request.keeps = False  # the body has not been sent
        else:
            async for _ in self.pieces():
                pass
        mark = "proxy-%d" % self.request.number
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>%s</Message>'
            "<RequestId>%s</RequestId></Error>" % (code, message, mark)
        ).encode()
        headers = [("Content-Type", "application/xml"), ("x-amz-request-id", mark)]
        headers.append(("Content-Length", str(len(text))))
        if status == 503:
            headers.append(("Retry-After", str(self.proxy.retry_after)))
        if not self.request.keeps:
            headers.append(("Connection", "close"))
        head = head_bytes("HTTP/1.1 %d %s" % (status, code), headers)
        await self.send(self.writer, head if self.request.method == "HEAD" else head + text)
        return self.request.keeps

    # ---- bytes

    async def send(self, writer, data):
        """Sends bytes, at the rate of this exchange, and not during a stall."""
        step = len(data) or 1
        if self.fault == "slow":
            step = max(1, min(step, self.proxy.slow_bytes_per_second // 4))
        for at in range(0, len(data), step):
            if self.fault == "slow":
                await asyncio.sleep(step / self.proxy.slow_bytes_per_second)
            await self.proxy.gate.wait()
            writer.write(data[at : at + step])
            await writer.drain()

    def abort(self, writer):
        """Ends a connection, by chance with a reset or in an orderly way."""
        if not writer.transport.is_closing() and self.draw.random() < 0.5:
            reset(writer)
        writer.close()


def no_delay(writer):
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset(writer):
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


class FaultProxy:
    """The proxy, on a thread of its own. `to` is the HOST:PORT of the store, which is reached
    without TLS. `tls` is (certificate file, key file), or None for plain HTTP."""

    def __init__(self, to, seed=1, listen="127.0.0.1:0", tls=None, venv=VENV):
        self.to, self.seed, self.listen, self.tls, self.venv = to, seed, listen, tls, venv
        self.address = ""
        self.rate, self.kinds, self.rules = 0.0, TRANSIENT, []
        self.slow_bytes_per_second, self.retry_after = 64 * 1024, 1
        self.dropped_headers = set()
        self.checker = None
        self.counted = collections.Counter()
        self.log = collections.deque(maxlen=LOG_LINES_MAX)
        self.authorizations = {}  # the values of recent Authorization headers, in order
        self.stalling = None
        self.tasks = set()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def url(self):
        return "%s://%s" % ("https" if self.tls else "http", self.address)

    def start(self):
        print("fault proxy: seed=%d" % self.seed, file=sys.stderr, flush=True)
        self.thread.start()
        self._in_loop(self._open())
        return self

    def stop(self):
        self._in_loop(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    # ---- calls, from any thread

    def set_faults(self, rate=0.0, kinds=TRANSIENT, slow_bytes_per_second=64 * 1024, retry_after=1):
        """Sets the share of the requests that fail by chance, and the kinds of these faults."""
        unknown = set(kinds) - set(KINDS)
        if unknown or not 0 <= rate <= 1:
            raise ValueError("unknown kinds %s, or rate %s" % (sorted(unknown), rate))
        self.slow_bytes_per_second, self.retry_after = slow_bytes_per_second, retry_after
        self.rate, self.kinds = rate, tuple(kinds)

    def set_rules(self, rules):
        """Replaces the rules. A rule is a Rule or its fields as a dict."""
        rules = [rule if isinstance(rule, Rule) else Rule(**rule) for rule in rules]
        for rule in rules:
            if rule.kind not in KINDS:
                raise ValueError("unknown kind %s" % rule.kind)
        self.rules = rules

    def set_keys(self, keys, region=None):
        """Sets the access keys that the store knows, as {id: Key or its fields}. From now on each
        request must be signed by one of them. None ends the check of signatures."""
        if keys is None:
            self.checker = None
            return
        keys = {name: key if isinstance(key, Key) else Key(**key) for name, key in keys.items()}
        self.checker = Checker(keys, region, venv=self.venv)

    def set_dropped_headers(self, names):
        """Sets the request headers that the store does not get. Without If-None-Match it is a store
        that ignores conditions."""
        self.dropped_headers = {name.lower() for name in names}

    def set_stalls(self, seconds, every, first=0.0):
        """Stops all bytes for `seconds` in each period of `every` seconds. The first stall begins
        after `first` seconds. 0 seconds end the stalls."""
        self._in_loop(self._set_stalls(seconds, every, first))

    def counts(self):
        """Returns how many requests, faults of each kind, refusals and stalls there have been."""
        return dict(self.counted)

    def requests(self, method="", path=""):
        """Returns [method, target, fault or None, status or 0, time] of the recent requests that
        fit."""
        return [line for line in list(self.log) if method in ("", line[0]) and path in line[1]]

    def seen_authorizations(self):
        """Returns the values of recent Authorization headers. No file may contain one of them."""
        return list(self.authorizations)

    # ---- on the loop's thread

    def choose(self, request, draw):
        by_chance = draw.choice(self.kinds) if draw.random() < self.rate else None
        fault = next((rule.kind for rule in self.rules if rule.fits(request)), by_chance)
        if fault:
            self.count(fault)
        return fault

    def check(self, request):
        """Returns the SHA-256 that the body must have, or None."""
        authorization = request.header("authorization")
        if authorization:
            self.authorizations[authorization] = True
            if len(self.authorizations) > LOG_LINES_MAX:
                self.authorizations.pop(next(iter(self.authorizations)))
        if self.checker is None:
            return None
        scheme = "https" if self.tls else "http"
        return self.checker.check(request.method, request.target, request.headers, scheme)

    def count(self, what, by=1):
        self.counted[what] += by

    async def _set_stalls(self, seconds, every, first):
        if self.stalling is not None:
            self.stalling.cancel()
        self.gate.set()
        if seconds:
            self.stalling = asyncio.ensure_future(self._stall(seconds, every, first))

    async def _stall(self, seconds, every, first):
        await asyncio.sleep(first)
        while True:
            self.count("stalls")
            self.gate.clear()
            await asyncio.sleep(seconds)
            self.gate.set()
            await asyncio.sleep(every - seconds)

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._failed)
        self.loop.run_forever()

    def _failed(self, loop, context):
        # A client that does not accept the certificate ends the handshake.
        if "SSL" in context["message"]:
            self.count("no-handshake")
        else:
            loop.default_exception_handler(context)

    def _in_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def _open(self):
        self.gate = asyncio.Event()
        self.gate.set()
        host, port = self.listen.rsplit(":", 1)
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
        self.server = await asyncio.start_server(
            self._accepted, host.strip("[]"), int(port), limit=PIECE, ssl=context
        )
        name = self.server.sockets[0].getsockname()
        self.address = "%s:%d" % ("[%s]" % name[0] if ":" in name[0] else name[0], name[1])

    async def _accepted(self, reader, writer):
        self.count("connections")
        self.tasks.add(asyncio.current_task())
        no_delay(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (Disconnect, OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError):
            pass  # the client or the store has ended the connection, or has sent no HTTP
        except asyncio.CancelledError:
            pass  # stop()
        finally:
            self.tasks.discard(asyncio.current_task())
            writer.close()

    async def _exchange(self, reader, writer):
        head = await read_head(reader)
        if head is None:
            return False
        await self.gate.wait()
        self.count("requests")
        request = Request(self.counted["requests"], *head)
        return await Exchange(self, request, reader, writer).run()

    async def _close(self):
        await self._set_stalls(0, 0, 0)
        self.server.close()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


CALLS = (
    "set_faults",
    "set_rules",
    "set_keys",
    "set_dropped_headers",
    "set_stalls",
    "counts",
    "requests",
    "seen_authorizations",
)


class ProxyProcess:
    """The proxy as a process. `prefix` are words before its command line, for example to start it
    in another network namespace. It has the methods of CALLS. Rules and keys are dicts there. The
    process also ends with its parent, because its stdin then ends."""

    def __init__(self, to, seed=1, listen="127.0.0.1:0", tls=None, prefix=()):
        command = [sys.executable, os.path.abspath(__file__), "--to", to, "--listen", listen]
        command += ["--seed", str(seed)]
        if tls:
            command += ["--tls-cert", tls[0], "--tls-key", tls[1]]
        self.tls = tls
        self.process = subprocess.Popen(
            list(prefix) + command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._line()["address"]
        self.url = "%s://%s" % ("https" if tls else "http", self.address)

    def __getattr__(self, name):
        if name not in CALLS:
            raise AttributeError(name)
        return lambda *values, **named: self._call({"call": name, "values": values, "with": named})

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the fault proxy ended with %s" % self.process.wait())
        return json.loads(line)

    def _call(self, call):
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        answer = self._line()
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["result"]

    def stop(self):
        """Ends the process. A repeated call does nothing."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(30)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def share(text):
    if not text.endswith("%"):
        raise argparse.ArgumentTypeError("want a share such as 5%%, got %s" % text)
    return float(text[:-1]) / 100


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=share, default=0.0, metavar="SHARE")
    parser.add_argument("--tls-cert", metavar="FILE")
    parser.add_argument("--tls-key", metavar="FILE")
    a = parser.parse_args()
    tls = (a.tls_cert, a.tls_key) if a.tls_cert else None
    with FaultProxy(a.to, a.seed, a.listen, tls) as proxy:
        proxy.set_faults(a.rate)
        print(json.dumps({"address": proxy.address, "seed": a.seed}), flush=True)
        for line in sys.stdin:
            try:
                call = json.loads(line)
                if call["call"] not in CALLS:
                    raise ValueError("unknown call %s" % call["call"])
                method = getattr(proxy, call["call"])
                answer = {"result": method(*call.get("values", ()), **call.get("with", {}))}
            except Exception as why:  # a wrong call does not end the proxy
                answer = {"error": "%s: %s" % (type(why).__name__, why)}
            print(json.dumps(answer), flush=True)
        print("fault proxy: %s" % proxy.counts(), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
