#!/usr/bin/env python3
"""Tests moto's server as this project starts it: objects, parallel uploads, conditions, requests
that end early, and the end of the process.

  moto_server_test.py [unittest arguments]
"""
import concurrent.futures
import hashlib
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from moto_server import NO_MOTO, SECRET_KEY, UNCHECKED, MotoServer, has_moto  # noqa: E402
from testing import HERE, alive, main, send, wait_for  # noqa: E402

PART = 5 << 20
STARTER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from moto_server import MotoServer
print(MotoServer(sys.argv[2]).process.pid, flush=True)
os._exit(1)
"""


@unittest.skipUnless(has_moto(), NO_MOTO)
class Moto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="evergrad moto-"))
        cls.store = cls.enterClassContext(MotoServer(cls.folder, buckets=["data", "more"]))

    def test_objects_are_put_and_read_and_listed_and_deleted(self):
        store = self.store
        for key in ("a/1", "a/2 b+ä", "b"):
            store.put("more", key, b"bytes of " + key.encode())
        self.assertEqual(store.keys("more"), ["a/1", "a/2 b+ä", "b"])
        self.assertEqual(store.keys("more", "a/2"), ["a/2 b+ä"])
        self.assertEqual(store.read("more", "a/2 b+ä"), "bytes of a/2 b+ä".encode())
        store.delete("more", "a/1")
        with self.assertRaises(FileNotFoundError):
            store.read("more", "a/1")
        store.make_bucket("third")
        self.assertEqual(store.keys("third"), [])

    def test_parallel_uploads_keep_every_byte(self):
        def upload(number):
            address, target = self.store.address, "/data/upload-%d" % number
            begun = send(address, "POST", target + "?uploads", b"", UNCHECKED)[2].decode()
            name = re.search("<UploadId>(.*)</UploadId>", begun).group(1)
            draw = random.Random(number)
            parts = [draw.randbytes(PART), draw.randbytes(PART + 1), draw.randbytes(100)]

            def put(index):
                query = "?partNumber=%d&uploadId=%s" % (index + 1, name)
                return send(address, "PUT", target + query, parts[index], UNCHECKED)[1]["etag"]

            with concurrent.futures.ThreadPoolExecutor(3) as threads:
                etags = list(threads.map(put, range(3)))
            body = "".join(
                "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>" % (i + 1, etag)
                for i, etag in enumerate(etags)
            )
            body = "<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % body
            status = send(address, "POST", target + "?uploadId=" + name, body, UNCHECKED)[0]
            got = self.store.read("data", "upload-%d" % number)
            return status == 200 and got == b"".join(parts)

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            self.assertEqual(list(threads.map(upload, range(4))), [True] * 4)
        self.assertEqual(self.store.uploads("data"), [])
        # Large objects are in files of the test's folder.
        fds = "/proc/%d/fd" % self.store.process.pid
        files = [os.readlink(os.path.join(fds, fd)) for fd in os.listdir(fds)]
        self.assertTrue(any(f.startswith(self.folder + "/#") for f in files), files)

    def test_one_of_many_conditional_puts_succeeds(self):
        def put(number):
            body = b"writer %d" % number
            headers = dict(UNCHECKED, **{"If-None-Match": "*"})
            return send(self.store.address, "PUT", "/data/once", body, headers)[0]

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            statuses = list(threads.map(put, range(24)))
        self.assertEqual(sorted(statuses), [200] + [412] * 23)
        winner = statuses.index(200)
        self.assertEqual(self.store.read("data", "once"), b"writer %d" % winner)

    def test_a_request_that_ends_early_changes_nothing(self):
        host, port = self.store.address.split(":")
        with socket.create_connection((host, int(port)), 30) as s:
            s.sendall(b"PUT /data/short HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf")
            s.shutdown(socket.SHUT_WR)
            self.assertIn(b" 400 ", s.recv(1000))
        with self.assertRaises(FileNotFoundError):
            self.store.read("data", "short")

    def test_ranges_and_conditions_of_a_read(self):
        self.store.put("data", "read", b"0123456789")

        def get(**headers):
            return send(self.store.address, "GET", "/data/read", headers=UNCHECKED | headers)

        status, headers, body = get(Range="bytes=2-4")
        self.assertEqual((status, body), (206, b"234"))
        self.assertEqual(headers["etag"], '"%s"' % hashlib.md5(b"0123456789").hexdigest())
        self.assertEqual(get(**{"If-Match": '"another"'})[0], 412)

    def test_the_environment_has_the_test_keys_and_none_of_the_user(self):
        os.environ["AWS_PROFILE"] = "mine"
        self.addCleanup(os.environ.pop, "AWS_PROFILE")
        environment = self.store.environment()
        self.assertEqual(environment["AWS_SECRET_ACCESS_KEY"], SECRET_KEY)
        self.assertNotIn("AWS_PROFILE", environment)
        self.assertEqual(environment["PATH"], os.environ["PATH"])


@unittest.skipUnless(has_moto(), NO_MOTO)
class Ends(unittest.TestCase):
    def test_the_child_ends_with_stop_and_with_its_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            store = MotoServer(folder)
            store.stop()
            store.stop()
            self.assertIsNotNone(store.process.returncode)
            r = subprocess.run(
                [sys.executable, "-c", STARTER, HERE, folder], stdout=subprocess.PIPE, timeout=60
            )
            pid = int(r.stdout)
            wait_for("the child to end", lambda: not alive(pid))

    def test_a_python_without_moto_is_an_error_with_its_output(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "No module named"):
                MotoServer(folder, python=sys.executable)


if __name__ == "__main__":
    main()
