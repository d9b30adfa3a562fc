"""An object store for a cluster of the scenarios: moto's server of S3 or the fake of Google Cloud
Storage, behind the fault proxy (tests/stores)."""
import os
import sys

from cluster import Failure
from stage import Skipped

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "stores"))
import moto_server  # noqa: E402
import saved_files  # noqa: E402
from fake_gcs import FakeGcs  # noqa: E402
from fault_proxy import TRANSIENT, ProxyProcess  # noqa: E402,F401

BUCKET = "evergrad-chaos"
KINDS = ("s3", "gs")
KEYS = {moto_server.ACCESS_KEY: {"secret": moto_server.SECRET_KEY}}


def without_moto(kind):
    """Returns why there can be no store of this kind here, or ""."""
    return moto_server.NO_MOTO if kind == "s3" and not moto_server.has_moto() else ""


class ObjectStore:
    """A store in `folder`, and the proxy, which lets requests fail at `rate` and checks signatures.
    The store gives a cluster its flags (`flags`), its credentials (`variables`), and a folder for
    its checkpoints."""

    def __init__(self, kind, folder, seed, rate=0.0):
        if without_moto(kind):
            raise Skipped(without_moto(kind))
        self.kind, self.uri = kind, "%s://%s" % (kind, BUCKET)
        if kind == "s3":
            self.server = moto_server.MotoServer(folder, [BUCKET])
            self.variables = moto_server.key_environment()
        else:
            self.server = FakeGcs([BUCKET]).__enter__()
            self.token_file = os.path.join(folder, "gcs-token")
            self.write_token(self.server.tokens.issue())
            self.variables = {"EVERGRAD_GCS_TOKEN_FILE": self.token_file}
        self.proxy = ProxyProcess(self.server.address, seed)
        if kind == "s3":
            self.proxy.set_keys(keys=KEYS)
        self.proxy.set_faults(rate=rate)
        flag = "--s3-endpoint" if kind == "s3" else "--gcs-endpoint"
        self.flags = [flag, self.proxy.url]
        saved_files.register(self.uri, self.server)

    def write_token(self, token):
        """Writes the access token for GCS into the file that the daemons read."""
        with open(self.token_file + ".new", "w") as f:
            f.write(token)
        os.rename(self.token_file + ".new", self.token_file)

    def enter_environment(self):
        """Gives this process, and all processes that it starts from now on, the credentials of the
        store and no others."""
        mine = moto_server.environment(**self.variables)
        os.environ.clear()
        os.environ.update(mine)

    def folder_of(self, cluster):
        """Returns the URI of the folder for the checkpoints of this cluster."""
        return "%s/%s" % (self.uri, os.path.basename(cluster.folder))

    def faults(self):
        """Returns how many requests have failed because of the proxy, and how many there were."""
        counts = self.proxy.counts()
        refused = [what for what in counts if what.startswith("refused-")]
        if refused:
            raise Failure("the store has refused signatures: %s" % counts)
        failed = sum(1 for line in self.proxy.requests() if line[2])
        return failed, counts.get("requests", 0)

    def write_log(self, folder):
        """Writes the recent requests into a file, for a folder that is kept."""
        with open(os.path.join(folder, "requests.log"), "w") as f:
            for method, target, fault, status, at in self.proxy.requests():
                f.write("%s %s %s %d %s\n" % (at, method, target, status, fault or ""))

    def stop(self):
        self.proxy.stop()
        if self.kind == "s3":
            self.server.stop()
        else:
            self.server.__exit__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
