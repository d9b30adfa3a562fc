#!/usr/bin/env python3
"""Tests the fake of kube-apiserver: versions, conflicts, merge patches, finalizers, pages, watches
and each kind of fault.

  fake_api_test.py [unittest arguments]
"""
import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from api_objects import merged  # noqa: E402
from fake_api import FakeApi, Rule  # noqa: E402

JOBS = "/apis/evergrad.dev/v1alpha1/namespaces/training/trainingjobs"
EVENTS = "/api/v1/namespaces/training/events"
PATCH = {"Content-Type": "application/merge-patch+json"}
BROKEN = (http.client.HTTPException, OSError)
FINALIZER = "evergrad.dev/cancel-job"


class Watch:
    """A client of a watch. `next` returns the next event, or None at the end of the response."""

    def __init__(self, test, version, query="", timeout=300):
        self.connection = http.client.HTTPConnection(test.api.address, timeout=30)
        test.addCleanup(self.connection.close)
        target = "?watch=1&resourceVersion=%s&timeoutSeconds=%d%s" % (version, timeout, query)
        self.connection.request("GET", JOBS + target)
        self.answer = self.connection.getresponse()
        test.assertEqual(self.answer.status, 200)
        test.assertEqual(self.answer.getheader("Transfer-Encoding"), "chunked")

    def next(self):
        text = self.answer.readline()
        return json.loads(text) if text else None

    def rest(self):
        """Returns the remaining bytes. Fails if the response has no proper end."""
        return self.answer.read()

    def summary(self):
        event = self.next()
        metadata = event["object"]["metadata"]
        return event["type"], metadata.get("name"), metadata["resourceVersion"]


class Case(unittest.TestCase):
    def setUp(self):
        self.api = self.enterContext(FakeApi())

    def send(self, method, target, body=None, headers=(), connection=None):
        """Returns (code, headers in lower case, decoded body)."""
        own = connection or http.client.HTTPConnection(self.api.address, timeout=30)
        try:
            text = body if body is None or isinstance(body, bytes) else json.dumps(body)
            own.request(method, target, text, dict(headers))
            answer = own.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            data = answer.read()
            if "content-length" not in found:  # http.client ignores that the headers end early
                raise http.client.HTTPException
            return answer.status, found, json.loads(data) if data else None
        finally:
            if connection is None:
                own.close()

    def list(self, query=""):
        code, _, body = self.send("GET", JOBS + "?limit=50" + query)
        self.assertEqual(code, 200, body)
        return body

    def patch(self, name, patch, version=None, want=200):
        """Patches the status, or the object for a patch of its metadata."""
        sub = "/status" if "status" in patch else ""
        metadata = dict(patch.get("metadata", {}))
        metadata["resourceVersion"] = version or self.version(name)
        code, _, body = self.send(
            "PATCH", "%s/%s%s" % (JOBS, name, sub), dict(patch, metadata=metadata), PATCH
        )
        self.assertEqual(code, want, body)
        return body

    def version(self, name):
        return self.api.get(name)["metadata"]["resourceVersion"]

    def check_refused(self, answer, code, reason):
        got, headers, body = answer
        self.assertEqual((got, body["code"], body["reason"]), (code, code, reason))
        self.assertEqual((body["kind"], body["status"]), ("Status", "Failure"))
        self.assertEqual(headers["content-type"], "application/json")

    def take_violations(self):
        found = list(self.api.violations)
        del self.api.violations[:]
        return found


class Objects(Case):
    def tearDown(self):
        self.assertEqual(self.api.violations, [])

    def test_a_merge_patch_follows_rfc_7386(self):
        for target, patch, want in (
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"a": "b"}, ["c"], ["c"]),
            ({"a": "foo"}, None, None),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ):
            self.assertEqual(merged(target, patch), want)

    def test_a_new_object_has_the_metadata_of_a_real_one(self):
        first = self.api.apply("mnist", {"type": "counting"})["metadata"]
        second = self.api.apply("other", {})["metadata"]
        self.assertRegex(first["uid"], "^[0-9a-f]{8}-[0-9a-f-]{27}$")
        self.assertRegex(first["creationTimestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual((first["generation"], first["namespace"]), (1, "training"))
        self.assertEqual(int(second["resourceVersion"]), int(first["resourceVersion"]) + 1)
        found = self.list()
        self.assertEqual(found["kind"], "TrainingJobList")
        self.assertEqual([o["metadata"]["name"] for o in found["items"]], ["mnist", "other"])
        self.assertEqual(found["metadata"], {"resourceVersion": second["resourceVersion"]})

    def test_the_generation_rises_with_the_spec_and_with_the_deletion_only(self):
        def generation():
            return self.api.get("mnist")["metadata"]["generation"]

        self.api.apply("mnist", {"a": 1})
        version = self.version("mnist")
        self.api.apply("mnist", {"a": 1})
        self.assertEqual((generation(), self.version("mnist")), (1, version))
        self.api.apply("mnist", {"a": 2})
        self.assertEqual(generation(), 2)
        self.patch("mnist", {"status": {"state": "RUNNING"}})
        self.patch("mnist", {"metadata": {"finalizers": [FINALIZER]}})
        self.api.touch("mnist")
        self.assertEqual(generation(), 2)
        self.assertEqual(self.api.status("mnist"), {"state": "RUNNING"})
        self.api.delete("mnist")
        self.assertEqual(generation(), 3)

    def test_a_patch_of_an_old_version_gets_a_conflict(self):
        old = self.api.apply("mnist", {})["metadata"]["resourceVersion"]
        self.api.touch("mnist")
        for patch in ({"status": {"state": "RUNNING"}}, {"metadata": {"finalizers": ["a/b"]}}):
            body = self.patch("mnist", patch, version=old, want=409)
            self.assertEqual(body["reason"], "Conflict")
            self.assertIn("the object has been modified", body["message"])
        self.assertEqual(self.api.status("mnist"), {})
        body = self.patch("none", {"status": {}}, version=old, want=404)
        self.assertEqual(body["details"]["name"], "none")

    def test_a_patch_without_a_change_makes_no_version(self):
        self.api.apply("mnist", {})
        status = {"status": {"state": "RUNNING", "conditions": [{"type": "A", "status": "True"}]}}
        version = self.patch("mnist", status)["metadata"]["resourceVersion"]
        self.assertEqual(self.patch("mnist", status)["metadata"]["resourceVersion"], version)
        self.assertEqual(self.api.counts()["patches-without-change"], 1)
        self.patch("mnist", {"status": {"state": None}})
        self.assertEqual(list(self.api.status("mnist")), ["conditions"])
        self.assertEqual(self.api.condition("mnist", "A"), ("True", "", ""))

    def test_a_deleted_object_stays_until_its_last_finalizer_is_removed(self):
        self.api.apply("mnist", {})
        self.patch("mnist", {"metadata": {"finalizers": [FINALIZER, "other.example/keep"]}})
        watch = Watch(self, self.version("mnist"))
        self.api.delete("mnist")
        self.api.delete("mnist")
        metadata = self.api.get("mnist")["metadata"]
        self.assertIn("deletionTimestamp", metadata)
        self.assertEqual(metadata["deletionGracePeriodSeconds"], 0)
        self.patch("mnist", {"metadata": {"finalizers": ["other.example/keep"]}})
        self.assertIsNotNone(self.api.get("mnist"))
        gone = self.patch("mnist", {"metadata": {"finalizers": None}})
        self.assertEqual(gone["metadata"]["uid"], metadata["uid"])
        self.assertIsNone(self.api.get("mnist"))
        self.assertEqual([watch.next()["type"] for _ in range(3)], ["MODIFIED"] * 2 + ["DELETED"])
        self.api.apply("mnist", {})
        self.api.delete("mnist")  # without finalizers
        self.assertIsNone(self.api.get("mnist"))
        self.assertEqual(self.list()["items"], [])

    def test_pages_show_the_version_of_the_first_one(self):
        for name in "abcde":
            self.api.apply(name, {})
        self.api.page_items_max = 2
        first = self.list()
        self.api.apply("f", {})
        self.api.delete("c")
        self.assertEqual(first["metadata"]["remainingItemCount"], 3)
        names, page = [], first
        while True:
            names += [item["metadata"]["name"] for item in page["items"]]
            self.assertEqual(
                page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]
            )
            token = page["metadata"].get("continue")
            if not token:
                break
            query = "".join("%%%02X" % byte for byte in token.encode())
            page = self.list("&continue=" + query)
        self.assertEqual(names, list("abcde"))
        self.api.compact()
        self.check_refused(self.send("GET", JOBS + "?limit=50&continue=" + query), 410, "Expired")

    def test_events_have_unique_names(self):
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "mnist.17", "namespace": "training"},
            "involvedObject": {
                "apiVersion": "evergrad.dev/v1alpha1",
                "kind": "TrainingJob",
                "namespace": "training",
                "name": "mnist",
                "uid": "1-2",
            },
            "reason": "Submitted",
            "message": "the job was submitted",
            "type": "Normal",
            "firstTimestamp": "2026-11-27T10:00:00Z",
            "lastTimestamp": "2026-11-27T10:00:00Z",
            "count": 1,
        }
        headers = {"Content-Type": "application/json"}
        code, _, body = self.send("POST", EVENTS, event, headers)
        self.assertEqual((code, body["metadata"]["name"]), (201, "mnist.17"))
        self.check_refused(self.send("POST", EVENTS, event, headers), 409, "AlreadyExists")
        self.assertEqual(self.api.reasons("mnist"), ["Submitted"])
        for change in (
            {"reason": "two words"},
            {"type": "Bad"},
            {"message": "x" * 1025},
            {"firstTimestamp": 17},
            {"involvedObject": {"name": "mnist"}},
        ):
            wrong = dict(event, metadata={"name": "wrong"}, **change)
            self.check_refused(self.send("POST", EVENTS, wrong, headers), 422, "Invalid")
            self.assertEqual(len(self.take_violations()), 1)


class Watches(Case):
    def tearDown(self):
        self.assertEqual(self.api.violations, [])

    def test_a_watch_continues_from_any_version(self):
        names = "abcdefgh"
        versions = [self.api.apply(name, {})["metadata"]["resourceVersion"] for name in names]
        watch = Watch(self, versions[2])
        for name, version in list(zip(names, versions))[3:]:
            self.assertEqual(watch.summary(), ("ADDED", name, version))
        self.api.touch("a")
        self.assertEqual(watch.summary(), ("MODIFIED", "a", self.version("a")))
        self.api.delete("b")
        kind, name, version = watch.summary()
        self.assertEqual((kind, name), ("DELETED", "b"))
        self.assertEqual(version, str(self.api.store.version))

    def test_a_watch_ends_after_its_time_with_a_bookmark(self):
        version = self.api.apply("a", {})["metadata"]["resourceVersion"]
        with_bookmarks = Watch(self, version, "&allowWatchBookmarks=true", timeout=1)
        self.assertEqual(with_bookmarks.summary(), ("BOOKMARK", None, version))
        self.assertIsNone(with_bookmarks.next())
        self.api.watch_seconds = 0.01
        self.assertIsNone(Watch(self, version, timeout=300).next())
        self.api.watch_seconds = 0
        watch = Watch(self, version, "&allowWatchBookmarks=true")
        self.api.wait_for("the watch", lambda: self.api.watches)
        self.api.send_bookmarks()
        self.assertEqual(watch.summary(), ("BOOKMARK", None, version))
        self.api.end_watches()
        self.assertIsNone(watch.next())
        watch = Watch(self, version)
        self.api.wait_for("the watch", lambda: self.api.watches)
        self.api.end_watches("cut")
        self.assertRaises(BROKEN, watch.rest)

    def test_an_ended_watch_has_sent_everything_and_a_closed_one_is_noticed(self):
        watch = Watch(self, str(self.api.store.version), "&allowWatchBookmarks=1")
        self.api.wait_for("the watch", lambda: self.api.watches)
        with self.api.changed:
            self.api.apply("a", {})
            self.api.send_bookmarks()
            self.api.end_watches()
        self.assertEqual([watch.next()["type"] for _ in range(2)], ["ADDED", "BOOKMARK"])
        self.assertIsNone(watch.next())
        watch = Watch(self, str(self.api.store.version))
        self.api.wait_for("the watch", lambda: self.api.watches)
        watch.answer.close()
        watch.connection.close()
        self.api.wait_for("the end of the watch", lambda: not self.api.watches)

    def test_a_forgotten_version_gets_410_in_both_ways(self):
        version = self.api.apply("a", {})["metadata"]["resourceVersion"]
        self.api.touch("a")
        self.api.compact()
        target = JOBS + "?watch=1&timeoutSeconds=9&resourceVersion="
        self.check_refused(self.send("GET", target + version), 410, "Expired")
        self.api.gone_as_event = True
        watch = Watch(self, version)
        event = watch.next()
        self.assertEqual((event["type"], event["object"]["code"]), ("ERROR", 410))
        self.assertIsNone(watch.next())
        watch = Watch(self, self.list()["metadata"]["resourceVersion"])
        self.api.touch("a")
        self.assertEqual(watch.next()["type"], "MODIFIED")
        self.api.touch("a")
        self.api.compact(after_watches=True)
        self.api.touch("a")
        self.assertEqual([watch.next()["type"] for _ in range(2)], ["MODIFIED"] * 2)

    def test_bytes_can_be_injected(self):
        watch = Watch(self, self.api.apply("a", {})["metadata"]["resourceVersion"])
        self.api.wait_for("the watch", lambda: self.api.watches)
        self.assertEqual(self.api.inject(b"\xff" * 2_000_000 + b"\n"), 1)
        self.assertEqual(watch.answer.readline(), b"\xff" * 2_000_000 + b"\n")

    def test_objects_of_any_kind_are_listed_and_watched(self):
        watch = Watch(self, str(self.api.store.version))
        for value in (17, [], {"metadata": []}, {"metadata": {"name": 17}}, {"spec": None}):
            self.api.put(value)
            self.assertEqual(watch.next()["type"], "ADDED")
        self.assertEqual(len(self.list()["items"]), 5)
        self.assertEqual(self.list()["items"][0], 17)


class Violations(Case):
    def test_requests_without_a_right_are_refused_and_kept(self):
        self.api.apply("mnist", {})
        for method, target, code, reason in (
            ("GET", JOBS + "/mnist", 403, "Forbidden"),
            ("DELETE", JOBS + "/mnist", 403, "Forbidden"),
            ("PUT", JOBS + "/mnist/status", 403, "Forbidden"),
            ("PATCH", JOBS + "/mnist/scale", 403, "Forbidden"),
            ("GET", JOBS.replace("training/", "other/", 1), 403, "Forbidden"),
            ("GET", EVENTS, 403, "Forbidden"),
            ("GET", "/api/v1/namespaces/training/secrets", 403, "Forbidden"),
            ("GET", "/apis/evergrad.dev/v1alpha1/trainingjobs?limit=50", 403, "Forbidden"),
            ("GET", "/version", 404, "NotFound"),
        ):
            with self.subTest(method + " " + target):
                self.check_refused(self.send(method, target), code, reason)
                self.assertIn("no right to %s %s" % (method, target), self.take_violations())

    def test_malformed_requests_are_refused_and_kept(self):
        version = self.api.apply("mnist", {})["metadata"]["resourceVersion"]
        good = {"metadata": {"resourceVersion": version}, "status": {}}
        target = JOBS + "/mnist/status"
        wrong_type = {"Content-Type": "application/json"}
        old_watch = JOBS + "?watch=1&timeoutSeconds=9"
        for code, method, path, body, headers in (
            (415, "PATCH", target, good, wrong_type),
            (400, "PATCH", target, b"{", PATCH),
            (400, "PATCH", target, [], PATCH),
            (400, "PATCH", target, {"status": {}}, PATCH),
            (415, "POST", EVENTS, {}, PATCH),
            (422, "POST", EVENTS, {"metadata": {}}, wrong_type),
            (400, "GET", old_watch, None, {}),
            (504, "GET", old_watch + "&resourceVersion=99999", None, {}),
            (413, "PATCH", target, b"x" * ((3 << 20) + 1), PATCH),
        ):
            with self.subTest(code=code, path=path, body=str(body)[:60]):
                try:
                    got, _, status = self.send(method, path, body, headers)
                    self.assertEqual((got, status["kind"]), (code, "Status"))
                except ConnectionError:
                    self.assertEqual(code, 413)  # the body was not read
                self.assertEqual(len(self.take_violations()), 1)
        self.assertEqual(self.api.get("mnist")["metadata"]["resourceVersion"], version)
        self.send("GET", JOBS + "?limit=500&resourceVersion=0")
        self.assertEqual(len(self.take_violations()), 2)

    def test_patches_change_only_their_part(self):
        self.api.apply("mnist", {"a": 1})
        self.patch("mnist", {"metadata": {"finalizers": [FINALIZER]}, "spec": {"a": 2}})
        self.assertEqual(len(self.take_violations()), 1)
        self.patch("mnist", {"status": {"state": "RUNNING"}, "spec": {"a": 3}})
        self.assertEqual(len(self.take_violations()), 1)
        self.assertEqual(self.api.get("mnist")["spec"], {"a": 2})
        self.assertEqual(self.api.get("mnist")["metadata"]["generation"], 2)

    def test_a_status_must_fit_its_schema_and_loses_unknown_fields(self):
        self.api.apply("mnist", {})
        for status in (
            {"state": 17},
            {"step": "17"},
            {"step": True},
            {"conditions": {}},
            {"conditions": [{"type": "A"}]},
            {"conditions": [{"type": "A", "status": "True"}] * 2},
            {"conditions": [{"type": "A", "status": "True", "lastTransitionTime": "now"}]},
        ):
            with self.subTest(str(status)):
                body = self.patch("mnist", {"status": status}, want=422)
                self.assertEqual(body["reason"], "Invalid")
                self.assertEqual(len(self.take_violations()), 1)
        self.patch("mnist", {"status": {"state": "RUNNING", "colour": "red"}})
        self.assertEqual(self.api.status("mnist"), {"state": "RUNNING"})
        self.assertEqual(len(self.take_violations()), 1)

    def test_no_finalizer_is_added_to_a_deleted_object(self):
        self.api.apply("mnist", {})
        self.patch("mnist", {"metadata": {"finalizers": ["a.example/b"]}})
        self.api.delete("mnist")
        more = {"metadata": {"finalizers": ["a.example/b", FINALIZER]}}
        self.assertIn("being deleted", self.patch("mnist", more, want=422)["message"])
        self.assertEqual(len(self.take_violations()), 1)


class Faults(Case):
    def tearDown(self):
        self.assertEqual(self.api.violations, [])

    def test_requests_that_are_answered_with_errors_change_nothing(self):
        self.api.apply("mnist", {})
        patch = {"status": {"state": "RUNNING"}}
        for kind, code in (
            ("error-500", 500),
            ("error-503", 503),
            ("too-many", 429),
            ("unauthorized", 401),
            ("gone", 410),
        ):
            with self.subTest(kind):
                self.api.set_rules(Rule(kind, "status"))
                self.patch("mnist", patch, want=code)
                self.assertEqual(self.api.status("mnist"), {})
                self.assertEqual(self.api.counts()[kind], 1)
                self.assertEqual(self.api.counts()["answered-%d" % code], 1)
        self.api.set_rules(Rule("too-many"))
        self.assertEqual(self.send("GET", JOBS + "?limit=50")[1]["retry-after"], "1")

    def test_a_conflict_is_the_change_of_another_writer(self):
        self.api.apply("mnist", {})
        version = self.version("mnist")
        self.api.set_rules(Rule("conflict", "status", times=2))
        for _ in range(2):
            self.patch("mnist", {"status": {"state": "RUNNING"}}, want=409)
        self.assertEqual(int(self.version("mnist")), int(version) + 2)
        self.patch("mnist", {"status": {"state": "RUNNING"}})

    def test_a_lost_answer_has_an_effect_and_a_cut_request_has_none(self):
        self.api.apply("mnist", {})
        self.api.set_rules(Rule("lost-answer", "status", times=1), Rule("cut-request", "status"))
        patch = {"status": {"state": "RUNNING"}}
        with self.assertRaises(BROKEN):
            self.patch("mnist", patch)
        self.assertEqual(self.api.status("mnist"), {"state": "RUNNING"})
        with self.assertRaises(BROKEN):
            self.patch("mnist", {"status": {"state": "FAILED"}})
        self.assertEqual(self.api.status("mnist"), {"state": "RUNNING"})

    def test_rules_choose_by_request_name_and_number(self):
        for name in "ab":
            self.api.apply(name, {})
        self.api.set_rules(Rule("error-500", "status", name="b", skip=1, every=2, times=2))
        codes = {"a": [], "b": []}
        for step in range(6):
            for name in "ab":
                patch = {
                    "metadata": {"resourceVersion": self.version(name)},
                    "status": {"step": step},
                }
                codes[name].append(self.send("PATCH", JOBS + "/%s/status" % name, patch, PATCH)[0])
        self.assertEqual(codes["a"], [200] * 6)
        self.assertEqual(codes["b"], [200, 500, 200, 500, 200, 200])
        with self.assertRaises(ValueError):
            self.api.set_rules(Rule("nonsense"))

    def test_broken_answers_of_lists(self):
        self.api.apply("mnist", {})
        self.api.set_rules(Rule("no-items", "list"))
        self.assertNotIn("items", self.list())
        self.api.set_rules(Rule("garbage", "list"))
        with self.assertRaises(ValueError):
            self.list()
        self.api.set_rules(Rule("page", "list"))
        with contextlib.closing(http.client.HTTPConnection(self.api.address)) as connection:
            connection.request("GET", JOBS + "?limit=50")
            answer = connection.getresponse()
            self.assertEqual((answer.status, answer.read()[:6]), (502, b"<html>"))
        self.api.set_rules(Rule("slow", "list"))
        self.assertEqual(len(self.list()["items"]), 1)
        self.assertEqual(self.api.counts()["slow"], 1)

    def test_broken_watches(self):
        version = self.api.apply("mnist", {"text": "x" * 1000})["metadata"]["resourceVersion"]
        ended = set()
        for _ in range(12):
            self.api.set_rules(Rule("cut-event", "watch"))
            watch = Watch(self, version)
            self.api.touch("mnist")
            try:
                text = watch.rest()
                self.assertTrue(text.startswith(b'{"'[: len(text)]), text)
                self.assertNotIn(b"\n", text)
                ended.add("in order")
            except http.client.IncompleteRead:
                ended.add("cut")
            version = self.version("mnist")
        self.assertEqual(ended, {"in order", "cut"})
        self.api.set_rules(Rule("close", "watch"), Rule("gone-event", "watch"))
        self.assertIsNone(Watch(self, version).next())
        watch = Watch(self, version)
        self.assertEqual(watch.next()["object"]["code"], 410)
        self.assertIsNone(watch.next())

    def test_held_requests_wait_for_their_release(self):
        self.api.apply("mnist", {})
        for carry_out in (True, False):
            self.api.set_rules(Rule("hold", "status"))
            patch = {
                "metadata": {"resourceVersion": self.version("mnist")},
                "status": {"step": int(carry_out) + 1},
            }
            connection = http.client.HTTPConnection(self.api.address, timeout=30)
            self.addCleanup(connection.close)
            connection.request("PATCH", JOBS + "/mnist/status", json.dumps(patch), PATCH)
            self.api.wait_for("the request", lambda: self.api.held == 1)
            self.api.release(carry_out)
            if carry_out:
                self.assertEqual(connection.getresponse().status, 200)
            else:
                self.assertRaises(BROKEN, connection.getresponse)
        self.assertEqual(self.api.status("mnist"), {"step": 2})

    def test_a_server_that_was_away_has_the_same_address_and_the_same_objects(self):
        version = self.api.apply("mnist", {})["metadata"]["resourceVersion"]
        kept = http.client.HTTPConnection(self.api.address, timeout=30)
        self.addCleanup(kept.close)
        self.assertEqual(self.send("GET", JOBS + "?limit=50", connection=kept)[0], 200)
        watch = Watch(self, version)
        self.api.wait_for("the watch", lambda: self.api.watches)
        self.api.stop_listening()
        self.assertRaises(BROKEN, watch.rest)
        self.assertRaises(ConnectionRefusedError, self.list)
        self.api.start_listening()
        self.assertEqual(self.list()["items"][0]["metadata"]["resourceVersion"], version)
        self.api.restart()
        self.assertEqual(len(self.list()["items"]), 1)
        with self.assertRaises(AssertionError):
            self.api.wait_for("a state that never comes", lambda: False, seconds=0.01)

    def test_tokens_can_change(self):
        self.api.set_tokens({"old"})
        target = JOBS + "?limit=50"
        for headers in ({}, {"Authorization": "Bearer new"}, {"Authorization": "Basic old"}):
            self.check_refused(self.send("GET", target, headers=headers), 401, "Unauthorized")
        self.assertEqual(self.send("GET", target, headers={"Authorization": "Bearer old"})[0], 200)
        self.api.set_tokens({"new"})
        headers = {"Authorization": "Bearer old"}
        self.check_refused(self.send("GET", target, headers=headers), 401, "Unauthorized")
        self.assertEqual(self.api.authorizations, {"Bearer new", "Basic old", "Bearer old"})

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            files = os.path.join(folder, "cert"), os.path.join(folder, "key")
            command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
            command += " -subj /CN=api -addext subjectAltName=IP:127.0.0.1 -days 1"
            subprocess.run(
                command.split() + ["-out", files[0], "-keyout", files[1]],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            api = self.enterContext(FakeApi(tls=files))
            self.assertTrue(api.url.startswith("https://127.0.0.1:"))
            for context, right in (
                (ssl.create_default_context(), False),
                (ssl.create_default_context(cafile=files[0]), True),
            ):
                connection = http.client.HTTPSConnection(api.address, context=context, timeout=30)
                with contextlib.closing(connection):
                    if right:
                        found = self.send("GET", JOBS + "?limit=50", connection=connection)
                        self.assertEqual(found[0], 200)
                        api.stop_listening()
                        with self.assertRaises(BROKEN):
                            self.send("GET", JOBS + "?limit=50", connection=connection)
                    else:
                        self.assertRaises(ssl.SSLError, connection.request, "GET", JOBS)
            api.wait_for("the failed handshake", lambda: api.counted["no-handshake"] == 1)

    def test_bytes_that_are_no_request_are_kept(self):
        host, port = self.api.address.split(":")
        with socket.create_connection((host, int(port)), 30) as s:
            s.sendall(b"nonsense\r\n\r\n")
            self.assertEqual(s.recv(100), b"")
        self.assertEqual(len(self.take_violations()), 1)


if __name__ == "__main__":
    unittest.main()
