"""The steps of the proof that show evergrad-operator: it carries objects of the kind TrainingJob to
the coordinator, and writes their states. README.md describes the steps."""
import copy
import json

from control_plane import NAMESPACE, PODS, Api, Refused, expect

OBJECTS = "/apis/evergrad.dev/v1alpha1/namespaces/evergrad/trainingjobs"
DEPLOYMENT = "/apis/apps/v1/namespaces/evergrad/deployments/evergrad-operator"
FINALIZER = "evergrad.dev/cancel-job"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
COLUMNS = ["Name", "State", "Step", "Steps", "Loss", "Metric", "Workers", "Age"]
# Enough epochs for a job that has to be cancelled before it ends.
MANY_EPOCHS = 1000
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
# The conditions of an object whose job has succeeded.
SUCCEEDED = {
    "Accepted": "True",
    "UpToDate": "True",
    "Running": "False",
    "Finished": "True",
    "Succeeded": "True",
    "Failed": "False",
    "CoordinatorReachable": "True",
}


class OperatorSteps:
    def __init__(self, proof, template):
        """`template` is the object of jobs/trainingjob."""
        self.proof, self.template = proof, template

    # The objects and their jobs.

    def document(self, name, epochs):
        made = copy.deepcopy(self.template)
        made["metadata"]["name"] = name
        made["spec"]["training"]["epochs"] = epochs
        return made

    def apply(self, document):
        self.proof.api.apply(document)

    def found(self, name):
        """Returns the object, or None if it does not exist."""
        return self.proof.api.find(OBJECTS + "/" + name)

    def status(self, name):
        found = self.found(name)
        expect(found, "the object %s exists" % name, "it does not exist")
        return found.get("status", {})

    def step(self, name):
        return self.status(name).get("step", 0)

    def has_state(self, name, state):
        """Returns the status if the state has this value. If the job has ended in another state,
        the proof ends."""
        status = self.status(name)
        got = status.get("state")
        if got in ENDED and got != state:
            raise SystemExit(
                "kubernetes-proof: expected: the object %s becomes %s (if its job was too short, "
                "try a longer one with --seconds); got: %s" % (name, state, json.dumps(status))
            )
        expect(got == state, "the state " + state, json.dumps(status))
        return status

    def wait_state(self, name, state, seconds):
        """Waits until status.state has this value, and returns the status."""
        what = "the object %s is %s" % (name, state)
        return self.proof.wait(what, seconds, lambda: self.has_state(name, state))

    def wait_conditions(self, name, wanted, seconds=60):
        """Waits until the conditions have these values, and returns them by type."""

        def have():
            found = conditions(self.found(name))
            got = {kind: found.get(kind, {}).get("status") for kind in wanted}
            expect(got == wanted, wanted, json.dumps(list(found.values())))
            return found

        what = "the conditions of the object %s are %s" % (name, wanted)
        return self.proof.wait(what, seconds, have)

    def wait_gone(self, name):
        what = "the API server has removed the object " + name
        self.proof.wait(what, 120, lambda: self.found(name) is None)

    def wait_step(self, name, since):
        """Waits until the object states more steps, and returns their number."""

        def more():
            step = self.has_state(name, "RUNNING").get("step", 0)
            expect(step > since, "a step after %d" % since, step)
            return step

        return self.proof.wait("the object %s states a step after %d" % (name, since), 180, more)

    def delete(self, name):
        self.proof.api.request("DELETE", OBJECTS + "/" + name)

    def run(self, name, epochs):
        """Applies an object, and waits until its job trains. Returns the uid of the job."""
        self.apply(self.document(name, epochs))
        status = self.wait_state(name, "RUNNING", 180)
        self.wait_step(name, 0)
        found = self.found(name)["metadata"].get("finalizers", [])
        expect(FINALIZER in found, "the finalizer " + FINALIZER, found)
        return status["jobUid"]

    def jobs(self, name):
        """Returns the uids and states of the jobs that the coordinator has under this name."""
        found = self.proof.wait(
            "`psctl job list` answers", 120, lambda: self.proof.psctl("job", "list")
        )
        return [(j["job_uid"], j["state"]) for j in found["jobs"] if j["name"] == name]

    def wait_cancelled(self, name, uid):
        def cancelled():
            jobs = self.jobs(name)
            expect(jobs == [(uid, "CANCELLED")], "the job %s is cancelled" % uid, jobs)
            return True

        self.proof.wait("the job of %s is cancelled" % name, 60, cancelled)

    def events(self, name):
        """Returns the events of an object, as texts."""
        query = "?fieldSelector=involvedObject.kind%3DTrainingJob,involvedObject.name%3D" + name
        found = self.proof.api.get(NAMESPACE + "events" + query)["items"]
        return ["%s %s: %s" % (e["type"], e["reason"], e.get("message", "")) for e in found]

    def show_events(self, name):
        found = self.events(name)
        expect(found, "events of the object " + name, "none")
        self.proof.say("events of %s:" % name)
        self.proof.transcript.block("\n".join(found))

    # The steps.

    def trains(self):
        proof = self.proof
        proof.transcript.step(
            "The operator: an object trains while the API server and every role are restarted"
        )
        first = self.template["metadata"]["name"]
        self.apply(self.template)
        status = self.wait_state(first, "SUCCEEDED", 300)
        shown, counts = proof.check_counts(status["jobUid"])
        proof.say("the object %s of jobs/trainingjob is SUCCEEDED; %s" % (first, counts))
        self.show_conditions(first, self.wait_conditions(first, SUCCEEDED))
        self.check_table(first, shown)
        self.show_events(first)
        self.check_rights(first)

        seconds = proof.seconds_of_an_epoch(shown)
        epochs = max(2, int(proof.seconds / 2 / seconds))
        uid = self.run("long-object", epochs)
        proof.say(
            "an epoch took %.1f s; the job of long-object has %d epochs, and trains"
            % (seconds, epochs)
        )
        self.restart_api_server(uid)
        self.restart_roles()
        self.wait_step("long-object", self.step("long-object"))
        (pod,) = proof.ready_pods("operator").values()
        restarts = [c["restartCount"] for c in pod["status"]["containerStatuses"]]
        expect(restarts == [0], "the operator has not ended by itself", "restarts: %s" % restarts)
        jobs = self.jobs("long-object")
        expect(jobs == [(uid, "RUNNING")], "one job, which trains", jobs)
        proof.say("the job %s is still the only one of long-object" % uid)

        status = self.wait_state("long-object", "SUCCEEDED", 3600)
        expect(status["jobUid"] == uid, "the job " + uid, status["jobUid"])
        self.wait_conditions("long-object", SUCCEEDED)
        shown, counts = proof.check_counts(uid)
        expect(shown["epochs"] == epochs, "%d epochs" % epochs, shown["epochs"])
        proof.say("the object long-object is SUCCEEDED; %s" % counts)
        self.check_table("long-object", shown)
        for name in (first, "long-object"):
            self.delete(name)
            self.wait_gone(name)
        jobs = self.jobs("long-object")
        expect(jobs == [(uid, "SUCCEEDED")], "the job has ended as before", jobs)
        proof.say("both objects are deleted; their jobs stay SUCCEEDED")

    def restart_api_server(self, uid):
        """Kills the API server, waits until the job has trained for some time, and starts the API
        server again."""
        proof = self.proof
        before = proof.job(uid)["steps_done"]
        told = self.step("long-object")
        proof.plane.kill("kube-apiserver")
        after = before
        for _ in range(3):
            after = self.steps_of_job(uid, after)
        proof.plane.start_again("kube-apiserver")
        proof.wait("the API server is ready again", 120, proof.plane.ready)
        now = self.wait_step("long-object", max(told, after))
        proof.say(
            "the API server was killed and started again; the job trained meanwhile, steps "
            "%d -> %d; then the object states step %d" % (before, after, now)
        )

    def steps_of_job(self, uid, since):
        """Waits until the job has made 50 more steps. It asks the coordinator only."""

        def more():
            done = self.proof.psctl("job", "show", uid)["steps_done"]
            expect(done >= since + 50, "%d steps" % (since + 50), done)
            return done

        return self.proof.wait("the job %s makes steps after %d" % (uid, since), 180, more)

    def restart_roles(self):
        """Deletes each pod of each role, and waits after each until the object states progress."""
        proof = self.proof
        for role in ("operator", "coordinator", "ps-server", "worker"):
            # The kubelet reports the operator as not ready while the API server is down, and its
            # next report can be some seconds late.
            pods = proof.wait("every %s is ready" % role, 60, lambda: proof.ready_pods(role))
            for name, pod in sorted(pods.items()):
                before = self.step("long-object")
                times = proof.restart(role, name, pod)
                after = self.wait_step("long-object", self.step("long-object"))
                proof.say("%s: %s; the object: steps %d -> %d" % (name, times, before, after))
        self.wait_conditions("long-object", {"CoordinatorReachable": "True", "Running": "True"})

    def show_conditions(self, name, found):
        self.proof.say("conditions of %s:" % name)
        self.proof.transcript.block(
            "\n".join(
                "%-20s %-7s %s %s" % (kind, c["status"], c.get("reason", ""), c.get("message", ""))
                for kind, c in sorted(found.items())
            )
        )

    def check_table(self, name, shown):
        """Checks the columns that `kubectl get trainingjobs` prints. The API server makes them."""
        table = self.proof.api.request("GET", OBJECTS, accept=TABLE)
        columns, rows = rows_of(table)
        expect(columns == COLUMNS, COLUMNS, columns)
        row = dict(zip(columns, rows[name]))
        wanted = {"State": "SUCCEEDED", "Step": shown["steps_done"], "Steps": shown["steps_total"]}
        expect(
            {k: row[k] for k in wanted} == wanted and row["Metric"] and row["Age"],
            "the row of %s has %s, a metric and an age" % (name, wanted),
            row,
        )
        self.proof.say("the columns of `kubectl get trainingjobs`:")
        lines = [columns] + [["" if c is None else c for c in cells] for cells in rows.values()]
        self.proof.transcript.block(
            "\n".join("".join("%-15s" % c for c in line).rstrip() for line in lines)
        )

    def check_rights(self, name):
        """Checks at the API server what the account of the operator may do, with a token of it."""
        path = NAMESPACE + "serviceaccounts/evergrad-operator/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token = self.proof.api.request("POST", path, body)["status"]["token"]
        own, dry = Api(token), "?dryRun=All"
        for method, path, allowed in (
            ("GET", OBJECTS, True),
            ("GET", OBJECTS + "/" + name, True),
            ("GET", "/apis/evergrad.dev/v1alpha1/trainingjobs", False),
            ("GET", OBJECTS.replace("evergrad/trainingjobs", "default/trainingjobs"), False),
            ("DELETE", OBJECTS + "/" + name + dry, False),
            ("GET", NAMESPACE + "secrets", False),
            ("GET", PODS, False),
            ("GET", "/api/v1/nodes", False),
        ):
            try:
                own.request(method, path)
                status = 200
            except Refused as refused:
                status = refused.status
            wanted = 200 if allowed else 403
            expect(status == wanted, "%s %s by the operator: %d" % (method, path, wanted), status)
        self.proof.say(
            "the operator's account reads the objects of its namespace, and is refused (403) the "
            "objects of others, deletions, Secrets, pods and nodes"
        )

    def cancels(self):
        proof = self.proof
        proof.transcript.step(
            "The operator: a deleted object cancels its job, also when the operator was down"
        )
        uid = self.run("deleted", MANY_EPOCHS)
        self.apply(self.document("deleted", MANY_EPOCHS - 1))
        told = self.wait_conditions("deleted", {"UpToDate": "False"})["UpToDate"]
        proof.say(
            "a changed spec of a job that trains: UpToDate is False: %s" % told.get("message")
        )
        self.delete("deleted")
        self.wait_gone("deleted")
        self.wait_cancelled("deleted", uid)
        proof.say("the object `deleted` is gone, and its job %s is CANCELLED" % uid)

        uid = self.run("deleted-later", MANY_EPOCHS)
        ((name, pod),) = proof.ready_pods("operator").items()
        proof.api.patch(DEPLOYMENT, {"spec": {"replicas": 0}})
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        proof.gentle_end(pod["metadata"]["uid"], name, grace)
        self.delete("deleted-later")
        done = proof.job(uid)["steps_done"]
        done = self.steps_of_job(uid, done)
        found = self.found("deleted-later")
        expect(
            found and found["metadata"].get("deletionTimestamp"),
            "the object waits for its finalizer",
            found and found["metadata"],
        )
        proof.say(
            "without an operator the deleted object waits for its finalizer, and its job trains: "
            "step %d" % done
        )
        proof.api.patch(DEPLOYMENT, {"spec": {"replicas": 1}})
        self.wait_gone("deleted-later")
        self.wait_cancelled("deleted-later", uid)
        proof.say("with an operator again, the object is gone, and its job %s is CANCELLED" % uid)
        proof.wait("the operator is ready", 120, lambda: proof.ready_pods("operator"))

    def reports(self):
        proof = self.proof
        proof.transcript.step("The operator: a wrong object says why in its conditions")
        typed = self.document("wrong", 2)
        typed["spec"]["training"]["epochs"] = "many"
        try:
            proof.api.request("POST", OBJECTS, typed)
            refused = None
        except Refused as error:
            refused = error
        expect(
            refused and refused.status == 422 and "epochs" in refused.message,
            "the API server refuses a text as the number of epochs: 422",
            refused,
        )
        proof.say("the API server refuses a value of a wrong type: %s" % refused.message)

        wrong = self.document("wrong", 2)
        wrong["spec"]["training"]["epoch"] = 3
        wrong["spec"]["optimizer"]["learning_rat"] = 0.05
        self.apply(wrong)
        spec = self.found("wrong")["spec"]
        expect(
            spec["training"].get("epoch") == 3 and spec["optimizer"].get("learning_rat") == 0.05,
            "the API server keeps mistyped keys",
            json.dumps(spec),
        )
        found = self.wait_conditions("wrong", {"Accepted": "False"})
        told = found["Accepted"]
        expect(
            told.get("reason") == "InvalidSpec"
            and "learning_rat" in told["message"]
            and "epoch" in told["message"].replace("epochs", ""),
            "the reason InvalidSpec, and a message that names both keys",
            json.dumps(told),
        )
        expect(not self.status("wrong").get("jobUid"), "no job", self.status("wrong"))
        expect(not self.jobs("wrong"), "no job", self.jobs("wrong"))
        self.show_conditions("wrong", found)
        self.show_events("wrong")

        self.apply(self.document("wrong", 2))
        status = self.wait_state("wrong", "SUCCEEDED", 300)
        self.wait_conditions("wrong", SUCCEEDED)
        proof.say("the corrected object is SUCCEEDED; %s" % proof.check_counts(status["jobUid"])[1])
        wrong = self.document("wrong-forever", 2)
        wrong["spec"]["training"]["epoch"] = 3
        self.apply(wrong)
        self.wait_conditions("wrong-forever", {"Accepted": "False"})
        for name in ("wrong", "wrong-forever"):
            self.delete(name)
            self.wait_gone(name)
        proof.say("both objects are deleted, also the one that never had a job")


def conditions(found):
    """Returns the conditions of an object by type."""
    return {c["type"]: c for c in (found or {}).get("status", {}).get("conditions", [])}


def rows_of(table):
    """Returns the names of a table's columns, and the cells of each object by its name."""
    columns = [c["name"] for c in table["columnDefinitions"]]
    return columns, {r["object"]["metadata"]["name"]: r["cells"] for r in table["rows"]}
