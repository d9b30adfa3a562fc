"""The objects of a fake kube-apiserver: the TrainingJobs and the Events of one namespace.

The rules are those of Kubernetes 1.35 for a custom resource with a status subresource: one counter
of versions, optimistic concurrency, merge patches (RFC 7386), generations, finalizers, pages of
lists, and a history from which watches are served. The class has no lock. The caller (fake_api.py)
holds one during each call.
"""
import copy
import datetime
import re
import uuid

GROUP, VERSION, KIND, PLURAL = "evergrad.dev", "v1alpha1", "TrainingJob", "trainingjobs"
API_VERSION = "%s/%s" % (GROUP, VERSION)
RESOURCE = "%s.%s" % (PLURAL, GROUP)
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
FINALIZER = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9._-]+")
EVENT_MESSAGE_MAX = 1024
# The schema of the status in the definition of TrainingJob (common/config/crd.cc).
CONDITION = {
    "type": str,
    "status": str,
    "reason": str,
    "message": str,
    "lastTransitionTime": str,
    "observedGeneration": int,
}
STATUS = {
    "state": str,
    "jobUid": str,
    "step": int,
    "steps": int,
    "loss": str,
    "metric": str,
    "workers": int,
    "message": str,
    "runsFolder": str,
    "submittedGeneration": int,
    "observedGeneration": int,
    "conditions": list,
}


class Refusal(Exception):
    """A request that the server answers with a Status object of this HTTP code."""

    def __init__(self, code, reason, message, name="", headers=()):
        super().__init__(message)
        self.code, self.reason, self.message, self.name = code, reason, message, name
        self.headers = tuple(headers)

    def status(self):
        details = {"group": GROUP, "kind": PLURAL}
        if self.name:
            details["name"] = self.name
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": details,
            "code": self.code,
        }


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(target, patch):
    """Returns the result of a merge patch (RFC 7386). The arguments are not changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def not_found(name):
    return Refusal(404, "NotFound", '%s "%s" not found' % (RESOURCE, name), name)


def conflict(name):
    return Refusal(
        409,
        "Conflict",
        'Operation cannot be fulfilled on %s "%s": the object has been modified; please apply your '
        "changes to the latest version and try again" % (RESOURCE, name),
        name,
    )


def invalid(name, message):
    return Refusal(422, "Invalid", '%s "%s" is invalid: %s' % (KIND, name, message), name)


def expired(message):
    return Refusal(410, "Expired", message)


def has_type(value, wanted):
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def status_mistakes(status):
    """Returns the mistakes for which the API server would refuse this status."""
    if not isinstance(status, dict):
        return ["status: Invalid value: must be of type object"]
    found = [
        "status.%s: Invalid value: %r" % (key, value)
        for key, value in status.items()
        if key in STATUS and not has_type(value, STATUS[key])
    ]
    conditions = status.get("conditions", [])
    types = []
    for at, condition in enumerate(conditions if isinstance(conditions, list) else []):
        place = "status.conditions[%d]" % at
        if not isinstance(condition, dict):
            found.append("%s: Invalid value: must be of type object" % place)
            continue
        types.append(condition.get("type"))
        found += ["%s.%s: Required value" % (place, k) for k in {"type", "status"} - set(condition)]
        found += [
            "%s.%s: Invalid value: %r" % (place, key, value)
            for key, value in condition.items()
            if key in CONDITION and not has_type(value, CONDITION[key])
        ]
        if not TIME.fullmatch(str(condition.get("lastTransitionTime", now()))):
            found.append("%s.lastTransitionTime: Invalid value: must be a date-time" % place)
    if len(set(map(str, types))) != len(types):
        found.append("status.conditions: Duplicate value: %s" % types)
    return found


def pruned(status):
    """Returns the status without the fields that its schema does not have, and their names. The API
    server drops such fields without an error."""
    unknown = [key for key in status if key not in STATUS]
    kept = {key: value for key, value in status.items() if key in STATUS}
    if "conditions" in kept:
        unknown += [
            "conditions." + key for c in kept["conditions"] for key in c if key not in CONDITION
        ]
        kept["conditions"] = [
            {key: value for key, value in c.items() if key in CONDITION} for c in kept["conditions"]
        ]
    return kept, unknown


class Objects:
    """The store. `history` has (version, type, object) of each change since the last compaction,
    and `all_changes` has every change from the beginning."""

    def __init__(self, namespace):
        self.namespace = namespace
        self.version = 1000
        self.compacted = self.version  # a watch from an older version gets 410
        self.objects, self.events = {}, {}
        self.history, self.all_changes = [], []
        self.pages = {}  # token -> (version, objects that have not been listed)
        self.tokens = 0
        self.violations = []

    # ---- calls of users

    def apply(self, name, spec, annotations=None):
        """Creates the object, or replaces its spec, as `kubectl apply` does."""
        if not SUBDOMAIN.fullmatch(name) or len(name) > 253:
            raise invalid(name, "metadata.name: Invalid value")
        old = self.objects.get(name)
        if old is not None:
            return self._replace(name, dict(old, spec=copy.deepcopy(spec)))
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": now(),
            "managedFields": [
                {
                    "manager": "kubectl-client-side-apply",
                    "operation": "Update",
                    "apiVersion": API_VERSION,
                    "time": now(),
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {}},
                }
            ],
        }
        if annotations:
            metadata["annotations"] = annotations
        return self.put(
            {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        )

    def put(self, value):
        """Stores a new object as it is, also if a real server would refuse it. Only a version is
        added, if the object has metadata."""
        value = copy.deepcopy(value)
        metadata = value.get("metadata") if isinstance(value, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        key = name if isinstance(name, str) else "no name %d" % self.version
        self._record("ADDED", key, value)
        self.objects[key] = value
        return copy.deepcopy(value)

    def delete(self, name):
        """Deletes the object, as `kubectl delete` does. An object with finalizers stays until they
        are removed."""
        old = self._get(name)
        metadata = old["metadata"]
        if not metadata.get("finalizers"):
            return self._remove(name)
        if "deletionTimestamp" in metadata:
            return None
        marked = copy.deepcopy(old)
        marked["metadata"].update(deletionTimestamp=now(), deletionGracePeriodSeconds=0)
        marked["metadata"]["generation"] += 1  # Kubernetes does so, although the spec is the same
        self._record("MODIFIED", name, marked)
        self.objects[name] = marked
        return copy.deepcopy(marked)

    def touch(self, name):
        """Changes an annotation of the object, as another writer could do at any time."""
        value = copy.deepcopy(self._get(name))
        value["metadata"].setdefault("annotations", {})["test/touched"] = str(self.version + 1)
        return self._replace(name, value)

    def remove(self, name):
        """Removes the object at once, as if a user had removed its finalizers."""
        return self._remove(name)

    def compact(self):
        """Forgets all changes so far. Watches from older versions and tokens of older lists get
        410."""
        self.history.clear()
        self.pages.clear()
        self.compacted = self.version

    # ---- calls of clients

    def list(self, limit, token):
        """Returns a page of the list."""
        if token:
            if token not in self.pages:
                raise expired(
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter."
                )
            version, rest = self.pages[token]
        else:
            version = self.version
            rest = [self.objects[name] for name in sorted(self.objects)]
        metadata = {"resourceVersion": str(version)}
        items, rest = (rest[:limit], rest[limit:]) if limit else (rest, [])
        if rest:
            self.tokens += 1
            metadata["continue"] = "page+%d/=&%%" % self.tokens  # a client must escape it
            metadata["remainingItemCount"] = len(rest)
            self.pages[metadata["continue"]] = (version, rest)
        return {
            "apiVersion": API_VERSION,
            "kind": KIND + "List",
            "metadata": metadata,
            "items": copy.deepcopy(items),
        }

    def changes_after(self, version):
        """Returns the changes after a version, or raises 410 if some of them are forgotten."""
        if version < self.compacted:
            raise expired("too old resource version: %d (%d)" % (version, self.compacted))
        return [change for change in self.history if change[0] > version]

    def patch(self, name, patch):
        """Patches the object itself. The status is not changed, whatever the patch contains."""
        old = self._begin_patch(name, patch)
        if set(patch) - {"metadata"} or set(patch["metadata"]) - {"resourceVersion", "finalizers"}:
            self.violations.append("a patch of %s has more than finalizers: %s" % (name, patch))
        new = merged(old, patch)
        for key in ("status", "apiVersion", "kind"):
            if key in old:
                new[key] = old[key]
            else:
                new.pop(key, None)
        metadata, before = new["metadata"], old["metadata"]
        finalizers = metadata.get("finalizers") or []
        if not isinstance(finalizers, list) or not all(
            isinstance(f, str) and FINALIZER.fullmatch(f) for f in finalizers
        ):
            self.violations.append("wrong finalizers of %s: %s" % (name, finalizers))
            raise invalid(name, "metadata.finalizers: Invalid value: %s" % finalizers)
        if not finalizers:
            metadata.pop("finalizers", None)
        if "deletionTimestamp" in before:
            added = set(finalizers) - set(before.get("finalizers", ()))
            if added:
                self.violations.append("a finalizer is added to %s, which is deleted" % name)
                raise invalid(
                    name,
                    "metadata.finalizers: Forbidden: no new finalizers can be added if the object "
                    "is being deleted, found new finalizers %s" % sorted(added),
                )
            if not finalizers:
                self.objects[name] = new
                return self._remove(name)
        return self._replace(name, new)

    def patch_status(self, name, patch):
        """Patches the status. Nothing else is changed, whatever the patch contains."""
        old = self._begin_patch(name, patch)
        if set(patch) - {"metadata", "status"} or set(patch["metadata"]) - {"resourceVersion"}:
            self.violations.append("a status patch of %s has more: %s" % (name, patch))
        status = merged(old.get("status"), patch.get("status", {}))
        mistakes = status_mistakes(status)
        if mistakes:
            self.violations.append("a wrong status of %s: %s" % (name, mistakes))
            raise invalid(name, ", ".join(mistakes))
        status, unknown = pruned(status)
        if unknown:
            self.violations.append("unknown fields in the status of %s: %s" % (name, unknown))
        return self._replace(name, dict(copy.deepcopy(old), status=status))

    def add_event(self, event):
        metadata = event.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not SUBDOMAIN.fullmatch(name):
            self.violations.append("an Event without a valid name: %s" % event)
            raise Refusal(422, "Invalid", 'Event "%s" is invalid: metadata.name' % name)
        if name in self.events:
            raise Refusal(409, "AlreadyExists", 'events "%s" already exists' % name, name)
        mistakes = self._event_mistakes(event)
        if mistakes:
            self.violations.append("the Event %s: %s" % (name, mistakes))
            raise Refusal(422, "Invalid", 'Event "%s" is invalid: %s' % (name, mistakes), name)
        self.version += 1
        kept = copy.deepcopy(event)
        kept["metadata"].update(
            namespace=self.namespace,
            uid=str(uuid.uuid4()),
            resourceVersion=str(self.version),
            creationTimestamp=now(),
        )
        self.events[name] = kept
        return copy.deepcopy(kept)

    # ---- private

    def _event_mistakes(self, event):
        about = event.get("involvedObject")
        about = about if isinstance(about, dict) else {}
        wanted = {"apiVersion": API_VERSION, "kind": KIND, "namespace": self.namespace}
        found = ["involvedObject.%s" % k for k, v in wanted.items() if about.get(k) != v]
        found += ["involvedObject." + k for k in ("name", "uid") if not about.get(k)]
        if event.get("kind") != "Event" or event.get("apiVersion") != "v1":
            found.append("kind or apiVersion")
        if event["metadata"].get("namespace", self.namespace) != self.namespace:
            found.append("metadata.namespace")
        if event.get("type") not in ("Normal", "Warning"):
            found.append("type: %r" % event.get("type"))
        if not re.fullmatch("[A-Z][A-Za-z]{0,127}", str(event.get("reason"))):
            found.append("reason: %r" % event.get("reason"))
        message = event.get("message")
        if not isinstance(message, str) or not 0 < len(message) <= EVENT_MESSAGE_MAX:
            found.append("message: %r" % message)
        for key in ("firstTimestamp", "lastTimestamp"):
            if not TIME.fullmatch(str(event.get(key))):
                found.append("%s: %r" % (key, event.get(key)))
        return found

    def _get(self, name):
        if name not in self.objects:
            raise not_found(name)
        return self.objects[name]

    def _begin_patch(self, name, patch):
        """Returns the present object if the patch refers to its version."""
        metadata = patch.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str):
            self.violations.append("a patch of %s without a resourceVersion" % name)
            raise Refusal(400, "BadRequest", "the patch has no metadata.resourceVersion", name)
        old = self._get(name)
        if version != old["metadata"]["resourceVersion"]:
            raise conflict(name)
        return old

    def _replace(self, name, new):
        """Stores a new value. A value that is equal to the present one changes nothing, not even
        the version."""
        old = self.objects[name]
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return copy.deepcopy(old)
        new = copy.deepcopy(new)
        same = {k: v for k, v in old.items() if k not in ("metadata", "status")}
        if {k: v for k, v in new.items() if k not in ("metadata", "status")} != same:
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self._record("MODIFIED", name, new)
        self.objects[name] = new
        return copy.deepcopy(new)

    def _remove(self, name):
        value = copy.deepcopy(self._get(name))
        self._record("DELETED", name, value)
        del self.objects[name]
        return value

    def _record(self, kind, name, value):
        self.version += 1
        metadata = value.get("metadata") if isinstance(value, dict) else None
        if isinstance(metadata, dict):
            metadata["resourceVersion"] = str(self.version)
        change = (self.version, kind, copy.deepcopy(value))
        self.history.append(change)
        self.all_changes.append((name,) + change)
