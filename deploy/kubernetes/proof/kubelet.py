"""A kubelet for all nodes of the proof. It runs each pod as real processes, in namespaces, with the
command, environment, volumes, user, probes and times of its manifest.

Fields that it does not know raise an error, so that no part of a manifest is silently left out. It
does not enforce seccomp profiles, limits of memory and CPU, or network policies.
"""
import datetime
import http.client
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time

import sandbox
from control_plane import API_PORT, UNVERIFIED, Failure, Refused, data_of, is_transient
from stand_ins import DOMAIN

# The mode of a token's file in a pod with an `fsGroup`.
TOKEN_MODE = 0o640
CAPACITY = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}
HEARTBEAT_SECONDS = 5
LOOK_SECONDS = 0.3
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 10, 300
# In a cluster this is the address of the service `kubernetes`. No part of the proof forwards the
# addresses of services, so pods get the address behind the service.
API_ENV = {"KUBERNETES_SERVICE_HOST": sandbox.GATEWAY, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
# The fields that this kubelet follows, and those that the scheduler or the API server follows.
POD_FIELDS = set(
    "affinity automountServiceAccountToken containers dnsPolicy enableServiceLinks hostname"
    " nodeName preemptionPolicy priority priorityClassName restartPolicy schedulerName"
    " securityContext serviceAccount serviceAccountName subdomain terminationGracePeriodSeconds"
    " tolerations topologySpreadConstraints volumes".split()
)
CONTAINER_FIELDS = set(
    "args command env envFrom image imagePullPolicy livenessProbe name ports readinessProbe"
    " resources securityContext startupProbe terminationMessagePath terminationMessagePolicy"
    " volumeMounts".split()
)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def known(what, given, fields):
    unknown = set(given) - fields
    if unknown:
        raise ValueError("%s: fields that kubelet.py does not know: %s" % (what, sorted(unknown)))


def quantity(text):
    """Returns a number of cores, rounded up, as `resourceFieldRef` does."""
    return math.ceil(int(text[:-1]) / 1000 if text.endswith("m") else float(text))


class Probe:
    """One kind of probe of a container, with the time at which the probe is due."""

    def __init__(self, spec, ports, address):
        known("probe", spec, set("httpGet failureThreshold periodSeconds successThreshold"
                                 " timeoutSeconds initialDelaySeconds".split()))  # fmt: skip
        get = spec["httpGet"]
        known("httpGet", get, {"path", "port", "scheme"})
        self.path, self.port, self.address = get["path"], ports[get["port"]], address
        self.https = get.get("scheme") == "HTTPS"
        self.period = spec.get("periodSeconds", 10)
        self.timeout = spec.get("timeoutSeconds", 1)
        self.failures_max = spec.get("failureThreshold", 3)
        self.due = time.monotonic() + spec.get("initialDelaySeconds", 0)
        self.failures = 0

    def ask(self):
        """Returns None if the probe is not due, and otherwise whether it succeeded."""
        if time.monotonic() < self.due:
            return None
        self.due = time.monotonic() + self.period
        kind = http.client.HTTPSConnection if self.https else http.client.HTTPConnection
        more = {"context": UNVERIFIED} if self.https else {}
        connection = kind(self.address, self.port, timeout=self.timeout, **more)
        try:
            connection.request("GET", self.path)
            succeeded = 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            succeeded = False
        finally:
            connection.close()
        self.failures = 0 if succeeded else self.failures + 1
        return succeeded

    def failed(self):
        return self.failures >= self.failures_max


class Container:
    """One container of a pod: its process, its restarts and its probes."""

    def __init__(self, pod, spec):
        known("container", spec, CONTAINER_FIELDS)
        self.pod, self.spec, self.name = pod, spec, spec["name"]
        if spec["image"].split(":")[0] != "evergrad":
            raise ValueError("no image but evergrad: " + spec["image"])
        self.process = None
        self.restarts, self.backoff, self.start_at = 0, 0, 0.0
        self.ready, self.last = False, None

    def env(self):
        meta, spec = self.pod.object["metadata"], self.pod.object["spec"]
        fields = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "spec.nodeName": spec["nodeName"],
            "status.podIP": self.pod.sandbox.address,
        }
        found = dict(sandbox.IMAGE_ENV, **API_ENV, HOSTNAME=meta["name"])
        for source in self.spec.get("envFrom", []):
            found.update(self.pod.config(source["configMapRef"]["name"]))
        for entry in self.spec.get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                value = fields[source["fieldRef"]["fieldPath"]]
            elif "resourceFieldRef" in source:
                kind, name = source["resourceFieldRef"]["resource"].split(".")
                value = str(quantity(self.spec["resources"][kind][name]))
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                value = self.pod.config(reference["name"])[reference["key"]]
            elif source:
                raise ValueError("env %s: unknown source" % entry["name"])
            else:
                value = expand(entry.get("value", ""), found)
            found[entry["name"]] = value
        return found

    def start(self):
        env = self.env()
        own = self.spec.get("securityContext", {})
        known("securityContext", own, {"allowPrivilegeEscalation", "readOnlyRootFilesystem",
                                       "capabilities"})  # fmt: skip
        of_pod = self.pod.object["spec"]["securityContext"]
        words = self.spec["command"] + self.spec.get("args", [])
        mounts = {}
        for m in self.spec.get("volumeMounts", []):
            mounts[m["mountPath"]] = (self.pod.mounted(m), m.get("readOnly", False))
        spec = {
            "programs": {p: os.path.join(self.pod.kubelet.bin, p) for p in sandbox.PROGRAMS},
            "mounts": mounts,
            "etc": self.pod.etc(),
            "command": [expand(word, env) for word in words],
            "env": env,
            "uid": of_pod["runAsUser"],
            "gid": of_pod["runAsGroup"],
            "groups": [of_pod["fsGroup"]],
            "read_only_root": own.get("readOnlyRootFilesystem", False),
            "no_new_privileges": not own.get("allowPrivilegeEscalation", True),
            "drop_capabilities": own.get("capabilities", {}).get("drop") == ["ALL"],
        }
        folder = os.path.join(self.pod.folder, "%s.%d" % (self.name, self.restarts))
        self.process = sandbox.Process(self.pod.sandbox, spec, folder, self.log())
        self.started, self.started_at = now(), time.monotonic()
        ports = {p["name"]: p["containerPort"] for p in self.spec.get("ports", [])}
        self.probes = {
            kind: Probe(self.spec[kind + "Probe"], ports, self.pod.sandbox.address)
            for kind in ("startup", "liveness", "readiness")
            if kind + "Probe" in self.spec
        }
        self.ready = "readiness" not in self.probes

    def log(self):
        return os.path.join(
            self.pod.kubelet.work, "logs", "%s.%s.log" % (self.pod.name, self.pod.uid[:8])
        )

    def look(self, again):
        """Starts the process if it is due, and runs the probes. Returns whether the container has
        ended for good. With `again`, an ended container is always restarted, so it never ends for
        good."""
        if self.process is None:
            if time.monotonic() >= self.start_at:
                self.start()
            return False
        code = self.process.exit_code()
        if code is not None:
            self.last, self.ready = {"exitCode": code, "finishedAt": now()}, False
            if not again:
                return True
            if time.monotonic() - self.started_at > 600:
                self.backoff = 0
            # The first restart is immediate.
            self.start_at = time.monotonic() + self.backoff
            self.backoff = min(max(2 * self.backoff, BACKOFF_SECONDS), BACKOFF_SECONDS_MAX)
            self.process = None
            self.restarts += 1
            return False
        self.ask_probes()
        return False

    def ask_probes(self):
        startup = self.probes.get("startup")
        if startup is not None:
            if startup.ask():
                del self.probes["startup"]
            elif startup.failed():
                self.process.kill()
            return
        liveness, readiness = self.probes.get("liveness"), self.probes.get("readiness")
        if liveness is not None:
            liveness.ask()
            if liveness.failed():
                self.process.kill()
                return
        if readiness is not None:
            if readiness.ask():
                self.ready = True
            elif readiness.failed():
                self.ready = False

    def status(self):
        state = {"waiting": {"reason": "ContainerCreating"}}
        if self.process is not None and self.last is not None and not self.running():
            state = {"terminated": dict(self.last, startedAt=self.started)}
        elif self.process is not None:
            state = {"running": {"startedAt": self.started}}
        elif self.restarts:
            state = {"waiting": {"reason": "CrashLoopBackOff"}}
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "ready": self.ready,
            "started": self.process is not None and "startup" not in self.probes,
            "restartCount": self.restarts,
            "state": state,
        }

    def running(self):
        return self.process is not None and self.process.exit_code() is None


def expand(text, env):
    """Replaces $(NAME) by the value of the variable. Unknown names are left unchanged, as in
    Kubernetes."""
    return re.sub(r"\$\((\w+)\)", lambda m: env.get(m.group(1), m.group(0)), text)


class Waiting(Exception):
    """A volume that does not exist yet."""


class Pod(threading.Thread):
    """Runs a pod from its binding to a node until its end."""

    def __init__(self, kubelet, found):
        super().__init__(daemon=True)
        self.object, self.kubelet = found, kubelet
        meta = found["metadata"]
        self.name, self.uid, self.namespace = meta["name"], meta["uid"], meta["namespace"]
        self.path = "/api/v1/namespaces/%s/pods/%s" % (self.namespace, self.name)
        self.node = found["spec"]["nodeName"]
        self.folder = os.path.join(kubelet.work, "pods", self.uid)
        self.sandbox, self.containers, self.volumes = None, [], {}
        self.deleted, self.lost = threading.Event(), threading.Event()
        self.grace = 0
        self.phase, self.told, self.created = "Pending", None, now()
        # (seconds from SIGTERM to the end, exit codes, whether SIGKILL was sent)
        self.ended_in = None

    def run(self):
        try:
            self.serve()
        except Exception:
            if not self.lost.is_set():
                raise
        if self.lost.is_set():
            self.vanish()  # This process may have started while its node vanished.

    def serve(self):
        known("pod " + self.name, self.object["spec"], POD_FIELDS)
        again = self.object["spec"]["restartPolicy"] == "Always"
        while not (self.deleted.is_set() or self.lost.is_set()):
            try:
                self.advance(again)
            except Failure as failure:
                if not is_transient(failure):
                    raise
            self.deleted.wait(LOOK_SECONDS)
        if self.lost.is_set():
            return
        self.terminate()
        self.tell()
        self.forget()

    def advance(self, again):
        if self.sandbox is None:
            self.prepare()
        elif self.phase in ("Pending", "Running"):
            ended = [c.look(again) for c in self.containers]
            self.phase = "Running"
            if all(ended):
                codes = [c.process.exit_code() for c in self.containers]
                self.phase = "Succeeded" if not any(codes) else "Failed"
        self.tell()

    def prepare(self):
        """Makes the volumes and the network, if the objects of the volumes exist."""
        try:
            for volume in self.object["spec"].get("volumes", []):
                if volume["name"] not in self.volumes:
                    self.volumes[volume["name"]] = self.volume(volume)
        except Waiting:
            return
        self.containers = [Container(self, c) for c in self.object["spec"]["containers"]]
        self.sandbox = sandbox.Sandbox(self.name)

    def volume(self, volume):
        """Returns the folder of a volume."""
        folder = os.path.join(self.folder, "volumes", volume["name"])
        group = self.object["spec"]["securityContext"]["fsGroup"]
        for kind in ("secret", "configMap", "projected"):
            if kind in volume:
                files = self.files(kind, volume[kind], volume[kind].get("defaultMode", 0o644))
                os.makedirs(folder)
                for name, (content, mode) in files.items():
                    path = os.path.join(folder, name)
                    with open(path, "wb") as f:
                        f.write(content)
                    os.chown(path, 0, group)
                    os.chmod(path, mode)
                os.chmod(folder, 0o755)
                return folder
        if "emptyDir" in volume:
            os.makedirs(folder)
        elif "persistentVolumeClaim" in volume:
            folder = self.claimed(volume["persistentVolumeClaim"]["claimName"])
        else:
            raise ValueError("volume %s: unknown kind" % volume["name"])
        os.chown(folder, -1, group)
        os.chmod(folder, 0o2775)
        return folder

    def files(self, kind, source, mode):
        """Returns the files of a volume, or of one source of a projected volume, as {name:
        (content, mode)}."""
        if kind == "projected":
            known(kind, source, {"sources", "defaultMode"})
            found = {}
            for one in source["sources"]:
                for of, part in one.items():
                    found.update(self.files(of, part, mode))
            return found
        if kind == "serviceAccountToken":
            known(kind, source, {"path", "expirationSeconds", "audience"})
            return {source["path"]: (self.token(source).encode(), TOKEN_MODE)}
        if kind == "downwardAPI":
            known(kind, source, {"items"})
            fields = {"metadata.name": self.name, "metadata.namespace": self.namespace}
            values = {i["path"]: fields[i["fieldRef"]["fieldPath"]] for i in source["items"]}
            return {path: (value.encode(), mode) for path, value in values.items()}
        known(kind, source, {"name", "secretName", "items", "defaultMode"})
        name = source.get("secretName") or source["name"]
        path = "/api/v1/namespaces/%s/%ss/%s" % (self.namespace, kind.lower(), name)
        found = self.kubelet.api.find(path)
        if found is None:
            raise Waiting()
        data = data_of(found)
        if "items" in source:
            data = {i["path"]: data[i["key"]] for i in source["items"]}
        return {name: (content, mode) for name, content in data.items()}

    def token(self, source):
        """Asks the API server for a token of the pod's account. The token is valid as long as the
        pod exists, and at most `expirationSeconds`. It is not renewed, because the proof ends
        earlier."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [source["audience"]] if "audience" in source else [],
                "expirationSeconds": source.get("expirationSeconds", 3600),
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": self.name,
                    "uid": self.uid,
                },
            },
        }
        account = self.object["spec"]["serviceAccountName"]
        path = "/api/v1/namespaces/%s/serviceaccounts/%s/token" % (self.namespace, account)
        return self.kubelet.api.request("POST", path, body)["status"]["token"]

    def config(self, name):
        """Returns the texts of a ConfigMap, which must exist when a container starts."""
        path = "/api/v1/namespaces/%s/configmaps/%s" % (self.namespace, name)
        return self.kubelet.api.get(path)["data"]

    def claimed(self, name):
        claim = self.kubelet.api.find(
            "/api/v1/namespaces/%s/persistentvolumeclaims/%s" % (self.namespace, name)
        )
        if claim is None or claim["status"].get("phase") != "Bound":
            raise Waiting()
        volume = self.kubelet.api.get("/api/v1/persistentvolumes/" + claim["spec"]["volumeName"])
        folder = self.kubelet.work + volume["spec"]["hostPath"]["path"]
        os.makedirs(folder, exist_ok=True)
        return folder

    def mounted(self, mount):
        """Returns the folder behind a mount. A missing subPath is made, with the mode and the group
        of its volume."""
        known("volumeMount", mount, {"name", "mountPath", "subPath", "readOnly"})
        folder = self.volumes[mount["name"]]
        if "subPath" in mount:
            mode = stat.S_IMODE(os.stat(folder).st_mode)
            folder = os.path.join(folder, mount["subPath"])
            if not os.path.isdir(folder):
                os.mkdir(folder)
                os.chmod(folder, mode)
        return folder

    def etc(self):
        search = ("%s.svc." % self.namespace, "svc.", "")
        return {
            "hosts": "127.0.0.1 localhost\n%s %s\n" % (self.sandbox.address, self.name),
            "hostname": self.name + "\n",
            "nsswitch.conf": "hosts: files dns\n",
            "resolv.conf": "nameserver %s\nsearch %s\noptions ndots:5\n"
            % (sandbox.GATEWAY, " ".join(s + DOMAIN for s in search)),
        }

    def tell(self):
        """Writes the status if it has changed."""
        containers = [c.status() for c in self.containers] if self.sandbox else []
        ready = self.phase == "Running" and all(c["ready"] for c in containers)
        said = (self.phase, ready, repr(containers))
        if said == self.told:
            return
        truth = {True: "True", False: "False"}
        conditions = [("Initialized", True), ("ContainersReady", ready), ("Ready", ready)]
        status = {
            "phase": self.phase,
            "startTime": self.created,
            "containerStatuses": containers,
            "conditions": [
                {"type": kind, "status": truth[value], "lastTransitionTime": now()}
                for kind, value in conditions
            ],
        }
        if self.sandbox:
            address = self.sandbox.address
            status.update(podIP=address, podIPs=[{"ip": address}])
        try:
            self.kubelet.api.patch(
                self.path + "/status", {"metadata": {"uid": self.uid}, "status": status}
            )
        except Failure as failure:
            if is_transient(failure) or failure.status == 409:
                return  # The next call tries again.
            if failure.status != 404:  # The pod may have been deleted meanwhile.
                raise
        self.told = said

    def terminate(self):
        """Sends SIGTERM, and then SIGKILL if the grace period of the deletion runs out."""
        begin = time.monotonic()
        running = [c for c in self.containers if c.running()]
        for c in running:
            c.process.send(signal.SIGTERM)
        killed = False
        while any(c.running() for c in running) and not self.lost.is_set():
            if time.monotonic() - begin > self.grace:
                killed = True
                for c in running:
                    c.process.kill()
            time.sleep(0.05)
        codes = [c.process.exit_code() for c in running]
        for c in self.containers:
            c.ready = False
            if c in running:
                c.last = {"exitCode": c.process.exit_code(), "finishedAt": now()}
        self.ended_in = (time.monotonic() - begin, codes, killed)
        if self.sandbox is not None:
            self.sandbox.end()
        if self.phase == "Running":
            self.phase = "Failed" if any(codes) else "Succeeded"
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self):
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while not self.lost.is_set():
            try:
                self.kubelet.api.request("DELETE", self.path, options)
                return
            except Failure as failure:
                if isinstance(failure, Refused) and failure.status in (404, 409):
                    return
                if not is_transient(failure):
                    raise
                time.sleep(LOOK_SECONDS)

    def vanish(self):
        """Ends the pod as the loss of its node would: no further packet leaves it, its processes
        get no signal that they could handle, and the API server gets no message."""
        self.lost.set()
        if self.sandbox is not None and self.sandbox.holder.poll() is None:
            self.sandbox.unplug()
        for c in self.containers:
            if c.running():
                c.process.kill()
        if self.sandbox is not None:
            self.sandbox.end()


class Kubelet(threading.Thread):
    """Looks for pods that are bound to its nodes, and keeps the nodes Ready."""

    def __init__(self, api, nodes, bin_folder, work):
        super().__init__(name="kubelet", daemon=True)
        self.api, self.bin, self.work = api, bin_folder, work
        self.nodes = set(nodes)  # the names of the nodes that are alive
        self.pods = {}  # by uid; ended pods are kept
        self.lock = threading.Lock()

    def run(self):
        heartbeat, printed = 0.0, None
        while True:
            try:
                if time.monotonic() >= heartbeat:
                    heartbeat = time.monotonic() + HEARTBEAT_SECONDS
                    for node in sorted(self.nodes):
                        self.beat(node)
                self.look()
            except Failure as failure:
                if str(failure) != printed:
                    printed = str(failure)
                    print("kubernetes-proof: kubelet: %s" % printed)
            time.sleep(LOOK_SECONDS)

    def beat(self, node):
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now(),
        }
        status = {"conditions": [condition], "capacity": CAPACITY, "allocatable": CAPACITY}
        self.api.patch("/api/v1/nodes/%s/status" % node, {"status": status})

    def look(self):
        found = self.api.get("/api/v1/pods")["items"]
        with self.lock:
            for p in found:
                uid, node = p["metadata"]["uid"], p["spec"].get("nodeName")
                if node not in self.nodes:
                    continue
                if uid not in self.pods:
                    self.pods[uid] = Pod(self, p)
                    self.pods[uid].start()
                pod = self.pods[uid]
                if p["metadata"].get("deletionTimestamp") and not pod.deleted.is_set():
                    pod.grace = p["metadata"].get("deletionGracePeriodSeconds", 0)
                    pod.deleted.set()

    def ready_pods(self, component):
        """Returns the pods with this label whose containers are ready. The API server is not
        asked, so this also works while it is down."""
        with self.lock:
            pods = list(self.pods.values())
        return [
            p
            for p in pods
            if p.object["metadata"]["labels"].get("app.kubernetes.io/component") == component
            and p.phase == "Running"
            and not (p.deleted.is_set() or p.lost.is_set())
            and all(c.ready for c in p.containers)
        ]

    def vanish(self, node):
        """Removes a node with all its pods, as if the machine were lost. Returns the names of the
        pods that ran there."""
        with self.lock:
            self.nodes.remove(node)
            gone = [p for p in self.pods.values() if p.node == node and p.is_alive()]
            for pod in gone:
                pod.lost.set()
            for pod in gone:
                pod.vanish()
        return sorted(pod.name for pod in gone)

    def execute(self, pod_uid, words):
        """Runs a program of the image in the first container of a pod, as `kubectl exec` does."""
        pod = self.pods[pod_uid]
        pid = str(pod.containers[0].process.pid)
        context = pod.object["spec"]["securityContext"]
        enter = ["nsenter", "--target", pid, "--mount", "--net", "--pid", "--root", "--wd"]
        enter += ["--setgid", str(context["runAsGroup"]), "--setuid", str(context["runAsUser"])]
        return subprocess.run(
            enter + words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
        )
