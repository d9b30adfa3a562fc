#!/usr/bin/env python3
"""Tests the manifests of deploy/kubernetes as kustomize renders them. Every overlay must be valid
for three versions of Kubernetes and pass the checks of kubernetes_checks.py. The test also shows
that each check can fail.

  kubernetes_test.py [--bin FOLDER] [Tests …]
  kubernetes_test.py --write [--bin FOLDER]   updates the generated files of the components: the
      alert rules from deploy/prometheus and, with --bin, the definition of the kind TrainingJob
      from `evergrad-operator --print-crd`

kustomize and the Python packages come from deploy/scripts/tools.sh and venv.sh, which
`./evergrad test` calls. Without them the tests are skipped (exit code 77).
"""
import base64
import copy
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
SKIPPED = 77
KUSTOMIZE = os.path.join(ROOT, "build", "tools", "kustomize")
PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")


def skip(why):
    print("skipped: " + why)
    sys.exit(SKIPPED)


if not os.access(KUSTOMIZE, os.X_OK):
    skip("no kustomize (deploy/scripts/tools.sh puts it into build/tools)")
if not os.path.exists(os.path.join(ROOT, "build", "venv", "requirements.txt")):
    skip("no Python packages (deploy/scripts/venv.sh puts them into build/venv)")
if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(ROOT, "build", "venv")):
    os.execv(PYTHON, [PYTHON] + sys.argv)

import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

import kubernetes_checks as checks  # noqa: E402
from kubernetes_checks import Cluster, containers  # noqa: E402

# The package would read megabytes of schemas for each object. With a cache, it reads them once.
for _name in ("schema_contents", "all_versions"):
    _function = getattr(kubernetes_validate.utils, _name)
    setattr(kubernetes_validate.utils, _name, functools.lru_cache(maxsize=None)(_function))

FOLDER = os.path.join(ROOT, "deploy", "kubernetes")
VERSIONS = ("1.35", "1.36", "1.37")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PSCTL = OPERATOR = WORKER_PROGRAM = None
# name: (overlay, components added to it, folder of the job, arguments of its Cluster)
GKE = {"cloud": "gke", "store": "gs", "identity": "gke"}
EKS = {"cloud": "eks", "store": "s3", "identity": "irsa"}
AKS = {"cloud": "aks", "data_volume": True}
IN_GCS, IN_S3 = {"data_store": "gs"}, {"data_store": "s3"}
CLUSTERS = {
    "local": ("local", [], "first-local", {"data_volume": True}),
    "gke-spot": ("gke-spot", [], "first", GKE),
    "eks-spot": ("eks-spot", [], "first", EKS),
    "aks-spot": ("aks-spot", [], "first", AKS),
    "gke with the shared volume": (
        "gke-spot",
        ["shared-storage"],
        "first",
        {"cloud": "gke", "data_volume": True},
    ),
    "eks with Pod Identity": (
        "eks-spot",
        ["workload-identity/eks-pod-identity"],
        "first",
        EKS | {"identity": "pod-identity"},
    ),
    "aks with an S3-compatible store": (
        "aks-spot",
        ["object-store", "s3-credentials", "store-ca"],
        "first",
        AKS
        | {
            "store": "s3",
            "identity": "keys",
            "endpoint": "https://store.example.org",
            "own_ca": True,
        },
    ),
    "gke with data in a bucket": ("gke-spot", ["data-in-store"], "first", GKE | IN_GCS),
    "eks with data in a bucket": ("eks-spot", ["data-in-store"], "first", EKS | IN_S3),
    "eks with Pod Identity and data in a bucket": (
        "eks-spot",
        ["workload-identity/eks-pod-identity", "data-in-store"],
        "first",
        EKS | IN_S3 | {"identity": "pod-identity"},
    ),
    "gke with the shared volume and data in a bucket": (
        "gke-spot",
        ["shared-storage", "data-in-store"],
        "first",
        IN_GCS | {"cloud": "gke", "identity": "gke", "data_volume": True},
    ),
    "aks with data in an S3-compatible store": (
        "aks-spot",
        ["object-store", "data-in-store", "s3-credentials", "store-ca"],
        "first",
        AKS
        | IN_S3
        | {
            "store": "s3",
            "identity": "keys",
            "endpoint": "https://store.example.org",
            "own_ca": True,
        },
    ),
    "local with data in S3": (
        "local",
        ["object-store", "data-in-store", "s3-credentials"],
        "first-local",
        IN_S3 | {"store": "s3", "identity": "keys", "data_volume": True},
    ),
}
# The additions of a user to the kustomization of such a cluster, and the files beside it.
WITH_KEYS = {
    "secretGenerator": [
        {"name": "evergrad-s3-credentials", "namespace": "evergrad", "envs": ["credentials.env"]}
    ]
}
OWN_CA = {
    "configMapGenerator": [
        {"name": "evergrad-store-ca", "namespace": "evergrad", "files": ["ca.crt"]}
    ]
}
DATA_PATCH = {"patches": [{"path": "data.yaml"}]}  # the file of the overlay, if it has one
ADDED = {
    "aks with an S3-compatible store": {"patches": [{"path": "store.yaml"}]} | WITH_KEYS | OWN_CA,
    "gke with data in a bucket": DATA_PATCH,
    "eks with data in a bucket": DATA_PATCH,
    "gke with the shared volume and data in a bucket": DATA_PATCH,
    "gke with every component": DATA_PATCH,
    "aks with data in an S3-compatible store": {
        "patches": [{"path": "store.yaml"}, {"path": "data.yaml"}]
    }
    | WITH_KEYS
    | OWN_CA,
    "local with data in S3": WITH_KEYS,
}
ADDED_FILES = {
    "store.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata: {name: evergrad-store, namespace: evergrad}
data:
  CHECKPOINTS: s3://a-bucket/checkpoints
  S3_ENDPOINT: https://store.example.org
  S3_REGION: us-east-1
""",
    "data.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata: {name: evergrad-store, namespace: evergrad}
data:
  DATA: s3://a-bucket/data
""",
    "ca.crt": "a certificate in PEM form\n",
}
# Workers have one autoscaler, so a cluster "with every component" has only one of the two.
AUTOSCALERS = {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}
for _cloud, _scaler, _given in (("gke", "hpa", GKE), ("eks", "hpa", EKS), ("aks", "keda", AKS)):
    CLUSTERS[_cloud + " with every component"] = (
        _cloud + "-spot",
        ["gpu", "prometheus", "grafana", "servers-on-spot/" + _cloud, _scaler, "operator"]
        + ([] if _given is AKS else ["shared-data"])
        + (["data-in-store"] if _given is GKE else []),
        "first",
        _given
        | (IN_GCS if _given is GKE else {})
        | {
            "servers_on_spot": True,
            "gpu": True,
            "autoscaler": AUTOSCALERS[_scaler],
            "data_volume": True,
            "operator": True,
        },
    )
# Each cluster without an operator is also rendered with one.
WITH_OPERATOR = " and the operator"
for _name, (_overlay, _components, _job, _given) in list(CLUSTERS.items()):
    if not _given.get("operator"):
        _component = "operator-local" if _overlay == "local" else "operator"
        CLUSTERS[_name + WITH_OPERATOR] = (
            _overlay,
            _components + [_component],
            _job,
            _given | {"operator": True},
        )
        if _name in ADDED:
            ADDED[_name + WITH_OPERATOR] = ADDED[_name]
# The component prometheus must also work without an operator.
CLUSTERS["gke with Prometheus"] = ("gke-spot", ["prometheus"], "first", GKE)
# The job that is an object, in a cluster that has an operator.
JOB_OBJECT = "trainingjob"


def version():
    """Returns the version of the release, from CMakeLists.txt."""
    with open(os.path.join(ROOT, "CMakeLists.txt")) as f:
        return f.read().split("project(evergrad VERSION ", 1)[1].split()[0]


def build(folder):
    r = subprocess.run([KUSTOMIZE, "build", folder], capture_output=True, text=True, timeout=120)
    if r.returncode != 0 or r.stderr:
        raise AssertionError("kustomize build %s: %s" % (folder, r.stderr))
    return [d for d in yaml.load_all(r.stdout, LOADER) if d]


def render(name):
    """Returns the objects of a cluster, and the objects of the jobs that are submitted to it."""
    overlay, components, job, expected = CLUSTERS[name]
    with tempfile.TemporaryDirectory(dir=os.path.join(ROOT, "build")) as folder:

        def path(*parts):
            return os.path.relpath(os.path.join(FOLDER, *parts), folder)

        with open(os.path.join(folder, "kustomization.yaml"), "w") as f:
            wanted = {
                "resources": [path("overlays", overlay)],
                "components": [path("components", c) for c in components],
            }
            json.dump(wanted | ADDED.get(name, {}), f)
        if name in ADDED:
            write_added_files(folder, overlay)
        docs = build(folder)
    for one in [job] + ([JOB_OBJECT] if expected.get("operator") else []):
        docs += build(os.path.join(FOLDER, "jobs", one))
    return Cluster(docs, version=version(), **expected)


def write_added_files(folder, overlay):
    """Writes the files of ADDED_FILES, and the example of a file with keys. If the overlay has a
    data.yaml, this file is used in place of that of ADDED_FILES."""
    for name, text in ADDED_FILES.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    own = os.path.join(FOLDER, "overlays", overlay, "data.yaml")
    if os.path.exists(own):
        shutil.copy(own, folder)
    example = os.path.join(FOLDER, "components", "s3-credentials", "credentials.env.example")
    shutil.copy(example, os.path.join(folder, "credentials.env"))


def kustomizations(text):
    """Returns the kustomizations in the code blocks of a page."""
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```$", text)
    return [b for b in blocks if "\nkind: Kustomization\n" in b]


DEFINITION = os.path.join(FOLDER, "components", "operator", "crd.yaml")


def printed_definition():
    """Returns the definition of the kind TrainingJob that the operator prints."""
    return subprocess.check_output([OPERATOR, "--print-crd"], text=True, timeout=60)


COMPONENT_RULES = os.path.join(FOLDER, "components", "prometheus", "rules.yaml")


def component_rules():
    """Returns the PrometheusRule object that has the alert rules of deploy/prometheus."""
    head = """\
# A copy of deploy/prometheus/evergrad.rules.yaml (tests/deploy/kubernetes_test.py --write).
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: evergrad, namespace: evergrad}
spec:
"""
    with open(checks.RULES) as f:
        lines = f.read().splitlines()
    first = lines.index("groups:")
    return head + "".join("  %s\n" % line for line in lines[first:])


_rendered = {}


def cluster(name):
    if name not in _rendered:
        _rendered[name] = render(name)
    return copy.deepcopy(_rendered[name])


def invalid(docs, versions=VERSIONS):
    """Returns the findings of kubernetes-validate, and the kinds that it does not know."""
    found, unknown = [], set()
    for d in docs:
        for v in versions:
            finding, known = _verdict(json.dumps(d), v)
            if not known:
                unknown.add(d["kind"])
            if finding:
                found.append("%s: %s %s: %s" % (v, d["kind"], d["metadata"]["name"], finding))
    return found, unknown


@functools.lru_cache(maxsize=None)
def _verdict(text, version_of_kubernetes):
    """Returns (finding or None, whether the kind is known) for one object, given as text. The
    results are cached, because the overlays share most of their objects."""
    try:
        kubernetes_validate.validate(json.loads(text), version_of_kubernetes, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return None, False
    except kubernetes_validate.ValidationError as e:
        return "%s: %s" % (list(e.path), e.message), True
    return None, True


class Manifests(unittest.TestCase):
    def test_every_overlay_is_valid_and_holds_every_check(self):
        for name in CLUSTERS:
            c = cluster(name)
            with self.subTest(cluster=name):
                found, unknown = invalid(c.docs)
                self.assertEqual(found, [])
                self.assertLessEqual(unknown, set(checks.FORMS), "kinds that nothing checks")
                for check in checks.CHECKS:
                    self.assertEqual(check(c), [], check.__name__)

    def test_an_object_is_named_once_and_is_in_the_namespace(self):
        cluster_wide = {"Namespace", "PriorityClass", "StorageClass", "CustomResourceDefinition"}
        for name in CLUSTERS:
            with self.subTest(cluster=name):
                docs = cluster(name).docs
                names = [(d["kind"], d["metadata"]["name"]) for d in docs]
                self.assertEqual(sorted(set(names)), sorted(names))
                for d in docs:
                    wanted = None if d["kind"] in cluster_wide else "evergrad"
                    self.assertEqual(d["metadata"].get("namespace"), wanted, d["metadata"])

    def test_the_component_has_the_alert_rules_of_prometheus(self):
        with open(COMPONENT_RULES) as f:
            self.assertEqual(f.read(), component_rules(), "kubernetes_test.py --write copies them")

    def test_every_component_and_job_is_in_a_cluster_of_this_test(self):
        # the overlays themselves use these components
        used = {"cert-manager", "certs-job", "object-store", "workload-identity"}
        for _, components, _, _ in CLUSTERS.values():
            used |= {c.split("/")[0] for c in components}
        self.assertEqual(set(os.listdir(os.path.join(FOLDER, "components"))), used)
        jobs = {job for _, _, job, _ in CLUSTERS.values()} | {JOB_OBJECT}
        self.assertEqual(set(os.listdir(os.path.join(FOLDER, "jobs"))), jobs)

    def test_the_flags_of_the_programs_are_found_in_the_documents(self):
        documented = checks.documented_flags()
        for program in ("evergrad-coordinator", "evergrad-ps-server", "evergrad-worker"):
            self.assertGreater(len(documented[program]), 20, program)
        self.assertLessEqual(set(checks.OPERATOR_FLAGS), documented["evergrad-operator"])
        self.assertNotIn("--listen", documented["evergrad-operator"])
        self.assertIn("--fetch", documented["psctl job run"])
        self.assertNotIn("--fetch", documented["psctl job list"])

    def test_the_board_of_grafana_is_the_one_in_its_folder(self):
        config = cluster("gke with every component").get("ConfigMap", "evergrad-board")
        with open(os.path.join(ROOT, "deploy", "grafana", "evergrad.json")) as f:
            self.assertEqual(config["data"], {"evergrad.json": f.read()})
        board = json.loads(config["data"]["evergrad.json"])
        self.assertTrue(board["panels"])
        self.assertEqual(config["metadata"]["labels"]["grafana_dashboard"], "1")

    @unittest.skipUnless(
        shutil.which(os.path.join(ROOT, "build", "tools", "promtool")), "no promtool"
    )
    def test_promtool_accepts_the_alert_rules(self):
        rules = cluster("gke with every component").get("PrometheusRule", "evergrad")["spec"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rules.yaml")
            with open(path, "w") as f:
                yaml.safe_dump(rules, f)
            promtool = os.path.join(ROOT, "build", "tools", "promtool")
            r = subprocess.run(
                [promtool, "check", "rules", path], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_the_definition_of_jobs_is_the_output_of_the_operator(self):
        if OPERATOR is None:
            self.skipTest("no evergrad-operator (--bin)")
        with open(DEFINITION) as f:
            self.assertEqual(
                f.read(), printed_definition(), "kubernetes_test.py --write --bin FOLDER updates it"
            )

    def test_the_job_object_is_the_first_job_with_another_name_and_folder(self):
        def job(name):
            with open(os.path.join(FOLDER, "jobs", name, "job.yaml")) as f:
                return yaml.load(f, LOADER)

        first, as_object = job("first"), job(JOB_OBJECT)
        self.assertNotEqual(as_object["metadata"]["name"], first["metadata"]["name"])
        as_object["metadata"]["name"] = first["metadata"]["name"]
        as_object["spec"]["checkpoint"]["directory"] = "${CHECKPOINTS}"
        self.assertEqual(as_object, first)

    def test_the_job_object_is_a_valid_job_file(self):
        if PSCTL is None:
            self.skipTest("no psctl (--bin)")
        path = os.path.join(FOLDER, "jobs", JOB_OBJECT, "job.yaml")
        r = subprocess.run(
            [PSCTL, "job", "validate", path],
            capture_output=True,
            timeout=60,
            env=os.environ | {"EVERGRAD_CHECKPOINTS": "/checkpoints"},
        )
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def validate_first_job(self, checkpoints):
        if PSCTL is None:
            self.skipTest("no psctl (--bin)")
        path = os.path.join(FOLDER, "jobs", "first", "job.yaml")
        return subprocess.run(
            [PSCTL, "job", "validate", path],
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"CHECKPOINTS": checkpoints},
        )

    def test_the_first_job_is_a_valid_job_on_each_kind_of_storage(self):
        for place in ("/checkpoints", "s3://a-bucket/checkpoints", "gs://a-bucket/checkpoints"):
            with self.subTest(place):
                r = self.validate_first_job(place)
                self.assertEqual(r.returncode, 0, r.stdout + r.stderr)

    def test_a_bucket_that_is_not_filled_in_is_refused(self):
        for name in ("gke-spot", "eks-spot"):
            with self.subTest(name):
                place = cluster(name).store_setting("CHECKPOINTS")
                self.assertIn("://BUCKET/", place)
                r = self.validate_first_job(place)
                self.assertNotEqual(r.returncode, 0, r.stdout)
                self.assertIn("BUCKET", r.stdout + r.stderr)

    def test_a_bucket_of_data_that_is_not_filled_in_is_refused(self):
        if WORKER_PROGRAM is None:
            self.skipTest("no evergrad-worker (--bin)")
        for name in ("gke with data in a bucket", "eks with data in a bucket"):
            with self.subTest(name):
                place = cluster(name).store_setting("DATA")
                self.assertIn("://BUCKET/", place)
                r = subprocess.run(
                    [WORKER_PROGRAM, "--coordinator", "127.0.0.1:1", "--data-root", place],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertNotEqual(r.returncode, 0)
                self.assertRegex(r.stderr, "--data-root: .*BUCKET")

    def test_the_keys_of_a_store_are_in_a_secret_and_nowhere_else(self):
        c = cluster("aks with an S3-compatible store")
        (secret,) = c.of("Secret")
        # kustomize appends a hash of the contents, so new keys restart the pods.
        self.assertRegex(secret["metadata"]["name"], r"^evergrad-s3-credentials-\w+$")
        self.assertEqual(set(secret["data"]), set(checks.SECRET_VARIABLES))
        others = json.dumps([d for d in c.docs if d["kind"] != "Secret"])
        for value in secret["data"].values():
            self.assertNotIn(value, others)
            self.assertNotIn(base64.b64decode(value).decode(), others)

    def test_a_file_with_keys_is_ignored_by_git(self):
        for name, wanted in (("credentials.env", 0), ("credentials.env.example", 1)):
            path = os.path.join(FOLDER, "components", "s3-credentials", name)
            r = subprocess.run(["git", "-C", ROOT, "check-ignore", "--quiet", path], timeout=60)
            if r.returncode == 128:
                self.skipTest("no git repository")
            self.assertEqual(r.returncode, wanted, name)

    def test_the_kustomizations_of_the_pages_render(self):
        pages = ("docs/deploy_kubernetes.md", "deploy/kubernetes/README.md")
        for page in pages:
            with open(os.path.join(ROOT, page)) as f:
                found = kustomizations(f.read())
            self.assertTrue(found, page)
            for number, text in enumerate(found):
                with self.subTest(page=page, number=number):
                    kinds = {d["kind"] for d in self.render_of_page(text)}
                    self.assertIn("StatefulSet", kinds)

    def render_of_page(self, text):
        """Renders a kustomization of a page, in a folder that is not beside the checkout."""
        overlay = re.search(r"/overlays/([\w-]+)", text).group(1)
        with tempfile.TemporaryDirectory(dir=os.path.join(ROOT, "build")) as folder:
            write_added_files(folder, overlay)
            with open(os.path.join(folder, "kustomization.yaml"), "w") as f:
                f.write(text.replace("../evergrad/", os.path.relpath(ROOT, folder) + "/"))
            return build(folder)

    def test_a_component_that_does_not_exist_is_found_in_a_page(self):
        with open(os.path.join(ROOT, "docs", "deploy_kubernetes.md")) as f:
            text = kustomizations(f.read())[0]
        self.assertIn("overlays/gke-spot", text)
        with self.assertRaisesRegex(AssertionError, "kustomize build"):
            self.render_of_page(text.replace("overlays/gke-spot", "overlays/gke-spots"))

    @unittest.skipUnless(shutil.which("openssl"), "no openssl")
    def test_the_job_of_certificates_runs_and_can_be_repeated(self):
        if PSCTL is None:
            self.skipTest("no psctl (--bin)")
        template = cluster("local").get("Job", "evergrad-certificates")["spec"]["template"]
        with tempfile.TemporaryDirectory() as folder:
            for said in ("written: ", "kept: "):
                for container in containers(template):
                    line = [PSCTL] + checks.words(container)[1:]
                    for mount in ("/authority", "/certificates"):
                        line = [w.replace("=" + mount, "=" + folder + mount) for w in line]
                    r = subprocess.run(line, capture_output=True, text=True, timeout=60)
                    self.assertEqual((r.returncode, r.stdout[: len(said)]), (0, said), r.stderr)
            for role, uri in checks.URIS.items():
                path = os.path.join(folder, "certificates", role.replace("evergrad-", ""))
                # Prometheus reads its certificate from a Secret, which a Job cannot make
                if role == "evergrad-prometheus":
                    continue
                self.assertEqual(sorted(os.listdir(path)), ["ca.crt", "tls.crt", "tls.key"])
                names = subprocess.check_output(
                    ["openssl", "x509", "-noout", "-ext", "subjectAltName"]
                    + ["-in", os.path.join(path, "tls.crt")],
                    text=True,
                    timeout=60,
                )
                self.assertIn("URI:" + uri, names)
                if role != "evergrad-user":
                    self.assertIn("DNS:%s," % role, names)


# Each mutation changes one rendered cluster, and exactly the check that is named must find it.


def container_of(role):
    return lambda c: c.role(role)[0]["spec"]["containers"][0]


def pod_of(role):
    return lambda c: c.role(role)[0]["spec"]


def certificate_of_worker(c):
    mounts = container_of("worker")(c)["volumeMounts"]
    return next(m for m in mounts if m["mountPath"] == "/etc/evergrad/tls")


def trigger(c):
    return c.get("ScaledObject", "evergrad-worker")["spec"]["triggers"][0]


def named(kind, name):
    return lambda c: c.get(kind, name)


def put(find, *path_and_value):
    """Returns a mutation that sets a value below the object that `find` returns."""

    def mutate(c):
        *path, value = path_and_value
        at = find(c)
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return mutate


def drop(find, *path):
    def mutate(c):
        at = find(c)
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return mutate


def remove(kind, name):
    def mutate(c):
        c.docs.remove(c.get(kind, name))

    return mutate


def argument(role, before, after):
    """Returns a mutation that replaces the argument `before` by `after`. If `after` is None, it
    removes the argument. If `before` is None, it adds one."""

    def mutate(c):
        args = container_of(role)(c)["args"]
        if before is None:
            args.append(after)
        elif after is None:
            args.remove(before)
        else:
            args[args.index(before)] = after

    return mutate


def labels_of(role):
    return lambda c: c.role(role)[0]["metadata"]["labels"]


def annotations_of(role):
    account = named("ServiceAccount", "evergrad-" + role)
    return lambda c: account(c)["metadata"].setdefault("annotations", {})


def key_of(c, role, index):
    """Returns the variable of a container that has the first or the second key of a store."""
    env = container_of(role)(c)["env"]
    return next(e for e in env if e["name"] == checks.SECRET_VARIABLES[index])


def use_claim(role):
    """Returns a mutation that puts the shared volume into a pod in place of an empty folder."""

    def mutate(c):
        volume = next(v for v in pod_of(role)(c)["volumes"] if v["name"] == "shared")
        del volume["emptyDir"]
        volume["persistentVolumeClaim"] = {"claimName": "evergrad-shared"}

    return mutate


def drop_store_labels(c):
    for role in checks.STORE_ROLES:
        del labels_of(role)(c)[checks.USES_STORE]


def unmount(role, path):
    """Returns a mutation that mounts an empty folder of the pod at `path`."""

    def mutate(c):
        pod_of(role)(c)["volumes"].append({"name": "empty", "emptyDir": {}})
        mounts = container_of(role)(c)["volumeMounts"]
        next(m for m in mounts if m["mountPath"] == path)["name"] = "empty"

    return mutate


ALL, KEDA = "gke with every component", "aks with every component"
SHARED, OWN_STORE = "gke with the shared volume", "aks with an S3-compatible store"
STORE_NAME = checks.STORE_CONFIG
STORE = named("ConfigMap", STORE_NAME)
GKE_ACCOUNT, EKS_ROLE = (checks.IDENTITY_ANNOTATIONS[kind][0] for kind in ("gke", "irsa"))
SERVER, WORKER, COORDINATOR = map(container_of, ("ps-server", "worker", "coordinator"))
SERVER_POLICY = named("NetworkPolicy", "evergrad-ps-server")
HPA = named("HorizontalPodAutoscaler", "evergrad-worker")
SCALED = named("ScaledObject", "evergrad-worker")
DIALED = named("Service", "evergrad-coordinator")
BUDGET = named("PodDisruptionBudget", "evergrad-ps-server")
MONITOR = named("PodMonitor", "evergrad-worker")
MONITOR_OF_AGENT = named("PodMonitor", "evergrad-operator")
CERTIFICATE = named("Certificate", "evergrad-worker")


def rule_of(policy):
    return lambda c: named("NetworkPolicy", policy)(c)["spec"]["egress"][0]


STORE_RULE, IDENTITY_RULE = rule_of("evergrad-store"), rule_of("evergrad-store-identity")


OPERATED, OPERATED_GKE = "local" + WITH_OPERATOR, "gke-spot" + WITH_OPERATOR
OPERATED_IN_GCS = "gke with data in a bucket" + WITH_OPERATOR
AGENT, POD_OF_AGENT = container_of("operator"), pod_of("operator")
AGENT_DEPLOYMENT = named("Deployment", "evergrad-operator")
AGENT_POLICY = named("NetworkPolicy", "evergrad-operator")
RIGHTS = named("Role", "evergrad-operator")
BINDING = named("RoleBinding", "evergrad-operator")
DEFINED = named("CustomResourceDefinition", "trainingjobs.evergrad.dev")
OBJECT = named("TrainingJob", "first-object")
SCRAPED = named("NetworkPolicy", "evergrad-prometheus")
IN_SCHEMA = ("spec", "versions", 0, "schema", "openAPIV3Schema")


def add(kind, name, **more):
    """Returns a mutation that adds an object."""

    def mutate(c):
        c.docs.append({"kind": kind, "metadata": {"name": name}} | more)

    return mutate


def remove_from_policy(name, *path):
    """Returns a mutation that takes the operator out of a selector of a network policy."""

    def mutate(c):
        selector = named("NetworkPolicy", name)(c)["spec"]
        for key in path:
            selector = selector[key]
        (values,) = [
            e["values"] for e in selector["matchExpressions"] if e["key"] == checks.COMPONENT
        ]
        values.remove("operator")

    return mutate


def let_the_operator_reach_the_servers(c):
    of_operator = {"podSelector": {"matchLabels": {checks.COMPONENT: "operator"}}}
    SERVER_POLICY(c)["spec"]["ingress"][0]["from"].append(of_operator)
    to_servers = named("NetworkPolicy", "evergrad-worker")(c)["spec"]["egress"][1]
    AGENT_POLICY(c)["spec"]["egress"].append(copy.deepcopy(to_servers))


def let_a_worker_use_the_account(c):
    pod_of("worker")(c)["serviceAccountName"] = "evergrad-operator"


def submitter(c):
    return c.get("Job", "first-job")["spec"]["template"]["spec"]["containers"][0]


def mount_of(container, path):
    return lambda c: next(m for m in container(c)["volumeMounts"] if m["mountPath"] == path)


STORE_CA = "/etc/evergrad/store"
IN_BUCKET, IN_OWN_STORE = "gke with data in a bucket", "aks with data in an S3-compatible store"
ON_VOLUME = "gke with the shared volume and data in a bucket"
WORKERS = named("Deployment", "evergrad-worker")
CACHE = checks.DATA_CACHE


def cache_volume(c):
    return next(v for v in pod_of("worker")(c)["volumes"] if v["name"] == "data-cache")


def cache_limit(c):
    return next(e for e in WORKER(c)["env"] if e["name"] == "DATA_CACHE_BYTES_MAX")


def worker_without(*names):
    """Returns a mutation that removes the variables of these names from the worker."""

    def mutate(c):
        WORKER(c)["env"] = [e for e in WORKER(c)["env"] if e["name"] not in names]

    return mutate


def lose_what_came_too_early(c):
    """Makes the worker of a kustomization that names s3-credentials and store-ca too early."""
    worker_without(*checks.SECRET_VARIABLES)(c)
    WORKER(c)["volumeMounts"].remove(mount_of(WORKER, STORE_CA)(c))


MUTATIONS = [  # (check, cluster, mutation)
    ("restricted", "local", put(WORKER, "securityContext", "allowPrivilegeEscalation", True)),
    ("restricted", "local", put(WORKER, "securityContext", "readOnlyRootFilesystem", False)),
    ("restricted", "local", put(WORKER, "securityContext", "capabilities", {"add": ["SYS_NICE"]})),
    ("restricted", "local", put(WORKER, "securityContext", "privileged", True)),
    ("restricted", "local", put(WORKER, "ports", 0, "hostPort", 4020)),
    ("restricted", "local", put(pod_of("worker"), "hostNetwork", True)),
    ("restricted", "local", drop(pod_of("worker"), "securityContext", "runAsNonRoot")),
    ("restricted", "local", put(pod_of("worker"), "securityContext", "runAsUser", 0)),
    ("restricted", "local", drop(pod_of("worker"), "securityContext", "seccompProfile")),
    ("restricted", "local", drop(pod_of("worker"), "automountServiceAccountToken")),
    (
        "restricted",
        "local",
        put(pod_of("worker"), "volumes", 0, {"name": "tls", "hostPath": {"path": "/etc"}}),
    ),
    (
        "restricted",
        "local",
        drop(named("ServiceAccount", "evergrad-worker"), "automountServiceAccountToken"),
    ),
    (
        "restricted",
        "local",
        put(
            named("Namespace", "evergrad"),
            "metadata",
            "labels",
            "pod-security.kubernetes.io/enforce",
            "baseline",
        ),
    ),
    ("restricted", "local", remove("Namespace", "evergrad")),
    (
        "selectors",
        "local",
        put(
            named("Deployment", "evergrad-worker"),
            *("spec", "selector", "matchLabels", checks.COMPONENT, "ps-server"),
        ),
    ),
    (
        "selectors",
        "local",
        drop(
            named("Deployment", "evergrad-worker"),
            *("spec", "selector", "matchLabels", checks.COMPONENT),
        ),
    ),
    (
        "selectors",
        "local",
        put(named("Service", "evergrad-ps-server"), "spec", "selector", {"app": "evergrad"}),
    ),
    (
        "selectors",
        "local",
        put(named("Service", "evergrad-coordinator-headless"), "spec", "clusterIP", "10.0.0.1"),
    ),
    ("selectors", ALL, put(MONITOR, "spec", "selector", "matchLabels", checks.COMPONENT, "server")),
    (
        "selectors",
        "local",
        put(SERVER_POLICY, "spec", "podSelector", {"matchLabels": {"app": "ps-server"}}),
    ),
    (
        "selectors",
        "local",
        put(
            pod_of("worker"),
            *("topologySpreadConstraints", 0, "labelSelector", {"matchLabels": {"app": "w"}}),
        ),
    ),
    ("selectors", "gke-spot", drop_store_labels),
    ("ports", "local", put(SERVER, "ports", 0, "containerPort", 4011)),
    ("ports", "local", argument("worker", "--listen=0.0.0.0:4020", "--listen=0.0.0.0:4000")),
    ("ports", "local", argument("worker", "--metrics-listen=0.0.0.0:9420", None)),
    ("ports", "local", argument("ps-server", "--advertise=$(POD_IP):4010", None)),
    (
        "ports",
        "local",
        argument(
            "worker", "--coordinator=evergrad-coordinator:4000", "--coordinator=coordinator:4000"
        ),
    ),
    (
        "ports",
        "local",
        put(named("Service", "evergrad-ps-server"), "spec", "ports", 0, "port", 4011),
    ),
    ("ports", "local", put(SERVER_POLICY, "spec", "ingress", 0, "ports", 0, "port", 4012)),
    ("ports", ALL, put(MONITOR, "spec", "podMetricsEndpoints", 0, "port", "http")),
    ("coordinator_address", "local", put(DIALED, "spec", "clusterIP", "None")),
    ("coordinator_address", "local", put(DIALED, "spec", "type", "LoadBalancer")),
    ("coordinator_address", "local", drop(DIALED, "spec", "publishNotReadyAddresses")),
    ("coordinator_address", "local", put(DIALED, "spec", "selector", checks.COMPONENT, "worker")),
    ("coordinator_address", "local", put(DIALED, "spec", "ports", 0, "port", 4001)),
    ("coordinator_address", "local", remove("Service", "evergrad-coordinator")),
    (
        "coordinator_address",
        "gke-spot",
        lambda c: named("Certificate", "evergrad-coordinator")(c)["spec"]["dnsNames"].pop(4),
    ),
    (
        "coordinator_address",
        "local",
        put(named("StatefulSet", "evergrad-coordinator"), "spec", "serviceName", "other"),
    ),
    ("probes", "local", drop(SERVER, "livenessProbe")),
    ("probes", "local", put(WORKER, "readinessProbe", "httpGet", "path", "/livez")),
    ("probes", "local", put(WORKER, "startupProbe", "httpGet", "scheme", "HTTP")),
    ("placement", "local", put(pod_of("worker"), "tolerations", 0, "tolerationSeconds", 300)),
    ("placement", "aks-spot", lambda c: pod_of("worker")(c)["tolerations"].pop()),
    ("placement", "eks-spot", put(pod_of("worker"), "tolerations", [{"operator": "Exists"}])),
    ("placement", "eks-spot", drop(pod_of("worker"), "affinity")),
    ("placement", "gke-spot", drop(pod_of("ps-server"), "affinity")),
    ("placement", ALL, lambda c: pod_of("worker")(c)["tolerations"].pop()),
    ("spread", "local", drop(pod_of("ps-server"), "topologySpreadConstraints")),
    (
        "spread",
        "local",
        put(
            pod_of("ps-server"),
            *("topologySpreadConstraints", 0, "whenUnsatisfiable", "DoNotSchedule"),
        ),
    ),
    ("images", "local", put(WORKER, "image", "evergrad:latest")),
    ("images", "local", put(WORKER, "image", "evergrad")),
    ("images", ALL, put(WORKER, "image", "evergrad:" + version())),
    ("resources", "local", drop(WORKER, "resources", "limits", "memory")),
    ("resources", "local", drop(WORKER, "resources", "requests")),
    ("resources", ALL, drop(WORKER, "resources", "limits", "nvidia.com/gpu")),
    ("program_flags", "local", argument("worker", None, "--memory-max=4GiB")),
    ("program_flags", "local", argument("worker", "--data-root=/data", None)),
    ("program_flags", "local", argument("worker", "--data-root=/data", "--data-root=/")),
    ("program_flags", "local", argument("worker", "--tls-ca=/etc/evergrad/tls/ca.crt", None)),
    ("program_flags", "local", argument("worker", None, "--insecure-metrics")),
    ("program_flags", "local", argument("worker", "--log-format=json", None)),
    ("program_flags", "local", put(WORKER, "env", [])),
    ("program_flags", "local", put(WORKER, "command", ["/usr/bin/evergrad-server"])),
    ("program_flags", "gke-spot", argument("worker", "--preemption-source=gce", None)),
    (
        "program_flags",
        "gke-spot",
        argument("worker", "--preemption-source=gce", "--preemption-source=aws"),
    ),
    ("references", "gke-spot", remove("Certificate", "evergrad-worker")),
    ("references", "local", remove("PersistentVolumeClaim", "evergrad-shared")),
    ("references", "local", remove("ConfigMap", "evergrad-store")),
    ("references", OWN_STORE, lambda c: c.docs.remove(c.of("Secret")[0])),
    ("references", OWN_STORE, put(mount_of(SERVER, STORE_CA), "readOnly", False)),
    ("references", "local", put(STORE, "data", "CHECKPOINTS", "/elsewhere")),
    ("references", "local", remove("ServiceAccount", "evergrad-worker")),
    ("references", "local", remove("PriorityClass", "evergrad-ps-server")),
    ("references", "eks with every component", remove("StorageClass", "evergrad-shared")),
    ("references", SHARED, remove("StorageClass", "evergrad-shared")),
    ("references", "local", put(WORKER, "volumeMounts", 0, "mountPath", "/elsewhere")),
    ("references", "local", put(WORKER, "volumeMounts", 0, "readOnly", False)),
    ("references", "local", put(WORKER, "volumeMounts", 0, "name", "nothing")),
    (
        "references",
        "local",
        put(pod_of("worker"), "volumes", 0, "emptyDir", {}),
    ),
    ("storage", "gke-spot", put(STORE, "data", "CHECKPOINTS", "/checkpoints")),
    ("storage", "gke-spot", put(STORE, "data", "CHECKPOINTS", "s3://BUCKET/checkpoints")),
    ("storage", "eks-spot", put(STORE, "data", "CHECKPOINTS", "s3://BUCKET")),
    ("storage", "local", put(STORE, "data", "CHECKPOINTS", "gs://BUCKET/checkpoints")),
    ("storage", "local", remove("ConfigMap", "evergrad-store")),
    ("storage", SHARED, unmount("ps-server", "/checkpoints")),
    ("storage", SHARED, unmount("coordinator", "/checkpoints")),
    ("storage", SHARED, unmount("coordinator", "/runs")),
    ("storage", SHARED, unmount("ps-server", "/runs")),
    ("storage", SHARED, unmount("worker", "/data")),
    ("storage", "gke-spot", unmount("coordinator", "/runs")),
    ("storage", "gke-spot", use_claim("worker")),
    ("storage", "gke-spot", use_claim("ps-server")),
    ("object_store", "local", put(STORE, "data", "STORE_METADATA_CREDENTIALS", "true")),
    ("object_store", "gke-spot", put(STORE, "data", "STORE_METADATA_CREDENTIALS", "false")),
    ("object_store", "eks-spot", put(STORE, "data", "STORE_METADATA_CREDENTIALS", "true")),
    ("object_store", "gke-spot", put(STORE, "data", "S3_ENDPOINT", "https://store.example.org")),
    ("object_store", "gke-spot", drop(STORE, "data", "S3_REGION")),
    ("object_store", OWN_STORE, put(STORE, "data", "STORE_CA", "")),
    ("object_store", "gke-spot", drop(labels_of("ps-server"), checks.USES_STORE)),
    ("object_store", "gke-spot", put(labels_of("worker"), checks.USES_STORE, "true")),
    ("object_store", SHARED, put(labels_of("coordinator"), checks.USES_STORE, "true")),
    ("object_store", "gke-spot", argument("ps-server", "--store-ca=$(STORE_CA)", None)),
    ("object_store", "gke-spot", argument("worker", None, "--store-ca=$(STORE_CA)")),
    (
        "object_store",
        "gke-spot",
        argument("coordinator", "--s3-region=$(S3_REGION)", "--s3-region=$(S3_ENDPOINT)"),
    ),
    ("object_store", "gke-spot", drop(COORDINATOR, "envFrom")),
    ("object_store", "gke-spot", put(WORKER, "envFrom", [{"configMapRef": {"name": STORE_NAME}}])),
    ("object_store", "gke-spot", drop(submitter, "env")),
    ("object_store", "gke-spot", put(submitter, "env", 0, "name", "PLACE")),
    ("object_store", OWN_STORE, lambda c: SERVER(c)["env"].remove(key_of(c, "ps-server", 1))),
    ("object_store", OWN_STORE, lambda c: WORKER(c)["env"].append(key_of(c, "ps-server", 0))),
    (
        "object_store",
        OWN_STORE,
        lambda c: key_of(c, "coordinator", 1).update({"value": "a key"}),
    ),
    (
        "object_store",
        OWN_STORE,
        lambda c: key_of(c, "coordinator", 1)["valueFrom"]["secretKeyRef"].update({"key": "KEY"}),
    ),
    ("object_store", OWN_STORE, argument("ps-server", None, "$(AWS_SECRET_ACCESS_KEY)")),
    ("object_store", "gke-spot", drop(submitter, "env", 1)),
    (
        "object_store",
        "gke-spot",
        put(submitter, "env", 1, "valueFrom", "configMapKeyRef", "key", "CHECKPOINTS"),
    ),
    ("object_store", OPERATED_GKE, drop(AGENT, "env", 0)),
    ("object_store", IN_BUCKET, argument("worker", "--store-ca=$(STORE_CA)", None)),
    ("object_store", IN_BUCKET, argument("worker", "--s3-region=$(S3_REGION)", None)),
    ("object_store", IN_BUCKET, drop(WORKER, "envFrom")),
    ("object_store", IN_BUCKET, drop(labels_of("worker"), checks.USES_STORE)),
    ("object_store", IN_OWN_STORE, worker_without("AWS_SECRET_ACCESS_KEY")),
    ("object_store", IN_OWN_STORE, lose_what_came_too_early),
    ("references", IN_OWN_STORE, lose_what_came_too_early),
    ("references", IN_OWN_STORE, put(mount_of(WORKER, STORE_CA), "readOnly", False)),
    ("references", IN_BUCKET, put(mount_of(WORKER, CACHE), "mountPath", "/elsewhere")),
    ("program_flags", IN_BUCKET, argument("worker", "--data-root=$(DATA)", None)),
    ("program_flags", "gke-spot", argument("worker", None, "--data-root=$(DATA)")),
    ("data_in_store", "gke-spot", put(STORE, "data", "DATA", "gs://BUCKET/data")),
    ("data_in_store", "gke-spot", argument("worker", None, "--data-cache=/data/copies")),
    ("data_in_store", IN_BUCKET, put(STORE, "data", "DATA", "/data")),
    ("data_in_store", IN_BUCKET, put(STORE, "data", "DATA", "s3://BUCKET/data")),
    ("data_in_store", IN_BUCKET, put(STORE, "data", "DATA", "gs://BUCKET")),
    ("data_in_store", IN_BUCKET, drop(STORE, "data", "DATA")),
    ("data_in_store", IN_BUCKET, drop(WORKERS, "metadata", "labels", checks.USES_STORE)),
    (
        "data_in_store",
        IN_BUCKET,
        argument("worker", "--data-cache=%s/data" % CACHE, "--data-cache=%s" % CACHE),
    ),
    ("data_in_store", IN_BUCKET, argument("worker", "--data-cache=%s/data" % CACHE, None)),
    (
        "data_in_store",
        IN_BUCKET,
        argument("worker", "--data-cache-bytes-max=$(DATA_CACHE_BYTES_MAX)", None),
    ),
    ("data_in_store", IN_BUCKET, put(cache_limit, "value", "10GiB")),
    ("data_in_store", IN_BUCKET, put(cache_volume, "emptyDir", "medium", "Memory")),
    ("data_in_store", IN_BUCKET, drop(cache_volume, "emptyDir", "sizeLimit")),
    ("data_in_store", IN_BUCKET, put(cache_volume, "emptyDir", "sizeLimit", "8Gi")),
    ("data_in_store", IN_BUCKET, put(mount_of(WORKER, CACHE), "readOnly", True)),
    ("data_in_store", IN_BUCKET, drop(WORKER, "resources", "requests", "ephemeral-storage")),
    ("store_identity", IN_BUCKET, drop(annotations_of("worker"), GKE_ACCOUNT)),
    ("store_identity", ON_VOLUME, drop(annotations_of("worker"), GKE_ACCOUNT)),
    (
        "store_identity",
        "eks with data in a bucket",
        put(annotations_of("worker"), EKS_ROLE, "DATA-ROLE"),
    ),
    (
        "store_identity",
        "eks with Pod Identity and data in a bucket",
        put(annotations_of("worker"), EKS_ROLE, "arn:aws:iam::1:role/evergrad"),
    ),
    ("store_identity", IN_BUCKET, put(pod_of("worker"), "serviceAccountName", "evergrad-psctl")),
    ("network", IN_BUCKET, drop(labels_of("worker"), checks.USES_STORE)),
    ("network", ON_VOLUME, drop(labels_of("worker"), checks.USES_STORE)),
    ("network", "local with data in S3", drop(labels_of("worker"), checks.USES_STORE)),
    ("store_identity", "gke-spot", drop(annotations_of("ps-server"), GKE_ACCOUNT)),
    ("store_identity", "gke-spot", put(annotations_of("ps-server"), GKE_ACCOUNT, "evergrad")),
    ("store_identity", "gke-spot", put(annotations_of("worker"), GKE_ACCOUNT, "a@b")),
    ("store_identity", "eks-spot", put(annotations_of("coordinator"), EKS_ROLE, "ROLE")),
    (
        "store_identity",
        "eks with Pod Identity",
        put(annotations_of("coordinator"), EKS_ROLE, "arn:aws:iam::1:role/evergrad"),
    ),
    ("store_identity", "gke-spot", put(pod_of("ps-server"), "serviceAccountName", "default")),
    ("restricted", OPERATED, drop(POD_OF_AGENT, "automountServiceAccountToken")),
    ("restricted", OPERATED, put(POD_OF_AGENT, "automountServiceAccountToken", False)),
    ("restricted", OPERATED, put(pod_of("worker"), "automountServiceAccountToken", True)),
    (
        "restricted",
        OPERATED,
        drop(named("ServiceAccount", "evergrad-operator"), "automountServiceAccountToken"),
    ),
    (
        "restricted",
        OPERATED,
        lambda c: pod_of("worker")(c)["volumes"].append({"name": "token", "projected": {}}),
    ),
    ("restricted", OPERATED, drop(AGENT, "securityContext", "readOnlyRootFilesystem")),
    ("selectors", ALL, put(MONITOR_OF_AGENT, "spec", "selector", "matchLabels", {"a": "b"})),
    ("selectors", "gke with Prometheus", put(MONITOR_OF_AGENT, "metadata", "name", "other")),
    (
        "selectors",
        OPERATED,
        put(AGENT_POLICY, "spec", "podSelector", {"matchLabels": {"app": "operator"}}),
    ),
    ("ports", OPERATED, put(AGENT, "ports", 0, "containerPort", 9420)),
    (
        "ports",
        OPERATED,
        lambda c: AGENT(c)["ports"].append({"name": "grpc", "containerPort": 4030}),
    ),
    ("ports", OPERATED, put(AGENT_POLICY, "spec", "egress", 1, "ports", 1, "port", 16443)),
    (
        "ports",
        OPERATED,
        argument(
            "operator", "--coordinator=evergrad-coordinator:4000", "--coordinator=coordinator:4000"
        ),
    ),
    ("probes", OPERATED, drop(AGENT, "startupProbe")),
    ("probes", OPERATED, put(AGENT, "livenessProbe", "httpGet", "path", "/readyz")),
    ("placement", OPERATED_GKE, put(POD_OF_AGENT, "tolerations", [])),
    ("images", OPERATED, put(AGENT, "image", "evergrad-operator:" + version())),
    ("resources", OPERATED, drop(AGENT, "resources", "limits", "memory")),
    ("program_flags", OPERATED, argument("operator", None, "--listen=0.0.0.0:4030")),
    ("program_flags", OPERATED, argument("operator", None, "--address-file=/tmp/address")),
    ("program_flags", OPERATED, argument("operator", "--tls-ca=/etc/evergrad/tls/ca.crt", None)),
    ("program_flags", OPERATED, argument("operator", None, "--insecure-metrics")),
    ("references", OPERATED_GKE, remove("Certificate", "evergrad-operator")),
    ("references", OPERATED, remove("ServiceAccount", "evergrad-operator")),
    ("references", OPERATED, put(AGENT, "volumeMounts", 0, "readOnly", False)),
    ("references", OPERATED, put(AGENT, "volumeMounts", 0, "mountPath", "/tls")),
    ("object_store", OPERATED_GKE, put(AGENT, "envFrom", [{"configMapRef": {"name": STORE_NAME}}])),
    ("operator", "local", add("ClusterRole", "evergrad-operator")),
    ("operator", "local", add("Role", "evergrad-worker")),
    ("operator", "local", add("RoleBinding", "evergrad-worker")),
    ("operator", "local", add("CustomResourceDefinition", "trainingjobs.evergrad.dev")),
    ("operator", OPERATED, add("ClusterRoleBinding", "evergrad-operator")),
    ("operator", OPERATED, add("Role", "evergrad-worker")),
    ("operator", OPERATED, remove("Deployment", "evergrad-operator")),
    ("operator", OPERATED, remove("RoleBinding", "evergrad-operator")),
    ("operator", OPERATED, remove("NetworkPolicy", "evergrad-operator")),
    ("operator", OPERATED, remove("CustomResourceDefinition", "trainingjobs.evergrad.dev")),
    ("operator", OPERATED, lambda c: RIGHTS(c)["rules"][0]["verbs"].append("delete")),
    ("operator", OPERATED, lambda c: RIGHTS(c)["rules"][0]["verbs"].remove("watch")),
    ("operator", OPERATED, lambda c: RIGHTS(c)["rules"][1]["resources"].append("*")),
    ("operator", OPERATED, lambda c: RIGHTS(c)["rules"].pop()),
    (
        "operator",
        OPERATED,
        lambda c: RIGHTS(c)["rules"].append(
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
        ),
    ),
    (
        "operator",
        OPERATED,
        lambda c: RIGHTS(c)["rules"].append({"nonResourceURLs": ["/"], "verbs": ["get"]}),
    ),
    ("operator", OPERATED, put(BINDING, "roleRef", "kind", "ClusterRole")),
    ("operator", OPERATED, put(BINDING, "roleRef", "name", "other")),
    ("operator", OPERATED, put(BINDING, "subjects", 0, "name", "evergrad-worker")),
    (
        "operator",
        OPERATED,
        lambda c: BINDING(c)["subjects"].append(
            {"kind": "Group", "name": "system:serviceaccounts"}
        ),
    ),
    ("operator", OPERATED, let_a_worker_use_the_account),
    ("operator", OPERATED, put(POD_OF_AGENT, "serviceAccountName", "evergrad-psctl")),
    ("operator", OPERATED, put(AGENT_DEPLOYMENT, "spec", "replicas", 2)),
    (
        "operator",
        OPERATED,
        put(AGENT_DEPLOYMENT, "spec", "strategy", {"type": "RollingUpdate"}),
    ),
    (
        "operator",
        OPERATED,
        lambda c: POD_OF_AGENT(c)["volumes"].append({"name": "state", "emptyDir": {}}),
    ),
    ("operator", OPERATED, argument("operator", None, "--namespace=default")),
    ("operator", OPERATED, argument("operator", "--log-format=json", None)),
    (
        "operator",
        OPERATED,
        argument("operator", "--metrics-listen=0.0.0.0:9430", "--metrics-listen=127.0.0.1:9430"),
    ),
    (
        "operator",
        OPERATED,
        put(AGENT, "env", 0, {"name": "EVERGRAD_DATA", "value": "/elsewhere"}),
    ),
    ("operator", OPERATED_IN_GCS, argument("worker", "--data-root=$(DATA)", None)),
    ("operator", OPERATED, put(AGENT, "env", [])),
    ("operator", OPERATED, argument("worker", "--data-root=/data", "--data-root=/elsewhere")),
    ("definition_of_jobs", OPERATED, put(DEFINED, "metadata", "name", "jobs.evergrad.dev")),
    ("definition_of_jobs", OPERATED, put(DEFINED, "spec", "scope", "Cluster")),
    ("definition_of_jobs", OPERATED, put(DEFINED, "spec", "names", "shortNames", ["job"])),
    ("definition_of_jobs", OPERATED, put(DEFINED, "spec", "versions", 0, "name", "v1")),
    ("definition_of_jobs", OPERATED, put(DEFINED, "spec", "versions", 0, "storage", False)),
    ("definition_of_jobs", OPERATED, drop(DEFINED, "spec", "versions", 0, "subresources")),
    (
        "definition_of_jobs",
        OPERATED,
        drop(DEFINED, *IN_SCHEMA, "properties", "status", "properties", "jobUid"),
    ),
    ("definition_of_jobs", OPERATED, drop(DEFINED, *IN_SCHEMA, "properties", "status", "type")),
    (
        "definition_of_jobs",
        OPERATED,
        drop(
            DEFINED,
            *IN_SCHEMA,
            *("properties", "status", "properties", "conditions", "items", "type"),
        ),
    ),
    (
        "definition_of_jobs",
        OPERATED,
        put(
            DEFINED,
            *("spec", "versions", 0, "additionalPrinterColumns", 0, "jsonPath", ".status.phase"),
        ),
    ),
    (
        "job_objects",
        OPERATED,
        put(DEFINED, *IN_SCHEMA, "properties", "spec", "properties", {"model": {"type": "string"}}),
    ),
    ("job_objects", OPERATED, remove("CustomResourceDefinition", "trainingjobs.evergrad.dev")),
    ("job_objects", OPERATED, drop(OBJECT, "spec")),
    ("job_objects", OPERATED, put(OBJECT, "metadata", "name", "first_object")),
    ("job_objects", OPERATED, put(OBJECT, "spec", "data", "train", "path", "data/train.csv")),
    (
        "job_objects",
        OPERATED,
        put(OBJECT, "spec", "data", "eval", "images", "${EVERGRAD_DATA}images.gz"),
    ),
    ("job_objects", OPERATED, put(OBJECT, "spec", "checkpoint", "directory", "${CHECKPOINTS}")),
    ("job_objects", OPERATED, put(OBJECT, "spec", "checkpoint", "directory", "/elsewhere")),
    ("custom_kinds", OPERATED, put(OBJECT, "apiVersion", "evergrad.dev/v1")),
    ("disruption", "local", remove("PodDisruptionBudget", "evergrad-ps-server")),
    ("disruption", "local", put(BUDGET, "spec", "maxUnavailable", 2)),
    ("disruption", "local", drop(BUDGET, "spec", "unhealthyPodEvictionPolicy")),
    ("disruption", "local", drop(BUDGET, "spec", "selector", "matchLabels", checks.COMPONENT)),
    (
        "disruption",
        "local",
        put(
            named("StatefulSet", "evergrad-ps-server"),
            "spec",
            "podManagementPolicy",
            "OrderedReady",
        ),
    ),
    (
        "disruption",
        "local",
        put(named("StatefulSet", "evergrad-coordinator"), "spec", "replicas", 2),
    ),
    (
        "disruption",
        "local",
        put(named("StatefulSet", "evergrad-coordinator"), "spec", "volumeClaimTemplates", []),
    ),
    (
        "disruption",
        "local",
        drop(named("Service", "evergrad-ps-server"), "spec", "publishNotReadyAddresses"),
    ),
    ("disruption", "local", put(pod_of("worker"), "terminationGracePeriodSeconds", 60)),
    ("disruption", "local", put(pod_of("ps-server"), "terminationGracePeriodSeconds", 60)),
    ("disruption", ALL, put(pod_of("ps-server"), "terminationGracePeriodSeconds", 75)),
    ("autoscaling", ALL, remove("HorizontalPodAutoscaler", "evergrad-worker")),
    ("autoscaling", ALL, put(named("Deployment", "evergrad-worker"), "spec", "replicas", 4)),
    ("autoscaling", "local", drop(named("Deployment", "evergrad-worker"), "spec", "replicas")),
    ("autoscaling", ALL, put(HPA, "spec", "scaleTargetRef", "kind", "StatefulSet")),
    ("autoscaling", ALL, put(HPA, "spec", "maxReplicas", 1)),
    ("autoscaling", ALL, put(HPA, "spec", "minReplicas", 0)),
    ("autoscaling", ALL, put(HPA, "spec", "metrics", 0, "external", "metric", "name", "wanted")),
    (
        "autoscaling",
        ALL,
        put(HPA, "spec", "metrics", 0, "external", "target", {"type": "Value", "value": "1"}),
    ),
    ("autoscaling", ALL, drop(HPA, "spec", "behavior", "scaleDown", "stabilizationWindowSeconds")),
    ("autoscaling", ALL, drop(HPA, "spec", "behavior", "scaleDown", "policies")),
    ("autoscaling", KEDA, put(SCALED, "spec", "scaleTargetRef", "name", "evergrad-ps-server")),
    ("autoscaling", KEDA, put(SCALED, "spec", "cooldownPeriod", 30)),
    ("autoscaling", KEDA, put(SCALED, "spec", "minReplicaCount", 1)),
    ("autoscaling", KEDA, put(trigger, "metadata", "query", "vector(4)")),
    ("autoscaling", KEDA, put(trigger, "metadata", "threshold", "2")),
    ("autoscaling", KEDA, put(trigger, "metadata", "activationThreshold", "1")),
    ("autoscaling", KEDA, put(trigger, "metadata", "ignoreNullValues", "true")),
    ("autoscaling", KEDA, put(trigger, "metricType", "Value")),
    (
        "autoscaling",
        KEDA,
        put(
            SCALED,
            *("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleDown"),
            {"stabilizationWindowSeconds": 0},
        ),
    ),
    ("custom_kinds", KEDA, put(SCALED, "spec", "maxReplicas", 16)),
    ("custom_kinds", KEDA, put(trigger, "metadata", "threshold", 1)),
    ("custom_kinds", KEDA, drop(trigger, "metadata", "ignoreNullValues")),
    ("custom_kinds", KEDA, drop(SCALED, "spec", "scaleTargetRef")),
    ("network", "local", remove("NetworkPolicy", "default-deny")),
    ("network", "local", remove("NetworkPolicy", "allow-dns")),
    ("network", "local", drop(SERVER_POLICY, "spec", "ingress", 0, "from")),
    ("network", "local", put(SERVER_POLICY, "spec", "egress", [])),
    (
        "network",
        "local",
        lambda c: named("NetworkPolicy", "evergrad-worker")(c)["spec"]["egress"].append(
            {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}
        ),
    ),
    ("network", OPERATED, remove("NetworkPolicy", "evergrad-operator")),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 0)),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1)),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1, "ports", 0)),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1, "ports", 1)),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1, "ports")),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1, "to", 0, "ipBlock", "except")),
    ("network", OPERATED, drop(AGENT_POLICY, "spec", "egress", 1, "to", 1, "ipBlock", "except")),
    (
        "network",
        OPERATED,
        drop(AGENT_POLICY, "spec", "podSelector", "matchLabels", checks.COMPONENT),
    ),
    (
        "network",
        OPERATED,
        remove_from_policy("evergrad-coordinator", "ingress", 0, "from", 0, "podSelector"),
    ),
    ("network", OPERATED, let_the_operator_reach_the_servers),
    (
        "network",
        OPERATED,
        lambda c: AGENT_POLICY(c)["spec"].update(
            policyTypes=["Ingress", "Egress"],
            ingress=[{"ports": [{"protocol": "TCP", "port": 9430}]}],
        ),
    ),
    ("network", OPERATED, put(labels_of("operator"), checks.WATCHES, "true")),
    ("network", ALL, drop(SCRAPED, "spec", "ingress", 0, "ports", 3)),
    ("network", ALL, drop(SCRAPED, "spec", "ingress", 0, "ports")),
    ("network", ALL, remove_from_policy("evergrad-prometheus", "podSelector")),
    (
        "network",
        ALL,
        lambda c: SCRAPED(c)["spec"]["ingress"][0]["ports"].append(
            {"protocol": "TCP", "port": 4010}
        ),
    ),
    ("network", ALL, drop(SCRAPED, "spec", "ingress", 0, "from", 0, "namespaceSelector")),
    ("network", "gke-spot", remove("NetworkPolicy", "evergrad-store")),
    ("network", "eks-spot", drop(labels_of("coordinator"), checks.USES_STORE)),
    ("network", "eks-spot", put(labels_of("worker"), checks.USES_STORE, "true")),
    ("network", SHARED, put(labels_of("coordinator"), checks.USES_STORE, "true")),
    ("network", "gke-spot", drop(STORE_RULE, "to", 0, "ipBlock", "except")),
    ("network", "gke-spot", drop(STORE_RULE, "to", 1, "ipBlock", "except")),
    ("network", "gke-spot", drop(STORE_RULE, "to", 1)),
    ("network", "gke-spot", drop(STORE_RULE, "ports")),
    ("network", "gke-spot", put(STORE_RULE, "ports", 0, "port", 80)),
    (
        "network",
        "gke-spot",
        drop(named("NetworkPolicy", "evergrad-store"), "spec", "podSelector", "matchLabels"),
    ),
    ("network", "gke-spot", remove("NetworkPolicy", "evergrad-store-identity")),
    ("network", "eks with Pod Identity", remove("NetworkPolicy", "evergrad-store-identity")),
    (
        "network",
        "eks with Pod Identity",
        put(IDENTITY_RULE, "to", 0, "ipBlock", "cidr", "169.254.0.0/16"),
    ),
    ("network", "gke-spot", remove("NetworkPolicy", "evergrad-notices")),
    (
        "network",
        "eks-spot",
        put(
            named("Deployment", "evergrad-worker"),
            *("spec", "template", "metadata", "labels", checks.WATCHES, "false"),
        ),
    ),
    (
        "network",
        "aks-spot",
        drop(
            named("NetworkPolicy", "evergrad-notices"),
            *("spec", "podSelector", "matchLabels", checks.WATCHES),
        ),
    ),
    ("custom_kinds", "gke-spot", put(CERTIFICATE, "spec", "uri", "evergrad://worker")),
    ("custom_kinds", "gke-spot", drop(CERTIFICATE, "spec", "secretName")),
    ("custom_kinds", "gke-spot", put(CERTIFICATE, "spec", "uris", ["evergrad://coordinator"])),
    ("custom_kinds", "gke-spot", put(CERTIFICATE, "spec", "usages", ["server-auth"])),
    ("custom_kinds", "gke-spot", put(CERTIFICATE, "spec", "renewBefore", "9000h")),
    ("custom_kinds", "gke-spot", put(CERTIFICATE, "spec", "issuerRef", "name", "evergrad")),
    (
        "custom_kinds",
        "gke-spot",
        drop(named("Certificate", "evergrad-coordinator"), "spec", "dnsNames"),
    ),
    (
        "custom_kinds",
        "gke-spot",
        put(named("Issuer", "evergrad-authority"), "spec", "ca", "secretName", "other"),
    ),
    ("custom_kinds", ALL, put(MONITOR, "spec", "podMetricsEndpoints", 0, "scheme", "http")),
    ("custom_kinds", ALL, put(MONITOR, "spec", "podMetricsEndpoints", 0, "tls", {})),
    ("custom_kinds", ALL, put(MONITOR, "spec", "podMetricsEndpoints", [])),
    (
        "custom_kinds",
        ALL,
        put(MONITOR, "spec", "podMetricsEndpoints", 0, "tlsConfig", "serverName", "worker"),
    ),
    (
        "custom_kinds",
        ALL,
        put(named("PrometheusRule", "evergrad"), "spec", "groups", 0, "rules", 0, "for", 5),
    ),
    (
        "issued_by_psctl",
        "local",
        lambda c: named("Job", "evergrad-certificates")(c)["spec"]["template"]["spec"][
            "initContainers"
        ].pop(),
    ),
    ("issued_by_psctl", "local", put(certificate_of_worker, "subPath", "coordinator")),
    ("issued_by_psctl", OPERATED, put(AGENT, "volumeMounts", 0, "subPath", "worker")),
    ("issued_by_psctl", OPERATED, drop(AGENT, "volumeMounts", 0, "subPath")),
    (
        "issued_by_psctl",
        "local",
        lambda c: WORKER(c)["volumeMounts"].append({"mountPath": "/authority", "name": "tls"}),
    ),
    (
        "alerts",
        ALL,
        put(
            named("PrometheusRule", "evergrad"),
            *("spec", "groups", 0, "rules", 0, "expr", "absent(up)"),
        ),
    ),
]


class Mutations(unittest.TestCase):
    def test_each_check_can_fail(self):
        by_name = {check.__name__: check for check in checks.CHECKS}
        for number, (name, of, mutate) in enumerate(MUTATIONS):
            with self.subTest(number=number, check=name, cluster=of):
                c = cluster(of)
                mutate(c)
                self.assertNotEqual(by_name[name](c), [])
        self.assertEqual(set(by_name), {name for name, _, _ in MUTATIONS}, "no mutation for these")

    def test_a_field_that_does_not_exist_is_found_for_every_version(self):
        c = cluster("local")
        c.role("worker")[0]["spec"]["terminationGraceSeconds"] = 5
        found, _ = invalid(c.docs)
        self.assertEqual([f.split(":")[0] for f in found], list(VERSIONS))

    def test_a_kind_that_nothing_knows_is_found(self):
        c = cluster("local")
        c.docs.append({"apiVersion": "a.b/v1", "kind": "Other", "metadata": {"name": "other"}})
        _, unknown = invalid(c.docs)
        self.assertEqual(unknown, {"Other"})
        self.assertFalse(unknown <= set(checks.FORMS))

    def test_a_rule_of_the_adapter_that_serves_another_metric_is_found(self):
        with open(checks.ADAPTER) as f:
            text = f.read()
        self.assertEqual(list(checks.adapter_rules(yaml.safe_load(text))), [])
        for old, new in (
            ("seriesQuery: evergrad_", "seriesQuery: "),
            ("{as: evergrad_coordinator_workers_wanted}", "{as: workers_wanted}"),
            ("{namespace: {resource: namespace}}", "{}"),
            ("<<.LabelMatchers>>", ""),
        ):
            with self.subTest(old):
                self.assertIn(old, text)
                values = yaml.safe_load(text.replace(old, new))
                self.assertNotEqual(list(checks.adapter_rules(values)), [])

    def test_a_container_that_is_not_the_first_is_checked_as_well(self):
        c = cluster("local")
        template = c.get("Job", "evergrad-certificates")["spec"]["template"]
        del containers(template)[2]["securityContext"]
        self.assertNotEqual(checks.restricted(c), [])


if __name__ == "__main__":
    if "--bin" in sys.argv:
        at = sys.argv.index("--bin")
        PSCTL = shutil.which(os.path.join(sys.argv[at + 1], "psctl"))
        OPERATOR = shutil.which(os.path.join(sys.argv[at + 1], "evergrad-operator"))
        WORKER_PROGRAM = shutil.which(os.path.join(sys.argv[at + 1], "evergrad-worker"))
        del sys.argv[at : at + 2]
    if "--write" in sys.argv:
        with open(COMPONENT_RULES, "w") as out:
            out.write(component_rules())
        if OPERATOR is not None:
            definition = printed_definition()
            with open(DEFINITION, "w") as out:
                out.write(definition)
        sys.exit(0)
    unittest.main()
