#!/usr/bin/env python3
"""Tests the check of signatures with the examples of the Amazon S3 API reference, and with requests
that botocore has signed and that were changed afterwards.

  signature_check_test.py [unittest arguments]
"""
import hashlib
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from signature_check import Checker, Key, Refusal, import_botocore  # noqa: E402
from testing import main  # noqa: E402

try:
    botocore = import_botocore()
except ImportError:
    botocore = None
NO_BOTOCORE = "no botocore in build/venv (deploy/scripts/venv.sh)"
EMPTY = hashlib.sha256(b"").hexdigest()
MAY_24_2013 = 1369353600


@unittest.skipUnless(botocore, NO_BOTOCORE)
class Examples(unittest.TestCase):
    """The examples of "Signature Calculations for the Authorization Header"."""

    ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    WELCOME = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"

    def check(self, method, target, signature, body_hash=EMPTY, **more):
        headers = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": "20130524T000000Z"}
        headers["x-amz-content-sha256"] = body_hash
        headers.update({name.replace("_", "-"): value for name, value in more.items()})
        authorization = (
            "AWS4-HMAC-SHA256 Credential=%s/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=%s,Signature=%s" % (self.ID, ";".join(sorted(headers)), signature)
        )
        checker = Checker({self.ID: Key(self.SECRET)}, "us-east-1", lambda: MAY_24_2013)
        sent = list(headers.items()) + [("Authorization", authorization)]
        self.assertEqual(checker.check(method, target, sent), body_hash)

    def test_the_examples_are_accepted(self):
        self.check(
            "GET",
            "/test.txt",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            range="bytes=0-9",
        )
        self.check(
            "PUT",
            "/test%24file.text",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            self.WELCOME,
            date="Fri, 24 May 2013 00:00:00 GMT",
            x_amz_storage_class="REDUCED_REDUNDANCY",
        )
        self.check(
            "GET",
            "/?lifecycle",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        )
        self.check(
            "GET",
            "/?max-keys=2&prefix=J",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        )


@unittest.skipUnless(botocore, NO_BOTOCORE)
class Changes(unittest.TestCase):
    """Requests that botocore has signed, and that were changed before they were checked."""

    def setUp(self):
        self.keys = {"AKIA1": Key("secret"), "ASIA2": Key("other", "token")}
        self.checker = Checker(self.keys, "eu-central-1")

    def signed(self, name="AKIA1", token=None, region="eu-central-1", secret=None):
        credentials = botocore.credentials.Credentials(
            name, secret or self.keys[name].secret, token
        )
        request = botocore.awsrequest.AWSRequest(
            method="PUT",
            url="http://127.0.0.1:9000/bucket/a%20key?partNumber=1&uploadId=x%2By",
            headers={"Host": "127.0.0.1:9000", "x-amz-meta-mark": "a  b", "Content-Type": "t"},
            data=b"body",
        )
        botocore.auth.S3SigV4Auth(credentials, "s3", region).add_auth(request)
        return request.method, "/bucket/a%20key?partNumber=1&uploadId=x%2By", dict(request.headers)

    def refused(self, code, method, target, headers):
        headers = headers if isinstance(headers, list) else list(headers.items())
        with self.assertRaises(Refusal) as caught:
            self.checker.check(method, target, headers)
        self.assertEqual(caught.exception.code, code)

    def test_unchanged_requests_are_accepted(self):
        for name, token in (("AKIA1", None), ("ASIA2", "token")):
            method, target, headers = self.signed(name, token)
            want = hashlib.sha256(b"body").hexdigest()
            self.assertEqual(self.checker.check(method, target, list(headers.items())), want)
            # The order of the query's parts does not matter, and neither does a harmless encoding.
            other = "/bucket/a%20ke%79?uploadId=x%2By&partNumber=1"
            self.assertEqual(self.checker.check(method, other, list(headers.items())), want)

    def test_each_change_is_refused(self):
        method, target, headers = self.signed()
        mismatch = "SignatureDoesNotMatch"
        self.refused(mismatch, "POST", target, headers)
        self.refused(mismatch, method, target.replace("a%20key", "a+key"), headers)
        self.refused(mismatch, method, target.replace("a%20key", "a%2520key"), headers)
        self.refused(mismatch, method, target.replace("x%2By", "x+y"), headers)
        self.refused(mismatch, method, target + "&more", headers)
        self.refused(mismatch, method, target, dict(headers, Host="127.0.0.1:9001"))
        self.refused(mismatch, method, target, {**headers, "x-amz-meta-mark": "a c"})
        self.refused(mismatch, method, target, {**headers, "Content-Type": "u"})
        self.refused(mismatch, method, target, {**headers, "X-Amz-Content-SHA256": "0" * 64})
        self.refused("AccessDenied", method, target, {**headers, "x-amz-acl": "public-read"})
        self.refused("AccessDenied", method, target, {"Host": "127.0.0.1:9000"})
        self.refused("AccessDenied", method, target, {**headers, "X-Amz-Date": "yesterday"})
        self.refused("InvalidRequest", method, target, list(headers.items()) * 2)
        bad = dict(headers, Authorization=headers["Authorization"].replace("/s3/", "/sts/"))
        self.refused("AuthorizationHeaderMalformed", method, target, bad)
        bad = dict(headers, Authorization=headers["Authorization"][:-1])
        self.refused("AuthorizationHeaderMalformed", method, target, bad)

    def test_wrong_keys_and_times_are_named(self):
        self.refused("SignatureDoesNotMatch", *self.signed(secret="Secret"))
        self.refused("InvalidToken", *self.signed("ASIA2", "tokem"))
        self.refused("InvalidToken", *self.signed("ASIA2"))
        self.refused("AuthorizationHeaderMalformed", *self.signed(region="us-east-1"))
        signed = self.signed("ASIA2", "token")
        self.keys["ASIA2"].state = "expired"
        self.refused("ExpiredToken", *signed)
        del self.keys["ASIA2"]
        self.refused("InvalidAccessKeyId", *signed)
        self.checker = Checker(self.keys, now=lambda: MAY_24_2013)
        self.refused("RequestTimeTooSkewed", *self.signed())

    def test_an_unsigned_body_is_accepted_as_such(self):
        credentials = botocore.credentials.Credentials("AKIA1", "secret")
        request = botocore.awsrequest.AWSRequest("GET", "http://h/b/k", {"Host": "h"})
        signer = botocore.auth.S3SigV4Auth(credentials, "s3", "eu-central-1")
        signer.payload = lambda _: "UNSIGNED-PAYLOAD"
        signer.add_auth(request)
        headers = list(request.headers.items())
        self.assertIsNone(self.checker.check("GET", "/b/k", headers))


if __name__ == "__main__":
    main()
