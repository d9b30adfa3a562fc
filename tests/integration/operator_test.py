#!/usr/bin/env python3
"""Tests evergrad-operator with real daemons and a fake of kube-apiserver (tests/kubernetes).

  operator_test.py --bin build/release/bin [unittest arguments]

Each TrainingJob must become exactly one job of the coordinator, and its status must show the state
of this job, whatever fails: the operator is killed at any moment, the API server answers with
errors, ends watches or is unreachable, and the coordinator is restarted. After each test, the fake
must not have received a request that the role of the operator does not permit.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import support  # noqa: E402
from support import (  # noqa: E402
    COORDINATOR,
    COUNTING,
    PS_SERVER,
    WORKER,
    Case,
    binary,
    main,
    wait_for,
    write,
)

sys.path.append(os.path.join(support.ROOT, "tests", "kubernetes"))
from fake_api import FakeApi, Rule  # noqa: E402

OPERATOR = "evergrad-operator"
NAMESPACE = "training"
FINALIZER = "evergrad.dev/cancel-job"
SEED = int(os.environ.get("SEED", "0")) or int.from_bytes(os.urandom(3), "big")
# With the default intervals the tests would take minutes.
INTERVALS = ["--poll", "100ms", "--status-every", "200ms"]
METRICS = ("objects", "submissions", "status_writes", "api_errors", "watches")
FORWARD = ("QUEUED", "STARTING", "RUNNING", "SUCCEEDED")
LONG = 100_000  # steps of a job that does not end during a test


def counting(steps=12, step_ms=2):
    """Returns the spec of a counting job, as JSON."""
    return {
        "type": "counting",
        "counting": {"examples": steps * 10, "shards": 2, "step_ms": step_ms},
        "data": {"batch_size": 10, "shuffle": {"seed": 7}},
        "training": {"epochs": 1, "steps_per_closure": 4},
    }


def model(path):
    """Returns the spec of a job that trains a model on the records in a CSV file, as JSON. It is
    not saved, which YAML and kubectl write as the boolean false."""
    source = {"format": "csv", "path": path, "header": True}
    return {
        "data": {
            "train": source,
            "eval": source,
            "fields": {
                "numbers": {"column": ["x", "y"], "type": "float"},
                "label": {"column": "rich", "type": "int"},
            },
            "batch_size": 10,
        },
        "model": {
            "inputs": {"numbers": {"shape": [2]}},
            "layers": [{"name": "logits", "type": "dense", "units": 2, "input": "numbers"}],
            "losses": {
                "type": "sparse_categorical_crossentropy",
                "from_logits": True,
                "output": "logits",
                "labels": "label",
            },
            "metrics": ["accuracy"],
        },
        "optimizer": {"type": "sgd", "learning_rate": 0.1},
        "training": {"epochs": 2, "steps_per_closure": 1, "evaluate_every": "1 epoch"},
        "checkpoint": False,
    }


def without_pod():
    """Returns the environment of a process that does not run in a pod."""
    return {k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_")}


class OperatorCase(Case):
    """A test with a fake API server. `up` starts a cluster of one server and one worker."""

    api_uses_token = False

    def setUp(self):
        print("seed=%d" % SEED)
        super().setUp()
        self.random = random.Random(SEED)
        self.uids, self.starts = {}, 0
        self.api = self.start_api()
        self.operator = None

    def start_api(self):
        return self.enterContext(FakeApi(NAMESPACE, SEED))

    def tearDown(self):
        super().tearDown()
        self.assertEqual(self.api.violations, [])
        if not self.api_uses_token:
            self.assertEqual(self.api.authorizations, set())

    # ---- processes

    def files(self, name):
        """Returns the TLS flags of a task or person. Without TLS there are none."""
        return []

    def up(self, *coordinator_arguments):
        self.coordinator_arguments = coordinator_arguments
        self.coordinator_address = "127.0.0.1:0"
        self.start_coordinator()
        to = ["--coordinator", self.coordinator_address, "--failpoints", "none"]
        flags = ["--index", 0, *to, *self.files("ps-server-0")]
        self.start_listening(PS_SERVER, "server", *flags)
        flags = ["--name", 0, "--threads", 1, *to, *self.files("worker-0")]
        self.start_listening(WORKER, "worker", *flags)

    def start_coordinator(self):
        """Starts the coordinator, and after its first start at the same address."""
        self.starts += 1
        self.coordinator, self.coordinator_address = self.start_listening(
            COORDINATOR,
            "coordinator-%d" % self.starts,
            "--listen",
            self.coordinator_address,
            "--runs",
            self.path("runs"),
            "--state-dir",
            self.path("state"),
            "--window",
            "200ms",
            "--jobs-running-max",
            8,
            "--share-turn",
            "100ms",
            "--failpoints",
            "none",
            *self.files("coordinator"),
            *self.coordinator_arguments,
        )

    def launch_operator(self, *flags, env=None):
        """Starts the operator, and returns at once."""
        self.starts += 1
        self.operator = self.start(
            OPERATOR,
            "operator-%d" % self.starts,
            "--coordinator",
            self.coordinator_address,
            "--namespace",
            NAMESPACE,
            "--metrics-listen",
            "127.0.0.1:0",
            *INTERVALS,
            *self.files("operator"),
            *(flags or ["--api-server", self.api.url]),
            env=dict(without_pod(), **(env or {})),
        )
        return self.operator

    def start_operator(self, *flags, env=None):
        """Starts the operator, and returns once it runs."""
        operator = self.launch_operator(*flags, env=env)
        operator.wait_log(
            "watching TrainingJobs: namespace=%s api_server=%s" % (NAMESPACE, self.api.url)
        )
        return operator

    def kill(self, process):
        process.process.send_signal(signal.SIGKILL)
        process.process.wait()

    def restart_coordinator(self):
        self.kill(self.coordinator)
        self.start_coordinator()

    # ---- objects and jobs

    def apply(self, name, spec):
        value = self.api.apply(name, spec)
        self.uids[name] = value["metadata"]["uid"]
        return value

    def called(self, *arguments, expect=0):
        """Runs psctl as an admin."""
        flags = ["--coordinator", self.coordinator_address, *self.files("admin")]
        return self.psctl(*arguments, *flags, expect=expect)

    def jobs(self, name=None):
        """Returns the jobs of the coordinator that were submitted for the object, or all jobs."""
        found = json.loads(self.called("job", "list", "--output", "json").stdout)["jobs"]
        wanted = name and "kubernetes/" + self.uids[name]
        return [job for job in found if wanted in (None, job["request_id"])]

    def job(self, name):
        """Returns the only job of the object."""
        found = self.jobs(name)
        self.assertEqual(len(found), 1, "%s: %s" % (name, found))
        return found[0]

    def check_one_job_each(self, names, state="SUCCEEDED"):
        everything = self.jobs()
        for name in names:
            mine = [j for j in everything if j["request_id"] == "kubernetes/" + self.uids[name]]
            self.assertEqual([(j["name"], j["state"]) for j in mine], [(name, state)])
            self.assertEqual(self.api.status(name)["jobUid"], mine[0]["job_uid"])
            reasons = self.api.reasons(name)
            self.assertEqual(len(reasons), len(set(reasons)), reasons)

    def wait_state(self, name, *states):
        self.api.wait_for(
            "%s to be %s" % (name, " or ".join(states)),
            lambda: self.api.status(name).get("state") in states,
        )

    def wait_states(self, names, state="SUCCEEDED"):
        names = list(names)

        def there():
            while names and self.api.status(names[0]).get("state") == state:
                names.pop(0)
            return not names

        self.api.wait_for("objects to be " + state, there)

    def wait_condition(self, name, kind, status, reason=""):
        """Waits for a condition, and returns its message."""

        def there():
            found = self.api.condition(name, kind)
            return found[0] == status and reason in ("", found[1]) and found

        text = "%s to have %s=%s %s" % (name, kind, status, reason)
        return self.api.wait_for(text, there)[2]

    def wait_gone(self, name):
        self.api.wait_for("%s to be removed" % name, lambda: self.api.get(name) is None)

    def wait_event(self, name, reason):
        self.api.wait_for(
            "an Event %s about %s" % (reason, name), lambda: reason in self.api.reasons(name)
        )

    def wait_job(self, name, state):
        wait_for("the job of %s to be %s" % (name, state), lambda: self.job(name)["state"] == state)

    def wait_watch(self):
        self.api.wait_for("a watch", lambda: self.api.watches)

    def start_long(self, name):
        """Applies an object, and waits until its job runs."""
        self.apply(name, counting(LONG, 5))
        self.wait_state(name, "RUNNING")


class Lifecycle(OperatorCase):
    def test_an_object_becomes_one_job_and_shows_its_progress_and_its_end(self):
        self.up()
        operator = self.start_operator()
        self.apply("count", counting(60, 10))
        self.wait_state("count", "SUCCEEDED")
        for kind, status, reason in (
            ("Accepted", "True", "JobSubmitted"),
            ("UpToDate", "True", ""),
            ("Finished", "True", ""),
            ("Succeeded", "True", ""),
            ("CoordinatorReachable", "True", ""),
        ):
            self.wait_condition("count", kind, status, reason)
        for kind in ("Running", "Failed"):
            self.assertIn(self.api.condition("count", kind)[0], ("False", ""), kind)
        job, status = self.job("count"), self.api.status("count")
        self.assertEqual((job["name"], job["state"]), ("count", "SUCCEEDED"))
        self.assertEqual(len(self.jobs()), 1)
        # These fields are the columns of `kubectl get trainingjobs`.
        self.assertEqual((status["step"], status["steps"]), (60, 60))
        self.assertEqual(status["jobUid"], job["job_uid"])
        self.assertRegex(status["jobUid"], "^[0-9a-f]{16}$")
        self.assertEqual(status["runsFolder"], job["runs_folder"])
        self.assertEqual(status["observedGeneration"], 1)
        self.assertIsInstance(status["workers"], int)
        for condition in status["conditions"]:
            self.assertRegex(condition["lastTransitionTime"], r"^\d{4}-\d\d-\d\dT[\d:]{8}Z$")
            self.assertEqual(condition["observedGeneration"], 1)
        self.check_history("count")
        for reason in ("Submitted", "Running", "Succeeded"):
            self.wait_event("count", reason)
        self.assertFalse({"Failed", "Cancelled", "Refused"} & set(self.api.reasons("count")))
        self.assertEqual(self.api.counts().get("patches-without-change", 0), 0)
        # Deleting the object of an ended job changes nothing at the coordinator.
        self.api.delete("count")
        self.wait_gone("count")
        self.assertEqual(self.job("count")["state"], "SUCCEEDED")
        self.assertEqual(operator.end(), 0)

    def check_history(self, name):
        """The finalizer must come first, then the status that announces the submission, and then
        the states of the job in their order."""
        values = [value for _, _, value in self.api.changes(name)]
        self.assertNotIn("finalizers", values[0]["metadata"])
        self.assertEqual(values[1]["metadata"]["finalizers"], [FINALIZER])
        self.assertNotIn("status", values[1])
        first = values[2]["status"]
        accepted = next(c for c in first["conditions"] if c["type"] == "Accepted")
        self.assertEqual((accepted["status"], accepted["reason"]), ("Unknown", "Submitting"))
        self.assertEqual(first["observedGeneration"], 1)
        states = [v["status"]["state"] for v in values[2:] if v["status"].get("state")]
        self.assertEqual(states, sorted(states, key=FORWARD.index))
        self.assertIn("RUNNING", states)
        # The transition time of a condition changes only with its status.
        seen = {}
        for value in values[2:]:
            for condition in value["status"]["conditions"]:
                was = seen.get(condition["type"], condition)
                if was["status"] == condition["status"]:
                    self.assertEqual(was["lastTransitionTime"], condition["lastTransitionTime"])
                seen[condition["type"]] = condition

    def test_a_model_is_trained_with_variables_of_the_operator_and_without_checkpoints(self):
        records = "".join("%d,%d,%d\n" % (i % 2, i % 3, i % 2) for i in range(40))
        write(self.path("rows.csv"), "x,y,rich\n" + records)
        self.up()
        self.start_operator(env={"EVERGRAD_DATA": self.folder})
        self.apply("trained", model("${EVERGRAD_DATA}/rows.csv"))
        self.wait_state("trained", "SUCCEEDED")
        status = self.api.status("trained")
        self.assertRegex(status["loss"], r"^\d+\.\d+$")
        self.assertRegex(status["metric"], r"^accuracy=[01]\.?\d*$")
        shown = self.called("job", "show", status["jobUid"], "--output", "json").stdout
        self.assertIsNone(json.loads(shown)["checkpoint"])

    def test_a_wrong_spec_says_why_and_its_correction_is_submitted(self):
        self.up()
        self.start_operator()
        wrong = counting()
        wrong["training"]["epochs"] = "many"
        wrong["data"]["batch_sice"] = 10
        self.apply("wrong", wrong)
        message = self.wait_condition("wrong", "Accepted", "False", "InvalidSpec")
        self.assertIn("spec.training.epochs: ", message)
        self.assertRegex(message, r"spec\.data\b.*batch_sice")
        self.assertEqual(self.api.status("wrong")["state"], "INVALID")
        self.assertEqual(self.api.status("wrong")["observedGeneration"], 1)
        self.wait_event("wrong", "Refused")
        wrong["training"]["epochs"] = 1
        self.apply("wrong", wrong)
        self.api.wait_for(
            "the shorter message",
            lambda: self.api.status("wrong").get("observedGeneration") == 2
            and "epochs" not in self.api.condition("wrong", "Accepted")[2]
            and "batch_sice" in self.api.condition("wrong", "Accepted")[2],
        )
        self.assertEqual(self.jobs(), [])
        self.apply("wrong", counting())
        self.wait_state("wrong", "SUCCEEDED")
        self.wait_condition("wrong", "Accepted", "True", "JobSubmitted")
        self.assertEqual(self.api.status("wrong")["observedGeneration"], 3)
        self.job("wrong")

    def test_specs_and_names_that_no_job_can_have_are_refused_with_the_reason(self):
        self.up()
        self.start_operator()
        missing = dict(counting(), counting={"shards": 2})
        for name, spec, words in (
            ("relative", model("rows.csv"), r"spec\.data\.train\.path: .*"),
            ("unset", model("${EVERGRAD_NO_SUCH}/rows.csv"), "EVERGRAD_NO_SUCH"),
            ("with.dot", counting(), r"metadata\.name|`name`"),
            ("missing", missing, "examples"),
            ("a123456789abcdef", counting(), "name"),
            ("empty", {}, "spec"),
            ("kind", {"type": "prediction"}, "prediction"),
        ):
            with self.subTest(name):
                self.apply(name, spec)
                message = self.wait_condition(name, "Accepted", "False")
                self.assertIn(
                    self.api.condition(name, "Accepted")[1], ("InvalidSpec", "Refused"), name
                )
                self.assertRegex(message, words)
                self.wait_state(name, "INVALID")
                self.api.delete(name)
                self.wait_gone(name)
        self.assertEqual(self.jobs(), [])

    def test_an_edit_of_an_accepted_object_does_not_change_its_job(self):
        self.up()
        self.start_operator()
        self.start_long("edited")
        job = self.job("edited")
        self.apply("edited", counting(LONG, 6))
        self.wait_condition("edited", "UpToDate", "False", "SpecChanged")
        self.wait_event("edited", "SpecChanged")
        self.assertEqual(self.api.status("edited")["jobUid"], job["job_uid"])
        self.assertEqual(self.job("edited")["state"], "RUNNING")
        self.api.delete("edited")
        self.wait_gone("edited")
        self.assertEqual(self.job("edited")["state"], "CANCELLED")

    def test_an_object_waits_for_a_job_of_the_same_name_that_another_user_has_submitted(self):
        self.up()
        self.start_operator()
        path = write(self.path("job.yaml"), COUNTING % ("taken", LONG * 10, 5, 1))
        self.called("job", "submit", path)
        self.apply("taken", counting())
        message = self.wait_condition("taken", "Accepted", "False", "NameInUse")
        self.assertIn("taken", message)
        self.assertEqual(self.jobs("taken"), [])
        (other,) = self.jobs()
        self.called("job", "cancel", other["job_uid"])
        self.wait_state("taken", "SUCCEEDED")
        self.wait_condition("taken", "Accepted", "True", "JobSubmitted")
        self.job("taken")

    def test_a_failed_or_cancelled_job_is_shown_and_not_submitted_again(self):
        self.up()
        self.start_operator(env={"EVERGRAD_DATA": self.folder})
        self.start_long("stopped")
        self.called("job", "cancel", self.job("stopped")["job_uid"])
        self.wait_state("stopped", "CANCELLED")
        self.wait_condition("stopped", "Finished", "True")
        self.wait_event("stopped", "Cancelled")
        self.apply("failed", model("${EVERGRAD_DATA}/no such file.csv"))
        self.wait_state("failed", "FAILED")
        message = self.wait_condition("failed", "Failed", "True")
        self.assertIn("no such file.csv", message + self.api.status("failed")["message"])
        self.wait_event("failed", "Failed")
        self.assertEqual([len(self.jobs(name)) for name in ("stopped", "failed")], [1, 1])


class Deletions(OperatorCase):
    def test_the_job_of_a_deleted_object_is_cancelled(self):
        self.up()
        self.start_operator()
        self.start_long("deleted")
        self.api.delete("deleted")
        self.wait_gone("deleted")
        self.assertEqual(self.job("deleted")["state"], "CANCELLED")
        self.wait_event("deleted", "Cancelling")
        # A deletion raises the generation, but it is no edit.
        self.assertNotIn("SpecChanged", self.api.reasons("deleted"))
        # A new object of the same name is another job.
        self.apply("deleted", counting())
        self.wait_state("deleted", "SUCCEEDED")
        self.assertEqual(len(self.jobs()), 2)

    def test_an_object_that_was_deleted_while_the_operator_was_down(self):
        self.up()
        operator = self.start_operator()
        self.start_long("running")
        self.start_long("queued")
        self.apply("done", counting())
        self.wait_state("done", "SUCCEEDED")
        self.assertEqual(operator.end(), 0)
        names = ("running", "queued", "done")
        for name in names:
            self.api.delete(name)
            self.assertIsNotNone(self.api.get(name))
        self.start_operator()
        for name in names:
            self.wait_gone(name)
        self.assertEqual(
            [self.job(name)["state"] for name in names], ["CANCELLED", "CANCELLED", "SUCCEEDED"]
        )

    def test_a_deletion_waits_for_the_coordinator(self):
        self.up()
        self.start_operator()
        self.start_long("deleted")
        self.kill(self.coordinator)
        self.wait_condition("deleted", "CoordinatorReachable", "False")
        self.api.delete("deleted")
        # The operator gets the events in order. When it has seen the next object, it has also seen
        # the deletion.
        self.apply("next", counting())
        self.wait_condition("next", "Accepted", "Unknown")
        self.assertEqual(self.api.get("deleted")["metadata"]["finalizers"], [FINALIZER])
        self.start_coordinator()
        self.wait_gone("deleted")
        self.assertEqual(self.job("deleted")["state"], "CANCELLED")
        self.wait_state("next", "SUCCEEDED")
        self.job("next")

    def test_an_object_that_was_never_submitted(self):
        self.up()
        self.start_operator()
        self.kill(self.coordinator)
        self.apply("early", counting(LONG, 5))
        self.wait_condition("early", "Accepted", "Unknown", "CoordinatorUnreachable")
        self.api.delete("early")
        self.start_coordinator()
        self.wait_gone("early")
        self.assertEqual([job["state"] for job in self.jobs() if job["state"] != "CANCELLED"], [])

    def test_finalizers_of_others_are_kept(self):
        self.up()
        operator = self.start_operator()
        self.start_long("shared")
        operator.end()
        # Another controller adds its finalizer.
        with self.api.changed:
            self.api.store.objects["shared"]["metadata"]["finalizers"].append("other.example/keep")
        self.api.touch("shared")
        self.api.delete("shared")
        self.start_operator()
        self.api.wait_for(
            "only the other finalizer",
            lambda: self.api.get("shared")["metadata"].get("finalizers") == ["other.example/keep"],
        )
        self.assertEqual(self.job("shared")["state"], "CANCELLED")


class Crashes(OperatorCase):
    def test_the_operator_is_killed_at_random_moments(self):
        self.up()
        operator = self.start_operator()
        names = ["many-%02d" % i for i in range(24)]
        for at in range(0, len(names), 2):
            before = self.api.counts()["requests"]
            for name in names[at : at + 2]:
                self.apply(name, counting(self.random.randint(2, 30)))
            # For two new objects the operator sends more than twelve requests.
            wanted = before + self.random.randint(1, 12)
            self.api.wait_for(
                "request number %d" % wanted, lambda: self.api.counted["requests"] >= wanted
            )
            self.kill(operator)
            operator = self.launch_operator()
        self.wait_states(names)
        self.check_one_job_each(names)
        self.assertEqual(len(self.jobs()), len(names))

    def test_the_operator_is_killed_during_each_write(self):
        """The last write before and the first write after the submission decide whether a restarted
        operator submits the job."""
        self.up()
        names = []
        operator = self.start_operator()
        for request, skip in (("patch", 0), ("status", 0), ("status", 1), ("status", 2)):
            for carried_out in (True, False):
                name = "%s-%d-%s" % (request, skip, str(carried_out).lower())
                names.append(name)
                self.api.set_rules(Rule("hold", request, name=name, skip=skip))
                self.apply(name, counting())
                self.api.wait_for("the write of " + name, lambda: self.api.held == 1)
                self.kill(operator)
                self.api.release(carried_out)
                operator = self.start_operator()
        self.wait_states(names)
        self.check_one_job_each(names)

    def test_an_object_is_edited_after_a_crash_between_submission_and_status(self):
        self.up()
        operator = self.start_operator()
        self.api.set_rules(Rule("hold", "status", skip=1))
        self.apply("edited", counting(LONG, 5))
        self.api.wait_for("the write after the submission", lambda: self.api.held == 1)
        self.kill(operator)
        self.api.release(False)
        self.apply("edited", counting(5))
        self.start_operator()
        # The job has the spec of the first generation.
        self.wait_condition("edited", "UpToDate", "False", "SpecChanged")
        self.wait_condition("edited", "Accepted", "True", "JobSubmitted")
        self.assertEqual(self.api.status("edited")["submittedGeneration"], 1)
        self.assertEqual(self.api.status("edited")["observedGeneration"], 2)
        self.wait_state("edited", "RUNNING")
        self.assertEqual(self.api.status("edited")["jobUid"], self.job("edited")["job_uid"])

    def test_a_job_that_the_coordinator_has_forgotten_is_not_submitted_again(self):
        self.up()
        operator = self.start_operator()
        self.start_long("forgotten")
        self.apply("done", counting())
        self.wait_state("done", "SUCCEEDED")
        self.kill(operator)
        uid = self.job("forgotten")["job_uid"]
        self.called("job", "cancel", uid)
        self.wait_job("forgotten", "CANCELLED")
        for uid in (uid, self.job("done")["job_uid"]):
            self.called("job", "delete", uid)
        operator = self.start_operator()
        self.wait_condition("forgotten", "Failed", "Unknown", "JobUnknown")
        self.wait_condition("forgotten", "Finished", "True")
        self.apply("next", counting())
        self.wait_state("next", "SUCCEEDED")
        # The coordinator keeps ended jobs for a while only.
        self.assertEqual(self.api.status("done")["state"], "SUCCEEDED")
        self.assertEqual([job["name"] for job in self.jobs()], ["next"])
        for name in ("forgotten", "done"):
            self.api.delete(name)
            self.wait_gone(name)

    def test_the_coordinator_is_restarted(self):
        self.up()
        self.start_operator()
        self.apply("restarted", counting(300, 5))
        self.wait_state("restarted", "RUNNING")
        self.kill(self.coordinator)
        self.wait_condition("restarted", "CoordinatorReachable", "False")
        self.apply("later", counting())
        self.wait_condition("later", "Accepted", "Unknown", "CoordinatorUnreachable")
        self.start_coordinator()
        self.wait_states(["restarted", "later"])
        self.wait_condition("restarted", "CoordinatorReachable", "True")
        self.restart_coordinator()
        self.check_one_job_each(["restarted", "later"])
        self.apply("last", counting())
        self.wait_state("last", "SUCCEEDED")
        self.check_one_job_each(["restarted", "later", "last"])


class Faults(OperatorCase):
    def setUp(self):
        super().setUp()
        self.names = []
        self.up()
        self.start_operator()

    def stage(self, what, rules, after=None):
        """Sets the rules, calls `after`, and applies two objects. Waits until their jobs have ended
        and all faults have happened."""
        with self.subTest(what):
            names = ["%s-%d" % (what, i) for i in range(2)]
            self.names += names
            self.wait_watch()
            self.api.set_rules(*rules)
            if after is not None:
                after()
            for name in names:
                self.apply(name, counting(30, 5))
            self.wait_states(names)
            self.api.wait_for(
                "the faults of " + what,
                lambda: all(rule.times in (None, rule.applied) for rule in self.api.rules),
            )
            self.api.set_rules()

    def finish(self):
        self.check_one_job_each(self.names)
        self.assertEqual(len(self.jobs()), len(self.names))
        self.assertIsNone(self.operator.process.poll(), self.operator.log())

    def test_conflicts_and_errors(self):
        self.stage("conflict", [Rule("conflict", "status", times=5), Rule("conflict", "patch")])
        kinds = ("error-500", "error-503", "page", "garbage", "lost-answer", "cut-request")
        for kind in kinds:
            self.stage(
                kind,
                [Rule(kind, "status", skip=1), Rule(kind, "event"), Rule(kind, "patch")],
            )
        self.stage("too-many", [Rule("too-many", "status", skip=1), Rule("too-many", "patch")])
        self.stage("slow", [Rule("slow", times=None)])
        self.finish()

    def test_watches_that_end(self):
        end, cut = self.api.end_watches, lambda: self.api.end_watches("cut")
        self.stage("ended", [], end)
        self.stage("close", [Rule("close", "watch", times=3)], end)
        self.stage("cut", [], cut)
        self.stage("cut-event", [Rule("cut-event", "watch", times=4)], cut)
        self.stage("gone", [Rule("gone", "watch", times=3)], end)
        self.stage("gone-event", [Rule("gone-event", "watch", times=3)], end)
        for as_event in (False, True):
            self.api.gone_as_event = as_event
            self.stage("compacted-%s" % str(as_event).lower(), [], self.forget)
        rules = [Rule(kind, "list") for kind in ("error-500", "page", "garbage", "no-items")]
        self.stage("list", rules + [Rule("gone", "watch")], end)
        self.api.page_items_max = 3
        self.stage("pages", [Rule("gone", "list", skip=1), Rule("gone", "watch")], end)
        self.finish()

    def forget(self):
        """Lets a watch begin from a version that is forgotten."""
        self.api.end_watches()
        self.api.touch(self.names[0])
        self.api.compact()

    def test_a_watch_continues_from_a_bookmark(self):
        self.stage("first", [])
        self.wait_watch()
        with self.api.changed:
            # The newest version of a TrainingJob can be older than that of an Event.
            self.api.compact(after_watches=True)
            self.api.send_bookmarks()
            version, counts = self.api.store.version, self.api.counts()
            self.api.end_watches()
        self.api.wait_for("another watch", lambda: self.api.counted["watch"] > counts["watch"])
        target = self.api.requests("watch")[-1][2]
        self.assertGreaterEqual(int(re.search(r"resourceVersion=(\d+)", target)[1]), version)
        self.assertEqual(self.api.counts()["list"], counts["list"])
        self.stage("second", [])
        self.finish()

    def test_an_api_server_that_is_restarted(self):
        self.apply("long", counting(200, 10))
        self.names.append("long")
        self.stage("restarted", [], self.api.restart)
        self.wait_watch()
        self.api.stop_listening()
        # The objects change while the server is unreachable.
        self.apply("unseen", counting())
        self.names.append("unseen")
        self.api.start_listening()
        self.stage("again", [], self.api.restart)
        self.wait_states(["unseen", "long"])
        self.finish()


class Hostile(OperatorCase):
    """Objects and bytes that a real API server would not send. The operator must survive them, and
    must serve the other objects."""

    def setUp(self):
        super().setUp()
        self.up()
        self.start_operator()
        self.goods = 0

    def check_served(self):
        self.goods += 1
        name = "good-%d" % self.goods
        self.apply(name, counting(4))
        self.wait_state(name, "SUCCEEDED")
        self.job(name)
        self.assertIsNone(self.operator.process.poll(), self.operator.log())

    def put(self, name, metadata=None, **fields):
        good = {"name": name, "namespace": NAMESPACE, "uid": "uid-of-" + name, "generation": 1}
        value = {"apiVersion": "evergrad.dev/v1alpha1", "kind": "TrainingJob", "spec": counting()}
        good.update(metadata or {})
        value["metadata"] = {k: v for k, v in good.items() if v is not None}
        self.api.put(dict(value, **fields))

    def test_objects_with_fields_of_wrong_types(self):
        for value in (17, None, "text", [], [[]], {}, {"metadata": 17}, {"metadata": {"name": []}}):
            self.api.put(value)
        self.put("a-spec", spec=[1, 2])
        self.put("b-spec", spec="text")
        self.put("c-spec", spec=None)
        self.put("d-spec", spec=dict(counting(), training=[None, {"": {}}, 1e308, -1]))
        self.put("a-status", status="text")
        self.put("b-status", status={"conditions": 17, "jobUid": 17, "observedGeneration": "x"})
        self.put("c-status", status={"conditions": [None, 1, {"type": 1}, {"type": "Accepted"}]})
        self.put("a-generation", {"generation": "first"})
        self.put("b-generation", {"generation": -(1 << 63)})
        self.put("a-finalizers", {"finalizers": "text"})
        self.put("b-finalizers", {"finalizers": [17, None]})
        self.put("a-uid", {"uid": None})
        self.put("b-uid", {"uid": "x" * 10_000})
        self.put("a-deleted", {"deletionTimestamp": 17, "finalizers": []})
        self.put("\u202etxt.\u0007\u00e4")
        self.put("../../secrets?x=#")
        self.check_served()
        # The objects are listed as well as watched.
        self.api.compact()
        self.api.end_watches()
        self.check_served()
        self.kill(self.operator)
        self.start_operator()
        self.check_served()
        # Which of the objects can be served is not stated. None of them may be patched in vain for
        # ever, or reach another path.
        del self.api.violations[:]

    def test_mistakes_whose_message_is_longer_than_an_event(self):
        for length in range(3):  # a limit in bytes must not divide a character
            name = "wrong-%d" % length
            spec = counting()
            spec["x" * length + "\u00e4"] = 1
            spec.update(("\U0001f600" * 40 + str(i), {"\u0000": i}) for i in range(200))
            self.apply(name, spec)
            self.wait_condition(name, "Accepted", "False", "InvalidSpec")
            self.wait_event(name, "Refused")
        self.check_served()

    def test_lines_of_a_watch(self):
        version = '"metadata": {"resourceVersion": "1"}'
        deep = "[" * 100_000 + "]" * 100_000
        for text in (
            b'{"type": "ADDED", "object": {"a": "' + b"x" * 2_000_000 + b'"}}\n',
            b'{"type": "ADDED", "object": {"metadata": {"name": "\xff\xfe"}}}\n',
            b"\xff\x00\xfe\n",
            b'{"type": "RENAMED", "object": {%s}}\n' % version.encode(),
            b'{"type": 17, "object": 17}\n',
            b'{"object": {}}\n',
            b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n',
            b'{"type": "ERROR", "object": {"code": "x"}}\n',
            b'{"type": "ERROR"}\n',
            b"\n\n{}\n[]\nnull\n17\n",
            b'{"type": "ADDED", "object": %s}\n' % deep.encode(),
            b'{"type": "ADDED", "object": {"spec": %s}}\n' % deep.encode(),
            b'{"type": "MODIFIED", "object"',
        ):
            with self.subTest(text[:60]):
                self.wait_watch()
                self.assertGreaterEqual(self.api.inject(text), 1)
                self.check_served()

    def test_a_line_without_an_end(self):
        self.wait_watch()
        self.api.inject(b'{"type": "ADDED", "object": "')
        for _ in range(64):
            self.api.inject(b"x" * 1_000_000)
        self.api.end_watches()
        self.check_served()


class Security(OperatorCase):
    """TLS to the coordinator, and an API server with TLS and tokens."""

    api_uses_token = True

    def start_api(self):
        for folder, names in (
            ("certs", {"coordinator": None, "ps-server-0": None, "worker-0": None}),
            ("api", {"api": None}),
        ):
            self.psctl("cert", "init", "--folder", folder)
            for name in names:
                self.psctl("cert", "issue", name, "--folder", folder, "--host", "127.0.0.1")
        for name, task in (("operator", "operator/kubernetes"), ("admin", "admin/carol")):
            self.psctl("cert", "issue", name, "--task", task, "--folder", "certs")
        tls = [self.path("api", "api" + end) for end in (".pem", ".key")]
        return self.enterContext(FakeApi(NAMESPACE, SEED, tls, {"first-token"}))

    def files(self, name):
        return [
            "--tls-ca",
            self.path("certs", "ca.pem"),
            "--tls-cert",
            self.path("certs", name + ".pem"),
            "--tls-key",
            self.path("certs", name + ".key"),
        ]

    def api_flags(self, ca="api"):
        flags = ["--api-server", self.api.url, "--api-ca", self.path(ca, "ca.pem")]
        return flags + ["--api-token", self.path("token")]

    def write_token(self, token):
        """Replaces the file by a rename, as Kubernetes does."""
        os.rename(write(self.path("token.new"), token + "\n"), self.path("token"))

    def test_jobs_belong_to_the_operator_and_tokens_are_read_again(self):
        self.up()
        self.write_token("first-token")
        operator = self.start_operator(*self.api_flags())
        self.apply("first", counting())
        self.wait_state("first", "SUCCEEDED")
        self.assertEqual(self.job("first")["owner"], "operator/kubernetes")
        self.apply("long", counting(200, 10))
        self.wait_state("long", "RUNNING")
        self.write_token("second-token")
        self.api.set_tokens({"second-token"})
        self.api.end_watches("cut")
        self.apply("second", counting())
        self.wait_states(["second", "long"])
        self.check_one_job_each(["first", "second", "long"])
        self.assertEqual(self.api.authorizations, {"Bearer first-token", "Bearer second-token"})
        for token in ("first-token", "second-token"):
            self.assertNotIn(token, operator.log())
        self.start_long("deleted")
        self.api.delete("deleted")
        self.wait_gone("deleted")
        self.assertEqual(self.job("deleted")["state"], "CANCELLED")

    def test_an_api_server_with_a_certificate_of_another_authority_is_refused(self):
        self.up()
        self.write_token("first-token")
        operator = self.launch_operator(*self.api_flags(ca="certs"))
        operator.wait_log("certificate")
        self.assertIn(self.api.address, operator.log())
        self.api.wait_for("a handshake", lambda: self.api.counted["no-handshake"] >= 1)
        self.assertEqual(self.api.counts().get("requests", 0), 0)
        self.assertEqual(self.api.authorizations, set())

    def test_a_wrong_token_is_named(self):
        self.up()
        self.write_token("wrong-token")
        operator = self.launch_operator(*self.api_flags())
        self.api.wait_for("a refusal", lambda: self.api.counted["answered-401"] >= 1)
        operator.wait_log("401")
        self.assertNotIn("wrong-token", operator.log())
        self.write_token("first-token")
        self.apply("late", counting())
        self.wait_state("late", "SUCCEEDED")


class Flags(OperatorCase):
    def run_operator(self, *arguments):
        return subprocess.run(
            [binary(OPERATOR), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            cwd=self.folder,
            env=without_pod(),
        )

    def test_wrong_flags_end_the_operator_with_2_and_are_named(self):
        good = {
            "--coordinator": "127.0.0.1:1",
            "--api-server": self.api.url,
            "--namespace": NAMESPACE,
        }
        for change, flag in (
            ({"--api-server": None}, "--api-server"),
            ({"--api-server": "http://198.51.100.7:8001"}, "--api-server"),
            ({"--api-server": "ftp://127.0.0.1:1"}, "--api-server"),
            ({"--api-server": "127.0.0.1:1"}, "--api-server"),
            ({"--namespace": None}, "--namespace"),
            ({"--namespace": "Two Words"}, "--namespace"),
            ({"--coordinator": None}, "--coordinator"),
            ({"--api-ca": self.path("none.pem")}, "--api-ca"),
            ({"--api-token": self.path("none")}, "--api-token"),
            ({"--poll": "soon"}, "--poll"),
        ):
            with self.subTest(str(change)):
                flags = dict(good, **change)
                r = self.run_operator(
                    *[w for f, v in flags.items() if v is not None for w in (f, v)]
                )
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertRegex(r.stderr, flag + r"|\b%s\b" % flag.strip("-").replace("-", "_"))
        self.assertEqual(self.api.counts(), {})

    def test_the_definition_is_printed(self):
        r = self.run_operator("--print-crd")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("kind: CustomResourceDefinition", r.stdout)
        self.assertIn("name: trainingjobs.evergrad.dev", r.stdout)


class Metrics(OperatorCase):
    def get(self, page):
        url = re.findall(r"metrics at (\S+)/metrics", self.operator.log())[-1]
        try:
            with urllib.request.urlopen(url + page, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """Returns the sum over all labels of the metrics whose names begin like this."""
        text = self.get("/metrics")[1]
        found = re.findall(r"(?m)^evergrad_operator_%s\w*(?:\{.*\})? (\S+)$" % name, text)
        self.assertTrue(found, name)
        return sum(map(float, found))

    def wait_ready(self):
        wait_for("the operator to be ready", lambda: self.get("/readyz") == (200, "ok\n"))

    def wait_not_ready(self, words):
        def there():
            code, text = self.get("/readyz")
            return code == 503 and "not ready: " in text and re.search(words, text)

        wait_for("/readyz to name %s" % words, there)
        self.assertEqual(self.get("/livez")[0], 200)

    def test_metrics_and_readiness(self):
        self.up()
        self.api.stop_listening()
        operator = self.launch_operator()
        operator.wait_log("metrics at ")
        self.wait_not_ready("(?i)api.server")
        self.api.start_listening()
        self.wait_ready()
        self.apply("measured", counting())
        self.wait_state("measured", "SUCCEEDED")
        self.api.end_watches("cut")
        for name in METRICS:
            wait_for("the metric " + name, lambda: self.metric(name) >= 1)
        self.api.stop_listening()
        self.wait_not_ready("(?i)api.server")
        self.assertEqual(operator.end(), 0)
        self.api.start_listening()
        self.kill(self.coordinator)
        self.start_operator()
        self.wait_not_ready("coordinator")
        self.start_coordinator()
        self.wait_ready()


if __name__ == "__main__":
    main()
