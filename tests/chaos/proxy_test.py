#!/usr/bin/env python3
"""Tests the proxy itself: bytes arrive whole under every rule, the requested faults happen, the
same seed repeats them, and the proxy runs from the command line.

  proxy_test.py [unittest arguments]
"""
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import wait_for  # noqa: E402
from proxy import Proxy, Rules  # noqa: E402

PROXY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "proxy.py")


class Echo:
    """Sends back every byte that it receives."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(20)
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        try:
            while True:
                threading.Thread(
                    target=self._serve, args=(self.socket.accept()[0],), daemon=True
                ).start()
        except OSError:
            pass  # close()

    def _serve(self, connection):
        with connection:
            try:
                while True:
                    data = connection.recv(65536)
                    if not data:
                        return
                    connection.sendall(data)
            except OSError:
                pass

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def dial(address):
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), timeout=60)
    return s


def asks(s, data=b"?"):
    s.sendall(data)
    return s.recv(len(data))


class ProxyTest(unittest.TestCase):
    def setUp(self):
        self.echo = Echo()
        self.addCleanup(self.echo.close)

    def round_trip(self, address, size):
        data = random.Random(size).randbytes(size)
        with dial(address) as s:
            sender = threading.Thread(
                target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)), daemon=True
            )
            sender.start()
            got = hashlib.sha256()
            while True:
                piece = s.recv(65536)
                if not piece:
                    break
                got.update(piece)
            sender.join()
        self.assertEqual(got.hexdigest(), hashlib.sha256(data).hexdigest())

    def test_bytes_come_whole_and_in_order_under_every_rule(self):
        for rules, at_least in (
            (Rules(), 0),
            (Rules(delay=(0.03, 0.05)), 0.06),
            (Rules(split=(1, 400)), 0),
            (Rules(rate=1 << 20), 0.28),
            (Rules(stall=1.0, stall_for=(0.02, 0.03)), 0.04),
        ):
            with self.subTest(vars(rules)), Proxy(self.echo.address, rules, seed=3) as proxy:
                begun = time.monotonic()
                self.round_trip(proxy.address, 300000)
                self.assertGreater(time.monotonic() - begun, at_least)
                if rules.split:
                    self.assertGreater(proxy.counts["pieces"], 2 * 300000 / 400)
                self.assertEqual(proxy.counts["stalled"] > 0, rules.stall > 0)

    def test_a_cut_holds_what_is_under_way_and_healing_lets_it_through(self):
        with Proxy(self.echo.address) as proxy, dial(proxy.address) as old:
            self.assertEqual(asks(old), b"?")
            for directions in (("up",), ("down",), ()):
                proxy.cut(*directions)
                old.sendall(b"held")
                old.settimeout(0.05)
                self.assertRaises(TimeoutError, old.recv, 4)
                with dial(proxy.address) as new:
                    new.sendall(b"new")
                    new.settimeout(0.05)
                    self.assertRaises(TimeoutError, new.recv, 3)
                    proxy.heal()
                    for s, data in ((old, b"held"), (new, b"new")):
                        s.settimeout(60)
                        self.assertEqual(s.recv(len(data)), data)

    def test_a_silenced_connection_stays_silent_and_a_new_one_works(self):
        for direction in ("up", "down"):
            with Proxy(self.echo.address) as proxy, dial(proxy.address) as old:
                self.assertEqual(asks(old), b"?")
                self.assertEqual(proxy.silence(direction), 1)
                old.sendall(b"nobody hears this")
                old.settimeout(0.05)
                self.assertRaises(TimeoutError, old.recv, 1)
                self.round_trip(proxy.address, 1000)
                proxy.heal()
                self.assertRaises(TimeoutError, old.recv, 1)

    def test_half_open_and_reset_come_as_often_as_they_are_asked_for(self):
        with Proxy(self.echo.address, Rules(half_open=1.0)) as proxy, dial(proxy.address) as s:
            threading.Thread(target=lambda: s.sendall(b"x" * 4000000), daemon=True).start()
            s.settimeout(0.05)

            def fallen_silent():
                """Reads until the connection ends."""
                try:
                    while s.recv(65536):
                        pass
                except TimeoutError:
                    return proxy.counts["half-open"] == 1
                self.fail("the connection was closed")

            wait_for("a direction to fall silent", fallen_silent)
        with Proxy(self.echo.address, Rules(reset=1.0)) as proxy, dial(proxy.address) as s:
            self.assertRaises(ConnectionResetError, asks, s)
            self.assertEqual(proxy.counts["reset"], 1)
        with Proxy(self.echo.address) as proxy, dial(proxy.address) as s:
            self.assertEqual(asks(s), b"?")
            self.assertEqual(proxy.reset_all(), 1)
            self.assertRaises(ConnectionResetError, s.recv, 1)

    def test_a_seed_repeats_its_choices(self):
        def resets(seed):
            """Returns how many questions each of ten connections answered before it was reset."""
            counts = []
            with Proxy(self.echo.address, Rules(reset=0.1), seed) as proxy:
                for _ in range(10):
                    with dial(proxy.address) as s:
                        for n in range(1000):
                            try:
                                if asks(s) != b"?":
                                    break
                            except OSError:
                                break
                        counts.append(n)
            return counts

        self.assertEqual(resets(1), resets(1))
        self.assertNotEqual(resets(1), resets(2))

    def test_a_person_runs_it_and_cuts_and_heals_by_signals(self):
        with tempfile.TemporaryDirectory(prefix="evergrad proxy-") as folder:
            file = os.path.join(folder, "address")
            command = [
                sys.executable,
                PROXY,
                "--listen",
                "127.0.0.1:0",
                "--to",
                self.echo.address,
                "--seed",
                "5",
                "--delay",
                "1ms..2ms",
                "--split",
                "1..1KiB",
                "--address-file",
                file,
            ]
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process:
                try:
                    wait_for(
                        "the proxy to listen",
                        lambda: os.path.exists(file) or process.poll() is not None,
                    )
                    with open(file) as f:
                        address = f.read().strip()
                    self.round_trip(address, 50000)
                    with dial(address) as s:
                        self.assertEqual(asks(s), b"?")
                        process.send_signal(signal.SIGUSR1)

                        def silent():
                            # The signal takes effect only after a while.
                            s.sendall(b"?")
                            s.settimeout(0.1)
                            try:
                                return not s.recv(1)
                            except TimeoutError:
                                return True

                        wait_for("the cut", silent)
                        process.send_signal(signal.SIGUSR2)
                        s.settimeout(60)
                        self.assertEqual(s.recv(1), b"?")
                finally:
                    process.terminate()
                said, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, said)
            self.assertIn("listening on %s for %s, seed=5" % (address, self.echo.address), said)
            self.assertRegex(said, r"connections 2, pieces \d+")

    def test_what_it_does_not_understand_is_refused(self):
        for wrong in (
            ["--delay", "5"],
            ["--delay", "9ms..1ms"],
            ["--reset", "0.1"],
            ["--reset", "101%"],
            ["--rate", "0"],
            ["--split", "x"],
            ["--listen", "127.0.0.1:0"],
        ):
            to = ["--to", "127.0.0.1:1"] if wrong[0] != "--listen" else []
            r = subprocess.run(
                [sys.executable, PROXY] + to + wrong,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(r.returncode, 2, wrong)
            self.assertIn("usage", r.stderr)


if __name__ == "__main__":
    unittest.main()
