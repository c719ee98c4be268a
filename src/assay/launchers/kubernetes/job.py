"""The objects of a run on Kubernetes: an Indexed Job, one pod for each node, and a Service that names the pods.

    Job JOB, parallelism = completions = nodes       Service JOB, headless: pod I is JOB-I.JOB, ready or not
      pod I   assay train --resume RUN --on nodes --node I

`job.yaml` says what becomes of a pod that ends, by the exit codes of the node command.
Nothing here contacts a cluster.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from assay.base.config import read_config_file
from assay.base.errors import ConfigError
from assay.launchers.kubernetes.client import Object
from assay.launchers.kubernetes.quota import quantity
from assay.launchers.launcher import RunSize, SchedulerConfig, resume_command
from assay.records.run import Run
from assay.store.home import Home
from assay.training.recipe import recipe_of

RUN, MOST_NODES, FEWEST_NODES, OWN_SIZE = "assay/run", "assay/most-nodes", "assay/fewest-nodes", "assay/own-size"
"""Annotations of a Job: which run it trains, within which bounds it changes its size, and the size that it chose."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
ELASTIC = "kueue.x-k8s.io/elastic-job"
"""Kueue's annotation of a Job that may change its size, and its scheduling gate of pods that wait for quota."""
NAMED_JOB = "ASSAY_KUBERNETES_JOB"
"""Variable of a pod: NAMESPACE/JOB, if its service account may read and resize the Job."""
TEMPLATE = Path(__file__).with_name("job.yaml")
MARGIN_S = 10
"""Seconds of a pod's grace time that are left when ranks that did not commit are killed."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LEAST_BYTES = 2**26
"""No pod that trains has less memory, so a smaller amount lacks its unit."""


def _object_name(name: str) -> str:
    if not _NAME.fullmatch(name) or len(name) > 253:
        raise ValueError(f"{name!r} is not a name of Kubernetes: lower-case letters, digits, '-' and '.'")
    return name


ObjectName = Annotated[str, AfterValidator(_object_name)]


class KubernetesConfig(SchedulerConfig):
    """Options of a Job."""

    image: str = Field(min_length=1)
    """Container image that has `assay`, e.g. built from the Containerfile of this repository."""
    claim: str
    """PersistentVolumeClaim with the runs and the data, and where it is mounted, NAME:/PATH, in the pods as here.
    All nodes write to it: its access mode is ReadWriteMany."""
    namespace: ObjectName | None = None
    """Namespace; None for that of the kubeconfig's context, or of this pod."""
    context: str | None = None
    """Context of the kubeconfig; None for the current one."""
    queue: ObjectName | None = None
    """Kueue's LocalQueue that admits the Job; None for no queue."""
    service_account: ObjectName | None = None
    """Service account of the pods. With the rights of kubernetes/rbac.yaml the run grows and shrinks its own Job, and
    shows its progress on it."""
    secret: tuple[ObjectName, ...] = ()
    """Secrets whose keys become environment variables, e.g. AWS_SECRET_ACCESS_KEY or ASSAY_LEDGER."""
    cpu: PositiveFloat | None = None
    """Processors of a pod; None for the recipe's threads_per_rank, times the workers of a node."""
    memory: str | None = None
    """Memory of a pod, requested and limited, e.g. 64Gi; None for no limit."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs of a pod (nvidia.com/gpu)."""
    grace_s: PositiveInt = 120
    """Seconds that a pod gets after SIGTERM to commit and exit."""
    patch: Path | None = None
    """YAML file that is merged into the Job, e.g. with a nodeSelector or further tolerations."""
    as_: Literal["job", "trainjob"] = "job"
    """What --create-only and --dry-run print: a Job, or Kubeflow's TrainJob with its runtime."""

    @field_validator("claim")
    @classmethod
    def _has_a_path(cls, claim: str) -> str:
        name, _, path = claim.partition(":")
        if not (_NAME.fullmatch(name) and path.startswith("/") and path.isprintable()):
            raise ValueError(f"{claim!r}: write NAME:/PATH, the claim and where it is mounted")
        return claim

    @field_validator("memory")
    @classmethod
    def _is_a_quantity(cls, value: str | None) -> str | None:
        if value is not None and quantity(value) < _LEAST_BYTES:
            raise ValueError(f"{value!r} is too little for a pod that trains; write it like 64Gi")
        return value


def job_name(run: Run) -> str:
    """Return the name of the run's Job: a DNS label, also with a pod's index behind it."""
    name = re.sub(r"[^a-z0-9-]+", "-", f"assay-{run.run_id}".lower())[:52].strip("-")
    if name == f"assay-{run.run_id}":
        return name
    return f"{name[:43].rstrip('-')}-{hashlib.sha256(run.run_id.encode()).hexdigest()[:8]}"


def run_key(run: Run) -> str:
    """Return what tells the Job of this run from that of a namesake in another home."""
    return f"{run.run_id} {run.created_s}"


def objects_of(
    home: Home,
    run: Run,
    config: KubernetesConfig,
    *,
    name: str,
    world_size: int,
    options: Sequence[str],
    leader: str | None = None,
) -> tuple[Object, Object]:
    """Return the Service and the Job of a run. Raises `ConfigError` if its pods could not reach what it needs.

    `name`: NAMESPACE/JOB. `leader`: host name of pod 0; by default JOB-0.SERVICE.
    """
    import yaml

    _check_reachable(home, run, config)
    size, (namespace, _, own) = config.size(world_size, options), name.partition("/")
    service, job = yaml.safe_load_all(TEMPLATE.read_text())
    for item in (service, job):
        item["metadata"] |= {"name": own, "namespace": namespace, "annotations": {RUN: run_key(run)}}
    service["spec"]["selector"] = {"batch.kubernetes.io/job-name": own}
    # A queue admits all pods or none, so the run asks for few and then grows.
    num_nodes = size.fewest if config.queue else size.most
    job["spec"] |= {"parallelism": num_nodes, "completions": num_nodes}
    bounds = {MOST_NODES: size.most, FEWEST_NODES: size.fewest, OWN_SIZE: num_nodes}
    job["metadata"]["annotations"] |= {key: str(number) for key, number in bounds.items()}
    if config.queue:
        job["metadata"]["labels"][QUEUE_LABEL] = config.queue
        job["metadata"]["annotations"][ELASTIC] = "true"
    pod = job["spec"]["template"]["spec"]
    command = _node_command(run, config, size, leader=leader or f"{own}-0.{own}", options=options)
    _fill_pod(pod, home, config, job=name, command=command, resources=_resources(run, config, size))
    return service, _patched(job, config.patch)


def _node_command(
    run: Run, config: KubernetesConfig, size: RunSize, *, leader: str, options: Sequence[str]
) -> list[str]:
    node = ["--on", "nodes", "--lead", leader, "--workers-per-node", str(size.workers_per_node)]
    if not any(option.startswith("--leave-within") for option in options):
        node.append(f"--leave-within={max(1, config.grace_s - MARGIN_S)}")
    command = resume_command(run, world_size=size.workers.most, options=(*node, *options), program="assay")
    literal = [text.replace("$(", "$$(") for text in command]  # a run's id may look like a variable
    index = "$(JOB_COMPLETION_INDEX)"
    log = log_file(run.run_dir.replace("$(", "$$("), index)
    return [*literal, "--node", index, "--address", "$(POD_IP)", "--log-file", log]


def _fill_pod(
    pod: Object, home: Home, config: KubernetesConfig, *, job: str, command: list[str], resources: Object
) -> None:
    """Fill in a pod's specification; `job`: NAMESPACE/NAME."""
    claim, _, path = config.claim.partition(":")
    pod["subdomain"] = job.partition("/")[2]
    pod["terminationGracePeriodSeconds"] = config.grace_s
    pod["automountServiceAccountToken"] = config.service_account is not None
    [container] = pod["containers"]
    container |= {"image": config.image, "command": command, "resources": resources}
    container["volumeMounts"][-1]["mountPath"] = path
    pod["volumes"][-1]["persistentVolumeClaim"] = {"claimName": claim}
    # Without the ledger's URL, which may hold a password: a Secret has it.
    variables = {"ASSAY_HOME": str(home.folder.resolve()), "CONTAINER_IMAGE": config.image}
    if config.service_account:
        pod["serviceAccountName"] = config.service_account
        variables[NAMED_JOB] = job
    container["env"] += [{"name": variable, "value": value} for variable, value in variables.items()]
    if config.secret:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in config.secret]


def log_file(run_dir: str, node: str) -> str:
    """Return the file that keeps what a node of a run prints."""
    return f"{run_dir}/kubernetes/node-{node}.log"


def sized(num_nodes: int, annotations: Object) -> Object:
    """Return the patch of a Job's size: the API accepts new `completions` only with equal `parallelism`."""
    size = {"parallelism": num_nodes, "completions": num_nodes}
    return {"metadata": {"annotations": annotations}, "spec": size}


def job_path(name: str) -> str:
    """Return the API's path of a Job, given NAMESPACE/NAME."""
    namespace, _, job = name.partition("/")
    return f"/apis/batch/v1/namespaces/{quote(namespace, safe='')}/jobs/{quote(job, safe='')}"


def pods_path(name: str) -> str:
    """Return the API's path of a Job's pods, given NAMESPACE/NAME."""
    namespace, _, job = name.partition("/")
    selector = quote(f"batch.kubernetes.io/job-name={job}")
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods?labelSelector={selector}"


def _resources(run: Run, config: KubernetesConfig, size: RunSize) -> Object:
    cpu = config.cpu or recipe_of(run).trainer.threads_per_rank * size.workers_per_node
    limits = {"memory": config.memory} if config.memory else {}
    if config.gpus_per_node:
        limits["nvidia.com/gpu"] = str(config.gpus_per_node)
    return {"requests": {"cpu": f"{cpu:g}", **limits}, **({"limits": limits} if limits else {})}


def _check_reachable(home: Home, run: Run, config: KubernetesConfig) -> None:
    """Raise `ConfigError` for a folder that is not on the claim, or a ledger that no Secret names."""
    root = Path(config.claim.partition(":")[2])
    folders = {"ASSAY_HOME": home.folder, "the run's store": run.store_url, "data.dataset": recipe_of(run).data.dataset}
    for what, location in folders.items():
        is_remote = re.match(r"[a-z0-9+]+://", str(location)) and not str(location).startswith("file://")
        path = Path(str(location).removeprefix("file://")).resolve()
        if not is_remote and not path.is_relative_to(root):
            raise ConfigError(
                f"{what} is {path}, which the pods cannot reach: the claim is mounted at {root}. Put it "
                f"below {root}, mounted here as well, or keep commits in an object store (--store s3://...)."
            )
    if home.ledger.startswith("postgres") and not config.secret:
        raise ConfigError(
            "the ledger is a PostgreSQL database, and the pods do not know its URL: put ASSAY_LEDGER in a Secret and "
            "name it: --secret NAME."
        )


def _patched(job: Object, path: Path | None) -> Object:
    if path is None:
        return job
    merged: Object = _merged(job, read_config_file(path, ()).values)
    try:
        is_same = _identity(merged) == _identity(job)
    except (AttributeError, IndexError, KeyError, TypeError):
        is_same = False
    if not is_same:
        raise ConfigError(
            f"{path}: a patch may not change the Job's name, namespace or annotations of assay, nor the container "
            "'node' into something else."
        )
    return merged


def _identity(job: Object) -> tuple[object, ...]:
    metadata, containers = job["metadata"], job["spec"]["template"]["spec"]["containers"]
    own = {key: text for key, text in metadata["annotations"].items() if key.startswith("assay/")}
    return metadata["name"], metadata["namespace"], own, containers[0]["name"]


def _merged(value: Any, patch: Any) -> Any:
    """Merge mappings by key, lists by the `name` of their elements; other elements of lists are added."""
    if isinstance(value, dict) and isinstance(patch, dict):
        return value | {key: _merged(value.get(key), item) for key, item in patch.items()}
    if not (isinstance(value, list) and isinstance(patch, list)):
        return patch
    merged = list(value)
    for item in patch:
        name = item.get("name") if isinstance(item, dict) else None
        names = [old.get("name") if isinstance(old, dict) else None for old in merged]
        index = names.index(name) if name and name in names else None
        if index is None:
            merged.append(item)
        else:
            merged[index] = _merged(merged[index], item)
    return merged
