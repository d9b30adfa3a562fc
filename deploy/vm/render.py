#!/usr/bin/env python3
"""Writes the cloud-init files of this folder from the files in parts/.

  render.py                              writes gce-coordinator.yaml … azure-worker.yaml beside this
                                         script, with the operator's values left open
  render.py --check                      ends with 1 if a file is stale
  render.py gce worker STORE=bucket/evergrad SHARED=10.0.0.2:/evergrad
                                         prints one file with values filled in

README.md describes the values.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = os.path.join(HERE, "parts")
ROLES = {"coordinator": "coordinator", "server": "ps-server", "worker": "worker"}
OPEN = "FILL-IN"
# Where a worker watches for the notice that its machine will be reclaimed (--preemption-source).
SOURCES = {"gce": "gce", "ec2": "aws", "azure": "azure"}
# The texts of STORE, SHARED, WITHOUT_SHARED and CHECKPOINTS describe values that the operator
# fills in, and become comments in the file. SHARED_OPTIONS are the mount options of the shared
# folder, and PACKAGES are the Debian packages that the scripts of this cloud need. SETTINGS are
# settings of the coordinator and the servers for a bucket, with the identity of the machine. If
# CHECKPOINTS is a folder, no machine asks the metadata service for credentials.
CLOUDS = {
    "gce": {
        "STORE": "bucket/folder",
        "SHARED": "address:/share of a Filestore instance",
        "SHARED_OPTIONS": "nfsvers=3,hard,timeo=600",
        "WITHOUT_SHARED": "; empty: none",
        "CHECKPOINTS": ", or gs://bucket/folder (needed without SHARED)",
        "SETTINGS": "store_metadata_credentials: true\n",
        "PACKAGES": "",
    },
    "ec2": {
        "STORE": "bucket/folder",
        "SHARED": "fs-….efs.REGION.amazonaws.com:/ of an EFS file system",
        "SHARED_OPTIONS": "nfsvers=4.1,hard,timeo=600,retrans=2,noresvport",
        "WITHOUT_SHARED": "; empty: none",
        "CHECKPOINTS": ", or s3://bucket/folder (needed without SHARED)",
        "SETTINGS": 'store_metadata_credentials: true\ns3_region: "@S3_REGION@"\n',
        "PACKAGES": "awscli",
    },
    "azure": {
        "STORE": "account/container",
        "SHARED": "ACCOUNT.file.core.windows.net:/ACCOUNT/SHARE of an NFS share",
        "SHARED_OPTIONS": "nfsvers=4.1,hard,timeo=600,sec=sys",
        "WITHOUT_SHARED": "",
        "CHECKPOINTS": "",
        "SETTINGS": "",
        "PACKAGES": "",
    },
}


def part(name):
    with open(os.path.join(PARTS, name)) as f:
        return f.read()


def values(cloud, role, given):
    """Returns the lines of /etc/evergrad/vm.env."""
    known = CLOUDS[cloud]
    lines = [
        ("STORE", OPEN, known["STORE"] + ", with the package and the certificates"),
        ("SHARED", OPEN, known["SHARED"] + known["WITHOUT_SHARED"]),
        ("SHARED_OPTIONS", known["SHARED_OPTIONS"], "of mount(8)"),
        ("CHECKPOINTS", "/srv/evergrad/checkpoints", "a folder" + known["CHECKPOINTS"]),
        ("PACKAGE", "evergrad.deb", "an object of STORE, or an https:// address"),
        ("COORDINATOR", "evergrad-coordinator:4000", "name that its certificate has, and port"),
    ]
    if "@S3_REGION@" in known["SETTINGS"] and role != "worker":
        lines.append(("S3_REGION", "", "region of the bucket of CHECKPOINTS"))
    if role == "coordinator":
        lines.append(("STATE_DEVICE", "", "disk for the journal; empty: the boot disk"))
        lines.append(("INSTANCE", "", "stays empty"))
    elif role == "server":
        lines.append(("INSTANCE", "", "index; empty: the number at the end of the host name"))
    else:
        lines.append(("INSTANCE", "", "name; empty: the host name"))
    lines += [
        ("ROLE", ROLES[role], "stays as it is"),
        ("PACKAGES", known["PACKAGES"], "Debian packages that the scripts below need"),
    ]
    unknown = set(given) - {name for name, _, _ in lines}
    if unknown:
        raise SystemExit("render.py: unknown value: %s" % ", ".join(sorted(unknown)))
    for name, value in given.items():
        if not re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]*", value):
            raise SystemExit("render.py: a value with a character that is not allowed: %s" % name)
    return "".join(
        "%-45s # %s\n" % ("%s=%s" % (name, given.get(name, value)), comment)
        for name, value, comment in lines
    )


def file_entry(path, text, mode="0644"):
    body = "".join("      " + line + "\n" if line else "\n" for line in text.splitlines())
    return '  - path: %s\n    permissions: "%s"\n    content: |\n%s' % (path, mode, body)


def render(cloud, role, given=()):
    settings = part(ROLES[role] + ".yaml").replace("@SOURCE@", SOURCES[cloud])
    settings = settings.replace("@STORE_SETTINGS@\n", CLOUDS[cloud]["SETTINGS"])
    unit = part("unit.conf") + (part("spot-unit.conf") if role == "worker" else "")
    out = [
        "#cloud-config\n",
        "# Evergrad: a %s on %s. Fill in the first file below.\n"
        % (
            {"server": "parameter server", "worker": "spot worker"}.get(role, role),
            {"gce": "Google Compute Engine", "ec2": "Amazon EC2", "azure": "Azure"}[cloud],
        ),
        "# deploy/vm/render.py wrote this file from deploy/vm/parts.\n",
        "write_files:\n",
        file_entry("/etc/evergrad/vm.env", values(cloud, role, dict(given))),
        file_entry("/etc/evergrad/settings.yaml", settings),
        file_entry("/etc/evergrad/unit.conf", unit),
        file_entry("/usr/local/sbin/evergrad-settings", part("evergrad-settings"), "0755"),
        file_entry("/usr/local/sbin/evergrad-fetch", part("fetch-" + cloud), "0755"),
        file_entry("/usr/local/sbin/evergrad-boot", part("evergrad-boot"), "0755"),
        "runcmd:\n  - [/usr/local/sbin/evergrad-boot]\n",
    ]
    return "".join(out)


def main(arguments):
    if len(arguments) >= 2 and arguments[0] in CLOUDS and arguments[1] in ROLES:
        given = [a.partition("=") for a in arguments[2:]]
        if any(not equals for _, equals, _ in given):
            raise SystemExit(__doc__)
        sys.stdout.write(render(*arguments[:2], {name: value for name, _, value in given}))
        return 0
    if arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    stale = []
    for cloud in CLOUDS:
        for role in ROLES:
            path = os.path.join(HERE, "%s-%s.yaml" % (cloud, role))
            text = render(cloud, role)
            if arguments:
                if not os.path.exists(path) or open(path).read() != text:
                    stale.append(os.path.relpath(path))
            else:
                with open(path, "w") as f:
                    f.write(text)
    if stale:
        print("stale (deploy/vm/render.py writes them): " + " ".join(stale))
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
