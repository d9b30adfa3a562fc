#!/usr/bin/env python3
"""Tests of `./evergrad kubernetes-proof` that need no control plane (deploy/kubernetes/proof):

  kubernetes_proof_test.py [Tests …]

The proof itself runs only on demand. These tests show that it still fits the manifests: the overlay
for the old control plane changes only fields that this version lacks, and kubelet.py knows every
field of every pod.
"""
import copy
import os
import re
import struct
import sys
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
PROOF = os.path.join(ROOT, "deploy", "kubernetes", "proof")
sys.path.insert(0, PROOF)
import kubelet  # noqa: E402
import operator_steps  # noqa: E402
import proof  # noqa: E402
import sandbox  # noqa: E402
import stand_ins  # noqa: E402
from control_plane import Failure, Refused, Unreachable, is_transient  # noqa: E402

HAS_KUSTOMIZE = os.path.exists(os.path.join(proof.TOOLS, "kustomize"))
DIFFERENCE = """\
Deployment evergrad-worker
  -        nodeTaintsPolicy: Honor
StatefulSet evergrad-ps-server
  -        nodeTaintsPolicy: Honor
PodDisruptionBudget evergrad-ps-server
  -apiVersion: policy/v1
  +apiVersion: policy/v1beta1
  -  unhealthyPodEvictionPolicy: AlwaysAllow"""


@unittest.skipUnless(HAS_KUSTOMIZE, "no kustomize (deploy/scripts/tools.sh)")
class Files(unittest.TestCase):
    def setUp(self):
        self.adapted = proof.documents(proof.kustomize(os.path.join(PROOF, "overlay")))

    def test_the_overlay_of_the_proof_changes_only_what_the_old_control_plane_lacks(self):
        original = proof.documents(proof.kustomize(proof.OVERLAY))
        shown = proof.difference(original, self.adapted).splitlines()
        changes = [line for line in shown if not line.startswith("   ")]
        self.assertEqual("\n".join(changes), DIFFERENCE)

    def templates(self):
        job = proof.documents(proof.kustomize(proof.FIRST_JOB))
        found = [d["spec"]["template"]["spec"] for d in self.adapted + job if "spec" in d
                 and "template" in d["spec"]]  # fmt: skip
        self.assertEqual(len(found), 5)
        return found

    def check(self, spec):
        """Does what kubelet.py does with a pod's fields before it starts a process."""
        kubelet.known("pod", spec, kubelet.POD_FIELDS)
        for c in spec["containers"]:
            kubelet.known("container", c, kubelet.CONTAINER_FIELDS)
            ports = {p["name"]: p["containerPort"] for p in c.get("ports", [])}
            for kind in ("startup", "liveness", "readiness"):
                if kind + "Probe" in c:
                    probe = kubelet.Probe(c[kind + "Probe"], ports, "127.0.0.1")
                    self.assertIn(probe.port, ports.values())

    def test_the_kubelet_of_the_proof_knows_every_field_of_every_pod(self):
        for spec in self.templates():
            self.check(spec)

    def test_a_field_that_the_kubelet_does_not_know_is_an_error(self):
        for change in (
            lambda s: s.update(hostNetwork=True),
            lambda s: s.update(initContainers=[]),
            lambda s: s["containers"][0].update(lifecycle={"preStop": {}}),
            lambda s: s["containers"][0]["livenessProbe"].update(grpc={"port": 4000}),
        ):
            spec = copy.deepcopy(next(s for s in self.templates() if "ports" in s["containers"][0]))
            change(spec)
            with self.assertRaisesRegex(ValueError, "fields that kubelet.py does not know"):
                self.check(spec)

    def test_the_object_of_the_operator_trains_on_as_many_examples_as_the_first_job(self):
        (job,) = proof.documents(proof.kustomize(proof.TRAINING_JOB))
        with open(os.path.join(proof.FIRST_JOB, "job.yaml")) as f:
            first = proof.documents(f.read())[0]
        self.assertEqual(job["spec"]["data"]["train"], first["spec"]["data"]["train"])
        self.assertEqual(job["metadata"]["namespace"], "evergrad")

    def test_the_columns_of_the_objects_are_those_that_the_proof_expects(self):
        (kind,) = [d for d in self.adapted if d["kind"] == "CustomResourceDefinition"]
        (version,) = kind["spec"]["versions"]
        columns = [c["name"] for c in version["additionalPrinterColumns"]]
        self.assertEqual(["Name"] + columns, operator_steps.COLUMNS)

    def test_the_long_job_is_a_copy_of_the_first_job(self):
        with open(os.path.join(proof.FIRST_JOB, "job.yaml")) as f:
            text = f.read()
        self.assertEqual(len(re.findall(r"epochs: \d+", text)), 1)
        self.assertIn("metadata: {name: first}", text)


class Image(unittest.TestCase):
    def test_the_environment_of_a_container_is_that_of_the_image(self):
        with open(os.path.join(ROOT, "deploy", "image", "Containerfile")) as f:
            said = dict(re.findall(r'(?m)^ENV (\w+)="(.*)"$', f.read()))
        self.assertEqual(said, sandbox.IMAGE_ENV)


class FakePod:
    object = {
        "metadata": {"name": "a-pod", "namespace": "evergrad"},
        "spec": {"nodeName": "a-node"},
    }
    sandbox = types.SimpleNamespace(address="10.0.0.1")

    def config(self, name):
        return {"places": {"A": "1", "B": "2"}}[name]


class Environment(unittest.TestCase):
    def test_a_container_has_the_texts_of_config_maps_and_its_own_variables_win(self):
        container = kubelet.Container.__new__(kubelet.Container)
        container.pod = FakePod()
        container.spec = {
            "envFrom": [{"configMapRef": {"name": "places"}}],
            "env": [
                {"name": "B", "value": "3"},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "places", "key": "A"}}},
            ],
        }
        found = container.env()
        self.assertEqual([found[name] for name in "ABC"], ["1", "3", "1"])

    def test_a_variable_from_a_secret_is_an_error(self):
        container = kubelet.Container.__new__(kubelet.Container)
        container.pod = FakePod()
        container.spec = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "keys"}}}]}
        with self.assertRaisesRegex(ValueError, "env A: unknown source"):
            container.env()

    def test_a_container_knows_the_address_of_the_api_server(self):
        container = kubelet.Container.__new__(kubelet.Container)
        container.pod, container.spec = FakePod(), {}
        found = container.env()
        self.assertEqual(found["KUBERNETES_SERVICE_HOST"], sandbox.GATEWAY)
        self.assertEqual(found["KUBERNETES_SERVICE_PORT"], "6443")


class FakeSecrets:
    """Has one ConfigMap, and answers requests for tokens."""

    def find(self, path):
        if path != "/api/v1/namespaces/evergrad/configmaps/kube-root-ca.crt":
            return None
        return {"kind": "ConfigMap", "data": {"ca.crt": "authority", "other": "text"}}

    def request(self, method, path, body):
        self.asked = (method, path, body["spec"])
        return {"status": {"token": "a token"}}


class Volumes(unittest.TestCase):
    def setUp(self):
        found = {
            "metadata": {"name": "a-pod", "uid": "7", "namespace": "evergrad"},
            "spec": {"nodeName": "a-node", "serviceAccountName": "evergrad-operator"},
        }
        self.pod = kubelet.Pod(types.SimpleNamespace(api=FakeSecrets(), work="/work"), found)

    def test_a_projected_volume_has_a_token_the_authority_and_the_namespace(self):
        # The volume that the API server adds to a pod whose account has a token.
        field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
        source = {
            "defaultMode": 0o644,
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {
                    "configMap": {
                        "name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}],
                    }
                },
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
            ],
        }
        self.assertEqual(
            self.pod.files("projected", source, 0o644),
            {
                "token": (b"a token", 0o640),
                "ca.crt": (b"authority", 0o644),
                "namespace": (b"evergrad", 0o644),
            },
        )
        method, path, spec = self.pod.kubelet.api.asked
        self.assertEqual(method, "POST")
        self.assertEqual(
            path, "/api/v1/namespaces/evergrad/serviceaccounts/evergrad-operator/token"
        )
        self.assertEqual(spec["expirationSeconds"], 3607)
        self.assertEqual(
            (spec["boundObjectRef"]["name"], spec["boundObjectRef"]["uid"]), ("a-pod", "7")
        )

    def test_a_volume_waits_for_its_object(self):
        with self.assertRaises(kubelet.Waiting):
            self.pod.files("secret", {"secretName": "none"}, 0o644)

    def test_an_unknown_source_is_an_error(self):
        for kind, source in (
            ("projected", {"sources": [], "new": 1}),
            ("configMap", {"name": "kube-root-ca.crt", "optional": True}),
        ):
            with self.assertRaisesRegex(ValueError, "fields that kubelet.py does not know"):
                self.pod.files(kind, source, 0o644)


class Values(unittest.TestCase):
    def test_a_request_is_repeated_only_if_a_later_answer_may_differ(self):
        answers = [Refused("GET /", status, {}) for status in (403, 404, 409, 422, 429, 500, 503)]
        self.assertEqual(
            [is_transient(a) for a in answers], [False, False, False, False, True, True, True]
        )
        self.assertTrue(is_transient(Unreachable("GET /: refused")))
        self.assertFalse(is_transient(Failure("ready: 1 of 2")))

    def test_variables_in_arguments_are_replaced_and_unknown_ones_stay(self):
        self.assertEqual(
            kubelet.expand("--at=$(IP):1 $(NO)", {"IP": "10.0.0.1"}), "--at=10.0.0.1:1 $(NO)"
        )

    def test_a_number_of_cores_is_rounded_up(self):
        self.assertEqual([kubelet.quantity(q) for q in ("2", "500m", "1500m")], [2, 1, 2])

    def test_a_wait_that_ends_says_what_was_expected_and_what_was_there(self):
        def look():
            raise Failure("ready: 1 of 2")

        with self.assertRaisesRegex(Failure, "expected within 0 s: two pods; got: ready: 1 of 2"):
            proof.wait_for("two pods", 0, look)


class Objects(unittest.TestCase):
    """Tests what the steps of the operator read from objects."""

    def setUp(self):
        self.status = {}
        self.steps = operator_steps.OperatorSteps(None, {"metadata": {}, "spec": {"training": {}}})
        self.steps.found = lambda name: {"status": self.status}

    def test_a_job_that_ended_otherwise_ends_the_proof(self):
        self.status = {"state": "QUEUED"}
        with self.assertRaisesRegex(Failure, "expected: the state RUNNING"):
            self.steps.has_state("job", "RUNNING")
        self.status = {"state": "FAILED", "message": "out of memory"}
        with self.assertRaisesRegex(SystemExit, "becomes RUNNING .*out of memory"):
            self.steps.has_state("job", "RUNNING")
        self.assertEqual(self.steps.has_state("job", "FAILED"), self.status)

    def test_conditions_are_found_by_type(self):
        running = {"type": "Running", "status": "True"}
        self.assertEqual(
            operator_steps.conditions({"status": {"conditions": [running]}}), {"Running": running}
        )
        self.assertEqual(operator_steps.conditions({}), {})
        self.assertEqual(operator_steps.conditions(None), {})

    def test_a_table_has_columns_and_the_cells_of_each_object(self):
        table = {
            "columnDefinitions": [{"name": "Name"}, {"name": "State"}],
            "rows": [{"cells": ["a", "QUEUED"], "object": {"metadata": {"name": "a"}}}],
        }
        self.assertEqual(operator_steps.rows_of(table), (["Name", "State"], {"a": ["a", "QUEUED"]}))

    def test_a_document_is_a_copy_with_its_own_name_and_epochs(self):
        made = self.steps.document("other", 7)
        self.assertEqual(made, {"metadata": {"name": "other"}, "spec": {"training": {"epochs": 7}}})
        self.assertEqual(self.steps.template, {"metadata": {}, "spec": {"training": {}}})


class FakeApi:
    def find(self, path):
        self.asked = getattr(self, "asked", 0) + 1
        if path != "/api/v1/namespaces/evergrad/endpoints/evergrad-ps-server":
            return None
        addresses = [{"ip": "10.81.1.3", "hostname": "evergrad-ps-server-1"}, {"ip": "10.81.1.2"}]
        return {"subsets": [{"addresses": addresses}]}


class Dns(unittest.TestCase):
    """Tests the resolver of the proof without its socket."""

    def setUp(self):
        self.dns = stand_ins.Dns.__new__(stand_ins.Dns)
        self.dns.api, self.dns.cache = FakeApi(), {}

    def ask(self, name, kind=1):
        """Returns (code, addresses) of the resolver's answer."""
        question = b"".join(bytes([len(w)]) + w.encode() for w in name.split(".")) + b"\0"
        question += struct.pack("!HH", kind, 1)
        answer = self.dns.answer(struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + question)
        number, flags, questions, answers, _, _ = struct.unpack("!HHHHHH", answer[:12])
        self.assertEqual((number, questions), (7, 1))
        self.assertEqual(answer[12 : 12 + len(question)], question)
        records = answer[12 + len(question) :]
        self.assertEqual(len(records), 16 * answers)
        found = [".".join(map(str, records[i + 12 : i + 16])) for i in range(0, len(records), 16)]
        return flags & 15, found

    def test_a_headless_service_has_the_addresses_of_its_pods(self):
        service = "evergrad-ps-server.evergrad.svc.cluster.local"
        self.assertEqual(self.ask(service), (0, ["10.81.1.2", "10.81.1.3"]))
        self.assertEqual(self.ask("evergrad-ps-server-1." + service), (0, ["10.81.1.3"]))
        self.assertEqual(self.ask(service, kind=28), (0, []))

    def test_a_name_that_no_service_has_does_not_exist(self):
        for name in ("evergrad-ps-server", "none.evergrad.svc.cluster.local", "example.org"):
            self.assertEqual(self.ask(name), (3, []))

    def test_an_answer_is_kept(self):
        for _ in range(3):
            self.ask("evergrad-ps-server.evergrad.svc.cluster.local")
        self.assertEqual(self.dns.api.asked, 1)


if __name__ == "__main__":
    unittest.main()
