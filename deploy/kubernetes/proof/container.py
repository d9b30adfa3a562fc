"""Becomes the first process of a container. The caller has put it into new mount and PID
namespaces, and into the network namespace of the pod (kubelet.py).

It builds a root folder on a tmpfs from the host's libraries, the programs of the build, the volumes
of the container and three files for name resolution. Then it gives up root as the pod's security
context requires, and executes the command. Its argument is the path of a JSON file (sandbox.py
writes it).
"""
import ctypes
import json
import os
import signal
import sys

RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
NO_NEW_PRIVS, DROP_FROM_BOUNDING_SET = 38, 24
DEVICES = ("null", "zero", "random", "urandom")

libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags, data=None):
    words = [w.encode() if w is not None else None for w in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), data.encode() if data else None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "cannot mount %s: %s" % (target, os.strerror(code)))


def touch(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "a").close()


def bind(source, target, read_only):
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        touch(target)
    mount(source, target, None, BIND | REC)
    if read_only:
        mount(None, target, None, BIND | REMOUNT | RDONLY | NOSUID | NODEV)


def make_root(root, spec):
    mount(None, "/", None, REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "mode=755,size=4m")
    for folder in ("usr/bin", "etc", "dev", "proc"):
        os.makedirs(os.path.join(root, folder))
    for link in ("bin", "lib", "lib64"):
        os.symlink("usr/" + link, os.path.join(root, link))
    for folder in ("/usr/lib", "/usr/lib64"):
        bind(folder, root + folder, True)
    for name, path in spec["programs"].items():
        bind(path, os.path.join(root, "usr/bin", name), True)
    for name in DEVICES:
        bind("/dev/" + name, os.path.join(root, "dev", name), False)
    mount("proc", os.path.join(root, "proc"), "proc", NOSUID | NODEV)
    for name, text in spec["etc"].items():
        with open(os.path.join(root, "etc", name), "w") as f:
            f.write(text)
    for target, (source, read_only) in sorted(spec["mounts"].items()):
        bind(source, root + target, read_only)
    if spec["read_only_root"]:
        mount(None, root, None, REMOUNT | RDONLY | NOSUID | NODEV)


def prctl(option, value):
    return libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def give_up_root(spec):
    if spec["drop_capabilities"]:
        with open("/proc/sys/kernel/cap_last_cap") as f:
            last = int(f.read())
        for capability in range(last + 1):
            if prctl(DROP_FROM_BOUNDING_SET, capability) != 0:
                raise OSError("cannot drop the capability %d" % capability)
    if spec["no_new_privileges"] and prctl(NO_NEW_PRIVS, 1) != 0:
        raise OSError("cannot set no_new_privs")
    os.setgroups(spec["groups"])
    os.setresgid(spec["gid"], spec["gid"], spec["gid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])


def main():
    with open(sys.argv[1]) as f:
        spec = json.load(f)
    make_root(spec["root"], spec)
    os.chroot(spec["root"])
    os.chdir("/")
    # Python ignores these signals, and an executed program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    give_up_root(spec)
    os.execve(spec["command"][0], spec["command"], spec["env"])


main()
