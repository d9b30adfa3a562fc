#!/usr/bin/env python3
"""moto's server of S3 as a child process, on loopback and on a free port.

    with MotoServer(folder, buckets=["data"]) as store:
        store.put("data", "a key", b"bytes")
        run(..., "--s3-endpoint", store.endpoint, env=store.environment())

The child runs with the Python of build/venv, which has moto. The objects are in the memory of the
child, and large ones in temporary files in `folder`. moto checks no signatures
(signature_check.py does). The child reads each request as a whole and then gives moto one request
at a time. Parallel uploads are therefore safe, a condition such as If-None-Match is atomic, and a
request whose body ended early changes nothing.
"""
import argparse
import glob
import io
import json
import os
import resource
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from signature_check import VENV  # noqa: E402

PYTHON = os.path.join(VENV, "bin", "python")
NO_MOTO = "no moto in build/venv (deploy/scripts/venv.sh)"
ACCESS_KEY, SECRET_KEY = "AKIATESTSTORE0000001", "test/secret+key/that+no/file+may/contain0"
# Settings of the user's own account, and of a proxy between the user and the internet.
OUTSIDE = ("AWS_", "GOOGLE_", "GCS_", "GS_", "EVERGRAD_GCS_")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def has_moto():
    """Returns whether build/venv has moto. It may be older than requirements.txt."""
    packages = os.path.join(glob.escape(VENV), "lib", "python3.*", "site-packages", "moto", "s3")
    return bool(glob.glob(packages))


def skip_without_moto():
    if not has_moto():
        raise unittest.SkipTest(NO_MOTO)


def environment(**settings):
    """Returns the environment of this process without settings of the user's own account, and with
    `settings`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OUTSIDE) and name.lower() not in PROXIES
    }
    return dict(inherited, **settings)


def key_environment(access_key=ACCESS_KEY, secret_key=SECRET_KEY, session_token=""):
    """Returns the environment variables with these credentials."""
    found = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    return dict(found, AWS_SESSION_TOKEN=session_token) if session_token else found


class MotoServer:
    """`prefix` are words before the command line of the child, for example to start it in another
    network namespace. It can then be reached only there."""

    def __init__(self, folder, buckets=(), python=PYTHON, prefix=()):
        command = [python, os.path.abspath(__file__), "--serve"]
        for bucket in buckets:
            command += ["--bucket", bucket]
        self.log_path = os.path.join(folder, "moto.log")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                list(prefix) + command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(TMPDIR=folder),
            )
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            with open(self.log_path, errors="replace") as log:
                raise RuntimeError("moto ended before it listened:\n%s" % log.read()[-2000:])
        self.address = json.loads(line)["address"]
        self.endpoint = "http://" + self.address

    def environment(self):
        return environment(**key_environment())

    def stop(self):
        """Ends the child. A repeated call does nothing."""
        if self.process.poll() is None:
            self.process.stdin.close()  # the child then ends
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    # ---- objects, without a proxy in between

    def call(self, method, bucket, key="", query="", body=None):
        """Sends a request, and returns the body of the response."""
        url = "%s/%s/%s" % (self.endpoint, bucket, urllib.parse.quote(key))
        request = urllib.request.Request(url + query, body, UNCHECKED, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        with DIRECT.open(request, timeout=60) as answer:
            return answer.read()

    def make_bucket(self, bucket):
        self.call("PUT", bucket)

    def put(self, bucket, key, body):
        self.call("PUT", bucket, key, body=body)

    def read(self, bucket, key):
        """Returns the bytes of an object. Raises FileNotFoundError if there is none."""
        try:
            return self.call("GET", bucket, key)
        except urllib.error.HTTPError as why:
            if why.code != 404:
                raise
            raise FileNotFoundError("%s/%s" % (bucket, key))

    def delete(self, bucket, key):
        self.call("DELETE", bucket, key)

    def keys(self, bucket, prefix=""):
        """Returns all keys with this prefix, in order."""
        found, token = [], ""
        while True:
            query = {"list-type": "2", "prefix": prefix}
            if token:
                query["continuation-token"] = token
            page = self.call("GET", bucket, query="?" + urllib.parse.urlencode(query))
            tree = xml.etree.ElementTree.fromstring(page)
            found += [e.text for e in tree.iterfind("{*}Contents/{*}Key")]
            token = tree.findtext("{*}NextContinuationToken")
            if not token:
                return found

    def uploads(self, bucket):
        """Returns the keys of multipart uploads that are neither complete nor aborted."""
        tree = xml.etree.ElementTree.fromstring(self.call("GET", bucket, query="?uploads"))
        return [e.text for e in tree.iterfind("{*}Upload/{*}Key")]


# moto refuses some requests without a signature, and accepts any signature.
UNCHECKED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
# Opens URLs on loopback, whatever proxy the environment names.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


# ------------------------------------------------------------------ the child


class OneAtATime:
    """A WSGI application around moto's."""

    def __init__(self, application):
        self.application, self.lock = application, threading.Lock()

    def __call__(self, environ, start_response):
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        if len(body) != length:
            start_response("400 Bad Request", [("Content-Length", "0")])
            return [b""]
        environ["wsgi.input"] = io.BytesIO(body)
        with self.lock:
            answer = self.application(environ, start_response)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()


def serve(buckets):
    import logging

    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it logs each request
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a large object is an open file

    class Handler(MotoRequestHandler):
        disable_nagle_algorithm = True

    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = "127.0.0.1:%d" % server.server_port
    for bucket in buckets:
        url = "http://%s/%s" % (address, bucket)
        DIRECT.open(urllib.request.Request(url, method="PUT"), timeout=60).close()
    print(json.dumps({"address": address}), flush=True)
    sys.stdin.read()


def main():
    parser = argparse.ArgumentParser(description="The child process of the class MotoServer.")
    parser.add_argument("--serve", action="store_true", required=True)
    parser.add_argument("--bucket", action="append", default=[])
    serve(parser.parse_args().bucket)


if __name__ == "__main__":
    main()
