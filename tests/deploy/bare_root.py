"""Makes a bare Debian system in a folder, in seconds and without a network. The system consists of
the files of packages that are installed on this machine, and of a dpkg database with these packages
alone.

The system has what dpkg and a package's own scripts need, and the packages that a `Depends` field
names, with their dependencies. Nothing else of this machine is in it. A program that starts there
therefore needs no package that was not named.
"""
import os
import re
import subprocess
import unittest

# The packages that dpkg, the shell of maintainer scripts, and a test's own commands need.
BASE = "base-files base-passwd coreutils dash diffutils dpkg grep libc-bin passwd perl-base sed tar"
LINKS = ("bin", "sbin", "lib", "lib64")


def run(*command, **more):
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **more
    )


def installed():
    """Returns the packages of this machine, as {package: (fields of its status, names of the
    packages that it depends on)}."""
    found, provided = {}, {}
    with open("/var/lib/dpkg/status") as f:
        for stanza in f.read().split("\n\n"):
            fields = dict(re.findall(r"^(\S+): (.*)$", stanza, re.M))
            if fields.get("Status") != "install ok installed":
                continue
            name = fields["Package"]
            if name in found and fields["Architecture"] not in ("amd64", "all"):
                continue
            found[name] = (stanza, names(fields.get("Pre-Depends")) + names(fields.get("Depends")))
            for group in names(fields.get("Provides")):
                provided.setdefault(group[0], name)
    return found, provided


def names(field):
    """Returns the dependencies that a field names, each as the list of its alternatives."""
    groups = [group.split("|") for group in (field or "").split(",") if group.strip()]
    return [[re.match(r"\s*([a-z0-9+.-]+)", one)[1] for one in group] for group in groups]


def closure(wanted, without):
    """Returns the installed packages that satisfy these dependencies and, in turn, the dependencies
    of those packages."""
    found, provided = installed()
    todo, taken = list(wanted), []
    while todo:
        group = todo.pop()
        real = [provided.get(n, n) if n not in found else n for n in group]
        name = next((n for n in real if n in found), None)
        if name is None:
            raise unittest.SkipTest("no package on this machine satisfies " + " | ".join(group))
        if name not in taken and name != without:
            taken.append(name)
            todo += found[name][1]
    return taken, {name: found[name][0] for name in taken}


class BareRoot:
    def __init__(self, folder, depends, without=None):
        """Makes the system with the packages that the field `depends` asks for, except those in
        `without`."""
        self.folder = folder
        taken, stanzas = closure([[n] for n in BASE.split()] + names(depends), without)
        for link in LINKS:
            os.makedirs(os.path.join(folder, "usr", link))
            os.symlink("usr/" + link, os.path.join(folder, link))
        for name in ("proc", "dev", "tmp", "etc", "root", "srv", "run", "var/lib/dpkg/info"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        self._copy(taken)
        database = os.path.join(folder, "var", "lib", "dpkg")
        os.makedirs(os.path.join(database, "updates"), exist_ok=True)
        os.makedirs(os.path.join(database, "triggers"), exist_ok=True)
        with open(os.path.join(database, "status"), "w") as f:
            f.write("\n\n".join(stanzas[name].strip("\n") for name in taken) + "\n")
        for name in ("passwd", "group"):
            master = os.path.join(folder, "usr", "share", "base-passwd", name + ".master")
            with open(master) as f, open(os.path.join(folder, "etc", name), "w") as out:
                out.write(f.read())
        with open(os.path.join(folder, "etc", "hosts"), "w") as f:
            f.write("127.0.0.1 localhost\n")
        run("ldconfig", "-r", folder)

    def _copy(self, taken):
        listed = run("dpkg", "-L", *taken).stdout.splitlines()
        paths = sorted({p[1:] for p in listed if p.startswith("/") and self._wanted(p)})
        with subprocess.Popen(
            ["tar", "-C", "/", "--null", "-T", "-", "-cf", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as packing, subprocess.Popen(
            ["tar", "-C", self.folder, "--keep-directory-symlink", "-xf", "-"],
            stdin=packing.stdout,
        ) as unpacking:
            packing.stdin.write("\0".join(paths).encode() + b"\0")
            packing.stdin.close()
        if packing.returncode or unpacking.returncode:
            raise AssertionError("tar could not copy the files of the packages")
        info = "/var/lib/dpkg/info"
        for name in taken:
            for kind in ("list", "conffiles", "md5sums", "postrm", "triggers"):
                for file in (name, name + ":amd64"):
                    path = "%s/%s.%s" % (info, file, kind)
                    if os.path.exists(path):
                        run("cp", path, self.folder + info)

    @staticmethod
    def _wanted(path):
        if path.startswith(("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/etc/pam")):
            return False
        return not os.path.isdir(path) and os.path.lexists(path)

    def inside(self, *command, user=None, binds=None, env=None):
        """Runs a command in the system. /proc, /dev and `binds` are mounted in namespaces that end
        with the command."""
        script = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev"'
        for outside, inside in (binds or {}).items():
            os.makedirs(self.folder + inside, exist_ok=True)
            script += " && mount --bind -o ro '%s' \"$0%s\"" % (outside, inside)
        script += ' && exec chroot %s "$0" /usr/bin/env -i "$@"' % (
            "--userspec=" + user if user else ""
        )
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", **(env or {})}
        given["DEBIAN_FRONTEND"] = "noninteractive"
        words = ["%s=%s" % pair for pair in given.items()]
        apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c")
        return run(*apart, script, self.folder, *words, *command)
