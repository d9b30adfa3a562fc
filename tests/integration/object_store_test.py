#!/usr/bin/env python3
"""Jobs whose checkpoints and run copies are in an object store, which fails now and then.

  object_store_test.py --bin build/release/bin [unittest arguments]

The store is moto's server of S3 or a fake of Google Cloud Storage, behind a proxy that makes
requests fail and checks their signatures (tests/stores). The jobs are counting jobs: at the end of
a job, its values, optimizer state and ledgers must be exact. After each test, no file, no output
and no object may contain a secret.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from support import (  # noqa: E402
    COORDINATOR,
    PS_SERVER,
    PSCTL,
    WORKER,
    has_ended,
    main,
    read,
    write,
)

sys.path.append(os.path.join(support.ROOT, "tests", "stores"))
import moto_server  # noqa: E402
import numpy  # noqa: E402
import saved_files  # noqa: E402
from cluster import Cluster, Failure, wait_for  # noqa: E402
from fault_proxy import FaultProxy  # noqa: E402
from saved import (  # noqa: E402
    check_agrees,
    exported,
    folder_of,
    manifests,
    tool,
    verified,
    wait_saved,
)
from stage import events  # noqa: E402
from stored import BUCKET, KEYS, ObjectStore  # noqa: E402

RATE = 0.05
SEED = int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(3), "big")
SIGNATURE = re.compile(rb"[0-9a-f]{64}")
LONG = dict(examples=12_000, step_ms=15, checkpoint="{every: 100ms, keep: 5}")
NO_CREDENTIALS = "no credentials for s3://; these places were searched: AWS_ACCESS_KEY_ID"


def leaks(texts, secrets, authorizations):
    """Returns the places of the texts that contain a secret or the value of an Authorization
    header. A text is (place, bytes)."""
    signatures, words = set(), {b"AWS4-HMAC-SHA256", b"GOOG4-HMAC-SHA256", b"Bearer "}
    for secret in secrets:
        words |= {secret.encode(), urllib.parse.quote(secret, safe="").encode()}
    for text in authorizations:
        found = re.search("Signature=([0-9a-f]{64})", text)
        if found:
            signatures.add(found.group(1).encode())
        else:
            words.add(text.split()[-1].encode())
    return [
        place
        for place, text in texts
        if any(word in text for word in words) or signatures.intersection(SIGNATURE.findall(text))
    ]


class Leaks(unittest.TestCase):
    def test_each_secret_is_found(self):
        authorizations = ["AWS4-HMAC-SHA256 Credential=A, Signature=" + "0f" * 32, "Bearer token"]
        for text in ("the a/key.", "a%2Fkey", "is " + "0f" * 32, "token", "Bearer x"):
            with self.subTest(text):
                texts = [("here", text.encode())]
                self.assertEqual(leaks(texts, {"a/key"}, authorizations), ["here"])
        harmless = [("here", b"key 0e0f" * 40), ("there", b"AWS4 Bearer")]
        self.assertEqual(leaks(harmless, {"a/key"}, authorizations), [])


class StoreCluster(Cluster):
    """A cluster that keeps the output of psctl, so that it can be searched for secrets."""

    def __init__(self, store, servers=2, workers=2, **more):
        super().__init__(support.BIN, servers, workers, SEED, **more)
        self.store, self.said = store, []

    def psctl(self, *arguments, **kw):
        r = super().psctl(*arguments, **kw)
        self.said.append(r.stdout + r.stderr)
        return r

    def outcome(self, name="job", **shape):
        """Submits a job, and returns its last state and all texts that a user sees. A refused
        submission has the state REFUSED. A job that waits for its last checkpoint has the state
        WAITING, and is cancelled."""
        try:
            job = self.submit(name=name, **shape)
        except Failure as why:  # with the output of psctl
            return "REFUSED", str(why)

        def outcome():
            status = job.show()
            waits = status.get("waiting_for", "").startswith("the last checkpoint: ")
            return status if waits or has_ended(status) else None

        status = wait_for("the job to end or to wait for its checkpoint", outcome)
        texts = [str(status.get("first_cause")), status.get("waiting_for", "")]
        texts += [e["text"] for e in status["events"]]
        if not has_ended(status):
            self.psctl("job", "cancel", name)
            status = dict(job.wait_state("CANCELLED"), state="WAITING")
        return status["state"], "\n".join(texts)


class StoreCase(unittest.TestCase):
    """A test with a store and clusters. The secrets are searched for at the end."""

    def setUp(self):
        print("seed=%d" % SEED)
        self.folder = tempfile.mkdtemp(prefix="evergrad it-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.secrets = {moto_server.SECRET_KEY}

    def store(self, kind="s3", rate=RATE, variables=None):
        """Starts a store, and gives its credentials, or `variables`, to the daemons and to
        psctl."""
        store = self.enterContext(ObjectStore(kind, self.folder, SEED, rate))
        variables = store.variables if variables is None else variables
        mine = moto_server.environment(HOME=self.folder, **variables)
        self.enterContext(unittest.mock.patch.dict(os.environ, mine, clear=True))
        return store

    @contextlib.contextmanager
    def cluster(self, store, *arguments, **kw):
        """A cluster, in whose files and outputs no secret may be."""
        with StoreCluster(store, *arguments, **kw) as c:
            c.up()
            yield c
            self.check_no_secret(c, store)

    def check_no_secret(self, c, store):
        found = leaks(self.texts_of(c, store), self.secrets, store.proxy.seen_authorizations())
        self.assertEqual(found, [])

    def texts_of(self, c, store):
        """Returns (place, bytes) of all outputs, files and objects."""
        texts = [("the output of psctl", text.encode()) for text in c.said]
        for folder, _, names in os.walk(c.folder):
            for path in [os.path.join(folder, name) for name in names]:
                if os.path.isfile(path):
                    with open(path, "rb") as f:
                        texts.append((path, f.read()))
        for key in store.server.keys(BUCKET):
            with contextlib.suppress(FileNotFoundError):
                texts.append((key, store.server.read(BUCKET, key)))
        self.assertGreater(len(texts), 5)
        return texts

    def check_listed(self, c, job):
        """`psctl checkpoint` must list, verify and export the job's checkpoint in the store."""
        uri = folder_of(job)
        code, listed, errors = tool(c, "list", c.saved_at("saved"))
        self.assertEqual((code, errors), (0, ""))
        mine = [row for row in listed["checkpoints"] if row["job_uid"] == job.uid]
        self.assertEqual({row["state"] for row in mine}, {"whole"})
        self.assertEqual([row["path"] for row in reversed(mine)], manifests(uri))
        said = verified(c, uri)
        check_agrees(job, said)
        self.assertEqual(said["manifest"]["path"], manifests(uri)[-1])
        with numpy.load(os.path.join(job.show()["runs_folder"], "weights.npz")) as weights:
            arrays = exported(c, uri)
            self.assertEqual(sorted(arrays), sorted(weights.files))
            for name in arrays:
                self.assertEqual(arrays[name].tobytes(), weights[name].tobytes(), name)
        return said

    def check_faults(self, store):
        failed, requests = store.faults()
        print("%d of %d requests failed: %s" % (failed, requests, store.proxy.counts()))
        self.assertGreater(failed, 0.4 * RATE * requests)

    def wait_another_checkpoint(self, job):
        """Waits until a running job has written another checkpoint from its beginning."""
        for _ in range(2):  # the first one may be under way
            newest = manifests(folder_of(job))[-1]
            wait_for(
                "a checkpoint after " + newest,
                lambda: manifests(folder_of(job))[-1] > newest or job.ended(),
            )
            self.assertFalse(job.ended())

    def train_and_resume(self, c):
        """Runs a job, and another that resumes from its checkpoint."""
        shape = dict(examples=3000, step_ms=3)
        job = c.submit(checkpoint="{every: 100ms, keep: 5}", **shape)
        job.finish()
        said = self.check_listed(c, job)
        for folder, _, names in os.walk(c.folder):
            self.assertFalse([n for n in names if n.startswith(("manifest-", "shard-"))], folder)
        resume = "{every: 100ms, keep: 5, resume: true}"
        again = c.submit(name=job.name, checkpoint=resume, epochs=3, **shape)
        result = again.finish()
        self.assertEqual(result["resumed_from"], said["manifest"]["path"])
        self.assertTrue(events(again, "state", "resumed at step %d" % job.steps))
        self.check_listed(c, again)


@unittest.skipUnless(moto_server.has_moto(), moto_server.NO_MOTO)
class S3(StoreCase):
    def test_a_job_is_exact_on_a_store_that_fails_and_another_job_resumes_from_it(self):
        store = self.store()
        # The daemons must recognize their own writes, also if libcurl has repeated a request
        # because a reused connection had ended.
        store.proxy.set_rules(
            [
                {
                    "kind": "lost-answer",
                    "method": "PUT",
                    "path": "manifest-",
                    "every": 2,
                    "times": 9,
                },
                {"kind": "lost-answer", "method": "PUT", "path": "shard-", "every": 3, "times": 99},
                {"kind": "lost-answer", "method": "DELETE", "every": 2, "times": 9},
            ]
        )
        copies = "s3://%s/copies" % BUCKET
        with self.cluster(store, coordinator_arguments=("--runs-copy", copies)) as c:
            self.train_and_resume(c)
            self.check_run_copies(c, copies)
            self.check_faults(store)

    def check_run_copies(self, c, copies):
        """The store must have the files of each run."""
        for name in os.listdir(c.runs):
            local = os.path.join(c.runs, name)
            copy = "%s/%s" % (copies, name)
            wait_for("a copy of " + name, lambda: "result.json" in saved_files.names(copy))
            for file in ("result.json", "job.yaml", "weights.npz", "metrics.jsonl"):
                with open(os.path.join(local, file), "rb") as f:
                    self.assertTrue(saved_files.read("%s/%s" % (copy, file)) == f.read(), file)

    def test_large_shards_are_uploaded_in_parts_and_each_part_may_fail(self):
        store = self.store(rate=0)
        store.proxy.set_rules(
            [
                {"kind": "cut-request", "method": "PUT", "path": "partNumber=2"},
                {"kind": "lost-answer", "method": "PUT", "path": "partNumber=1"},
                {"kind": "slow-down", "method": "POST", "path": "uploads"},
                {"kind": "lost-answer", "method": "POST", "path": "uploadId="},
            ]
        )
        # Each shard has 1,200,000 rows with 8 bytes each, so its file has two parts.
        shape = dict(examples=2_400_000, batch=200_000, epochs=1, shards=2, step_ms=1)
        with self.cluster(store) as c:
            job = c.submit(checkpoint="{every: 10m}", **shape)
            job.finish(seconds=300)
            self.check_listed(c, job)
        self.assertEqual(
            {line[2] for line in store.proxy.requests(path="upload") if line[2]},
            {"cut-request", "lost-answer", "slow-down"},
        )
        self.assertGreater(len(store.proxy.requests("PUT", "partNumber=2")), 2)
        self.assertEqual(store.server.uploads(BUCKET), [])

    def test_two_coordinators_with_jobs_of_one_name_share_a_folder(self):
        store = self.store()
        with self.cluster(store, 1, 1) as a, self.cluster(store, 1, 1) as b:
            save = '{every: 100ms, keep: 3, directory: "s3://%s/shared"}' % BUCKET
            shape = dict(name="twin", examples=1500, step_ms=3, checkpoint=save)
            jobs = [(c, c.submit(**shape)) for c in (a, b)]
            for c, job in jobs:
                job.finish()
                uri = "s3://%s/shared/twin-%s" % (BUCKET, job.uid)
                self.assertEqual(os.path.dirname(job.show()["checkpoint"]["path"]), uri)
                check_agrees(job, verified(c, uri))

    def test_a_store_that_ignores_conditions_is_named(self):
        store = self.store(rate=0)
        store.proxy.set_dropped_headers(["If-None-Match"])
        with self.cluster(store, 1, 1) as c:
            _, text = c.outcome(checkpoint="{every: 100ms}")
            self.assertIn("the store ignores the condition If-None-Match", text)
            self.assertIn(store.proxy.address, text)
            left = [key for key in store.server.keys(BUCKET) if "manifest-" in key]
            self.assertEqual(left, [])

    def test_wrong_credentials_are_named(self):
        mine = moto_server.key_environment
        refused = "the store (refuses|does not know) the .*: .* code=%s .*=environment"
        for variables, words in (
            (
                mine(secret_key="another/secret+key/that+no/file+may/contain"),
                "SignatureDoesNotMatch",
            ),
            (mine(access_key="AKIATESTUNKNOWN00000"), "InvalidAccessKeyId"),
            (mine(session_token="a+session/token=that/no=file+may/contain"), "InvalidToken"),
            ({}, NO_CREDENTIALS),
        ):
            with self.subTest(words):
                self.doCleanups()
                self.setUp()
                store = self.store(rate=0, variables=variables)
                self.secrets |= {v for name, v in variables.items() if name != "AWS_ACCESS_KEY_ID"}
                with self.cluster(store, 1, 1) as c:
                    state, text = c.outcome(checkpoint="{every: 100ms}")
                    self.assertRegex(text, refused % words if variables else words)
                    self.assertIn(state, ("FAILED", "WAITING"))
                    code, _, errors = tool(c, "list", c.saved_at("saved"))
                    c.said.append(errors)
                    self.assertIn(words, errors)
                    self.assertNotEqual(code, 0)

    def test_expired_credentials_are_read_again_in_the_middle_of_a_job(self):
        path = os.path.join(self.folder, "credentials")
        store = self.store(variables={"AWS_SHARED_CREDENTIALS_FILE": path})

        def key(number):
            return dict(
                secret="secret+of/session%d/that+no/file/may" % number,
                session_token="token+of/session%d=that+no/file/may" % number,
            )

        def use(number):
            value = key(number)
            self.secrets |= set(value.values())
            text = "[default]\naws_access_key_id = ASIASESSION%d\n" % number
            text += "aws_secret_access_key = %s\naws_session_token = %s\n" % tuple(value.values())
            write(path + ".new", text)
            os.rename(path + ".new", path)
            keys = {"ASIASESSION%d" % i: dict(key(i), state="expired") for i in range(number)}
            store.proxy.set_keys(keys=dict(keys, **{"ASIASESSION%d" % number: value}))

        use(1)
        with self.cluster(store) as c:
            job = c.submit(**LONG)
            for number in (2, 3):
                self.assertTrue(wait_saved(job, 1))
                use(number)
                self.wait_another_checkpoint(job)
            job.finish()
            self.check_listed(c, job)
        self.assertGreaterEqual(store.proxy.counts()["refused-ExpiredToken"], 2)
        used = {re.search("=(ASIA.*?)/", text)[1] for text in store.proxy.seen_authorizations()}
        self.assertEqual(used, {"ASIASESSION%d" % number for number in (1, 2, 3)})

    def test_a_job_without_object_uris_contacts_no_store(self):
        store = self.store(variables={})
        with self.cluster(store, 1, 1) as c:
            local = os.path.join(c.folder, "saved here")
            c.submit(checkpoint='{every: 100ms, directory: "%s"}' % local).finish()
        self.assertEqual(store.proxy.counts().get("connections", 0), 0)

    def test_a_certificate_is_checked(self):
        store = self.store(rate=0)
        store.server.put(BUCKET, "file", b"text")
        certs = os.path.join(self.folder, "certs")
        for arguments in (["init"], ["issue", "store", "--host", "127.0.0.1"]):
            self.run_psctl("cert", *arguments, "--folder", certs)
        tls = [os.path.join(certs, "store" + suffix) for suffix in (".pem", ".key")]
        proxy = self.enterContext(FaultProxy(store.server.address, SEED, tls=tls))
        proxy.set_keys(KEYS)
        command = ["checkpoint", "list", "s3://%s/none" % BUCKET, "--s3-endpoint", proxy.url]
        ca = ["--store-ca", os.path.join(certs, "ca.pem")]
        wrong_host = [word.replace("127.0.0.1", "localhost") for word in command]
        for arguments in (command, wrong_host + ca):
            r = self.run_psctl(*arguments, expect=None)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn("the certificate of the store is not valid", r.stderr)
        self.assertEqual(proxy.counts().get("requests", 0), 0)
        r = self.run_psctl(*command, *ca, expect=None)
        self.assertNotIn("certificate", r.stdout + r.stderr)
        self.assertGreater(proxy.counts()["requests"], 0)
        self.assertFalse([what for what in proxy.counts() if what.startswith("refused-")])

    def run_psctl(self, *arguments, expect=0):
        r = subprocess.run(
            [support.binary(PSCTL), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if expect is not None:
            self.assertEqual(r.returncode, expect, r.stdout + r.stderr)
        return r


class Settings(unittest.TestCase):
    def test_wrong_settings_are_refused_at_the_start(self):
        for flag, value, words in (
            ("--s3-endpoint", "http://198.51.100.7:9000", "http:// is allowed for 127.0.0.1"),
            ("--s3-endpoint", "store.example.org", "expected a URL like https://HOST"),
            ("--gcs-endpoint", "https://store.example.org/path", "has no path"),
            ("--s3-addressing", "host", "auto"),
            ("--store-ca", "/none/ca.pem", "/none/ca.pem"),
        ):
            for program in (COORDINATOR, PS_SERVER, WORKER, PSCTL):
                with self.subTest(flag=flag, value=value, program=program):
                    command = [support.binary(program), flag, value]
                    if program == PSCTL:
                        command[1:1] = ["checkpoint", "list", "."]
                    elif program != COORDINATOR:
                        command += ["--coordinator", "127.0.0.1:1"]
                    r = subprocess.run(
                        command,
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        timeout=30,
                    )
                    self.assertIn(words, r.stdout + r.stderr)
                    self.assertIn(flag, r.stdout + r.stderr)
                    self.assertEqual(r.returncode, 2)


class Gcs(StoreCase):
    def test_a_job_is_exact_on_a_store_that_fails_and_another_job_resumes_from_it(self):
        store = self.store("gs")
        self.secrets.add(read(store.token_file))
        with self.cluster(store) as c:
            self.train_and_resume(c)
            self.check_faults(store)
        self.assertEqual(store.server.bodies_without_hash, 0)

    def test_large_shards_are_uploaded_in_parts_and_appear_by_a_copy(self):
        store = self.store("gs", rate=0)
        store.proxy.set_rules(
            [
                {"kind": "cut-request", "method": "PUT", "path": "partNumber=2"},
                {"kind": "lost-answer", "method": "POST", "path": "uploadId="},
            ]
        )
        shape = dict(examples=2_400_000, batch=200_000, epochs=1, shards=2, step_ms=1)
        with self.cluster(store) as c:
            job = c.submit(checkpoint="{every: 10m}", **shape)
            job.finish(seconds=300)
            self.check_listed(c, job)
        self.assertEqual(store.server.uploads, {})
        self.assertEqual([k for k in store.server.keys(BUCKET) if ".evergrad-" in k], [])

    def test_tokens_that_expire_are_read_again_in_the_middle_of_a_job(self):
        store = self.store("gs")
        with self.cluster(store) as c:
            job = c.submit(**LONG)
            for _ in range(2):
                self.assertTrue(wait_saved(job, 1))
                new = store.server.tokens.issue()
                self.secrets |= {read(store.token_file), new}
                store.write_token(new)
                store.server.tokens.keep_only(new)
                self.wait_another_checkpoint(job)
            job.finish()
            self.check_listed(c, job)

    def test_a_wrong_token_is_named(self):
        store = self.store("gs", rate=0)
        self.secrets.add("ya29.a-wrong-token-that-no-file-may-contain")
        store.write_token("ya29.a-wrong-token-that-no-file-may-contain")
        with self.cluster(store, 1, 1) as c:
            state, text = c.outcome(checkpoint="{every: 100ms}")
            self.assertIn("status=401", text)
            self.assertIn(state, ("FAILED", "WAITING"))

    def test_a_store_that_ignores_conditions_is_named(self):
        store = self.store("gs", rate=0)
        store.proxy.set_dropped_headers(["x-goog-if-generation-match"])
        with self.cluster(store, 1, 1) as c:
            _, text = c.outcome(checkpoint="{every: 100ms}")
            self.assertIn("the store ignores the condition x-goog-if-generation-match", text)
            self.assertIn(store.proxy.address, text)


if __name__ == "__main__":
    main()
