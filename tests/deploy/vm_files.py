"""Checks of deployment files. Each check takes a text and returns a list of findings. A test can
therefore give it a copy with a mistake."""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
VM = os.path.join(ROOT, "deploy", "vm")
CLOUD_INIT = os.path.join(ROOT, "build", "tools", "cloud-init", "run")
CLOUDS = ("gce", "ec2", "azure")
ROLES = ("coordinator", "server", "worker")
DAEMONS = {
    "coordinator": "evergrad-coordinator",
    "ps-server": "evergrad-ps-server",
    "worker": "evergrad-worker",
}
USER_DATA_BYTES_MAX = 16 * 1024  # EC2's limit, the smallest one of the three clouds


def read(*path):
    with open(os.path.join(ROOT, *path)) as f:
        return f.read()


def vm_files():
    """Returns [(name, text)] of all cloud-init files."""
    return [
        ("%s-%s.yaml" % (cloud, role), read("deploy", "vm", "%s-%s.yaml" % (cloud, role)))
        for cloud in CLOUDS
        for role in ROLES
    ]


def written_files(text):
    """Returns {path: contents} of a cloud-init file."""
    return {f["path"]: f["content"] for f in yaml.safe_load(text)["write_files"]}


def programs():
    """Returns the flags of each program, as docs/cli.md lists them: {"evergrad-worker": {"--name",
    …}, "psctl job run": {…}}. Another test compares that page with --help."""
    found = {}
    for name, body in re.findall(
        r"(?ms)^### (\S[^\n]*)\n\n```\n(.*?)^```$", read("docs", "cli.md")
    ):
        flags = set(re.findall(r"(?m)^  (?:-\w, )?(--[a-z][a-z0-9-]*)", body))
        if flags:
            found[name] = flags
    return found


def notices(text):
    """Checks that a worker watches for the notices of its own cloud, that no other machine watches
    for notices, and that systemd does not start a worker again after a drain."""
    found = []
    files = written_files(text)
    settings = yaml.safe_load(re.sub(r"@\w+@", "x", files["/etc/evergrad/settings.yaml"]))
    cloud = cloud_of(text)
    worker = "ROLE=worker " in files["/etc/evergrad/vm.env"]
    want = cloud if worker else None
    if settings.get("preemption_source") != want:
        found.append("the source of notices: want=%s" % want)
    if ("Restart=on-failure\n" in files["/etc/evergrad/unit.conf"]) != worker:
        found.append("a worker that has left starts again, or another daemon does not")
    return found


def cloud_of(text):
    """Returns the cloud of a cloud-init file, as the flag --preemption-source names it."""
    name = re.search(r"(?m)^# Evergrad: a .* on (.*)\. Fill in", text).group(1)
    return {"Google Compute Engine": "gce", "Amazon EC2": "aws", "Azure": "azure"}[name]


def checkpoints(text):
    """Checks that the coordinator and the servers take the place of the checkpoints from the
    operator's value, and that only they get credentials for a store from the metadata service, on
    the two clouds whose store Evergrad can use."""
    files = written_files(text)
    values, cloud = files["/etc/evergrad/vm.env"], cloud_of(text)
    role = re.search(r"(?m)^ROLE=(\S+)", values).group(1)
    have = yaml.safe_load(re.sub("@ADDRESS@", "x", files["/etc/evergrad/settings.yaml"]))
    roots = {
        "coordinator": ["@CHECKPOINTS@"],
        "ps-server": ["@CHECKPOINTS@", "/srv/evergrad/runs"],
    }.get(role)
    uses_store = roots is not None and cloud != "azure"
    region = "@S3_REGION@" if roots and cloud == "aws" else None
    found = [
        "%s is %s, want %s" % (key, have.get(key), want)
        for key, want in (
            ("checkpoint_root", roots),
            ("store_metadata_credentials", True if uses_store else None),
            ("s3_region", region),
        )
        if have.get(key) != want
    ]
    if not re.search(r"(?m)^CHECKPOINTS=/srv/evergrad/checkpoints ", values):
        found.append("CHECKPOINTS is no value of the operator")
    if bool(re.search(r"(?m)^S3_REGION= ", values)) != bool(region):
        found.append("the value S3_REGION")
    return found


# A Python script that calls the function behind `cloud-init schema` for each file. One process
# checks all files, because cloud-init takes seconds to start.
SCHEMA = """
import json, sys
from cloudinit.config.schema import get_schema, validate_cloudconfig_file
schema, found = get_schema(), {}
for path in sys.argv[1:]:
    try:
        validate_cloudconfig_file(path, schema)
    except Exception as error:
        found[path] = str(error)
print(json.dumps(found))
"""


def schema(texts):
    """Checks texts, given as {name: text}, by the schema of cloud-init. Returns {name: finding}."""
    packages = os.path.join(os.path.dirname(CLOUD_INIT), "usr/lib/python3/dist-packages")
    with tempfile.TemporaryDirectory(prefix="evergrad vm-") as folder:
        for name, text in texts.items():
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        r = subprocess.run(
            [sys.executable, "-c", SCHEMA] + sorted(texts),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            cwd=folder,
            env=dict(os.environ, PYTHONPATH=packages),
        )
    if r.returncode != 0:
        raise AssertionError("cloud-init's schema cannot be used: %s" % r.stderr)
    return json.loads(r.stdout.splitlines()[-1])


def shape(text):
    """Checks what cloud-init's schema does not check: unknown keys, file modes, calls of absent
    files, and the size."""
    found = []
    document = yaml.safe_load(text)
    if not text.startswith("#cloud-config\n"):
        found.append("the first line is not #cloud-config")
    if set(document) != {"write_files", "runcmd"}:
        found.append("keys: %s" % sorted(document))
    if len(text) > USER_DATA_BYTES_MAX:
        found.append("size=%d max=%d" % (len(text), USER_DATA_BYTES_MAX))
    files = {f["path"]: f for f in document.get("write_files", [])}
    for path, entry in files.items():
        want = "0755" if entry["content"].startswith("#!") else "0644"
        if entry.get("permissions") != want:
            found.append("%s: permissions=%s want=%s" % (path, entry.get("permissions"), want))
    for command in document.get("runcmd", []):
        if command[0] not in files:
            found.append("runs a file that it does not write: %s" % command[0])
    for path, entry in files.items():
        for name in re.findall(
            r"(?m)(?:/usr/local/sbin/|^exec )(evergrad-[a-z]+)", entry["content"]
        ):
            if "/usr/local/sbin/" + name not in files:
                found.append("%s calls a file that is not written: %s" % (path, name))
    return found


def settings(text, known=None):
    """Checks that every key of the daemon's settings file is a flag of the daemon."""
    known = known or programs()
    files = written_files(text)
    role = re.search(r"(?m)^ROLE=(\S+)", files["/etc/evergrad/vm.env"]).group(1)
    return [
        "%s has no key %s" % (DAEMONS[role], key)
        for key in setting_keys(yaml.safe_load(files["/etc/evergrad/settings.yaml"]))
        if "--" + key.replace("_", "-") not in known[DAEMONS[role]]
    ]


def setting_keys(document):
    return [k for k in document if k != "tls"] + ["tls_" + k for k in document.get("tls", {})]


def shellcheck(text):
    r = subprocess.run(
        ["shellcheck", "--shell=bash", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return [] if r.returncode == 0 else [r.stdout + r.stderr]


def commands(text):
    """Returns the command lines of a script or of code blocks, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", text)
    return [line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]


def flags_of_commands(text, known=None):
    """Checks every call of psctl and of a daemon: the command must exist and have the flags."""
    known = known or programs()
    found = []
    for line in commands(text):
        match = re.search(
            r"(?<![\w./-])(psctl|evergrad-(?:coordinator|ps-server|worker))\s+(.+)", line
        )
        # A host or a unit may be named like a program.
        if not match or re.search(r"\bsystemctl\b|^(gcloud|aws|az)\b", line):
            continue
        program, rest = match.group(1), re.split(r"\s[|&;>]|\s+#", match.group(2))[0]
        if program == "psctl":
            verb = re.match(r"(logs|version|[a-z]+ [a-z]+)", rest)
            name = "psctl " + (verb.group(1) if verb else "")
        else:
            name = program
        if name not in known:
            # A word that is not a call may begin like one, such as the host name
            # evergrad-coordinator.
            if program == "psctl":
                found.append("no such verb: %s: %s" % (name, line))
            continue
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest):
            if flag not in known[name]:
                found.append("%s has no flag %s: %s" % (name, flag, line))
    return found


def page_blocks(text):
    return "\n".join(re.findall(r"(?ms)^ *```[a-z]*\n(.*?)^ *```$", text))


def page(text, known=None):
    """Checks the commands of docs/deploy.md. The commands of psctl, the daemons and render.py,
    files of the tree, units and metrics must exist."""
    known = known or programs()
    blocks = page_blocks(text)
    found = flags_of_commands(blocks, known)
    for line in commands(blocks):
        if line.startswith("deploy/vm/render.py"):
            r = subprocess.run(
                [sys.executable, os.path.join(ROOT, shlex.split(line.split(">")[0])[0])]
                + shlex.split(line.split(">")[0])[1:],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            if r.returncode != 0:
                found.append("refused: %s: %s" % (line, r.stderr.strip()))
    for path in re.findall(r"(?<![\w./-])(?:deploy|configs|tests)/[\w./-]+[\w]", text):
        if not os.path.exists(os.path.join(ROOT, path)):
            found.append("no such file: %s" % path)
    for unit in re.findall(r"systemctl \w+ (\S+)", blocks):
        if not re.fullmatch(r"evergrad-(coordinator|(ps-server|worker)@\S+)", unit):
            found.append("no such unit: %s" % unit)
    for flag in re.findall(r"`(--[a-z][a-z0-9-]*)", text):
        if not any(flag in flags for flags in known.values()):
            found.append("no program has the flag %s" % flag)
    metrics = set(re.findall(r"`(evergrad_\w+)`", read("docs", "cli.md")))
    for metric in re.findall(r"`(evergrad_\w+)`", text):
        if metric not in metrics:
            found.append("no such metric: %s" % metric)
    for anchor_path in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        target = os.path.normpath(os.path.join(ROOT, "docs", anchor_path))
        if not os.path.exists(target):
            found.append("a link leads nowhere: %s" % anchor_path)
    return found
