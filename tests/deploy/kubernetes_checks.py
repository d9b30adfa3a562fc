"""Checks of the rendered manifests of deploy/kubernetes. Each check is a function of a Cluster that
returns a list of findings. kubernetes_test.py runs the checks, and shows that each can fail."""
import ipaddress
import os
import re

import jsonschema
import yaml

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
ROLES = {  # role: (program, kind, port, port of the metrics)
    "coordinator": ("evergrad-coordinator", "StatefulSet", 4000, 9400),
    "ps-server": ("evergrad-ps-server", "StatefulSet", 4010, 9410),
    "worker": ("evergrad-worker", "Deployment", 4020, 9420),
}
# The operator serves nothing but its metrics, and only some clusters have one.
OPERATOR = "operator"
OPERATOR_METRICS = 9430
# The rights of the operator, as (group, resource): verbs. No other account has a right.
OPERATOR_RIGHTS = {
    ("evergrad.dev", "trainingjobs"): {"get", "list", "watch", "patch"},
    ("evergrad.dev", "trainingjobs/status"): {"patch"},
    ("", "events"): {"create"},
}
OPERATOR_FLAGS = {
    "--coordinator": "evergrad-coordinator:4000",
    "--metrics-listen": "0.0.0.0:%d" % OPERATOR_METRICS,
    "--tls-ca": "/etc/evergrad/tls/ca.crt",
    "--tls-cert": "/etc/evergrad/tls/tls.crt",
    "--tls-key": "/etc/evergrad/tls/tls.key",
    "--log-format": "json",
}
API_SERVER_PORTS = (443, 6443)
COMPONENT = "app.kubernetes.io/component"
WATCHES = "evergrad.dev/watches-notices"
# The label of the pods that use an object store, and the roles that keep checkpoints there. Workers
# have the label if they read data from a store.
USES_STORE = "evergrad.dev/uses-store"
STORE_ROLES = ("coordinator", "ps-server")
STORE_CONFIG = "evergrad-store"
# The flags of these roles whose values are keys of the ConfigMap STORE_CONFIG.
STORE_FLAGS = {
    "--s3-endpoint": "S3_ENDPOINT",
    "--s3-region": "S3_REGION",
    "--s3-addressing": "S3_ADDRESSING",
    "--store-ca": "STORE_CA",
    "--store-metadata-credentials": "STORE_METADATA_CREDENTIALS",
}
SECRET_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
# The annotation of a service account for each kind of identity that has one.
IDENTITY_ANNOTATIONS = {
    "gke": ("iam.gke.io/gcp-service-account", r"[^@]+@[^@]+\.iam\.gserviceaccount\.com"),
    "irsa": ("eks.amazonaws.com/role-arn", r"arn:aws:iam::[^:]+:role/.+"),
}
# Storage classes that the managed clusters of a cloud have by default.
BUILT_IN_CLASSES = {"premium-rwo", "managed-csi-premium"}
AWAY = [
    {"key": "node.kubernetes.io/" + why, "operator": "Exists", "effect": "NoExecute"}
    | {"tolerationSeconds": 10}
    for why in ("not-ready", "unreachable")
]
CLOUDS = {  # cloud: labels of spot nodes, toleration, value of the notice flag, seconds of notice
    "gke": {
        "labels": {
            "cloud.google.com/gke-spot": "true",
            "cloud.google.com/gke-provisioning": "spot",
        },
        "toleration": ("cloud.google.com/gke-spot", "true"),
        "source": "gce",
        "notice": 15,
    },
    "eks": {
        "labels": {"eks.amazonaws.com/capacityType": "SPOT", "karpenter.sh/capacity-type": "spot"},
        "toleration": None,
        "source": "aws",
        "notice": 120,
    },
    "aks": {
        "labels": {"kubernetes.azure.com/scalesetpriority": "spot"},
        "toleration": ("kubernetes.azure.com/scalesetpriority", "spot"),
        "source": "azure",
        "notice": 30,
    },
}


class Cluster:
    """The objects of one overlay with its components, and the properties that they must have.

    `store` is the scheme of the URI of the checkpoints ("s3" or "gs"), or None if they are on a
    shared volume. `data_store` is the scheme of the URI of the data files, or None if the workers
    reach no store. `identity` is the origin of the credentials: "gke", "irsa", "pod-identity",
    "keys" or None. `endpoint` is the service that the cluster uses in place of its cloud's, and
    `own_ca` whether this service has a certificate authority of its own. `data_volume` is whether
    the workers read data from a volume, and `operator` whether the cluster has an operator."""

    def __init__(
        self,
        docs,
        cloud=None,
        servers_on_spot=False,
        gpu=False,
        autoscaler=None,
        version="0.1.0",
        store=None,
        identity=None,
        endpoint="",
        own_ca=False,
        data_volume=False,
        operator=False,
        data_store=None,
    ):
        self.docs, self.cloud, self.cloud_name = docs, CLOUDS.get(cloud), cloud
        self.servers_on_spot, self.gpu, self.version = servers_on_spot, gpu, version
        self.autoscaler = autoscaler  # the kind of object that sets the number of workers
        self.store, self.identity, self.endpoint = store, identity, endpoint
        self.own_ca, self.data_volume = own_ca, data_volume
        self.operator, self.data_store = operator, data_store

    def of(self, *kinds):
        return [d for d in self.docs if d["kind"] in kinds]

    def get(self, kind, name):
        found = [d for d in self.of(kind) if d["metadata"]["name"] == name]
        return found[0] if len(found) == 1 else None

    def workloads(self):
        """Returns [(name, pod template, object)] of all workloads."""
        kinds = ("StatefulSet", "Deployment", "Job", "DaemonSet", "CronJob", "Pod")
        return [
            ("%s %s" % (d["kind"], d["metadata"]["name"]), d["spec"]["template"], d)
            for d in self.of(*kinds)
        ]

    def role(self, role):
        """Returns (pod template, object) of a role's only workload."""
        name, kind = "evergrad-" + role, ROLES[role][1] if role in ROLES else "Deployment"
        d = self.get(kind, name)
        return (d["spec"]["template"], d) if d else (None, None)

    def probed_roles(self):
        """Returns the roles whose pods have probes and serve metrics."""
        return list(ROLES) + ([OPERATOR] if self.operator else [])

    def on_spot(self, role):
        return self.cloud and (role == "worker" or role == "ps-server" and self.servers_on_spot)

    def uses_store(self, role):
        return bool(self.store if role in STORE_ROLES else self.data_store and role == "worker")

    def store_setting(self, key):
        config = self.get("ConfigMap", STORE_CONFIG)
        return config["data"].get(key) if config else None


def containers(template):
    spec = template["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def words(container):
    return container.get("command", []) + container.get("args", [])


def flags(container):
    """Returns [(flag, value)] of a container."""
    return [
        (w.split("=", 1)[0], w.split("=", 1)[1] if "=" in w else None)
        for w in words(container)
        if w.startswith("--")
    ]


def flag(container, name):
    return next((v for f, v in flags(container) if f == name), None)


def matches(selector, labels):
    """Returns whether a label selector of Kubernetes selects these labels."""
    if selector is None:
        return False
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for e in selector.get("matchExpressions", []):
        have = labels.get(e["key"])
        good = {
            "In": have in e.get("values", []),
            "NotIn": have not in e.get("values", []),
            "Exists": have is not None,
            "DoesNotExist": have is None,
        }[e["operator"]]
        if not good:
            return False
    return True


def pod_labels(template):
    return template.get("metadata", {}).get("labels", {})


# The checks.


def restricted(c):
    """Checks three things: the pod security level is `restricted`, the root file system is
    read-only, and a token is mounted in the pod of the operator alone."""
    found = []
    for n in c.of("Namespace"):
        labels = n["metadata"].get("labels", {})
        for mode in ("enforce", "audit", "warn"):
            if labels.get("pod-security.kubernetes.io/" + mode) != "restricted":
                found.append("namespace: %s is not restricted" % mode)
    if not c.of("Namespace"):
        found.append("no namespace")
    for account in c.of("ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            found.append("%s: token is mounted" % account["metadata"]["name"])
    for name, template, _ in c.workloads():
        spec = template["spec"]
        pod = spec.get("securityContext", {})
        for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            if spec.get(key):
                found.append("%s: %s" % (name, key))
        token = name == "Deployment evergrad-operator"
        if spec.get("automountServiceAccountToken") is not token:
            found.append("%s: token is %s" % (name, "not mounted" if token else "mounted"))
        if pod.get("runAsNonRoot") is not True:
            found.append("%s: runAsNonRoot" % name)
        for key in ("runAsUser", "runAsGroup", "fsGroup"):
            if pod.get(key) != 65532:
                found.append("%s: %s is %s" % (name, key, pod.get(key)))
        if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            found.append("%s: seccompProfile" % name)
        for volume in spec.get("volumes", []):
            kinds = set(volume) - {"name"}
            if not kinds <= {"secret", "configMap", "emptyDir", "persistentVolumeClaim"}:
                found.append("%s: volume of kind %s" % (name, sorted(kinds)))
        for container in containers(template):
            found += ["%s: %s" % (name, f) for f in _unrestricted(container)]
    return found


def _unrestricted(container):
    own = container.get("securityContext", {})
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem"
    if own.get("capabilities") != {"drop": ["ALL"]}:
        yield "capabilities"
    for key in ("privileged", "procMount", "runAsUser", "runAsNonRoot", "seccompProfile"):
        if key in own:
            yield "%s is set for a container" % key
    if any("hostPort" in p for p in container.get("ports", [])):
        yield "hostPort"


def selectors(c):
    """Checks that every selector selects the pods that it is meant for, and at least one pod."""
    found, pods = [], [pod_labels(t) for _, t, _ in c.workloads()]
    for name, template, d in c.workloads():
        if d["kind"] == "Job":
            continue
        if not matches(d["spec"]["selector"], pod_labels(template)):
            found.append("%s: selects other pods than its own" % name)
        if sum(matches(d["spec"]["selector"], labels) for labels in pods) != 1:
            found.append("%s: selects pods of others" % name)
        if d["kind"] == "StatefulSet":
            service = c.get("Service", d["spec"]["serviceName"])
            if not service or service["spec"].get("clusterIP") != "None":
                found.append("%s: no headless service" % name)
            elif not matches({"matchLabels": service["spec"]["selector"]}, pod_labels(template)):
                found.append("%s: its service selects other pods" % name)
    named = [(s, {"matchLabels": s["spec"]["selector"]}) for s in c.of("Service")]
    named += [(d, d["spec"]["selector"]) for d in c.of("PodDisruptionBudget", "PodMonitor")]
    named += [(d, d["spec"]["podSelector"]) for d in c.of("NetworkPolicy")]
    for policy in c.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
            for peer in rule.get("from", []) + rule.get("to", []):
                if "podSelector" in peer and "namespaceSelector" not in peer:
                    named.append((policy, peer["podSelector"]))
    for d, selector in named:
        # A shared volume takes the label from the pods, and leaves the policies for the label.
        if not c.store and selector.get("matchLabels", {}).get(USES_STORE) == "true":
            continue
        # The component prometheus has the monitor of an operator in every cluster.
        if (d["kind"], d["metadata"]["name"]) == ("PodMonitor", "evergrad-operator"):
            if not c.operator and selector.get("matchLabels", {}).get(COMPONENT) == OPERATOR:
                continue
        if not any(matches(selector, labels) for labels in pods):
            found.append("%s %s: selects no pod" % (d["kind"], d["metadata"]["name"]))
    for name, template, _ in c.workloads():
        for spread in template["spec"].get("topologySpreadConstraints", []):
            if not matches(spread["labelSelector"], pod_labels(template)):
                found.append("%s: spreads other pods" % name)
    return found


def ports(c):
    """Checks that flags, container ports, services, probes, policies and monitors name the same
    ports."""
    found = []
    for role, (_, _, port, metrics) in ROLES.items():
        template, _ = c.role(role)
        if not template:
            found.append("no workload of the role %s" % role)
            continue
        container = template["spec"]["containers"][0]
        have = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
        if have != {"grpc": port, "metrics": metrics}:
            found.append("%s: ports %s" % (role, have))
        for name, want in (("--listen", port), ("--metrics-listen", metrics)):
            if flag(container, name) != "0.0.0.0:%d" % want:
                found.append("%s: %s is %s" % (role, name, flag(container, name)))
        want = "evergrad-coordinator" if role == "coordinator" else "$(POD_IP)"
        if flag(container, "--advertise") != "%s:%d" % (want, port):
            found.append("%s: --advertise is %s" % (role, flag(container, "--advertise")))
    for service in c.of("Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        for _, template, _ in c.workloads():
            if not matches(selector, pod_labels(template)):
                continue
            have = {
                p["name"]: p["containerPort"] for p in template["spec"]["containers"][0]["ports"]
            }
            for p in service["spec"]["ports"]:
                if have.get(p["targetPort"]) != p["port"]:
                    found.append("service %s: port %s" % (service["metadata"]["name"], p))
    for name, template, _ in c.workloads():
        for container in containers(template):
            address = flag(container, "--coordinator")
            if address and address != "evergrad-coordinator:4000":
                found.append("%s: --coordinator is %s" % (name, address))
    if c.operator:
        container = c.role(OPERATOR)[0]["spec"]["containers"][0]
        have = [(p["name"], p["containerPort"]) for p in container.get("ports", [])]
        if have != [("metrics", OPERATOR_METRICS)]:
            found.append("operator: ports %s" % have)
    known = {p for _, _, port, metrics in ROLES.values() for p in (port, metrics)}
    known |= {53, 80, 988, OPERATOR_METRICS, *API_SERVER_PORTS}
    for policy in c.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []) + policy["spec"].get("egress", []):
            for p in rule.get("ports", [{"port": "any"}]):
                if p["port"] not in known:
                    found.append("policy %s: port %s" % (policy["metadata"]["name"], p["port"]))
    for monitor in c.of("PodMonitor"):
        if [e.get("port") for e in monitor["spec"]["podMetricsEndpoints"]] != ["metrics"]:
            found.append("monitor %s: port" % monitor["metadata"]["name"])
    return found


def coordinator_address(c):
    """Checks the address at which the coordinator is dialed. It must stay the same when the
    coordinator's pod is replaced, and it must work while the pod is not ready. The coordinator's
    certificate must have the name in this address and the name of the pod."""
    found = []
    template, d = c.role("coordinator")
    service = c.get("Service", "evergrad-coordinator")
    if not service:
        return ["no service evergrad-coordinator"]
    spec = service["spec"]
    if spec.get("type", "ClusterIP") != "ClusterIP" or "clusterIP" in spec:
        found.append("service evergrad-coordinator: it has no address of its own")
    if spec.get("publishNotReadyAddresses") is not True:
        found.append("service evergrad-coordinator: it hides a coordinator in its window")
    if not matches({"matchLabels": spec["selector"]}, pod_labels(template)):
        found.append("service evergrad-coordinator: it selects other pods")
    if [p["port"] for p in spec["ports"]] != [ROLES["coordinator"][2]]:
        found.append("service evergrad-coordinator: ports %s" % spec["ports"])
    want = {"evergrad-coordinator", "evergrad-coordinator.evergrad.svc"}
    want.add("evergrad-coordinator-0.%s.evergrad.svc.cluster.local" % d["spec"]["serviceName"])
    for names in _names_of_the_coordinator(c):
        found += ["certificate: it lacks %s" % name for name in sorted(want - set(names))]
    return found


def _names_of_the_coordinator(c):
    """Yields the DNS names of each certificate of the coordinator, whether cert-manager or psctl
    makes it."""
    certificate = c.get("Certificate", "evergrad-coordinator")
    if certificate:
        yield certificate["spec"].get("dnsNames", [])
    job = c.get("Job", "evergrad-certificates")
    for container in containers(job["spec"]["template"]) if job else []:
        if flag(container, "--task") == "coordinator":
            yield [v for f, v in flags(container) if f == "--host"]


def probes(c):
    """Checks the probes, both over HTTPS: /livez must restart a daemon, and /readyz must take it
    out of rollouts."""
    found = []
    for role in c.probed_roles():
        container = c.role(role)[0]["spec"]["containers"][0]
        for probe, path in (
            ("startupProbe", "/livez"),
            ("livenessProbe", "/livez"),
            ("readinessProbe", "/readyz"),
        ):
            get = container.get(probe, {}).get("httpGet")
            if get != {"path": path, "port": "metrics", "scheme": "HTTPS"}:
                found.append("%s: %s is %s" % (role, probe, get))
    return found


def placement(c):
    """Checks the tolerations, and the nodes on which each role may run."""
    found = []
    for name, template, _ in c.workloads():
        role = pod_labels(template).get(COMPONENT)
        want = list(AWAY)
        if c.on_spot(role) and c.cloud["toleration"]:
            key, value = c.cloud["toleration"]
            want.append({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"})
        if c.gpu and role == "worker":
            want.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
        have = template["spec"].get("tolerations", [])
        order = sorted
        if order(map(repr, map(_sorted, have))) != order(map(repr, map(_sorted, want))):
            found.append("%s: tolerations %s" % (name, have))
        terms = (
            template["spec"]
            .get("affinity", {})
            .get("nodeAffinity", {})
            .get("requiredDuringSchedulingIgnoredDuringExecution", {})
            .get("nodeSelectorTerms", [])
        )
        have = [
            [(e["key"], e["operator"], e["values"]) for e in t["matchExpressions"]] for t in terms
        ]
        labels = c.cloud["labels"].items() if c.cloud and role in ROLES else []
        if c.on_spot(role):
            want = [[(k, "In", [v])] for k, v in labels]  # one of the labels is enough
        else:
            want = [[(k, "NotIn", [v]) for k, v in labels]] if labels else []
        if have != want:
            found.append("%s: nodes %s" % (name, have))
    return found


def _sorted(mapping):
    return sorted(mapping.items())


def spread(c):
    """Checks that the pods of a role are spread over different hosts, if there are enough hosts."""
    found = []
    for role in ROLES:
        constraints = c.role(role)[0]["spec"].get("topologySpreadConstraints", [])
        if [s.get("topologyKey") for s in constraints] != ["kubernetes.io/hostname"]:
            found.append("%s: topologySpreadConstraints" % role)
        # A constraint that holds a pod back would keep a lost server from starting on the only free
        # node.
        if any(s.get("whenUnsatisfiable") != "ScheduleAnyway" for s in constraints):
            found.append("%s: a spread holds pods back" % role)
    return found


def images(c):
    """Checks that every image is an image of the release, with its version."""
    found = []
    for name, template, _ in c.workloads():
        role = pod_labels(template).get(COMPONENT)
        want = "evergrad-cuda" if c.gpu and role == "worker" else "evergrad"
        for container in containers(template):
            if container.get("image") != "%s:%s" % (want, c.version):
                found.append("%s: image %s" % (name, container.get("image")))
    return found


def resources(c):
    """Checks the requests and limits of CPU and memory. In a cluster with GPUs, a worker must have
    one GPU."""
    found = []
    for name, template, _ in c.workloads():
        for container in containers(template):
            have = container.get("resources", {})
            for kind in ("requests", "limits"):
                missing = {"cpu", "memory"} - set(have.get(kind, {}))
                if missing:
                    found.append("%s: no %s of %s" % (name, kind, sorted(missing)))
        gpus = [
            container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
            for container in containers(template)
        ]
        want = ["1"] if c.gpu and name == "Deployment evergrad-worker" else [None] * len(gpus)
        if gpus != want:
            found.append("%s: GPUs %s" % (name, gpus))
    return found


def documented_flags():
    """Returns {program or psctl command: its flags} from docs/cli.md. Another test compares that
    page with the programs."""
    with open(os.path.join(ROOT, "docs", "cli.md")) as f:
        text = f.read()
    found = {}
    for title, body in re.findall(r"(?ms)^### (\S[^\n]*)\n(.*?)(?=^##|\Z)", text):
        if title.startswith(("evergrad-", "psctl ")):
            known = re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", body)
            found.setdefault(title.strip(), set()).update(known)
    return found


def program_flags(c):
    """Checks that the programs have every flag that is used, that TLS is on, and that the allowed
    data folders are set."""
    found, documented = [], documented_flags()
    for name, template, _ in c.workloads():
        for container in containers(template):
            line = words(container)
            program = os.path.basename(line[0])
            if program == "psctl":
                program = " ".join(["psctl"] + line[1:3])
            if program not in documented:
                found.append("%s: no such program or verb: %s" % (name, program))
                continue
            for f, _ in flags(container):
                if f not in documented[program]:
                    found.append("%s: %s has no flag %s" % (name, program, f))
                if f.startswith(("--insecure", "--failpoint")):
                    found.append("%s: %s" % (name, f))
            known = set(variables(c, container))
            for variable in re.findall(r"\$\((\w+)\)", " ".join(line)):
                if variable not in known:
                    found.append("%s: no variable %s" % (name, variable))
            if program.startswith("psctl cert"):
                continue
            for f, file in (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")):
                if flag(container, "--tls-" + f) != "/etc/evergrad/tls/" + file:
                    found.append("%s: --tls-%s" % (name, f))
    for role, name, want in (
        ("coordinator", "--state-dir", ["/var/lib/evergrad/state"]),
        ("coordinator", "--runs", ["/runs"]),
        ("coordinator", "--checkpoint-root", ["$(CHECKPOINTS)"]),
        ("ps-server", "--checkpoint-root", ["$(CHECKPOINTS)", "/runs"]),
        ("worker", "--data-root", ["/data"] + (["$(DATA)"] if c.data_store else [])),
        ("worker", "--name", ["$(POD_NAME)"]),
    ):
        container = c.role(role)[0]["spec"]["containers"][0]
        have = [v for f, v in flags(container) if f == name]
        if have != want:
            found.append("%s: %s is %s" % (role, name, have))
    for role in ROLES:
        container = c.role(role)[0]["spec"]["containers"][0]
        want = c.cloud["source"] if c.on_spot(role) else None
        if flag(container, "--preemption-source") != want:
            found.append("%s: --preemption-source" % role)
        if flag(container, "--log-format") != "json":
            found.append("%s: --log-format" % role)
    device = flag(c.role("worker")[0]["spec"]["containers"][0], "--device")
    if device != ("gpu" if c.gpu else None):
        found.append("worker: --device is %s" % device)
    return found


def variables(c, container):
    """Returns the environment of a container as {name: value}. The value of a variable that has its
    value from another object than a ConfigMap is None."""
    found = {}
    for source in container.get("envFrom", []):
        config = c.get("ConfigMap", source.get("configMapRef", {}).get("name"))
        found.update(config["data"] if config else {})
    for entry in container.get("env", []):
        reference = entry.get("valueFrom", {}).get("configMapKeyRef")
        config = reference and c.get("ConfigMap", reference["name"])
        value = config["data"].get(reference["key"]) if config else entry.get("value")
        found[entry["name"]] = value
    return found


def expanded_flags(c, container):
    """Returns [(flag, value)] of a container, with the values of its variables."""
    known = variables(c, container)
    return [
        (f, v and re.sub(r"\$\((\w+)\)", lambda m: known.get(m[1]) or "", v))
        for f, v in flags(container)
    ]


def references(c):
    """Checks that the objects that a pod names exist, and that every folder in a flag is on a
    volume."""
    found = []
    secrets = {d["spec"]["secretName"] for d in c.of("Certificate")}
    secrets |= {d["metadata"]["name"] for d in c.of("Secret")}
    configs = {d["metadata"]["name"] for d in c.of("ConfigMap")}
    classes = {d["metadata"]["name"] for d in c.of("StorageClass")} | BUILT_IN_CLASSES
    claims = c.of("PersistentVolumeClaim")
    for name, template, d in c.workloads():
        spec = template["spec"]
        own = d["spec"].get("volumeClaimTemplates", [])
        volumes = {v["name"] for v in spec.get("volumes", [])} | {
            o["metadata"]["name"] for o in own
        }
        claims = claims + own
        if not c.get("ServiceAccount", spec.get("serviceAccountName", "default")):
            found.append("%s: no such account" % name)
        priority = spec.get("priorityClassName")
        if priority and not c.get("PriorityClass", priority):
            found.append("%s: no priority class %s" % (name, priority))
        for volume in spec.get("volumes", []):
            if len(volume) != 2:
                found.append("%s: volume %s has two sources" % (name, volume["name"]))
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and not c.get("PersistentVolumeClaim", claim):
                found.append("%s: no claim %s" % (name, claim))
            secret = volume.get("secret", {}).get("secretName")
            if secret and secret not in secrets:
                found.append("%s: nothing makes the secret %s" % (name, secret))
            config = volume.get("configMap", {}).get("name")
            # kustomize appends a hash of the contents to the name.
            if config and not c.get("ConfigMap", config):
                found.append("%s: no ConfigMap %s" % (name, config))
        for container in containers(template):
            for kind, named in sources(container):
                if named not in (secrets if kind.startswith("secret") else configs):
                    found.append("%s: nothing makes %s, which a variable names" % (name, named))
            mounts = {m["mountPath"]: m for m in container.get("volumeMounts", [])}
            for m in mounts.values():
                if m["name"] not in volumes:
                    found.append("%s: no volume %s" % (name, m["name"]))
            for f, value in expanded_flags(c, container):
                if value and value.startswith("/"):
                    if not any((value + "/").startswith(p + "/") for p in mounts):
                        found.append("%s: %s is on no volume" % (name, f))
            for path, want in (
                ("/data", True),
                ("/etc/evergrad/tls", True),
                ("/etc/evergrad/store", True),
            ):
                if path in mounts and mounts[path].get("readOnly", False) != want:
                    found.append("%s: %s is writable" % (name, path))
    for claim in claims:
        wanted = claim["spec"].get("storageClassName")
        if wanted and wanted not in classes:
            found.append("claim %s: no class %s" % (claim["metadata"]["name"], wanted))
    return found


def sources(container):
    """Yields (kind of reference, name) of each Secret and ConfigMap that gives variables."""
    for entry in container.get("env", []):
        for kind in ("configMapKeyRef", "secretKeyRef"):
            if kind in entry.get("valueFrom", {}):
                yield kind, entry["valueFrom"][kind]["name"]
    for source in container.get("envFrom", []):
        for kind in ("configMapRef", "secretRef"):
            if kind in source:
                yield kind, source[kind]["name"]


def volume_behind(template, path):
    """Returns the volume that is mounted at `path` in the first container of a pod, or None. The
    volume of a claim template is {"name": …} alone."""
    for m in template["spec"]["containers"][0]["volumeMounts"]:
        if m["mountPath"] == path:
            found = [v for v in template["spec"]["volumes"] if v["name"] == m["name"]]
            return found[0] if found else {"name": m["name"]}
    return None


def storage(c):
    """Checks the places of checkpoints, runs and data."""
    found = []
    place = c.store_setting("CHECKPOINTS")
    if place is None:
        return ["no place of the checkpoints"]
    shared = {"name": "shared", "persistentVolumeClaim": {"claimName": "evergrad-shared"}}
    want = r"%s://[^/]+/.+" % c.store if c.store else "/checkpoints"
    if not re.fullmatch(want, place):
        found.append("CHECKPOINTS is %s" % place)
    for role in STORE_ROLES:
        template = c.role(role)[0]
        if not c.store and volume_behind(template, "/checkpoints") != shared:
            found.append("%s: /checkpoints is not on the shared volume" % role)
    # The runs are on a volume that outlives the pod. Servers use the folder only if it is shared.
    runs = volume_behind(c.role("coordinator")[0], "/runs")
    if runs not in (shared, {"name": "state"}) or runs == {"name": "state"} and not c.store:
        found.append("coordinator: /runs is on %s" % runs)
    of_server = volume_behind(c.role("ps-server")[0], "/runs")
    if (of_server == shared) != (runs == shared):
        found.append("ps-server: /runs is on %s" % of_server)
    data = volume_behind(c.role("worker")[0], "/data")
    if (data == shared) != c.data_volume:
        found.append("worker: /data is on %s" % data)
    return found


def object_store(c):
    """Checks the settings of an object store. The Jobs of psctl and the operator have the URIs, and
    nothing else of a store. Only the coordinator, the servers, and the workers that read data from
    a store have flags and keys."""
    found = []
    want = {
        "S3_ENDPOINT": c.endpoint,
        "S3_REGION": c.store_setting("S3_REGION"),
        "S3_ADDRESSING": "auto",
        "STORE_CA": "/etc/evergrad/store/ca.crt" if c.own_ca else "",
        "STORE_METADATA_CREDENTIALS": "true" if c.identity == "gke" else "false",
    }
    for key, value in want.items():
        if value is None or c.store_setting(key) != value:
            found.append("%s is %r, want %r" % (key, c.store_setting(key), value))
    for name, template, _ in c.workloads():
        role = pod_labels(template).get(COMPONENT)
        if (pod_labels(template).get(USES_STORE) == "true") != c.uses_store(role):
            found.append("%s: the label %s" % (name, USES_STORE))
        for container in containers(template):
            given = flags(container)
            have = {f: v for f, v in given if f.startswith(("--s3-", "--gcs-", "--store-"))}
            wanted = {f: "$(%s)" % key for f, key in STORE_FLAGS.items()}
            configured = role in STORE_ROLES or c.uses_store(role)
            if have != (wanted if configured else {}):
                found.append("%s: flags of the store: %s" % (name, have))
            whole = [("configMapRef", STORE_CONFIG)] if configured else []
            whole += [("configMapKeyRef", STORE_CONFIG)] * 2 if role in ("psctl", OPERATOR) else []
            secret = [s for s in sources(container) if s[0].startswith("secret")]
            if [s for s in sources(container) if s not in secret] != whole:
                found.append("%s: variables from %s" % (name, list(sources(container))))
            keys = 2 if c.identity == "keys" and c.uses_store(role) else 0
            if len(secret) != keys:
                found.append("%s: keys of the store: %s" % (name, secret))
            found += ["%s: %s" % (name, f) for f in _exposed_secrets(container)]
    job = c.get("Job", "first-job")
    if job:
        have = variables(c, containers(job["spec"]["template"])[0])
        want = {"CHECKPOINTS": "CHECKPOINTS", "EVERGRAD_DATA": "DATA"}
        if have != {name: c.store_setting(key) for name, key in want.items()}:
            found.append("the Job of psctl: variables %s" % have)
    return found


# The folder of the copies of data files, and the volume that it is on.
DATA_CACHE = "/var/cache/evergrad"
SIZE_UNITS = {"Mi": 1 << 20, "MiB": 1 << 20, "Gi": 1 << 30, "GiB": 1 << 30}


def size(text):
    """Returns the bytes of a quantity of Kubernetes, or of a flag. None counts as 0."""
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text or "0Mi").groups()
    return int(number) * SIZE_UNITS[unit]


def data_in_store(c):
    """Checks the place of the data files. If it is a bucket, each worker needs a folder on disk for
    copies. The worker must be able to make this folder itself, the limit of the worker must be
    below that of the volume, and the node must have the space."""
    found = []
    place = c.store_setting("DATA")
    if not re.fullmatch(r"%s://[^/]+/.+" % c.data_store if c.data_store else "/data", place or ""):
        found.append("DATA is %s" % place)
    template, deployment = c.role("worker")
    container = template["spec"]["containers"][0]
    given = {f: v for f, v in expanded_flags(c, container) if f.startswith("--data-cache")}
    volume = volume_behind(template, DATA_CACHE)
    label = deployment["metadata"]["labels"].get(USES_STORE)
    requested = container["resources"]["requests"].get("ephemeral-storage")
    if not c.data_store:
        if given or volume or label or requested:
            found.append("worker: settings for data in a store, and no such data")
        return found
    if label != "true":
        found.append("worker: the Deployment has no label for the other components")
    # A volume is a folder that its group may write to, and the worker refuses such a folder.
    if given.get("--data-cache") != DATA_CACHE + "/data":
        found.append("worker: --data-cache is %s" % given.get("--data-cache"))
    empty = (volume or {}).get("emptyDir")
    if empty is None or set(empty) != {"sizeLimit"}:  # with a medium, the copies are in memory
        return found + ["worker: %s is on %s" % (DATA_CACHE, volume)]
    for m in container["volumeMounts"]:
        if m["mountPath"] == DATA_CACHE and (m.get("readOnly") or "subPath" in m):
            found.append("worker: the mount of %s" % DATA_CACHE)
    most = size(given.get("--data-cache-bytes-max"))
    if not 0 < most <= 0.9 * size(empty["sizeLimit"]):
        found.append("worker: %d bytes of copies in a volume of %s" % (most, empty["sizeLimit"]))
    if size(requested) < size(empty["sizeLimit"]):
        found.append("worker: the request of ephemeral-storage is %s" % requested)
    return found


def _exposed_secrets(container):
    """Yields each key of a store that is not from a Secret."""
    for entry in container.get("env", []):
        if entry["name"] in SECRET_VARIABLES:
            reference = entry.get("valueFrom", {}).get("secretKeyRef", {})
            if reference.get("key") != entry["name"] or "value" in entry:
                yield "the variable %s is not from a Secret" % entry["name"]
    for word in words(container):
        if re.search(r"(?i)secret|\$\(AWS_", word):
            yield "a key in an argument: %s" % word


def store_identity(c):
    """Checks that exactly the service accounts of the roles that use the store have the annotation
    of the cluster's kind of identity."""
    found = []
    annotation, form = IDENTITY_ANNOTATIONS.get(c.identity, (None, None))
    known = {a for a, _ in IDENTITY_ANNOTATIONS.values()}
    for account in c.of("ServiceAccount"):
        name = account["metadata"]["name"]
        have = account["metadata"].get("annotations") or {}
        role = name.removeprefix("evergrad-")
        want = {annotation} if annotation and c.uses_store(role) else set()
        # With checkpoints on a shared volume the annotation of the overlay has no effect.
        if (c.store or role not in STORE_ROLES) and set(have) & known != want:
            found.append("%s: annotations %s" % (name, sorted(have)))
        for key in want & set(have):
            if not re.fullmatch(form, have[key]):
                found.append("%s: %s is %s" % (name, key, have[key]))
    for role in ROLES:
        template = c.role(role)[0]
        if template["spec"]["serviceAccountName"] != "evergrad-" + role:
            found.append("%s: account" % role)
    return found


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60}[unit]


def operator(c):
    """Checks the operator: its rights, its flags, and that there is one or none. No account has
    rights in the whole cluster of Kubernetes, and no other account has rights at all."""
    found = ["a %s" % d["kind"] for d in c.of("ClusterRole", "ClusterRoleBinding")]
    kinds = ("Deployment", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy")
    for kind in kinds:
        if bool(c.get(kind, "evergrad-operator")) != c.operator:
            found.append("the %s of the operator" % kind)
    want = ["evergrad-operator"] if c.operator else []
    for kind in ("Role", "RoleBinding"):
        if [d["metadata"]["name"] for d in c.of(kind)] != want:
            found.append("%ss: %s" % (kind, [d["metadata"]["name"] for d in c.of(kind)]))
    if [d["metadata"]["name"] for d in c.of("CustomResourceDefinition")] != (
        ["trainingjobs.evergrad.dev"] if c.operator else []
    ):
        found.append("definitions of kinds")
    if not c.operator or found:
        return found
    have = {}
    for rule in c.get("Role", "evergrad-operator")["rules"]:
        if set(rule) != {"apiGroups", "resources", "verbs"}:
            found.append("a rule with the fields %s" % sorted(rule))
        for group in rule.get("apiGroups", []):
            for resource in rule.get("resources", []):
                have.setdefault((group, resource), set()).update(rule["verbs"])
    if have != OPERATOR_RIGHTS:
        found.append("rights %s" % have)
    binding = c.get("RoleBinding", "evergrad-operator")
    if (binding["roleRef"]["kind"], binding["roleRef"]["name"]) != ("Role", "evergrad-operator"):
        found.append("RoleBinding: %s" % binding["roleRef"])
    account = {"kind": "ServiceAccount", "name": "evergrad-operator", "namespace": "evergrad"}
    if binding["subjects"] != [account]:
        found.append("RoleBinding: subjects %s" % binding["subjects"])
    for name, template, _ in c.workloads():
        own = template["spec"].get("serviceAccountName") == "evergrad-operator"
        if own != (name == "Deployment evergrad-operator"):
            found.append("%s: account" % name)
    return found + list(_wrong_settings_of_operator(c))


def _wrong_settings_of_operator(c):
    template, d = c.role(OPERATOR)
    if (d["spec"].get("replicas"), d["spec"].get("strategy")) != (1, {"type": "Recreate"}):
        yield "replicas and strategy of the operator"
    if [v["name"] for v in template["spec"]["volumes"]] != ["tls"]:
        yield "volumes of the operator"
    (container,) = containers(template)
    # The other settings have defaults in a pod, and a wrong value would hide the default.
    if sorted(flags(container)) != sorted(OPERATOR_FLAGS.items()):
        yield "flags of the operator: %s" % flags(container)
    places = {"CHECKPOINTS": c.store_setting("CHECKPOINTS"), "DATA": c.store_setting("DATA")}
    if variables(c, container) != {"EVERGRAD_" + key: value for key, value in places.items()}:
        yield "variables of the operator: %s" % variables(c, container)
    given = expanded_flags(c, c.role("worker")[0]["spec"]["containers"][0])
    if ("--data-root", places["DATA"]) not in given:
        yield "no worker may read %s" % places["DATA"]


def definition_of_jobs(c):
    """Checks the definition of the kind TrainingJob, and that the schema is structural: each node
    has a type or is open."""
    found = []
    for d in c.of("CustomResourceDefinition"):
        spec, names = d["spec"], d["spec"]["names"]
        if d["metadata"]["name"] != "%s.%s" % (names["plural"], spec["group"]):
            found.append("the name %s" % d["metadata"]["name"])
        if (spec["group"], spec["scope"]) != ("evergrad.dev", "Namespaced"):
            found.append("group or scope")
        if (names["kind"], names.get("shortNames")) != ("TrainingJob", ["tj"]):
            found.append("names %s" % names)
        for version in spec["versions"]:
            if (version["name"], version["served"], version["storage"]) != ("v1alpha1", True, True):
                found.append("version %s" % version["name"])
            if version.get("subresources") != {"status": {}}:
                found.append("subresources %s" % version.get("subresources"))
            root = version["schema"]["openAPIV3Schema"]
            found += list(_not_structural(root, "schema"))
            known = set(root["properties"]["status"]["properties"])
            found += ["status.%s: missing" % name for name in sorted(STATUS_FIELDS - known)]
            for column in version.get("additionalPrinterColumns", []):
                field = column["jsonPath"].removeprefix(".status.")
                if field not in known and column["jsonPath"] != ".metadata.creationTimestamp":
                    found.append("column %s: no field %s" % (column["name"], column["jsonPath"]))
    return found


STATUS_FIELDS = {"state", "jobUid", "step", "steps", "loss", "metric", "workers", "message"}
STATUS_FIELDS |= {"runsFolder", "submittedGeneration", "observedGeneration", "conditions"}


def _not_structural(schema, place):
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") is True
    if "type" not in schema and not is_open and not schema.get("x-kubernetes-int-or-string"):
        yield "%s: neither typed nor open" % place
    for name, field in schema.get("properties", {}).items():
        yield from _not_structural(field, "%s.%s" % (place, name))
    if "items" in schema:
        yield from _not_structural(schema["items"], place + "[]")


def job_objects(c):
    """Checks the objects of the kind TrainingJob: the API server accepts them, the operator does
    not refuse their names and paths, and their checkpoints are where those of the cluster are."""
    found = []
    definition = c.get("CustomResourceDefinition", "trainingjobs.evergrad.dev")
    for d in c.of("TrainingJob"):
        name, spec = d["metadata"]["name"], d.get("spec", {})
        if not definition:
            found.append("%s: its kind is not defined" % name)
            continue
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for mistake in jsonschema.Draft202012Validator(schema).iter_errors(d):
            found.append("%s: %s: %s" % (name, list(mistake.path), mistake.message))
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            found.append("%s: not a DNS label" % name)
        for part in ("data", "checkpoint"):
            for variable in re.findall(r"\$\{(\w+)", repr(spec.get(part))):
                if variable not in ("EVERGRAD_DATA", "EVERGRAD_CHECKPOINTS"):
                    found.append("%s: %s names the variable %s" % (name, part, variable))
        for path in _data_paths(spec.get("data", {})):
            if not re.match(r"/|\w+://|\$\{EVERGRAD_DATA\}/", path):
                found.append("%s: relative path %s" % (name, path))
        directory = (spec.get("checkpoint") or {}).get("directory")
        if directory != "${EVERGRAD_CHECKPOINTS}":
            found.append("%s: checkpoints in %s" % (name, directory))
    return found


def _data_paths(data):
    for source in (data.get("train", {}), data.get("eval", {})):
        yield from (source[key] for key in ("path", "images", "labels") if key in source)


def disruption(c):
    """Checks the limits of voluntary evictions, and that each role has time for its drain."""
    found = []
    budgets = c.of("PodDisruptionBudget")
    if [b["spec"].get("maxUnavailable") for b in budgets] != [1]:
        found.append("maxUnavailable of the servers")
    for budget in budgets:
        if budget["spec"].get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            found.append("unhealthyPodEvictionPolicy")
        for role, wanted in (("ps-server", True), ("worker", False), ("coordinator", False)):
            if matches(budget["spec"]["selector"], pod_labels(c.role(role)[0])) != wanted:
                found.append("the budget is for the role %s" % role)
    coordinator, server = c.role("coordinator"), c.role("ps-server")
    if coordinator[1]["spec"].get("replicas") != 1:
        found.append("coordinator: replicas")
    if [t["metadata"]["name"] for t in coordinator[1]["spec"]["volumeClaimTemplates"]] != ["state"]:
        found.append("coordinator: no claim for the journal")
    elif coordinator[1]["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] != [
        "ReadWriteOnce"
    ]:
        found.append("coordinator: the journal's volume may be written by several nodes")
    if server[1]["spec"].get("podManagementPolicy") != "Parallel":
        found.append("ps-server: podManagementPolicy")
    for service in c.of("Service"):
        if service["spec"].get("publishNotReadyAddresses") is not True:
            found.append("service %s: publishNotReadyAddresses" % service["metadata"]["name"])
    grace = {r: c.role(r)[0]["spec"].get("terminationGracePeriodSeconds", 30) for r in ROLES}
    container = server[0]["spec"]["containers"][0]
    drain = {e["name"]: e.get("value") for e in container["env"]}.get("DRAIN_MAX", "10s")
    if flag(container, "--drain-max") != "$(DRAIN_MAX)" or grace["ps-server"] < seconds(drain) + 5:
        found.append("ps-server: grace %d s, drain %s" % (grace["ps-server"], drain))
    if not 5 <= grace["worker"] <= 15:  # enough to end a step; GKE gives 15 s of notice
        found.append("worker: grace %d s" % grace["worker"])
    for role in ROLES:
        if c.on_spot(role) and grace[role] > c.cloud["notice"]:
            found.append("%s: grace of %d s is over the notice" % (role, grace[role]))
    return found


WANTED = "evergrad_coordinator_workers_wanted"
ADAPTER = os.path.join(ROOT, "deploy", "kubernetes", "components", "hpa", "prometheus-adapter.yaml")
SHRINKS_AFTER = 300  # seconds; an evaluation or a checkpoint must not take longer


def autoscaling(c):
    """Checks what sets the number of workers. It must be one autoscaler that follows the gauge of
    wanted workers, or the Deployment."""
    found, deployment = [], c.role("worker")[1]
    scalers = c.of("HorizontalPodAutoscaler", "ScaledObject")
    if [s["kind"] for s in scalers] != ([c.autoscaler] if c.autoscaler else []):
        found.append("autoscalers: %s" % [s["kind"] for s in scalers])
    if ("replicas" in deployment["spec"]) == bool(c.autoscaler):
        found.append("worker: replicas, autoscaler %s" % c.autoscaler)
    with open(os.path.join(ROOT, "docs", "cli.md")) as f:
        if "| `%s` | gauge |" % WANTED not in f.read():
            found.append("the coordinator has no gauge %s" % WANTED)
    for scaler in scalers:
        name, spec = scaler["kind"], scaler["spec"]
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "evergrad-worker"}
        if spec["scaleTargetRef"] != target:
            found.append("%s: target %s" % (name, spec["scaleTargetRef"]))
        follows = _follows_hpa if name == "HorizontalPodAutoscaler" else _follows_scaled_object
        found += ["%s: %s" % (name, f) for f in follows(spec)]
    return found


def _shrinks_slowly(behavior):
    down = behavior.get("scaleDown", {})
    if down.get("stabilizationWindowSeconds", 0) < SHRINKS_AFTER:
        yield "workers are removed too early"
    if [p["type"] for p in down.get("policies", [])] != ["Percent"]:
        yield "all workers may be removed at once"


def _follows_hpa(spec):
    yield from _shrinks_slowly(spec.get("behavior", {}))
    if not 1 == spec.get("minReplicas") < spec["maxReplicas"]:
        yield "limits %s, %s" % (spec.get("minReplicas"), spec["maxReplicas"])
    want = {"metric": {"name": WANTED}, "target": {"type": "AverageValue", "averageValue": "1"}}
    if spec["metrics"] != [{"type": "External", "external": want}]:
        yield "metrics %s" % spec["metrics"]
    with open(ADAPTER) as f:
        yield from adapter_rules(yaml.safe_load(f))


def adapter_rules(values):
    """Checks that the rule of prometheus-adapter serves the gauge by namespace."""
    (rule,) = values["rules"]["external"]
    if rule["name"] != {"as": WANTED} or not rule["seriesQuery"].startswith(WANTED + "{"):
        yield "prometheus-adapter serves %s as %s" % (rule["seriesQuery"], rule["name"])
    if rule["resources"] != {"overrides": {"namespace": {"resource": "namespace"}}}:
        yield "prometheus-adapter: resources"
    if "<<.Series>>{<<.LabelMatchers>>}" not in rule["metricsQuery"]:
        yield "prometheus-adapter: metricsQuery"


def _follows_scaled_object(spec):
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    yield from _shrinks_slowly(config.get("behavior", {}))
    if not 0 == spec.get("minReplicaCount") < spec["maxReplicaCount"]:
        yield "limits %s, %s" % (spec.get("minReplicaCount"), spec["maxReplicaCount"])
    if spec.get("cooldownPeriod", 0) < SHRINKS_AFTER:
        yield "the last worker is removed too early"
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        if metadata["query"] != 'max(%s{namespace="evergrad"})' % WANTED:
            yield "query %s" % metadata["query"]
        if (metadata["threshold"], metadata["activationThreshold"]) != ("1", "0"):
            yield "thresholds"
        # If the metric is missing, the autoscaler must not remove the workers.
        if metadata["ignoreNullValues"] != "false":
            yield "ignoreNullValues"
        if (trigger["type"], trigger["metricType"]) != ("prometheus", "AverageValue"):
            yield "trigger %s" % trigger["type"]


def _allows(c, direction, labels, peer, port):
    """Returns whether the policies let a pod with `labels` talk with `peer` on a TCP port. `peer`
    is the labels of a pod, an address, or PROMETHEUS."""
    policies = [
        p["spec"]
        for p in c.of("NetworkPolicy")
        if matches(p["spec"]["podSelector"], labels)
        and direction.capitalize() in p["spec"]["policyTypes"]
    ]
    if not policies:
        return True
    for policy in policies:
        for rule in policy.get(direction, []):
            if not any(p["port"] == port and p["protocol"] == "TCP" for p in rule.get("ports", [])):
                if rule.get("ports"):
                    continue
            peers = rule.get("from" if direction == "ingress" else "to")
            if peers is None:
                return True
            for one in peers:
                if peer is PROMETHEUS:
                    if one == PROMETHEUS:
                        return True
                elif isinstance(peer, str):
                    if "ipBlock" in one and _in_block(one["ipBlock"], peer):
                        return True
                elif "namespaceSelector" not in one and matches(one.get("podSelector"), peer):
                    return True
    return False


def _in_block(block, address):
    """Returns whether an `ipBlock` of a policy holds an address."""
    address = ipaddress.ip_address(address)
    return address in ipaddress.ip_network(block["cidr"]) and not any(
        address in ipaddress.ip_network(hole) for hole in block.get("except", [])
    )


# The pods of Prometheus, as a policy names them.
PROMETHEUS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}
METADATA = "169.254.169.254"
GKE_METADATA = "169.254.169.252"  # of clusters with Calico, at port 988
POD_IDENTITY = "169.254.170.23"  # the agent of EKS
LINK_LOCAL = (METADATA, GKE_METADATA, POD_IDENTITY, "fe80::1")
# A private address, a public one, and one of IPv6.
OTHERS = ("10.9.8.7", "203.0.113.9", "2001:db8::9")


def network(c):
    """Checks that exactly the connections of a table are allowed. Only daemons that watch for a
    notice, or that get credentials there, reach the metadata address. Only the coordinator, the
    servers and the workers reach an object store, and only if they use one. Only the operator
    reaches the API server. Prometheus reaches the metrics if the cluster has monitors, and nothing
    else."""
    found = []
    pods = {pod_labels(t).get(COMPONENT): pod_labels(t) for _, t, _ in c.workloads()}
    want = {
        ("ps-server", "coordinator", 4000),
        ("worker", "coordinator", 4000),
        ("psctl", "coordinator", 4000),
        ("ps-server", "ps-server", 4010),
        ("worker", "ps-server", 4010),
    }
    if c.operator:
        want.add((OPERATOR, "coordinator", 4000))
    all_ports = [p for _, _, port, metrics in ROLES.values() for p in (port, metrics)]
    all_ports.append(OPERATOR_METRICS)
    have = {
        (a, b, port)
        for a in pods
        for b in pods
        for port in all_ports
        if _allows(c, "egress", pods[a], pods[b], port)
        and _allows(c, "ingress", pods[b], pods[a], port)
    }
    for pair in sorted(have ^ want):
        found.append("%s -> %s:%d: %s" % (*pair, "allowed" if pair in have else "not allowed"))
    deny = c.get("NetworkPolicy", "default-deny")
    if not deny or deny["spec"] != {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}:
        found.append("no default-deny")
    for role, labels in pods.items():
        if any(_allows(c, "ingress", labels, {"a": "stranger"}, p) for p in all_ports):
            found.append("%s: everybody may connect" % role)
        watches = bool(c.on_spot(role))
        if (labels.get(WATCHES) == "true") != watches:
            found.append("%s: the label %s" % (role, WATCHES))
        grpc, metrics = ROLES[role][2:] if role in ROLES else (4000, OPERATOR_METRICS)
        scraped = role in c.probed_roles() and bool(c.of("PodMonitor"))
        for port, want in ((grpc, False), (metrics, scraped)):
            if _allows(c, "ingress", labels, PROMETHEUS, port) != want:
                said = "not allowed" if want else "allowed"
                found.append("Prometheus -> %s:%d: %s" % (role, port, said))
        store, api_server = c.uses_store(role), role == OPERATOR
        metadata = watches or (store and c.identity == "gke")
        for address, port, want in (
            (METADATA, 80, metadata),
            (GKE_METADATA, 988, metadata and c.cloud_name == "gke"),
            (POD_IDENTITY, 80, store and c.identity == "pod-identity"),
            *((other, 443, store or api_server) for other in OTHERS),
            *((other, 6443, api_server) for other in OTHERS),
            *((other, p, False) for other in OTHERS for p in (22, 80, 988, 4000, 8443)),
            *((other, p, False) for other in LINK_LOCAL for p in (443, 6443)),
        ):
            if _allows(c, "egress", labels, address, port) != want:
                said = "not allowed" if want else "allowed"
                found.append("%s -> %s:%d: %s" % (role, address, port, said))
    dns = c.get("NetworkPolicy", "allow-dns")
    if not dns or {p["port"] for r in dns["spec"]["egress"] for p in r["ports"]} != {53}:
        found.append("no DNS")
    return found


# The fields of the kinds that kubernetes-validate does not know, as {field: form}. A form is a
# type, a mapping {field: form}, or a list with the form of each element. A field with "!" is
# required.
SECRET_KEY = {"name!": str, "key!": str}
FORMS = {
    "Issuer": {
        "apiVersion": "cert-manager.io/v1",
        "spec": {"selfSigned": {}, "ca": {"secretName!": str}},
    },
    "Certificate": {
        "apiVersion": "cert-manager.io/v1",
        "spec": {
            "secretName!": str,
            "isCA": bool,
            "commonName": str,
            "uris": [str],
            "dnsNames": [str],
            "ipAddresses": [str],
            "duration!": str,
            "renewBefore!": str,
            "privateKey!": {"algorithm!": str, "size!": int, "rotationPolicy!": str},
            "usages!": [str],
            "issuerRef!": {"group!": str, "kind!": str, "name!": str},
        },
    },
    "PodMonitor": {
        "apiVersion": "monitoring.coreos.com/v1",
        "spec": {
            "selector!": {"matchLabels!": dict},
            "podMetricsEndpoints!": [
                {
                    "port!": str,
                    "path!": str,
                    "scheme!": str,
                    "interval!": str,
                    "scrapeTimeout!": str,
                    "tlsConfig!": {
                        "serverName!": str,
                        "ca!": {"secret!": SECRET_KEY},
                        "cert!": {"secret!": SECRET_KEY},
                        "keySecret!": SECRET_KEY,
                    },
                }
            ],
        },
    },
    "ScaledObject": {
        "apiVersion": "keda.sh/v1alpha1",
        "spec": {
            "scaleTargetRef!": {"apiVersion!": str, "kind!": str, "name!": str},
            "pollingInterval": int,
            "cooldownPeriod!": int,
            "minReplicaCount!": int,
            "maxReplicaCount!": int,
            "advanced!": {
                "horizontalPodAutoscalerConfig!": {
                    "behavior!": {
                        "scaleDown!": {
                            "stabilizationWindowSeconds!": int,
                            "policies!": [{"type!": str, "value!": int, "periodSeconds!": int}],
                        }
                    }
                }
            },
            "triggers!": [
                {
                    "type!": str,
                    "metricType!": str,
                    "metadata!": {
                        "serverAddress!": str,
                        "query!": str,
                        "threshold!": str,
                        "activationThreshold!": str,
                        "ignoreNullValues!": str,
                    },
                }
            ],
        },
    },
    "TrainingJob": {"apiVersion": "evergrad.dev/v1alpha1", "spec": dict},
    "PrometheusRule": {
        "apiVersion": "monitoring.coreos.com/v1",
        "spec": {
            "groups!": [
                {
                    "name!": str,
                    "rules!": [
                        {
                            "alert!": str,
                            "expr!": str,
                            "for": str,
                            "labels!": {"severity!": str},
                            "annotations!": {"summary!": str, "description!": str},
                        }
                    ],
                }
            ]
        },
    },
}


def _fits(value, form, place):
    if isinstance(form, type):
        return [] if type(value) is form else ["%s: not a %s" % (place, form.__name__)]
    if isinstance(form, list):
        if not isinstance(value, list) or not value:
            return ["%s: not a list with elements" % place]
        return [f for i, v in enumerate(value) for f in _fits(v, form[0], "%s[%d]" % (place, i))]
    if not isinstance(value, dict):
        return ["%s: not a mapping" % place]
    fields = {name.rstrip("!"): f for name, f in form.items()}
    found = [
        "%s.%s: missing" % (place, n[:-1]) for n in form if n[-1] == "!" and n[:-1] not in value
    ]
    for name, v in value.items():
        if name not in fields:
            found.append("%s.%s: unknown" % (place, name))
        else:
            found += _fits(v, fields[name], "%s.%s" % (place, name))
    return found


USAGES = {"digital signature", "server auth", "client auth", "cert sign", "crl sign"}
URIS = {
    "evergrad-coordinator": "evergrad://coordinator",
    "evergrad-ps-server": "evergrad://ps_server",
    "evergrad-worker": "evergrad://worker",
    "evergrad-operator": "evergrad://operator",
    "evergrad-prometheus": "evergrad://viewer/prometheus",
    "evergrad-user": "evergrad://user/operator",
}


def custom_kinds(c):
    """Checks that the fields of the kinds of FORMS have these forms. The check `job_objects` looks
    into the spec of a TrainingJob."""
    found = []
    for d in c.of(*FORMS):
        name = "%s %s" % (d["kind"], d["metadata"]["name"])
        if d["apiVersion"] != FORMS[d["kind"]]["apiVersion"]:
            found.append("%s: apiVersion" % name)
        found += _fits(d["spec"], FORMS[d["kind"]]["spec"], name)
        if d["metadata"].get("namespace") != "evergrad":
            found.append("%s: namespace" % name)
    if found:
        return found
    secrets = {d["spec"]["secretName"] for d in c.of("Certificate")}
    issuers = {d["metadata"]["name"]: d["spec"] for d in c.of("Issuer")}
    for d in c.of("Certificate"):
        name, spec = d["metadata"]["name"], d["spec"]
        if spec["issuerRef"]["name"] not in issuers:
            found.append("Certificate %s: no such issuer" % name)
        if not set(spec["usages"]) <= USAGES:
            found.append("Certificate %s: usages" % name)
        hours = [
            int(re.fullmatch(r"(\d+)h", spec[k]).group(1)) for k in ("duration", "renewBefore")
        ]
        if hours[1] >= hours[0]:
            found.append("Certificate %s: renewBefore" % name)
        if not spec.get("isCA") and spec.get("uris") != [URIS.get(name)]:
            found.append("Certificate %s: uris %s" % (name, spec.get("uris")))
    for spec in issuers.values():
        if "ca" in spec and spec["ca"]["secretName"] not in secrets:
            found.append("Issuer: nothing makes the secret of the authority")
    names = {d["metadata"]["name"]: d["spec"].get("dnsNames", []) for d in c.of("Certificate")}
    if names and "evergrad-coordinator" not in names.get("evergrad-coordinator", []):
        found.append("Certificate evergrad-coordinator: not valid for the name that is dialed")
    for d in c.of("PodMonitor"):
        for e in d["spec"]["podMetricsEndpoints"]:
            tls = e["tlsConfig"]
            if (e["scheme"], e["path"]) != ("https", "/metrics"):
                found.append("PodMonitor %s: scheme or path" % d["metadata"]["name"])
            if tls["serverName"] not in names.get(tls["serverName"], []):
                found.append("PodMonitor %s: serverName" % d["metadata"]["name"])
            if tls["keySecret"]["name"] not in secrets:
                found.append("PodMonitor %s: secret" % d["metadata"]["name"])
    return found


def issued_by_psctl(c):
    """Checks that the Job that makes the certificates gives them the same names as cert-manager
    does."""
    job = c.get("Job", "evergrad-certificates")
    if not job:
        return []
    found, made = [], {}
    for container in containers(job["spec"]["template"]):
        folder = flag(container, "--to")
        if folder:
            made[os.path.basename(folder)] = flag(container, "--task"), [
                v for f, v in flags(container) if f == "--host"
            ]
    want = {"coordinator": "coordinator", "ps-server": "ps_server", "worker": "worker"}
    want |= {"operator": "operator", "user": "user/operator"}
    for name, task in want.items():
        if made.get(name, (None,))[0] != task:
            found.append("certificate of %s: %s" % (name, made.get(name)))
        elif name != "user" and "evergrad-" + name not in made[name][1]:
            found.append("certificate of %s: hosts %s" % (name, made[name][1]))
    for name, template, _ in c.workloads():
        role = pod_labels(template).get(COMPONENT)
        mounts = containers(template)[0]["volumeMounts"]
        paths = [m.get("subPath") for m in mounts if m["mountPath"] == "/etc/evergrad/tls"]
        if role != "certificates" and paths != ["user" if role == "psctl" else role]:
            found.append("%s: mounts the certificate of %s" % (name, paths))
        authority = [m for m in mounts if m["mountPath"] == "/authority"]
        if role != "certificates" and authority:
            found.append("%s: mounts the authority's key" % name)
    return found


RULES = os.path.join(ROOT, "deploy", "prometheus", "evergrad.rules.yaml")


def alerts(c):
    """Checks that the alerts are equal to those of deploy/prometheus, which tests/integration
    checks on a cluster."""
    with open(RULES) as f:
        want = yaml.safe_load(f)
    return [
        "PrometheusRule: differs from the alert rules in deploy/prometheus"
        for d in c.of("PrometheusRule")
        if d["spec"] != want
    ]


CHECKS = [
    restricted,
    selectors,
    ports,
    coordinator_address,
    probes,
    placement,
    spread,
    images,
    resources,
    program_flags,
    references,
    storage,
    object_store,
    data_in_store,
    store_identity,
    operator,
    definition_of_jobs,
    job_objects,
    disruption,
    autoscaling,
    network,
    custom_kinds,
    issued_by_psctl,
    alerts,
]
