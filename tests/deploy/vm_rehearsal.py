"""Machines that follow cloud-init files. Each machine is a network namespace with a root folder, in
which the host's programs and libraries are mounted. A bridge connects the machines.

The test writes the files and runs evergrad-boot, as cloud-init would do. `apt-get`, `systemctl`,
`mount` and `aws` are imitations that record their calls. In each machine one HTTP server imitates
the cloud's store and its metadata service. useradd, chown, hostname, sed and curl are the real
programs, and the daemons run as the user that the script makes.
"""
import os
import re
import shutil
import stat
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration")]
import support  # noqa: E402
import vm_files  # noqa: E402
from machines import Machine, can, skip_without_namespaces  # noqa: E402
from support import Case, data_folder, job_yaml, read, write  # noqa: E402

UID = "65532"
# A shell script that runs in the mount namespace of a machine. The machine's disk is an empty tmpfs
# at $1.
MAKE_ROOT = """set -e
root=$1/root
mkdir -p "$root"/{usr,etc,proc,dev,tmp,run,var/lib,var/cache,srv,stub,store,shared,opt/bin}
for link in bin lib lib64 sbin; do ln -s usr/$link "$root/$link"; done
mount --rbind /usr "$root/usr"
mount -t tmpfs none "$root/usr/local"
mkdir -p "$root/usr/local/sbin"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$2" "$root/opt/bin"
mount --bind "$3" "$root/store"
mount --bind "$4" "$root/shared"
chmod 1777 "$root/tmp"
for f in passwd group shadow gshadow login.defs nsswitch.conf ld.so.cache alternatives ssl; do
  [ ! -e "/etc/$f" ] || cp -a "/etc/$f" "$root/etc/$f"
done
sed -i '/^evergrad:/d' "$root"/etc/passwd "$root"/etc/group "$root"/etc/shadow "$root"/etc/gshadow
mkdir -p "$root/etc/systemd/system"
printf '127.0.0.1 localhost\\n10.80.0.1 evergrad-coordinator\\n' > "$root/etc/hosts"
"""
STUBS = {
    "apt-get": 'echo "apt-get $*" >> /calls\n',
    "systemctl": 'if [ "$1" = cat ]; then exec grep -qx "$2" /units; fi\necho "$*" >> /calls\n',
    "mount": 'echo "mount $*" >> /calls\n'
    '[ "$1" = /srv/evergrad ] && exec /usr/bin/mount --bind /shared /srv/evergrad\n',
    "aws": 'eval source=\\$$(( $# - 1 )) target=\\$$#\n'
    'case $source in s3://bucket/folder/*) ;; *) exit 9 ;; esac\n'
    'exec cp "/store/${source#s3://bucket/folder/}" "$target"\n',
}
# An HTTP server that imitates the identity services of Compute Engine and Azure, the buckets for
# which they give access, and EC2's notice.
SERVICE = '''
import http.server, os, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, h = self.path, self.headers
        if self.server.server_address[1] == 80:
            with open("/asked", "a") as asked:
                asked.write(path + "\\n")
        status, body = 404, b""
        if path.startswith("/computeMetadata/v1/instance/service-accounts/default/token"):
            if h.get("Metadata-Flavor") == "Google":
                status, body = 200, b'{"access_token":"google-1","expires_in":3599}'
        elif path.startswith("/metadata/identity/oauth2/token?api-version=2018-02-01&resource="):
            if h.get("Metadata") == "true":
                status, body = 200, b'{"client_id":"x","access_token":"azure-1"}'
        elif path == "/latest/api/token" and self.command == "PUT":
            status, body = 200, b"aws-1"
        elif path == "/latest/meta-data/spot/instance-action":
            if h.get("X-aws-ec2-metadata-token") != "aws-1":
                status = 401
            elif os.path.exists("/notice"):
                status, body = 200, b'{"action": "terminate", "time": "2026-11-26T21:00:00Z"}'
        else:
            token = h.get("Authorization")
            google = path.startswith("/bucket/folder/") and token == "Bearer google-1"
            azure = path.startswith("/folder/") and token == "Bearer azure-1"
            azure = azure and h.get("x-ms-version")
            file = "/store" + path.removeprefix("/bucket").removeprefix("/folder")
            status = 404 if google or azure else 403
            if status == 404 and os.path.exists(file):
                status, body = 200, open(file, "rb").read()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_PUT = do_GET
# The scripts are told this address, and the daemon uses that of the clouds. The file /asked has the
# requests of the daemon.
for address in ("127.0.0.1", 8080), ("169.254.169.254", 80):
    server = http.server.ThreadingHTTPServer(address, Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
print("serves", flush=True)
thread.join()
'''
STORES = {"gce": "bucket/folder", "ec2": "bucket/folder", "azure": "account/folder"}
SERVICE_URL = "http://127.0.0.1:8080"


class Booted:
    """A machine in its first boot."""

    def __init__(self, test, cloud, role, name, number):
        self.test, self.name, self.role = test, name, role
        disk = test.path(name)
        os.mkdir(disk)
        self.machine = Machine(test, name=name, disk=disk)
        subprocess.run(
            self.machine.prefix
            + ["bash", "-c", MAKE_ROOT, "bash", disk, support.BIN, test.store, test.shared],
            check=True,
        )
        for stub, script in STUBS.items():
            self.write("/stub/" + stub, "#!/bin/bash\n" + script, 0o755)
        self.write("/calls", "")
        self.write("/asked", "")
        self.write("/units", "".join(unit + "\n" for unit in test.units))
        self.write("/service.py", SERVICE)
        test.join(self.machine, number)
        self.run("ip", "address", "add", "169.254.169.254/32", "dev", "lo")
        service = test.start_in(self, name + " service", ["/usr/bin/python3", "/service.py"])
        service.wait_log("serves")

    def write(self, path, text, mode=0o644):
        inside = self.machine.path("root", path.lstrip("/"))
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        write(inside, text)
        os.chmod(inside, mode)

    def read(self, path):
        return read(self.machine.path("root", path.lstrip("/")))

    def prefix(self, as_daemon=False):
        """Returns the words that stand before a command to run it in this machine."""
        words = self.machine.prefix + ["chroot", self.machine.disk + "/root"]
        if as_daemon:
            words += ["setpriv", "--reuid", UID, "--regid", UID, "--clear-groups"]
        path = "PATH=/stub:/opt/bin:/usr/local/sbin:/usr/sbin:/usr/bin"
        return words + ["env", path, "METADATA_URL=" + SERVICE_URL, "STORE_URL=" + SERVICE_URL]

    def run(self, *command, expect=0):
        r = subprocess.run(
            self.prefix() + list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.said = r.stdout + r.stderr
        self.test.assertEqual(r.returncode, expect, "%s: %s" % (self.name, self.said))
        return r.stdout

    def cloud_init(self, text, expect):
        """Writes the files and runs the commands of a cloud-init file, as cloud-init would."""
        document = vm_files.yaml.safe_load(text)
        for entry in document["write_files"]:
            self.write(entry["path"], entry["content"], int(entry["permissions"], 8))
        for command in document["runcmd"]:
            self.run(*command, expect=expect)

    def calls(self):
        return self.read("/calls").splitlines()

    def units(self):
        return [re.sub(r"--now ", "", c) for c in self.calls() if re.match(r"enable ", c)]

    def start_daemon(self):
        """Does what the systemd unit would do: runs the ExecStartPre of the added unit file, and
        starts the daemon as its user."""
        service = {"coordinator": "evergrad-coordinator.service.d"}.get(
            self.role, {"server": "evergrad-ps-server@.service.d"}.get(self.role)
        )
        service = service or "evergrad-worker@.service.d"
        unit = self.read("/etc/systemd/system/%s/vm.conf" % service)
        self.run(re.search(r"(?m)^ExecStartPre=\+(\S+)$", unit).group(1))
        self.run("mkdir", "-p", "/var/lib/evergrad")
        self.run("chown", "evergrad:evergrad", "/var/lib/evergrad")
        config = {"server": "ps-server"}.get(self.role, self.role)
        program = vm_files.DAEMONS[config]
        self.daemon = self.test.start_in(
            self,
            self.name,
            ["/opt/bin/" + program, "--config", "/etc/evergrad/%s.yaml" % config],
            as_daemon=True,
        )

    def notice(self):
        """Makes the metadata service announce the end of the machine from now on."""
        self.write("/notice", "")


class Rehearsal(Case):
    # The units of the package that can have several instances.
    units = ("evergrad-ps-server@.service", "evergrad-worker@.service")

    def setUp(self):
        super().setUp()
        skip_without_namespaces("-m", "-u")
        if os.geteuid() != 0 or not can("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"):
            self.skipTest("machines with a root folder of their own need root")
        for tool in ("curl", "useradd", "setpriv"):
            if not shutil.which(tool):
                self.skipTest("no %s (deploy/scripts/setup.sh test installs it)" % tool)
        os.chmod(self.folder, 0o755)
        self.store, self.shared = self.path("store"), self.path("shared")
        os.makedirs(os.path.join(self.store, "tls"))
        os.mkdir(self.shared)
        self.first = None

    def make_store(self):
        """Makes the certificates with the commands of docs/deploy.md, and fills the store."""
        page = vm_files.page_blocks(vm_files.read("docs", "deploy.md"))
        made = [c for c in vm_files.commands(page) if c.startswith("psctl cert ")]
        self.assertEqual(len(made), 8)
        for command in made:
            self.psctl(*command.split()[1:])
        for name in os.listdir(self.path("certs")):
            if name != "ca.key":
                shutil.copy(self.path("certs", name), os.path.join(self.store, "tls"))
        write(os.path.join(self.store, "evergrad.deb"), "package\n")

    def join(self, machine, number):
        """Connects a machine to the bridge, which is in the namespace of the first machine."""
        if self.first is None:
            self.first = machine
            self.ip(machine, "link", "add", "bridge", "type", "bridge")
            machine.address("bridge", "10.80.0.%d/24" % number)
            return
        here, there = "port%d" % number, str(machine.holder.pid)
        self.ip(
            self.first, *("link add %s type veth peer name wire netns %s" % (here, there)).split()
        )
        self.ip(self.first, "link", "set", here, "master", "bridge")
        self.ip(self.first, "link", "set", here, "up")
        machine.address("wire", "10.80.0.%d/24" % number)

    def ip(self, machine, *arguments):
        subprocess.run(machine.prefix + ["ip"] + list(arguments), check=True)

    def start_in(self, booted, name, command, as_daemon=False):
        process = support.Process(self, name, command, self.folder, booted.prefix(as_daemon))
        return process

    def boot(self, cloud, role, name, number, fill_in=True, expect=0, bucket=()):
        """Makes a machine, which follows its cloud-init file. `bucket` has the values of a machine
        that has no shared folder."""
        booted = Booted(self, cloud, role, name, number)
        values = ["STORE=" + STORES[cloud], "SHARED=10.80.0.9:/export"] if fill_in else []
        if bucket:
            values = ["STORE=" + STORES[cloud], "SHARED=", *bucket]
        r = subprocess.run(
            [sys.executable, os.path.join(vm_files.VM, "render.py"), cloud, role] + values,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        booted.cloud_init(r.stdout, expect)
        if expect == 0:
            key = os.stat(booted.machine.path("root", "etc/evergrad/tls/tls.key"))
            self.assertEqual((stat.S_IMODE(key.st_mode), key.st_gid), (0o640, int(UID)))
            self.assertEqual(booted.read("/var/cache/evergrad/evergrad.deb"), "package\n")
            if not bucket:
                fstab = booted.read("/etc/fstab")
                self.assertRegex(
                    fstab, r"(?m)^10\.80\.0\.9:/export /srv/evergrad nfs nfsvers=\S+ 0 0$"
                )
        return booted

    def person(self):
        """Returns psctl's flags for the user alice. Puts her files on the coordinator's machine."""
        return "--coordinator evergrad-coordinator:4000 --tls-ca /alice/ca.pem".split() + (
            "--tls-cert /alice/alice.pem --tls-key /alice/alice.key".split()
        )

    def give_certificate(self, coordinator):
        """Puts the certificate of the user alice on the coordinator's machine."""
        for name in ("ca.pem", "alice.pem", "alice.key"):
            coordinator.write("/alice/" + name, read(self.path("certs", name)), 0o600)

    def train(self, coordinator):
        data = os.path.join(data_folder(), "fashion-mnist-12k")
        shutil.copytree(data, os.path.join(self.shared, "data", "fashion-mnist-12k"))
        self.give_certificate(coordinator)
        coordinator.write("/job.yaml", job_yaml())
        coordinator.run(
            "env",
            "EVERGRAD_DATA=/srv/evergrad/data",
            "/opt/bin/psctl",
            "job",
            "run",
            "/job.yaml",
            "--wait",
            "30s",
            *self.person()
        )
        run = self.run_folder(os.path.join(self.shared, "runs"))
        self.assertTrue(os.path.exists(os.path.join(run, "weights.npz")))
        coordinator.run("/opt/bin/psctl", "checkpoint", "list", "/srv/evergrad/runs")
        coordinator.run(
            "/opt/bin/psctl",
            "checkpoint",
            "verify",
            "/srv/evergrad/runs/" + os.path.basename(run),
        )

    def tasks(self, coordinator):
        import json

        said = coordinator.run("/opt/bin/psctl", "task", "list", "--output", "json", *self.person())
        return {
            "%s/%s" % (t["role"], t["identity"]): t.get("address") or t.get("metrics_address", "")
            for t in json.loads(said)["tasks"]
        }
