"""The Job controller: which pods a Job has, which ends of pods count, and when a Job is over.

It keeps the rules of batch/v1 that a real controller keeps (since 1.31; see `docs/kubernetes.md` for those that a
run relies on). `sync` may be called at any time and as often as one likes.
"""

from copy import deepcopy
from itertools import islice
from typing import NamedTuple

from kubernetes_cluster.admission import admit_new
from kubernetes_cluster.errors import ApiError, Object
from kubernetes_cluster.kinds import JOB, POD
from kubernetes_cluster.store import Store, condition, holds, name_of, namespace_of, owner_uid
from kubernetes_cluster.timing import Timing

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
_FINAL = {"SuccessCriteriaMet": "Complete", "FailureTarget": "Failed"}
_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


class Failures(NamedTuple):
    """Ends of pods since the last success: they delay further pods."""

    number: int = 0
    last_s: float = 0.0


class JobController:
    """Makes and removes the pods of all Jobs."""

    def __init__(self, store: Store, timing: Timing, version: str) -> None:
        self._store, self._timing, self._version = store, timing, version
        self._failures: dict[str, Failures] = {}
        self._retry_at_s: dict[str, float] = {}

    def sync(self) -> None:
        """Bring every Job nearer to what its spec says."""
        for job in self._store.all(JOB):
            pods = [pod for pod in self._store.all(POD, namespace_of(job)) if owner_uid(pod) == job["metadata"]["uid"]]
            if "deletionTimestamp" in job["metadata"] or is_finished(job):
                self._release(pods)
            else:
                self._sync_job(job, pods)
        self._release([pod for pod in self._store.all(POD) if owner_uid(pod) is None])

    def _sync_job(self, job: Object, pods: list[Object]) -> None:
        before = deepcopy(job["status"])
        status = job["status"]
        if not job["spec"]["suspend"]:
            status.setdefault("startTime", self._store.now())
        self._count_ends(job, pods)
        self._decide_end(job, pods)
        pods = [pod for pod in pods if self._store.find(POD, namespace_of(pod), name_of(pod)) is pod]
        if any(holds(job, interim) for interim in _FINAL):
            for pod in _active(pods):
                self._delete(pod)
            self._finish_if_empty(job, pods)
        else:
            self._manage(job, pods)
            self._note_suspension(job)
        status |= {
            "active": len(_active(pods)), "ready": sum(holds(pod, "Ready") for pod in _active(pods)),
            "terminating": len(_terminating(pods)), "uncountedTerminatedPods": {},
        }  # fmt: skip
        if status != before:
            with self._store.editing(JOB, job):
                pass

    def _count_ends(self, job: Object, pods: list[Object]) -> None:
        """Count pods that have ended and not been counted, and let them go."""
        status, succeeded = job["status"], completed_indexes(job)
        new_failed, new_succeeded = 0, 0
        for pod in pods:
            if FINALIZER not in pod["metadata"].get("finalizers", []) or not has_ended(pod):
                continue
            is_valid = not _is_indexed(job) or index_of(pod) < job["spec"]["completions"]
            if is_valid and pod["status"]["phase"] == "Succeeded":
                new_succeeded += 1
                succeeded.add(index_of(pod))
                if not _is_indexed(job):
                    status["succeeded"] = status.get("succeeded", 0) + 1
            elif is_valid:
                new_failed += 1  # an ignored end delays further pods as well
                fail_message, counts = _apply_failure_policy(job, pod)
                status["failed"] = status.get("failed", 0) + counts
                if fail_message:
                    self._set_condition(job, "FailureTarget", "PodFailurePolicy", fail_message)
            self._store.remove_finalizer(POD, pod, FINALIZER)
        if _is_indexed(job):
            status |= {"succeeded": len(succeeded), "completedIndexes": _ranges(succeeded)}
        self._note_failures(job, new_succeeded, new_failed)

    def _note_failures(self, job: Object, succeeded: int, failed: int) -> None:
        uid = job["metadata"]["uid"]
        if succeeded:
            self._failures[uid] = Failures()
        if failed:
            number = self._failures.get(uid, Failures()).number + failed
            self._failures[uid] = Failures(number, self._store.clock())

    def _decide_end(self, job: Object, pods: list[Object]) -> None:
        spec, status = job["spec"], job["status"]
        if any(condition(job, interim) for interim in _FINAL):
            return
        if status.get("failed", 0) > spec["backoffLimit"]:
            reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            self._set_condition(job, "FailureTarget", reason, message)
        elif (rule := _success_rule(job)) is not None:
            self._set_condition(job, "SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {rule}")
        elif spec.get("completions") is not None and status.get("succeeded", 0) >= spec["completions"]:
            self._set_condition(
                job, "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
            )

    def _finish_if_empty(self, job: Object, pods: list[Object]) -> None:
        if _active(pods) or _terminating(pods):
            return
        interim = next(found for name in _FINAL if (found := condition(job, name)))
        self._set_condition(job, _FINAL[interim["type"]], interim["reason"], interim["message"])
        if interim["type"] == "SuccessCriteriaMet":
            job["status"]["completionTime"] = self._store.now()
            self._store.record_event(JOB, job, "Completed", "Job completed")
        else:
            self._store.record_event(JOB, job, interim["reason"], interim["message"], warning=True)

    def _manage(self, job: Object, pods: list[Object]) -> None:
        """Make or remove pods."""
        spec, active = job["spec"], _active(pods)
        if spec["suspend"]:
            for pod in active:
                self._remove(pod)
            return
        only_failed = spec["podReplacementPolicy"] == "Failed"
        terminating = _terminating(pods) if only_failed else []
        desired = spec["parallelism"]
        if spec.get("completions") is not None:
            desired = max(0, min(desired, spec["completions"] - job["status"].get("succeeded", 0)))
        if surplus := _surplus(job, active, len(active) - desired):
            for pod in surplus:
                self._remove(pod)
        elif (missing := desired - len(active) - len(terminating)) > 0 and self._may_create(job):
            for index in _free_indexes(job, active + terminating, missing):
                self._create(job, index)

    def _may_create(self, job: Object) -> bool:
        uid, now_s = job["metadata"]["uid"], self._store.clock()
        failures = self._failures.get(uid, Failures())
        delay_s = self._timing.backoff_s(failures.number)
        return now_s >= max(failures.last_s + delay_s if failures.number else 0, self._retry_at_s.get(uid, 0))

    def _create(self, job: Object, index: int | None) -> None:
        namespace = namespace_of(job)
        try:
            pod = admit_new(self._store, POD, namespace, _pod_of(job, index), self._version, has_queues=False)
            self._store.create(POD, namespace, pod)
            self._store.record_event(JOB, job, "SuccessfulCreate", f"Created pod: {name_of(pod)}")
        except ApiError as error:
            self._store.record_event(JOB, job, "FailedCreate", f"Error creating: {error.message}", warning=True)
            self._retry_at_s[job["metadata"]["uid"]] = self._store.clock() + self._timing.create_retry_s

    def _note_suspension(self, job: Object) -> None:
        if job["spec"]["suspend"]:
            if not holds(job, "Suspended"):
                self._set_condition(job, "Suspended", "JobSuspended", "Job suspended")
                self._store.record_event(JOB, job, "Suspended", "Job suspended")
            job["status"].pop("startTime", None)
        elif holds(job, "Suspended"):
            self._set_condition(job, "Suspended", "JobResumed", "Job resumed", status="False")
            self._store.record_event(JOB, job, "Resumed", "Job resumed")
            job["status"]["startTime"] = self._store.now()

    def _set_condition(self, job: Object, name: str, reason: str, message: str, status: str = "True") -> None:
        set_condition(self._store, job, name, status, reason, message)

    def _delete(self, pod: Object) -> None:
        self._store.delete(POD, pod, grace_s=grace_of(pod))

    def _remove(self, pod: Object) -> None:
        """Delete a pod whose end shall not count."""
        self._store.remove_finalizer(POD, pod, FINALIZER)
        self._delete(pod)

    def _release(self, pods: list[Object]) -> None:
        for pod in pods:
            self._store.remove_finalizer(POD, pod, FINALIZER)


def set_condition(store: Store, subject: Object, name: str, status: str, reason: str, message: str) -> None:
    """Set a condition of the object's status; the caller stores it."""
    conditions = subject["status"].setdefault("conditions", [])
    conditions[:] = [found for found in conditions if found["type"] != name]
    now = store.now()
    conditions.append({
        "type": name, "status": status, "reason": reason, "message": message, "lastProbeTime": now,
        "lastTransitionTime": now,
    })  # fmt: skip


def is_finished(job: Object) -> bool:
    """Whether the Job is Complete or Failed."""
    return any(holds(job, final) for final in _FINAL.values())


def has_ended(pod: Object) -> bool:
    """Whether all containers of the pod have ended."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def index_of(pod: Object) -> int:
    """The pod's completion index; 0 where its Job has none."""
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def completed_indexes(job: Object) -> set[int]:
    """The indexes in `status.completedIndexes` that the Job still has."""
    indexes: set[int] = set()
    for part in filter(None, job["status"].get("completedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return {index for index in indexes if index < (job["spec"].get("completions") or 0)}


def grace_of(pod: Object) -> float:
    """The time between SIGTERM and SIGKILL; 0 for a pod that no node has."""
    return pod["spec"]["terminationGracePeriodSeconds"] if pod["spec"].get("nodeName") else 0


def _is_indexed(job: Object) -> bool:
    return bool(job["spec"]["completionMode"] == "Indexed")


def _active(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if not has_ended(pod) and "deletionTimestamp" not in pod["metadata"]]


def _terminating(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if not has_ended(pod) and "deletionTimestamp" in pod["metadata"]]


def _apply_failure_policy(job: Object, pod: Object) -> tuple[str, bool]:
    """What the pod failure policy says of an end: why the Job fails (or nothing), and whether it counts."""
    full_name = f"{namespace_of(pod)}/{name_of(pod)}"
    for number, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", [])):
        if "onExitCodes" in rule:
            reason = _matching_exit(rule["onExitCodes"], pod, full_name)
        else:
            reason = _matching_condition(rule["onPodConditions"], pod, full_name)
        if reason:
            matched = f"{reason} matching {rule['action']} rule at index {number}"
            return matched if rule["action"] == "FailJob" else "", rule["action"] != "Ignore"
    return "", True


def _matching_exit(requirement: Object, pod: Object, full_name: str) -> str:
    for container in pod["status"].get("containerStatuses", []):
        code = container.get("state", {}).get("terminated", {}).get("exitCode", 0)
        is_meant = requirement.get("containerName") in (None, container["name"])
        if is_meant and code != 0 and (code in requirement["values"]) == (requirement["operator"] == "In"):
            return f"Container {container['name']} for pod {full_name} failed with exit code {code}"
    return ""


def _matching_condition(patterns: list[Object], pod: Object, full_name: str) -> str:
    for pattern in patterns:
        if (condition(pod, pattern["type"]) or {}).get("status") == pattern.get("status", "True"):
            return f"Pod {full_name} has condition {pattern['type']}"
    return ""


def _success_rule(job: Object) -> int | None:
    """The index of the first rule of the success policy that is met."""
    succeeded = len(completed_indexes(job))
    for number, rule in enumerate(job["spec"].get("successPolicy", {}).get("rules", [])):
        if succeeded >= rule.get("succeededCount", job["spec"]["completions"]):
            return number
    return None


def _surplus(job: Object, active: list[Object], at_least: int) -> list[Object]:
    """Pods to remove: those of no index or of a taken one, then the latest in the order of a real controller."""
    surplus: list[Object] = []
    rest: list[Object] = []
    seen: set[int] = set()
    for pod in active if _is_indexed(job) else []:
        is_valid = index_of(pod) < job["spec"]["completions"] and index_of(pod) not in seen
        seen.add(index_of(pod))
        (rest if is_valid else surplus).append(pod)
    if not _is_indexed(job):
        rest = list(active)
    rest.reverse()
    rest.sort(key=_removal_rank)  # of equals the newest first
    return surplus + rest[: max(0, at_least - len(surplus))]


def _removal_rank(pod: Object) -> tuple[bool, int, bool]:
    return bool(pod["spec"].get("nodeName")), _RANK[pod["status"].get("phase", "Pending")], holds(pod, "Ready")


def _free_indexes(job: Object, pods: list[Object], number: int) -> list[int | None]:
    if not _is_indexed(job):
        return [None] * number
    used = {index_of(pod) for pod in pods} | completed_indexes(job)
    free = (index for index in range(job["spec"]["completions"]) if index not in used)
    return list(islice(free, number))


def _pod_of(job: Object, index: int | None) -> Object:
    pod: Object = deepcopy(job["spec"]["template"])
    metadata, name = pod.setdefault("metadata", {}), name_of(job)
    metadata["generateName"] = f"{name}-" if index is None else f"{name}-{index}-"
    metadata["finalizers"] = [FINALIZER]
    metadata["ownerReferences"] = [{
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }]  # fmt: skip
    if index is not None:
        metadata["annotations"] = metadata.get("annotations", {}) | {INDEX: str(index)}
        metadata["labels"] = metadata.get("labels", {}) | {INDEX: str(index)}
        pod["spec"]["hostname"] = f"{name}-{index}"
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in pod["spec"]["containers"]:
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
    return pod


def _ranges(indexes: set[int]) -> str:
    """Kubernetes' text for a set of indexes: `0,2-4`."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
