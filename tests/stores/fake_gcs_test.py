#!/usr/bin/env python3
"""Tests the fake of Google Cloud Storage by transcripts of requests and answers.

  fake_gcs_test.py [unittest arguments]
"""
import base64
import concurrent.futures
import json
import os
import re
import sys
import time
import unittest
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import google_signature  # noqa: E402
from fake_gcs import FakeGcs, crc32c, crc_text  # noqa: E402
from testing import ROOT, main, send  # noqa: E402

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Case(unittest.TestCase):
    def setUp(self):
        self.gcs = self.enterContext(FakeGcs(buckets=["data"], page_keys_max=2))
        self.token = self.gcs.tokens.issue()

    def ask(self, method, target, body=None, hash=True, token=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers["Authorization"] = "Bearer " + (token or self.token)
        if body is not None and hash:
            headers["x-goog-hash"] = "crc32c=" + crc_text(body)
        return send(self.gcs.address, method, target, body, headers)

    def refused(self, status, code, *arguments, **more):
        got = self.ask(*arguments, **more)
        self.assertEqual(
            (got[0], re.findall("<Code>(.*?)</Code>", got[2].decode())), (status, [code])
        )


class Checksums(unittest.TestCase):
    def test_crc32c_of_known_bytes(self):
        for data, want in (
            (b"", 0),
            (b"123456789", 0xE3069283),
            (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
            (b"\xff" * 32, 0x62A8AB43),
            (bytes(range(32)), 0x46DD794E),
        ):
            self.assertEqual(crc32c(data), want)
        self.assertEqual(crc_text(b"123456789"), "4waSgw==")


class Signatures(Case):
    """Requests that are signed with HMAC keys. The expected signatures are those of the golden file
    of the unit tests, which botocore has computed."""

    GOLDEN = os.path.join(ROOT, "tests", "golden", "object_store", "signatures.json")

    def rows(self):
        with open(self.GOLDEN) as f:
            found = [row for row in json.load(f)["requests"] if row["kind"] == "gcs"]
        self.assertGreater(len(found), 5)
        return found

    def check(self, row, headers=None, keys=None, body=None, method=None, seconds=0):
        path = urllib.parse.quote(row["path"], safe="/~")
        query = "&".join("%s=%s" % tuple(map(urllib.parse.quote, pair)) for pair in row["query"])
        sent = [("Host", row["host"])] + row["headers"] + (headers or row["want"])
        google_signature.check(
            method or row["method"],
            path + ("?" + query if query else ""),
            sent,
            (row["body"] * row["body_times"]).encode() if body is None else body,
            keys or {row["access_key_id"]: row["secret_access_key"]},
            now=lambda: row["wall_ms"] / 1000 + seconds,
        )

    def test_the_signatures_of_the_golden_file_are_right(self):
        for row in self.rows():
            with self.subTest(row["name"]):
                self.check(row)

    def test_wrong_signatures_are_refused(self):
        row = self.rows()[0]
        key, date = row["access_key_id"], dict(row["want"])["x-goog-date"]
        for code, more in (
            ("SignatureDoesNotMatch", {"keys": {key: "another secret"}}),
            ("SignatureDoesNotMatch", {"method": "DELETE"}),
            ("InvalidAccessKeyId", {"keys": {"GOOG1OTHER": "a secret"}}),
            ("XAmzContentSHA256Mismatch", {"body": b"another body"}),
            ("RequestTimeTooSkewed", {"seconds": 3600}),
            ("AccessDenied", {"headers": row["want"] + [["x-goog-acl", "public-read"]]}),
            ("InvalidArgument", {"headers": [["authorization", "GOOG4-HMAC-SHA256 x"]]}),
            (
                "AccessDenied",
                {"headers": [[n, v.replace(date, "20130525T000001Z")] for n, v in row["want"]]},
            ),
        ):
            with self.subTest(code=code, more=more):
                with self.assertRaisesRegex(google_signature.Refusal, code):
                    self.check(row, **more)

    def test_the_fake_accepts_signatures_only_if_it_has_keys(self):
        for keys, status in ((None, 401), ({}, 400)):
            self.gcs.hmac_keys = keys
            headers = {"Authorization": "GOOG4-HMAC-SHA256 Credential=x"}
            self.assertEqual(send(self.gcs.address, "GET", "/data/k", None, headers)[0], status)


class Objects(Case):
    def test_an_object_is_put_and_read_in_ranges_and_deleted(self):
        status, put, _ = self.ask(
            "PUT", "/data/a%20key", b"0123456789", x_goog_meta_evergrad_writer="me"
        )
        self.assertEqual(status, 200)
        status, head, body = self.ask("HEAD", "/data/a%20key")
        self.assertEqual((status, head["content-length"], body), (200, "10", b""))
        self.assertEqual(head["x-goog-meta-evergrad-writer"], "me")
        self.assertEqual(head["x-goog-generation"], put["x-goog-generation"])
        self.assertEqual(head["x-goog-hash"], "crc32c=" + crc_text(b"0123456789"))
        for span, want in (("2-4", b"234"), ("8-99", b"89"), ("3-", b"3456789")):
            got = self.ask("GET", "/data/a%20key", Range="bytes=" + span, If_Match=head["etag"])
            self.assertEqual((got[0], got[2]), (206, want))
        self.refused(416, "InvalidRange", "GET", "/data/a%20key", Range="bytes=10-12")
        self.refused(412, "PreconditionFailed", "GET", "/data/a%20key", If_Match='"other"')
        self.assertEqual(self.ask("DELETE", "/data/a%20key")[0], 204)
        self.refused(404, "NoSuchKey", "DELETE", "/data/a%20key")
        self.refused(404, "NoSuchKey", "GET", "/data/a%20key")
        self.refused(404, "NoSuchBucket", "GET", "/other/a%20key")
        # Requests are logged by several threads, after their answers.
        self.assertIn(["PUT", "/data/a%20key"], [line[:2] for line in self.gcs.log])

    def test_wrong_bodies_and_mixed_headers_are_refused(self):
        wrong = {"x_goog_hash": "crc32c=" + crc_text(b"other")}
        self.refused(400, "BadDigest", "PUT", "/data/k", b"body", hash=False, **wrong)
        mixed = {"x_amz_meta_a": "b", "x_goog_meta_c": "d"}
        self.refused(400, "ExcessHeaderValues", "PUT", "/data/k", b"body", **mixed)
        self.assertEqual(self.gcs.keys("data"), [])
        self.assertEqual(self.gcs.bodies_without_hash, 0)
        self.assertEqual(self.ask("PUT", "/data/k", b"body", hash=False)[0], 200)
        self.assertEqual(self.gcs.bodies_without_hash, 1)

    def test_generation_0_is_a_condition_that_one_of_many_writers_meets(self):
        def put(number):
            body = b"writer %d" % number
            return self.ask("PUT", "/data/k", body, x_goog_if_generation_match="0")[0]

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            statuses = list(threads.map(put, range(24)))
        self.assertEqual(sorted(statuses), [200] + [412] * 23)
        winner = statuses.index(200)
        self.assertEqual(self.gcs.read("data", "k"), b"writer %d" % winner)

    def test_a_copy_keeps_bytes_and_metadata_and_obeys_the_condition(self):
        self.ask("PUT", "/data/from%20here", b"body", x_goog_meta_mark="m")
        copy = {"x_goog_copy_source": "/data/from%20here", "x_goog_if_generation_match": "0"}
        self.assertEqual(self.ask("PUT", "/data/to", b"", hash=False, **copy)[0], 200)
        self.refused(412, "PreconditionFailed", "PUT", "/data/to", b"", hash=False, **copy)
        _, headers, body = self.ask("GET", "/data/to")
        self.assertEqual((headers["x-goog-meta-mark"], body), ("m", b"body"))
        copy["x_goog_copy_source"] = "/data/nothing"
        self.refused(404, "NoSuchKey", "PUT", "/data/new", b"", hash=False, **copy)

    def test_lists_have_pages_and_folders(self):
        for key in ("a/1", "a/2", "a/b/3", "a/b/4", "a/c/5", "a/d&", "b"):
            self.gcs.put("data", key, b"x" * len(key))

        def pages(**query):
            found, token, count = [], None, 0
            while True:
                asked = dict(query, **{"list-type": "2"})
                if token:
                    asked["continuation-token"] = token
                text = self.ask("GET", "/data?" + urllib.parse.urlencode(asked))[2].decode()
                found += re.findall("<(?:Key|Prefix)>([^<]+)</", text.partition("<IsTrun")[2])
                count += 1
                more = re.search("<NextContinuationToken>(.*)</Next", text)
                self.assertIn("<IsTruncated>%s</" % ("true" if more else "false"), text)
                if not more:
                    return found, count
                token = more.group(1)

        everything = ["a/1", "a/2", "a/b/3", "a/b/4", "a/c/5", "a/d&amp;", "b"]
        self.assertEqual(pages(), (everything, 4))
        folders = ["a/1", "a/2", "a/b/", "a/c/", "a/d&amp;"]
        self.assertEqual(pages(prefix="a/", delimiter="/"), (folders, 3))
        self.assertEqual(pages(delimiter="/"), (["a/", "b"], 1))
        self.assertEqual(pages(prefix="none"), ([], 1))
        encoded = pages(prefix="a/d", **{"encoding-type": "url"})
        self.assertEqual(encoded, (["a/d%26"], 1))


class Uploads(Case):
    PART = b"p" * (5 << 20)

    def begin(self):
        text = self.ask("POST", "/data/big?uploads", b"", x_goog_meta_mark="m")[2].decode()
        return re.search("<UploadId>(.*)</UploadId>", text).group(1)

    def put(self, upload, number, body):
        query = "?partNumber=%d&uploadId=%s" % (number, upload)
        return self.ask("PUT", "/data/big" + query, body)[1]["etag"]

    def complete(self, upload, parts, **headers):
        body = "".join(
            "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>" % part for part in parts
        )
        body = ("<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % body).encode()
        return self.ask("POST", "/data/big?uploadId=" + upload, body, **headers)

    def test_an_object_appears_when_its_upload_is_complete(self):
        upload = self.begin()
        last = self.put(upload, 2, b"end")
        first = self.put(upload, 1, self.PART)
        self.assertEqual(self.gcs.keys("data"), [])
        self.assertIn(b"InvalidPart", self.complete(upload, [(1, first), (3, last)])[2])
        self.assertIn(b"InvalidPartOrder", self.complete(upload, [(2, last), (1, first)])[2])
        self.assertEqual(self.complete(upload, [(1, first), (2, last)])[0], 200)
        self.assertTrue(self.gcs.read("data", "big") == self.PART + b"end")
        self.assertEqual(self.ask("HEAD", "/data/big")[1]["x-goog-meta-mark"], "m")
        self.assertEqual(self.complete(upload, [(1, first), (2, last)])[0], 404)

    def test_preconditions_and_small_parts_are_refused(self):
        condition = {"x_goog_if_generation_match": "0"}
        self.refused(400, "InvalidArgument", "POST", "/data/big?uploads", b"", **condition)
        upload = self.begin()
        parts = [(1, self.put(upload, 1, b"small")), (2, self.put(upload, 2, b"end"))]
        self.assertIn(b"EntityTooSmall", self.complete(upload, parts)[2])
        self.assertIn(b"InvalidArgument", self.complete(upload, parts, **condition)[2])
        self.assertEqual(self.ask("DELETE", "/data/big?uploadId=" + upload)[0], 204)
        self.refused(404, "NoSuchUpload", "DELETE", "/data/big?uploadId=" + upload)
        self.assertEqual(self.gcs.uploads, {})


class Access(Case):
    def test_only_valid_tokens_are_accepted(self):
        self.refused(401, "AuthenticationRequired", "GET", "/data/k", token="other")
        self.assertEqual(send(self.gcs.address, "GET", "/data/k")[0], 401)
        twice = self.gcs.tokens.issue(uses=2)
        asked = [self.ask("GET", "/data?list-type=2", token=twice)[0] for _ in range(3)]
        self.assertEqual(asked, [200, 200, 401])
        over = self.gcs.tokens.issue(seconds=0)
        self.assertEqual(self.ask("GET", "/data?list-type=2", token=over)[0], 401)
        self.gcs.tokens.keep_only()
        self.assertEqual(self.ask("GET", "/data?list-type=2")[0], 401)

    def token_from(self, form):
        address = self.gcs.token_server.split("//")[1]
        status, _, body = send(address, "POST", "/token", urllib.parse.urlencode(form), FORM)
        return status, json.loads(body)

    def test_the_token_endpoint_issues_tokens_for_each_grant(self):
        self.gcs.token_uses, self.gcs.token_seconds = 1, 60
        refresh = dict(grant_type="refresh_token", client_id="i", client_secret="s")
        exchange = dict.fromkeys(
            ("audience", "scope", "requested_token_type", "subject_token", "subject_token_type"),
            "x",
        )
        exchange["grant_type"] = "urn:ietf:params:oauth:grant-type:token-exchange"
        for form in (dict(refresh, refresh_token="r"), exchange, self.assertion()):
            status, answer = self.token_from(form)
            self.assertEqual((status, answer["expires_in"]), (200, 60))
            token = answer["access_token"]
            asked = [self.ask("GET", "/data?list-type=2", token=token)[0] for _ in range(2)]
            self.assertEqual(asked, [200, 401])
        for form, word in (
            (refresh, "missing: refresh_token"),
            (dict(grant_type="password"), "unknown grant_type"),
            (self.assertion(aud="https://elsewhere/token"), "audience"),
            (self.assertion(exp=time.time() - 1), "not valid now"),
            (self.assertion(exp=time.time() + 7200), "more than an hour"),
            (dict(self.assertion(), assertion="nonsense"), "no JWT"),
        ):
            status, answer = self.token_from(form)
            self.assertEqual(status, 400)
            self.assertIn(word, answer["error_description"])

    def assertion(self, **changes):
        now = int(time.time())
        claims = dict(iss="me", scope="https://www.googleapis.com/auth/devstorage.read_write")
        claims.update(dict(aud=self.gcs.token_url, iat=now, exp=now + 3600), **changes)
        parts = [json.dumps(p).encode() for p in ({"alg": "RS256", "typ": "JWT"}, claims)]
        parts = [base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts + [b"signed"]]
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        return dict(grant_type=grant, assertion=".".join(parts))

    def test_the_metadata_service_wants_its_header(self):
        address = self.gcs.metadata_url.split("//")[1]
        path = "/computeMetadata/v1/instance/service-accounts/default/token"
        self.assertEqual(send(address, "GET", path)[0], 403)
        flavor = {"Metadata-Flavor": "Google"}
        self.assertEqual(send(address, "GET", "/other", headers=flavor)[0], 404)
        status, headers, body = send(address, "GET", path, headers=flavor)
        self.assertEqual((status, headers["metadata-flavor"]), (200, "Google"))
        token = json.loads(body)["access_token"]
        self.assertEqual(self.ask("GET", "/data?list-type=2", token=token)[0], 200)

    def test_an_impersonated_account_gets_a_token(self):
        address = self.gcs.token_server.split("//")[1]
        path = "/v1/projects/-/serviceAccounts/x:generateAccessToken"
        self.assertEqual(send(address, "POST", path, "{}")[0], 401)
        mine = {"Authorization": "Bearer " + self.token}
        token = json.loads(send(address, "POST", path, "{}", mine)[2])["accessToken"]
        self.assertEqual(self.ask("GET", "/data?list-type=2", token=token)[0], 200)


if __name__ == "__main__":
    main()
