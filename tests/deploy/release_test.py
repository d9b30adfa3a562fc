#!/usr/bin/env python3
"""Tests the artefacts of a release (deploy/scripts/release.sh): their contents, training in
containers of the image, and the package in a bare chroot.

  release_test.py --bin DIR --artefacts DIR [Class[.test]]

The class `Making` makes the artefacts in the folder --artefacts, and the other classes read them
there. Some tests need root, a tool or a permission of the kernel. A test that lacks one of these is
skipped, and the reason is printed.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "integration"))
import support  # noqa: E402
from bare_root import BareRoot  # noqa: E402
from machines import Machine, skip_without_namespaces  # noqa: E402
from quickstart import (  # noqa: E402
    DETERMINISTIC,
    LOCAL,
    QUICKSTART,
    Trains,
    digest,
    quickstart_data,
)

ARTEFACTS = os.path.join(ROOT, "build", "release", "release-artefacts")
SCRIPTS = os.path.join(ROOT, "deploy", "scripts")
ROLES = ("coordinator", "ps-server", "worker")
# The daemons of the artefacts. The operator has no settings file and no unit, because it only makes
# sense in a pod of Kubernetes.
DAEMONS = ROLES + ("operator",)
ADDRESS = "10.213.78.1"


def run(*command, **more):
    more.setdefault("timeout", 300)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)


def release(*flags):
    return run("bash", os.path.join(SCRIPTS, "release.sh"), *flags, timeout=550)


def artefact(pattern):
    found = glob.glob(os.path.join(ARTEFACTS, pattern))
    if len(found) != 1:
        raise unittest.SkipTest(
            "no artefact %s in %s (run the class Making first)" % (pattern, ARTEFACTS)
        )
    return found[0]


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            raise unittest.SkipTest("%s is not installed (deploy/scripts/setup.sh test)" % tool)


class Making(support.Case):
    def test_the_artefacts_are_made_and_their_sums_are_right(self):
        need("umoci", "patchelf", "dpkg-shlibdeps")
        made = release("--bin", support.BIN, "--out", ARTEFACTS, "--cuda", "no", "--mixed")
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertRegex(made.stdout, r"unpacked, the image evergrad has \d+ MB")
        summed = run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=ARTEFACTS)
        self.assertEqual(summed.returncode, 0, summed.stdout + summed.stderr)
        named = set(re.findall(r"^(\S+): OK$", summed.stdout, re.M))
        present = {n for n in os.listdir(ARTEFACTS) if n[0] != "." and "_" in n}
        self.assertEqual(named, present)

    def test_what_cannot_be_made_is_refused_with_the_reason(self):
        need("umoci", "patchelf", "dpkg-shlibdeps")
        full = self.path("full")
        os.mkdir(full)
        support.write(os.path.join(full, "mine"), "")
        mixed = self.path("mixed")
        os.mkdir(mixed)
        for program in ["evergrad-" + name for name in DAEMONS] + ["psctl"]:
            file = support.write(
                os.path.join(mixed, program), "#!/bin/sh\necho %s 0.1.0+%s\n" % (program, program)
            )
            os.chmod(file, 0o755)
        for flags, code, words in (
            (("--loud",), 2, "unknown option --loud"),
            (("--cuda", "perhaps"), 2, "want auto, yes or no"),
            (("--bin", full), 1, "no evergrad-coordinator in"),
            (("--bin", support.BIN, "--mixed", "--out", full), 1, "is not replaced"),
            (("--bin", mixed), 1, "are of two builds"),
        ):
            ended = release("--out", self.path("out"), *flags)
            self.assertEqual(ended.returncode, code, ended.stderr)
            self.assertIn(words, ended.stderr)


class Contents(support.Case):
    def test_the_image_has_no_shell_and_says_what_it_is(self):
        need("umoci")
        layout, manifest = self.layout()
        blob = lambda d: os.path.join(layout, "blobs", *d["digest"].split(":"))  # noqa: E731
        with open(blob(manifest["config"])) as f:
            image = json.load(f)
        config = image["config"]
        self.assertEqual(config["User"], "65532:65532")
        self.assertEqual(
            set(config["Volumes"]), {"/var/lib/evergrad", "/data", "/checkpoints", "/runs"}
        )
        self.assertEqual(config["Cmd"], ["/usr/bin/psctl", "--help"])
        labels = config["Labels"]
        shown = run(support.binary("psctl"), "--version").stdout.split()[1]
        self.assertEqual(
            labels["org.opencontainers.image.version"]
            + "+"
            + labels["org.opencontainers.image.revision"],
            shown,
        )
        listed = {}
        for layer in manifest["layers"]:
            for line in run("tar", "-tvzf", blob(layer), "--numeric-owner").stdout.splitlines():
                mode, owner, size, _, _, name = line.split(None, 5)
                listed[name.lstrip("./").rstrip("/")] = (mode, owner, int(size))
        programs = {n for n in listed if n.startswith("usr/bin/")}
        self.assertEqual(
            programs, {"usr/bin/evergrad-" + name for name in DAEMONS} | {"usr/bin/psctl"}
        )
        self.assertEqual({n for n in listed if n.startswith(("bin", "sbin", "usr/sbin"))}, set())
        for folder in ("var/lib/evergrad", "data", "checkpoints", "runs"):
            self.assertEqual(listed[folder][1], "65532/65532", folder)
        self.assertEqual(listed["usr/bin/psctl"][:2], ("-rwxr-xr-x", "0/0"))
        self.assertEqual([n for n, (mode, _, _) in listed.items() if "s" in mode[1:].lower()], [])
        self.assertLess(sum(size for _, _, size in listed.values()), 120000000)

    def layout(self):
        folder = self.path("layout")
        os.mkdir(folder)
        subprocess.run(["tar", "-C", folder, "-xf", artefact("evergrad_*.oci.tar")], check=True)
        with open(os.path.join(folder, "index.json")) as f:
            index = json.load(f)
        (manifest,) = index["manifests"]
        with open(os.path.join(folder, "blobs", *manifest["digest"].split(":"))) as f:
            return folder, json.load(f)

    def test_the_list_of_contents_is_spdx_and_names_every_file(self):
        path = artefact("evergrad_*.spdx.json")
        with open(path) as f:
            listed = json.load(f)
        tree = os.path.join(ARTEFACTS, "files", "evergrad")
        present = {
            "./" + os.path.relpath(os.path.join(folder, name), tree)
            for folder, _, names in os.walk(tree)
            for name in names
        }
        self.assertEqual({f["fileName"] for f in listed["files"]}, present)
        packages = {p["name"] for p in listed["packages"]}
        self.assertLessEqual({"evergrad", "libc6", "libdnnl2", "libgrpc29"}, packages)
        owned = {
            r["spdxElementId"]
            for r in listed["relationships"]
            if r["relationshipType"] == "GENERATED_FROM"
        }
        for file in listed["files"]:
            if file["fileName"].startswith("./usr/lib/"):
                self.assertIn(file["SPDXID"], owned, file["fileName"] + " has no package")
        checker = os.path.join(ROOT, "build", "venv", "bin", "pyspdxtools")
        if not os.path.exists(checker):
            self.skipTest("no spdx-tools in build/venv (deploy/scripts/venv.sh)")
        checked = run(checker, "--infile", path)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        del listed["packages"][0]["downloadLocation"]
        broken = support.write(self.path("broken.spdx.json"), json.dumps(listed))
        self.assertNotEqual(run(checker, "--infile", broken).returncode, 0)


class Container:
    """The unpacked files of the image, and the settings of a container that runs it."""

    def __init__(self, test, network):
        self.test, self.network = test, network
        layout = test.path("layout")
        os.mkdir(layout)
        subprocess.run(["tar", "-C", layout, "-xf", artefact("evergrad_*.oci.tar")], check=True)
        with open(os.path.join(layout, "index.json")) as f:
            (manifest,) = json.load(f)["manifests"]
        tag = manifest["annotations"]["org.opencontainers.image.ref.name"]
        unpacked = run(
            "umoci", "unpack", "--image", layout + ":" + tag, test.path("unpacked")
        )  # fmt: skip
        test.assertEqual(unpacked.returncode, 0, unpacked.stderr)
        with open(test.path("unpacked", "config.json")) as f:
            self.settings = json.load(f)
        with open(os.path.join(ROOT, "deploy", "image", "seccomp.json")) as f:
            self.seccomp = json.load(f)

    def command(self, name, arguments, binds, rootfs=None):
        """Returns the command that runs a container."""
        settings = json.loads(json.dumps(self.settings))
        process = settings["process"]
        process["args"], process["terminal"] = arguments, False
        process["noNewPrivileges"] = True
        process["capabilities"] = {
            kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")
        }
        process["env"] = process["env"] + ["EVERGRAD_DATA=/data"]
        settings["root"] = {"path": rootfs or self.test.path("unpacked", "rootfs")}
        settings["root"]["readonly"] = True
        settings.pop("hostname", None)
        settings["mounts"] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=64k"],
            },
            {
                "destination": "/tmp",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", "mode=1777", "size=64m"],
            },
        ] + [
            {
                "destination": inside,
                "type": "bind",
                "source": outside,
                "options": ["bind", "nosuid", "nodev", "rw" if writable else "ro"],
            }
            for inside, (outside, writable) in binds.items()
        ]
        settings["linux"] = {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount", "uts")]
            + [{"type": "network", "path": self.network}],
            "seccomp": self.seccomp,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/sysrq-trigger"],
            "readonlyPaths": ["/proc/sys", "/proc/bus", "/proc/fs", "/proc/irq"],
        }
        bundle = self.test.path("bundle " + name)
        os.mkdir(bundle)
        support.write(os.path.join(bundle, "config.json"), json.dumps(settings))
        identity = "evergrad-%d-%s" % (os.getpid(), name)
        return ["runc", "--root", self.test.path("runc"), "run", "--bundle", bundle, identity]


class Image(Trains):
    def setUp(self):
        super().setUp()
        need("runc", "umoci")
        if os.geteuid() != 0:
            self.skipTest("containers with the user 65532 need root")
        skip_without_namespaces("-m", "-p", "-f")
        self.data = quickstart_data(self.path("data"))
        os.chmod(self.folder, 0o755)
        self.machine = Machine(self)
        self.machine.address("lo", ADDRESS + "/32")
        self.container = Container(self, "/proc/%d/ns/net" % self.machine.holder.pid)
        self.skip_without_runc()

    def skip_without_runc(self):
        """Skips the test if runc does not work on this machine. This is tried with a container that
        has only the program `true` of this host."""
        rootfs = self.path("true")
        for path in re.findall(r"(/\S+)", run("ldd", "/usr/bin/true").stdout):
            if os.path.exists(path):
                os.makedirs(rootfs + os.path.dirname(path), exist_ok=True)
                shutil.copy(path, rootfs + path)
        for name in ("proc", "dev", "tmp"):
            os.makedirs(os.path.join(rootfs, name))
        shutil.copy("/usr/bin/true", rootfs)
        tried = run(*self.container.command("true", ["/true"], {}, rootfs))
        if tried.returncode != 0:
            self.skipTest("runc cannot run a container here: " + tried.stderr.strip())

    def shared(self, name):
        os.mkdir(self.path(name))
        os.chown(self.path(name), 65532, 65532)
        return self.path(name)

    def certificate(self, name, *more):
        self.psctl("cert", "issue", name, "--folder", "certs", *more)
        folder = self.shared("tls " + name)
        for source, target in (
            ("ca.pem", "ca.crt"),
            (name + ".pem", "tls.crt"),
            (name + ".key", "tls.key"),
        ):
            copied = shutil.copy(self.path("certs", source), os.path.join(folder, target))
            os.chown(copied, 65532, 65532)
        return {"/etc/evergrad/tls": (folder, False)}

    def test_every_role_runs_from_the_image_and_trains_the_quickstart_to_the_same_weights(self):
        self.psctl("cert", "init", "--folder", "certs")
        runs, checkpoints = self.shared("runs"), self.shared("checkpoints")
        files = {"/runs": (runs, True), "/checkpoints": (checkpoints, True)}
        to = ["--coordinator", ADDRESS + ":4000"]
        host = ("--host", ADDRESS)

        def daemon(role, name, port, binds, *arguments):
            command = ["/usr/bin/evergrad-" + role, "--config", "/etc/evergrad/%s.yaml" % role]
            command += ["--advertise", "%s:%d" % (ADDRESS, port), *arguments]
            words = self.container.command(
                name, command, {**binds, **self.certificate(name, *host)}
            )
            return support.Process(self, name, words, self.folder)

        state = {"/var/lib/evergrad": (self.shared("state"), True)}
        started = [daemon("coordinator", "coordinator", 4000, {**files, **state})]
        for index in (0, 1):
            ports = ["--listen", "0.0.0.0:%d" % (4010 + index)]
            ports += ["--metrics-listen", "0.0.0.0:%d" % (9410 + index), "--index", str(index)]
            name = "ps-server-%d" % index
            started.append(daemon("ps-server", name, 4010 + index, files, *to, *ports))
        data = {"/data": (self.data, False)}
        worker = ["--name", "0", "--threads", "1", "--device", "cpu"]
        started.append(daemon("worker", "worker-0", 4020, data, *to, *worker))

        shutil.copy(QUICKSTART, os.path.join(runs, "job.yaml"))
        person = ["--tls-ca", "/etc/evergrad/tls/ca.crt", "--tls-cert"]
        person += ["/etc/evergrad/tls/tls.crt", "--tls-key", "/etc/evergrad/tls/tls.key"]
        submit = ["/usr/bin/psctl", "job", "run", "/runs/job.yaml", "--runs", "/runs"]
        submit += [*DETERMINISTIC, *to, *person, "--wait", "60s", "--output", "json"]
        binds = {"/runs": (runs, True), **self.certificate("person")}
        done = run(*self.container.command("psctl", submit, binds), cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout)["state"], "SUCCEEDED")
        self.assertEqual(digest(runs), self.ordinary(self.data))
        for process in reversed(started):
            self.assertEqual(process.end(), 0, process.name + "\n" + process.log())
            first = process.log().splitlines()[0]
            self.assertIn("level", json.loads(first), "the log of %s is JSON" % process.name)

    def test_a_daemon_without_certificates_does_not_start(self):
        words = ["/usr/bin/evergrad-coordinator", "--config", "/etc/evergrad/coordinator.yaml"]
        ended = run(*self.container.command("closed", words, {}))
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("/etc/evergrad/tls/", ended.stdout + ended.stderr)

    def test_the_sandbox_refuses_what_it_should(self):
        binds = {"/checkpoints": (self.shared("checkpoints"), True)}
        words = ["/usr/bin/psctl", "cert", "init", "--folder"]
        ended = run(*self.container.command("read-only", words + ["/etc/evergrad/x"], binds))
        self.assertNotEqual(ended.returncode, 0)
        self.assertRegex(ended.stdout + ended.stderr, "(?i)read-only file system")
        ended = run(*self.container.command("writes", words + ["/checkpoints/x"], binds))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(os.stat(self.path("checkpoints", "x", "ca.key")).st_uid, 65532)
        ended = run(*self.container.command("shell", ["/bin/sh", "-c", "true"], binds))
        self.assertIn("no such file or directory", (ended.stdout + ended.stderr).lower())


class Package(Trains):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("a chroot needs root")
        skip_without_namespaces("-m", "-p", "-f")
        self.deb = artefact("evergrad_*.deb")

    def test_it_installs_in_a_bare_chroot_and_trains_the_quickstart_to_the_same_weights(self):
        data = quickstart_data(self.path("data"))
        depends = run("dpkg-deb", "-f", self.deb, "Depends").stdout
        root = BareRoot(self.path("root"), depends)
        shutil.copy(self.deb, self.path("root", "evergrad.deb"))
        installed = root.inside("dpkg", "--install", "/evergrad.deb")
        self.assertEqual(installed.returncode, 0, installed.stdout + installed.stderr)
        self.assertEqual(
            root.inside("stat", "-c", "%a %U %G", "/etc/evergrad/tls").stdout.strip(),
            "750 root evergrad",
        )
        conffiles = root.inside("dpkg-query", "-W", "-f", "${Conffiles}", "evergrad").stdout
        for role in ROLES:
            self.assertIn("/etc/evergrad/%s.yaml" % role, conffiles)
        self.assertNotIn("operator", conffiles)
        for name in DAEMONS:
            self.assertEqual(root.inside("evergrad-" + name, "--version").returncode, 0, name)
        job = "/usr/share/doc/evergrad/examples/quickstart.yaml"
        runs = os.path.join(root.folder, "srv", "runs")
        os.makedirs(runs)
        os.chmod(runs, 0o777)
        trained = root.inside(
            *["psctl", "job", "run", job, *LOCAL, "--runs", "/srv/runs"],
            user="evergrad",
            binds={data: "/srv/data"},
            env={"EVERGRAD_DATA": "/srv/data"},
        )
        self.assertEqual(trained.returncode, 0, trained.stdout + trained.stderr)
        self.assertEqual(digest(runs), self.ordinary(data))

        # The settings of an operator must survive a removal and a second installation.
        settings = os.path.join(root.folder, "etc", "evergrad", "worker.yaml")
        with open(settings, "a") as f:
            f.write("threads: 1\n")
        for command in (("--remove", "evergrad"), ("--install", "/evergrad.deb")):
            ended = root.inside("dpkg", *command)
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("threads: 1", support.read(settings))
        ended = root.inside("dpkg", "--purge", "evergrad")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertFalse(os.path.exists(os.path.join(root.folder, "etc", "evergrad")))

    def test_a_missing_dependency_is_refused(self):
        depends = run("dpkg-deb", "-f", self.deb, "Depends").stdout
        root = BareRoot(self.path("root"), depends, without="libdnnl2")
        shutil.copy(self.deb, self.path("root", "evergrad.deb"))
        ended = root.inside("dpkg", "--install", "/evergrad.deb")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("evergrad depends on libdnnl2", ended.stderr)

    def test_the_man_pages_have_every_flag_and_no_error(self):
        tree = self.path("tree")
        subprocess.run(["dpkg-deb", "-x", self.deb, tree], check=True)
        for page, program in [("man1/psctl.1", "psctl")] + [
            ("man8/evergrad-%s.8" % name, "evergrad-" + name) for name in DAEMONS
        ]:
            path = os.path.join(tree, "usr", "share", "man", page + ".gz")
            text = run("gzip", "-dc", path).stdout
            for flag in re.findall(
                r"^  (--\S+)", run(support.binary(program), "--help").stdout, re.M
            ):
                self.assertIn(flag.replace("-", "\\-"), text, program)
            if shutil.which("groff"):
                checked = run("groff", "-man", "-ww", "-z", "-Kutf8", "-Tutf8", input=None, *[
                    support.write(self.path("page"), text)
                ])  # fmt: skip
                self.assertEqual((checked.returncode, checked.stderr), (0, ""), program)


class Units(support.Case):
    FOLDER = os.path.join(ROOT, "deploy", "debian", "units")
    NAMES = (
        "evergrad-coordinator.service",
        "evergrad-ps-server@.service",
        "evergrad-worker@.service",
    )

    def test_the_units_are_those_of_the_roles(self):
        self.assertEqual(sorted(os.listdir(self.FOLDER)), sorted(self.NAMES))

    def unit(self, name):
        return support.read(os.path.join(self.FOLDER, name))

    def test_codes_that_no_restart_can_cure_end_the_restarts(self):
        header = support.read(os.path.join(ROOT, "common", "daemon", "exit_codes.h"))
        codes = {n: c for n, c in re.findall(r"kExit(\w+) = (\d+)", header)}
        for name, wanted in zip(
            self.NAMES,
            (
                ("Usage", "Journal"),
                ("Usage", "Refused", "IdentityTaken"),
                ("Usage", "Replaced", "Refused"),
            ),
        ):
            text = self.unit(name)
            prevented = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.M)[1].split()
            self.assertEqual(prevented, [codes[w] for w in wanted], name)
            self.assertRegex(text, r"(?m)^Restart=always$")
            self.assertRegex(text, r"(?m)^StateDirectory=evergrad$")

    def test_systemd_waits_longer_than_a_server_drains(self):
        shown = run(support.binary("evergrad-ps-server"), "--help").stdout
        drain = int(re.search(r"--drain-max TIME.*\(default (\d+)s\)", shown)[1])
        waits = int(re.search(r"^TimeoutStopSec=(\d+)s$", self.unit(self.NAMES[1]), re.M)[1])
        self.assertGreater(waits, drain + 5)

    def test_the_tasks_that_write_checkpoints_get_the_keys_of_a_store_from_an_optional_file(self):
        for name in self.NAMES:
            lines = self.unit(name).splitlines()
            wanted = [] if "worker" in name else ["EnvironmentFile=-/etc/evergrad/credentials.env"]
            self.assertEqual([w for w in lines if w.startswith("EnvironmentFile")], wanted, name)

    def test_no_unit_keeps_a_task_from_an_object_store(self):
        for name in self.NAMES:
            text = self.unit(name)
            families = re.search(r"^RestrictAddressFamilies=(.*)$", text, re.M)[1].split()
            # NETLINK is for the C library, which looks up the addresses of the store.
            self.assertLessEqual({"AF_INET", "AF_INET6", "AF_NETLINK"}, set(families), name)
            self.assertNotRegex(text, r"(?m)^(IPAddressDeny|PrivateNetwork|InaccessiblePaths)=")
            # ~/.aws and ~/.config/gcloud are in the state folder, which ProtectHome leaves open.
            self.assertRegex(text, r"(?m)^StateDirectory=evergrad$")

    def test_systemd_accepts_the_units_and_rates_their_exposure(self):
        need("systemd-analyze")
        # systemd-analyze requires that the program of a unit exists. The test therefore reads
        # copies of the units that start a program of this host.
        for name in self.NAMES:
            text = re.sub("/usr/bin/evergrad-[a-z-]+", "/usr/bin/true", self.unit(name))
            path = support.write(self.path(name), text)
            checked = run("systemd-analyze", "verify", "--man=no", path)
            self.assertEqual((checked.returncode, checked.stderr), (0, ""), name)
            rated = run("systemd-analyze", "security", "--offline=true", "--threshold=25", path)
            self.assertEqual(rated.returncode, 0, rated.stdout[-300:] + rated.stderr)
        wrong = text.replace("Restart=always", "Restart=ever").replace("User=evergrad", "User=root")
        wrong = re.sub(r"(?m)^(Protect|Restrict|SystemCall|Capability).*\n", "", wrong)
        path = support.write(self.path(name), wrong)
        checked = run("systemd-analyze", "verify", "--man=no", path)
        self.assertIn("Failed to parse service restart specifier", checked.stderr)
        rated = run("systemd-analyze", "security", "--offline=true", "--threshold=25", path)
        self.assertNotEqual(rated.returncode, 0)


def main():
    global ARTEFACTS
    if "--artefacts" in sys.argv:
        at = sys.argv.index("--artefacts")
        ARTEFACTS = os.path.abspath(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    support.main()


if __name__ == "__main__":
    main()
