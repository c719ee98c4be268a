"""The objects of the stand-in, in memory, as an API server keeps them.

Each change gives its object a new resourceVersion and is an event for those who watch. The HTTP server and the
controllers share one store; who reads or changes objects holds its `lock`.
"""

import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import NamedTuple

from kubernetes_cluster.errors import Object, already_exists, conflict, not_found
from kubernetes_cluster.kinds import EVENT, KINDS, NAMESPACE, POD, Kind

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of generated names: no vowels, so that no words come out."""


class Change(NamedTuple):
    """One event for those who watch."""

    version: int
    verb: str
    kind: Kind
    object: Object


class Store:
    """All objects, by kind, namespace and name."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.changes: deque[Change] = deque(maxlen=2000)
        self.clock = clock
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return self._version

    def create(self, kind: Kind, namespace: str, manifest: Object) -> Object:
        """Add an object; raises if its name is taken or its namespace is not there."""
        if kind.is_namespaced and (NAMESPACE.resource, "", namespace) not in self._objects:
            raise not_found(NAMESPACE, namespace)
        new = deepcopy(manifest)
        metadata = new.setdefault("metadata", {})
        if not metadata.get("name"):
            metadata["name"] = generated_name(metadata["generateName"])
        key = (kind.resource, namespace, metadata["name"])
        if key in self._objects:
            raise already_exists(kind, metadata["name"])
        new |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if kind.is_namespaced:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata |= {"creationTimestamp": self.now()}
        self._objects[key] = new
        self._changed("ADDED", kind, new)
        return new

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object of that name."""
        return self._objects.get((kind.resource, namespace if kind.is_namespaced else "", name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return the object of that name; raises 404."""
        if (found := self.find(kind, namespace, name)) is None:
            raise not_found(kind, name)
        return found

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        """Return objects of a kind, of all namespaces where none is given, the oldest first."""
        return [
            found
            for (resource, found_namespace, _), found in list(self._objects.items())
            if resource == kind.resource and namespace in (None, found_namespace)
        ]

    def everything(self) -> list[tuple[Kind, Object]]:
        """Return all objects."""
        return [(KINDS[resource], found) for (resource, _, _), found in list(self._objects.items())]

    def replace(self, kind: Kind, current: Object, new: Object) -> Object:
        """Give an object another content. Raises 409 if `new` names another resourceVersion than the current one."""
        version = new.get("metadata", {}).get("resourceVersion")
        if version not in (None, "", current["metadata"]["resourceVersion"]):
            raise conflict(kind, name_of(current))
        if all(new[part] == current.get(part) for part in new):
            return current
        with self.editing(kind, current) as changed:
            changed.clear()
            changed.update(new)
        return current

    @contextmanager
    def editing(self, kind: Kind, current: Object) -> Iterator[Object]:
        """Change an object in place: one new version."""
        yield current
        self._changed("MODIFIED", kind, current)
        self._remove_if_released(kind, current)

    def delete(self, kind: Kind, current: Object, *, grace_s: float = 0) -> None:
        """Mark an object as being deleted; it goes at once if nothing holds it.

        Finalizers hold it, and a pod's grace time, until its node confirms the end by a deletion without one.
        """
        metadata = current["metadata"]
        shortest_s = min(grace_s, metadata.get("deletionGracePeriodSeconds", grace_s))
        if "deletionTimestamp" not in metadata or shortest_s != metadata.get("deletionGracePeriodSeconds"):
            with self.editing(kind, current):
                metadata.setdefault("deletionTimestamp", self.now())
                metadata["deletionGracePeriodSeconds"] = shortest_s

    def remove_finalizer(self, kind: Kind, current: Object, finalizer: str) -> None:
        """Release an object that this finalizer holds."""
        if finalizer in current["metadata"].get("finalizers", []):
            with self.editing(kind, current):
                current["metadata"]["finalizers"].remove(finalizer)

    def record_event(self, kind: Kind, subject: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Add an `Event` about an object, or count one more of an equal one."""
        metadata = subject["metadata"]
        for event in self.all(EVENT, metadata.get("namespace", "default")):
            if event["involvedObject"]["uid"] == metadata["uid"] and event["message"] == message:
                with self.editing(EVENT, event):
                    event |= {"count": event["count"] + 1, "lastTimestamp": self.now()}
                return
        self.create(EVENT, metadata.get("namespace", "default"), {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {
                "apiVersion": kind.api_version, "kind": kind.kind, "name": metadata["name"], "uid": metadata["uid"],
                "namespace": metadata.get("namespace", ""),
            },
            "type": "Warning" if warning else "Normal", "reason": reason, "message": message, "count": 1,
            "firstTimestamp": self.now(), "lastTimestamp": self.now(),
        })  # fmt: skip

    def now(self) -> str:
        """The time as the API writes it, in whole seconds."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))

    def _remove_if_released(self, kind: Kind, current: Object) -> None:
        metadata = current["metadata"]
        being_deleted = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        key = (kind.resource, metadata.get("namespace", ""), metadata["name"])
        has_time = kind is POD and metadata.get("deletionGracePeriodSeconds", 0) > 0
        if being_deleted and not has_time and key in self._objects:
            del self._objects[key]
            self._changed("DELETED", kind, current)

    def _changed(self, verb: str, kind: Kind, changed: Object) -> None:
        self._version += 1
        changed["metadata"]["resourceVersion"] = str(self._version)
        self.changes.append(Change(self._version, verb, kind, deepcopy(changed)))
        with self.changed:
            self.changed.notify_all()


def generated_name(prefix: str) -> str:
    """A name that begins with `prefix`."""
    return prefix + "".join(secrets.choice(_LETTERS) for _ in range(5))


def name_of(subject: Object) -> str:
    """The object's name."""
    return str(subject["metadata"]["name"])


def namespace_of(subject: Object) -> str:
    """The object's namespace; empty where its kind has none."""
    return str(subject["metadata"].get("namespace", ""))


def owner_uid(subject: Object) -> str | None:
    """The uid of the controller that made the object."""
    owners = subject["metadata"].get("ownerReferences", [])
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def condition(subject: Object, name: str) -> Object | None:
    """The condition of that type in the object's status."""
    conditions = subject.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == name), None)


def holds(subject: Object, name: str) -> bool:
    """Whether the condition of that type is True."""
    return (condition(subject, name) or {}).get("status") == "True"
