"""What a server does to an object between its schema and its store: defaults, rules, quotas, service accounts."""

import base64
import uuid
from copy import deepcopy
from fractions import Fraction

from kubernetes_cluster.errors import Object, forbidden, invalid
from kubernetes_cluster.job_rules import default_job, job_problems, job_update_problems
from kubernetes_cluster.kinds import JOB, KINDS, NAMESPACE, POD, QUOTA, SERVICE, Kind
from kubernetes_cluster.pod_rules import check_metadata, check_pod_template, default_pod_spec, service_problems
from kubernetes_cluster.quantities import limits_of, quantity, requests_of
from kubernetes_cluster.store import Store, generated_name, name_of, namespace_of

QUEUE_LABEL, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
DEFAULT_TOLERATION_S = 300


def admit_new(store: Store, kind: Kind, namespace: str, manifest: Object, version: str, *, has_queues: bool) -> Object:
    """Return the object as it will be stored. Raises 403 or 422."""
    new = deepcopy(manifest)
    metadata = new.setdefault("metadata", {})
    if not metadata.get("name"):
        if not metadata.get("generateName"):
            raise invalid(kind, "", ["metadata.name: Required value: name or generateName is required"])
        metadata["name"] = generated_name(metadata["generateName"])
    if kind.is_namespaced:
        metadata["namespace"] = namespace
    metadata["uid"] = str(uuid.uuid4())
    metadata.pop("resourceVersion", None)
    if kind is JOB:
        default_job(new, version)
        new["status"] = {}
        if has_queues and QUEUE_LABEL in metadata.get("labels", {}):
            _enqueue(new)
        problems = job_problems(new)
        _check_number_of_jobs(store, new, namespace)
    elif kind is POD:
        default_pod_spec(new.setdefault("spec", {}))
        _tolerate_lost_nodes(new["spec"])
        new["status"] = {"phase": "Pending"}
        problems = check_metadata(new) + check_pod_template(new, "")
    else:
        for key, text in new.pop("stringData", {}).items():
            new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
        problems = service_problems(new) if kind is SERVICE else check_metadata(new)
    if problems:
        raise invalid(kind, metadata["name"], problems)
    if kind is POD:
        _check_service_account(store, new)
        _check_quotas(store, new)
    return new


def _enqueue(job: Object) -> None:
    """Do what Kueue's webhook does to a new Job."""
    job["spec"]["suspend"] = True
    if job["metadata"].get("annotations", {}).get(ELASTIC) == "true":
        job["spec"]["template"]["spec"].setdefault("schedulingGates", []).append({"name": ELASTIC})


def admit_change(kind: Kind, current: Object, new: Object, *, is_status: bool) -> Object:
    """Return the object as it will be stored after a change of its status, or of all else. Raises 422."""
    changed = deepcopy(current if is_status else new)
    changed["status"] = deepcopy((new if is_status else current).get("status", {}))
    changed["metadata"] = changed["metadata"] | {
        field: current["metadata"][field] for field in ("name", "namespace", "uid", "creationTimestamp")
        if field in current["metadata"]
    }  # fmt: skip
    if kind is JOB and not is_status and (problems := job_update_problems(changed, current)):
        raise invalid(kind, name_of(current), problems)
    return changed


def used_in(store: Store, namespace: str) -> dict[str, Fraction]:
    """What the pods that have not ended use of a namespace's quota."""
    used: dict[str, Fraction] = {}
    for pod in store.all(POD, namespace):
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            for name, amount in _charged(pod).items():
                used[name] = used.get(name, Fraction(0)) + amount
    return used


def _charged(pod: Object) -> dict[str, Fraction]:
    requests, limits = requests_of(pod["spec"]), limits_of(pod["spec"])
    charged = {f"requests.{name}": amount for name, amount in requests.items() if name != "pods"}
    charged |= {f"limits.{name}": amount for name, amount in limits.items()}
    return charged | {name: requests[name] for name in ("cpu", "memory") if name in requests} | {"pods": Fraction(1)}


def _check_quotas(store: Store, pod: Object) -> None:
    used, charged = used_in(store, namespace_of(pod)), _charged(pod)
    for quota in store.all(QUOTA, namespace_of(pod)):
        hard = quota["spec"].get("hard", {})
        missing = [name for name in hard if name not in charged and name not in ("pods", "count/jobs.batch")]
        if missing:
            raise forbidden(POD, name_of(pod), f"failed quota: {name_of(quota)}: must specify {','.join(missing)}")
        over = [n for n in hard if n in charged and used.get(n, 0) + charged[n] > quantity(hard[n])]
        if over:
            parts = (
                ",".join(f"{name}={float(amounts.get(name, 0)):g}" for name in over) for amounts in (charged, used)
            )
            limited = ",".join(f"{name}={hard[name]}" for name in over)
            requested, held = parts
            why = f"exceeded quota: {name_of(quota)}, requested: {requested}, used: {held}, limited: {limited}"
            raise forbidden(POD, name_of(pod), why)


def _check_number_of_jobs(store: Store, job: Object, namespace: str) -> None:
    number = len(store.all(JOB, namespace))
    for quota in store.all(QUOTA, namespace):
        limit = quota["spec"].get("hard", {}).get(name := "count/jobs.batch")
        if limit is not None and number + 1 > quantity(limit):
            amounts = f"requested: {name}=1, used: {name}={number}, limited: {name}={limit}"
            raise forbidden(JOB, name_of(job), f"exceeded quota: {name_of(quota)}, {amounts}")


def _check_service_account(store: Store, pod: Object) -> None:
    namespace = namespace_of(pod)
    name = pod["spec"].setdefault("serviceAccountName", "default")
    if store.find(NAMESPACE, "", namespace) and not store.find(KINDS["serviceaccounts"], namespace, name):
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise forbidden(POD, name_of(pod), why)


def _tolerate_lost_nodes(spec: Object) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in _LOST_NODE:
        if not any(tolerates(toleration, key) for toleration in tolerations):
            tolerations.append({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TOLERATION_S,
            })  # fmt: skip


def tolerates(toleration: Object, key: str) -> bool:
    """Whether a pod with this toleration may stay on a node with a NoExecute taint of that key."""
    exists = toleration.get("operator") == "Exists"
    names_it = toleration.get("key") == key or (exists and not toleration.get("key"))
    return names_it and toleration.get("effect") in (None, "", "NoExecute")
