"""Starts a run as a Job of a Kubernetes cluster, and finds, stops and resizes it.

    --on kubernetes --> Service, Job  --> pods, each 'assay train --resume RUN --on nodes' (`job`)
    stop            --> delete the Job: SIGTERM, all commit within the grace time, exit

All Jobs of a run have one name, so a run has one Job at a time. A Job that has ended is replaced.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from assay.base.errors import ConfigError, TrainingError
from assay.elastic.nodes.connection import STOPPED_EARLY, link_key
from assay.launchers.kubernetes.client import ApiServer, ApiServerError, NoCredentialsError, Object, find_cluster
from assay.launchers.kubernetes.job import (
    FEWEST_NODES,
    MOST_NODES,
    OWN_SIZE,
    QUEUE_LABEL,
    RUN,
    KubernetesConfig,
    job_name,
    job_path,
    log_file,
    objects_of,
    pods_path,
    run_key,
    sized,
)
from assay.launchers.kubernetes.quota import room
from assay.launchers.launcher import LaunchState, SchedulerLauncher
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import save_launch, saved_launches

OLDEST_VERSION = (1, 31)
"""The first that has all of `job.yaml` switched on."""
RIGHTS = ("create jobs.batch", "get jobs.batch", "delete jobs.batch", "create services", "patch services", "list pods")
"""What a user needs to start, find and stop runs."""
KUEUE_VERSIONS = ("v1beta2", "v1beta1")
POLL_S = 0.5


class KubernetesLauncher(SchedulerLauncher):
    """Creates Jobs. The volume with the runs is mounted here, too."""

    def _start(self, run: Run, world_size: int) -> Launch:
        """Create the Job; the launch's `job` is NAMESPACE/NAME, its `process` the Job's UID and the server."""
        cluster = find_cluster(self._config.context)
        name = f"{self._config.namespace or cluster.namespace}/{job_name(run)}"
        service, job = objects_of(
            self._home, run, self._config, name=name, world_size=world_size, options=self._options
        )
        if (created := self._unrecorded_job(cluster, run, name)) is None:
            _check_quota(cluster, run, job)
            link_key(Path(run.run_dir), fresh=True)  # now, so that no node has to wait for it
            created = _create(cluster, run, job)
        _create_service(cluster, service, created)
        process, log = f"{created['metadata']['uid']} {cluster.server}", log_file(run.run_dir, "0")
        return save_launch(run, launcher="kubernetes", job=name, world_size=world_size, process=process, log=log)

    def _unrecorded_job(self, cluster: ApiServer, run: Run, name: str) -> Object | None:
        """Return the run's Job if no launch names it; remove one that has ended.

        Raises `ConfigError` if the run has a Job already, or if another run has a Job of that name.
        """
        known = {launch.process.partition(" ")[0]: launch for launch in saved_launches(run)}
        deadline_s = time.monotonic() + self._config.grace_s + 60
        while (job := cluster.find(job_path(name))) is not None:
            _check_owner(job, run)
            is_leaving = "deletionTimestamp" in job["metadata"]
            if not is_leaving and not _has_ended(job):
                if job["metadata"]["uid"] not in known:
                    return job
                raise ConfigError(known[job["metadata"]["uid"]].conflict_text())
            if not is_leaving:
                _delete(cluster, name)
            if time.monotonic() > deadline_s:
                raise TrainingError(
                    f"Kubernetes Job {name} is being deleted, and its pods have not ended. Try later; if the node of a "
                    "pod is dead, remove it: kubectl delete node NODE."
                )
            time.sleep(POLL_S)
        return None


CONFIG, LAUNCHER = KubernetesConfig, KubernetesLauncher


def check_run(
    home: Home, run: Run, config: KubernetesConfig, *, world_size: int, options: tuple[str, ...] = ()
) -> None:
    """Let the cluster check the Service and the Job of a run without creating them. Raises `ConfigError`."""
    cluster = find_cluster(config.context)
    name = f"{config.namespace or cluster.namespace}/{job_name(run)}"
    objects = objects_of(home, run, config, name=name, world_size=world_size, options=options)
    _check_quota(cluster, run, objects[1])
    if (found := cluster.find(job_path(name))) is not None:
        _check_owner(found, run)
    for item in objects:
        try:
            _post(cluster, item, is_dry_run=True)
        except ApiServerError as error:
            if error.code >= 500:
                raise
            if error.code != 409:  # `start` replaces what an earlier launch of the run has left
                raise ConfigError(f"the cluster rejects the {item['kind']} of run {run.run_id}. {error}") from error


def _check_owner(job: Object, run: Run) -> None:
    """Raise `ConfigError` if a Job is not of this run."""
    metadata = job["metadata"]
    owner = metadata.get("annotations", {}).get(RUN, "nothing of assay's")
    if owner != run_key(run):
        raise ConfigError(
            f"Kubernetes Job {metadata['namespace']}/{metadata['name']} exists already, and trains another run "
            f"({owner}). Choose another --run-id or --namespace."
        )


def _check_quota(cluster: ApiServer, run: Run, job: Object) -> None:
    """Raise `ConfigError` if the namespace's quotas never hold the fewest nodes; if they do later, the Job waits."""
    path = f"/api/v1/namespaces/{job['metadata']['namespace']}/resourcequotas"
    quotas = (_find_if_allowed(cluster, path) or {}).get("items", [])
    pod, fewest = job["spec"]["template"]["spec"], int(job["metadata"]["annotations"][FEWEST_NODES])
    if (most := room(quotas, pod, is_empty=True)) < fewest:
        limits = "; ".join(f"{quota['metadata']['name']}: {quota['status']['hard']}" for quota in quotas)
        raise ConfigError(
            f"run {run.run_id} needs {fewest} pods of {pod['containers'][0]['resources']}, and the quota of namespace "
            f"'{job['metadata']['namespace']}' holds {most:.0f} ({limits}). Nothing was started: use fewer --workers "
            "or --nodes, or a range of --workers."
        )


def _create(cluster: ApiServer, run: Run, job: Object) -> Object:
    try:
        return _post(cluster, job)
    except ApiServerError as error:
        if error.code == 409:
            raise ConfigError(f"another command started run {run.run_id} at the same time. {error}") from error
        raise TrainingError(
            f"{error}\nThe run was created but not started: use 'assay train --resume {run.run_id} --on kubernetes' "
            "with other options."
        ) from error


def _create_service(cluster: ApiServer, service: Object, job: Object) -> None:
    """Create the Service, or take the one of an earlier Job over; the cluster removes it with the Job."""
    names = {name: job["metadata"][name] for name in ("name", "uid")}
    service["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", **names}]
    try:
        _post(cluster, service)
    except ApiServerError as error:
        if error.code != 409:
            raise
        cluster.request("PATCH", f"{_collection(service)}/{names['name']}", {"metadata": service["metadata"]})


def _post(cluster: ApiServer, item: Object, *, is_dry_run: bool = False) -> Object:
    dry_run = "&dryRun=All" if is_dry_run else ""
    return cluster.request("POST", f"{_collection(item)}?fieldValidation=Strict{dry_run}", item)


def _collection(item: Object) -> str:
    """Return the API's path of the Services or the Jobs of a namespace."""
    api = "/apis/batch/v1" if item["kind"] == "Job" else "/api/v1"
    return f"{api}/namespaces/{quote(item['metadata']['namespace'], safe='')}/{item['kind'].lower()}s"


def check(config: KubernetesConfig, *, world_size: int) -> Sequence[str]:
    """Ask the cluster whether a Job can work. Raises `ConfigError`; returns warnings."""
    config.size(world_size)
    if config.as_ != "job":
        raise ConfigError(
            f"--as {config.as_} needs --create-only or --dry-run: it is printed, and 'kubectl apply -f -' starts it."
        )
    cluster = find_cluster(config.context)
    version = cluster.request("GET", "/version")
    found = int(version["major"]), int("".join(filter(str.isdigit, version["minor"])))
    if found < OLDEST_VERSION:
        raise ConfigError(
            f"the cluster is Kubernetes {found[0]}.{found[1]}, and a run needs {OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}"
            ": before, Jobs have no spec.successPolicy, and no Job of several nodes ends with its run."
        )
    namespace = config.namespace or cluster.namespace
    core = f"/api/v1/namespaces/{namespace}"
    if _find_if_allowed(cluster, core) is None:
        raise ConfigError(f"the cluster has no namespace '{namespace}': kubectl create namespace {namespace}.")
    _check_rights(cluster, namespace)
    for option, kind, name in (
        ("--claim", "persistentvolumeclaims", config.claim.partition(":")[0]),
        ("--service-account", "serviceaccounts", config.service_account),
        *(("--secret", "secrets", secret) for secret in config.secret),
    ):
        if name and _find_if_allowed(cluster, f"{core}/{kind}/{name}") is None:
            raise ConfigError(f"{option} {name}: namespace '{namespace}' has no such object: kubectl get {kind}.")
    return () if config.queue is None else _queue_warnings(cluster, namespace, config.queue)


def _check_rights(cluster: ApiServer, namespace: str) -> None:
    missing = []
    for right in RIGHTS:
        verb, _, kind = right.partition(" ")
        resource, _, group = kind.partition(".")
        attributes = {"namespace": namespace, "group": group, "resource": resource, "verb": verb}
        review: Object = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        review["spec"] = {"resourceAttributes": attributes}
        found = cluster.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        if not found["status"]["allowed"]:
            missing.append(f"{verb} {resource}")
    if missing:
        raise ConfigError(
            f"you may not {', '.join(missing)} in namespace '{namespace}', if there is one. Ask its administrator for "
            "the Role in kubernetes/rbac.yaml, or choose another --namespace."
        )


def _find_if_allowed(cluster: ApiServer, path: str) -> Object | None:
    """Return the object, None if there is none; an empty one if the user may not look."""
    try:
        return cluster.find(path)
    except ApiServerError as error:
        if error.code == 403:
            return {}
        raise


def _queue_warnings(cluster: ApiServer, namespace: str, queue: str) -> list[str]:
    for version in KUEUE_VERSIONS:
        api = f"/apis/kueue.x-k8s.io/{version}"
        if _find_if_allowed(cluster, f"{api}/namespaces/{namespace}/localqueues/{queue}") is not None:
            return []
        if _find_if_allowed(cluster, api) is not None:
            raise ConfigError(f"--queue {queue}: namespace '{namespace}' has no such LocalQueue.")
    return [f"--queue {queue}: the cluster has no Kueue, or another version, so nothing may admit the Job"]


def job_text(home: Home, run: Run, config: KubernetesConfig, *, world_size: int, options: tuple[str, ...] = ()) -> str:
    """Return the objects as YAML, for `kubectl apply -f -`."""
    import yaml

    name = f"{config.namespace or _default_namespace(config.context)}/{job_name(run)}"
    if config.as_ == "trainjob":
        from assay.launchers.kubernetes.trainjob import trainjob_objects

        head = "# The size of a TrainJob is fixed: it neither grows nor shrinks (kubeflow/trainer#2903).\n"
        objects = trainjob_objects(home, run, config, name=name, world_size=world_size, options=options)
    else:
        head = f"# Run {run.run_id}, from its last commit to its end. Written by 'assay train --on kubernetes'.\n"
        objects = objects_of(home, run, config, name=name, world_size=world_size, options=options)
    if not home.has_run(run.run_id):
        head += "# The run does not exist yet, so its pods would end with 2: --create-only saves it, and prints this.\n"
    return head + yaml.safe_dump_all(objects, sort_keys=False, width=110)


def _default_namespace(context: str | None) -> str:
    try:
        return find_cluster(context).namespace
    except NoCredentialsError:
        return "default"


def state(launch: Launch) -> LaunchState:
    """Return the state of a Job; `elsewhere` if it may be a Job of another cluster than the one configured here."""
    cluster, job = _find_job(launch)
    if job is None:
        return "ended" if cluster.server == launch.process.partition(" ")[2] else "elsewhere"
    if _has_ended(job):
        return "ended"
    is_running = job.get("status", {}).get("ready") or "deletionTimestamp" in job["metadata"]
    return "running" if is_running else "queued"


def pending_reason(launch: Launch) -> str:
    """Return, in the cluster's words, why no pod runs: suspended, no quota, no node, no image."""
    cluster, job = _find_job(launch)
    if job is None:
        return "None"
    pods = cluster.request("GET", pods_path(launch.job))["items"]
    reasons = [*_suspension(cluster, job), *(reason for pod in pods for reason in _waiting(pod)), *_failures(pods)[-1:]]
    if not reasons:
        field = quote(f"involvedObject.uid={job['metadata']['uid']}")
        namespace = job["metadata"]["namespace"]
        events = cluster.request("GET", f"/api/v1/namespaces/{namespace}/events?fieldSelector={field}")["items"]
        last = sorted(events, key=lambda event: event.get("lastTimestamp") or "")[-1:]
        reasons = [event["message"] for event in last if event.get("type") == "Warning"]
    return "; ".join(dict.fromkeys(reasons)) or "pods are being created"


def _suspension(cluster: ApiServer, job: Object) -> Iterator[str]:
    """Yield why a Job is suspended, in Kueue's words if it holds it."""
    if not job["spec"].get("suspend"):
        return
    metadata = job["metadata"]
    if (queue := metadata.get("labels", {}).get(QUEUE_LABEL)) is None:
        yield "the Job is suspended (spec.suspend)"
        return
    label = quote(f"kueue.x-k8s.io/job-uid={metadata['uid']}")
    found: list[str] = []
    for version in KUEUE_VERSIONS:
        path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{metadata['namespace']}/workloads?labelSelector={label}"
        for workload in (_find_if_allowed(cluster, path) or {}).get("items", []):
            conditions = workload.get("status", {}).get("conditions", [])
            found += [item["message"] for item in conditions if item["type"] == "QuotaReserved"]
    yield f"suspended by queue {queue}: {found[-1] if found else 'it waits for quota'}"


def _waiting(pod: Object) -> Iterator[str]:
    status = pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"{condition.get('reason', 'not scheduled')}: {condition.get('message', '')}"
    for container in status.get("containerStatuses", []):
        if (waiting := container.get("state", {}).get("waiting")) and waiting.get("reason") != "ContainerCreating":
            yield f"{waiting['reason']}: {waiting.get('message', '')}"


def end_reason(launch: Launch) -> str:
    """Return why the Job failed, and the last lines of its pods that ended with an error."""
    cluster, job = _find_job(launch)
    if job is None:
        return ""
    conditions = job.get("status", {}).get("conditions") or []
    reasons = [item.get("message", "") for item in conditions if item["type"] == "Failed" and item["status"] == "True"]
    return "\n".join([*reasons, *_failures(cluster.request("GET", pods_path(launch.job))["items"])]).strip()


def _failures(pods: Sequence[Object]) -> list[str]:
    """Return how containers failed, with the last lines that they printed."""
    statuses = [status for pod in pods for status in pod.get("status", {}).get("containerStatuses", [])]
    ends = [status.get("state", {}).get("terminated") or {} for status in statuses]
    return [
        f"a pod ended with {end.get('reason', '')}, exit code {end['exitCode']}: {end.get('message', '')}".strip(": ")
        for end in ends
        if end.get("exitCode") not in (None, 0, STOPPED_EARLY)
    ]


def stop(launch: Launch) -> None:
    """Delete the Job: its pods get SIGTERM and their grace time to commit. The Job is gone when they are."""
    cluster, job = _find_job(launch)
    if job is not None:
        _delete(cluster, launch.job)


def kill(launch: Launch) -> None:
    """Delete the Job and its pods at once."""
    stop(launch)
    cluster, _ = _find_job(launch)
    path = pods_path(launch.job)
    for pod in cluster.request("GET", path)["items"]:
        if pod["metadata"]["ownerReferences"][0]["uid"] == launch.process.partition(" ")[0]:
            _ignore_missing(cluster, f"{path.partition('?')[0]}/{pod['metadata']['name']}?gracePeriodSeconds=0")


def resize(launch: Launch, num_nodes: int) -> None:
    """Give the Job more or fewer pods; from then on it does not change its size by itself.

    Raises `ConfigError` if it has ended, or for a size that its `--workers` do not allow.
    """
    cluster, job = _find_job(launch)
    if job is None or _has_ended(job):
        raise ConfigError(f"run '{launch.run_id}': {launch.where()} has ended; start it again with other --nodes.")
    fewest, most = (int(job["metadata"]["annotations"][name]) for name in (FEWEST_NODES, MOST_NODES))
    if not fewest <= num_nodes <= most:
        raise ConfigError(
            f"--nodes {num_nodes}: by its --workers, run '{launch.run_id}' uses {fewest} to {most} nodes. Start it "
            "again with other --workers and --nodes."
        )
    cluster.request("PATCH", job_path(launch.job), sized(num_nodes, {OWN_SIZE: None}))


def _find_job(launch: Launch) -> tuple[ApiServer, Object | None]:
    """Return the cluster and the Job of a launch; None if it is gone, also if another one has its name."""
    uid, _, server = launch.process.partition(" ")
    cluster = find_cluster(server=server)
    job = cluster.find(job_path(launch.job))
    return cluster, job if job is not None and job["metadata"]["uid"] == uid else None


def _has_ended(job: Object) -> bool:
    # A Job whose run is finished is not Complete while a pod of a dead node cannot confirm its end.
    final = ("Complete", "Failed", "SuccessCriteriaMet")
    conditions = job.get("status", {}).get("conditions") or []
    return any(item["type"] in final and item["status"] == "True" for item in conditions)


def _delete(cluster: ApiServer, name: str) -> None:
    _ignore_missing(cluster, f"{job_path(name)}?propagationPolicy=Foreground")


def _ignore_missing(cluster: ApiServer, path: str) -> None:
    try:
        cluster.request("DELETE", path)
    except ApiServerError as error:
        if error.code != 404:
            raise
