#!/usr/bin/env python3
"""Tests the fault proxy: without faults all bytes pass, each kind of fault happens as it is
described, rules and seeds choose the faults, and wrong signatures are refused.

  fault_proxy_test.py [unittest arguments]
"""
import hashlib
import http.client
import http.server
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fault_proxy import TRANSIENT, FaultProxy, ProxyProcess, Rule  # noqa: E402
from signature_check import import_botocore  # noqa: E402
from testing import main, send  # noqa: E402

try:
    botocore = import_botocore()
except ImportError:
    botocore = None
BIG = random.Random(7).randbytes(3_000_000)


class Store(http.server.BaseHTTPRequestHandler):
    """A PUT is kept as (method, path, headers, SHA-256 of the body). GET /N answers N bytes of BIG,
    and GET /chunked/N does so in chunks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_PUT(self):
        length, digest = int(self.headers.get("Content-Length") or 0), hashlib.sha256()
        while length:
            data = self.rfile.read(min(length, 1 << 16))
            if not data:
                self.server.short += 1
                self.close_connection = True
                return
            length -= len(data)
            digest.update(data)
        self.server.kept.append((self.command, self.path, self.headers, digest.hexdigest()))
        self.reply(b"")

    def do_GET(self):
        self.server.kept.append((self.command, self.path, self.headers, ""))
        data = BIG[: int(self.path.rpartition("/")[2])]
        if "chunked" not in self.path:
            return self.reply(data)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(data), 100_000):
            piece = data[at : at + 100_000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    do_HEAD = do_GET

    def reply(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class Case(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
        self.server.daemon_threads = True
        self.server.kept, self.server.short = [], 0
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.to = "127.0.0.1:%d" % self.server.server_port

    def proxy(self, **settings):
        return self.enterContext(FaultProxy(self.to, **settings))

    def paths(self):
        return [path for _, path, _, _ in self.server.kept]


class Passing(Case):
    def test_bodies_of_any_size_pass_whole_on_one_connection(self):
        proxy = self.proxy()
        connection = http.client.HTTPConnection(proxy.address, timeout=30)
        for size in (0, 1, 65536, 65537, len(BIG)):
            with self.subTest(size):
                status, _, _ = send("", "PUT", "/key", BIG[:size], connection=connection)
                self.assertEqual(status, 200)
                want = hashlib.sha256(BIG[:size]).hexdigest()
                self.assertEqual(self.server.kept[-1][3], want)
                got = send("", "GET", "/%d" % size, connection=connection)[2]
                self.assertTrue(got == BIG[:size])
        _, headers, body = send("", "HEAD", "/77", connection=connection)
        self.assertEqual((headers["content-length"], body), ("77", b""))
        connection.close()
        self.assertEqual(proxy.counts()["connections"], 1)
        self.assertTrue(send(proxy.address, "GET", "/chunked/250000")[2] == BIG[:250000])

    def test_the_store_gets_the_target_and_the_headers_as_they_were_sent(self):
        proxy = self.proxy()
        target = "/bucket/a%20b%2Fc//d?list-type=2&prefix=%C3%A4&x="
        send(proxy.address, "PUT", target, b"x", {"X-Amz-Meta-A": "b", "Host": "store.example"})
        _, path, headers, _ = self.server.kept[0]
        self.assertEqual(path, target)
        self.assertEqual((headers["x-amz-meta-a"], headers["host"]), ("b", "store.example"))
        proxy.set_dropped_headers(["If-None-Match"])
        send(proxy.address, "PUT", "/key", b"x", {"If-None-Match": "*", "X-Other": "1"})
        self.assertIsNone(self.server.kept[1][2]["if-none-match"])
        self.assertEqual(self.server.kept[1][2]["x-other"], "1")

    def test_a_client_that_waits_for_100_continue_gets_it(self):
        proxy = self.proxy()
        host, port = proxy.address.split(":")
        with socket.create_connection((host, int(port)), 30) as s:
            s.sendall(b"PUT /k HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n")
            s.sendall(b"Expect: 100-continue\r\n\r\n")
            self.assertEqual(s.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(b"ok")
            self.assertIn(b" 200 ", s.recv(1000))

    def test_a_process_passes_large_bodies_in_little_memory(self):
        with ProxyProcess(self.to) as proxy:
            body = (BIG for _ in range(40))
            headers = {"Content-Length": str(40 * len(BIG))}
            self.assertEqual(send(proxy.address, "PUT", "/k", body, headers)[0], 200)
            with open("/proc/%d/status" % proxy.process.pid) as f:
                peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
            self.assertEqual(proxy.counts()["bytes-up"], 40 * len(BIG))
            self.assertLess(peak, 80_000)  # KiB

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            files = os.path.join(folder, "cert"), os.path.join(folder, "key")
            command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
            command += " -subj /CN=store -addext subjectAltName=IP:127.0.0.1 -days 1"
            subprocess.run(
                command.split() + ["-out", files[0], "-keyout", files[1]],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            proxy = self.proxy(tls=files)
            self.assertTrue(proxy.url.startswith("https://127.0.0.1:"))
            context = ssl.create_default_context(cafile=files[0])
            with self.assertRaises(ssl.SSLError):
                strange = ssl.create_default_context()
                connection = http.client.HTTPSConnection(proxy.address, context=strange, timeout=30)
                connection.request("GET", "/1")
            connection = http.client.HTTPSConnection(proxy.address, context=context, timeout=30)
            self.assertTrue(send("", "GET", "/300000", connection=connection)[2] == BIG[:300000])
            connection.close()


class Faults(Case):
    BROKEN = (http.client.HTTPException, ConnectionError)

    def one(self, kind, method="PUT", target="/key", body=b"x" * 100_000, seed=1):
        """Sends one request with this fault, and then one without a fault."""
        proxy = self.proxy(seed=seed)
        proxy.set_rules([Rule(kind)])
        try:
            answer = send(proxy.address, method, target, body if method == "PUT" else None)
            if "content-length" not in answer[1]:  # http.client ignores that the headers end early
                raise http.client.HTTPException
            return answer
        finally:
            self.assertEqual(send(proxy.address, "GET", "/5")[2], BIG[:5])
            self.assertEqual(proxy.counts()[kind], 1)
            self.assertEqual(proxy.requests()[0][:3], [method, target, kind])

    def test_faults_before_the_store_has_the_request(self):
        for seed in range(8):
            for body in (b"", b"x", b"x" * 300_000):
                with self.subTest(seed=seed, body=len(body)):
                    self.assertRaises(self.BROKEN, self.one, "cut-request", body=body, seed=seed)
        for kind, statuses, code in (
            ("error-500", {500}, b"<Code>InternalError</Code>"),
            ("slow-down", {503}, b"<Code>SlowDown</Code>"),
            ("expired-token", {400, 403}, b"<Code>ExpiredToken</Code>"),
        ):
            seen = set()
            for seed in range(8):
                status, headers, body = self.one(kind, seed=seed)
                self.assertIn(code, body)
                self.assertEqual(headers.get("retry-after"), "1" if status == 503 else None)
                seen.add(status)
            self.assertEqual(seen, statuses)
            self.assertEqual(self.one(kind, "HEAD")[2], b"")
        self.assertNotIn("/key", self.paths())

    def test_faults_after_the_store_has_the_request(self):
        for seed in range(8):
            for kind in ("lost-answer", "cut-response", "wrong-length"):
                for method, target in (("PUT", "/key"), ("GET", "/200000"), ("HEAD", "/9")):
                    with self.subTest(kind, seed=seed, method=method):
                        self.server.kept.clear()
                        self.assertRaises(self.BROKEN, self.one, kind, method, target, seed=seed)
                        self.assertIn(target, self.paths())

    def test_a_wrong_length_is_announced_with_all_bytes(self):
        proxy = self.proxy()
        proxy.set_rules([Rule("wrong-length")])
        with self.assertRaises(http.client.IncompleteRead) as caught:
            send(proxy.address, "GET", "/1000")
        self.assertEqual(caught.exception.partial, BIG[:1000])
        self.assertTrue(1 <= caught.exception.expected <= 1000)

    def test_slow_bodies_and_stalls_take_their_time(self):
        proxy = self.proxy()
        proxy.set_faults(slow_bytes_per_second=200_000)
        proxy.set_rules([Rule("slow", path="/60000")])
        begun = time.monotonic()
        self.assertEqual(len(send(proxy.address, "GET", "/60000")[2]), 60_000)
        self.assertGreater(time.monotonic() - begun, 0.25)
        proxy.set_stalls(0.4, 3600)
        begun = time.monotonic()
        self.assertEqual(len(send(proxy.address, "GET", "/60001")[2]), 60_001)
        self.assertGreater(time.monotonic() - begun, 0.3)
        self.assertEqual(proxy.counts()["stalls"], 1)

    def test_rules_choose_by_method_and_path_and_number(self):
        proxy = self.proxy()
        proxy.set_rules(
            [
                Rule("error-500", method="PUT", path="manifest", skip=1, times=2),
                Rule("slow-down", path="list-type", times=None),
                Rule("error-500", path="third", every=3, times=2),
                Rule("expired-token", when=lambda request: request.header("x-odd") == "1"),
            ]
        )

        def status(method, target, headers=()):
            return send(proxy.address, method, target, b"", headers)[0]

        self.assertEqual([status("PUT", "/manifest") for _ in range(4)], [200, 500, 500, 200])
        self.assertEqual(status("GET", "/manifest/1"), 200)
        self.assertEqual({status("GET", "/?list-type=2") for _ in range(5)}, {503})
        thirds = [status("PUT", "/third") for _ in range(8)]
        self.assertEqual(thirds, [500, 200, 200, 500, 200, 200, 200, 200])
        self.assertEqual(status("PUT", "/a", {"X-Odd": "0"}), 200)
        self.assertIn(status("PUT", "/a", {"X-Odd": "1"}), (400, 403))
        self.assertEqual(len(proxy.requests("PUT", "manifest")), 4)

    def test_a_seed_repeats_its_faults_at_about_the_requested_rate(self):
        def faults(seed):
            proxy = self.proxy(seed=seed)
            proxy.set_faults(rate=0.2)
            for _ in range(200):
                try:
                    send(proxy.address, "PUT", "/key", b"x" * 1000)
                except self.BROKEN:
                    pass
            return [line[2] for line in proxy.requests()]

        first = faults(5)
        self.assertEqual(first, faults(5))
        self.assertNotEqual(first, faults(6))
        happened = [kind for kind in first if kind]
        self.assertTrue(20 < len(happened) < 65, len(happened))
        self.assertEqual(set(happened), set(TRANSIENT))

    def test_a_store_that_does_not_listen_ends_the_connection(self):
        proxy = self.proxy()
        with socket.socket() as unused:  # bound, but it does not listen
            unused.bind(("127.0.0.1", 0))
            proxy.to = "127.0.0.1:%d" % unused.getsockname()[1]
            self.assertRaises(self.BROKEN, send, proxy.address, "GET", "/1")
        self.assertEqual(proxy.counts()["no-store"], 1)


class Processes(Case):
    def test_a_process_has_the_methods_of_the_class_and_ends_with_its_stdin(self):
        with ProxyProcess(self.to, seed=3) as proxy:
            proxy.set_rules(rules=[{"kind": "error-500", "path": "/key", "times": None}])
            self.assertEqual(send(proxy.address, "PUT", "/key", b"x")[0], 500)
            self.assertEqual(proxy.counts()["error-500"], 1)
            (line,) = proxy.requests("PUT", path="/key")
            self.assertEqual(line[:4], ["PUT", "/key", "error-500", 500])
            with self.assertRaisesRegex(ValueError, "unknown kind nonsense"):
                proxy.set_rules(rules=[{"kind": "nonsense"}])
            with self.assertRaisesRegex(ValueError, "rate 2"):
                proxy.set_faults(rate=2)
            self.assertRaises(AttributeError, lambda: proxy.loop)
            self.assertEqual(send(proxy.address, "GET", "/3")[2], BIG[:3])
        self.assertEqual(proxy.process.returncode, 0)


@unittest.skipUnless(botocore, "no botocore in build/venv (deploy/scripts/venv.sh)")
class Signatures(Case):
    def signed(self, proxy, body, secret="secret", sent=None):
        request = botocore.awsrequest.AWSRequest(
            "PUT", "http://%s/b/k" % proxy.address, {"Host": proxy.address}, body
        )
        credentials = botocore.credentials.Credentials("AKIA1", secret)
        botocore.auth.S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
        return send(proxy.address, "PUT", "/b/k", sent or body, request.headers.items())

    def test_only_requests_that_a_known_key_has_signed_reach_the_store(self):
        proxy = self.proxy()
        proxy.set_keys({"AKIA1": {"secret": "secret"}})
        self.assertEqual(self.signed(proxy, b"body" * 50_000)[0], 200)
        self.assertEqual(self.signed(proxy, b"")[0], 200)
        self.assertEqual(len(self.server.kept), 2)
        for status, code, answer in (
            (403, b"SignatureDoesNotMatch", self.signed(proxy, b"body", "Secret")),
            (403, b"AccessDenied", send(proxy.address, "GET", "/1")),
            (
                400,
                b"XAmzContentSHA256Mismatch",
                self.signed(proxy, b"body" * 50_000, sent=b"bodY" * 50_000),
            ),
        ):
            self.assertEqual(answer[0], status)
            self.assertIn(code, answer[2])
        self.assertEqual(len(self.server.kept), 2)
        self.assertEqual(proxy.counts()["refused-SignatureDoesNotMatch"], 1)
        for authorization in proxy.seen_authorizations():
            self.assertRegex(authorization, "Credential=AKIA1/.*Signature=[0-9a-f]{64}")
        proxy.set_keys({"AKIA1": {"secret": "secret", "state": "expired"}})
        self.assertIn(b"ExpiredToken", self.signed(proxy, b"body")[2])
        proxy.set_keys(None)
        self.assertEqual(send(proxy.address, "GET", "/1")[0], 200)


if __name__ == "__main__":
    main()
