"""Nodes: which pods they get, and what becomes of the pods of a node that is silent or gone.

A silent node is not ready after a while. Its pods are deleted once they have tolerated that for their time; but only
the node itself can confirm that they have ended, so they stay, terminating, until somebody removes the node object or
marks it as out of service.
"""

from fractions import Fraction

from kubernetes_cluster.admission import tolerates
from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import grace_of, has_ended, set_condition
from kubernetes_cluster.kinds import KINDS, NODE, POD
from kubernetes_cluster.quantities import quantity, requests_of
from kubernetes_cluster.store import Store, condition, holds, name_of, namespace_of
from kubernetes_cluster.timing import Timing

UNREACHABLE, OUT_OF_SERVICE = "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service"
HOST_LABEL = "kubernetes.io/hostname"


def new_node(name: str, allocatable: dict[str, str]) -> Object:
    """A node that is ready."""
    return {
        "metadata": {"name": name, "labels": {HOST_LABEL: name}},
        "spec": {},
        "status": {
            "allocatable": allocatable, "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }  # fmt: skip


class Nodes:
    """The scheduler, and the controllers of nodes."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store, self._timing = store, timing
        self._silent_since_s: dict[str, float] = {}
        self._lost_since_s: dict[str, float] = {}
        self._gone_since_s: dict[str, float] = {}

    def silence(self, node: str) -> None:
        """From now on nothing is heard of the node."""
        self._silent_since_s[node] = self._store.clock()

    def revive(self, node: str) -> None:
        """The node is heard of again."""
        self._silent_since_s.pop(node, None)
        if (found := self._store.find(NODE, "", node)) and self._lost_since_s.pop(node, None) is not None:
            with self._store.editing(NODE, found):
                set_condition(self._store, found, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
                found["spec"]["taints"] = [t for t in found["spec"].get("taints", []) if t["key"] != UNREACHABLE]

    def is_silent(self, node: str) -> bool:
        """Whether nothing is heard of the node."""
        return node in self._silent_since_s

    def sync(self) -> None:
        """Mark silent nodes, delete and collect their pods, and give waiting pods a node."""
        for node in self._store.all(NODE):
            self._judge(node)
        for pod in self._store.all(POD):
            self._evict_from_lost_node(pod)
            self._collect(pod)
            if "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"] and not has_ended(pod):
                self._schedule(pod)

    def _judge(self, node: Object) -> None:
        name, now_s = name_of(node), self._store.clock()
        since_s = self._silent_since_s.get(name)
        if since_s is None or now_s < since_s + self._timing.node_grace_s or name in self._lost_since_s:
            return
        self._lost_since_s[name] = now_s
        with self._store.editing(NODE, node):
            message = "Kubelet stopped posting node status."
            set_condition(self._store, node, "Ready", "Unknown", "NodeStatusUnknown", message)
            node["spec"].setdefault("taints", []).append({"key": UNREACHABLE, "effect": "NoExecute"})
        for pod in self._store.all(POD):
            if pod["spec"].get("nodeName") == name and holds(pod, "Ready"):
                with self._store.editing(POD, pod):
                    set_condition(self._store, pod, "Ready", "False", "NodeNotReady", "")

    def _evict_from_lost_node(self, pod: Object) -> None:
        since_s = self._lost_since_s.get(pod["spec"].get("nodeName", ""))
        if since_s is None or "deletionTimestamp" in pod["metadata"] or has_ended(pod):
            return
        times = [
            toleration.get("tolerationSeconds", float("inf"))
            for toleration in pod["spec"].get("tolerations", [])
            if tolerates(toleration, UNREACHABLE)
        ]
        if self._store.clock() >= since_s + self._timing.toleration_s(min(times, default=0)):
            self._disrupt(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            self._store.delete(POD, pod, grace_s=grace_of(pod))

    def _collect(self, pod: Object) -> None:
        """What the garbage collector of pods does: fail and remove those of which no node will say more."""
        node_name = pod["spec"].get("nodeName")
        if node_name is None:
            if "deletionTimestamp" in pod["metadata"] and not has_ended(pod):
                self._fail(pod)
            return
        node = self._store.find(NODE, "", node_name)
        if node is None:
            since_s = self._gone_since_s.setdefault(node_name, self._store.clock())
            if self._store.clock() >= since_s + self._timing.pod_collection_s:
                if not has_ended(pod):
                    self._disrupt(pod, "DeletionByPodGC", "PodGC: node no longer exists")
                    self._fail(pod)
                self._store.delete(POD, pod)
        elif "deletionTimestamp" in pod["metadata"] and _is_out_of_service(node):
            if not has_ended(pod):
                self._fail(pod)
            self._store.delete(POD, pod)

    def _disrupt(self, pod: Object, reason: str, message: str) -> None:
        with self._store.editing(POD, pod):
            set_condition(self._store, pod, "DisruptionTarget", "True", reason, message)

    def _fail(self, pod: Object) -> None:
        with self._store.editing(POD, pod):
            pod["status"]["phase"] = "Failed"

    def _schedule(self, pod: Object) -> None:
        nodes = self._store.all(NODE)
        refusals: dict[str, int] = {}
        fitting = []
        for node in nodes:
            if why := self._why_not(pod, node):
                refusals[why] = refusals.get(why, 0) + 1
            else:
                fitting.append(node)
        if missing := self._missing_claim(pod):
            fitting, refusals = [], {missing: len(nodes)}
        if pod["spec"].get("schedulingGates"):
            self._note_waiting(pod, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
        elif fitting:
            with self._store.editing(POD, pod):
                pod["spec"]["nodeName"] = name_of(min(fitting, key=lambda node: len(self._pods_on(name_of(node)))))
                set_condition(self._store, pod, "PodScheduled", "True", "", "")
        else:
            reasons = ", ".join(f"{number} {why}" for why, number in sorted(refusals.items()))
            self._note_waiting(pod, "Unschedulable", f"0/{len(nodes)} nodes are available: {reasons}.")

    def _note_waiting(self, pod: Object, reason: str, message: str) -> None:
        known = condition(pod, "PodScheduled")
        if known is None or (known["reason"], known["message"]) != (reason, message):
            with self._store.editing(POD, pod):
                set_condition(self._store, pod, "PodScheduled", "False", reason, message)
            if reason == "Unschedulable":
                self._store.record_event(POD, pod, "FailedScheduling", message, warning=True)

    def _pods_on(self, node: str) -> list[Object]:
        return [pod for pod in self._store.all(POD) if pod["spec"].get("nodeName") == node and not has_ended(pod)]

    def _why_not(self, pod: Object, node: Object) -> str:
        spec = pod["spec"]
        if node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        if not holds(node, "Ready"):
            return f"node(s) had untolerated taint {{{UNREACHABLE}: }}"
        labels = node["metadata"].get("labels", {})
        if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        others = self._pods_on(name_of(node))
        if any(_repels(term, other) for term in _anti_affinity(spec) for other in others):
            return "node(s) didn't match pod anti-affinity rules"
        room = {name: quantity(text) for name, text in node["status"]["allocatable"].items()}
        for other in others:
            for name, amount in requests_of(other["spec"]).items():
                room[name] = room.get(name, Fraction(0)) - amount
        for name, amount in requests_of(spec).items():
            if amount > room.get(name, Fraction(0)):
                return "Too many pods" if name == "pods" else f"Insufficient {name}"
        return ""

    def _missing_claim(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes", []):
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            claims = KINDS["persistentvolumeclaims"]
            if name is not None and self._store.find(claims, namespace_of(pod), name) is None:
                return f'persistentvolumeclaim "{name}" not found'
        return ""


def _is_out_of_service(node: Object) -> bool:
    taints = node["spec"].get("taints", [])
    return not holds(node, "Ready") and any(taint["key"] == OUT_OF_SERVICE for taint in taints)


def _anti_affinity(spec: Object) -> list[Object]:
    """Terms that keep a pod from nodes that have certain others."""
    affinity = (spec.get("affinity") or {}).get("podAntiAffinity", {})
    terms: list[Object] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return [term for term in terms if term.get("topologyKey") == HOST_LABEL]


def _repels(term: Object, other: Object) -> bool:
    labels = other["metadata"].get("labels", {})
    match_labels = term.get("labelSelector", {}).get("matchLabels", {})
    return bool(match_labels) and all(labels.get(key) == value for key, value in match_labels.items())
