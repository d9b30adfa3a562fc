"""The shared parts of the tests of this folder."""
import http.client
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [HERE, os.path.join(ROOT, "tests", "integration")]
from support import alive, main, wait_for  # noqa: E402,F401


def send(address, method, target, body=None, headers=(), connection=None):
    """Sends one request. Returns (status, headers in lower case, body of the response)."""
    own = connection or http.client.HTTPConnection(address, timeout=30)
    try:
        own.request(method, target, body, dict(headers))
        answer = own.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()
    finally:
        if connection is None:
            own.close()
