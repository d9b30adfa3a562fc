#!/usr/bin/env python3
"""Jobs whose data files lie in an object store.

  store_data_test.py --bin build/release/bin [unittest arguments]

The store is moto's server of S3 or a fake of Google Cloud Storage, behind a proxy that makes
requests fail and checks their signatures (tests/stores). Workers copy the files to a folder of
their host. After each test, no file, no output and no object may contain a secret.
"""
import glob
import gzip
import os
import sys
import unittest
import unittest.mock
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from object_store_test import RATE, StoreCase  # noqa: E402
from support import (
    ROOT,
    data_folder,
    has_ended,
    job_yaml,
    main,
    read,
    wait_for,
    write,
)  # noqa: E402

sys.path.append(os.path.join(ROOT, "tests", "stores"))
import moto_server  # noqa: E402
from stored import BUCKET  # noqa: E402

IDX, ADULT = "fashion-mnist-12k", "adult"
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
# The job adult.yaml is deterministic with these settings.
CSV_SETTINGS = (
    "spec.strategy.deterministic=true",
    "spec.strategy.pipeline=0",
    "spec.training.epochs=1",
)
READ_BYTES = 4 << 20  # of one request
LONG = dict(epochs=20_000, deterministic=False)  # until it is cancelled
CHANGED = "the data have changed since the plan was made: file=s3://"


def other_images(data):
    """Returns another file of images: the same pixels in the reverse order."""
    plain = gzip.decompress(data)
    return gzip.compress(plain[:16] + plain[:15:-1], 1)


class DataCase(StoreCase):
    def put(self, store, *folders):
        """Puts data sets into the store. Returns {key: bytes}."""
        found = {}
        for folder in folders:
            for path in sorted(glob.glob(os.path.join(data_folder(), folder, "*"))):
                key = "data/%s/%s" % (folder, os.path.basename(path))
                with open(path, "rb") as f:
                    found[key] = f.read()
                store.server.put(BUCKET, key, found[key])
        self.assertTrue(found, "no data sets %s" % (folders,))
        return found

    def cache(self, name="cache"):
        """Returns a folder for copies, which the workers make."""
        return os.path.join(self.folder, name)

    def data_cluster(self, store, *arguments, servers=2, workers=1, cache=None, **kw):
        flags = ("--data-cache", cache or self.cache(), *arguments)
        return self.cluster(store, servers, workers, worker_arguments=flags, **kw)

    def submit(self, c, path, place, *settings):
        """Submits a job whose data are in the folder or at the URI `place`."""
        words = [word for setting in settings for word in ("--set", setting)]
        with unittest.mock.patch.dict(os.environ, EVERGRAD_DATA=place):
            c.psctl("job", "submit", path, *words)

    def submit_idx(self, c, name, place, **shape):
        shape = dict(dict(deterministic=True), **shape)
        path = write(os.path.join(c.folder, name + ".yaml"), job_yaml(name=name, **shape))
        self.submit(c, path, place)

    def ended(self, c, name, seconds=150):
        """Waits for the end of a job, and returns its status."""

        def over():
            status = c.psctl_json("job", "show", name)
            return status if has_ended(status) else None

        return wait_for("%s to end" % name, over, seconds)

    def succeeded(self, c, name):
        status = self.ended(c, name)
        self.assertEqual(status["state"], "SUCCEEDED", said_of(status))
        return self.bits(c, name, status["runs_folder"])

    def bits(self, c, name, folder):
        """Returns the results of a job: the digests of the values and of the optimizer state of
        each variable, and the exported arrays."""
        digests = {
            v["name"]: (v["complete"], v["digest"], v["slot_digest"])
            for v in c.psctl_json("variable", "list", "--job", name)["variables"]
        }
        self.assertTrue(digests and all(complete for complete, _, _ in digests.values()), digests)
        with zipfile.ZipFile(os.path.join(folder, "weights.npz")) as z:
            return digests, {n: z.read(n) for n in z.namelist()}

    def reads(self, store, key=""):
        """Returns the requests that read bytes of an object."""
        return store.proxy.requests("GET", key)

    def successful_reads(self, store):
        """Returns the requests that got bytes of an object. A refused description is followed by a
        request for one byte, because the response to it names the error."""
        return [line for line in self.reads(store) if line[3] is None or line[3] < 400]

    def check_read_once(self, store, files, times=1):
        """Each object must have been downloaded `times` times, in blocks of 4 MiB."""
        want = {key: times * -(-len(data) // READ_BYTES) for key, data in files.items()}
        self.assertEqual({key: len(self.reads(store, key)) for key in files}, want)

    def wait_news(self, c, name, words):
        """Waits until the status of a running job has the words, and returns all its texts."""

        def there():
            status = c.psctl_json("job", "show", name)
            self.assertFalse(has_ended(status), said_of(status))
            return said_of(status) if words in said_of(status) else None

        return wait_for("`%s`" % words, there)

    def wait_more_steps(self, c, name):
        """Waits until a running job has done some more steps."""

        def steps():
            status = c.psctl_json("job", "show", name)
            self.assertFalse(has_ended(status), said_of(status))
            return status["steps_done"] or 0

        before = steps()
        wait_for("%s to do more steps" % name, lambda: steps() > before + 20)

    def cancel(self, c, name):
        c.psctl("job", "cancel", name)
        self.assertEqual(self.ended(c, name)["state"], "CANCELLED")

    def check_fails(self, c, name, *words):
        """A job on the objects of IDX must fail, and its first cause must match the words."""
        self.submit_idx(c, name, self.URI)
        status = self.ended(c, name)
        self.assertEqual(status["state"], "FAILED", said_of(status))
        self.assertEqual(status["first_cause"]["kind"], "user")
        for word in words:
            self.assertRegex(status["first_cause"]["message"], word)


def said_of(status):
    """Returns all texts of a job that a user sees."""
    texts = [str(status.get("first_cause")), status.get("waiting_for", "")]
    return "\n".join(texts + [e["text"] for e in status["events"]])


@unittest.skipUnless(moto_server.has_moto(), moto_server.NO_MOTO)
class S3(DataCase):
    URI = "s3://%s/data" % BUCKET

    def test_jobs_on_idx_and_csv_are_equal_to_jobs_on_local_files_although_the_store_fails(self):
        store = self.store()
        self.put(store, IDX, ADULT)
        # Each data file also fails once in each of these ways.
        kinds = ("cut-response", "wrong-length", "slow-down", "error-500", "lost-answer")
        store.proxy.set_rules(
            [
                {"kind": kind, "method": "GET", "path": name, "times": 1}
                for name in ("train-images", "adult.data")
                for kind in kinds
            ]
        )
        adult = os.path.join(ROOT, "configs", "examples", "adult.yaml")
        results = {}
        with self.data_cluster(store, "--data-root", self.URI, "--data-root", data_folder()) as c:
            for kind, place in (("local", data_folder()), ("stored", self.URI)):
                self.submit_idx(c, "idx-" + kind, place, epochs=2)
                results["idx", kind] = self.succeeded(c, "idx-" + kind)
                name = "csv-" + kind
                self.submit(c, adult, place, "metadata.name=" + name, *CSV_SETTINGS)
                results["csv", kind] = self.succeeded(c, name)
        for kind in ("idx", "csv"):
            self.assertEqual(results[kind, "local"], results[kind, "stored"], kind)
        self.assertNotEqual(results["idx", "local"], results["csv", "local"])
        failed = {(os.path.basename(line[1]), line[2]) for line in self.reads(store)}
        for name in (TRAIN_IMAGES, "adult.data"):
            self.assertLessEqual({(name, kind) for kind in kinds}, failed)

    def test_workers_of_one_host_download_each_file_once(self):
        store = self.store(rate=0)
        files = self.put(store, IDX)
        # The jobs are described by different workers at the same time. One waits for the download
        # of the other, which takes four seconds.
        store.proxy.set_faults(rate=0, slow_bytes_per_second=1 << 20)
        store.proxy.set_rules([{"kind": "slow", "method": "GET", "path": TRAIN_IMAGES}])
        jobs = ("--jobs-running-max", "2")
        with self.data_cluster(store, workers=2, coordinator_arguments=jobs) as c:
            names = ("one", "other")
            for name in names:
                self.submit_idx(c, name, self.URI, **LONG)
            logs = [worker.log_path for worker in c.workers]
            wait_for(
                "both workers to open the data",
                lambda: all("this worker describes the job" in read(path) for path in logs),
            )
            for name in names:
                self.wait_more_steps(c, name)
                self.cancel(c, name)
            self.check_read_once(store, files)
            self.assertEqual(len(os.listdir(self.cache())), len(files) + 1, "copies and .lock")

    def test_a_file_that_is_larger_than_the_cache_is_refused(self):
        store = self.store(rate=0)
        files = self.put(store, IDX)
        key = "data/%s/%s" % (IDX, TRAIN_IMAGES)
        self.assertGreater(len(files[key]), 4 << 20)
        with self.data_cluster(store, "--data-cache-bytes-max", "4MiB") as c:
            self.check_fails(
                c,
                "large",
                "data file is larger than the cache of this worker: file=s3://%s/%s"
                % (BUCKET, key),
                "bytes=%d max=%d .*--data-cache-bytes-max" % (len(files[key]), 4 << 20),
            )
        self.assertEqual(self.reads(store, key), [])

    def test_older_copies_are_removed_for_newer_ones(self):
        store = self.store(rate=0)
        files = self.put(store, IDX)
        most = 5 << 20
        self.assertGreater(sum(map(len, files.values())), most)
        with self.data_cluster(store, "--data-cache-bytes-max", "5MiB") as c:
            results = []
            for place in (self.URI, data_folder(), self.URI):
                self.submit_idx(c, "job-%d" % len(results), place)
                results.append(self.succeeded(c, "job-%d" % len(results)))
                copies = [os.path.join(self.cache(), name) for name in os.listdir(self.cache())]
                self.assertLessEqual(sum(map(os.path.getsize, copies)), most)
            self.assertEqual(results, results[:1] * 3)
        self.assertGreater(len(self.reads(store, TRAIN_IMAGES)), 2)

    def test_an_object_that_is_replaced_during_a_job_is_named_and_not_used(self):
        store = self.store(rate=0)
        key = "data/%s/%s" % (IDX, TRAIN_IMAGES)
        original = self.put(store, IDX)[key]
        with self.data_cluster(store) as c:
            self.submit_idx(c, "long", self.URI, **LONG)
            self.wait_more_steps(c, "long")
            store.server.put(BUCKET, key, other_images(original))
            self.wait_more_steps(c, "long")  # on the old data, which the worker has in memory
            c.workers[0].kill()
            c.workers[0].start()
            said = self.wait_news(c, "long", CHANGED)
            self.assertIn(CHANGED + "%s/%s" % (BUCKET, key), said)
            store.server.put(BUCKET, key, original)
            self.wait_more_steps(c, "long")
            self.cancel(c, "long")

    def test_an_object_that_is_replaced_during_its_download_does_not_fail_a_running_job(self):
        store = self.store(rate=0)
        key = "data/%s/%s" % (IDX, TRAIN_IMAGES)
        original = self.put(store, IDX)[key]
        with self.data_cluster(store) as c:
            self.submit_idx(c, "long", self.URI, **LONG)
            self.wait_more_steps(c, "long")
            before = len(self.reads(store, key))
            # The first block of the second worker takes two seconds, and the object changes then.
            store.proxy.set_faults(rate=0, slow_bytes_per_second=2 << 20)
            store.proxy.set_rules([{"kind": "slow", "method": "GET", "path": key}])
            flags = ["--name", "1", "--threads", "1", "--data-cache", self.cache("second")]
            second = c.add("worker", "1", flags)
            wait_for("a download", lambda: len(self.reads(store, key)) > before)
            store.server.put(BUCKET, key, other_images(original))
            said = self.wait_news(c, "long", "the object has changed since it was opened")
            self.assertIn("worker/1 cannot take part in the job", said)
            self.assertIn("file=s3://%s/%s" % (BUCKET, key), said)
            # The second attempt downloads the new object, and does not use it.
            wait_for("another attempt", lambda: CHANGED in read(second.log_path))
            self.wait_more_steps(c, "long")
            self.cancel(c, "long")

    def test_a_missing_object_is_named(self):
        store = self.store(rate=0)
        self.put(store, IDX)
        for name in ("train-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
            key = "data/%s/%s" % (IDX, name)
            data = store.server.read(BUCKET, key)
            store.server.delete(BUCKET, key)
            with self.subTest(name), self.data_cluster(store) as c:
                said = "cannot open data file: file=s3://%s/%s error=.*no such file" % (BUCKET, key)
                self.check_fails(c, "missing", said)
            store.server.put(BUCKET, key, data)

    def test_wrong_credentials_are_named(self):
        mine = moto_server.key_environment
        for variables, words in (
            (
                mine(secret_key="another/secret+key/that+no/file+may/contain"),
                ("code=SignatureDoesNotMatch",),
            ),
            (mine(access_key="AKIATESTUNKNOWN00000"), ("code=InvalidAccessKeyId",)),
            (
                mine(session_token="a+session/token=that/no=file+may/contain"),
                ("code=InvalidToken",),
            ),
            ({}, ("no credentials for s3://", "AWS_ACCESS_KEY_ID")),
        ):
            with self.subTest(variables=sorted(variables), words=words):
                self.doCleanups()
                self.setUp()
                store = self.store(rate=0, variables=variables)
                self.put(store, IDX)
                self.secrets |= {v for name, v in variables.items() if name != "AWS_ACCESS_KEY_ID"}
                if variables:
                    words += ("credentials=environment", "store=" + store.proxy.address)
                with self.data_cluster(store) as c:
                    self.check_fails(c, "denied", "file=s3://%s/data/%s/" % (BUCKET, IDX), *words)
                self.assertEqual(self.successful_reads(store), [])

    def test_an_object_outside_of_the_roots_is_refused(self):
        store = self.store(rate=0)
        self.put(store, IDX)
        with self.data_cluster(store, "--data-root", self.URI + "/fashion") as c:
            said = "lies outside of the allowed folders: path=s3://%s/data/%s/" % (BUCKET, IDX)
            self.check_fails(c, "outside", said, "--data-root")
        self.assertEqual(store.proxy.counts().get("requests", 0), 0)


class Gcs(DataCase):
    URI = "gs://%s/data" % BUCKET
    KEY, SECRET = "GOOG1TESTSTORE0000001", "test/hmac+secret/that+no/file+may/contain"

    def signed_store(self, rate, secret=SECRET):
        """Returns a store that accepts the HMAC key of this class. The daemons have its id, and
        `secret`."""
        variables = {"GS_ACCESS_KEY_ID": self.KEY, "GS_SECRET_ACCESS_KEY": secret}
        store = self.store("gs", rate, variables)
        store.server.hmac_keys = {self.KEY: self.SECRET}
        self.secrets |= {self.SECRET, secret}
        return store

    def check_signed(self, store):
        """Every request must have been signed with the HMAC key."""
        begin = "GOOG4-HMAC-SHA256 Credential=%s/" % self.KEY
        for text in store.proxy.seen_authorizations():
            self.assertTrue(text.startswith(begin), text.split("Signature")[0])
        self.assertTrue(store.proxy.seen_authorizations())

    def test_data_and_checkpoints_with_hmac_keys_on_a_store_that_fails(self):
        store = self.signed_store(RATE)
        files = self.put(store, IDX)
        with self.data_cluster(store, workers=2) as c:
            self.train_and_resume(c)
            for name, place in (("stored", self.URI), ("local", data_folder())):
                self.submit_idx(c, name, place)
            self.assertEqual(self.succeeded(c, "stored"), self.succeeded(c, "local"))
            self.check_faults(store)
        self.assertTrue(all(self.reads(store, key) for key in files))
        self.check_signed(store)

    def test_a_wrong_hmac_key_is_named(self):
        store = self.signed_store(0, "another/secret+key/that+no/file+may/contain")
        self.put(store, IDX)
        with self.data_cluster(store) as c:
            self.check_fails(c, "denied", "file=gs://%s/data/%s/" % (BUCKET, IDX), "status=403")
        self.assertEqual(self.successful_reads(store), [])
        self.check_signed(store)


if __name__ == "__main__":
    main()
