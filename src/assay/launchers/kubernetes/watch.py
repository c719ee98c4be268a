"""What the leading node of a run does with its own Job: shows progress on it, and gives it more or fewer pods.

    every 10 s   read the Job, its pods and the namespace's quotas --> one patch of annotations and size

The size follows the quota, between the fewest and the most nodes that the run asked for, and only as long as nobody
else sets it: a size that an operator or a queue has set stays. In a queue of Kueue the Job asks for one node more at a
time, and only if Kueue treats it as elastic; otherwise a larger Job would be suspended until all of it fits. New pods
join the run, and pods of the highest indexes leave it; its weights do not depend on when.
"""

import itertools
import json
import ssl
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from assay.base.clock import SystemClock, utc_text
from assay.base.errors import ConfigError
from assay.launchers.kubernetes.client import ApiServer, ApiServerError, Object, find_cluster
from assay.launchers.kubernetes.job import (
    ELASTIC,
    FEWEST_NODES,
    MOST_NODES,
    NAMED_JOB,
    OWN_SIZE,
    QUEUE_LABEL,
    job_path,
    pods_path,
    sized,
)
from assay.launchers.kubernetes.quota import room
from assay.launchers.polling import polling
from assay.records.goodput import useful_share
from assay.records.run import Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.metrics.phases import running_phase_seconds
from assay.store.objects import open_store

LOOK_S = 10.0
"""Seconds between looks."""
LOOKS_TO_SHOW = 6
"""Progress is shown at every n-th look: an annotation is a write for the API server."""
STATUS_URL, STATUS_CA, STATUS_TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
"""Variables that Kubeflow's Trainer sets in a pod of a TrainJob, if its status server is on."""


@contextmanager
def watching_job(run: Run, environment: Mapping[str, str]) -> Iterator[None]:
    """During the body, show progress on the run's Job and resize it; outside of a Job, do nothing."""
    if not {NAMED_JOB, STATUS_URL} & environment.keys():
        yield
        return
    log, looks, name = CommitLog(open_store(run.store_url)), itertools.count(), environment.get(NAMED_JOB)

    def look(is_over: threading.Event) -> None:
        progress = progress_of(run, log) if next(looks) % LOOKS_TO_SHOW == 0 else {}
        if name is not None:
            _look(find_cluster(), name, progress, is_over)
        if progress and STATUS_URL in environment:
            _post_status(environment, run, progress)

    with polling(look, every_s=LOOK_S, name="watch of the Kubernetes Job"):
        yield


def _look(cluster: ApiServer, name: str, progress: dict[str, str], is_over: threading.Event) -> None:
    """Show progress on the Job, and give it the size that it should have. Raises `ConfigError` if it may not."""
    try:
        job = cluster.request("GET", job_path(name))
        namespace = job["metadata"]["namespace"]
        pods = cluster.request("GET", pods_path(name))["items"]
        quotas = cluster.request("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")["items"]
        size, num_nodes = job["spec"]["parallelism"], target_size(job, pods, quotas)
        patch: Object = {"metadata": {"annotations": progress}} if progress else {}
        if num_nodes != size:
            patch = sized(num_nodes, {**progress, OWN_SIZE: str(num_nodes)})
            patch["metadata"]["resourceVersion"] = job["metadata"]["resourceVersion"]  # nobody resized it meanwhile
            print(f"the Job gets {num_nodes} nodes instead of {size}", file=sys.stderr)
        if patch and not is_over.is_set():
            cluster.request("PATCH", job_path(name), patch)
    except ApiServerError as error:
        if error.code == 403:
            raise ConfigError(f"this node may not watch its Job, which keeps its size: {error}") from error
        raise


def target_size(job: Object, pods: Sequence[Object], quotas: Sequence[Object]) -> int:
    """Return the number of nodes that the Job should have now."""
    metadata, size = job["metadata"], int(job["spec"]["parallelism"])
    annotations = metadata.get("annotations", {})
    if annotations.get(OWN_SIZE) != str(size) or "deletionTimestamp" in metadata:
        return size
    most, fewest = int(annotations[MOST_NODES]), int(annotations[FEWEST_NODES])
    living = [pod for pod in pods if pod.get("status", {}).get("phase") in ("Pending", "Running")]
    if QUEUE_LABEL in metadata.get("labels", {}):
        gates = job["spec"]["template"]["spec"].get("schedulingGates", [])
        num_running = sum(pod["status"]["phase"] == "Running" for pod in living)
        return min(size + 1, most) if {"name": ELASTIC} in gates and num_running >= size else size
    num_more = room(quotas, job["spec"]["template"]["spec"])
    if num_more < 0:
        return min(size, max(fewest, len(living) + int(num_more)))
    return int(min(most, max(size, len(living) + num_more)))


def progress_of(run: Run, log: CommitLog) -> dict[str, str]:
    """Return the run's progress as annotations."""
    commits, attempts = log.summary().commits, saved_attempts(Path(run.run_dir))
    progress = {"assay/step": f"{commits[-1].step if commits else 0} of {run.num_steps}"}
    if attempts:
        last = attempts[-1]
        spent = running_phase_seconds(run, last, 0, held_to_s=last.ended_s or SystemClock().now_s()).seconds
        progress["assay/attempt"] = f"{last.attempt}, on {last.world_size} workers"
        if (share := useful_share(spent)) is not None:
            progress["assay/goodput"] = f"{share:.0%} of attempt {last.attempt}"
    return progress


def _post_status(environment: Mapping[str, str], run: Run, progress: Mapping[str, str]) -> None:
    """Send progress to the status server of Kubeflow's Trainer."""
    step = int(progress["assay/step"].split()[0])
    status = {
        "progressPercentage": min(100, 100 * step // max(1, run.num_steps)),
        "metrics": [{"name": name.removeprefix("assay/"), "value": text} for name, text in progress.items()],
        "lastUpdatedTime": utc_text(SystemClock().now_s()),
    }
    request = urllib.request.Request(
        environment[STATUS_URL],
        data=json.dumps({"trainerStatus": status}).encode(),
        headers={"Content-Type": "application/json"},
    )
    request.add_unredirected_header("Authorization", f"Bearer {Path(environment[STATUS_TOKEN]).read_text().strip()}")
    tls = ssl.create_default_context(cafile=environment.get(STATUS_CA))
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))
    with opener.open(request, timeout=10):
        pass
