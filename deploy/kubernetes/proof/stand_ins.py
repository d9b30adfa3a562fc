"""Stand-ins for two programs of a cluster that need nothing but the API of Kubernetes: the
cluster's DNS server, and cert-manager."""
import base64
import os
import socket
import struct
import subprocess
import threading
import time

from control_plane import Failure

DOMAIN = "cluster.local"
# CoreDNS keeps an answer for up to 30 s, with the settings of kubeadm and of the clouds.
CACHE_SECONDS = 30
TYPE_A, NOERROR, NXDOMAIN = 1, 0, 3


class Dns(threading.Thread):
    """A DNS server. It answers with the addresses in the Endpoints of headless services, which the
    real controller updates. It caches answers as long as CoreDNS does, also the answer that a name
    does not exist."""

    def __init__(self, api, address):
        super().__init__(name="dns", daemon=True)
        self.api, self.cache = api, {}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))

    def run(self):
        while True:
            message, client = self.socket.recvfrom(4096)
            try:
                self.socket.sendto(self.answer(message), client)
            except (Failure, OSError, IndexError, struct.error, UnicodeDecodeError):
                continue  # The client asks again.

    def answer(self, message):
        labels, at = [], 12
        while message[at]:
            labels.append(message[at + 1 : at + 1 + message[at]].decode().lower())
            at += 1 + message[at]
        (kind,) = struct.unpack("!H", message[at + 1 : at + 3])
        found = self.cached(".".join(labels))
        addresses = (found or []) if kind == TYPE_A else []
        header = struct.pack(
            "!HHHHHH",
            struct.unpack("!H", message[:2])[0],
            0x8580 | (NXDOMAIN if found is None else NOERROR),
            1,
            len(addresses),
            0,
            0,
        )
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", TYPE_A, 1, CACHE_SECONDS, 4) + socket.inet_aton(a)
            for a in addresses
        )
        return header + message[12 : at + 5] + records

    def cached(self, name):
        now = time.monotonic()
        if name not in self.cache or now - self.cache[name][0] > CACHE_SECONDS:
            self.cache[name] = (now, self.look_up(name))
        return self.cache[name][1]

    def look_up(self, name):
        """Returns the addresses of a name, or None if the name does not exist."""
        end = ".svc." + DOMAIN
        words = name[: -len(end)].split(".") if name.endswith(end) else []
        if len(words) not in (2, 3):
            return None
        service, namespace = words[-2:]
        found = self.api.find("/api/v1/namespaces/%s/endpoints/%s" % (namespace, service))
        if found is None:
            return None
        addresses = [a for s in found.get("subsets") or [] for a in s.get("addresses") or []]
        if len(words) == 3:
            addresses = [a for a in addresses if a.get("hostname") == words[0]]
        return sorted(a["ip"] for a in addresses) or None


class CertManager:
    """Makes the Secret of every Certificate with psctl."""

    def __init__(self, api, psctl, folder):
        self.api, self.psctl, self.folder = api, psctl, folder
        os.makedirs(folder)

    def make(self, certificates):
        """Makes the Secrets and returns their names. The Secret of the certificate authority comes
        first."""
        made = []
        for c in sorted(certificates, key=lambda c: not c["spec"].get("isCA")):
            files = self.issue(c["spec"])
            self.api.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "type": "kubernetes.io/tls",
                    "metadata": {
                        "name": c["spec"]["secretName"],
                        "namespace": c["metadata"]["namespace"],
                    },
                    "data": {k: base64.b64encode(v).decode() for k, v in files.items()},
                }
            )
            made.append(c["spec"]["secretName"])
        return made

    def issue(self, spec):
        """Returns the files of a Certificate's Secret."""
        authority = os.path.join(self.folder, "authority")
        if spec.get("isCA"):
            self.run_psctl("init", "--folder", authority, "--if-absent")
            names = {"ca.crt": "ca.pem", "tls.crt": "ca.pem", "tls.key": "ca.key"}
            return {k: self.read(authority, v) for k, v in names.items()}
        (uri,) = spec["uris"]
        to = os.path.join(self.folder, spec["secretName"])
        flags = ["--folder", authority, "--to", to, "--task", uri.removeprefix("evergrad://")]
        for host in spec.get("dnsNames", []) + spec.get("ipAddresses", []):
            flags += ["--host", host]
        self.run_psctl("issue", spec["secretName"], *flags)
        return {name: self.read(to, name) for name in ("ca.crt", "tls.crt", "tls.key")}

    def run_psctl(self, *words):
        r = subprocess.run(
            [self.psctl, "cert", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if r.returncode != 0:
            raise Failure("psctl cert %s: %s" % (words[0], r.stderr))

    def read(self, *path):
        with open(os.path.join(*path), "rb") as f:
            return f.read()
