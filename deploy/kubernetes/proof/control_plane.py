"""Starts etcd and the control plane of build/tools/kubernetes, and speaks to the API server. The
caller has a network namespace of its own, so every port is free."""
import base64
import http.client
import json
import os
import ssl
import subprocess
import threading
import time
import urllib.parse

API_PORT = 6443
# The paths of the core objects in the namespace of Evergrad.
NAMESPACE = "/api/v1/namespaces/evergrad/"
PODS = NAMESPACE + "pods"
TOKEN = "proof"
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "proof",
    "contexts": [{"name": "proof", "context": {"cluster": "proof", "user": "proof"}}],
    "clusters": [
        {
            "name": "proof",
            "cluster": {
                "server": "https://127.0.0.1:%d" % API_PORT,
                "insecure-skip-tls-verify": True,
            },
        }
    ],
    "users": [{"name": "proof", "user": {"token": TOKEN}}],
}


class Failure(Exception):
    """The proof has failed. The text says what was expected and what happened."""


def expect(holds, wanted, got):
    if not holds:
        raise Failure("expected: %s; got: %s" % (wanted, got))


def wait_for(what, seconds, look):
    """Calls `look` until its result is true, and returns the result. `look` may raise Failure with
    the state that it sees. If the time runs out, the message has the last such state."""
    end = time.monotonic() + seconds
    seen = "nothing"
    while True:
        try:
            found = look()
            if found:
                return found
        except Failure as failure:
            seen = str(failure)
        if time.monotonic() > end:
            raise Failure("expected within %d s: %s; got: %s" % (seconds, what, seen))
        time.sleep(0.3)


class Unreachable(Failure):
    """The API server did not answer a request."""


class Refused(Failure):
    """The API server answered a request with an error."""

    def __init__(self, request, status, answer):
        self.status = status
        self.message = answer.get("message", "") if isinstance(answer, dict) else str(answer)
        super().__init__("%s: %d %s" % (request, status, self.message))


def is_transient(failure):
    """Returns whether a repeated request may succeed: the API server is down, is starting, or has
    too much to do."""
    if isinstance(failure, Refused):
        return failure.status == 429 or failure.status >= 500
    return isinstance(failure, Unreachable)


class Api:
    """A client of the API server. Threads may share it; each has a connection of its own."""

    def __init__(self, token=TOKEN):
        self.token, self.own = token, threading.local()
        self.kinds = {}

    def request(
        self, method, path, body=None, content="application/json", accept="application/json"
    ):
        """Returns the answer. An error of the server raises Refused, and no answer Unreachable."""
        headers = {
            "Authorization": "Bearer " + self.token,
            "Content-Type": content,
            "Accept": accept,
        }
        data = None if body is None else json.dumps(body)
        for attempt in (1, 2):
            connection = getattr(self.own, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection(
                    "127.0.0.1", API_PORT, timeout=30, context=UNVERIFIED
                )
                self.own.connection = connection
            try:
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                text = response.read()
                break
            except (OSError, http.client.HTTPException) as error:
                # The server closes idle connections. The request is therefore tried once more on a
                # new connection.
                connection.close()
                self.own.connection = None
                if attempt == 2:
                    raise Unreachable("%s %s: %s" % (method, path, error))
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.decode(errors="replace")
        if response.status >= 300:
            raise Refused(method + " " + path, response.status, answer)
        return answer

    def get(self, path):
        return self.request("GET", path)

    def find(self, path):
        """Returns the object, or None if it does not exist."""
        try:
            return self.get(path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def patch(self, path, body):
        return self.request("PATCH", path, body, "application/strategic-merge-patch+json")

    def path_of(self, document):
        """Returns the path of an object. The names in the path come from the server's own list of
        kinds."""
        version, kind = document["apiVersion"], document["kind"]
        group = ("/apis/" if "/" in version else "/api/") + version
        if (version, kind) not in self.kinds:
            for resource in self.get(group)["resources"]:
                if "/" not in resource["name"]:
                    self.kinds[version, resource["kind"]] = resource
        resource = self.kinds.get((version, kind))
        if resource is None:
            raise Failure("the API server does not know %s %s" % (version, kind))
        meta = document["metadata"]
        if resource["namespaced"]:
            group += "/namespaces/" + meta.get("namespace", "default")
        return "%s/%s/%s" % (group, resource["name"], meta["name"])

    def apply(self, document):
        """Applies an object by server-side apply. The server refuses fields that it does not
        know."""
        query = urllib.parse.urlencode({"fieldManager": "proof", "force": "true"})
        path = self.path_of(document)
        return self.request("PATCH", path + "?" + query, document, "application/apply-patch+yaml")


class ControlPlane:
    def __init__(self, programs, work, address):
        """`address` must not be a loopback address, because the API server advertises it. Pods
        reach the API server at this address."""
        self.programs, self.work = programs, work
        self.flags, self.running = {}, {}  # by name of the program
        self.api = Api()
        folder = os.path.join(work, "etcd")
        os.makedirs(folder)
        subprocess.run(["mount", "-t", "tmpfs", "etcd", folder], check=True)
        self.folder = os.path.join(work, "control-plane")
        os.makedirs(self.folder)
        key = os.path.join(self.folder, "accounts.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        authority, certificate = self.certify(address)
        config = self.write("kubeconfig", json.dumps(KUBECONFIG))
        tokens = self.write("tokens.csv", '%s,proof,proof,"system:masters"\n' % TOKEN)
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        self.start(
            "etcd",
            "--data-dir=" + folder,
            "--listen-client-urls=" + client,
            "--advertise-client-urls=" + client,
            "--listen-peer-urls=" + peer,
            "--initial-advertise-peer-urls=" + peer,
            "--initial-cluster=default=" + peer,
        )
        self.start(
            "kube-apiserver",
            "--etcd-servers=" + client,
            "--bind-address=0.0.0.0",
            "--advertise-address=" + address,
            "--secure-port=%d" % API_PORT,
            "--tls-cert-file=" + certificate,
            "--tls-private-key-file=" + certificate,
            "--token-auth-file=" + tokens,
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=" + key,
            "--service-account-signing-key-file=" + key,
            "--service-cluster-ip-range=10.96.0.0/16",
            # Pods get tokens as in current versions: each is bound to its pod, and expires.
            "--feature-gates=BoundServiceAccountTokenVolume=true",
        )
        wait_for("the API server is ready", 600, self.ready)
        common = [
            "--kubeconfig=" + config,
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--cert-dir=" + self.folder,
        ]
        self.start(
            "kube-controller-manager",
            *common,
            "--service-account-private-key-file=" + key,
            "--root-ca-file=" + authority,
            # The controllers may need 40 s to notice that a killed API server is back. With the
            # default of 40 s they could then take every node for lost.
            "--node-monitor-grace-period=2m",
        )
        self.start("kube-scheduler", *common)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def certify(self, address):
        """Makes an authority, and a certificate of the API server for the addresses under which
        pods may reach it. Returns the path of the authority, and that of the certificate with its
        key."""
        authority, certificate = (os.path.join(self.folder, n) for n in ("ca.pem", "api.pem"))
        names = "IP:%s,IP:127.0.0.1,DNS:kubernetes.default.svc,DNS:kubernetes.default" % address
        extensions = self.write(
            "api.ext",
            "basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n"
            "subjectAltName=%s\n" % names,
        )
        request = os.path.join(self.folder, "api.csr")
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        for words in (
            ["req", "-x509", *new_key, "-subj", "/CN=proof", "-days", "2"]
            + ["-keyout", authority + ".key", "-out", authority],
            ["req", "-new", *new_key, "-subj", "/CN=kube-apiserver"]
            + ["-keyout", certificate + ".key", "-out", request],
            ["x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority + ".key"]
            + ["-set_serial", "2", "-days", "2", "-extfile", extensions, "-out", certificate],
        ):
            subprocess.run(["openssl", *words], check=True, capture_output=True)
        with open(certificate + ".key") as key, open(certificate, "a") as both:
            both.write(key.read())
        return authority, certificate

    def start(self, name, *flags):
        self.flags[name] = flags
        with open(os.path.join(self.work, "logs", name + ".log"), "a") as log:
            self.running[name] = subprocess.Popen(
                [os.path.join(self.programs, name), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, name):
        """Kills a program, as a crash would. `start_again` starts it."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def start_again(self, name):
        """Starts a killed program with the flags that it had."""
        self.start(name, *self.flags[name])

    def check(self):
        """Raises SystemExit if a program has ended. A Failure would be caught by wait_for, which
        would try again."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise SystemExit(
                    "kubernetes-proof: %s ended with %d (logs/%s.log)"
                    % (name, process.returncode, name)
                )

    def ready(self):
        self.check()
        return self.api.get("/readyz") == "ok"


def data_of(secret):
    """Returns the files of a Secret, or of a ConfigMap, as {name: bytes}."""
    if secret["kind"] == "Secret":
        return {k: base64.b64decode(v) for k, v in secret.get("data", {}).items()}
    return {k: v.encode() for k, v in secret.get("data", {}).items()}
