#!/usr/bin/env python3
"""Proves the files of deploy/kubernetes with a real control plane and real daemons:

  ./evergrad kubernetes-proof [--seconds N] [--only operator]

README.md in this folder describes the steps and the stand-ins. The transcript and all logs are in
build/kubernetes-proof. The exit status is 0 if every step ended as expected; otherwise the last
line says what was expected. It needs root. The program runs in network, mount and PID namespaces of
its own, so it changes nothing on the host, and no process outlives it.
"""
import argparse
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
sys.path.insert(0, HERE)
import yaml  # noqa: E402

import sandbox  # noqa: E402
from control_plane import (  # noqa: E402
    NAMESPACE,
    PODS,
    ControlPlane,
    Failure,
    Refused,
    data_of,
    expect,
    wait_for,
)
from kubelet import Kubelet  # noqa: E402
from operator_steps import OperatorSteps  # noqa: E402
from stand_ins import CertManager, Dns  # noqa: E402

INSIDE = "EVERGRAD_PROOF_INSIDE"
TOOLS = os.path.join(ROOT, "build", "tools")
OUT = os.path.join(ROOT, "build", "kubernetes-proof")
OVERLAY = os.path.join(HERE, "shared")
FIRST_JOB = os.path.join(ROOT, "deploy", "kubernetes", "jobs", "first")
TRAINING_JOB = os.path.join(ROOT, "deploy", "kubernetes", "jobs", "trainingjob")
# The pods of each role in this cluster: (number of pods, first letters of the names of their
# nodes). The operator may be on any node.
ROLES = {
    "coordinator": (1, "ordinary-"),
    "ps-server": (2, "ordinary-"),
    "worker": (4, "spot-"),
    "operator": (1, ""),
}
# The nodes with a taint. The pods of psctl do not tolerate the taint, so they are on other nodes.
TAINTED = ("spot-0", "spot-1")


def kustomize(folder):
    r = subprocess.run(
        [os.path.join(TOOLS, "kustomize"), "build", folder], capture_output=True, text=True
    )
    expect(r.returncode == 0, "kustomize renders " + os.path.basename(folder), r.stderr)
    return r.stdout


def documents(text):
    return [d for d in yaml.safe_load_all(text) if d]


class Transcript:
    def __init__(self, path):
        self.file, self.begin, self.steps = open(path, "w"), time.monotonic(), 0

    def write(self, text):
        print(text, end="", flush=True)
        self.file.write(text)
        self.file.flush()

    def block(self, text):
        """Writes indented lines."""
        self.write("".join("    %s\n" % line for line in text.splitlines()))

    def step(self, title):
        self.steps += 1
        self.write("\n== %d. %s\n" % (self.steps, title))

    def say(self, text):
        seconds = int(time.monotonic() - self.begin)
        self.write("[%d:%02d] %s\n" % (seconds // 60, seconds % 60, text))


class Proof:
    def __init__(self, bin_folder, seconds, work):
        self.bin, self.seconds, self.work = bin_folder, seconds, work
        self.transcript = Transcript(os.path.join(OUT, "transcript.txt"))
        self.say = self.transcript.say
        self.broken = None  # why a thread has ended
        with open(os.path.join(FIRST_JOB, "job.yaml")) as f:
            self.spec = f.read()
        self.examples = int(re.search(r"train: .*examples: (\d+)", self.spec).group(1))
        threading.excepthook = self.thread_ended

    def thread_ended(self, why):
        """Stores the reason why a thread has ended. The next wait then ends the proof."""
        self.broken = "%s: %s: %s" % (why.thread.name, why.exc_type.__name__, why.exc_value)

    def wait(self, what, seconds, look):
        def checked():
            self.plane.check()
            if self.broken:
                raise SystemExit("kubernetes-proof: " + self.broken)
            return look()

        return wait_for(what, seconds, checked)

    # The state of the cluster.

    def pods(self, role):
        """Returns the pods of a role, by name, without those that are being deleted."""
        found = self.api.get(PODS + "?labelSelector=app.kubernetes.io/component%3D" + role)["items"]
        alive = [p for p in found if not p["metadata"].get("deletionTimestamp")]
        return {p["metadata"]["name"]: p for p in alive}

    def ready_pods(self, role, others_than=()):
        """Returns the pods of a role if all of them are ready and no pod has a uid of
        `others_than`."""
        pods = self.pods(role)
        ready = [
            p["metadata"]["name"]
            for p in pods.values()
            if is_ready(p) and p["metadata"]["uid"] not in others_than
        ]
        if len(ready) != ROLES[role][0] or len(pods) != len(ready):
            raise Failure("ready: %s of %s" % (sorted(ready), sorted(pods)))
        return pods

    def table(self, roles=ROLES):
        rows = []
        for role in roles:
            for name, p in sorted(self.pods(role).items()):
                restarts = sum(c["restartCount"] for c in p["status"]["containerStatuses"])
                rows.append(
                    "%-34s %-11s %-12s %s restarts=%d"
                    % (
                        name,
                        p["spec"]["nodeName"],
                        p["status"]["podIP"],
                        "ready" if is_ready(p) else "not ready",
                        restarts,
                    )
                )
        return "\n".join(rows)

    def psctl(self, *words):
        """Runs psctl as the user operator, through the loopback of the coordinator's pod as with
        `kubectl port-forward`, and returns its answer."""
        pods = self.kubelet.ready_pods("coordinator")
        expect(len(pods) == 1, "one coordinator is ready", [pod.name for pod in pods])
        keys = [("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")]
        flags = ["--coordinator", "localhost:4000", "--output", "json"]
        flags += [w for k, f in keys for w in ("--tls-" + k, os.path.join(self.user, f))]
        r = subprocess.run(
            pods[0].sandbox.enter + [os.path.join(self.bin, "psctl"), *words, *flags],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if r.returncode != 0:
            raise Failure("psctl %s: %s" % (" ".join(words), (r.stdout + r.stderr).strip()))
        return json.loads(r.stdout)

    def tasks(self, role):
        """Returns the tasks of a role that are alive."""
        found = self.psctl("task", "list")["tasks"]
        return [t for t in found if t["role"] == role and t["state"] == "alive"]

    def job(self, name):
        """Returns `psctl job show`, when the coordinator answers."""
        return self.wait(
            "`psctl job show %s` answers" % name, 120, lambda: self.psctl("job", "show", name)
        )

    # The steps.

    def start(self):
        self.transcript.step("A control plane, and five nodes")
        self.plane = ControlPlane(os.path.join(TOOLS, "kubernetes"), self.work, sandbox.GATEWAY)
        self.api = self.plane.api
        with open(os.path.join(HERE, "cluster.yaml")) as f:
            surroundings = documents(f.read())
        for document in surroundings:
            self.wait(
                "%s %s is applied" % (document["kind"], document["metadata"]["name"]),
                60,
                lambda: self.api.apply(document),
            )
        nodes = [d["metadata"]["name"] for d in surroundings if d["kind"] == "Node"]
        self.kubelet.nodes.update(nodes)
        self.kubelet.api = self.api
        self.kubelet.start()
        Dns(self.api, sandbox.GATEWAY).start()

        def all_ready():
            found = {n["metadata"]["name"]: n for n in self.api.get("/api/v1/nodes")["items"]}
            return [
                n
                for n in nodes
                if is_ready(found[n])
                and not any("not-ready" in t["key"] for t in found[n]["spec"].get("taints", []))
            ] == nodes

        self.wait("five nodes are Ready", 120, all_ready)
        with open(os.path.join(TOOLS, "kubernetes", "version")) as f:
            version = f.read().strip()
        self.say("Kubernetes %s from Debian's source; ready nodes: " % version + ", ".join(nodes))

    def apply(self):
        self.transcript.step(
            "gke-spot with a shared volume is applied; every pod is on a node of its kind"
        )
        original = documents(kustomize(OVERLAY))
        adapted = kustomize(os.path.join(HERE, "overlay"))
        self.say("the files, adapted to this version (overlay/kustomization.yaml):")
        self.transcript.block(difference(original, documents(adapted)))
        counts, certificates = {}, []
        for document in documents(adapted):
            if document["apiVersion"].startswith("cert-manager.io/"):
                certificates.append(document)
                continue
            self.wait(
                "%s is applied" % document["metadata"]["name"],
                60,
                lambda: self.api.apply(document),
            )
            counts[document["kind"]] = counts.get(document["kind"], 0) + 1
        self.say("applied: " + ", ".join("%d %s" % (n, k) for k, n in sorted(counts.items())))
        self.certificates([c for c in certificates if c["kind"] == "Certificate"])
        for role in ROLES:
            self.wait("every pod of %s is ready" % role, 300, lambda: self.ready_pods(role))
        self.say("all pods are ready:")
        self.transcript.block(self.table())
        self.check_nodes()
        self.check_spread()
        secret = self.api.get(NAMESPACE + "secrets/evergrad-user-tls")
        self.user = os.path.join(self.work, "user")
        os.makedirs(self.user)
        for name, content in data_of(secret).items():
            path = os.path.join(self.user, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as f:
                f.write(content)
        self.check_addresses()

    def certificates(self, certificates):
        """Makes the Secrets of the overlay's Certificates, in place of cert-manager."""
        folder = os.path.join(self.work, "certificates")
        made = CertManager(self.api, os.path.join(self.bin, "psctl"), folder).make(certificates)
        self.say("Secrets made for the Certificates: " + ", ".join(made))

    def check_nodes(self):
        for role, (count, prefix) in ROLES.items():
            nodes = [p["spec"]["nodeName"] for p in self.pods(role).values()]
            expect(
                len(nodes) == count and all(n.startswith(prefix) for n in nodes),
                "%d pods of %s on nodes %s*" % (count, role, prefix),
                nodes,
            )
        self.say("coordinator and servers are on ordinary nodes, and workers on spot nodes")

    def check_spread(self):
        for role, (_, prefix) in ROLES.items():
            nodes = [p["spec"]["nodeName"] for p in self.pods(role).values()]
            there = [n for n in sorted(self.kubelet.nodes) if n.startswith(prefix)]
            each = [nodes.count(n) for n in there]
            expect(
                max(each) - min(each) <= 1, "the pods of %s are spread evenly" % role, (there, each)
            )
        self.say("servers and workers are spread evenly over their nodes")

    def check_addresses(self):
        """Checks that the coordinator knows each server and each worker by its pod's address."""

        def known():
            for role, task_role in (("ps-server", "ps_server"), ("worker", "worker")):
                want = {p["status"]["podIP"] for p in self.ready_pods(role).values()}
                got = {t["address"].rsplit(":", 1)[0] for t in self.tasks(task_role)}
                expect(got == want, "tasks at %s" % sorted(want), sorted(got))
            return True

        self.wait("the coordinator has every task at the address of its pod", 120, known)
        self.say("`psctl task list` shows 2 servers and 4 workers, at the addresses of their pods")

    def submit(self, folder, name):
        """Applies a Job and waits until its training runs."""
        for document in documents(kustomize(folder)):
            self.api.apply(document)
        self.wait("the training %s runs" % name, 180, lambda: self.job(name)["steps_done"] > 0)

    def finish(self, job, name, seconds):
        """Waits until the Job is complete, and checks the counts of its training."""

        def complete():
            found = self.api.get("/apis/batch/v1/namespaces/evergrad/jobs/" + job)
            conditions = found["status"].get("conditions", [])
            types = [c["type"] for c in conditions if c["status"] == "True"]
            if "Failed" in types:
                said = self.submitter_says(job)
                raise SystemExit("kubernetes-proof: the Job %s has failed:\n%s" % (job, said))
            return "Complete" in types

        self.wait("the Job %s is complete" % job, seconds, complete)
        shown, counts = self.check_counts(name)
        self.say("the Job %s is complete; %s; the pod of psctl:" % (job, counts))
        self.transcript.block(self.submitter_says(job))
        return shown

    def check_counts(self, name):
        """Checks the counts of a training that has ended. Returns `psctl job show`, and the counts
        in words."""
        shown = self.job(name)
        (coordinator,) = self.pods("coordinator").values()
        audit = self.kubelet.execute(
            coordinator["metadata"]["uid"],
            ["/usr/bin/psctl", "job", "audit", "--output", "json", "--checkpoint"]
            + [shown["checkpoint"]["path"]],
        )
        expect(audit.returncode == 0, "`psctl job audit` ends with 0", audit.stdout + audit.stderr)
        counts = json.loads(audit.stdout)
        applied = [e["applied"] for e in counts["epochs"]]
        expect(counts["exact"], "the ledgers are exact", audit.stdout)
        expect(
            applied == [self.examples] * shown["epochs"],
            "each of %d epochs applied each of %d examples once" % (shown["epochs"], self.examples),
            applied,
        )
        expect(
            shown["state"] == "SUCCEEDED" and shown["steps_done"] == shown["steps_total"],
            "SUCCEEDED with all steps",
            (shown["state"], shown["steps_done"], shown["steps_total"]),
        )
        said = (
            "psctl job audit: exact, each of %d epochs applied each of %d examples once; %d steps; "
            "redone updates: %s, rerun closures: %s"
            % (
                shown["epochs"],
                self.examples,
                shown["steps_done"],
                shown["updates_redone"],
                shown["closures_rerun"],
            )
        )
        return shown, said

    def seconds_of_an_epoch(self, shown):
        """Returns the mean length of an epoch of a job that has ended (`psctl job show`)."""
        return (shown["ended_ms"] - shown["started_ms"]) / 1000 / shown["epochs"]

    def submitter_says(self, job):
        """Returns the last lines of the log of a Job's pod."""
        for pod in self.kubelet.pods.values():
            if pod.object["metadata"]["labels"].get("job-name") == job:
                with open(pod.containers[0].log()) as f:
                    return "\n".join(f.read().splitlines()[-6:])
        return "nothing"

    def first_job(self):
        self.transcript.step("The job of jobs/first trains")
        self.submit(FIRST_JOB, "first")
        shown = self.finish("first-job", "first", 900)
        self.steps_of_an_epoch = shown["steps_total"] // shown["epochs"]
        seconds = self.seconds_of_an_epoch(shown)
        self.epochs = max(2, int(self.seconds / seconds))
        self.say("an epoch took %.1f s; the long job has %d epochs" % (seconds, self.epochs))

    def long_job(self):
        self.transcript.step("A longer job begins: a copy of jobs/first with more epochs")
        folder = os.path.join(self.work, "jobs")
        shutil.copytree(FIRST_JOB, os.path.join(folder, "first"))
        text, count = re.subn(r"epochs: \d+", "epochs: %d" % self.epochs, self.spec)
        text, names = re.subn(r"metadata: \{name: first\}", "metadata: {name: long}", text)
        expect((count, names) == (1, 1), "one `epochs` and one name in job.yaml", (count, names))
        with open(os.path.join(folder, "first", "job.yaml"), "w") as f:
            f.write(text)
        os.makedirs(os.path.join(folder, "long"))
        with open(os.path.join(folder, "long", "kustomization.yaml"), "w") as f:
            json.dump({"resources": ["../first"], "nameSuffix": "-long"}, f)
        self.submit(os.path.join(folder, "long"), "long")
        self.say("the job `long` trains")

    def progress(self, since):
        """Waits until the long job has made steps, and returns (steps before, steps now)."""

        def more():
            shown = self.job("long")
            if shown["state"] != "RUNNING":
                raise SystemExit(
                    "kubernetes-proof: expected: the job `long` outlasts all steps; got: it is %s "
                    "after %d steps (try --seconds %d)"
                    % (shown["state"], shown["steps_done"], 2 * self.seconds)
                )
            return shown["steps_done"] > since and shown["steps_done"]

        return self.wait("the job `long` makes steps after step %d" % since, 180, more)

    def evict(self, name):
        """Returns the status and the message of the eviction API."""
        eviction = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "evergrad"},
        }
        try:
            self.api.request("POST", PODS + "/%s/eviction" % name, eviction)
            return 201, ""
        except Refused as refused:
            return refused.status, refused.message

    def gentle_end(self, uid, what, grace):
        """Checks that the process of a pod ended after SIGTERM. Returns the seconds that it
        took."""
        pod = self.kubelet.pods[uid]
        self.wait("the process of %s has ended" % what, grace + 30, lambda: pod.ended_in)
        seconds, codes, killed = pod.ended_in
        expect(
            not killed and codes == [0],
            "%s ends with 0 after SIGTERM, within %d s" % (what, grace),
            "exit codes %s after %.1f s%s" % (codes, seconds, ", killed" if killed else ""),
        )
        return seconds

    def evictions(self):
        self.transcript.step("Evictions: one server at a time, workers always")
        for name in ("evergrad-ps-server-0", "evergrad-ps-server-1"):
            other = "evergrad-ps-server-%d" % (1 - int(name[-1]))
            old = self.ready_pods("ps-server")[name]["metadata"]["uid"]
            answer = self.wait(
                "the eviction of %s is allowed" % name,
                60,
                lambda: self.evict(name) if self.allowed() > 0 else None,
            )
            expect(answer[0] == 201, "the eviction of %s: 201" % name, answer)
            refused = self.evict(other)
            expect(refused[0] == 429, "the eviction of %s meanwhile: 429" % other, refused)
            self.say("eviction of %s: 201; of %s: 429 %s" % (name, other, refused[1]))
            seconds = self.gentle_end(old, name, 75)
            self.wait("a new %s is ready" % name, 180, lambda: self.ready_pods("ps-server", {old}))
            self.say(
                "%s ended %.1f s after SIGTERM, and its replacement is ready" % (name, seconds)
            )
            self.progress(self.job("long")["steps_done"])
        pods = self.ready_pods("worker")
        answers = {name: self.evict(name)[0] for name in sorted(pods)}
        expect(set(answers.values()) == {201}, "the eviction of every worker: 201", answers)
        self.say("evictions of all workers at once: " + ", ".join(map(str, answers.values())))
        old = {p["metadata"]["uid"]: name for name, p in pods.items()}
        slowest = max(self.gentle_end(uid, name, 15) for uid, name in old.items())
        self.wait("four new workers are ready", 180, lambda: self.ready_pods("worker", set(old)))
        self.check_addresses()
        begin = self.job("long")["steps_done"]
        self.say(
            "the slowest ended %.1f s after SIGTERM; four new workers are ready; steps %d -> %d"
            % (slowest, begin, self.progress(begin))
        )

    def allowed(self):
        path = "/apis/policy/v1beta1/namespaces/evergrad/poddisruptionbudgets/evergrad-ps-server"
        return self.api.get(path)["status"]["disruptionsAllowed"]

    def lost_node(self):
        self.transcript.step("A spot node vanishes: no packet, no signal; its Node is deleted")
        pods = self.pods("worker")
        nodes = [p["spec"]["nodeName"] for p in pods.values()]
        lost = max(TAINTED, key=nodes.count)
        there = sorted(n for n, p in pods.items() if p["spec"]["nodeName"] == lost)
        expect(there, "a worker on " + lost, nodes)
        uids = {pods[name]["metadata"]["uid"] for name in there}
        gone = self.kubelet.vanish(lost)
        begin = time.monotonic()
        self.api.request("DELETE", "/api/v1/nodes/" + lost)
        self.say("%s vanished with %s" % (lost, ", ".join(gone)))
        steps = self.job("long")["steps_done"]
        self.say("training continues on the others: steps %d -> %d" % (steps, self.progress(steps)))
        self.wait("four workers are ready again", 300, lambda: self.ready_pods("worker", uids))
        self.say("the workers are replaced %.0f s after the loss:" % (time.monotonic() - begin))
        self.transcript.block(self.table(["worker"]))
        self.check_nodes()
        self.check_addresses()

    def restarts(self):
        self.transcript.step("Every pod of every role is deleted in turn, and the job continues")
        for role in ROLES:
            for name, pod in sorted(self.ready_pods(role).items()):
                steps = self.job("long")["steps_done"]
                times = self.restart(role, name, pod)
                after = self.progress(self.job("long")["steps_done"])
                self.say("%s: %s, steps %d -> %d" % (name, times, steps, after))
        self.check_addresses()
        self.transcript.block(self.table())

    def restart(self, role, name, pod):
        """Deletes a pod, and waits for its replacement. Returns the times in words."""
        uid, begin = pod["metadata"]["uid"], time.monotonic()
        self.api.request("DELETE", PODS + "/" + name)
        seconds = self.gentle_end(uid, name, pod["spec"]["terminationGracePeriodSeconds"])
        self.wait(
            "the replacement of %s is ready" % name, 180, lambda: self.ready_pods(role, {uid})
        )
        ready = time.monotonic() - begin
        return "ended %.1f s after SIGTERM, new and ready after %.1f s" % (seconds, ready)

    def end(self):
        self.transcript.step("The long job ends with exact counts")
        shown = self.finish("first-job-long", "long", 3600)
        expect(
            shown["steps_total"] == self.epochs * self.steps_of_an_epoch,
            "%d epochs of %d steps" % (self.epochs, self.steps_of_an_epoch),
            shown["steps_total"],
        )
        (submitter,) = [
            p for p in self.kubelet.pods.values() if p.name.startswith("first-job-long-")
        ]
        expect(submitter.containers[0].restarts == 0, "psctl ran once", "it was restarted")

    def run(self, only=None):
        """Runs all steps, or with `only` "operator" the first two and those of the operator."""
        sandbox.make_bridge()
        self.kubelet = Kubelet(None, [], self.bin, self.work)
        (job,) = documents(kustomize(TRAINING_JOB))
        operator = OperatorSteps(self, job)
        steps = [
            self.start,
            self.apply,
            self.first_job,
            self.long_job,
            self.evictions,
            self.lost_node,
            self.restarts,
            operator.trains,
            operator.cancels,
            operator.reports,
            self.end,
        ]
        if only == "operator":
            steps = [self.start, self.apply, operator.trains, operator.cancels, operator.reports]
        for step in steps:
            step()
        self.say("every step ended as expected")


def is_ready(thing):
    conditions = thing.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def difference(before, after):
    """Returns the difference between two lists of objects. Each part of it begins with the kind and
    the name of its object."""
    lines = []
    for a, b in zip(before, after):
        expect(a["metadata"] == b["metadata"], "the same objects in the same order", b["metadata"])
        texts = [yaml.safe_dump(d, sort_keys=True).splitlines() for d in (a, b)]
        found = list(difflib.unified_diff(*texts, n=1, lineterm=""))[2:]
        if found:
            lines.append("%s %s" % (a["kind"], a["metadata"]["name"]))
            lines += ["  " + line for line in found if not line.startswith("@@")]
    expect(len(before) == len(after), "the same number of objects", (len(before), len(after)))
    return "\n".join(lines)


def enter_namespaces():
    """Starts this program again in namespaces of its own."""
    if os.geteuid() != 0:
        raise SystemExit("kubernetes-proof: network namespaces and users of pods need root")
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    if subprocess.run(words + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        raise SystemExit(
            "kubernetes-proof: this host cannot make network, mount and PID namespaces"
        )
    os.environ[INSIDE] = "1"
    os.execvp(words[0], words + [sys.executable, os.path.abspath(__file__)] + sys.argv[1:])


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"))
    flags.add_argument(
        "--seconds", type=int, default=480, help="the wanted length of the long job (480)"
    )
    flags.add_argument(
        "--only",
        choices=["operator"],
        help="run only the steps of the operator, without the long job",
    )
    given = flags.parse_args()
    missing = [p for p in sandbox.PROGRAMS if not os.path.exists(os.path.join(given.bin, p))]
    if missing:
        raise SystemExit("kubernetes-proof: %s lacks %s" % (given.bin, ", ".join(missing)))
    if os.environ.get(INSIDE) != "1":
        enter_namespaces()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(os.path.join(OUT, "logs"))
    proof = Proof(os.path.abspath(given.bin), given.seconds, OUT)
    try:
        proof.run(given.only)
    except (Failure, SystemExit) as failure:
        proof.say("FAILED: %s" % failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
