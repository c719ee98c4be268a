"""What a node reports of its pods."""

from kubernetes_cluster.errors import Object
from kubernetes_cluster.jobs import set_condition
from kubernetes_cluster.kinds import POD
from kubernetes_cluster.store import Store

_WHILE_RUNNING = ("Initialized", "ContainersReady", "Ready")


def report_running(store: Store, pod: Object) -> None:
    """The pod's container has started; without a probe it counts as ready."""
    with store.editing(POD, pod):
        pod["status"] |= {"phase": "Running", "startTime": store.now()}
        pod["status"]["containerStatuses"] = [_status(pod, {"running": {"startedAt": store.now()}})]
        for name in _WHILE_RUNNING:
            set_condition(store, pod, name, "True", "", "")


def report_waiting(store: Store, pod: Object, reason: str, message: str) -> None:
    """The pod's container cannot start yet."""
    waiting = {"reason": reason, "message": message}
    statuses = pod["status"].get("containerStatuses", [])
    if reason == "ErrImagePull" and statuses:
        image = pod["spec"]["containers"][0]["image"]
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
    if not statuses or statuses[0]["state"].get("waiting") != waiting:
        with store.editing(POD, pod):
            pod["status"]["containerStatuses"] = [_status(pod, {"waiting": waiting})]
        store.record_event(POD, pod, "Failed", message, warning=True)


def report_end(store: Store, pod: Object, code: int | None, reason: str = "", message: str = "") -> None:
    """The pod's container has ended, by a signal where `code` is negative; None: it never started.

    If the pod is being deleted, this confirms it.
    """
    exit_code = 137 if code is None else code if code >= 0 else 128 - code
    with store.editing(POD, pod):
        pod["status"]["phase"] = "Failed" if exit_code else "Succeeded"
        for name in ("ContainersReady", "Ready"):
            set_condition(store, pod, name, "False", "PodFailed" if exit_code else "PodCompleted", "")
        if code is not None:
            reason = reason or ("Error" if exit_code else "Completed")
            ended = {"exitCode": exit_code, "reason": reason, "finishedAt": store.now()}
            if message:
                ended["message"] = message
            pod["status"]["containerStatuses"] = [_status(pod, {"terminated": ended})]
    if "deletionTimestamp" in pod["metadata"]:
        store.delete(POD, pod)


def _status(pod: Object, state: Object) -> Object:
    [container], is_running = pod["spec"]["containers"], "running" in state
    return {
        "name": container["name"], "image": container["image"], "state": state, "ready": is_running,
        "started": is_running, "restartCount": 0, "lastState": {}, "imageID": "",
    }  # fmt: skip
